"""Text forms of times, addresses and identifiers, as CQL string literals spell them.

Invariant: nothing here reads a clock or a time zone; a timestamp without a zone is UTC. Every parser
raises InvalidRequest for text it does not understand.
"""

from __future__ import annotations

import ipaddress
import re

from lockstep.schema.types.scalars import TIME_NS_MAX, days_in_month, days_of
from lockstep.values.errors import InvalidRequest

_INTEGER = re.compile(r"[+-]?\d{1,19}")
_TIMESTAMP = re.compile(
    r"(-?\d{4,9})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?"
    r"(?: ?(Z|z|UTC|GMT|[+-]\d{2}(?::?\d{2})?))?"
)
_DATE = re.compile(r"(-?\d{4,9})-(\d{1,2})-(\d{1,2})")
_TIME = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,9}))?")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_MS_MIN, _MS_MAX = -(1 << 63), (1 << 63) - 1


def _checked_days(year: str, month: str, day: str) -> int | None:
    y, m, d = int(year), int(month), int(day)
    return days_of(y, m, d) if 1 <= m <= 12 and 1 <= d <= days_in_month(y, m) else None


def _zone_minutes(zone: str | None) -> int | None:
    """Minutes east of UTC; None when the offset is not possible."""
    if zone is None or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        return None
    return (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)


def parse_timestamp(text: str) -> int:
    """Milliseconds from 1970 UTC, from an integer or an ISO-like date with optional time and zone."""
    if _INTEGER.fullmatch(text):
        number = int(text)
        if not _MS_MIN <= number <= _MS_MAX:
            raise InvalidRequest(f"Unable to make long (for date) from: '{text}'")
        return number
    match = _TIMESTAMP.fullmatch(text.strip())
    refusal = InvalidRequest(f"Unable to parse a date/time from '{text}'")
    if match is None:
        raise refusal
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    days, offset = _checked_days(year, month, day), _zone_minutes(zone)
    h, m, s = int(hour or 0), int(minute or 0), int(second or 0)
    if days is None or offset is None or h > 23 or m > 59 or s > 59:
        raise refusal
    ms = int((fraction or "").ljust(3, "0")[:3])
    number = (((days * 24 + h) * 60 + m - offset) * 60 + s) * 1000 + ms
    if not _MS_MIN <= number <= _MS_MAX:
        raise refusal
    return number


def parse_date(text: str) -> int:
    """Days from 1970-01-01, from `yyyy-mm-dd` or the raw unsigned number (day 0 = 2^31)."""
    if _INTEGER.fullmatch(text):
        number = int(text)
        if not 0 <= number < 1 << 32:
            raise InvalidRequest(f"Input out of bounds for unsigned int: {text}")
        return number - (1 << 31)
    match = _DATE.fullmatch(text)
    days = _checked_days(*match.groups()) if match is not None else None
    if days is None or not -(1 << 31) <= days < 1 << 31:
        raise InvalidRequest(f"Unable to coerce '{text}' to a formatted date (long)")
    return days


def parse_time(text: str) -> int:
    """Nanoseconds of the day, from `hh:mm:ss[.fffffffff]` or an integer."""
    if _INTEGER.fullmatch(text):
        number = int(text)
        if not 0 <= number <= TIME_NS_MAX:
            raise InvalidRequest(f"Input long out of bounds: {text}")
        return number
    match = _TIME.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"Unable to coerce '{text}' to a formatted time (long)")
    hour, minute, second, fraction = match.groups()
    h, m, s = int(hour), int(minute), int(second)
    if h > 23 or m > 59 or s > 59:
        raise InvalidRequest(f"Unable to coerce '{text}' to a formatted time (long)")
    return ((h * 60 + m) * 60 + s) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def parse_inet(text: str) -> str:
    """The canonical text of an IPv4 or IPv6 address; an IPv4 address written as IPv6 becomes IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidRequest(f"Unable to make inet address from '{text}'") from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address if mapped is None else mapped)


def parse_uuid(text: str) -> bytes:
    """16 bytes of the 36-character form."""
    if not _UUID.fullmatch(text):
        raise InvalidRequest(f"Unable to make UUID from '{text}'")
    return bytes.fromhex(text.replace("-", ""))


_SECOND_NS = 1_000_000_000
#: unit -> (rank, months, days, nanoseconds); a text must name units in rising rank, each once.
_UNITS = {
    "y": (0, 12, 0, 0),
    "mo": (1, 1, 0, 0),
    "w": (2, 0, 7, 0),
    "d": (3, 0, 1, 0),
    "h": (4, 0, 0, 3600 * _SECOND_NS),
    "m": (5, 0, 0, 60 * _SECOND_NS),
    "s": (6, 0, 0, _SECOND_NS),
    "ms": (7, 0, 0, 1_000_000),
    "us": (8, 0, 0, 1000),
    "µs": (8, 0, 0, 1000),
    "μs": (8, 0, 0, 1000),
    "ns": (9, 0, 0, 1),
}
_UNIT_NAMES = (
    *("years", "months", "weeks", "days", "hours", "minutes", "seconds"),
    *("milliseconds", "microseconds", "nanoseconds"),
)
_UNIT = re.compile(r"(\d{1,19})(y|mo|ms|us|µs|μs|ns|w|d|h|m|s)", re.IGNORECASE)
_ISO_UNITS = re.compile(
    r"P(?:(\d{1,19})Y)?(?:(\d{1,19})M)?(?:(\d{1,19})D)?"
    r"(?:T(?:(\d{1,19})H)?(?:(\d{1,19})M)?(?:(\d{1,19})S)?)?"
)
_ISO_WEEKS = re.compile(r"P(\d{1,19})W")
_ISO_CLOCK = re.compile(r"P(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})")


def parse_duration(text: str) -> tuple[int, int, int]:
    """(months, days, nanoseconds) from `1y2mo…ns`, ISO 8601 `P…` or `Pyyyy-mm-ddThh:mm:ss`."""
    negative = text.startswith("-")
    body = text[1:] if negative else text
    parts = _iso_duration(body) if body.startswith("P") else _unit_duration(body)
    if parts is None:
        raise InvalidRequest(f"Unable to convert '{text}' to a duration")
    months, days, ns = parts
    # The negative range is one wider, as in the integers that hold it.
    for what, total, bits in (("months", months, 31), ("days", days, 31), ("nanoseconds", ns, 63)):
        if total >= (1 << bits) + negative:
            raise InvalidRequest(
                f"Invalid duration. The total number of {what} must be less or equal to {(1 << 31) - 1}"
            )
    return (-months, -days, -ns) if negative else (months, days, ns)


def _unit_duration(body: str) -> tuple[int, int, int] | None:
    at, last_rank = 0, -1
    months = days = ns = 0
    while at < len(body):
        match = _UNIT.match(body, at)
        if match is None:
            return None
        count = int(match.group(1))
        rank, unit_months, unit_days, unit_ns = _UNITS[match.group(2).lower()]
        if rank == last_rank:
            raise InvalidRequest(f"Invalid duration. The {_UNIT_NAMES[rank]} are specified multiple times")
        if rank < last_rank:
            raise InvalidRequest(
                f"Invalid duration. The {_UNIT_NAMES[last_rank]} should be after {_UNIT_NAMES[rank]}"
            )
        last_rank, at = rank, match.end()
        months += count * unit_months
        days += count * unit_days
        ns += count * unit_ns
    return (months, days, ns) if last_rank >= 0 else None


def _iso_duration(body: str) -> tuple[int, int, int] | None:
    weeks = _ISO_WEEKS.fullmatch(body)
    if weeks is not None:
        return 0, int(weeks.group(1)) * 7, 0
    match = _ISO_CLOCK.fullmatch(body) or _ISO_UNITS.fullmatch(body)
    if match is None or body in ("P", "PT") or body.endswith("T"):
        return None
    years, months, days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return years * 12 + months, days, ((hours * 60 + minutes) * 60 + seconds) * _SECOND_NS
