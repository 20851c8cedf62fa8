"""The checker of conditional writes: exact against trying all orders, and histories it must refuse."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.sim.checkers.registers import Decided, check_decisions
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome

OK, UNKNOWN, FAILED = Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED


def write(
    start: int,
    end: int,
    expected: bytes | None,
    wrote: bytes,
    applied: bool = True,
    seen: bytes | None = None,
) -> Decided:
    return Decided("w", b"k", start, end, OK, expected, wrote, applied, seen)


def lost(start: int, expected: bytes | None, wrote: bytes, outcome: Outcome = UNKNOWN) -> Decided:
    return Decided("u", b"k", start, start + 1, outcome, expected, wrote)


def read(start: int, end: int, seen: bytes | None) -> Decided:
    return Decided("r", b"k", start, end, OK, seen=seen)


def accepted(events: list[Decided]) -> bool:
    try:
        check_decisions(events)
    except Violation:
        return False
    return True


def explained(events: list[Decided]) -> bool:
    """Whether some order of some effects explains all answers and keeps to real time: tries them all."""
    certain = [event for event in events if event.outcome is OK]
    doubtful = [event for event in events if event.outcome is UNKNOWN]
    for count in range(len(doubtful) + 1):
        for chosen in itertools.combinations(doubtful, count):
            if any(_in_order(order) for order in itertools.permutations((*certain, *chosen))):
                return True
    return False


def _in_order(order: tuple[Decided, ...]) -> bool:
    value: bytes | None = None
    for at, event in enumerate(order):
        if any(later.outcome is OK and later.end_ns < event.start_ns for later in order[at + 1 :]):
            return False
        if event.wrote is None:
            if event.seen != value:
                return False
        elif event.outcome is OK and not event.applied:
            if event.seen != value or value == event.expected:
                return False
        else:
            if event.expected != value:
                return False
            value = event.wrote
    return True


@pytest.mark.parametrize(
    ("events", "fine"),
    [
        ([write(1, 2, None, b"a"), write(3, 4, b"a", b"b"), read(5, 6, b"b")], True),
        ([write(1, 2, None, b"a"), read(3, 4, None)], False),
        ([write(1, 2, None, b"a"), write(1, 2, None, b"b")], False),
        ([lost(1, None, b"a"), read(5, 6, None), read(7, 8, b"a")], True),
        ([lost(1, None, b"a"), read(5, 6, b"a"), read(7, 8, None)], False),
        ([lost(1, None, b"a", FAILED), read(5, 6, b"a")], False),
        ([write(1, 2, None, b"a", applied=False, seen=b"c"), read(5, 6, None)], False),
        ([lost(1, None, b"a"), write(3, 4, b"a", b"b"), write(5, 6, None, b"c", False, b"a")], False),
        ([write(1, 2, None, b"a", applied=False, seen=None)], False),
        ([read(1, 2, b"a"), write(3, 4, None, b"a")], False),
        ([write(1, 9, None, b"a"), read(2, 3, b"a"), read(4, 5, None)], False),
    ],
)
def test_histories(events: list[Decided], fine: bool) -> None:
    assert accepted(events) is fine
    assert explained(events) is fine


@pytest.mark.parametrize(
    ("held", "fine"), [((b"a", b"b"), True), ((b"b",), False), ((b"a", b"b", b"c"), False), ((), False)]
)
def test_a_read_shows_all_values_up_to_the_newest(held: tuple[bytes, ...], fine: bool) -> None:
    events = [write(1, 2, None, b"a"), write(3, 4, b"a", b"b"), write(7, 8, b"b", b"c")]
    look = Decided("r", b"k", 5, 6, OK, seen=b"b", held=frozenset(held))
    assert accepted([*events, look]) is fine


@pytest.mark.parametrize(
    ("appended", "prepended", "fine"),
    [
        ((b"a", b"b"), (b"b", b"a"), True),
        ((b"b", b"a"), (b"b", b"a"), False),
        ((b"a", b"b"), (b"a", b"b"), False),
        ((b"a",), (b"b", b"a"), False),
        ((b"a", b"b"), (b"c", b"b", b"a"), False),
        ((b"a", b"b", b"b"), (b"b", b"a"), False),
    ],
)
def test_lists_show_the_order_of_decisions(
    appended: tuple[bytes, ...], prepended: tuple[bytes, ...], fine: bool
) -> None:
    events = [write(1, 2, None, b"a"), write(3, 4, b"a", b"b"), write(7, 8, b"b", b"c")]
    look = Decided("r", b"k", 5, 6, OK, seen=b"b", appended=appended, prepended=prepended)
    assert accepted([*events, look]) is fine


_VALUES = (None, b"a", b"b", b"c")


@st.composite
def histories(draw: st.DrawFn) -> list[Decided]:
    events = []
    for value in draw(st.lists(st.sampled_from(_VALUES[1:]), unique=True, max_size=3)):
        start = draw(st.integers(0, 12))
        end = start + draw(st.integers(1, 6))
        expected = draw(st.sampled_from([other for other in _VALUES if other != value]))
        outcome = draw(st.sampled_from((OK, OK, OK, UNKNOWN, FAILED)))
        applied = outcome is OK and draw(st.booleans())
        seen = None if applied or outcome is not OK else draw(st.sampled_from(_VALUES))
        events.append(Decided("w", b"k", start, end, outcome, expected, value, applied, seen))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, 12))
        events.append(read(start, start + draw(st.integers(1, 6)), draw(st.sampled_from(_VALUES))))
    return events


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(histories())
def test_it_agrees_with_trying_all_orders(events: list[Decided]) -> None:
    assert accepted(events) is explained(events)
