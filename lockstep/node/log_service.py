"""The metadata log at one node: the value it has made so far, this node's part in keeping it, and the way in.

Invariant: it needs no store: a node founds, joins and votes before what clients stored is open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from lockstep.gossip.failure_detector import FailureDetector
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.proving import secrets_in
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Registry
from lockstep.node.configuration import Configuration
from lockstep.node.context import NodeContext
from lockstep.node.group_bounds import GroupBounds
from lockstep.node.identifying import OwnId
from lockstep.node.introduction import Introduction
from lockstep.node.kinds import kinds_of
from lockstep.node.listeners import Listeners
from lockstep.node.log.announcing import Announcer
from lockstep.node.log.catch_up import CatchUp
from lockstep.node.log.histories import Histories
from lockstep.node.log.metadata_member import MetadataMember
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.metadata_store import Retention
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.log.raft_transport import RaftTransport
from lockstep.node.log.snapshot_trigger import SnapshotTrigger
from lockstep.node.log.submission import Submitter
from lockstep.node.membership.clocks import Clocks
from lockstep.node.membership.founders_file import FoundersFile
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.membership.liveness import Liveness
from lockstep.node.membership.voters import Member, Voters
from lockstep.node.processors.base import Processor
from lockstep.node.processors.kinds import Factory
from lockstep.node.stamps import Stamps
from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError


class NodeLog(msgspec.Struct, frozen=True, eq=False):
    """`peers` hears (peer, epoch) of each newer epoch that a message brings; `liveness` is kept here because
    the group's members look at it, and the connections that carry the log."""

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
    peers: Listeners[[PeerInfo, int]]

    @property
    def cluster(self) -> ClusterMetadata:
        return self.state.current

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

    def leading_term(self) -> int | None:
        """The term of the metadata group in which this node leads it."""
        driver = self.member.driver
        return driver.raft.term if driver is not None and self.is_leader else None

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

    def alive(node: int) -> bool:
        return liveness.alive(node)

    kept = Retention(configuration.metadata.retain_entries, configuration.metadata.retain_snapshots)
    conditions = Conditions(runtime.clock, log)
    identity = IdentityFile(runtime)
    stamps = Stamps(runtime, log)
    clocks = Clocks(runtime, stamps, conditions, configuration.clock)
    state = MetadataState(runtime, kinds_of(configuration.testing), fail, log, kept, known_value)
    cluster = partial(getattr, state, "current")
    own_id = OwnId(cluster, lambda: identity.value.host_id)
    founders_file = FoundersFile(runtime.disk)
    voters = Voters(state, founders_file)
    introduction = Introduction(configuration, identity, cluster, own_id, alive)
    peers = Listeners[[PeerInfo, int]]()
    internode = _connections(runtime, configuration, log, introduction, state, peers)
    histories = _histories(runtime, state, internode, voters, identity, log)
    catch_up = CatchUp(runtime, state, internode, histories, introduction.address, log)
    liveness = Liveness(
        runtime,
        state,
        internode,
        FailureDetector(configuration.gossip.phi_threshold),
        own_id,
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
        liveness.alive,
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
        peers,
    )
    peers.add(lambda peer, _epoch: voters.seen(peer.host_id, peer.endpoint))
    peers.add(lambda peer, _epoch: liveness.heard(peer))
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

    return Histories(runtime, state, internode, members, lambda: identity.value.host_id, log)


def _connections(
    runtime: Runtime,
    configuration: Configuration,
    log: Callable[..., None],
    introduction: Introduction,
    state: MetadataState,
    peers: Listeners[[PeerInfo, int]],
) -> Internode:
    return Internode(
        runtime,
        introduction.hello,
        lambda: state.current.epoch,
        peers.tell,
        introduction.refusal,
        log,
        tls=configuration.tls.internode_files,
        secrets=secrets_in(configuration.cluster.join_secret),
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
    peers: Listeners[[PeerInfo, int]],
) -> NodeLog:
    transport = RaftTransport(context.internode)
    member = MetadataMember(context, state, voters, transport, factory, bounds, fail)
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
        peers=peers,
    )
