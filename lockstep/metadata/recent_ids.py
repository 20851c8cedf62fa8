"""The ids of the latest entries, so that a retried submission finds its first outcome.

Invariant: ids of exactly the epochs first_epoch..last_epoch are kept (dense), at most
RECENT_ENTRY_IDS_MAX of them. Persistent maps share structure, so keeping one value per epoch is cheap.
"""

from __future__ import annotations

import msgspec
from rpds import HashTrieMap

from lockstep.values.limits import RECENT_ENTRY_IDS_MAX


class RecentIds(msgspec.Struct, frozen=True, dict=True):
    """In memory only; `listed` is its canonical form."""

    by_epoch: HashTrieMap[int, bytes]
    by_id: HashTrieMap[bytes, int]
    first_epoch: int
    last_epoch: int

    def epoch_of(self, entry_id: bytes) -> int | None:
        return self.by_id.get(entry_id)

    def with_entry(self, epoch: int, entry_id: bytes) -> RecentIds:
        """Append the id of the next epoch and forget the oldest beyond the limit."""
        assert epoch == self.last_epoch + 1, f"ids are appended densely: {epoch} after {self.last_epoch}"
        assert entry_id not in self.by_id, f"entry id {entry_id.hex()} is applied twice"
        by_epoch, by_id = self.by_epoch.insert(epoch, entry_id), self.by_id.insert(entry_id, epoch)
        first = self.first_epoch
        if epoch - first + 1 > RECENT_ENTRY_IDS_MAX:
            by_id = by_id.remove(by_epoch[first])
            by_epoch = by_epoch.remove(first)
            first += 1
        return RecentIds(by_epoch, by_id, first, epoch)

    def listed(self) -> tuple[bytes, ...]:
        """Ids of first_epoch..last_epoch in that order."""
        return tuple(self.by_epoch[epoch] for epoch in range(self.first_epoch, self.last_epoch + 1))

    @staticmethod
    def from_listed(first_epoch: int, ids: tuple[bytes, ...]) -> RecentIds:
        by_epoch: dict[int, bytes] = {first_epoch + at: entry_id for at, entry_id in enumerate(ids)}
        by_id = {entry_id: epoch for epoch, entry_id in by_epoch.items()}
        last = first_epoch + len(ids) - 1
        return RecentIds(HashTrieMap(by_epoch), HashTrieMap(by_id), first_epoch, last)


def no_recent_ids() -> RecentIds:
    return RecentIds(HashTrieMap(), HashTrieMap(), 1, 0)
