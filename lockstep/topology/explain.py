"""Sentences about running operations, for status commands and views."""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.topology.stages import TABLES, stage_row
from lockstep.topology.step import Propose, Reports, RunWorkOrders, Wait, decide


def explain(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> tuple[str, ...]:
    """Where the operation stands, then one line for each thing it waits for or does next."""
    return (headline(operation), *_lines(operation, cluster, reports))


def headline(operation: Operation) -> str:
    """`operation 7 (bootstrap of node 4): write_both_read_old since epoch 15, step 2 of 4`."""
    path = [row.stage for row in TABLES[operation.kind] if row.stage is not Stage.ROLLBACK_TO_NORMAL]
    if operation.stage in path:
        where = f"step {path.index(operation.stage) + 1} of {len(path)}"
    else:
        where = f"cancelled: {operation.cancel_reason or 'no reason given'}"
    return f"{operation.title()}: {operation.stage} since epoch {operation.stage_epoch}, {where}"


def can_cancel(operation: Operation) -> bool:
    """Whether a cancel entry would be accepted now."""
    return stage_row(operation.kind, operation.stage).on_failure is not None


def _lines(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> tuple[str, ...]:
    decision = decide(operation, cluster, reports)
    if isinstance(decision, Wait):
        return tuple(f"waiting for node {node}: {reason}" for node, reason in decision.blockers)
    if isinstance(decision, RunWorkOrders):
        return tuple(f"next: {order.kind} on node {order.node}" for order in decision.orders)
    assert isinstance(decision, Propose), "a running operation is never idle"
    target = stage_row(operation.kind, operation.stage).next
    return (f"next: {f'enter {target}' if target is not None else 'finish'}",)
