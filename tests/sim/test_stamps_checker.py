"""The checker of server timestamps rejects writes that win without the greatest, and rows of two writes."""

from __future__ import annotations

import pytest

from lockstep.sim.checkers.stamps import Stamped, StampedRow, check_stamps
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.values.ids import Consistency

QUORUM, ALL = Consistency.QUORUM, Consistency.ALL
Step = tuple[Event, StampedRow | None]


def put(at: int, end: int, mark: bytes, outcome: Outcome = Outcome.OK, level: Consistency = QUORUM) -> Step:
    change = Change("t", b"k", 0, level, 1000, ((0, mark),))
    return Event(client="s1", request=change, start_ns=at, end_ns=end, outcome=outcome), None


def read(
    at: int, end: int, mark: bytes, stamp: int = 0, has_value: bool = True, level: Consistency = QUORUM
) -> Step:
    look = Look("t", b"k", 0, level, 1000)
    rows = ((b"k", 0, mark),) if mark else ()
    event = Event(client="s2", request=look, start_ns=at, end_ns=end, outcome=Outcome.OK, rows=rows)
    return event, (mark, has_value, stamp) if mark else None


def judge(
    steps: list[Step], stamps: dict[bytes, int], deleting: tuple[bytes, ...] = (), last: int = 0
) -> int:
    history = Stamped(
        events=[event for event, _ in steps],
        stamps=stamps,
        deleting=dict.fromkeys(deleting),
        seen={at: row for at, (_, row) in enumerate(steps) if row is not None},
        last=len(steps) - last,
    )
    return check_stamps(history, 1)


STAMPS = {b"a": 100, b"b": 50}
SOUND: dict[str, tuple[list[Step], tuple[bytes, ...], int]] = {
    "the later write has the smaller timestamp and loses": (
        [put(0, 1, b"a"), put(2, 3, b"b"), read(4, 5, b"a", 100)],
        (),
        1,
    ),
    "a write that nobody was told of may win": (
        [put(0, 1, b"b"), put(2, 3, b"a", Outcome.UNKNOWN), read(4, 5, b"b", 50), read(6, 7, b"a", 100)],
        (),
        1,
    ),
    "a deletion keeps its mark": ([put(0, 1, b"a"), read(2, 3, b"a", 100, has_value=False)], (b"a",), 1),
    "a hint arrives between the last looks": (
        [
            put(0, 1, b"b"),
            put(2, 3, b"a", Outcome.UNKNOWN),
            read(4, 5, b"b", 50, level=ALL),
            read(6, 7, b"a", 100, level=ALL),
        ],
        (),
        2,
    ),
    "an unplanned write is nowhere": ([put(0, 1, b"z", Outcome.UNKNOWN), read(2, 3, b"")], (), 1),
}
BROKEN: dict[str, tuple[str, list[Step], tuple[bytes, ...], int]] = {
    "the last to arrive wins": (
        "REP-1: .*timestamp 100",
        [put(0, 1, b"a"), put(2, 3, b"b"), read(4, 5, b"b", 50)],
        (),
        0,
    ),
    "a read goes back": (
        "REP-1: .*timestamp 100",
        [put(0, 1, b"b"), put(2, 9, b"a"), read(3, 4, b"a", 100), read(5, 6, b"b", 50)],
        (),
        0,
    ),
    "another timestamp is told": ("REP-2a: .*was given 100", [put(0, 1, b"a"), read(2, 3, b"a", 101)], (), 0),
    "the value is of another write": (
        "REP-2a: .*with its value",
        [put(0, 1, b"a"), read(2, 3, b"a", 100)],
        (b"a",),
        0,
    ),
    "the value is gone": ("REP-2a: .*without", [put(0, 1, b"a"), read(2, 3, b"a", 100, False)], (), 0),
    "an invention": ("never written", [read(2, 3, b"z", 7)], (), 0),
    "an acknowledgement of nothing": ("no coordinator planned", [put(0, 1, b"z")], (), 0),
    "a write of the future": ("never written there", [read(0, 1, b"a", 100), put(2, 3, b"a")], (), 0),
    "the end goes back": (
        "REP-2a: .*ended as b'b'",
        [
            put(0, 1, b"b"),
            put(2, 3, b"a", Outcome.UNKNOWN),
            read(4, 5, b"a", 100, level=Consistency.ONE),
            read(6, 7, b"b", 50, level=Consistency.ONE),
        ],
        (),
        2,
    ),
    "the end lacks what another data centre acknowledged": (
        "REP-2a: .*ended as b'b', not b'a'",
        [
            put(0, 1, b"b"),
            put(2, 3, b"a", level=Consistency.ONE),
            read(4, 5, b"b", 50, level=Consistency.TWO),
        ],
        (),
        1,
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_histories_pass(name: str) -> None:
    steps, deleting, last = SOUND[name]
    # A read among writes of which none was planned tells nothing.
    assert judge(steps, STAMPS, deleting, last) == sum(row is not None for _, row in steps)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_histories_are_refused(name: str) -> None:
    message, steps, deleting, last = BROKEN[name]
    with pytest.raises(Violation, match=message):
        judge(steps, STAMPS, deleting, last)
