"""The ids of the latest entries, so that a retried submission finds its first outcome.

Invariant: ids of exactly the epochs first_epoch..last_epoch are kept (dense), at most
RECENT_ENTRY_IDS_MAX of them. Persistent parts share structure, so keeping one value per epoch is cheap. The
tree behind the digest lags until somebody asks; then it costs what was appended since it was last asked for.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice

import msgspec
from rpds import HashTrieMap, List

from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, tree_of
from lockstep.values.limits import RECENT_ENTRY_IDS_MAX


class _Generation(msgspec.Struct, frozen=True, eq=False):
    """Ids of consecutive epochs, the newest first, and their epochs."""

    ids: List[bytes]
    epochs: HashTrieMap[bytes, int]


class _Digested(msgspec.Struct, frozen=True, eq=False):
    """A tree of the ids of these epochs. Its shape has a place for each of RECENT_ENTRY_IDS_MAX in a row."""

    tree: HashTree[bytes]
    first_epoch: int
    last_epoch: int


_EMPTY = _Generation(List(), HashTrieMap())
_UNASKED = _Digested(EMPTY_TREE, 1, 0)


class RecentIds(msgspec.Struct, frozen=True, dict=True, eq=False):
    """In memory only; `listed` is its canonical form.

    `older` is what `newer` had become when it was as long as all that is kept: so nothing is taken out of a
    map one by one, and what `older` has from before `first_epoch` does not count.
    """

    newer: _Generation
    older: _Generation
    first_epoch: int
    last_epoch: int
    #: What was digested last, of this value or an earlier one.
    base: _Digested

    def epoch_of(self, entry_id: bytes) -> int | None:
        found = self.newer.epochs.get(entry_id)
        if found is None:
            found = self.older.epochs.get(entry_id)
        return found if found is not None and found >= self.first_epoch else None

    def with_entry(self, epoch: int, entry_id: bytes) -> RecentIds:
        """Append the id of the next epoch and forget the oldest beyond the limit."""
        assert epoch == self.last_epoch + 1, f"ids are appended densely: {epoch} after {self.last_epoch}"
        assert self.epoch_of(entry_id) is None, f"entry id {entry_id.hex()} is applied twice"
        newer, older = self.newer, self.older
        if len(newer.ids) >= RECENT_ENTRY_IDS_MAX:
            newer, older = _EMPTY, newer
        newer = _Generation(newer.ids.push_front(entry_id), newer.epochs.insert(entry_id, epoch))
        first = max(self.first_epoch, epoch - RECENT_ENTRY_IDS_MAX + 1)
        base = self.digested if "digested" in self.__dict__ else self.base
        return RecentIds(newer, older, first, epoch, base)

    def listed(self) -> tuple[bytes, ...]:
        """Ids of first_epoch..last_epoch in that order."""
        return tuple(self._newest(self.last_epoch - self.first_epoch + 1))

    def _newest(self, count: int) -> list[bytes]:
        found = list(islice(self.newer.ids, count))
        if len(found) < count:
            found += islice(self.older.ids, count - len(found))
        found.reverse()
        return found

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RecentIds)
            and (self.first_epoch, self.last_epoch) == (other.first_epoch, other.last_epoch)
            and self.listed() == other.listed()
        )

    def __hash__(self) -> int:
        return hash((self.first_epoch, self.last_epoch))

    @cached_property
    def digested(self) -> _Digested:
        base, first, last = self.base, self.first_epoch, self.last_epoch
        behind = last - base.last_epoch
        if not base.tree.count or behind > RECENT_ENTRY_IDS_MAX // 4:
            ids = enumerate(self.listed(), first)
            tree = tree_of([(epoch, entry_id, _digest(epoch, entry_id)) for epoch, entry_id in ids])
            return _Digested(tree, first, last)
        tree = base.tree
        for epoch, entry_id in enumerate(self._newest(behind), base.last_epoch + 1):
            tree = tree.with_value(epoch, entry_id, _digest(epoch, entry_id))
        for gone in range(base.first_epoch, first):
            tree = tree.without(gone)
        return _Digested(tree, first, last)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes."""
        return blake(self.first_epoch.to_bytes(8, "big") + self.digested.tree.digest)

    @staticmethod
    def from_listed(first_epoch: int, ids: tuple[bytes, ...]) -> RecentIds:
        by_id = HashTrieMap({entry_id: first_epoch + at for at, entry_id in enumerate(ids)})
        last_epoch = first_epoch + len(ids) - 1
        return RecentIds(_Generation(List(ids[::-1]), by_id), _EMPTY, first_epoch, last_epoch, _UNASKED)


def _digest(epoch: int, entry_id: bytes) -> bytes:
    """Short enough to be its own digest; the tree's keys are within it."""
    return epoch.to_bytes(8, "big") + entry_id


def no_recent_ids() -> RecentIds:
    return RecentIds(_EMPTY, _EMPTY, 1, 0, _UNASKED)
