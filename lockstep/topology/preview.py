"""What an operation would do, found by doing it to a copy of the metadata.

Invariant: steps, ranges and who is asked come from the real transformations, barriers and stream plans, entry
after entry until the operation ends, and nothing is changed. Only bytes and times are estimates, and say of
what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.placement.placements import Placements
from lockstep.topology.barriers import barrier_need
from lockstep.topology.kind import kind_of, stage_row
from lockstep.topology.stages import STREAMING, StageRow, StreamTask
from lockstep.topology.step import work_orders
from lockstep.topology.streams import stream_plan
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class StepPreview(msgspec.Struct, frozen=True):
    """One entry: its stage's row, who must be asked before the next one, and who gets work."""

    row: StageRow
    barrier: tuple[NodeId, ...]
    workers: tuple[NodeId, ...]


class Movement(msgspec.Struct, frozen=True):
    """Ranges that `target` copies from `source`; a range read from several sources counts for each.

    `bytes` is None where the source did not say how much it holds.
    """

    source: NodeId
    target: NodeId
    ranges: int
    bytes: int | None = None


class Estimate(msgspec.Struct, frozen=True):
    """How long it may take. `bytes`: what is known to be moved, `unknown_ranges` more have no size.

    The nodes that receive work at the same time, each at `rate_bytes_s`; what each of at most `streams`
    that one receives takes beside its bytes, and barriers, come on top.
    """

    bytes: int
    unknown_ranges: int
    rate_bytes_s: int
    stream_s: float
    streams: int
    streams_s: float
    barriers: int
    barriers_s: float

    @property
    def seconds(self) -> float:
        return self.stream_s + self.streams_s + self.barriers_s


class Preview(msgspec.Struct, frozen=True):
    """`point_of_no_return`: the first stage from which it only goes forward; None when there is none.

    `tasks`: every stream, in order. `starved`: ranges that wait for sources now. `first`, `last`: values
    after the first and the last entry.
    """

    operation: Operation
    steps: tuple[StepPreview, ...]
    tasks: tuple[StreamTask, ...]
    starved: int
    point_of_no_return: Stage | None
    first: ClusterMetadata
    last: ClusterMetadata


def preview(cluster: ClusterMetadata, wanted: PrepareOperation, dead: tuple[NodeId, ...] = ()) -> Preview:
    """Carry the operation out on the value; raises Rejected where the real one would be refused."""
    first = value = wanted.apply(cluster, cluster.epoch + 1)
    begun = value.operations[-1]
    steps: list[StepPreview] = []
    tasks: list[StreamTask] = []
    while begun.id in value.operations_by_id:
        operation = value.operations_by_id[begun.id]
        row = stage_row(operation)
        orders = work_orders(operation, value, dead)
        if row.work in STREAMING:
            tasks.extend(stream_plan(operation, value, dead))
        workers = tuple(order.node for order in orders)
        sources = {source for order in orders for source in order.sources}
        need = barrier_need(operation, value, sources, workers)
        steps.append(StepPreview(row, need.nodes(), workers))
        value = AdvanceOperation(operation.id, operation.stage, operation.step).apply(
            value, operation.stage_epoch + 1
        )
    walks = kind_of(begun).walks
    forward = [step.row.stage for step in steps if step.row.on_failure is None and not walks]
    return Preview(
        begun,
        tuple(steps),
        tuple(tasks),
        sum(not task.sources for task in tasks),
        forward[0] if forward else None,
        first,
        value,
    )


class Present(msgspec.Struct, frozen=True):
    """Where a keyspace lies before its replication changes. Tablets have the groups that they have then; a
    ring has one of its own, and lies in `group` now."""

    placements: Placements
    group: int

    def reads(self, task: StreamTask) -> tuple[NodeId, ...]:
        known = self.placements.by_id.get(task.group) or self.placements.ring(self.group)
        return known.group_for(task.range.right).reads


def present_ring(cluster: ClusterMetadata, operation: Operation) -> Present | None:
    """That of the keyspace whose replication the operation changes; None where it changes none."""
    if not operation.about.keyspace:
        return None
    return Present(cluster.placements, cluster.schema.by_name[operation.about.keyspace].group)


#: Bytes that a source holds of a range, all tables together.
Held = Mapping[tuple[NodeId, int, Range], int]


def holder(source: NodeId, task: StreamTask, present: Present | None) -> NodeId:
    """Who holds now what the source holds by then: itself, or a replica on the present ring of a keyspace
    whose replication changes, where the source gets the range in a step before."""
    if present is None:
        return source
    reads = present.reads(task)
    return source if source in reads or not reads else reads[0]


def needed_sizes(
    tasks: tuple[StreamTask, ...], present: Present | None = None
) -> dict[NodeId, list[tuple[int, Range]]]:
    """What each holder would have to say how much it holds of."""
    found: dict[NodeId, dict[tuple[int, Range], None]] = {}
    for task in tasks:
        for source in task.sources:
            found.setdefault(holder(source, task, present), {})[task.group, task.range] = None
    return {source: list(wanted) for source, wanted in sorted(found.items())}


def movements(tasks: tuple[StreamTask, ...], held: Held | None = None) -> tuple[Movement, ...]:
    """By source and target. One range of unknown size makes the bytes of its pair unknown."""
    counts: dict[tuple[NodeId, NodeId], int] = {}
    sizes: dict[tuple[NodeId, NodeId], int | None] = {}
    for task in tasks:
        for source in task.sources:
            pair = (source, task.target)
            counts[pair] = counts.get(pair, 0) + 1
            size = (held or {}).get((source, task.group, task.range))
            known = sizes.get(pair, 0)
            sizes[pair] = None if size is None or known is None else known + size
    return tuple(Movement(*pair, counts[pair], sizes[pair]) for pair in sorted(counts))


def estimate(found: Preview, held: Held, rate_bytes_s: int, stream_s: float, barrier_s: float) -> Estimate:
    """`rate_bytes_s` is what one receiving node takes in; `stream_s` what one stream takes beside its bytes,
    `barrier_s` what one barrier takes at best."""
    per_target: dict[NodeId, int] = {}
    streams: dict[NodeId, int] = {}
    unknown = 0
    for task in found.tasks:
        tables = _tables(found, task)
        streams[task.target] = streams.get(task.target, 0) + tables * len(task.sources)
        for source in task.sources:
            size = held.get((source, task.group, task.range))
            if size is None:
                unknown += 1
            else:
                per_target[task.target] = per_target.get(task.target, 0) + size
    barriers = len(found.steps)
    longest, most = max(per_target.values(), default=0), max(streams.values(), default=0)
    return Estimate(
        bytes=sum(per_target.values()),
        unknown_ranges=unknown,
        rate_bytes_s=rate_bytes_s,
        stream_s=math.ceil(100 * longest / rate_bytes_s) / 100,
        streams=most,
        streams_s=most * stream_s,
        barriers=barriers,
        barriers_s=barriers * barrier_s,
    )


def _tables(found: Preview, task: StreamTask) -> int:
    """How many tables a task copies: each is a stream of its own."""
    changing = found.operation.about.keyspace
    schema = found.first.schema
    if not changing:
        return len(schema.tables_in(task.group))
    keyspace = schema.by_name[changing]
    return len(keyspace.by_name if keyspace.tablets is None else keyspace.groups[task.group])
