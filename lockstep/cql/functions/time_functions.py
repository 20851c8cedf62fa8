"""Points in time moved by durations and rounded down to them.

Invariant: months are counted in the calendar of UTC, and a day that its month lacks is the month's last.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.signatures import Family, Function, Known, unfit
from lockstep.schema.types import CqlType, parse_type
from lockstep.schema.types.scalars import date_of, days_in_month, days_of
from lockstep.values.errors import InvalidRequest

DAY_MS = 86_400_000
_DAY_NS = DAY_MS * 1_000_000
_MS_NS = 1_000_000


def timestamp_plus(ms: int, months: int, days: int, ns: int) -> int:
    """Milliseconds from 1970 of a point in time and a duration."""
    day, rest = divmod(ms, DAY_MS)
    moved = (_months_later(day, months) + days) * DAY_MS + rest
    # Parts of a millisecond are cut towards zero, on either side.
    return moved + (abs(ns) // _MS_NS) * (1 if ns >= 0 else -1)


def date_plus(day: int, months: int, days: int, ns: int) -> int:
    """Days from 1970 of a date and a duration of whole days."""
    if ns % _DAY_NS:
        raise InvalidRequest("The duration must have a day precision. Was: a duration with parts of a day")
    return _months_later(day, months) + days + ns // _DAY_NS


def _months_later(day: int, months: int) -> int:
    if not months:
        return day
    year, month, of_month = date_of(day)
    turned = year * 12 + month - 1 + months
    year, month = turned // 12, turned % 12 + 1
    return days_of(year, month, min(of_month, days_in_month(year, month)))


def floor_ms(ms: int, months: int, days: int, ns: int, start_ms: int) -> int:
    """The last multiple of a duration behind `start_ms` that is not behind `ms`."""
    if min(months, days, ns) < 0:
        raise InvalidRequest("Negative durations are not supported by the floor function")
    if ns % _MS_NS:
        raise InvalidRequest("The floor cannot be computed for durations with parts of a millisecond")
    if ms < start_ms:
        raise InvalidRequest("The floor function starting time is greater than the provided time")
    if not (months or days or ns):
        raise InvalidRequest("The floor function needs a duration that is not zero")
    step_ms = days * DAY_MS + ns // _MS_NS
    if not months:
        return start_ms + (ms - start_ms) // step_ms * step_ms
    span = date_of(ms // DAY_MS), date_of(start_ms // DAY_MS)
    between = (span[0][0] - span[1][0]) * 12 + span[0][1] - span[1][1]

    def multiple(count: int) -> int:
        return timestamp_plus(start_ms, months * count, days * count, ns * count)

    # Months are at least 28 days and what else the duration has is added: no multiple lies higher.
    low, high = 0, between // months + 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if multiple(middle) <= ms else (low, middle - 1)
    return multiple(low)


def _floor(name: str, known: Sequence[Known], wanted: Known) -> Function:
    duration, kind = parse_type("duration"), known[0] or parse_type("timestamp")
    if kind.name == "time":
        if len(known) == 3:
            raise unfit(name, kind, "a timestamp or date")
        return Function(name, (kind, duration), kind, _floor_of_time)
    returns = parse_type("timestamp") if kind.name == "timeuuid" else kind
    if kind.name == "text":
        # A literal, which is a timestamp to this function.
        kind = returns = parse_type("timestamp")
    if returns.name not in ("timestamp", "date"):
        raise unfit(name, kind, "a timestamp, date, time or timeuuid")
    start = kind if len(known) < 3 or known[2] is None or known[2].name == "text" else known[2]
    if len(known) == 3 and (start.name == "date") != (kind.name == "date"):
        raise unfit(name, start, f"a {returns.name}")
    arguments = (kind, duration, start)[: len(known)]

    def run(given: Sequence[bytes], context: Context) -> bytes | None:
        span = _span(given[1])
        at = _ms(kind, given[0])
        begin = _ms(start, given[2]) if len(given) == 3 else 0
        if at is None or begin is None:
            return None
        if returns.name == "date":
            if span[2]:
                raise InvalidRequest("The duration must have a day precision.")
            return returns.serialize(floor_ms(at, *span, begin) // DAY_MS)
        return returns.serialize(floor_ms(at, *span, begin))

    return Function(name, arguments, returns, run)


def _span(data: bytes) -> tuple[int, int, int]:
    """Months, days and nanoseconds of a duration."""
    found = parse_type("duration").deserialize(data)
    assert isinstance(found, tuple)
    months, days, ns = found
    return months, days, ns


def _ms(kind: CqlType, data: bytes) -> int | None:
    if kind.name == "timeuuid":
        return timeuuid_ms(data) if data else None
    value = kind.deserialize(data)
    assert value is None or isinstance(value, int)
    return value * DAY_MS if kind.name == "date" and value is not None else value


def _floor_of_time(given: Sequence[bytes], context: Context) -> bytes:
    months, days, ns = _span(given[1])
    if months or days:
        raise InvalidRequest(
            "For time values, the floor can only be computed for durations smaller than a day"
        )
    if ns <= 0:
        raise InvalidRequest("Negative durations are not supported by the floor function")
    at = int.from_bytes(given[0], "big")
    return int(at // ns * ns).to_bytes(8, "big")


#: 100 ns intervals from 1582-10-15, where version 1 uuids begin, to 1970-01-01.
UUID_EPOCH_TICKS = 0x01B21DD213814000


def timeuuid_ms(data: bytes) -> int:
    """Milliseconds from 1970 of a version 1 uuid."""
    low, middle = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:6], "big")
    high = int.from_bytes(data[6:8], "big") & 0x0FFF
    return ((high << 48 | middle << 32 | low) - UUID_EPOCH_TICKS) // 10_000


FAMILIES = (
    Family(
        "floor",
        2,
        3,
        _floor,
        "(timestamp, date, timeuuid or time; duration; optionally where to begin) → timestamp, date or time",
    ),
)
