"""The options of the data source, checked.

Invariant: an option that is not known, or whose value is wrong, is an error that names what is valid;
nothing is ignored. Spark hands options over with lower-cased names; users write them in camelCase.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from lockstep.scans.arrow_columns import DECIMAL_DIGITS, DECIMAL_SCALE_DEFAULT
from lockstep.spark.cql_client import Endpoint, Login
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency
from lockstep.values.limits import (
    PAGE_ROWS_DEFAULT,
    PAGE_ROWS_MAX,
    SPARK_REQUESTS_IN_FLIGHT_MAX,
    TTL_S_MAX,
)
from lockstep.values.node_limits import LOAD_LEASE_MS, LOAD_LEASE_MS_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

Value = TypeVar("Value")

AUTO: Final = "auto"
STATEMENTS: Final = "statements"
BULK: Final = "bulk"

_PORT_MAX: Final = 65_535
_SPLITS_MAX: Final = 10_000
_BATCH_ROWS_MAX: Final = 1_000_000
_TIMEOUT_MS_MAX: Final = 600_000
_WRITE_TIME_MAX: Final = (1 << 63) - 1
_LIMIT_MAX: Final = 1 << 40
_RANGE: Final = re.compile(r"(-?[0-9]+):(-?[0-9]+)")


class Options(msgspec.Struct, frozen=True):
    """What a reader or writer was asked for.

    `splits_per_range` 0 lets the reader group the ring's ranges; `columns` empty means all columns;
    `write_time_us` 0 means the time at which the job was planned, and `limit` 0 all rows; `lease_ms` is of a
    load, or of a fixed content. `snapshot` None: of changes where there are many, of tables not.
    `token_ranges` (left, right], in order, are those that are read; without any, all.
    """

    hosts: tuple[str, ...]
    port: int
    keyspace: str
    table: str
    columns: tuple[str, ...] = ()
    splits_per_range: int = 0
    consistency: Consistency = Consistency.LOCAL_QUORUM
    page_rows: int = PAGE_ROWS_DEFAULT
    batch_rows: int = 16_384
    filter_pushdown: bool = False
    decimal_scale: int = DECIMAL_SCALE_DEFAULT
    timeout_ms: int = 12_000
    concurrent_writes: int = 64
    ignore_nulls: bool = False
    write_time_us: int = 0
    write_mode: str = AUTO
    load_id: str = ""
    ttl_s: int = 0
    ttl_column: str = ""
    write_time_column: str = ""
    lease_ms: int = LOAD_LEASE_MS
    user: str = ""
    password: str = ""
    ca: str = ""
    snapshot: bool | None = None
    limit: int = 0
    token_ranges: tuple[tuple[int, int], ...] = ()

    def __repr__(self) -> str:
        return f"Options({self.keyspace}.{self.table} at {', '.join(self.hosts)})"

    @property
    def endpoints(self) -> list[Endpoint]:
        return [self.endpoint(host) for host in self.hosts]

    def endpoint(self, host: str) -> Endpoint:
        return Endpoint(host, self.port, Login(self.user, self.password, self.ca))

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000


def _text(name: str, text: str) -> str:
    if not text:
        raise ConfigurationError(f"the option {name} is empty")
    return text


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(dict.fromkeys(names)) != len(names):
        raise ConfigurationError(f"the option {name} is {text!r}, but takes distinct names between commas")
    return names


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"the option {name} is {text!r}, but takes true or false")
    return text.lower() == "true"


def _mode(name: str, text: str) -> str:
    if text.lower() not in (AUTO, STATEMENTS, BULK):
        raise ConfigurationError(f"the option {name} is {text!r}, but takes {AUTO}, {STATEMENTS} or {BULK}")
    return text.lower()


def _level(name: str, text: str) -> Consistency:
    allowed = [level.name for level in Consistency if level.name not in ("ANY", "SERIAL", "LOCAL_SERIAL")]
    if text.upper() not in allowed:
        raise ConfigurationError(f"the option {name} is {text!r}, but takes one of {', '.join(allowed)}")
    return Consistency[text.upper()]


def _count(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
            raise ConfigurationError(f"the option {name} is {text!r}, not a number from {low} to {high}")
        return int(text)

    return read


def _ranges(name: str, text: str) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        left, right = (int(match[1]), int(match[2])) if match else (0, 0)
        if not TOKEN_MIN <= left < right <= TOKEN_MAX:
            raise ConfigurationError(
                f"the option {name} has {part.strip()!r}, but takes LEFT:RIGHT between commas: tokens above "
                f"LEFT up to RIGHT, from {TOKEN_MIN} to {TOKEN_MAX}"
            )
        found.append((left, right))
    found.sort()
    for (_, right), (left, _) in itertools.pairwise(found):
        if left < right:
            raise ConfigurationError(f"the option {name} names tokens above {left} twice")
    return tuple(found)


#: Option as users write it -> (field, how its text is read).
_KNOWN: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "hosts": ("hosts", _names),
    "port": ("port", _count(1, _PORT_MAX)),
    "keyspace": ("keyspace", _text),
    "table": ("table", _text),
    "columns": ("columns", _names),
    "splitsPerRange": ("splits_per_range", _count(1, _SPLITS_MAX)),
    "consistencyLevel": ("consistency", _level),
    "pageSize": ("page_rows", _count(1, PAGE_ROWS_MAX)),
    "batchRows": ("batch_rows", _count(1, _BATCH_ROWS_MAX)),
    "filterPushdown": ("filter_pushdown", _flag),
    "decimalScale": ("decimal_scale", _count(0, DECIMAL_DIGITS)),
    "requestTimeoutMs": ("timeout_ms", _count(1, _TIMEOUT_MS_MAX)),
    "concurrentWrites": ("concurrent_writes", _count(1, SPARK_REQUESTS_IN_FLIGHT_MAX)),
    "ignoreNulls": ("ignore_nulls", _flag),
    "user": ("user", _text),
    "password": ("password", _text),
    "tlsCa": ("ca", _text),
    "writeTimeMicros": ("write_time_us", _count(1, _WRITE_TIME_MAX)),
    "writeMode": ("write_mode", _mode),
    "loadId": ("load_id", _text),
    "ttlSeconds": ("ttl_s", _count(1, TTL_S_MAX)),
    "ttlColumn": ("ttl_column", _text),
    "writeTimeColumn": ("write_time_column", _text),
    "leaseMs": ("lease_ms", _count(1, LOAD_LEASE_MS_MAX)),
    "snapshot": ("snapshot", _flag),
    "limit": ("limit", _count(1, _LIMIT_MAX)),
    "tokenRanges": ("token_ranges", _ranges),
}
_BY_LOWER: Final = {name.lower(): name for name in _KNOWN}
_DEFAULTS: Final[dict[str, object]] = {"hosts": ("127.0.0.1",), "port": 9042}


def parse_options(given: Mapping[str, str]) -> Options:
    """The checked options. Raises ConfigurationError."""
    values = dict(_DEFAULTS)
    for key, text in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            raise ConfigurationError(
                f"unknown option {key!r} for the format lockstep; valid options: {', '.join(_KNOWN)}"
            )
        field, read = _KNOWN[name]
        values[field] = read(name, text.strip())
    for name in ("keyspace", "table"):
        if name not in values:
            raise ConfigurationError(
                f"the option {name} is missing", hint='add .option("keyspace", ...).option("table", ...)'
            )
    return msgspec.convert(values, Options)
