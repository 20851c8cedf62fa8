"""What the balancer does next, as a document: as the metadata leader has it, whichever node is asked.

Invariant: looking begins nothing; what only the leader knows is asked of it for each answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.documents.tablets import PlannedDrain, PlannedMove, TabletPlan, WaitingResize
from lockstep.internode import verbs
from lockstep.metadata.requests import RequestState
from lockstep.node.services import NodeServices
from lockstep.placement.tablets.explain import explain
from lockstep.placement.tablets.moves import STREAM_BYTES_PER_S, Move, duration_ms
from lockstep.server.reports.leader_views import likely_leaders
from lockstep.server.reports.tablets import table_named
from lockstep.topology.tablets.balancing import Planned
from lockstep.topology.tablets.drains import drained_by, held_tablets
from lockstep.values.errors import ConfigurationError, LockstepError, PeerUnreachable
from lockstep.values.ids import NodeId
from lockstep.values.limits import ADMIN_FORWARD_TIMEOUT_MS

#: Moves that an answer lists; a plan of a large cluster has tens of thousands, and the counts tell of them.
MOVES_LISTED_MAX: Final = 4096


class AskPlan(msgspec.Struct, frozen=True, array_like=True):
    """What do you move next? With a group, also why the tablet with this last token moves or not."""

    group: int = 0
    right: int = 0


class LeadersPlan(msgspec.Struct, frozen=True, array_like=True):
    """`leads` False: ask another node."""

    leads: bool
    plan: TabletPlan


def serve_plans(node: NodeServices) -> None:
    async def answer(_peer: object, question: AskPlan) -> LeadersPlan:
        leads = node.log.is_leader
        return LeadersPlan(leads, _own_plan(node, question) if leads else TabletPlan())

    node.context.internode.register(verbs.TABLET_PLAN, AskPlan, LeadersPlan, answer)


async def tablet_plan(node: NodeServices, tablet: str = "") -> TabletPlan:
    """`tablet` is KEYSPACE.TABLE:N, one to explain. ConfigurationError when there is none, PeerUnreachable
    when no leader answers."""
    question = _question(node, tablet) if tablet else AskPlan()
    if node.log.is_leader:
        return _own_plan(node, question)
    for info in likely_leaders(node):
        try:
            told: LeadersPlan = await node.context.internode.request(
                (info.address, info.internode_port), verbs.TABLET_PLAN, question, ADMIN_FORWARD_TIMEOUT_MS
            )
        except LockstepError as error:
            node.context.log("admin.leader_waits", node=info.id, error=error.message)
            continue
        if told.leads:
            return told.plan
    raise PeerUnreachable("no metadata leader answers: only it plans moves of tablets")


def _question(node: NodeServices, tablet: str) -> AskPlan:
    name, _, number = tablet.rpartition(":")
    keyspace, _, table = name.partition(".")
    if not table or not number.isdecimal():
        raise ConfigurationError(f"{tablet} is no KEYSPACE.TABLE:NUMBER")
    cluster = node.log.cluster
    _, group = table_named(cluster, keyspace, table)
    ranges = cluster.placements.ring(group.id).ranges
    if int(number) >= len(ranges):
        raise ConfigurationError(f"{name} has {len(ranges)} tablets, 0 to {len(ranges) - 1}")
    return AskPlan(group.id, ranges[int(number)].range.right)


def _own_plan(node: NodeServices, question: AskPlan) -> TabletPlan:
    planned = node.work.balancer.planned()
    plan, cluster = planned.plan, node.log.cluster
    waiting = node.work.balancer.resizing(planned).waits
    explained = explain(planned.cluster, plan, question.group, question.right) if question.group else []
    explained += [one.reason for one in waiting if one.group == question.group]
    names = {group.id: f"{group.head.keyspace}.{group.head.table}" for group in cluster.tablets.groups}
    running = [one.move for one in planned.cluster.running]
    return TabletPlan(
        epoch=cluster.epoch,
        is_balanced=cluster.tablets.is_balanced,
        round=planned.cluster.statistics.round,
        running=len(running),
        now=_moves(plan.moves, names),
        later=_moves(plan.left, names),
        now_count=len(plan.moves),
        later_count=len(plan.left),
        bytes=plan.bytes,
        seconds=plan.remaining_ms(STREAM_BYTES_PER_S) / 1000,
        waits=planned.waits,
        drains=_drains(node, planned),
        explained=tuple(explained),
        resizes=tuple(
            WaitingResize(names.get(one.group, ""), one.reason, tuple(map(int, one.nodes))) for one in waiting
        ),
    )


def _moves(moves: tuple[Move, ...], names: dict[int, str]) -> tuple[PlannedMove, ...]:
    return tuple(
        PlannedMove(
            table=names[move.group],
            end=move.right,
            kind=move.kind.name.lower(),
            why=move.why.name.lower(),
            source=int(move.source[0]),
            target=int(move.target[0]),
            bytes=move.bytes,
        )
        for move in moves[:MOVES_LISTED_MAX]
    )


def _drains(node: NodeServices, planned: Planned) -> tuple[PlannedDrain, ...]:
    found = []
    for request in node.log.cluster.requests.queue:
        leaving = drained_by(request)
        if leaving and request.state is RequestState.QUEUED:
            found.append(_drain(node, planned, request.id, leaving))
    return tuple(one for one in found if one.tablets)


def _drain(node: NodeServices, planned: Planned, request_id: int, leaving: NodeId) -> PlannedDrain:
    moves = [
        move
        for move in (
            *(one.move for one in planned.cluster.running),
            *planned.plan.moves,
            *planned.plan.left,
        )
        if move.source[0] == leaving
    ]
    return PlannedDrain(
        request=request_id,
        node=int(leaving),
        tablets=held_tablets(node.log.cluster, leaving),
        bytes=sum(move.bytes for move in moves),
        seconds=duration_ms(moves) / 1000,
    )


def drain_of(node: NodeServices, request_id: int) -> PlannedDrain | None:
    """What is left to do of a paused request; None where this node does not lead, or nothing is. A plan is
    made for it, so where no table has tablets nobody is asked for one."""
    if not node.log.is_leader or not node.log.cluster.tablets.by_group:
        return None
    drains = _drains(node, node.work.balancer.planned())
    return next((one for one in drains if one.request == request_id), None)
