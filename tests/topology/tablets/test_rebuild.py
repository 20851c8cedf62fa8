"""A node that fills its own ranges again fills its tablets too, and keeps them from moving meanwhile."""

from __future__ import annotations

import itertools

import pytest

from lockstep.metadata.operations import Operation
from lockstep.node.work.lacking import has_ranges
from lockstep.schema.changes import DropTable
from lockstep.topology.invariants import violations
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.streams import stream_plan
from lockstep.topology.tablets.moves import BeginMoves
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History
from tests.topology.tablets.worlds import begin, change, cluster, map_of, move, on_its_way

LOST = NodeId(2)


def rebuild(history: History) -> Operation:
    history.submit(PrepareOperation(Rebuild(LOST)))
    (operation,) = history.now.operations
    return operation


def tablets_of(history: History, node: NodeId) -> list[int]:
    return [placed.range.right for placed in map_of(history).ring.ranges if node in placed.group.reads]


def all_sound(history: History) -> None:
    for before, after in itertools.pairwise(history.values):
        assert violations(before, after) == ()
        after.validate(before)


def test_a_rebuild_fills_each_tablet_of_the_node_from_a_quorum_of_the_others() -> None:
    history = cluster(tablets=8)
    before = map_of(history).ring
    operation = rebuild(history)
    tasks = stream_plan(operation, history.now, ())
    assert [task.range.right for task in tasks if task.group == before.id] == tablets_of(history, LOST)
    assert all(task.target == LOST and LOST not in task.sources for task in tasks)
    assert all(len(task.sources) == 2 for task in tasks)
    history.submit(AdvanceOperation(operation.id, operation.stage, operation.step))
    assert not history.now.operations and not history.now.transitions.count
    assert map_of(history).ring == before
    all_sound(history)


def test_a_rebuild_that_is_taken_back_leaves_the_tablets_as_they_were() -> None:
    history = cluster(tablets=8)
    before = map_of(history).ring
    operation = rebuild(history)
    history.submit(CancelOperation(operation.id, "by an operator"))
    (operation,) = history.now.operations
    history.submit(AdvanceOperation(operation.id, operation.stage, operation.step))
    assert not history.now.transitions.count and map_of(history).ring == before
    all_sound(history)


def test_a_tablet_that_is_filled_does_not_move_and_one_that_moves_is_waited_for() -> None:
    history = cluster(tablets=8)
    number = next(n for n, one in enumerate(map_of(history).tablets()) if LOST in one.nodes)
    wanted = move(history, number)
    begin(history, wanted)
    with pytest.raises(Rejected, match=r"paused: migration of .* holds a tablet of node 2"):
        PrepareOperation(Rebuild(LOST)).apply(history.now, history.now.epoch + 1)
    while (one := on_its_way(history, wanted)) is not None:
        assert one.position is not None
        step = TransitionStep(one.group, one.range.right, one.position.stage_epoch, False)
        history.submit(AdvanceTransitions((step,)))
    rebuild(history)
    number = next(n for n, one in enumerate(map_of(history).tablets()) if LOST in one.nodes)
    with pytest.raises(Rejected, match=r"is on its way: operation 1 .rebuild of node 2."):
        BeginMoves(0, (move(history, number),)).apply(history.now, history.now.epoch + 1)
    all_sound(history)


def test_who_has_tablets_alone_has_ranges_to_fill() -> None:
    history = cluster(tablets=4)
    assert has_ranges(history.now, LOST)
    change(history, DropTable("k", "t"))
    assert not has_ranges(history.now, LOST)


def test_a_table_that_is_dropped_meanwhile_leaves_nothing_on_its_way() -> None:
    history = cluster(tablets=8)
    operation = rebuild(history)
    assert history.now.transitions.count
    change(history, DropTable("k", "t"))
    assert not history.now.transitions.count
    history.submit(AdvanceOperation(operation.id, operation.stage, operation.step))
    assert not history.now.operations
    all_sound(history)
