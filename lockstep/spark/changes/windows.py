"""Windows of a log of changes: pure decisions about what may be read next.

Invariant: a position is a write time below which everything was read, of all streams. A window begins at the
position, ends at most where nothing is written any more, and lies within one generation of streams; so all
of an older generation comes before the next one, and changes of a key in the order of their windows. A write
time is never divided. Where what was to be read may have expired, that is said, never passed over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import CDC_LEEWAY_MS
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: How much earlier than by its time to live a row may be gone for some reader: it lives from its
#: coordinator's time on, which may be behind its write time, until that of the reader's coordinator; and by
#: whole seconds.
EXPIRY_MARGIN_US: Final = 2 * CDC_LEEWAY_MS * 1000 + 1_000_000
#: Of positions as they are kept; a newer one is refused by name.
VERSION: Final = 1
#: How long a position stays where it is while nothing is written. Each move costs a batch without rows.
IDLE_US: Final = 60_000_000
_SECOND_US: Final = 1_000_000


class Position(msgspec.Struct, frozen=True):
    """Everything written before `until_us` to the log with this id was read. Rows from there on live at least
    `kept_s` seconds (0: for ever), as far as the reader knew."""

    log: str
    until_us: int
    kept_s: int

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, "log": self.log, "until_us": self.until_us, "kept_s": self.kept_s}


class Stretch(msgspec.Struct, frozen=True):
    """A generation of streams: they take what is written at `begins_us` and later, until the next begins."""

    begins_us: int


class Log(msgspec.Struct, frozen=True):
    """What nodes say of a log: its stretches in order, its rows' time to live (0: none), and the time. Their
    clocks differ: `now_us` is that of the slowest, `ahead_us` by how much the fastest one is ahead of it."""

    id: str
    stretches: tuple[Stretch, ...]
    ttl_s: int
    now_us: int
    ahead_us: int = 0


class Reconciled(msgspec.Struct, frozen=True):
    """What a node says of a range of a tracked table: all that any replica held at that moment, by the node's
    clock, all hold; None: it knows of no such moment."""

    first_token: int
    last_token: int
    until_us: int | None


class Found(msgspec.Struct, frozen=True):
    """Write times of one stream's rows in a window, ascending; `more`: there are others behind the last."""

    times_us: tuple[int, ...]
    more: bool = False


def position_of(given: Mapping[str, Any]) -> Position:
    """A position that was kept. ConfigurationError for what is none."""
    version = given.get("version")
    if version != VERSION:
        raise ConfigurationError(
            f"an offset of version {version!r} is not known here, only {VERSION}",
            hint="use the release that wrote it, or begin anew with another checkpoint",
        )
    try:
        found = msgspec.convert({name: given.get(name) for name in Position.__struct_fields__}, Position)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"an offset cannot be understood: {error}") from None
    if found.until_us < 0 or found.kept_s < 0:
        raise ConfigurationError("an offset has a negative time")
    return found


def gap(position: Position, log: Log) -> str:
    """Why changes from the position on may be gone; empty when they are there."""
    if position.log != log.id:
        return "the table, or its log, was dropped and made anew"
    oldest_us = _oldest_us(log)
    if position.until_us < oldest_us:
        return f"the oldest streams that are known begin {_seconds(oldest_us - position.until_us)} later"
    kept_s = kept(position.kept_s, log.ttl_s)
    over_us = 0 if not kept_s else log.now_us - lost_after_us(position.until_us, kept_s)
    if over_us >= 0 and kept_s:
        return f"rows of the log live {kept_s} s, and it is {_seconds(log.now_us - position.until_us)} old"
    return ""


def kept(one_s: int, other_s: int) -> int:
    """The lesser of two times to live, of which 0 is for ever."""
    return min(one_s or other_s, other_s or one_s)


def lost_after_us(begins_us: int, kept_s: int) -> int:
    """The moment from which on rows of a window that begins then may be gone."""
    return begins_us + kept_s * _SECOND_US - EXPIRY_MARGIN_US


def earliest_us(log: Log) -> int:
    """The oldest write time from which on everything is there, and stays long enough to be read.

    The first streams may begin after `now_us`: that is the slowest clock's, or the first answer's."""
    oldest_us = _oldest_us(log)
    if not log.ttl_s:
        return oldest_us
    # A tenth of what rows live is left for reading them.
    return max(oldest_us, min(log.now_us, log.now_us - log.ttl_s * _SECOND_US * 9 // 10 + EXPIRY_MARGIN_US))


def latest_us(log: Log) -> int:
    """The write time from which on nothing is there yet, as far as the slowest clock says."""
    return max(_oldest_us(log), log.now_us)


def _oldest_us(log: Log) -> int:
    return log.stretches[0].begins_us if log.stretches else log.now_us


def stretch_at(stretches: Sequence[Stretch], at_us: int) -> int:
    """Which stretch takes what is written then; -1 when it is before all of them."""
    return bisect_right(stretches, at_us, key=lambda one: one.begins_us) - 1


def window_end(stretches: Sequence[Stretch], start_us: int, closed_us: int) -> int:
    """The end of the longest window from a position on; the position itself when nothing is closed behind it.

    Nothing is written before `closed_us` any more.
    """
    at = stretch_at(stretches, start_us)
    if at + 1 < len(stretches):
        closed_us = min(closed_us, stretches[at + 1].begins_us)
    return max(start_us, closed_us)


def parts(stretches: Sequence[Stretch], start_us: int, end_us: int) -> list[tuple[int, int, int]]:
    """(stretch, from, until) of what lies between two times, in order."""
    found = []
    for at, one in enumerate(stretches):
        next_us = stretches[at + 1].begins_us if at + 1 < len(stretches) else end_us
        low, high = max(start_us, one.begins_us), min(end_us, next_us)
        if low < high:
            found.append((at, low, high))
    return found


def reconciled_us(told: Iterable[Reconciled]) -> int | None:
    """The moment of which all ranges of the ring say so; None where one says nothing, or nodes have heard of
    different ranges."""
    newest: dict[tuple[int, int], int] = {}
    for one in told:
        if one.until_us is not None:
            place = one.first_token, one.last_token
            newest[place] = max(one.until_us, newest.get(place, one.until_us))
    reached = TOKEN_MIN
    for first, last in sorted(newest):
        if first != reached + 1:
            return None
        reached = last
    return min(newest.values()) if reached == TOKEN_MAX else None


def limited_end(found: Sequence[Found], end_us: int, rows_max: int) -> int:
    """Where a window ends that has at most so many rows, unless its first write time alone has more."""
    assert rows_max > 0, "a window without rows is none"
    # Of a stream that has more only what is before its last time is known whole.
    known_us = min((one.times_us[-1] for one in found if one.more), default=end_us)
    times = sorted(at_us for one in found for at_us in one.times_us if at_us < known_us)
    if not times:
        return min(known_us + 1, end_us)
    if len(times) <= rows_max:
        return known_us
    cut_us = times[rows_max]
    # The time at which there would be too many is left out whole, unless nothing is before it.
    return cut_us if bisect_left(times, cut_us) else cut_us + 1


def is_due(start_us: int, end_us: int, ttl_s: int) -> bool:
    """Whether a window without rows is passed by all the same, so that the position does not grow old."""
    wait_us = min(IDLE_US, ttl_s * _SECOND_US // 4) if ttl_s else IDLE_US
    return end_us - start_us >= wait_us


def _seconds(us: int) -> str:
    return f"{us / _SECOND_US:.1f} s"
