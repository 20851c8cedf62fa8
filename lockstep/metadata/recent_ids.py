"""The ids of the latest entries, so that a retried submission finds its first outcome.

Invariant: ids of exactly the epochs first_epoch..last_epoch are kept (dense), at most
RECENT_ENTRY_IDS_MAX of them. Persistent maps share structure, so keeping one value per epoch is cheap.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
from rpds import HashTrieMap

from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, tree_of
from lockstep.values.limits import RECENT_ENTRY_IDS_MAX


class RecentIds(msgspec.Struct, frozen=True, dict=True):
    """In memory only; `listed` is its canonical form."""

    by_epoch: HashTree[bytes]
    by_id: HashTrieMap[bytes, int]
    first_epoch: int
    last_epoch: int

    def epoch_of(self, entry_id: bytes) -> int | None:
        return self.by_id.get(entry_id)

    def with_entry(self, epoch: int, entry_id: bytes) -> RecentIds:
        """Append the id of the next epoch and forget the oldest beyond the limit."""
        assert epoch == self.last_epoch + 1, f"ids are appended densely: {epoch} after {self.last_epoch}"
        assert entry_id not in self.by_id, f"entry id {entry_id.hex()} is applied twice"
        by_epoch, by_id, first = self.by_epoch, self.by_id.insert(entry_id, epoch), self.first_epoch
        if epoch - first + 1 > RECENT_ENTRY_IDS_MAX:
            by_id = by_id.remove(by_epoch[first])
            by_epoch = by_epoch.without(first)
            first += 1
        by_epoch = by_epoch.with_value(epoch, entry_id, _digest(epoch, entry_id))
        return RecentIds(by_epoch, by_id, first, epoch)

    def listed(self) -> tuple[bytes, ...]:
        """Ids of first_epoch..last_epoch in that order."""
        return tuple(self.by_epoch[epoch] for epoch in range(self.first_epoch, self.last_epoch + 1))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes; the tree's shape has a place for each of RECENT_ENTRY_IDS_MAX epochs in a row, so an
        entry costs one path."""
        return blake(self.first_epoch.to_bytes(8, "big") + self.by_epoch.digest)

    @staticmethod
    def from_listed(first_epoch: int, ids: tuple[bytes, ...]) -> RecentIds:
        by_epoch = [(first_epoch + at, entry_id) for at, entry_id in enumerate(ids)]
        tree = tree_of((epoch, entry_id, _digest(epoch, entry_id)) for epoch, entry_id in by_epoch)
        by_id = {entry_id: epoch for epoch, entry_id in by_epoch}
        return RecentIds(tree, HashTrieMap(by_id), first_epoch, first_epoch + len(ids) - 1)


def _digest(epoch: int, entry_id: bytes) -> bytes:
    """Short enough to be its own digest; the tree's keys are within it."""
    return epoch.to_bytes(8, "big") + entry_id


def no_recent_ids() -> RecentIds:
    return RecentIds(EMPTY_TREE, HashTrieMap(), 1, 0)
