"""Where running operations stand: sentences, stages and barriers, for status commands and views.

Invariant: told from the stage tables and the barrier that the coordinator itself asks, so it cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.topology.barriers import barrier_need
from lockstep.topology.kind import kind_of, stage_row
from lockstep.topology.stages import Work
from lockstep.topology.step import (
    Propose,
    Reports,
    RunWorkOrders,
    Wait,
    WorkKey,
    decide,
    work_key,
    work_orders,
)
from lockstep.topology.transformations import can_go_back
from lockstep.values.ids import NodeId


def explain(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> tuple[str, ...]:
    """Where the operation stands, then one line for each thing it waits for or does next."""
    return (headline(operation), *_lines(operation, cluster, reports))


def headline(operation: Operation) -> str:
    """`operation 7 (bootstrap of node 4): write_both_read_old since epoch 15, step 2 of 4`."""
    path = [row.stage for row in kind_of(operation).stages if row.stage is not Stage.ROLLBACK_TO_NORMAL]
    if operation.stage in path:
        where = f"step {path.index(operation.stage) + 1} of {len(path)}"
    else:
        where = f"cancelled: {operation.cancel_reason or 'no reason given'}"
    return f"{operation.title()}: {operation.stage} since epoch {operation.stage_epoch}, {where}"


class PathStage(msgspec.Struct, frozen=True):
    """One stage on the way: `state` is done, current or to come; `epoch` entered it, 0 when it is to come."""

    stage: Stage
    state: str
    epoch: int = 0


def path(operation: Operation) -> tuple[PathStage, ...]:
    """Stages that it went through, the present one, and those to come if nothing fails."""
    found = [PathStage(stage, "done", epoch) for stage, epoch in operation.history[:-1]]
    found.append(PathStage(operation.stage, "current", operation.stage_epoch))
    ahead = stage_row(operation).next
    while ahead is not None:
        found.append(PathStage(ahead, "to come"))
        ahead = stage_row(operation, ahead).next
    return tuple(found)


class Presence(msgspec.Struct, frozen=True):
    """Of those that the present stage's barrier asks: who has applied its epoch, and who has not."""

    epoch: int
    seen: tuple[NodeId, ...]
    unseen: tuple[NodeId, ...]


def presence(
    operation: Operation, cluster: ClusterMetadata, acknowledged: Mapping[NodeId, int], dead: Sequence[NodeId]
) -> Presence:
    orders = work_orders(operation, cluster, dead)
    sources = {source for order in orders for source in order.sources}
    need = barrier_need(operation, cluster, sources, [order.node for order in orders])
    nodes = need.nodes()
    excluded = cluster.excluded_by_node
    seen = tuple(n for n in nodes if acknowledged.get(n, 0) >= need.epoch and n not in excluded)
    return Presence(need.epoch, seen, tuple(node for node in nodes if node not in seen))


def workers(
    operation: Operation, cluster: ClusterMetadata, dead: Sequence[NodeId]
) -> tuple[tuple[NodeId, Work, WorkKey], ...]:
    """Who has a part in the present stage's work, which, and by what key it is reported."""
    orders = work_orders(operation, cluster, dead)
    return tuple((order.node, order.kind, work_key(order)) for order in orders)


def can_cancel(operation: Operation) -> bool:
    """Whether a cancel entry would be accepted now."""
    return can_go_back(operation)


def _lines(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> tuple[str, ...]:
    decision = decide(operation, cluster, reports)
    if isinstance(decision, Wait):
        return tuple(f"waiting for node {node}: {reason}" for node, reason in decision.blockers)
    if isinstance(decision, RunWorkOrders):
        return tuple(f"next: {order.kind} on node {order.node}" for order in decision.orders)
    assert isinstance(decision, Propose), "a running operation is never idle"
    target = stage_row(operation).next
    return (f"next: {f'enter {target}' if target is not None else 'finish'}",)
