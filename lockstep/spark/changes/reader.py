"""The reader of a stream of changes, as Spark calls it: `spark.readStream.format("lockstep")`.

Invariant: a reader is data; what the driver knows is made where it is asked, and tasks get a window and the
streams to read. A task that read longer than its rows surely live fails, so that a batch is whole or none.
A stream of all columns ends where the table gets one more, before a batch that could lack values of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lockstep.schema.clustering import encode_prefix
from lockstep.schema.types import parse_type
from lockstep.spark.changes.columns import ChangeMaker, ChangeShape, time_bound
from lockstep.spark.changes.log_reading import LogQuestions, StreamPages, log_options, read_shape, select
from lockstep.spark.changes.planning import ChangePartition, Planner
from lockstep.spark.changes.stream_options import StreamOptions, parse_stream_options
from lockstep.spark.changes.windows import Position, position_of
from lockstep.spark.cql_client import pool_of
from lockstep.spark.options import Options
from lockstep.spark.ring import TASKS_PER_HOST
from lockstep.spark.scan import Hosts, PageDecoder
from lockstep.spark.snapshot_reading import SnapshotScan
from lockstep.spark.snapshots import SNAPSHOT, Snapshot, close_snapshot, open_snapshot
from lockstep.storage.rows import keys
from lockstep.values.codec import encode
from lockstep.values.errors import ChangesGone, LockstepError, PreconditionError
from lockstep.values.rows import Slice
from lockstep.values.tokens import stream_token

_US_PER_S = 1_000_000
_TIME_TYPES = (parse_type("timeuuid"), parse_type("int"))


def schema_of(given: Mapping[str, str]) -> StructType:
    """The columns of a stream of changes with these options."""
    options, _ = parse_stream_options(given)
    return read_shape(options).schema()


def change_reader(given: Mapping[str, str], schema: StructType) -> ChangeReader:
    """A reader of the schema's columns. ConfigurationError when they are none of the stream's."""
    options, wanted = parse_stream_options(given)
    shape = read_shape(options)
    follows_all = not options.columns and set(schema.names) == {one.name for one in shape.columns}
    return ChangeReader(options, wanted, shape.chosen(schema), follows_all)


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes, window by window."""

    def __init__(
        self, options: Options, wanted: StreamOptions, shape: ChangeShape, follows_all: bool = False
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._shape = shape
        self._follows_all = follows_all
        self._planner: Planner | None = None
        self._hosts = 1
        #: The contents that batches are read from, with where these begin.
        self._held: list[tuple[Position, Snapshot]] = []

    def initialOffset(self) -> dict[str, Any]:
        return self._planning().initial().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._wanted.rows_max:
            return ReadMaxRows(self._wanted.rows_max)
        return ReadMaxBytes(self._wanted.bytes_max) if self._wanted.bytes_max else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next window, which is all that is closed where Spark wants all at once."""
        limited = not isinstance(limit, ReadAllAvailable)
        return self._planning().latest(position_of(start), limited=limited).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self._planning().newest
        return newest.as_json() if newest is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._planning().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = position_of(start), position_of(end)
        if self._follows_all:
            self._refuse_more()
        planner = self._planning()
        found = planner.partitions(first, last, TASKS_PER_HOST * self._hosts)
        # The batches before this one have been read.
        self._release([one for one in self._held if one[0] != first])
        wanted = self._options.snapshot
        if not found or wanted is False or (wanted is None and not planner.is_large):
            return found
        try:
            return self._of_snapshot(first, found)
        except ChangesGone:
            raise
        except LockstepError:
            if wanted:
                raise
            return found

    def stop(self) -> None:
        self._release(self._held)

    def _release(self, held: Sequence[tuple[Position, Snapshot]]) -> None:
        """Contents that nobody reads any more end before their leases do."""
        for one in list(held):
            close_snapshot(log_options(self._options), one[1])
            self._held.remove(one)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of about `batchRows` rows. ChangesGone when rows may have expired meanwhile."""
        assert isinstance(partition, ChangePartition)
        maker = ChangeMaker(self._shape)
        rows = self._from_snapshot(partition) if partition.snapshot else self._from_pages(partition)
        for batch in rows:
            yield maker.made(batch)

    def _refuse_more(self) -> None:
        """PreconditionError when the table has columns that it had not when the stream began: what is read
        would lack their values, and nobody would read them later."""
        known = {one.name for one in self._shape.columns}
        more = [one.name for one in read_shape(self._options).columns if one.name not in known]
        if more:
            table = f"{self._options.keyspace}.{self._options.table}"
            raise PreconditionError(
                f"{table} got the column {more[0]} since the stream began",
                hint="start it again, and it goes on where it was; the option columns names what to follow",
            )

    def _planning(self) -> Planner:
        if self._planner is None:
            questions = LogQuestions(self._options, self._shape)
            self._hosts = max(1, len(questions.hosts.ring.hosts))
            name = f"{self._options.keyspace}.{self._options.table}"
            self._planner = Planner(name, self._wanted, questions)
        return self._planner

    # -- by pages -----------------------------------------------------------------------------------

    def _from_pages(self, partition: ChangePartition) -> Iterator[pa.RecordBatch]:
        names = self._shape.selected()
        hosts = Hosts(self._options, pool_of(os.getpid()))
        pages = StreamPages(select(self._options, names), len(names), self._options, hosts, partition.turn)
        decoder = PageDecoder(
            [(name, self._shape.type_of(name)) for name in names], self._options.decimal_scale
        )
        gathered: list[pa.RecordBatch] = []
        rows = 0
        for _, page in pages.of(partition.streams, partition.start_us, partition.end_us):
            gathered.append(decoder.decode(page))
            rows += page.count
            if rows >= self._options.batch_rows:
                yield pa.concat_batches(gathered)
                gathered, rows = [], 0
        if gathered:
            yield pa.concat_batches(gathered)
        if partition.lost_after_us:
            self._check(LogQuestions(self._options, self._shape).now_us(), partition.lost_after_us)

    def _check(self, now_us: int, lost_after_us: int) -> None:
        if now_us >= lost_after_us:
            raise ChangesGone(
                f"changes of {self._options.keyspace}.{self._options.table} expired while they were read",
                hint="smaller batches (maxRowsPerTrigger), or a longer time to live of the log",
            )

    # -- from a snapshot of the log -----------------------------------------------------------------

    def _of_snapshot(self, start: Position, parts: Sequence[ChangePartition]) -> list[ChangePartition]:
        snapshot = open_snapshot(log_options(self._options))
        self._held.append((start, snapshot))
        if parts[0].lost_after_us:
            # What is in it does not expire for its readers.
            self._check(snapshot.now_s * _US_PER_S, parts[0].lost_after_us)
        told = encode(snapshot)
        return [replace(part, snapshot=told) for part in parts]

    def _from_snapshot(self, partition: ChangePartition) -> Iterator[pa.RecordBatch]:
        snapshot = SNAPSHOT.decode(partition.snapshot)
        names = self._shape.selected()
        scan = SnapshotScan(log_options(self._options), snapshot, names, partition.turn)
        table_id = snapshot.table.table.id
        pieces = []
        window = Slice(_place(partition.start_us), _place(partition.end_us))
        for stream in partition.streams:
            token = stream_token(stream)
            prefix = keys.partition_prefix(table_id, token, stream)
            pieces.append((token, keys.slice_bounds(prefix, window)))
        return scan.between(pieces)


def _place(at_us: int) -> bytes:
    """What the keys of rows begin with that were written then."""
    return encode_prefix(_TIME_TYPES, (False, False), (time_bound(at_us),))
