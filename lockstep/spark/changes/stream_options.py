"""The options of a stream of changes, beside those of the format.

Invariant: what no option means, or means nothing for a stream, is an error that says what is valid.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from lockstep.spark.changes.windows import Position, position_of
from lockstep.spark.options import Options, parse_options
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency

LATEST: Final = "latest"
EARLIEST: Final = "earliest"
FAIL: Final = "fail"
SKIP: Final = "skip"
#: A row each change: what a reader of changes gives.
ROWS: Final = "rows"
#: How far a stream follows: to what is written no more, or to what every replica holds, too.
WRITTEN: Final = "written"
RECONCILED: Final = "reconciled"
_ROWS_MAX: Final = 1 << 40
_SAFETY_MS_MAX: Final = 3_600_000
#: What a read at them has holds every change that a quorum acknowledged. One at any level does, of what every
#: replica holds.
_LEVELS: Final = (Consistency.LOCAL_QUORUM, Consistency.QUORUM, Consistency.ALL)
#: Of the format, and of no meaning where changes are read.
_OF_TABLES: Final = (
    "concurrentWrites", "filterPushdown", "ignoreNulls", "limit", "loadId", "splitsPerRange", "ttlColumn",
    "ttlSeconds", "writeMode", "writeTimeColumn", "writeTimeMicros",
)  # fmt: skip


class StreamOptions(msgspec.Struct, frozen=True):
    """`starting`: LATEST, EARLIEST, a write time in microseconds, or a position. Limits of 0 are none."""

    starting: str | int | Position = LATEST
    rows_max: int = 0
    bytes_max: int = 0
    safety_ms: int = 10_000
    on_gap: str = FAIL
    follow: str = WRITTEN

    @property
    def safety_us(self) -> int:
        return self.safety_ms * 1000


def _changes(name: str, text: str) -> str:
    if text.lower() != ROWS:
        raise ConfigurationError(f"the option {name} is {text!r}, but takes {ROWS}")
    return text.lower()


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
            raise ConfigurationError(f"the option {name} is {text!r}, not a number from {low} to {high}")
        return int(text)

    return read


def _gap(name: str, text: str) -> str:
    if text.lower() not in (FAIL, SKIP):
        raise ConfigurationError(f"the option {name} is {text!r}, but takes {FAIL} or {SKIP}")
    return text.lower()


def _follow(name: str, text: str) -> str:
    if text.lower() not in (WRITTEN, RECONCILED):
        raise ConfigurationError(f"the option {name} is {text!r}, but takes {WRITTEN} or {RECONCILED}")
    return text.lower()


def _offsets(name: str, text: str) -> str | Position:
    if text.lower() in (LATEST, EARLIEST):
        return text.lower()
    try:
        told: Any = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise ConfigurationError(
            f"the option {name} is {text!r}, but takes {LATEST}, {EARLIEST} or an offset of a checkpoint"
        )
    return position_of(told)


def time_us(name: str, text: str) -> int:
    """A time in microseconds: milliseconds since 1970, or ISO 8601 (UTC without a zone)."""
    if text.isascii() and text.isdigit():
        return int(text) * 1000
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"the option {name} is {text!r}, but takes milliseconds since 1970 or a time as "
            "2026-01-31T12:30:00"
        ) from None
    since = found.replace(tzinfo=found.tzinfo or datetime.UTC) - _EPOCH
    return since // _MICROSECOND


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)

#: Option as users write it -> (field, how its text is read). `changes` has no field: with it a table is a
#: stream of its changes.
_KNOWN: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "changes": ("", _changes),
    "startingOffsets": ("starting", _offsets),
    "startingTimestamp": ("starting", time_us),
    "maxRowsPerTrigger": ("rows_max", _number(1, _ROWS_MAX)),
    "maxBytesPerTrigger": ("bytes_max", _number(1, _ROWS_MAX)),
    "safetyIntervalMs": ("safety_ms", _number(0, _SAFETY_MS_MAX)),
    "onGap": ("on_gap", _gap),
    "follow": ("follow", _follow),
}
_BY_LOWER: Final = {name.lower(): name for name in _KNOWN}


def of_changes(given: Mapping[str, str]) -> bool:
    """Whether the options ask for changes."""
    return any(name.lower() == "changes" for name in given)


def without_those_of_streams(given: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The options that concern a table as well."""
    return tuple((name, text) for name, text in given if name.lower() not in _BY_LOWER)


def parse_stream_options(given: Mapping[str, str]) -> tuple[Options, StreamOptions]:
    """The checked options of the format and of the stream. Raises ConfigurationError."""
    values: dict[str, object] = {}
    others: dict[str, str] = {}
    for key, text in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            others[key] = text
            continue
        field, read = _KNOWN[name]
        value = read(name, text.strip())
        if field and field in values:
            raise ConfigurationError("startingOffsets and startingTimestamp exclude each other")
        if field:
            values[field] = value
    for key in others:
        if key.lower() in _UNUSED:
            raise ConfigurationError(
                f"the option {_UNUSED[key.lower()]} means nothing for a stream of changes",
                hint=f"its own options: {', '.join(_KNOWN)}",
            )
    options = parse_options(others)
    wanted = StreamOptions(**values)  # type: ignore[arg-type]
    if options.consistency not in _LEVELS and wanted.follow != RECONCILED:
        raise ConfigurationError(
            f"changes read at {options.consistency.name} may lack some that were acknowledged",
            hint=f"consistencyLevel takes one of {', '.join(level.name for level in _LEVELS)}; of a tracked "
            f"table any level does with the option follow = {RECONCILED}",
        )
    return options, wanted


_UNUSED: Final = {name.lower(): name for name in _OF_TABLES}
