"""Captures what clients change: adds to each mutation of a table with a log what its log is to have.

Invariant: a write time belongs to the stream of the set that counts then, by its partition's token: of a
generation of the ring, or of the tablets of its table. What was there before is read from a local quorum,
before anything is sent. A mutation is handed on with what its log is to have or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from lockstep.coordination.capture import Capture
from lockstep.metadata.cdc import Counting, current, is_pending, write_allowed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.schema.log_tables import capture_options, log_of
from lockstep.schema.model import Table
from lockstep.storage.rows.fragments import touched
from lockstep.values.errors import ColumnsGone, InvalidRequest, Overloaded
from lockstep.values.ids import Consistency
from lockstep.values.node_limits import CAPTURED_TABLES_CACHED_MAX
from lockstep.values.rows import Mutation, Partition, ReadCommand, ReadResult, without_log

#: Reads at a level within a time in milliseconds.
Read = Callable[[ReadCommand, Consistency, float], Awaitable[ReadResult]]


def stream_of(generations: Sequence[Counting], times_us: Sequence[int], token: int, now_us: int) -> bytes:
    """The stream that takes changes of a partition at these write times. InvalidRequest where none can,
    Overloaded where it is not known yet."""
    for at_us in times_us:
        problem = write_allowed(generations, at_us, now_us)
        if problem:
            raise InvalidRequest(problem)
        if is_pending(generations, at_us):
            raise Overloaded(
                "cdc: the streams that count by now are not known to all replicas yet: try again"
            )
    found = current(generations, times_us[0])
    assert found is not None, "the time was allowed"
    if current(generations, times_us[-1]) is not found:
        raise InvalidRequest(
            "cdc: the write times of one request lie on both sides of a change of streams",
            hint="write them in requests of their own",
        )
    return found.stream_for(token)


def streams_of(cluster: ClusterMetadata, table: Table) -> Sequence[Counting]:
    """The sets of streams that take changes of a table, from the oldest on: generations of the ring, or those
    of its own tablets."""
    if not table.group:
        return cluster.generations
    found = cluster.streams_by_group.get(table.group)
    return found.sets if found is not None else ()


def is_in_time(cluster: ClusterMetadata, mutation: Mutation) -> bool:
    """Whether what a mutation adds to a log is in the streams of its write time by what is known now: it was
    captured by what was known then."""
    captured, table = mutation.captured, cluster.table(mutation.table_id)
    if captured is None or table is None:
        return True
    sets = streams_of(cluster, table)
    stamps = {cell.timestamp_us for row in captured.rows for cell in row.cells}
    if is_pending(sets, max(stamps)):
        return False
    found = [current(sets, at_us) for at_us in sorted(stamps)]
    return all(one is None or one.stream_for(mutation.token) == captured.key for one in found)


class Capturing:
    """`cluster` gives the newest metadata this node knows; `now_us` is its wall clock."""

    def __init__(
        self, cluster: Callable[[], ClusterMetadata], read: Read, now_us: Callable[[], int], read_ms: float
    ) -> None:
        self._cluster = cluster
        self._read = read
        self._now_us = now_us
        self._read_ms = read_ms
        #: By the table's id.
        self._made: dict[int, Capture] = {}

    async def attached(self, mutations: tuple[Mutation, ...]) -> tuple[Mutation, ...]:
        """The mutations, with what logs are to have of them. The errors of `stream_of` and of a read, or
        ColumnsGone when the table changed meanwhile."""
        captures = [self.of(mutation.table_id) for mutation in mutations]
        if not any(captures):
            return mutations
        found: list[Mutation] = []
        for mutation, capture in zip(mutations, captures, strict=True):
            if capture is None:
                found.append(mutation)
                continue
            before = await self._before(capture, mutation) if capture.reads_before else None
            if before is not None and self.of(mutation.table_id) is not capture:
                raise ColumnsGone(str(mutation.table_id), begun=False)
            found.append(self.with_log(capture, mutation, before))
        return tuple(found)

    def of(self, table_id: int) -> Capture | None:
        """How changes of a table are captured now; None when they are not."""
        cluster = self._cluster()
        table = cluster.table(table_id)
        log = log_of(cluster.schema, table) if table is not None else None
        if table is None or log is None:
            return None
        known = self._made.get(table_id)
        if known is not None and known.base is table and known.log is log:
            return known
        if len(self._made) >= CAPTURED_TABLES_CACHED_MAX:
            self._made = {}
        made = self._made[table_id] = _capture(cluster, table, log)
        return made

    def with_log(self, capture: Capture, mutation: Mutation, before: Partition | None) -> Mutation:
        """`before`: the live state of the rows that the mutation touches, where the capture reads it.
        InvalidRequest for write times that no stream can take."""
        times_us = capture.times_us(mutation)
        if not times_us:
            return mutation
        now_us = self._now_us()
        streams = streams_of(self._cluster(), capture.base)
        stream = stream_of(streams, times_us, mutation.token, now_us)
        return capture.with_log(without_log(mutation), stream, before, now_us // 1_000_000)

    async def _before(self, capture: Capture, mutation: Mutation) -> Partition:
        table = capture.base
        command = ReadCommand(
            table.id,
            mutation.token - 1,
            mutation.token,
            mutation.key,
            touched(mutation),
            (),
            reads_static=bool(table.static),
            reverse=False,
            row_limit=0,
            partition_row_limit=0,
            now_s=self._now_us() // 1_000_000,
            dropped=table.gone,
            dead=table.dead,
        )
        return before_in(mutation, await self._read(command, Consistency.LOCAL_QUORUM, self._read_ms))


def before_in(mutation: Mutation, result: ReadResult) -> Partition:
    """The state of the mutation's partition in an answer; an empty one where it is not there."""
    for partition in result.partitions:
        if partition.key == mutation.key:
            return partition
    return Partition(mutation.token, mutation.key)


def _capture(cluster: ClusterMetadata, table: Table, log: Table) -> Capture:
    options = capture_options(table)
    assert options is not None, "a table with a log is captured"
    return Capture(table, log, cluster.schema.by_name[table.keyspace], options)
