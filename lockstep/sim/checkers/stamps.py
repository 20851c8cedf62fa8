"""REP-2a on the servers' timestamps: of several writes the one with the greatest timestamp wins.

A register is one row that is always written whole: a mark that no other write has, and a value or its
deletion. Its coordinator gave the write a timestamp, by a clock that may be off; so a register's state is the
(timestamp, mark) of the write that won. Invariant: a mark that no coordinator stamped was applied nowhere.

STAMP-1: timestamps given by one node rise, over its restarts too, whatever its clock does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.sim.checkers.registers import State, check_registers
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Change, Event, Look, Outcome

#: (mark, whether the value is there, the timestamp that the server tells).
StampedRow = tuple[bytes, bool, int]
#: What a register shows that nobody wrote, less than every write: (timestamp, mark).
_NOTHING = (-1, b"")


class GivenStamps:
    """A monitor of what nodes give. Who loses its disk is another node afterwards."""

    def __init__(self) -> None:
        #: The last one by host id.
        self._last_us: dict[str, int] = {}

    def given(self, name: str, host_id: str, stamp_us: int) -> None:
        last_us = self._last_us.get(host_id, 0)
        if stamp_us <= last_us:
            raise Violation("STAMP-1", f"{name} gave timestamp {stamp_us} after {last_us}")
        self._last_us[host_id] = stamp_us


class Stamped(msgspec.Struct, frozen=True):
    """What happened to registers whose writes the servers stamped.

    `events` are changes that put marks, and looks at one row that return the marks they saw. `stamps` has the
    timestamp (us) of each mark that a coordinator planned; `deleting` are marks whose write deletes the
    value.
    `seen` has for each look, by its position in `events`, what it returned of its row. `last` is the position
    of the first of the looks after everything had settled, which ask all replicas.
    """

    events: Sequence[Event]
    stamps: Mapping[bytes, int]
    deleting: Mapping[bytes, None]
    seen: Mapping[int, StampedRow]
    last: int


def check_stamps(history: Stamped, rows: int) -> int:
    """Raise the first Violation; the number of judged reads otherwise."""
    for at, row in history.seen.items():
        _check_row(history, history.events[at], row)

    def of(event: Event, clustering: int) -> State:
        mark = _mark_of(event)
        return history.stamps[mark], mark

    known = [
        event for event in history.events if isinstance(event.request, Look) or _is_stamped(history, event)
    ]
    judged = check_registers(known, rows, of)
    _check_end(history, known)
    return judged


def _mark_of(event: Event) -> bytes:
    assert isinstance(event.request, Change)
    return event.request.puts[0][1]


def _is_stamped(history: Stamped, event: Event) -> bool:
    mark = _mark_of(event)
    if mark not in history.stamps and event.outcome is Outcome.OK:
        raise Violation("REP-1", f"{event.client}: {mark!r} was acknowledged and no coordinator planned it")
    return mark in history.stamps


def _check_row(history: Stamped, read: Event, row: StampedRow) -> None:
    """The cells of one write stay together, and the timestamp told is the one that was given."""
    mark, has_value, timestamp = row
    if mark not in history.stamps:
        raise Violation("REP-1", f"{read.client} read {mark!r}, which was never written")
    if timestamp != history.stamps[mark]:
        raise Violation(
            "REP-2a",
            f"{read.client} read {mark!r} with timestamp {timestamp}, it was given {history.stamps[mark]}",
        )
    # Of two writes with one timestamp each cell decides for itself.
    alone = sum(stamp == timestamp for stamp in history.stamps.values()) == 1
    if alone and has_value == (mark in history.deleting):
        what = "with" if has_value else "without"
        raise Violation("REP-2a", f"{read.client} read {mark!r} {what} its value, which is of another write")


def _check_end(history: Stamped, known: Sequence[Event]) -> None:
    """Each of the last looks shows the greatest of the writes that were acknowledged or a greater one that
    may have happened, and no look shows less than the one before it. It may show more: a hint of a write
    that nobody was told of can arrive between two looks."""
    floors: dict[tuple[bytes, int | None], tuple[int, bytes]] = {}
    for event in known:
        if isinstance(event.request, Change) and event.outcome is Outcome.OK:
            place, mark = (event.request.key, event.request.puts[0][0]), _mark_of(event)
            floors[place] = max(floors.get(place, _NOTHING), (history.stamps[mark], mark))
    for at, event in enumerate(history.events[history.last :], start=history.last):
        look = event.request
        if not isinstance(look, Look) or event.outcome is not Outcome.OK:
            continue
        assert look.key is not None, "looks are at single rows"
        mark = history.seen[at][0] if at in history.seen else b""
        shown, floor = (history.stamps.get(mark, -1), mark), floors.get((look.key, look.clustering), _NOTHING)
        if shown < floor:
            raise Violation(
                "REP-2a", f"{look.key.decode()}[{look.clustering}] ended as {mark!r}, not {floor[1]!r}"
            )
        floors[look.key, look.clustering] = shown
