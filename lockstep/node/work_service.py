"""The long work of a node: operations that change who owns what, repairs, backups and upkeep.

Invariant: what leads work here is idle wherever this node does not lead it.
"""

from __future__ import annotations

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.data_service import NodeData
from lockstep.node.log.messages import EpochQuery, EpochReply
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.service_driver import ServiceDriver
from lockstep.node.membership_service import NodeMembership
from lockstep.node.repairing.data_against_ids import TrackedRepairs
from lockstep.node.work.backup_service import BackupService
from lockstep.node.work.backups import BackupDriver
from lockstep.node.work.bulk_loads import BulkLoads
from lockstep.node.work.condition_watches import watch_groups
from lockstep.node.work.lacking import Refill
from lockstep.node.work.load_questions import RangeSizes, TabletLoads
from lockstep.node.work.purging import TombstonePurge
from lockstep.node.work.repairs import Comparison, RepairDriver, RepairQuestions
from lockstep.node.work.tablet_balancer import TabletBalancer
from lockstep.node.work.tablet_resizes import TabletReadiness
from lockstep.node.work.topology_driver import TopologyDriver
from lockstep.node.work.worker import WorkService


class NodeWork(msgspec.Struct, frozen=True, eq=False):
    """`topology` and `service` are driven by the metadata leader; `stages` is this node's part of operations,
    `repairs` and `backups` are driven by whoever was asked for them."""

    context: NodeContext
    topology: TopologyDriver
    balancer: TabletBalancer
    service: ServiceDriver
    stages: WorkService
    comparison: Comparison
    repairs: RepairDriver
    backups: BackupDriver
    tombstone_purge: TombstonePurge
    refill: Refill
    sizes: RangeSizes
    bulk_loads: BulkLoads

    def start(self) -> None:
        self.topology.start()
        self.balancer.start()
        self.service.start()

    def start_upkeep(self) -> None:
        """This node is a member: end what an earlier start left behind, and keep its own data in order."""
        self.repairs.end_lost(self.context.cluster())
        self.tombstone_purge.start()
        self.refill.start()
        self.bulk_loads.start()


def wire_work(log: NodeLog, membership: NodeMembership, data: NodeData) -> NodeWork:
    context, state, submitter, guards = log.context, log.state, log.submitter, data.guards
    conditions, management = context.conditions, membership.management
    topology = TopologyDriver(
        context,
        state,
        submitter,
        is_leader=lambda: log.is_leader,
        heard_since=log.liveness.heard_since,
        follows=management.unsettled,
        stragglers=guards.stragglers,
    )
    service = ServiceDriver(context, state, log.registry, lambda: log.member.group, management.unsettled)
    context.internode.own.listen(topology.heard)
    log.member.roles.add(topology.wake)
    loads = TabletLoads(context, data.engine, data.replica.counts)
    readiness = TabletReadiness(context, data.replica)
    # On the ring there are no tablets to be moved.
    balances = lambda: log.is_leader and not context.is_on_ring  # noqa: E731
    balancer = TabletBalancer(context, state, submitter, loads, readiness, balances)
    log.member.roles.add(balancer.wake)
    log.member.roles.add(service.wake)
    conditions.watch(watch_groups(conditions, management, topology, service, context.runtime.clock))
    questions = RepairQuestions(context, data.repair_participant, guards, data.id_participant)
    comparison = Comparison(context, questions, data.streams.throttle, data.new_mutation_id)
    by_ids = TrackedRepairs(context, questions, comparison, data.new_mutation_id)
    repairs = RepairDriver(context, state, submitter, questions, comparison, by_ids)
    taking, restoring = data.backup_taking, data.backup_restoring
    desk = BackupService(context, taking, restoring, guards)

    def serves(node: int) -> bool:
        return context.alive(node) and not membership.gossip.has_lost_store(node)

    def applied(before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.repairs is not after.repairs:
            repairs.end_lost(after)
            for part in (taking, restoring, desk, data.stream_client):
                part.forget_closed(after.session_open)
            data.streams.forget_closed()

    async def epoch_query(peer: PeerInfo, query: EpochQuery) -> EpochReply:
        await context.catch_up.reach(query.epoch, peer.endpoint)
        if query.drain:
            await data.replica.drain(query.epoch)
        return EpochReply(state.epoch, context.own_id(), guards.stragglers())

    state.listen(data.applied, parts_only=True)
    state.listen(applied, parts_only=True)
    context.internode.register(verbs.EPOCH_QUERY, EpochQuery, EpochReply, epoch_query)
    stages = WorkService(context, state, data, serves)
    return NodeWork(
        context=context,
        topology=topology,
        balancer=balancer,
        service=service,
        stages=stages,
        comparison=comparison,
        repairs=repairs,
        backups=BackupDriver(context, state, submitter, desk),
        tombstone_purge=TombstonePurge(
            context, state, data.engine, guards, data.oldest_hint_us, data.reconciler.purge_before_s
        ),
        refill=Refill(context, state, submitter, data.lacking),
        sizes=RangeSizes(context, data.engine, lambda: stages.rate_bytes_s),
        bulk_loads=BulkLoads(context, state, data.loads, submitter, lambda: log.is_leader),
    )
