"""The proof's checker of atomic registers: exact against trying all orders, and histories it must refuse."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.proof_checks import Access, check_atomic, check_kept
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome

OK, UNKNOWN, FAILED = Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED


def put(start: int, end: int, value: str, outcome: Outcome = OK) -> Access:
    return Access("w", "k", True, value, start, end, outcome)


def get(start: int, end: int, value: str | None) -> Access:
    return Access("r", "k", False, value, start, end)


SOUND = {
    "read after write": [put(0, 1, "a"), get(2, 3, "a")],
    "a concurrent write is seen, or not": [put(0, 9, "a"), get(1, 3, None), get(2, 4, "a"), get(5, 6, "a")],
    "concurrent writes in either order": [put(0, 9, "a"), put(0, 9, "b"), get(10, 11, "a")],
    "an unknown write appears late": [
        put(0, 1, "a", UNKNOWN),
        put(2, 3, "b"),
        get(4, 5, "b"),
        get(6, 7, "a"),
    ],
    "an unknown write never appears": [put(0, 1, "a", UNKNOWN), get(2, 3, None)],
    "a refused write": [put(0, 1, "a", FAILED), get(2, 3, None)],
    "registers are apart": [put(0, 1, "a"), Access("r", "l", False, None, 2, 3)],
}
BROKEN = {
    "a lost write": [put(0, 1, "a"), get(2, 3, None)],
    "a lost overwrite": [put(0, 1, "a"), put(2, 3, "b"), get(4, 5, "a")],
    "a read that goes back": [put(0, 9, "a"), get(1, 2, "a"), get(3, 4, None)],
    "an unknown write that goes again": [put(0, 1, "a", UNKNOWN), get(2, 3, "a"), get(4, 5, None)],
    "readers who differ in the order": [
        *(put(0, 9, "a"), put(0, 9, "b")),
        *(get(10, 11, "a"), get(12, 13, "b")),
    ],
    "a value from the future": [get(0, 1, "a"), put(2, 3, "a")],
    "a value of nobody": [get(0, 1, "a")],
    "a refused write that is seen": [put(0, 1, "a", FAILED), get(2, 3, "a")],
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_histories_pass(name: str) -> None:
    assert check_atomic(SOUND[name]) == sum(not access.writes for access in SOUND[name])


@pytest.mark.parametrize("name", BROKEN)
def test_broken_histories_are_refused(name: str) -> None:
    with pytest.raises(Violation):
        check_atomic(BROKEN[name])


def explained(accesses: list[Access]) -> bool:
    """Whether some order of some effects explains all reads and keeps to real time: tries them all."""
    certain = [access for access in accesses if access.outcome is OK]
    doubtful = [access for access in accesses if access.outcome is UNKNOWN]
    return any(
        _in_order(order)
        for count in range(len(doubtful) + 1)
        for chosen in itertools.combinations(doubtful, count)
        for order in itertools.permutations((*certain, *chosen))
    )


def _in_order(order: tuple[Access, ...]) -> bool:
    value: str | None = None
    for at, access in enumerate(order):
        if any(later.outcome is OK and later.end_ns < access.start_ns for later in order[at + 1 :]):
            return False
        if access.writes:
            value = access.value
        elif access.value != value:
            return False
    return True


_TIMES = st.tuples(st.integers(0, 12), st.integers(0, 5))


@st.composite
def _histories(draw: st.DrawFn) -> list[Access]:
    made: list[Access] = []
    values = ["a", "b", "c"][: draw(st.integers(1, 3))]
    for value in values:
        start, length = draw(_TIMES)
        made.append(put(start, start + length, value, draw(st.sampled_from((OK, OK, UNKNOWN, FAILED)))))
    for _ in range(draw(st.integers(0, 4))):
        start, length = draw(_TIMES)
        made.append(get(start, start + length, draw(st.sampled_from((None, *values)))))
    return made


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(_histories())
def test_it_is_exact(accesses: list[Access]) -> None:
    try:
        check_atomic(accesses)
    except Violation:
        passed = False
    else:
        passed = True
    assert passed == explained(accesses)


def test_what_was_written_once_is_kept() -> None:
    assert check_kept({1, 2}, {3}, {4, 5}, {1, 2, 4}) == 1
    for found, why in (
        ({1}, "lost: 2"),
        ({1, 2, 3}, "refused rows were written: 3"),
        ({1, 2, 6}, "nobody wrote 6"),
    ):
        with pytest.raises(Violation, match=why):
            check_kept({1, 2}, {3}, {4, 5}, found)
