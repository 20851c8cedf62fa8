"""A dry run is the operation itself on a copy: what it says is what then happens."""

from __future__ import annotations

import pytest

from lockstep.metadata.operations import Stage
from lockstep.topology.barriers import barrier_need
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.preview import estimate, holder, movements, needed_sizes, present_ring, preview
from lockstep.topology.stages import Work
from lockstep.topology.streams import stream_plan
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, ring_with, simple, started
from tests.topology.drills import refused, replacing
from tests.topology.test_replication_change import add_table, with_table

D, X = NodeId(4), NodeId(5)
KINDS = [
    PrepareOperation(Decommission(D)),
    PrepareOperation(Remove(D)),
    PrepareOperation(Move(D, (150,))),
    PrepareOperation(Replace(X, D)),
    PrepareOperation(Rebuild(D)),
]
LEAVE = PrepareOperation(Decommission(D))


def four(factor: int = 3) -> History:
    history = started([(100,), (200,), (300,), (400,)], ("ks", simple(factor)))
    history.submit(replacing(5, history.now.directory.by_id[D]))
    return history


@pytest.mark.parametrize("body", KINDS)
def test_what_is_foretold_is_what_happens(body: PrepareOperation) -> None:
    history = four()
    before = history.now
    told = preview(before, body)
    assert history.now is before
    history.submit(body)
    assert told.operation == history.now.operations[0]
    assert told.first.placements == history.now.placements
    copied: dict[tuple[NodeId, NodeId], int] = {}
    for step in told.steps:
        operation = history.now.operations[0]
        assert operation.stage is step.row.stage
        assert set(barrier_need(operation, history.now).nodes()) <= set(step.barrier)
        if step.row.work in (Work.STREAM, Work.REBUILD):
            for task in stream_plan(operation, history.now, ()):
                for source in task.sources:
                    copied[source, task.target] = copied.get((source, task.target), 0) + 1
        history.submit(AdvanceOperation(operation.id, operation.stage))
    assert history.now.operations == ()
    assert told.last.directory == history.now.directory
    assert told.last.placements == history.now.placements
    assert {(m.source, m.target): m.ranges for m in movements(told.tasks)} == copied and copied
    assert told.starved == 0


def test_the_point_of_no_return_is_where_reads_move() -> None:
    history = four()
    assert preview(history.now, KINDS[1]).point_of_no_return is Stage.WRITE_BOTH_READ_NEW
    assert preview(history.now, KINDS[4]).point_of_no_return is None


def test_ranges_that_have_no_sources_now_are_counted() -> None:
    told = preview(four().now, KINDS[1], dead=(NodeId(2), D))
    assert told.starved > 0
    assert all(move.source not in (NodeId(2), D) for move in movements(told.tasks))


def test_a_plan_of_what_would_be_refused_is_refused_alike() -> None:
    history = four(1)
    for body in KINDS[1:2]:
        message = refused(history, body)
        with pytest.raises(Exception, match="only node 4 is sure") as caught:
            preview(history.now, body)
        assert caught.value.message == message  # type: ignore[attr-defined]


def test_an_estimate_asks_every_source_and_counts_what_each_target_takes_in() -> None:
    history = four()
    told = preview(history.now, PrepareOperation(Decommission(D)))
    wanted = needed_sizes(told.tasks)
    asked = {(source, *piece) for source, pieces in wanted.items() for piece in pieces}
    assert asked == {(s, task.group, task.range) for task in told.tasks for s in task.sources} != set()
    sizes = dict.fromkeys(asked, 1000)
    per_target = {task.target: 0 for task in told.tasks}
    for task in told.tasks:
        per_target[task.target] += 1000 * len(task.sources)
    found = estimate(told, sizes, rate_bytes_s=1000, stream_s=0.5, barrier_s=0.1)
    assert found.bytes == sum(per_target.values()) and found.unknown_ranges == 0
    assert found.stream_s == max(per_target.values()) / 1000
    known = estimate(told, {}, rate_bytes_s=1000, stream_s=0.5, barrier_s=0.1)
    assert known.unknown_ranges == len(asked) and known.bytes == 0
    assert all(movement.bytes is None for movement in movements(told.tasks))
    assert sum(movement.bytes or 0 for movement in movements(told.tasks, sizes)) == found.bytes


def test_a_change_of_replication_is_copied_from_those_that_hold_the_keyspace_now() -> None:
    """A source of a later step has nothing yet: whoever reads the range now is asked for its size."""
    history = with_table(5, simple(1), others=(simple(3),))
    told = preview(history.now, PrepareOperation(ReplicationChange("ks", simple(3))))
    present = present_ring(history.now, told.operation)
    assert present is not None
    assert present.placements.ring(present.group) is ring_with(history.now, simple(1))
    assert told.point_of_no_return is None and len(told.steps) == 10, "two steps of five stages"
    later = 0
    for task in told.tasks:
        (owner,) = present.reads(task)
        for source in task.sources:
            assert holder(source, task, present) == owner
            assert holder(source, task, None) == source
            later += source != owner
    assert later, "some are asked of a replica that the first step made"
    wanted = needed_sizes(told.tasks, present)
    for source, asked in wanted.items():
        assert list(wanted) == sorted(wanted) and len(asked) == len(set(asked))
        ring = present.placements.ring(present.group)
        assert all(ring.group_for(range_.right).reads == (source,) for _, range_ in asked)
    assert present_ring(history.now, preview(history.now, LEAVE).operation) is None


def test_an_estimate_adds_streams_and_barriers_and_knows_which_sizes_are_missing() -> None:
    history = with_table(4, simple(2), others=(simple(2),))
    add_table(history, "more")
    told = preview(history.now, LEAVE)
    targets = [task.target for task in told.tasks]
    most = max(targets.count(target) for target in targets)
    (one, *others) = told.tasks
    assert len(one.sources) == 1
    sizes = {(one.sources[0], one.group, one.range): 1234}
    found = estimate(told, sizes, rate_bytes_s=100, stream_s=0.5, barrier_s=0.1)
    assert (found.bytes, found.unknown_ranges, found.stream_s) == (1234, len(others), 12.34)
    assert (found.streams, found.streams_s) == (2 * most, most * 1.0), "each range of two tables"
    assert (found.barriers, round(found.barriers_s, 6)) == (len(told.steps), round(0.1 * len(told.steps), 6))
    assert found.seconds == found.stream_s + found.streams_s + found.barriers_s
    moved = {(m.source, m.target): m.bytes for m in movements(told.tasks, sizes)}
    pair = (one.sources[0], one.target)
    alone = sum((task.sources[0], task.target) == pair for task in told.tasks) == 1
    assert moved[pair] == (1234 if alone else None)
    assert {size for at, size in moved.items() if at != pair} <= {None}
