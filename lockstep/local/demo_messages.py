"""Owns what the demo and its load process say to each other, and the numbers they share.

Invariant: all times are seconds of the machine's monotonic clock, which both processes read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.local.demo_input import Row, Table

KEYSPACE: Final = "demo"
TRAFFIC_TABLE: Final = "traffic"
#: Partitions of the traffic table; every write goes to the next one.
TRAFFIC_SLOTS: Final = 256

WRITE: Final = "write"
READ: Final = "read"

OK: Final = "ok"
ERROR: Final = "error"
WRONG: Final = "wrong"


class Connect(msgspec.Struct, frozen=True):
    """Where the cluster is, and where the samples of the traffic are to be written."""

    contact_points: tuple[str, ...]
    port: int
    replication_factor: int
    table: Table
    samples_path: str


class Load(msgspec.Struct, frozen=True):
    """Insert these rows, all of them."""

    rows: list[Row]


class StartTraffic(msgspec.Struct, frozen=True):
    """Write and read until StopTraffic, each at half of `ops_per_s`."""

    ops_per_s: int


class StopTraffic(msgspec.Struct, frozen=True):
    """Let what is in flight end, then write the samples."""


class ReadBack(msgspec.Struct, frozen=True):
    """Read every acknowledged row, loaded or written by the traffic, and compare it."""


Command = Connect | Load | StartTraffic | StopTraffic | ReadBack


class Counts(msgspec.Struct):
    """Running totals of the load process.

    `client_errors` are what the application saw after the driver's retries; `raw_errors` are what the
    retry policy saw before; `wrong_reads` came back without an acknowledged value or with another one.
    """

    loaded: int = 0
    writes_attempted: int = 0
    writes_acknowledged: int = 0
    reads: int = 0
    wrong_reads: int = 0
    client_errors: int = 0
    raw_errors: int = 0
    read_back: int = 0
    lost: int = 0
    unreadable: int = 0
    #: What went wrong, by kind, with one example each.
    errors: dict[str, int] = {}
    examples: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True):
    """What happened lately: `ops_per_s` and percentiles cover the last `REPORT_WINDOW_S`."""

    at_s: float
    counts: Counts
    ops_per_s: float
    p50_ms: float
    p99_ms: float
    done: int = 0
    total: int = 0


class Finished(msgspec.Struct, frozen=True):
    """The command is done."""

    counts: Counts
    seconds: float
    note: str = ""


class Failed(msgspec.Struct, frozen=True):
    """The load process could not go on."""

    reason: str


#: How often the load process reports.
REPORT_INTERVAL_S: Final = 0.25
#: What current rates and percentiles cover.
REPORT_WINDOW_S: Final = 2.0
