"""The coordinator's decision: given the metadata and what is known of the nodes, what to do now.

Invariant: a pure function. In each stage the order is barrier (with its drain), then the stage's work,
then the entry that leaves the stage; a decision never depends on how often it is asked, so any node can
take over at any point.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.registry import EntryKind
from lockstep.schema.model import Replication
from lockstep.topology.barriers import BarrierState, barrier_need, evaluate
from lockstep.topology.stages import Work, row_of
from lockstep.topology.streams import StreamTask, stream_plan
from lockstep.topology.transformations import AdvanceOperation, CancelOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class WorkState(enum.StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class WorkReport(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of its part of a stage's work. A node reports FAILED only when retries cannot help."""

    state: WorkState
    text: str = ""


class Reports(msgspec.Struct, frozen=True):
    """What the coordinator knows beside the metadata; all of it can be asked for again.

    acknowledged: newest epoch each node has durably applied. drained: newest epoch such that every
    request the node accepted under an older one is finished. work: (operation id, stage) -> node ->
    report. dead: nodes the failure detector convicts; they only change who streams.
    """

    acknowledged: Mapping[NodeId, int] = {}
    drained: Mapping[NodeId, int] = {}
    work: Mapping[tuple[int, Stage], Mapping[NodeId, WorkReport]] = {}
    dead: tuple[NodeId, ...] = ()


class WorkOrder(msgspec.Struct, frozen=True, array_like=True):
    """Work of one node in one stage, valid while its session is open.

    kind WIPE: delete what is stored of `ranges`. kind STREAM: copy `tasks`, all with this node as target.
    """

    node: NodeId
    operation_id: int
    stage: Stage
    session_id: str
    kind: Work
    ranges: tuple[tuple[Replication, Range], ...] = ()
    tasks: tuple[StreamTask, ...] = ()


class Propose(msgspec.Struct, frozen=True):
    """Submit this entry, with an id derived from the operation and stage so that retries are duplicates."""

    kind: int
    body: AdvanceOperation | CancelOperation
    operation_id: int


class RunWork(msgspec.Struct, frozen=True):
    orders: tuple[WorkOrder, ...]


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do until a report changes: (node, reason), the node 0 when nobody in particular."""

    reasons: tuple[tuple[NodeId, str], ...]


class Idle(msgspec.Struct, frozen=True):
    """No operation is running."""


Decision = Propose | RunWork | Wait | Idle

_NO_REPORTS: Mapping[NodeId, WorkReport] = {}


def step(cluster: ClusterMetadata, reports: Reports) -> Decision:
    """The next thing to do for any running operation: an entry before work, work before waiting."""
    if not cluster.operations:
        return Idle()
    orders: list[WorkOrder] = []
    reasons: list[tuple[NodeId, str]] = []
    for operation in cluster.operations:
        decision = decide(operation, cluster, reports)
        if isinstance(decision, Propose):
            return decision
        if isinstance(decision, RunWork):
            orders.extend(decision.orders)
        elif isinstance(decision, Wait):
            reasons.extend(decision.reasons)
    return RunWork(tuple(orders)) if orders else Wait(tuple(reasons))


def decide(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> Decision:
    """The next thing to do for one operation; never Idle."""
    row = row_of(operation.kind, operation.stage)
    reported = reports.work.get((operation.id, operation.stage), _NO_REPORTS)
    orders = work_orders(operation, cluster, reports.dead)
    failed = [(o.node, reported[o.node].text) for o in orders if _is(reported, o.node, WorkState.FAILED)]
    if failed and row.on_failure is not None:
        reason = "; ".join(f"{row.work} failed on node {node}: {text}" for node, text in failed)
        return Propose(EntryKind.CANCEL_OPERATION, CancelOperation(operation.id, reason), operation.id)
    open_orders = [order for order in orders if not _is(reported, order.node, WorkState.DONE)]
    state = barrier_state(operation, cluster, reports, open_orders)
    if not state.passed:
        return Wait(tuple((m.node, _missing_text(m.seen, m.needed, m.reason)) for m in state.missing))
    starting = [order for order in open_orders if order.node not in reported]
    starved = [task for order in starting for task in order.tasks if not task.sources]
    if starved:
        return Wait(tuple((t.target, _starved_text(t)) for t in starved))
    if starting:
        return RunWork(tuple(starting))
    if open_orders:
        return Wait(tuple((o.node, _running_text(o, reported[o.node].text)) for o in open_orders))
    body = AdvanceOperation(operation.id, operation.stage)
    return Propose(EntryKind.ADVANCE_OPERATION, body, operation.id)


def barrier_state(
    operation: Operation, cluster: ClusterMetadata, reports: Reports, open_orders: Sequence[WorkOrder]
) -> BarrierState:
    """The barrier of the present stage; only sources of streams still to run must be drained."""
    tasks = [task for order in open_orders for task in order.tasks]
    return evaluate(barrier_need(operation, cluster, tasks), reports.acknowledged, reports.drained)


def work_orders(
    operation: Operation, cluster: ClusterMetadata, dead: Sequence[NodeId]
) -> tuple[WorkOrder, ...]:
    """The stage's work, one order for each pending node, ascending; empty when the stage has none."""
    row = row_of(operation.kind, operation.stage)
    ranges: dict[NodeId, list[tuple[Replication, Range]]] = {}
    tasks: dict[NodeId, list[StreamTask]] = {}
    if row.work is Work.WIPE:
        for transition in operation.transitions:
            for node in transition.gained:
                ranges.setdefault(node, []).append((transition.replication, transition.range))
    elif row.work is Work.STREAM:
        for task in stream_plan(operation, cluster, dead):
            tasks.setdefault(task.target, []).append(task)
    return tuple(
        WorkOrder(
            node=node,
            operation_id=operation.id,
            stage=operation.stage,
            session_id=operation.session_id,
            kind=row.work,
            ranges=tuple(ranges.get(node, ())),
            tasks=tuple(tasks.get(node, ())),
        )
        for node in sorted([*ranges, *tasks])
    )


def _is(reported: Mapping[NodeId, WorkReport], node: NodeId, state: WorkState) -> bool:
    report = reported.get(node)
    return report is not None and report.state is state


def _missing_text(seen: int, needed: int, reason: str) -> str:
    return f"last seen epoch {seen}, needs {needed} ({reason})"


def _starved_text(task: StreamTask) -> str:
    return f"too few live replicas of ({task.range.left}, {task.range.right}] to stream from"


def _running_text(order: WorkOrder, text: str) -> str:
    return f"{order.kind} is running{f': {text}' if text else ''}"
