"""This node's part in the metadata group: when it begins and ends, and what judges submissions here.

Invariant: a node takes part while the metadata, or a Raft log of its own that is ahead of the metadata,
counts it among the members; a part that ended takes no further step. A node with a processor of another kind
never takes part.

Snapshots of the metadata log in its consensus group: when they shorten the group's log, and for whom.

Every node stores the snapshots of the metadata by itself, and follows the log by asking peers, also over a
gap (node.catch_up); so the group's snapshot is only a descriptor. Invariant: the group forgets an entry only
when a snapshot that holds it is durable here; a member that is offered a snapshot takes it when its own
metadata has reached that epoch with that hash, and never goes on over another history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.consensus.configuration import RaftSettings
from lockstep.consensus.messages import Entry, Snapshot
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot_file import SnapshotInfo
from lockstep.node.context import Listeners, NodeContext
from lockstep.node.log.journal import METADATA_GROUP, RaftJournal, has_journal, journal_path
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.raft_driver import (
    GroupBounds,
    GroupEvents,
    GroupPace,
    GroupPlace,
    RaftDriver,
    RaftTransport,
)
from lockstep.node.membership.voters import Voters
from lockstep.node.processors.base import Processor
from lockstep.node.processors.kinds import Factory, Gate, GatedProcessor, Surroundings
from lockstep.node.processors.raft import RaftProcessor, logged_entries
from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.errors import CannotApply, CorruptFile, LockstepError, Rejected
from lockstep.values.limits import RAFT_SNAPSHOTS_NOTED_MAX


class SnapshotFacts(msgspec.Struct, frozen=True, array_like=True):
    """The data of the group's descriptor: the epoch and hash of the snapshot entry, the digest of the value
    before it, and the size of the stored file. Of a group that a repair began: those of the repair's entry,
    no digest, and the entry's size."""

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
        #: Epoch and Raft index of the newest entry that the group has handed out.
        self._handed_out = (0, 0)
        state.listen_snapshots(self._saved)
        state.journal = self

    def begin(self, driver: RaftDriver | None) -> None:
        """This node's member began (its driver), or ended (None)."""
        self.driver = driver
        self._index_of = {}
        self._handed_out = (0, 0)

    def handed_out(self, index: int, epoch: int) -> None:
        """The group committed the entry of `epoch` at `index`, and it is handed out to be applied."""
        self._handed_out = (epoch, index)

    def covers(self, epoch: int) -> bool:
        """Whether the journal of this node's member holds what is to be applied, up to this epoch.

        Not before the metadata's own files say that this node votes: by that a voter whose journal is gone
        finds out.
        """
        driver = self.driver
        if driver is None or epoch > self._handed_out[0]:
            return False
        return driver.raft.identity in self._state.current.voters

    async def mark(self, epoch: int) -> bool:
        """Return once the journal durably says that the covered epoch is committed; False: it never will."""
        newest, index = self._handed_out
        # Between two entries of the metadata the group may have others, so this may be a little too far.
        return self.driver is not None and await self.driver.mark(index - (newest - epoch))

    async def settle(self) -> None:
        """The journal is to be written anew: what only it has of the metadata goes to the metadata files."""
        await self._state.store.flush()

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


class MetadataMember:
    """`processor` judges submissions here, if anything does; `driver` is the member while there is one.

    `fail(error)` is called when the node must not go on.
    """

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        voters: Voters,
        transport: RaftTransport,
        factory: Factory | None,
        bounds: GroupBounds,
        fail: Callable[[LockstepError], None],
        on_ring: Processor,
    ) -> None:
        """`on_ring` judges submissions while the cluster runs on the ring."""
        self._runtime = context.runtime
        self._context = context
        self._on_ring = on_ring
        self._judges_on_ring = False
        self._configuration = context.configuration
        self._state = state
        self._voters = voters
        self._transport = transport
        self._factory = factory
        self._bounds = bounds
        self._own_id = context.own_id
        self._host_id = context.host_id
        self._follows_repair: Callable[[], bool] = lambda: context.follows_repair
        self._fetch = context.catch_up.heard
        self._behind = context.catch_up.behind
        self._fail = fail
        #: Told when the role of this node's member changed, and when a part has ended and another may begin.
        self.roles = Listeners[[]]()
        self.ends = Listeners[[]]()
        self._log = context.log
        self._snapshots = MetadataSnapshots(state, self._fetch_from_leader)
        self._raft_processor: RaftProcessor | None = None
        #: Up to which epoch the Raft log on disk is a newer record of who votes than the metadata.
        self._until_epoch = 0
        self._ending = False
        #: What tests do to this node's processor and to what it shows.
        self.gate = Gate(state)
        #: Why no entry of a kind is appended here at present.
        self.refuses: Callable[[int], Rejected | None] = lambda _kind: None
        self.driver: RaftDriver | None = None
        self.processor: Processor | None = None

    @property
    def group(self) -> tuple[RaftDriver, RaftProcessor] | None:
        """The member and what judges there."""
        if self.driver is None or self._raft_processor is None:
            return None
        return self.driver, self._raft_processor

    @property
    def leads(self) -> bool:
        if self.driver is not None:
            return self.driver.is_leader
        return self.processor is not None and self.processor.leads

    @property
    def configuration_index(self) -> int:
        """Of the Raft entry that brought the present members; 0 where there is no member."""
        return self.driver.raft.configuration_index if self.driver is not None else 0

    def campaign(self) -> None:
        if self.driver is not None:
            self.driver.campaign()

    def halt(self) -> None:
        if self.driver is not None:
            self.driver.halt()

    def take_part(self) -> None:
        """Begin if this node is a member: the first founder, and after founding whom the metadata says.

        A voter is a host: whichever address it now has, and whoever else has the address it had. A node that
        is being added gets its vote by the Raft log, after it got that log.
        """
        if self._context.is_on_ring or self._context.awaits_log:
            if self.processor is None:
                self._judges_on_ring = True
                self._judge_with(self._on_ring)
            return
        if self._judges_on_ring:
            self._judges_on_ring = False
            self._judge_with(None)
        if self._factory is not None:
            if self.processor is None:
                given = Surroundings(self._runtime, self._state, self._state.registry, self._configuration)
                self._judge_with(self._factory(given))
            return
        if self.driver is not None or self._ending or self._follows_repair():
            return
        own = self._voters.id_of(self._host_id()) or self._member_by_log()
        if own is None or (own in self._state.current.voters and self._came_late()):
            return
        raft = self._configuration.raft
        settings = RaftSettings(
            election_ticks=raft.election_ticks,
            heartbeat_ticks=raft.heartbeat_ticks,
            append_bytes_max=self._bounds.append_bytes_max,
        )
        self.driver = RaftDriver(
            self._runtime,
            self._transport,
            GroupPlace(METADATA_GROUP, own, self._founded_with(own), self._voters.member),
            GroupPace(settings, raft.tick_ms),
            GroupEvents(self._committed, self._role_changed, self._fail),
            self._snapshots,
        )
        self._snapshots.begin(self.driver)
        self._raft_processor = RaftProcessor(
            self._runtime, self._state, self.driver, self._state.registry, self._snapshots.committed
        )
        self._raft_processor.refuses = self.refuses
        self._judge_with(self._raft_processor)
        self.driver.start()

    def _came_late(self) -> bool:
        """Whether what this node knows of the votes is old, and it never had one: it was brought to the
        cluster after it had been made anew."""
        is_behind = self._behind() or self._state.tail[0] > self._state.epoch
        return is_behind and not has_journal(self._runtime.disk, METADATA_GROUP)

    def _founded_with(self, own: int) -> Sequence[int]:
        """Whom the group began with, for who was there; none for a newcomer, who learns it from the log.

        CorruptFile: this node has a vote and does not remember how it used it.
        """
        cluster = self._state.current
        if not cluster.epoch or has_journal(self._runtime.disk, METADATA_GROUP):
            return self._voters.founding()
        if own in cluster.voters:
            path = journal_path(METADATA_GROUP)
            raise CorruptFile(path, 0, "it is gone, and with it how this node, a voter, has voted")
        return ()

    def give_up_part(self) -> None:
        """The metadata does not count this node among the members (any more): end its part, if it has one."""
        if self.driver is not None and self._state.epoch >= self._until_epoch:
            self._runtime.tasks.spawn(self._end(), "node.end_consensus")

    def _committed(self, entries: tuple[Entry, ...]) -> None:
        """The driver's entries are committed: hand the metadata's own ones on, and answer who waits."""
        assert self._raft_processor is not None, "a member of the group has its processor"
        self._runtime.probes.observe("raft.committed", entries=entries)
        logged = self._raft_processor.committed(entries)
        if logged:
            self._snapshots.handed_out(entries[-1].index, logged[-1].epoch)
            self._state.offer(logged)
            self._raft_processor.settle_committed(logged)

    def _role_changed(self) -> None:
        if self._raft_processor is not None:
            self._raft_processor.role_changed()
        self.roles.tell()

    def known_value(self, entry: LogEntry, before: ClusterMetadata) -> ClusterMetadata | None:
        """What applying `entry` to `before` makes, when that was found out while it was judged here."""
        return self.processor.known_value(entry, before) if self.processor is not None else None

    def _judge_with(self, processor: Processor | None) -> None:
        if processor is not None and self._configuration.testing.faults:
            processor = GatedProcessor(processor, self.gate)
        self.processor = processor

    def _member_by_log(self) -> int | None:
        """This node's id, when its Raft log is ahead of its metadata: it may vote by what is in that log."""
        own = self._own_id()
        if not own:
            return None
        entries = RaftJournal(self._runtime.disk, METADATA_GROUP).load().entries
        logged = logged_entries(entries[-1:]) or logged_entries(entries)
        newest = logged[-1].epoch if logged else 0
        if newest <= self._state.epoch:
            return None
        self._until_epoch = newest
        return own

    async def _end(self) -> None:
        driver, processor = self.driver, self._raft_processor
        if driver is None or processor is None or self._ending:
            return
        self._ending = True
        self.driver = self._raft_processor = None
        self._judge_with(None)
        self._snapshots.begin(None)
        self._log("node.votes_no_more", node=self._own_id(), epoch=self._state.epoch)
        processor.close()
        await driver.stop()
        self._ending = False
        self.ends.tell()

    def _fetch_from_leader(self, epoch: int) -> None:
        leader = self.driver.leader_address if self.driver is not None else None
        if leader is not None:
            self._fetch(leader, epoch)
