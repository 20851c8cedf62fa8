"""The parts of one node: made from the rooms to its left and wired to each other, not yet running.

Invariant: nothing is shared between two nodes of a process but code. What happens to the parts, and when,
is the business of node.node.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lockstep.consensus.messages import Entry
from lockstep.consensus.settings import RaftSettings
from lockstep.gossip.failure_detector import FailureDetector
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.node.announcing import Announcer
from lockstep.node.catch_up import CatchUp
from lockstep.node.configuration import Configuration, split_address
from lockstep.node.founders_file import FoundersFile
from lockstep.node.founding import Founding
from lockstep.node.group_reports import GroupReports
from lockstep.node.histories import Histories
from lockstep.node.identity import Identity, IdentityFile
from lockstep.node.kinds import every_kind
from lockstep.node.liveness import Liveness
from lockstep.node.management import Management
from lockstep.node.members import Members
from lockstep.node.membership import Membership
from lockstep.node.messages import EpochQuery, EpochReply
from lockstep.node.metadata_state import MetadataState
from lockstep.node.metadata_store import Retention
from lockstep.node.processors.base import Processor
from lockstep.node.processors.gated import Gate, GatedProcessor
from lockstep.node.processors.kinds import Factory, Surroundings, chosen
from lockstep.node.processors.raft import RaftProcessor, logged_entries
from lockstep.node.raft_driver import RaftDriver
from lockstep.node.raft_journal import RaftJournal
from lockstep.node.raft_snapshots import MetadataSnapshots
from lockstep.node.raft_transport import METADATA_GROUP, RaftTransport
from lockstep.node.service_driver import ServiceDriver
from lockstep.node.snapshot_trigger import SnapshotTrigger
from lockstep.node.submission import Submitter
from lockstep.node.topology_driver import TopologyDriver
from lockstep.node.voters import Voters
from lockstep.node.work import WorkService
from lockstep.replication import verbs
from lockstep.replication.coordinator import Coordinator
from lockstep.replication.handshake import Address, Hello, PeerInfo
from lockstep.replication.internode import Internode
from lockstep.replication.replica import ReplicaService
from lockstep.replication.streaming import StreamClient, StreamService
from lockstep.runtime.ports import Runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store import Store
from lockstep.values.errors import LockstepError
from lockstep.values.ids import mutation_id

StoreOpener = Callable[[Runtime], Awaitable[Store]]


class Parts(abc.ABC):
    """Attributes without a value here are made by `_build_request_path`, once the store is open."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        open_store: StoreOpener,
        log: Callable[..., None],
        processors: Mapping[str, Factory] | None = None,
    ) -> None:
        self.runtime = runtime
        self.configuration = configuration
        self.log = log
        self.ready = False
        self.broken: asyncio.Future[LockstepError] | None = None
        self._open_store = open_store
        self._processor_factory = chosen(configuration, processors or {})
        self._sequence = 0
        self._engine_open = False
        #: The metadata value and identity for which `_known_id` was looked up: requests ask often.
        self._id_of: tuple[ClusterMetadata, Identity] | None = None
        self._known_id = 0
        self.registry = every_kind()
        self.identity = IdentityFile(runtime)
        self.founders_file = FoundersFile(runtime.disk)
        self._starting: asyncio.Task[Any] | None = None
        self._build_metadata()
        self._build_groups()
        self._build_leader_duties()
        #: Up to which epoch the Raft log on disk is a newer record of who votes than the metadata.
        self._consensus_until = 0
        self._consensus_ends = False
        self.internode.register(verbs.EPOCH_QUERY, EpochQuery, EpochReply, self._epoch_query)
        self.liveness: Liveness
        self.store: Store
        self.engine: StorageEngine
        self.replica: ReplicaService
        self.coordinator: Coordinator
        self.streams: StreamService
        self.membership: Membership

    def _build_metadata(self) -> None:
        """What holds the metadata here, fetches it and tells of it."""
        runtime, log, kept = self.runtime, self.log, self.configuration.metadata
        self.state = MetadataState(
            runtime, self.registry, self._break, log, Retention(kept.retain_entries, kept.retain_snapshots)
        )
        self.voters = Voters(self.state, self.founders_file)
        self.internode = Internode(runtime, self._hello, self._epoch_now, self._peer_epoch, self._accept, log)
        self.raft_transport = RaftTransport(self.internode)
        self.histories = Histories(
            runtime,
            self.state,
            self.internode,
            lambda: tuple(self.voters.members().values()),
            lambda: self.identity.value.host_id,
            log,
        )
        self.catch_up = CatchUp(runtime, self.state, self.internode, self.histories, self.address, log)
        self.members = Members(
            runtime,
            self.state,
            self.internode,
            own_address=self.address,
            configured=self._configured(),
            alive=self._alive,
            log=log,
        )
        self.raft_snapshots = MetadataSnapshots(self.state, self._fetch_from_leader)
        self.announcer = Announcer(
            self.state, self.internode, self._own_id, self._leads, self._alive, self.catch_up.far_behind
        )

    def _build_groups(self) -> None:
        """The two consensus groups; their members on this node begin later, or never."""
        runtime = self.runtime
        self.driver: RaftDriver | None = None
        #: What tests do to this node's processor and to what it shows.
        self.gate = Gate(self.state)
        self.raft_processor: RaftProcessor | None = None
        self.processor: Processor | None = None
        self.management = Management(
            runtime,
            self.internode,
            self.raft_transport,
            self.state,
            self.voters,
            raft=self.configuration.raft,
            own_address=self.address,
            host_id=lambda: self.identity.value.host_id,
            leads=self._leads,
            configuration_index=self._configuration_index,
            log=self.log,
        )
        self.groups = GroupReports(
            runtime,
            self.internode,
            self.state,
            self.catch_up,
            self.voters,
            self.management,
            driver=lambda: self.driver,
            own_id=self._own_id,
            alive=self._alive,
        )
        self.submitter = Submitter(
            runtime,
            self.state,
            self.internode,
            self.catch_up,
            self.registry,
            own_address=self.address,
            voters=self._voter_addresses,
            actor=lambda: f"node {self.node_id or self.address[0]}",
        )

    def _build_leader_duties(self) -> None:
        """What the leader of the metadata group sees to; idle elsewhere."""
        runtime, log, kept = self.runtime, self.log, self.configuration.metadata
        self.snapshots = SnapshotTrigger(
            runtime,
            self.state,
            self.submit,
            self._leads,
            log,
            every_epochs=kept.snapshot_every_epochs,
            every_bytes=kept.snapshot_every_bytes,
        )
        self.topology = TopologyDriver(
            runtime,
            self.state,
            self.internode,
            self.submitter,
            own_id=self._own_id,
            is_leader=self._leads,
            alive=self._alive,
            log=log,
        )
        self.service = ServiceDriver(
            runtime,
            self.state,
            self.internode,
            self.registry,
            group=self._metadata_group,
            own_id=self._own_id,
            alive=self._alive,
            follows=self.management.unsettled,
            replace_after_ms=self.configuration.cms.replace_after_ms,
            log=log,
        )

    # -- facts -------------------------------------------------------------------------------------

    @property
    def cluster(self) -> ClusterMetadata:
        return self.state.current

    @property
    def address(self) -> Address:
        return (self.configuration.network.address, self.configuration.network.internode_port)

    @property
    def info(self) -> NodeInfo | None:
        return self.cluster.directory.by_host_id.get(self.identity.value.host_id)

    @property
    def node_id(self) -> int:
        """0 until the log gave one."""
        return self._own_id()

    @property
    def has_left(self) -> bool:
        info = self.info
        return info is not None and info.state is NodeState.LEFT

    @property
    def is_leader(self) -> bool:
        if self.driver is not None:
            return self.driver.is_leader
        return self.processor is not None and self.processor.leads

    @property
    def leader_id(self) -> int | None:
        """Node id of the metadata leader as far as this node knows."""
        if self.driver is not None:
            return self.driver.raft.leader
        if self.is_leader:
            return self.node_id
        return self.liveness.leading if self._engine_open else None

    def new_mutation_id(self) -> bytes:
        self._sequence += 1
        return mutation_id(self.node_id, self.identity.value.generation, self._sequence)

    async def submit(
        self, transformation: Any, *, entry_id: bytes = b"", base_epoch: int | None = None
    ) -> int:
        """Epoch of the committed transformation, applied here. See Submitter.submit for retries, errors."""
        timeout_ms = self.configuration.timeouts.metadata_ms
        return await self.submitter.submit(
            transformation, timeout_ms, entry_id=entry_id, base_epoch=base_epoch
        )

    def _alive(self, node: int) -> bool:
        return self.liveness.alive(node)

    def _cluster_now(self) -> ClusterMetadata:
        return self.state.current

    def _epoch_now(self) -> int:
        return self.state.current.epoch

    def _own_id(self) -> int:
        cluster, identity = self.state.current, self.identity.value
        known = self._id_of
        if known is None or known[0] is not cluster or known[1] is not identity:
            info = self.info
            self._known_id = info.id if info is not None else 0
            self._id_of = (cluster, identity)
        return self._known_id

    def _leads(self) -> bool:
        return self.is_leader

    def _configuration_index(self) -> int:
        """Of the Raft entry that brought the metadata group's present members; 0 where there is no member."""
        return self.driver.raft.state.configurations.changed_at if self.driver is not None else 0

    def _campaign(self) -> None:
        if self.driver is not None:
            self.driver.campaign()

    # -- wiring ------------------------------------------------------------------------------------

    def _build_request_path(self, generation: int) -> None:
        runtime, state, internode = self.runtime, self.state, self.internode
        self.liveness = Liveness(
            runtime, state, internode, FailureDetector(), self._own_id, self._leads, generation
        )
        cluster = self._cluster_now
        self.replica = ReplicaService(
            runtime, internode, self.engine, cluster, self.catch_up.reach, self._own_id
        )
        self.coordinator = Coordinator(
            runtime,
            internode,
            self.replica,
            cluster,
            self.catch_up.reach,
            self.liveness.alive,
            self._own_id,
            self.new_mutation_id,
        )
        self.streams = StreamService(
            runtime, internode, self.engine, self.replica, cluster, self.catch_up.reach
        )
        streams = StreamClient(runtime, internode, self.engine, cluster)
        self.work = WorkService(
            runtime,
            state,
            internode,
            self.catch_up,
            self.engine,
            streams,
            self._own_id,
            self.liveness.alive,
        )
        self.membership = Membership(
            runtime,
            self.configuration,
            self.identity,
            state,
            internode,
            self.submitter,
            self.management,
            self.members,
            self.catch_up,
            self.log,
        )
        self.membership.founding = self._founding()

    def _founding(self) -> Founding | None:
        founders = self._founders()
        if self.address not in founders:
            return None
        return Founding(
            self.runtime,
            self.state,
            self.internode,
            self.catch_up,
            self.submitter,
            self.management,
            self.founders_file,
            founders=founders,
            own_address=self.address,
            cluster_name=self.configuration.cluster.name,
            describe=self.membership.describe,
            start_consensus=self._start_consensus,
            is_leader=self._leads,
            campaign=self._campaign,
            log=self.log,
        )

    def _configured(self) -> tuple[Address, ...]:
        """Seeds first: founders may long be gone."""
        cluster, port = self.configuration.cluster, self.configuration.network.internode_port
        return tuple(split_address(text, port) for text in (*cluster.seeds, *cluster.founders))

    def _founders(self) -> tuple[Address, ...]:
        return tuple(
            split_address(text, self.configuration.network.internode_port)
            for text in self.configuration.cluster.founders
        )

    def _start_consensus(self) -> None:
        """Take part if this node is a member: the first founder, and after founding whom the metadata says.

        A voter is a host: whichever address it now has, and whoever else has the address it had. A node that
        is being added gets its vote by the Raft log, after it got that log.
        """
        self.management.take_part()
        if self._processor_factory is not None:
            if self.processor is None:
                given = Surroundings(self.runtime, self.state, self.registry, self.configuration)
                self._judge_with(self._processor_factory(given))
            return
        own = self.voters.id_of(self.identity.value.host_id) or self._member_by_log()
        if own is None or self.driver is not None or self._consensus_ends:
            return
        raft = self.configuration.raft
        self.driver = RaftDriver(
            self.runtime,
            self.raft_transport,
            group=METADATA_GROUP,
            identity=own,
            voters=self.voters.founding(),
            member=self.voters.member,
            settings=RaftSettings(election_ticks=raft.election_ticks, heartbeat_ticks=raft.heartbeat_ticks),
            tick_ms=raft.tick_ms,
            on_committed=self._committed,
            on_role=self._role_changed,
            on_broken=self._break,
            snapshots=self.raft_snapshots,
        )
        self.raft_snapshots.begin(self.driver)
        self.raft_processor = RaftProcessor(
            self.runtime, self.state, self.driver, self.registry, self.raft_snapshots.committed
        )
        self._judge_with(self.raft_processor)
        self.state.known_value = self.raft_processor.known_value
        self.driver.start()

    def _judge_with(self, processor: Processor | None) -> None:
        if processor is not None and self.configuration.testing.faults:
            processor = GatedProcessor(processor, self.gate)
        self.processor = self.submitter.processor = processor

    def _member_by_log(self) -> int | None:
        """This node's id, when its Raft log is ahead of its metadata: it may vote by what is in that log."""
        own = self._own_id()
        if not own or self.driver is not None:
            return None
        entries = RaftJournal(self.runtime.disk, METADATA_GROUP).load().entries
        logged = logged_entries(entries[-1:]) or logged_entries(entries)
        newest = logged[-1].epoch if logged else 0
        if newest <= self.state.epoch:
            return None
        self._consensus_until = newest
        return own

    def _follow_service(self) -> None:
        """The metadata says who takes part in consensus: begin or end this node's part."""
        if not self.state.epoch:
            return
        if self._own_id() in self.cluster.service.members:
            self._start_consensus()
        elif self.driver is not None and self.state.epoch >= self._consensus_until:
            self.runtime.tasks.spawn(self._end_consensus(), "node.end_consensus")

    async def _end_consensus(self) -> None:
        driver, processor = self.driver, self.raft_processor
        if driver is None or processor is None or self._consensus_ends:
            return
        self._consensus_ends = True
        self.driver = self.raft_processor = None
        self._judge_with(None)
        self.raft_snapshots.begin(None)
        self.log("node.votes_no_more", node=self.node_id, epoch=self.state.epoch)
        processor.close()
        await driver.stop()
        self._consensus_ends = False
        self._follow_service()

    def _fetch_from_leader(self, epoch: int) -> None:
        leader = self.driver.leader_address if self.driver is not None else None
        if leader is not None:
            self.catch_up.heard(leader, epoch)

    def _metadata_group(self) -> tuple[RaftDriver, RaftProcessor] | None:
        """This node's member of the metadata group, and what judges there."""
        if self.driver is None or self.raft_processor is None:
            return None
        return self.driver, self.raft_processor

    # -- what is done when something happens ---------------------------------------------------------

    @abc.abstractmethod
    def _break(self, error: LockstepError) -> None: ...

    @abc.abstractmethod
    def _hello(self) -> Hello: ...

    @abc.abstractmethod
    def _peer_epoch(self, peer: PeerInfo, epoch: int) -> None: ...

    @abc.abstractmethod
    def _accept(self, hello: Hello) -> str | None: ...

    @abc.abstractmethod
    async def _epoch_query(self, peer: PeerInfo, query: EpochQuery) -> EpochReply: ...

    @abc.abstractmethod
    def _committed(self, entries: tuple[Entry, ...]) -> None: ...

    @abc.abstractmethod
    def _role_changed(self) -> None: ...

    @abc.abstractmethod
    def _voter_addresses(self) -> tuple[Address, ...]: ...
