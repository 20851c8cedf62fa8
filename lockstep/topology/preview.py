"""What an operation would do, found by doing it to a copy of the metadata.

Invariant: every number comes from the real transformations, barriers and stream plans, entry after entry
until the operation ends; nothing is estimated and nothing is changed.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.topology.barriers import barrier_need
from lockstep.topology.stages import STREAMING, StageRow, stage_row
from lockstep.topology.step import work_orders
from lockstep.topology.streams import StreamTask, stream_plan
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import NodeId


class StepPreview(msgspec.Struct, frozen=True):
    """One entry: its stage's row, who must be asked before the next one, and who gets work."""

    row: StageRow
    barrier: tuple[NodeId, ...]
    workers: tuple[NodeId, ...]


class Movement(msgspec.Struct, frozen=True):
    """Ranges that `target` copies from `source`; a range read from several sources counts for each."""

    source: NodeId
    target: NodeId
    ranges: int


class Preview(msgspec.Struct, frozen=True):
    """`point_of_no_return`: the first stage from which it only goes forward; None when there is none.

    `starved`: ranges that wait for sources now. `first`, `last`: values after the first and the last entry.
    """

    operation: Operation
    steps: tuple[StepPreview, ...]
    movements: tuple[Movement, ...]
    starved: int
    point_of_no_return: Stage | None
    first: ClusterMetadata
    last: ClusterMetadata


def preview(cluster: ClusterMetadata, wanted: PrepareOperation, dead: tuple[NodeId, ...] = ()) -> Preview:
    """Carry the operation out on the value; raises Rejected where the real one would be refused."""
    first = value = wanted.apply(cluster, cluster.epoch + 1)
    begun = value.operations[-1]
    steps: list[StepPreview] = []
    tasks: tuple[StreamTask, ...] = ()
    while begun.id in value.operations_by_id:
        operation = value.operations_by_id[begun.id]
        row = stage_row(operation.kind, operation.stage)
        orders = work_orders(operation, value, dead)
        if row.work in STREAMING:
            tasks = stream_plan(operation, value, dead)
        workers = tuple(order.node for order in orders)
        ordered = [task for order in orders for task in order.tasks]
        need = barrier_need(operation, value, ordered, workers)
        steps.append(StepPreview(row, need.nodes(), workers))
        value = AdvanceOperation(operation.id, operation.stage).apply(value, operation.stage_epoch + 1)
    forward = [step.row.stage for step in steps if step.row.on_failure is None]
    return Preview(
        begun,
        tuple(steps),
        _movements(tasks),
        sum(not task.sources for task in tasks),
        forward[0] if forward else None,
        first,
        value,
    )


def _movements(tasks: tuple[StreamTask, ...]) -> tuple[Movement, ...]:
    counts: dict[tuple[NodeId, NodeId], int] = {}
    for task in tasks:
        for source in task.sources:
            counts[source, task.target] = counts.get((source, task.target), 0) + 1
    return tuple(Movement(*pair, counts[pair]) for pair in sorted(counts))
