"""This node's part in the metadata group: when it begins and ends, and what judges submissions here.

Invariant: a node takes part while the metadata, or a Raft log of its own that is ahead of the metadata,
counts it among the members; a part that ended takes no further step. A node with a processor of another kind
never takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.consensus.messages import Entry
from lockstep.consensus.settings import RaftSettings
from lockstep.metadata.registry import Registry
from lockstep.node.configuration import Configuration
from lockstep.node.metadata_state import MetadataState
from lockstep.node.processors.base import Processor
from lockstep.node.processors.gated import Gate, GatedProcessor
from lockstep.node.processors.kinds import Factory, Surroundings
from lockstep.node.processors.raft import RaftProcessor, logged_entries
from lockstep.node.raft_driver import RaftDriver
from lockstep.node.raft_journal import RaftJournal, has_journal, journal_path
from lockstep.node.raft_snapshots import MetadataSnapshots
from lockstep.node.raft_transport import METADATA_GROUP, RaftTransport
from lockstep.node.voters import Voters
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import CorruptFile, LockstepError


class MetadataMember:
    """`processor` judges submissions here, if anything does; `driver` is the member while there is one.

    `own_id()` and `host_id()` say who this node is. `on_processor(processor)` hears of each change,
    `on_committed`, `on_role` and `on_broken` are the driver's, `on_ended()` is called when a part has ended
    and another may begin; `fetch(epoch, address)` asks the leader for metadata that the group's log no
    longer has.
    """

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        state: MetadataState,
        registry: Registry,
        voters: Voters,
        transport: RaftTransport,
        factory: Factory | None,
        *,
        own_id: Callable[[], int],
        host_id: Callable[[], str],
        fetch: Callable[[int, Any], None],
        on_processor: Callable[[Processor | None], None],
        on_committed: Callable[[tuple[Entry, ...]], None],
        on_role: Callable[[], None],
        on_broken: Callable[[LockstepError], None],
        on_ended: Callable[[], None],
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._configuration = configuration
        self._state = state
        self._registry = registry
        self._voters = voters
        self._transport = transport
        self._factory = factory
        self._own_id = own_id
        self._host_id = host_id
        self._fetch = fetch
        self._on_processor = on_processor
        self._on_committed = on_committed
        self._on_role = on_role
        self._on_broken = on_broken
        self._on_ended = on_ended
        self._log = log
        self._snapshots = MetadataSnapshots(state, self._fetch_from_leader)
        self._raft_processor: RaftProcessor | None = None
        #: Up to which epoch the Raft log on disk is a newer record of who votes than the metadata.
        self._until_epoch = 0
        self._ending = False
        #: What tests do to this node's processor and to what it shows.
        self.gate = Gate(state)
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
        if self._factory is not None:
            if self.processor is None:
                given = Surroundings(self._runtime, self._state, self._registry, self._configuration)
                self._judge_with(self._factory(given))
            return
        if self.driver is not None or self._ending:
            return
        own = self._voters.id_of(self._host_id()) or self._member_by_log()
        if own is None:
            return
        raft = self._configuration.raft
        self.driver = RaftDriver(
            self._runtime,
            self._transport,
            group=METADATA_GROUP,
            identity=own,
            voters=self._founded_with(own),
            member=self._voters.member,
            settings=RaftSettings(election_ticks=raft.election_ticks, heartbeat_ticks=raft.heartbeat_ticks),
            tick_ms=raft.tick_ms,
            on_committed=self._on_committed,
            on_role=self._on_role,
            on_broken=self._on_broken,
            snapshots=self._snapshots,
        )
        self._snapshots.begin(self.driver)
        self._raft_processor = RaftProcessor(
            self._runtime, self._state, self.driver, self._registry, self._snapshots.committed
        )
        self._judge_with(self._raft_processor)
        self._state.known_value = self._raft_processor.known_value
        self.driver.start()

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

    def committed(self, entries: tuple[Entry, ...]) -> None:
        """The driver's entries are committed: hand the metadata's own ones on, and answer who waits."""
        assert self._raft_processor is not None, "a member of the group has its processor"
        logged = self._raft_processor.committed(entries)
        if logged:
            self._state.offer(logged)
            self._raft_processor.settle_committed(logged)

    def role_changed(self) -> None:
        if self._raft_processor is not None:
            self._raft_processor.role_changed()

    def _judge_with(self, processor: Processor | None) -> None:
        if processor is not None and self._configuration.testing.faults:
            processor = GatedProcessor(processor, self.gate)
        self.processor = processor
        self._on_processor(processor)

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
        self._on_ended()

    def _fetch_from_leader(self, epoch: int) -> None:
        leader = self.driver.leader_address if self.driver is not None else None
        if leader is not None:
            self._fetch(epoch, leader)
