"""The checker of counters rejects what is lost and what counts twice, and allows what is open."""

from __future__ import annotations

import pytest

from lockstep.sim.checkers.registers import Count, check_counts
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


def add(at: int, end: int, amount: int, outcome: Outcome = OK, key: bytes = b"n") -> Count:
    return Count("c1", key, at, end, outcome, amount)


def read(at: int, end: int, seen: int, *, settled: bool = False) -> Count:
    return Count("c2", b"n", at, end, OK, seen=seen, settled=settled)


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ([add(1, 2, 5), add(3, 4, -2)], (3,)),
        ([add(1, 2, 5), add(3, 4, 7, UNKNOWN)], (5, 12)),
        ([add(1, 2, 5), add(3, 4, 7, FAILED)], (5,)),
        ([add(1, 2, 5), add(8, 30, 7)], (5, 12)),
        ([add(1, 2, 5), add(21, 30, 7)], (5,)),
        ([add(1, 2, 5), add(3, 4, 7, key=b"other")], (5,)),
    ],
)
def test_a_read_shows_what_was_counted_before_it(events: list[Count], seen: tuple[int, ...]) -> None:
    for value in range(-5, 20):
        history = [*events, read(10, 20, value)]
        if min(seen) <= value <= max(seen):
            assert check_counts(history) == 1
        else:
            with pytest.raises(Violation, match="REP-1"):
                check_counts(history)


def test_at_the_end_everything_acknowledged_is_there() -> None:
    open_at_the_read = [add(8, 30, 7)]
    assert check_counts([*open_at_the_read, read(10, 20, 0)]) == 1
    with pytest.raises(Violation):
        check_counts([*open_at_the_read, read(10, 20, 0, settled=True)])
