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
from lockstep.schema.model import Replication
from lockstep.topology import queue
from lockstep.topology.barriers import BarrierState, Missing, barrier_need, evaluate
from lockstep.topology.requests import FailRequest
from lockstep.topology.stages import DELETING, STREAMING, Work, stage_row
from lockstep.topology.streams import StreamTask, stream_plan
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class WorkReport(enum.StrEnum):
    """What a node says of its part of a stage's work; it says FAILED only when retries cannot help."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


#: Names one node's part of one stage's work: operation, stage, node.
WorkKey = tuple[int, Stage, NodeId]


class Reports(msgspec.Struct, frozen=True):
    """What the coordinator knows beside the metadata; all of it can be asked for again.

    acknowledged: newest epoch each node has durably applied. work: one report for each part, and in
    texts what the node said. dead: nodes the failure detector convicts; they only change who streams.
    drained: newest epoch such that every request the node accepted under an older one is finished;
    None when each source drains by itself before it answers a stream request that carries the stage's
    epoch. follows: why the group that follows the voters still needs nodes that vote no more.
    """

    acknowledged: Mapping[NodeId, int] = {}
    work: Mapping[WorkKey, WorkReport] = {}
    dead: tuple[NodeId, ...] = ()
    drained: Mapping[NodeId, int] | None = None
    texts: Mapping[WorkKey, str] = {}
    follows: str = ""


class WorkOrder(msgspec.Struct, frozen=True, array_like=True):
    """Work of one node in one stage, valid while its session is open.

    kind WIPE, CLEANUP, DISCARD: delete what is stored of `ranges`. kind STREAM, REBUILD: copy `tasks`, all with this
    node as target.
    """

    node: NodeId
    operation_id: int
    stage: Stage
    session_id: str
    kind: Work
    ranges: tuple[tuple[Replication, Range], ...] = ()
    tasks: tuple[StreamTask, ...] = ()


class Propose(msgspec.Struct, frozen=True):
    """Submit this entry. A second copy of it is refused, because it names the stage or the request it takes
    on. `operation_id` is 0 for one that is about a request."""

    transformation: AdvanceOperation | CancelOperation | PrepareOperation | FailRequest
    operation_id: int


class RunWorkOrders(msgspec.Struct, frozen=True):
    """Have each node do its part; asking again while it runs, or after it is done, is harmless."""

    orders: tuple[WorkOrder, ...]


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do until a report changes.

    blockers: (node, reason). epoch: ask the blockers whether they have applied it. operation_id: the
    first operation that waits.
    """

    operation_id: int
    epoch: int
    blockers: tuple[tuple[NodeId, str], ...]


class Idle(msgspec.Struct, frozen=True):
    """No operation is running, and no request may begin."""


Decision = Propose | RunWorkOrders | Wait | Idle


def step(cluster: ClusterMetadata, reports: Reports) -> Decision:
    """The next thing to do for any operation or request: an entry before work, work before waiting."""
    orders: list[WorkOrder] = []
    waits: list[Wait] = []
    for operation in cluster.operations:
        decision = decide(operation, cluster, reports)
        if isinstance(decision, Propose) and cluster.service.frozen:
            decision = _wait(operation, [(operation.node, _frozen_text(cluster))])
        if isinstance(decision, Propose):
            return decision
        if isinstance(decision, RunWorkOrders):
            orders.extend(decision.orders)
        elif isinstance(decision, Wait):
            waits.append(decision)
    entry = _queue_step(cluster, reports)
    if entry is not None:
        return entry
    if orders:
        return RunWorkOrders(tuple(orders))
    if not waits:
        return Idle()
    blockers = tuple(blocker for wait in waits for blocker in wait.blockers)
    return Wait(waits[0].operation_id, max(wait.epoch for wait in waits), blockers)


def _queue_step(cluster: ClusterMetadata, reports: Reports) -> Propose | None:
    """The entry that begins the request that goes first, or ends one that never can."""
    choice = queue.choose(cluster, reports.follows)
    if choice.run is not None:
        return Propose(queue.preparation(choice.run, choice.run.id), 0)
    if choice.fails is not None:
        return Propose(FailRequest(choice.fails[0].id), 0)
    return None


def decide(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> Decision:
    """The next thing to do for one operation; never Idle."""
    row = stage_row(operation.kind, operation.stage)
    dead = tuple({**dict.fromkeys(reports.dead), **dict.fromkeys(cluster.excluded_by_node)})
    orders = work_orders(operation, cluster, dead)
    failed = [order for order in orders if _report(reports, order) is WorkReport.FAILED]
    if failed and row.on_failure is not None:
        return Propose(
            CancelOperation(operation.id, _failure_text(reports, failed), failed=True), operation.id
        )
    open_orders = [order for order in orders if _report(reports, order) is not WorkReport.DONE]
    state = barrier_state(operation, cluster, reports, open_orders)
    if not state.passed:
        return _wait(operation, [(m.node, _missing_text(cluster, m)) for m in state.missing])
    # Where there is no way back, what failed is asked for until somebody has mended what it failed by.
    starting = [order for order in open_orders if _report(reports, order) is not WorkReport.RUNNING]
    starved = [task for order in starting for task in order.tasks if not task.sources]
    if starved:
        return _wait(operation, [(task.target, _starved_text(task)) for task in starved])
    if starting:
        return RunWorkOrders(tuple(starting))
    if open_orders:
        return _wait(operation, [(order.node, _running_text(reports, order)) for order in open_orders])
    return Propose(AdvanceOperation(operation.id, operation.stage), operation.id)


def _wait(operation: Operation, blockers: list[tuple[NodeId, str]]) -> Wait:
    return Wait(operation.id, operation.stage_epoch, tuple(blockers))


def barrier_state(
    operation: Operation, cluster: ClusterMetadata, reports: Reports, open_orders: Sequence[WorkOrder]
) -> BarrierState:
    """The barrier of the present stage; only sources of streams still to run must be drained."""
    tasks = [task for order in open_orders for task in order.tasks]
    workers = [order.node for order in open_orders]
    drained = reports.drained if reports.drained is not None else reports.acknowledged
    need = barrier_need(operation, cluster, tasks, workers)
    return evaluate(need, _heard(cluster, reports.acknowledged), _heard(cluster, drained))


def _heard(cluster: ClusterMetadata, seen: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
    """What counts as seen: nothing of what a node says that is shut out."""
    if not cluster.excluded:
        return seen
    return {node: epoch for node, epoch in seen.items() if node not in cluster.excluded_by_node}


def work_orders(
    operation: Operation, cluster: ClusterMetadata, dead: Sequence[NodeId]
) -> tuple[WorkOrder, ...]:
    """The stage's work, one order for each node that has a part, ascending; empty when the stage has none.

    A node that is dead or departing cleans nothing up, and drops nothing that it was to gain: whatever it keeps
    is wiped before it may own it again.
    """
    row = stage_row(operation.kind, operation.stage)
    ranges: dict[NodeId, list[tuple[Replication, Range]]] = {}
    tasks: dict[NodeId, list[StreamTask]] = {}
    if row.work is Work.WIPE:
        for transition in operation.transitions:
            for node in transition.gained:
                ranges.setdefault(node, []).append((transition.replication, transition.range))
    elif row.work in DELETING:
        for transition in operation.transitions:
            for node in transition.lost if row.work is Work.CLEANUP else transition.gained:
                if node != operation.departing and node not in dead:
                    ranges.setdefault(node, []).append((transition.replication, transition.range))
    elif row.work in STREAMING:
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


def _key(order: WorkOrder) -> WorkKey:
    return (order.operation_id, order.stage, order.node)


def _report(reports: Reports, order: WorkOrder) -> WorkReport | None:
    return reports.work.get(_key(order))


def _failure_text(reports: Reports, failed: Sequence[WorkOrder]) -> str:
    parts = (
        f"{o.kind} failed on node {o.node}: {reports.texts.get(_key(o), 'no reason given')}" for o in failed
    )
    return "; ".join(parts)


def _missing_text(cluster: ClusterMetadata, missing: Missing) -> str:
    exclusion = cluster.excluded_by_node.get(missing.node)
    if exclusion is not None:
        return f"is excluded since epoch {exclusion.epoch}: {exclusion.reason} ({missing.reason})"
    return f"last seen epoch {missing.seen}, needs {missing.needed} ({missing.reason})"


def _starved_text(task: StreamTask) -> str:
    return f"too few live replicas of ({task.range.left}, {task.range.right}] to stream from"


def _running_text(reports: Reports, order: WorkOrder) -> str:
    text = reports.texts.get(_key(order), "")
    return f"{order.kind} is running{f': {text}' if text else ''}"


def _frozen_text(cluster: ClusterMetadata) -> str:
    return f"the metadata is frozen: {cluster.service.frozen}"
