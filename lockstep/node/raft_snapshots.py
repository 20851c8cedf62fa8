"""Snapshots of the metadata log in its consensus group: when they shorten the group's log, and for whom.

Every node stores the snapshots of the metadata by itself, and follows the log by asking peers, also over a
gap (node.catch_up); so the group's snapshot is only a descriptor. Invariant: the group forgets an entry only
when a snapshot that holds it is durable here; a member that is offered a snapshot takes it when its own
metadata has reached that epoch with that hash, and never goes on over another history.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lockstep.consensus.messages import Snapshot
from lockstep.metadata.entries import LogEntry
from lockstep.metadata.registry import EntryKind
from lockstep.metadata.snapshot_file import SnapshotInfo
from lockstep.node.metadata_state import MetadataState
from lockstep.node.raft_driver import RaftDriver
from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.errors import CannotApply
from lockstep.values.limits import RAFT_SNAPSHOTS_NOTED_MAX


class SnapshotFacts(msgspec.Struct, frozen=True, array_like=True):
    """The data of the group's descriptor: the epoch and hash of the snapshot entry, the digest of the value
    before it, and the size of the stored file."""

    epoch: int
    hash: bytes
    digest: bytes
    size_bytes: int


_FACTS = decoder(SnapshotFacts)


class MetadataSnapshots:
    """`fetch(epoch)` asks for the metadata up to there. `driver` is this node's member, if there is one."""

    def __init__(self, state: MetadataState, fetch: Callable[[int], None]) -> None:
        self._state = state
        self._fetch = fetch
        self.driver: RaftDriver | None = None
        #: Raft index of the latest snapshot entries, by epoch.
        self._index_of: dict[int, int] = {}
        state.listen_snapshots(self._saved)

    def begin(self, driver: RaftDriver | None) -> None:
        """This node's member began (its driver), or ended (None)."""
        self.driver = driver
        self._index_of = {}

    def committed(self, index: int, entry: LogEntry) -> None:
        """The group committed `entry` at `index`, and it is handed out to be applied."""
        if entry.kind != EntryKind.SNAPSHOT:
            return
        self._index_of[entry.epoch] = index
        while len(self._index_of) > RAFT_SNAPSHOTS_NOTED_MAX:
            del self._index_of[next(iter(self._index_of))]
        info = self._state.store.infos.get(entry.epoch)
        if info is not None:
            self._compact(index, info)

    def _saved(self, info: SnapshotInfo) -> None:
        index = self._index_of.get(info.epoch)
        if index is not None:
            self._compact(index, info)

    def _compact(self, index: int, info: SnapshotInfo) -> None:
        if self.driver is None:
            return
        for epoch in [epoch for epoch in self._index_of if epoch <= info.epoch]:
            del self._index_of[epoch]
        facts = SnapshotFacts(info.epoch, info.entry.hash, info.digest, info.size_bytes)
        self.driver.compact(index, encode(facts), info.size_bytes)

    async def present(self, snapshot: Snapshot) -> None:
        """Return when the metadata here holds what the group offers; CannotApply: it is another history."""
        try:
            facts = _FACTS.decode(snapshot.data)
        except UNREADABLE as error:
            raise CannotApply(f"the group's snapshot cannot be read: {error}") from error
        if self._state.epoch < facts.epoch:
            self._fetch(facts.epoch)
            await self._state.wait_for(facts.epoch)
        known = self._state.hash_at(facts.epoch)
        if known is not None and known != facts.hash:
            raise CannotApply(f"the group's snapshot has another entry at epoch {facts.epoch}")

    def install(self, snapshot: Snapshot) -> None:
        """The state is there already."""
