"""The checker of batches rejects half ones, refused ones that were written, and replicas that never hear."""

from __future__ import annotations

import pytest

from lockstep.sim.checkers.settled import Batched, Row, check_batches
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.values.ids import NodeId

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
ONE: Row = ("t", b"k", 1)
OTHER: Row = ("u", b"l", 1)
REPLICAS = [NodeId(1), NodeId(2), NodeId(3)]


def judge(
    outcome: Outcome, one: set[int], other: set[int], *, logged: bool = True, survived: bool = False
) -> int:
    held = {ONE: one, OTHER: other}
    batch = Batched(1, "c", (ONE, OTHER), logged, outcome, 2, survived)
    return check_batches([batch], lambda _, row: (REPLICAS, [NodeId(node) for node in sorted(held[row])]))


@pytest.mark.parametrize(
    ("outcome", "one", "other", "named"),
    [
        (OK, {1, 2}, {2, 3}, {}),
        (OK, {1, 2, 3}, {1, 2, 3}, {"survived": True}),
        (UNKNOWN, set(), set(), {"survived": True}),
        (UNKNOWN, {1, 2, 3}, {1, 2, 3}, {"survived": True}),
        (UNKNOWN, {1, 2, 3}, set(), {"survived": True, "logged": False}),
        (UNKNOWN, {1}, set(), {"logged": False}),
        (FAILED, set(), set(), {}),
    ],
)
def test_what_may_be(outcome: Outcome, one: set[int], other: set[int], named: dict[str, bool]) -> None:
    assert judge(outcome, one, other, **named) == 2


@pytest.mark.parametrize(
    ("outcome", "one", "other", "named"),
    [
        (OK, {1, 2}, set(), {}),
        (OK, {1, 2}, {1, 4}, {}),
        (OK, {1, 2, 3}, {1, 2}, {"survived": True}),
        (OK, {1, 2}, set(), {"logged": False}),
        (UNKNOWN, {1, 2, 3}, set(), {}),
        (UNKNOWN, {1, 2, 3}, {1, 2}, {"survived": True}),
        (UNKNOWN, {1, 2}, set(), {"logged": False, "survived": True}),
        (FAILED, {1}, set(), {}),
        (FAILED, set(), {4}, {"logged": False}),
    ],
)
def test_what_may_not_be(outcome: Outcome, one: set[int], other: set[int], named: dict[str, bool]) -> None:
    with pytest.raises(Violation, match="BAT-1"):
        judge(outcome, one, other, **named)
