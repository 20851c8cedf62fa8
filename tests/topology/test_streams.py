"""Who fills whom where nobody had a range before, or only who is filled is left to be asked."""

from __future__ import annotations

import pytest

from lockstep.metadata.transitions import Transition
from lockstep.topology.streams import tasks_of_givers, tasks_of_quorum
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING
from tests.metadata.histories import simple

ONE, TWO = NodeId(1), NodeId(2)


def dc_of(_node: NodeId) -> str:
    return "dc1"


@pytest.mark.parametrize("tasks", [tasks_of_givers, tasks_of_quorum])
def test_what_nobody_had_is_filled_by_nobody(tasks: object) -> None:
    assert callable(tasks)
    first = Transition(1, FULL_RING, (), (ONE, TWO), simple(2))
    assert tasks(first, dc_of, (), ()) == []


def test_the_only_one_left_of_a_degraded_range_is_not_filled_from_itself() -> None:
    leaving = Transition(1, FULL_RING, (ONE, TWO), (ONE,), simple(2), simple(1))
    (task,) = tasks_of_quorum(leaving, dc_of, (), (ONE,))
    assert (task.target, task.sources) == (ONE, (TWO,)), "who gives up fills who stays"
    assert tasks_of_quorum(leaving, dc_of, (TWO,), (ONE,)) == []
