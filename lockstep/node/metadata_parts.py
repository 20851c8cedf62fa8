"""The parts of one node that need no store: its metadata, the two groups, and what a leader sees to.

Invariant: nothing here touches what clients stored: a node founds, joins and votes before its store is open.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.consensus.messages import Entry
from lockstep.node.announcing import Announcer
from lockstep.node.catch_up import CatchUp
from lockstep.node.clocks import Clocks
from lockstep.node.condition_watches import watch_groups, watch_metadata
from lockstep.node.conditions import Conditions
from lockstep.node.configuration import Configuration, split_address
from lockstep.node.facts import NodeFacts
from lockstep.node.founders_file import FoundersFile
from lockstep.node.group_reports import GroupReports
from lockstep.node.histories import Histories
from lockstep.node.identity import IdentityFile
from lockstep.node.kinds import kinds_of
from lockstep.node.management import Management
from lockstep.node.members import Members
from lockstep.node.messages import EpochQuery, EpochReply
from lockstep.node.metadata_member import MetadataMember
from lockstep.node.metadata_state import MetadataState
from lockstep.node.metadata_store import Retention
from lockstep.node.processors.base import Processor
from lockstep.node.processors.kinds import Factory, chosen
from lockstep.node.raft_transport import RaftTransport
from lockstep.node.service_driver import ServiceDriver
from lockstep.node.snapshot_trigger import SnapshotTrigger
from lockstep.node.stamps import Stamps
from lockstep.node.submission import Submitter
from lockstep.node.topology_driver import TopologyDriver
from lockstep.node.voters import Voters
from lockstep.replication import verbs
from lockstep.replication.handshake import Address, Hello, PeerInfo
from lockstep.replication.internode import Internode
from lockstep.replication.proving import secrets_in
from lockstep.replication.session_guards import SessionGuards
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError


class MetadataParts(NodeFacts, abc.ABC):
    """Made whole by its constructor; what the parts call back is given by the classes below."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        log: Callable[..., None],
        processors: Mapping[str, Factory] | None = None,
    ) -> None:
        super().__init__()
        self.runtime = runtime
        self.configuration = configuration
        self.log = log
        self.conditions = Conditions(runtime.clock, log)
        self.ready = False
        self.broken: asyncio.Future[LockstepError] | None = None
        factory = chosen(configuration, processors or {})
        self._breaking = False
        self.registry = kinds_of(configuration.testing)
        self.identity = IdentityFile(runtime)
        self.stamps = Stamps(runtime, log)
        self.clocks = Clocks(runtime, self.stamps, self.conditions, configuration.clock)
        self.founders_file = FoundersFile(runtime.disk)
        self._starting: asyncio.Task[Any] | None = None
        self._build_metadata()
        self._build_groups(factory)
        self._build_leader_duties()
        self.internode.register(verbs.EPOCH_QUERY, EpochQuery, EpochReply, self._epoch_query)

    def _build_metadata(self) -> None:
        """What holds the metadata here, fetches it and tells of it."""
        runtime, log, kept = self.runtime, self.log, self.configuration.metadata
        self.state = MetadataState(
            runtime, self.registry, self._break, log, Retention(kept.retain_entries, kept.retain_snapshots)
        )
        self.conditions.watch(
            watch_metadata(self.conditions, self.state, lambda: self.leader_id, runtime.clock)
        )
        self.guards = SessionGuards(self._cluster_now)
        self.voters = Voters(self.state, self.founders_file)
        self.internode = Internode(
            runtime,
            self._hello,
            self._epoch_now,
            self._peer_epoch,
            self._accept,
            log,
            tls=self.configuration.tls.internode_files,
            secrets=secrets_in(self.configuration.cluster.join_secret),
        )
        self.raft_transport = RaftTransport(self.internode)
        self.histories = Histories(
            runtime,
            self.state,
            self.internode,
            lambda: tuple(self.voters.members().values()),
            self._host_id,
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
        self.announcer = Announcer(
            self.state, self.internode, self._own_id, self._leads, self._alive, self.catch_up.far_behind
        )

    def _build_groups(self, factory: Factory | None) -> None:
        """The two consensus groups; their members on this node begin later, or never."""
        runtime = self.runtime
        self.member = MetadataMember(
            runtime,
            self.configuration,
            self.state,
            self.registry,
            self.voters,
            self.raft_transport,
            factory,
            own_id=self._own_id,
            host_id=self._host_id,
            fetch=lambda epoch, leader: self.catch_up.heard(leader, epoch),
            on_processor=self._judge_with,
            on_committed=self._committed,
            on_role=self._role_changed,
            on_broken=self._break,
            on_ended=self._follow_service,
            log=self.log,
        )
        self.management = Management(
            runtime,
            self.internode,
            self.raft_transport,
            self.state,
            self.voters,
            raft=self.configuration.raft,
            own_address=self.address,
            host_id=self._host_id,
            leads=self._leads,
            configuration_index=lambda: self.member.configuration_index,
            on_disk_failed=self._break,
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
            term=self._leading_term,
            alive=self._alive,
            heard_since=self._heard_since,
            follows=self.management.unsettled,
            stragglers=self.guards.stragglers,
            relax_after_ms=self.configuration.topology.relax_after_ms,
            log=log,
        )
        self.service = ServiceDriver(
            runtime,
            self.state,
            self.internode,
            self.registry,
            group=lambda: self.member.group,
            own_id=self._own_id,
            alive=self._alive,
            follows=self.management.unsettled,
            replace_after_ms=self.configuration.cms.replace_after_ms,
            log=log,
        )
        self.conditions.watch(
            watch_groups(self.conditions, self.management, self.topology, self.service, runtime.clock)
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
        """Take part in both groups, if this node is a member."""
        self.management.take_part()
        self.member.take_part()

    def _follow_service(self) -> None:
        """The metadata says who takes part in consensus: begin or end this node's part."""
        if not self.state.epoch:
            return
        if self._own_id() in self.cluster.service.members:
            self._start_consensus()
        else:
            self.member.give_up_part()

    def _judge_with(self, processor: Processor | None) -> None:
        self.submitter.processor = processor

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
