"""Appending rows of a DataFrame to a table with batches of a prepared INSERT.

Invariant: everything that can be known from the schemas is checked on the driver before a task runs. All
rows of a job carry one write time, or that of their column, so a row sent twice (after a failed host, or by a
repeated task) changes nothing, and the job never hides what was written after it was planned. A job that
fails may leave rows.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lockstep.cql.wire.client import ErrorResponse, decode_response
from lockstep.cql.wire.messages import QueryParameters
from lockstep.spark.columns import spark_type
from lockstep.spark.cql_client import CqlConnection, Endpoint, error_of, first_to_answer, pool_of
from lockstep.spark.options import Options
from lockstep.spark.retrying import Retry
from lockstep.spark.ring import TableColumn, TableShape, quoted
from lockstep.spark.scan import Hosts
from lockstep.spark.statement_batches import RowBatch, RowShape, batched
from lockstep.values.errors import ConfigurationError, InvalidRequest, LockstepError, PreconditionError
from lockstep.values.node_limits import SPARK_WRITE_CONNECTIONS_MAX

_NANOSECONDS_PER_MICROSECOND: Final = 1000
#: Rows that are grouped at once: more are one partition's, and one column's values stay in caches.
_ENCODED_ROWS: Final = 16_384
_MIXING: Final = 0x9E3779B97F4A7C15


class WritePlan(msgspec.Struct, frozen=True):
    """`text` is the INSERT of one row of this shape, `static_text` that of static values alone, empty where
    there can be none. `write_time_us` 0: each row has its own."""

    text: str
    shape: RowShape
    write_time_us: int
    static_text: str = ""

    def text_of(self, batch: RowBatch) -> str:
        return self.static_text if batch.is_static else self.text


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """Rows of one task, all acknowledged."""

    rows: int


def write_plan(shape: TableShape, schema: spark.StructType, overwrite: bool, options: Options) -> WritePlan:
    """What every task does. Raises ConfigurationError that names column, expected and found types."""
    if overwrite:
        raise PreconditionError(
            f"mode overwrite replaces what is in {shape.keyspace}.{shape.table}, which statements cannot "
            'do at once: use .option("writeMode", "bulk"), or .mode("append"), which replaces rows with the '
            "same key"
        )
    if options.load_id:
        raise ConfigurationError(
            "loadId is the name of a bulk load", hint='add .option("writeMode", "bulk"), or leave it out'
        )
    columns = tuple(checked_columns(shape, schema.fields, options))
    using = [f"TTL {options.ttl_s}"] if options.ttl_s else []
    using += ["TTL ?"] if options.ttl_column else []
    using += ["TIMESTAMP ?"] if options.write_time_column else []
    life = f" USING {' AND '.join(using)}" if using else ""
    rows = RowShape(
        columns,
        tuple(column.name for column in shape.partition_key),
        tuple(column.name for column in shape.key),
        options.ttl_column,
        options.write_time_column,
        options.ignore_nulls,
    )
    return WritePlan(
        _insert(shape, columns, life),
        rows,
        0
        if options.write_time_column
        else options.write_time_us or time.time_ns() // _NANOSECONDS_PER_MICROSECOND,
        _insert(shape, rows.of_statics().columns, life) if rows.kinds.may_be_alone else "",
    )


def _insert(shape: TableShape, columns: Sequence[TableColumn], life: str) -> str:
    listed = ", ".join(quoted(column.name) for column in columns)
    marks = ", ".join("?" for _ in columns)
    return f"INSERT INTO {quoted(shape.keyspace)}.{quoted(shape.table)} ({listed}) VALUES ({marks}){life}"


def checked_columns(
    shape: TableShape, fields: Sequence[spark.StructField], options: Options
) -> list[TableColumn]:
    """The table's columns that a DataFrame's are written to, but for those of times. ConfigurationError as
    `write_plan`."""
    known = {column.name for column in shape.columns}
    times = (options.ttl_column, options.write_time_column)
    for name in times:
        if name and name not in [field.name for field in fields]:
            raise ConfigurationError(f"the data has no column {name}")
        if name in known:
            raise ConfigurationError(f"{name} is a column of the table, not one of times")
    for field in fields:
        if field.name in times and not isinstance(field.dataType, spark.IntegralType):
            raise ConfigurationError(
                f"column {field.name} is {field.dataType.simpleString()}, and takes whole numbers"
            )
    fields = [field for field in fields if field.name not in times]
    columns = [shape.column(field.name) for field in fields]
    missing = [column.name for column in shape.key if column not in columns]
    if missing:
        name = f"{shape.keyspace}.{shape.table}"
        raise ConfigurationError(f"the DataFrame lacks key column {', '.join(missing)} of {name}")
    for field, column in zip(fields, columns, strict=True):
        _check_type(field, column, options)
    return columns


class LockstepWriter(DataSourceArrowWriter):
    """Writes record batches; each task keeps up to `concurrentWrites` requests in flight."""

    def __init__(self, options: Options, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Raises when a row was not acknowledged; rows before it stay written."""
        sender = BatchSender(self._options, self._plan)
        rows = 0
        try:
            for batch in iterator:
                for at in range(0, batch.num_rows, _ENCODED_ROWS):
                    sender.send(batch.slice(at, _ENCODED_ROWS))
                rows += batch.num_rows
            sender.finish()
        finally:
            sender.close()
        return Written(rows)


class BatchSender:
    """Sends each batch to a replica of its rows, a bounded number at a time over some connections, and what
    was not acknowledged to another host when one fails."""

    def __init__(self, options: Options, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan
        self._hosts = Hosts(options, pool_of(os.getpid()))
        self._retry = Retry()
        # Tasks of one job run in different processes; their ids spread them over the hosts.
        self._turn = os.getpid() * _MIXING >> 16
        self._waiting: deque[RowBatch] = deque()
        self._open: dict[tuple[Endpoint, int], RowBatch] = {}
        self._connections: dict[Endpoint, CqlConnection] = {}

    def send(self, batch: pa.RecordBatch) -> None:
        """Returns when the rows are under way."""
        rights = [part.right for part, _ in self._hosts.ring.ranges]
        made = list(batched(self._plan.shape, batch, rights))
        # Neighbours in the ring have the same replicas: these are asked in turns.
        stride = max(len(rights), 1)
        for begin in range(stride):
            self._waiting.extend(made[begin::stride])
        self._advance(self._options.concurrent_writes - 1)

    def finish(self) -> None:
        """Returns when every row was acknowledged."""
        self._advance(0)

    def close(self) -> None:
        for connection in self._connections.values():
            self._hosts.pool.give_back(connection)
        self._connections.clear()

    def _advance(self, open_max: int) -> None:
        while self._waiting or len(self._open) > open_max:
            try:
                while self._waiting and len(self._open) < self._options.concurrent_writes:
                    self._ask(self._waiting[0])
                    self._waiting.popleft()
                if len(self._open) > open_max or self._waiting:
                    self._answered()
            except _Failed as failed:
                self._give_up(failed.endpoint)
                self._retry.failed(failed.error)
                self._hosts.failed(failed.endpoint.host)

    def _ask(self, batch: RowBatch) -> None:
        endpoint = self._endpoint(batch)
        try:
            connection = self._connections.get(endpoint)
            if connection is None:
                connection = self._hosts.pool.take(endpoint, self._options.timeout_s)
                # Prepared at once on a new connection, when nothing is in flight; known to it later.
                for text in filter(None, (self._plan.text, self._plan.static_text)):
                    connection.prepare(text)
                self._connections[endpoint] = connection
            statement = connection.prepare(self._plan.text_of(batch))
            parameters = QueryParameters(
                consistency=self._options.consistency, timestamp_us=self._plan.write_time_us or None
            )
            if len(batch.rows) == 1:
                one = msgspec.structs.replace(parameters, values=batch.rows[0])
                stream = connection.execute(statement, one)
            else:
                stream = connection.execute_batch(statement, batch.rows, parameters)
        except LockstepError as error:
            raise _Failed(endpoint, error) from error
        self._open[endpoint, stream] = batch

    def _endpoint(self, batch: RowBatch) -> Endpoint:
        """Of the replicas in turn; of the connections that are open, once there are enough."""
        self._turn += 1
        order = self._hosts.order(batch.token, self._turn)
        if len(self._connections) >= SPARK_WRITE_CONNECTIONS_MAX:
            return next((one for one in order if one in self._connections), order[0])
        return order[0]

    def _answered(self) -> None:
        asked = dict.fromkeys(endpoint for endpoint, _ in self._open)
        connection = first_to_answer([self._connections[one] for one in asked], self._options.timeout_s)
        try:
            while True:
                envelope = connection.receive()
                response = decode_response(
                    envelope.version, envelope.opcode, envelope.flags, envelope.body
                ).body
                if isinstance(response, ErrorResponse):
                    raise error_of(response)
                del self._open[connection.endpoint, envelope.stream]
                self._retry.succeeded()
                if not connection.has_answer:
                    return
        except LockstepError as error:
            raise _Failed(connection.endpoint, error) from error

    def _give_up(self, endpoint: Endpoint) -> None:
        """Close the connection to a host; what is open there is to be sent again."""
        connection = self._connections.pop(endpoint, None)
        if connection is not None:
            connection.close()
        lost = [key for key in self._open if key[0] == endpoint]
        self._waiting.extendleft(self._open.pop(key) for key in lost)


class _Failed(Exception):
    """What went wrong with whom."""

    def __init__(self, endpoint: Endpoint, error: LockstepError) -> None:
        super().__init__(error.message)
        self.endpoint = endpoint
        self.error = error


def _check_type(field: spark.StructField, column: TableColumn, options: Options) -> None:
    try:
        expected = spark_type(column.cql_type, options.decimal_scale)
    except InvalidRequest as error:
        raise ConfigurationError(f"column {column.name} cannot be written: {error.message}") from None
    if not _fits(field.dataType, expected):
        raise ConfigurationError(
            f"column {column.name} is {field.dataType.simpleString()} in the DataFrame, "
            f"but {column.type} in the table takes {expected.simpleString()}"
        )


def _fits(found: spark.DataType, expected: spark.DataType) -> bool:
    """Equal but for nullability, the digits of decimals and the names of struct fields."""
    if isinstance(expected, spark.DecimalType):
        return isinstance(found, spark.DecimalType)
    if isinstance(expected, spark.ArrayType):
        return isinstance(found, spark.ArrayType) and _fits(found.elementType, expected.elementType)
    if isinstance(expected, spark.MapType):
        return (
            isinstance(found, spark.MapType)
            and _fits(found.keyType, expected.keyType)
            and _fits(found.valueType, expected.valueType)
        )
    if isinstance(expected, spark.StructType):
        return isinstance(found, spark.StructType) and _all_fit(found.fields, expected.fields)
    return found == expected


def _all_fit(found: Sequence[spark.StructField], expected: Sequence[spark.StructField]) -> bool:
    return len(found) == len(expected) and all(
        _fits(one.dataType, other.dataType) for one, other in zip(found, expected, strict=True)
    )
