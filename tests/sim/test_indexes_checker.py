"""The checker of indexes rejects answers that lack a row, have one too many, or twice."""

from __future__ import annotations

from functools import partial
from operator import eq

import pytest

from lockstep.sim.checkers.settled import IndexRow, check_answer, check_index
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.side_load import int_bytes


def row(key: int, value: int | None) -> IndexRow:
    return int_bytes(key), None if value is None else int_bytes(value)


ONE, OTHER, NONE = row(1, 7), row(2, 8), row(3, None)
SEVEN = partial(eq, int_bytes(7))


@pytest.mark.parametrize("found", [[], [ONE, OTHER], [ONE, NONE], [ONE, ONE], [row(4, 7)]])
def test_an_answer_that_differs_from_the_scan_is_refused(found: list[IndexRow]) -> None:
    with pytest.raises(Violation, match="INDEX-1"):
        check_index("v of 7", 1, SEVEN, [ONE, OTHER, NONE], found)


def test_the_rows_that_have_the_value_are_the_answer() -> None:
    assert check_index("v of 7", 1, SEVEN, [ONE, OTHER, NONE], [ONE]) == 1


def test_a_row_without_the_value_is_refused_at_any_time() -> None:
    check_answer("v of 7", 1, SEVEN, [ONE, row(4, 7)])
    with pytest.raises(Violation, match="2/8"):
        check_answer("v of 7", 1, SEVEN, [ONE, OTHER])
