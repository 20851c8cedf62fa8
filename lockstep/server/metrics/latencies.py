"""How long requests of CQL clients took at this node, by operation, consistency level and class of table, and
the levels of serial reads and conditional writes, where a request names its level.

Invariant: a request is counted once, when it is answered, also with an error; the labels are of fixed words,
so there are at most LATENCY_SERIES_MAX histograms, made when they are first needed. A read of a partition at
a serial level reflects all that was decided on it before. A scan at one is, as in Cassandra, a read at the
quorum that it counts: no ballots are looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

import msgspec

from lockstep.coordination.ballot_rounds import COUNTED_AS, Patience
from lockstep.cql.compile.conditional import is_conditional
from lockstep.cql.compile.modification import BatchPlan, ModificationPlan
from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.compile.select import POINT, SelectPlan, SelectPrepared
from lockstep.node.services import NodeServices
from lockstep.server.metrics.metric_table import Sample, histogram
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.ids import Consistency
from lockstep.values.node_limits import LATENCY_SERIES_MAX
from lockstep.values.rows import ReadCommand, ReadResult

SERIAL_LEVELS: Final = (Consistency.SERIAL, Consistency.LOCAL_SERIAL)


def check_one_partition(plan: SelectPlan) -> None:
    """InvalidRequest for a serial read of several."""
    if plan.kind == POINT and len(plan.keys) > 1:
        raise InvalidRequest(
            "SERIAL/LOCAL_SERIAL consistency may only be requested for one partition at a time"
        )


async def read_at(
    node: NodeServices, command: ReadCommand, level: Consistency, timeout_ms: float
) -> ReadResult:
    """A read at any level."""
    if level in SERIAL_LEVELS and command.key is None:
        level = COUNTED_AS[level]
    elif level in SERIAL_LEVELS:
        # Whoever is beaten while reading has nothing at stake: it goes on while it has time.
        return await node.data.conditionals.read(command, level, Patience(timeout_ms, timeout_ms))
    return await node.data.coordinator.read(command, level, timeout_ms)


def serial_write(level: Consistency) -> InvalidRequest:
    """The refusal of a write without conditions at a serial level."""
    return InvalidRequest(
        f"You must use conditional updates for serializable writes: {level.name} is no level of a write"
    )


#: Of partitions, and over ranges of tokens.
READ: Final = "read"
RANGE: Final = "range"
WRITE: Final = "write"
BATCH: Final = "batch"
COUNTER: Final = "counter"
#: Serial reads, and conditional writes.
CAS_READ: Final = "cas_read"
CAS_WRITE: Final = "cas_write"
SCHEMA: Final = "schema"
#: Roles, USE, DESCRIBE, and what could not be read.
OTHER: Final = "other"
OPERATIONS: Final = (READ, RANGE, WRITE, BATCH, COUNTER, CAS_READ, CAS_WRITE, SCHEMA, OTHER)
USER: Final = "user"
SYSTEM: Final = "system"
CLASSES: Final = (USER, SYSTEM)
#: Upper bounds in seconds: from a write of one node to the end of a client's patience.
BOUNDS_S: Final = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
assert len(OPERATIONS) * len(CLASSES) * len(Consistency) <= LATENCY_SERIES_MAX


class Operation(msgspec.Struct, frozen=True):
    """What a statement is counted as. `serial_name`: at a serial level."""

    name: str
    serial_name: str
    table_class: str


_UNKNOWN: Final = Operation(OTHER, OTHER, USER)
#: What this task's request turned out to be; set once its statement is known.
OPERATION: ContextVar[Operation] = ContextVar("operation", default=_UNKNOWN)


def is_system(keyspace: str) -> bool:
    return keyspace == "system" or keyspace.startswith("system_")


def operation_of(prepared: Prepared) -> Operation:
    name = _name_of(prepared)
    serial_name = CAS_READ if name == READ else name
    return Operation(name, serial_name, SYSTEM if is_system(prepared.keyspace) else USER)


def _name_of(prepared: Prepared) -> str:
    plan = prepared.plan
    if isinstance(plan, SelectPrepared):
        return READ if plan.is_point else RANGE
    if isinstance(plan, BatchPlan | ModificationPlan):
        if is_conditional(prepared):
            return CAS_WRITE
        if plan.counts:
            return COUNTER
        return BATCH if isinstance(plan, BatchPlan) else WRITE
    return SCHEMA if prepared.kind in ("DDL", "TRUNCATE") else OTHER


#: What batches of the protocol are counted as; their statements may be of several keyspaces.
BATCHES: Final = Operation(BATCH, BATCH, USER)
COUNTER_BATCHES: Final = Operation(COUNTER, COUNTER, USER)
CONDITIONAL_BATCHES: Final = Operation(CAS_WRITE, CAS_WRITE, USER)


class Latency:
    """`counts` has one more element than BOUNDS_S: what is above all of them."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def note(self, took_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, took_s)] += 1
        self.total_s += took_s


class Latencies:
    """Of one node. `now_s` is its monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._series: dict[tuple[str, int, str], Latency] = {}
        #: (operation, code) -> how many requests ended with that error.
        self._errors: dict[tuple[str, str], int] = {}
        #: Those of prepared writes of one partition, by the number of their level: the hash of a member of an
        #: enumeration costs more than all the rest.
        self._writes: list[Latency | None] = [None] * len(Consistency)

    def of(self, operation: str, consistency: Consistency, table_class: str) -> Latency:
        key = (operation, int(consistency), table_class)
        found = self._series.get(key)
        if found is None:
            assert len(self._series) < LATENCY_SERIES_MAX, "labels are fixed words"
            found = self._series[key] = Latency()
        return found

    def of_write(self, consistency: Consistency) -> Latency:
        found = self._writes[consistency]
        if found is None:
            found = self._writes[consistency] = self.of(WRITE, consistency, USER)
        return found

    def ended(self, consistency: Consistency, began_s: float, error: Exception | None) -> None:
        """The request of this task was answered."""
        operation = OPERATION.get()
        name = operation.serial_name if consistency in SERIAL_LEVELS else operation.name
        self.of(name, consistency, operation.table_class).note(self.now_s() - began_s)
        if error is not None:
            self.failed(name, error)

    def failed(self, operation: str, error: Exception) -> None:
        """A request was answered with an error."""
        key = (operation, error.code if isinstance(error, LockstepError) else "CQL_SERVER")
        self._errors[key] = self._errors.get(key, 0) + 1

    def samples(self) -> Iterator[Sample]:
        for (operation, level, table_class), latency in self._series.items():
            labels = (
                ("operation", operation),
                ("consistency", Consistency(level).name),
                ("table_class", table_class),
            )
            of = (BOUNDS_S, latency.counts, latency.total_s)
            yield from histogram("lockstep_server_request_duration_seconds", of, labels)
        for (operation, code), count in self._errors.items():
            found = (("operation", operation), ("code", code))
            yield Sample("lockstep_server_request_errors_total", count, found)
