"""A table as the sink of a stream of changes: `changes.writeStream.format("lockstep")`.

Invariant: what is wrong with names and types is told before a batch runs. Statements have the write times of
their changes, so a batch that is repeated, or of which a part was written, changes nothing twice; a batch has
ended when every statement of it was acknowledged.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from lockstep.cql.wire.client import ErrorResponse, decode_response
from lockstep.cql.wire.messages import QueryParameters
from lockstep.spark.changes.applying import Applier, Statement, Target, check_target, table_columns
from lockstep.spark.cql_client import CqlConnection, error_of, pool_of
from lockstep.spark.options import BULK, Options
from lockstep.spark.plain_values import python_rows
from lockstep.spark.retrying import Retry
from lockstep.spark.ring import TableShape, ask_any
from lockstep.spark.scan import Hosts
from lockstep.spark.writer import Written, checked_columns
from lockstep.values.errors import ConfigurationError, LockstepError

_NANOSECONDS_PER_MICROSECOND = 1000


def change_writer(
    options: Options, shape: TableShape, schema: spark.StructType, overwrite: bool
) -> ChangeWriter:
    """ConfigurationError that says what does not fit."""
    if overwrite:
        raise ConfigurationError(
            "changes add to a table, they do not replace it", hint='.outputMode("append")'
        )
    if options.write_mode == BULK:
        raise ConfigurationError("changes are written by statements", hint="leave out the option writeMode")
    names = table_columns(schema.names)
    fields = [field for field in schema.fields if field.name in names]
    check_target(shape, names)
    checked_columns(shape, fields, options)
    return ChangeWriter(options, Target(shape, _descending(options), tuple(names)))


def _descending(options: Options) -> tuple[str, ...]:
    def question(connection: CqlConnection) -> tuple[str, ...]:
        rows = connection.query(
            "SELECT column_name, clustering_order FROM system_schema.columns "
            "WHERE keyspace_name = ? AND table_name = ?",
            (options.keyspace.encode(), options.table.encode()),
        )
        return tuple(str(row["column_name"]) for row in rows if row["clustering_order"] == "desc")

    return ask_any(pool_of(os.getpid()), options.endpoints, options.timeout_s, question)


class ChangeWriter(DataSourceStreamArrowWriter):
    """Applies changes; each task keeps up to `concurrentWrites` statements in flight."""

    def __init__(self, options: Options, target: Target) -> None:
        self._options = options
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Raises when a statement was not acknowledged; others of the batch may be."""
        applier = Applier(self._target, lambda: time.time_ns() // _NANOSECONDS_PER_MICROSECOND)
        sender = StatementSender(self._options)
        rows = 0
        try:
            for batch in iterator:
                for change in python_rows(batch):
                    for statement in applier.statements(change):
                        sender.send(statement)
                rows += batch.num_rows
            applier.finish()
            sender.finish()
        finally:
            sender.close()
        return Written(rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Everything was acknowledged already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was written is of the table; the batch is written again."""


class StatementSender:
    """Keeps a bounded number of statements in flight on one connection, and moves to another host on
    failure."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._hosts = Hosts(options, pool_of(os.getpid()))
        self._retry = Retry()
        self._turn = os.getpid()
        self._waiting: deque[Statement] = deque()
        self._open: dict[int, Statement] = {}
        self._connection: CqlConnection | None = None

    def send(self, statement: Statement) -> None:
        """Returns when it is under way."""
        self._waiting.append(statement)
        self._advance(self._options.concurrent_writes - 1)

    def finish(self) -> None:
        """Returns when every statement was acknowledged."""
        self._advance(0)

    def close(self) -> None:
        if self._connection is not None:
            self._hosts.pool.give_back(self._connection)
            self._connection = None

    def _advance(self, open_max: int) -> None:
        while self._waiting or len(self._open) > open_max:
            host = ""
            try:
                if self._connection is None:
                    endpoint = self._hosts.order(0, self._turn)[0]
                    host = endpoint.host
                    self._connection = self._hosts.pool.take(endpoint, self._options.timeout_s)
                host = self._connection.endpoint.host
                self._exchange(self._connection, open_max)
            except LockstepError as error:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                self._waiting.extendleft(self._open.values())
                self._open.clear()
                self._retry.failed(error)
                self._hosts.failed(host)

    def _exchange(self, connection: CqlConnection, open_max: int) -> None:
        while self._waiting and len(self._open) < self._options.concurrent_writes:
            if not connection.knows(self._waiting[0].text):
                # Prepared when nothing is in flight, whose answers would be mixed up with its own.
                self._receive(connection, 0)
            statement = connection.prepare(self._waiting[0].text)
            one = self._waiting.popleft()
            parameters = QueryParameters(
                consistency=self._options.consistency, values=one.values, timestamp_us=one.written_us
            )
            self._open[connection.execute(statement, parameters)] = one
        self._receive(connection, open_max)

    def _receive(self, connection: CqlConnection, open_max: int) -> None:
        while len(self._open) > open_max:
            envelope = connection.receive()
            body = decode_response(envelope.version, envelope.opcode, envelope.flags, envelope.body).body
            if isinstance(body, ErrorResponse):
                raise error_of(body)
            del self._open[envelope.stream]
            self._retry.succeeded()
