"""Owns what the demo and its load process say to each other, and the numbers they share.

Invariant: all times are seconds of the machine's monotonic clock, which both processes read.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from lockstep.local.demo_input import Row, Table

KEYSPACE: Final = "demo"
TRAFFIC_TABLE: Final = "traffic"
#: Partitions of the traffic table; every write goes to the next one.
TRAFFIC_SLOTS: Final = 256
#: A table in tablets, in a keyspace of its own: every other write of the traffic goes there, with more bytes.
HOT_KEYSPACE: Final = "demo_hot"
HOT_TABLE: Final = "orders"
HOT_EVERY: Final = 2
#: With how many tablets it begins, and how many it has at most.
HOT_TABLETS: Final = 4
HOT_TABLETS_MAX: Final = 16
#: Bytes of a row, and of a tablet for each operation a second that is asked for: so the table has as many
#: tablets as it may some thirteen seconds after the traffic began, at any rate.
HOT_VALUE_BYTES: Final = 2000
HOT_TARGET_BYTES_PER_OP: Final = 400

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
    #: Of these, writes of the table in tablets.
    hot_attempted: int = 0
    hot_acknowledged: int = 0
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


def is_hot(seq: int) -> bool:
    """Whether traffic row `seq` is one of the table in tablets."""
    return not seq % HOT_EVERY


def key_of(seq: int) -> Row:
    return (seq,) if is_hot(seq) else (seq % TRAFFIC_SLOTS, seq)


def value_of(seq: int) -> str:
    """What traffic row `seq` holds."""
    number = seq.to_bytes(8, "big")
    if is_hot(seq):
        return hashlib.shake_128(number).hexdigest(HOT_VALUE_BYTES // 2)
    return hashlib.blake2b(number, digest_size=48).hexdigest()
