"""Appending rows of a DataFrame to a table with prepared INSERTs.

Invariant: everything that can be known from the schemas is checked on the driver before a task runs. All
rows of a job carry one write time, so a row sent twice (after a failed host, or by a repeated task) changes
nothing, and the job never hides what was written after it was planned. A job that fails may leave rows.
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
from lockstep.cql.wire.messages import UNSET, QueryParameters, Value
from lockstep.spark.columns import encoder, spark_type
from lockstep.spark.cql_client import CqlConnection, error_of, pool_of
from lockstep.spark.options import Options
from lockstep.spark.retrying import Retry
from lockstep.spark.ring import TableColumn, TableShape, quoted
from lockstep.spark.scan import Hosts
from lockstep.values.errors import ConfigurationError, InvalidRequest, LockstepError, PreconditionError

_NANOSECONDS_PER_MICROSECOND: Final = 1000
_MIXING: Final = 0x9E3779B97F4A7C15


class WritePlan(msgspec.Struct, frozen=True):
    """`columns` in the order of the DataFrame's; `keys` are the names that must not be null."""

    text: str
    columns: tuple[TableColumn, ...]
    keys: tuple[str, ...]
    write_time_us: int


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
    for option in ("ttl_s", "ttl_column", "write_time_column", "load_id"):
        if getattr(options, option):
            raise ConfigurationError(
                "ttlSeconds, ttlColumn, writeTimeColumn and loadId are options of bulk loads",
                hint='add .option("writeMode", "bulk")',
            )
    columns = checked_columns(shape, schema.fields, options)
    listed = ", ".join(quoted(column.name) for column in columns)
    marks = ", ".join("?" for _ in columns)
    return WritePlan(
        f"INSERT INTO {quoted(shape.keyspace)}.{quoted(shape.table)} ({listed}) VALUES ({marks})",
        tuple(columns),
        tuple(column.name for column in shape.key),
        options.write_time_us or time.time_ns() // _NANOSECONDS_PER_MICROSECOND,
    )


def checked_columns(
    shape: TableShape, fields: Sequence[spark.StructField], options: Options
) -> list[TableColumn]:
    """The table's columns that a DataFrame's are written to. ConfigurationError as `write_plan`."""
    columns = [shape.column(field.name) for field in fields]
    missing = [column.name for column in shape.key if column not in columns]
    if missing:
        name = f"{shape.keyspace}.{shape.table}"
        raise ConfigurationError(f"the DataFrame lacks key column {', '.join(missing)} of {name}")
    for field, column in zip(fields, columns, strict=True):
        _check_type(field, column, options)
    return columns


class LockstepWriter(DataSourceArrowWriter):
    """Writes record batches; each task keeps up to `concurrentWrites` rows in flight."""

    def __init__(self, options: Options, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Raises when a row was not acknowledged; rows before it stay written."""
        sender = RowSender(self._options, self._plan)
        rows = 0
        try:
            for batch in iterator:
                for values in encoded_rows(self._plan, batch, self._options.ignore_nulls):
                    sender.send(values)
                rows += batch.num_rows
            sender.finish()
        finally:
            sender.close()
        return Written(rows)


def encoded_rows(plan: WritePlan, batch: pa.RecordBatch, ignore_nulls: bool) -> Iterator[tuple[Value, ...]]:
    """The rows' bound values. A null deletes the column's value, or leaves it with `ignore_nulls`."""
    absent: Value = UNSET if ignore_nulls else None
    columns: list[list[Value]] = []
    for column, array in zip(plan.columns, batch.columns, strict=True):
        if array.null_count and column.name in plan.keys:
            raise InvalidRequest(f"key column {column.name} is null in a row to be written")
        encode = encoder(column.cql_type)
        try:
            columns.append([absent if value is None else encode(value) for value in array.to_pylist()])
        except InvalidRequest as error:
            raise InvalidRequest(f"column {column.name}: {error.message}") from None
    return zip(*columns, strict=True)


class RowSender:
    """Keeps a bounded number of rows in flight on one connection, and moves to another host on failure."""

    def __init__(self, options: Options, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan
        self._hosts = Hosts(options, pool_of(os.getpid()))
        self._retry = Retry()
        # Tasks of one job run in different processes; their ids spread them over the hosts.
        self._turn = os.getpid() * _MIXING >> 16
        self._waiting: deque[tuple[Value, ...]] = deque()
        self._open: dict[int, tuple[Value, ...]] = {}
        self._connection: CqlConnection | None = None

    def send(self, values: tuple[Value, ...]) -> None:
        """Returns when the row is under way."""
        self._waiting.append(values)
        self._advance(self._options.concurrent_writes - 1)

    def finish(self) -> None:
        """Returns when every row was acknowledged."""
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
                self._exchange(self._connection, open_max)
            except LockstepError as error:
                if self._connection is not None:
                    host = self._connection.endpoint.host
                    self._connection.close()
                    self._connection = None
                self._waiting.extendleft(self._open.values())
                self._open.clear()
                self._retry.failed(error)
                self._hosts.failed(host)

    def _exchange(self, connection: CqlConnection, open_max: int) -> None:
        # Prepared at once on a new connection, when nothing is in flight; known to the connection later.
        statement = connection.prepare(self._plan.text)
        while self._waiting and len(self._open) < self._options.concurrent_writes:
            parameters = QueryParameters(
                consistency=self._options.consistency,
                values=self._waiting[0],
                timestamp_us=self._plan.write_time_us,
            )
            stream = connection.execute(statement, parameters)
            self._open[stream] = self._waiting.popleft()
        while len(self._open) > open_max:
            envelope = connection.receive()
            body = decode_response(envelope.version, envelope.opcode, envelope.flags, envelope.body).body
            if isinstance(body, ErrorResponse):
                raise error_of(body)
            del self._open[envelope.stream]
            self._retry.succeeded()


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
