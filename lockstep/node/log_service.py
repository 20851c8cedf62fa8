"""The metadata log at one node: the value it has made so far, this node's part in making it, and how this
node presents itself to others and whom it lets in.

Invariant: it needs no store: a node founds, joins and votes before what clients stored is open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from lockstep.gossip.failure_detector import FailureDetector, Opinions
from lockstep.internode.handshake import PROTOCOL_VERSION, Address, Hello, secrets_in
from lockstep.internode.internode import Internode
from lockstep.internode.own_side import LinkSecurity
from lockstep.metadata.cluster import ClusterMetadata, Newest, OwnId
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Registry
from lockstep.node.configuration import Configuration
from lockstep.node.context import NodeContext
from lockstep.node.kinds import kinds_of
from lockstep.node.log.announcing import Announcer
from lockstep.node.log.catch_up import CatchUp
from lockstep.node.log.histories import Histories
from lockstep.node.log.metadata_member import MetadataMember
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.metadata_store import Retention
from lockstep.node.log.raft_driver import GroupBounds, RaftDriver, RaftTransport
from lockstep.node.log.submission import SnapshotTrigger, Submitter
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.membership.liveness import Clocks, Liveness
from lockstep.node.membership.voters import FoundersFile, Member, Voters
from lockstep.node.processors.base import Processor
from lockstep.node.processors.kinds import Factory
from lockstep.node.ring.service import RingService
from lockstep.node.stamps import Stamps
from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError


class Introduction:
    def __init__(
        self,
        configuration: Configuration,
        identity: IdentityFile,
        cluster: Callable[[], ClusterMetadata],
        own_id: Callable[[], int],
        alive: Callable[[int], bool],
    ) -> None:
        self._configuration = configuration
        self._identity = identity
        self._cluster = cluster
        self._own_id = own_id
        self._alive = alive

    @property
    def address(self) -> Address:
        return (self._configuration.network.address, self._configuration.network.internode_port)

    def hello(self) -> Hello:
        settings, stored = self._configuration, self._identity.value
        identity = self._cluster().identity
        # A node that goes to a repaired cluster has its id before it has that part of the log.
        cluster_id = stored.cluster_id or identity.cluster_id
        lineage = identity.lineage if cluster_id == identity.cluster_id else ()
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            cluster_id=cluster_id,
            cluster_name=settings.cluster.name,
            lineage=tuple(item.encode() for item in lineage),
            host_id=stored.host_id,
            node_id=self._own_id(),
            address=settings.network.address,
            port=settings.network.internode_port,
            replaces=settings.cluster.replaces,
            takes_shared=True,
        )

    def refusal(self, hello: Hello) -> str | None:
        """Why whoever says this hello is not let in; None when it is."""
        known = self._cluster().directory.by_address.get((hello.address, hello.port))
        if known is None or not hello.host_id or known.host_id == hello.host_id:
            return None
        owned = f"{hello.address} belongs to node {known.id} (host {known.host_id}) of this cluster"
        if hello.replaces != known.id:
            return f"{owned}; to take a dead node's place, set [cluster] replaces"
        return f"{owned}, which seems alive" if self._alive(known.id) else None


class NodeLog(msgspec.Struct, frozen=True, eq=False):
    """`liveness` is kept here because the group's members look at it. `ring` acts while the cluster runs on
    the ring without a log."""

    context: NodeContext
    state: MetadataState
    voters: Voters
    founders_file: FoundersFile
    transport: RaftTransport
    histories: Histories
    member: MetadataMember
    submitter: Submitter
    announcer: Announcer
    snapshots: SnapshotTrigger
    stamps: Stamps
    clocks: Clocks
    liveness: Liveness
    ring: RingService

    @property
    def cluster(self) -> ClusterMetadata:
        return self.state.newest.cluster

    @property
    def registry(self) -> Registry:
        return self.state.registry

    @property
    def catch_up(self) -> CatchUp:
        return self.context.catch_up

    @property
    def driver(self) -> RaftDriver | None:
        """This node's member of the metadata group, while it takes part."""
        return self.member.driver

    @property
    def processor(self) -> Processor | None:
        """What judges submissions here, if anything does."""
        return self.member.processor

    @property
    def is_leader(self) -> bool:
        return self.member.leads

    @property
    def leader_id(self) -> int | None:
        """Node id of the metadata leader as far as this node knows."""
        if self.member.driver is not None:
            return self.member.driver.raft.leader
        return self.context.own_id() if self.is_leader else self.liveness.leading

    async def submit(
        self, transformation: Any, *, entry_id: bytes = b"", base_epoch: int | None = None
    ) -> int:
        """Epoch of the committed transformation, applied here. See Submitter.submit for retries, errors."""
        timeout_ms = self.context.configuration.timeouts.metadata_ms
        return await self.submitter.submit(
            transformation, timeout_ms, entry_id=entry_id, base_epoch=base_epoch
        )


def wire_log(
    runtime: Runtime,
    configuration: Configuration,
    log: Callable[..., None],
    factory: Factory | None,
    bounds: GroupBounds,
    fail: Callable[[LockstepError], None],
) -> NodeLog:
    """`fail(error)` is called when this node must not go on."""

    def known_value(entry: LogEntry, before: ClusterMetadata) -> ClusterMetadata | None:
        return made.member.known_value(entry, before)

    kept = Retention(configuration.metadata.retain_entries, configuration.metadata.retain_snapshots)
    conditions = Conditions(runtime.clock, log)
    identity = IdentityFile(runtime)
    stamps = Stamps(runtime, log)
    clocks = Clocks(runtime, stamps, conditions, configuration.clock)
    state = MetadataState(runtime, kinds_of(configuration.testing), fail, log, kept, known_value)
    newest = state.newest
    cluster = partial(getattr, newest, "cluster")
    own_id = OwnId(newest)
    detector = FailureDetector(configuration.gossip.phi_threshold)
    opinions = Opinions(detector, newest, own_id, runtime.clock.monotonic_s)
    founders_file = FoundersFile(runtime.disk)
    voters = Voters(state, founders_file, opinions.alive)
    introduction = Introduction(configuration, identity, cluster, own_id, opinions.alive)
    internode = _connections(runtime, configuration, log, introduction, newest)
    histories = _histories(runtime, state, internode, voters, identity, log)
    catch_up = CatchUp(runtime, state, internode, histories, introduction.address, log)
    liveness = Liveness(
        runtime,
        state,
        internode,
        opinions,
        lambda: made.member.leads,
        identity,
        clocks,
    )
    context = NodeContext(
        runtime,
        configuration,
        log,
        identity,
        conditions,
        internode,
        catch_up,
        cluster,
        own_id,
        opinions.alive,
    )
    made = _assembled(
        context,
        state,
        voters,
        founders_file,
        histories,
        factory,
        bounds,
        fail,
        stamps,
        clocks,
        liveness,
    )
    internode.own.listen(lambda peer, _epoch: voters.seen(peer.host_id, peer.endpoint))
    internode.own.listen(lambda peer, _epoch: liveness.heard(peer))
    return made


def _histories(
    runtime: Runtime,
    state: MetadataState,
    internode: Internode,
    voters: Voters,
    identity: IdentityFile,
    log: Callable[..., None],
) -> Histories:
    def members() -> tuple[Member, ...]:
        return tuple(voters.members().values())

    def goes_to() -> str:
        stored, known = identity.value.cluster_id, state.current.identity.cluster_id
        return stored if known and stored != known else ""

    return Histories(runtime, state, internode, members, lambda: identity.value.host_id, log, goes_to)


def _connections(
    runtime: Runtime,
    configuration: Configuration,
    log: Callable[..., None],
    introduction: Introduction,
    newest: Newest,
) -> Internode:
    return Internode(
        runtime,
        introduction.hello,
        newest,
        introduction.refusal,
        log,
        LinkSecurity(configuration.tls.internode_files, secrets_in(configuration.cluster.join_secret)),
    )


def _assembled(
    context: NodeContext,
    state: MetadataState,
    voters: Voters,
    founders_file: FoundersFile,
    histories: Histories,
    factory: Factory | None,
    bounds: GroupBounds,
    fail: Callable[[LockstepError], None],
    stamps: Stamps,
    clocks: Clocks,
    liveness: Liveness,
) -> NodeLog:
    transport = RaftTransport(context.internode)
    ring = RingService(context, state, voters, fail)
    member = MetadataMember(context, state, voters, transport, factory, bounds, fail, ring.processor)
    submitter = Submitter(context, state, voters, member)
    return NodeLog(
        context=context,
        state=state,
        voters=voters,
        founders_file=founders_file,
        transport=transport,
        histories=histories,
        member=member,
        submitter=submitter,
        announcer=Announcer(context, state, lambda: member.leads),
        snapshots=SnapshotTrigger(context, state, submitter, member),
        stamps=stamps,
        clocks=clocks,
        liveness=liveness,
        ring=ring,
    )
