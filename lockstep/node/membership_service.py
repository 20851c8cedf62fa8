"""This node among the others: how it becomes one of them, whom it knows, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lockstep.internode.handshake import Address, PeerInfo
from lockstep.node.configuration import split_address
from lockstep.node.context import NodeContext
from lockstep.node.log.raft_driver import GroupBounds
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.gossiping import Gossip, OwnLoad
from lockstep.node.membership.group_reports import GroupReports
from lockstep.node.membership.liveness import Liveness
from lockstep.node.membership.management import Management
from lockstep.node.membership.members import Members
from lockstep.node.membership.membership import Membership, Voting
from lockstep.node.membership.validator import TopologyValidator
from lockstep.node.recovery.management_cutting import ManagementCutting
from lockstep.node.recovery.reset_service import ResetService
from lockstep.node.ring.upgrading import UpgradeService
from lockstep.node.work.condition_watches import watch_metadata
from lockstep.values.errors import LockstepError, NodeRestarting


class NodeMembership(msgspec.Struct, frozen=True, eq=False):
    context: NodeContext
    members: Members
    liveness: Liveness
    gossip: Gossip
    management: Management
    groups: GroupReports
    voting: Voting
    membership: Membership
    recovery: ResetService
    validator: TopologyValidator
    upgrade: UpgradeService
    cutting: ManagementCutting

    @property
    def configured(self) -> tuple[Address, ...]:
        return configured(self.context)

    def start(self) -> None:
        self.management.start()
        self.liveness.start()
        self.gossip.start()
        self.members.start()
        self.validator.start()
        self.upgrade.start()


def configured(context: NodeContext) -> tuple[Address, ...]:
    """The addresses that the configuration names, seeds first: founders may long be gone."""
    cluster, port = context.configuration.cluster, context.configuration.network.internode_port
    return tuple(split_address(text, port) for text in (*cluster.seeds, *cluster.founders))


def wire_membership(
    log: NodeLog,
    own_load: Callable[[], OwnLoad],
    fail: Callable[[LockstepError], None],
    bounds: GroupBounds,
    restart: Callable[[NodeRestarting], object],
    is_ready: Callable[[], bool],
) -> NodeMembership:
    """`own_load()` is what this node tells of itself; `restart(error)` begins another life of
    it; `is_ready()`: whether it serves."""
    context, state = log.context, log.state
    members = Members(context, state, configured(context))
    management = Management(context, log, fail, bounds.management_entries)
    voting = Voting(log, management)
    recovery = ResetService(context, log, management, restart, is_ready)
    membership = Membership(context, log, management, members, voting, lambda: recovery.file.standing.move)

    def follow(peer: PeerInfo, epoch: int) -> None:
        if state.epoch or membership.may_follow(peer):
            context.catch_up.heard(peer.endpoint, epoch)

    context.internode.own.listen(follow)
    conditions, clock = context.conditions, context.runtime.clock
    conditions.watch(watch_metadata(conditions, state, lambda: log.leader_id, clock))
    return NodeMembership(
        context=context,
        members=members,
        liveness=log.liveness,
        gossip=Gossip(context, state, log.liveness, own_load),
        management=management,
        groups=GroupReports(context, log, management),
        voting=voting,
        membership=membership,
        recovery=recovery,
        cutting=ManagementCutting(context, log, management, recovery),
        validator=TopologyValidator(context, log),
        upgrade=UpgradeService(context, log, voting.join_groups, fail),
    )
