"""The ids of the latest entries, so that a retried submission finds its first outcome.

Invariant: ids of exactly the epochs first_epoch..last_epoch are kept (dense), at most
RECENT_ENTRY_IDS_MAX of them. Persistent parts share structure, so keeping one value per epoch is cheap. A
digest is made when somebody asks, from those of blocks; it costs what was appended since the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec
from rpds import HashTrieMap, List

from lockstep.metadata.part import Item, Part, collected
from lockstep.values.hash_tree import blake
from lockstep.values.limits import RECENT_ENTRY_IDS_MAX


class _Generation(msgspec.Struct, frozen=True, eq=False):
    """Ids of consecutive epochs, the newest first, and their epochs."""

    ids: List[bytes]
    epochs: HashTrieMap[bytes, int]


class _Block(msgspec.Struct, frozen=True, eq=False):
    """Consecutive ids that end where the next multiple of _BLOCK_EPOCHS begins, and their digest."""

    first_epoch: int
    ids: tuple[bytes, ...]
    digest: bytes


class _Digested(msgspec.Struct, frozen=True, eq=False):
    blocks: tuple[_Block, ...]
    digest: bytes


#: An epoch more costs at most a digest of so many ids at either end, and one over all blocks' digests.
_BLOCK_EPOCHS: Final = 64
#: Ids of one stored item.
_BUNDLED: Final = 512
_EMPTY: Final = _Generation(List(), HashTrieMap())


class RecentIds(msgspec.Struct, frozen=True, dict=True, eq=False):
    """In memory only; `listed` is its canonical form.

    `older` is what `newer` had become when it was as long as all that is kept: so nothing is taken out of a
    map one by one, and what `older` has from before `first_epoch` does not count.
    """

    newer: _Generation
    older: _Generation
    first_epoch: int
    last_epoch: int
    #: Blocks of an earlier value that was digested.
    blocks: tuple[_Block, ...] = ()

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
        blocks = self._digested.blocks if "_digested" in self.__dict__ else self.blocks
        assert epoch - first < RECENT_ENTRY_IDS_MAX, "so many ids are kept"
        return RecentIds(newer, older, first, epoch, blocks)

    def listed(self) -> tuple[bytes, ...]:
        """Ids of first_epoch..last_epoch in that order."""
        return tuple(self._newest(self.last_epoch - self.first_epoch + 1))

    def _newest(self, count: int) -> list[bytes]:
        found = list(islice(self.newer.ids, count))
        if len(found) < count:
            found += islice(self.older.ids, count - len(found))
        assert len(found) == count, "ids of all epochs are kept"
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

    @property
    def digest(self) -> bytes:
        """32 bytes."""
        return self._digested.digest

    @cached_property
    def _digested(self) -> _Digested:
        first = self.first_epoch
        blocks = [block for block in self.blocks if block.first_epoch + len(block.ids) > first]
        begun = blocks[-1].first_epoch + len(blocks[-1].ids) if blocks else first
        ids = self._newest(self.last_epoch - begun + 1)
        while len(ids) >= (size := _BLOCK_EPOCHS - begun % _BLOCK_EPOCHS):
            whole = tuple(ids[:size])
            blocks.append(_Block(begun, whole, blake(b"".join(whole))))
            begun, ids = begun + size, ids[size:]
        assert begun + len(ids) == self.last_epoch + 1, "ids of all epochs are digested, each once"
        digests = [block.digest for block in blocks]
        if blocks and blocks[0].first_epoch < first:
            digests[0] = blake(b"".join(blocks[0].ids[first - blocks[0].first_epoch :]))
        parts = (first.to_bytes(8, "big"), *digests, *ids)
        return _Digested(tuple(blocks), blake(b"".join(parts)))

    @staticmethod
    def from_listed(first_epoch: int, ids: tuple[bytes, ...]) -> RecentIds:
        by_id = HashTrieMap({entry_id: first_epoch + at for at, entry_id in enumerate(ids)})
        assert len(by_id) == len(ids), "an id is applied once"
        last_epoch = first_epoch + len(ids) - 1
        return RecentIds(_Generation(List(ids[::-1]), by_id), _EMPTY, first_epoch, last_epoch)


def no_recent_ids() -> RecentIds:
    return RecentIds(_EMPTY, _EMPTY, 1, 0)


def _items(value: RecentIds) -> Iterator[Item]:
    yield 0, value.first_epoch
    listed = value.listed()
    for at in range(0, len(listed), _BUNDLED):
        yield 1, listed[at : at + _BUNDLED]


def _of_items(items: Sequence[Item]) -> RecentIds:
    ids = tuple(entry_id for kind, bundle in items if kind == 1 for entry_id in bundle)
    return RecentIds.from_listed(next((value for kind, value in items if kind == 0), 1), ids)


#: Comparisons leave it out: the epoch tells it already.
RECENT_IDS: Final[Part[RecentIds]] = Part(
    name="recent_ids",
    number=15,
    empty=no_recent_ids(),
    items=_items,
    kinds=(int, tuple[bytes, ...]),
    builder=collected(_of_items),
    digest=lambda value: value.digest,
    compare=lambda path, before, after: iter(()),
)
