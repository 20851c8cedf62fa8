"""The ids of the latest entries, so that a retried submission finds its first outcome.

Invariant: ids of exactly the epochs first_epoch..last_epoch are kept (dense), at most
RECENT_ENTRY_IDS_MAX of them. Persistent parts share structure, so keeping one value per epoch is cheap.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
from rpds import HashTrieMap, Queue

from lockstep.values.hash_tree import blake
from lockstep.values.limits import RECENT_ENTRY_IDS_MAX

_NONE: HashTrieMap[bytes, int] = HashTrieMap()


class RecentIds(msgspec.Struct, frozen=True, dict=True, eq=False):
    """In memory only; `listed` is its canonical form.

    Epochs by id are in two maps: `older` is what `newer` had become when it was as long as all that is kept.
    So nothing is taken out of a map one by one, and what `older` has beyond `first_epoch` does not count.
    """

    ids: Queue[bytes]
    newer: HashTrieMap[bytes, int]
    older: HashTrieMap[bytes, int]
    first_epoch: int
    last_epoch: int

    def epoch_of(self, entry_id: bytes) -> int | None:
        found = self.newer.get(entry_id)
        if found is None and self.older:
            found = self.older.get(entry_id)
        return found if found is not None and found >= self.first_epoch else None

    def with_entry(self, epoch: int, entry_id: bytes) -> RecentIds:
        """Append the id of the next epoch and forget the oldest beyond the limit."""
        assert epoch == self.last_epoch + 1, f"ids are appended densely: {epoch} after {self.last_epoch}"
        assert self.epoch_of(entry_id) is None, f"entry id {entry_id.hex()} is applied twice"
        ids, newer, older, first = self.ids.enqueue(entry_id), self.newer, self.older, self.first_epoch
        if len(newer) >= RECENT_ENTRY_IDS_MAX:
            newer, older = _NONE, newer
        if epoch - first >= RECENT_ENTRY_IDS_MAX:
            ids = ids.dequeue()  # type: ignore[call-arg]  # the stub wants a value, the method takes none
            first += 1
        return RecentIds(ids, newer.insert(entry_id, epoch), older, first, epoch)

    def listed(self) -> tuple[bytes, ...]:
        """Ids of first_epoch..last_epoch in that order."""
        return tuple(self.ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RecentIds)
            and (self.first_epoch, self.last_epoch) == (other.first_epoch, other.last_epoch)
            and self.listed() == other.listed()
        )

    def __hash__(self) -> int:
        return hash((self.first_epoch, self.last_epoch))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes; costs all that is kept, and only snapshots and proofs ask for it."""
        return blake(self.first_epoch.to_bytes(8, "big") + b"".join(self.listed()))

    @staticmethod
    def from_listed(first_epoch: int, ids: tuple[bytes, ...]) -> RecentIds:
        by_id = HashTrieMap({entry_id: first_epoch + at for at, entry_id in enumerate(ids)})
        return RecentIds(Queue(ids), by_id, _NONE, first_epoch, first_epoch + len(ids) - 1)


def no_recent_ids() -> RecentIds:
    return RecentIds(Queue(), _NONE, _NONE, 1, 0)
