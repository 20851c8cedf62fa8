"""Changes as Spark has them: the columns of a stream, and batches of them from rows of a log.

Invariant: a change has the table's columns, as its log tells them, and `_change_...` columns that say what
happened to them; a row of the log is one row, in the log's order. Batches are made column by column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from lockstep.scans.arrow_columns import arrow_type
from lockstep.schema.log_tables import (
    DELETED,
    DELETED_ELEMENTS,
    END_OF_BATCH,
    OPERATION,
    SEQUENCE,
    STREAM_ID,
    TIME,
    TTL,
)
from lockstep.schema.types import CqlType
from lockstep.spark.columns import spark_type
from lockstep.spark.ring import TableColumn, TableShape
from lockstep.values.errors import ConfigurationError, InvalidRequest, ProtocolViolation

#: Before each name that is not of the table.
PREFIX: Final = "_change_"
CHANGE_OPERATION: Final = "_change_operation"
CHANGE_TIME: Final = "_change_time"
CHANGE_WRITTEN: Final = "_change_written_us"
CHANGE_ID: Final = "_change_id"
CHANGE_STREAM: Final = "_change_stream"
CHANGE_SEQUENCE: Final = "_change_sequence"
CHANGE_ENDS: Final = "_change_ends"
CHANGE_TTL: Final = "_change_ttl"
CHANGE_DELETED: Final = "_change_deleted"
#: Of a collection's elements that were taken out, before the collection's name.
CHANGE_ELEMENTS: Final = "_change_deleted_elements_"

#: By the number that a log has for them; numbers between have none.
OPERATIONS: Final[tuple[str, ...]] = (
    "preimage",
    "update",
    "insert",
    "row_delete",
    "partition_delete",
    "range_start_inclusive",
    "range_start_exclusive",
    "range_end_inclusive",
    "range_end_exclusive",
    "postimage",
)
PREIMAGE, UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE = OPERATIONS[:5]
RANGE_STARTS: Final = OPERATIONS[5:7]
RANGE_ENDS: Final = OPERATIONS[7:9]
POSTIMAGE: Final = OPERATIONS[9]

#: Ticks of 100 ns from the beginning of the Gregorian calendar, where UUIDs of version 1 begin, to 1970.
_UUID_BEGINS: Final = 0x01B21DD213814000
_UUID_CHARACTERS: Final = 36
#: Where the hexadecimal digits of a UUID's time lie in its text, most significant first; the first of them is
#: the version's.
_TIME_DIGITS: Final = (*range(15, 18), *range(9, 13), *range(8))
#: By the code of a hexadecimal digit, as texts of UUIDs have them: half a byte.
_HALVES: Final = np.zeros(256, dtype="u1")
_HALVES[np.frombuffer(b"0123456789abcdef", dtype="u1")] = range(16)
_LEAST: Final = b"\x80" * 8
#: Columns of every stream behind the table's: name, Arrow type, Spark type.
_FIXED: Final = (
    (CHANGE_OPERATION, pa.string(), spark.StringType()),
    (CHANGE_TIME, pa.timestamp("us", tz="UTC"), spark.TimestampType()),
    (CHANGE_WRITTEN, pa.int64(), spark.LongType()),
    (CHANGE_ID, pa.string(), spark.StringType()),
    (CHANGE_SEQUENCE, pa.int32(), spark.IntegerType()),
    (CHANGE_ENDS, pa.bool_(), spark.BooleanType()),
    (CHANGE_STREAM, pa.binary(), spark.BinaryType()),
    (CHANGE_TTL, pa.int64(), spark.LongType()),
    (
        CHANGE_DELETED,
        pa.list_(pa.field("element", pa.string())),
        spark.ArrayType(spark.StringType()),
    ),
)


def time_bound(at_us: int) -> bytes:
    """The least `cdc$time` of a write time."""
    ticks = at_us * 10 + _UUID_BEGINS
    return struct.pack(">IHH", ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 | 0x1000) + _LEAST


def times_us(ids: pa.Array) -> Any:
    """Write times (numpy) of `cdc$time` as text. ProtocolViolation when it is none."""
    if not len(ids):
        return np.zeros(0, dtype="i8")
    offsets = np.frombuffer(ids.buffers()[1], dtype="i4")[ids.offset : ids.offset + len(ids) + 1]
    if ids.null_count or (np.diff(offsets) != _UUID_CHARACTERS).any():
        raise ProtocolViolation("a row of a log of changes has no time")
    text = np.frombuffer(ids.buffers()[2], dtype="u1")[offsets[0] : offsets[-1]]
    halves = np.zeros((len(ids), 2 * 8), dtype="u1")
    halves[:, 1:] = _HALVES[text.reshape(len(ids), _UUID_CHARACTERS)[:, _TIME_DIGITS]]
    ticks = (halves[:, ::2] << 4 | halves[:, 1::2]).view(">i8")[:, 0].astype("i8")
    return (ticks - _UUID_BEGINS) // 10


class Column(msgspec.Struct, frozen=True):
    """A column of a stream; `source` is the log's column that it is made of, empty when of several."""

    name: str
    source: str
    arrow: Any
    spark: Any


class ChangeShape(msgspec.Struct, frozen=True):
    """`log` are the columns of the log, `columns` those of the stream. `deleted` are names of columns that
    can be told to be deleted."""

    log: tuple[TableColumn, ...]
    columns: tuple[Column, ...]
    deleted: tuple[str, ...]

    def schema(self) -> spark.StructType:
        return spark.StructType([spark.StructField(one.name, one.spark) for one in self.columns])

    def chosen(self, schema: spark.StructType) -> ChangeShape:
        """Only the columns of a schema that a user gave. ConfigurationError for others."""
        known = {one.name: one for one in self.columns}
        found = []
        for field in schema.fields:
            column = known.get(field.name)
            if column is None:
                raise ConfigurationError(
                    f"a stream of changes has no column {field.name}", hint=f"it has {', '.join(known)}"
                )
            if field.dataType != column.spark or not field.nullable:
                raise ConfigurationError(
                    f"column {field.name} is {column.spark.simpleString()}, "
                    f"not {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
                )
            found.append(column)
        return msgspec.structs.replace(self, columns=tuple(found))

    def type_of(self, name: str) -> CqlType:
        """Of a column of the log."""
        return next(column for column in self.log if column.name == name).cql_type

    def selected(self) -> list[str]:
        """Columns of the log that the stream's are made of."""
        names: dict[str, None] = {}
        for one in self.columns:
            if one.source:
                names[one.source] = None
            elif one.name in (CHANGE_TIME, CHANGE_WRITTEN):
                names[TIME] = None
            else:
                names.update(dict.fromkeys(DELETED + name for name in self.deleted))
        return list(names or {TIME: None})


def change_shape(base: TableShape, log: TableShape, wanted: Sequence[str], decimal_scale: int) -> ChangeShape:
    """The stream of a table's changes; `wanted` are columns of the table, all when empty."""
    clash = [column.name for column in base.columns if column.name.startswith(PREFIX)]
    if clash:
        raise ConfigurationError(
            f"the column {clash[0]} has a name of the stream's own: changes of {base.keyspace}.{base.table} "
            "cannot be streamed"
        )
    for name in wanted:
        base.column(name)
    columns = [column for column in base.columns if not wanted or column.name in wanted]
    told = [log.column(column.name) for column in columns]
    made = [_column(one.name, one, decimal_scale) for one in told]
    sources = {
        CHANGE_OPERATION: OPERATION, CHANGE_ID: TIME, CHANGE_SEQUENCE: SEQUENCE, CHANGE_ENDS: END_OF_BATCH,
        CHANGE_STREAM: STREAM_ID, CHANGE_TTL: TTL,
    }  # fmt: skip
    made += [Column(name, sources.get(name, ""), arrow, of_spark) for name, arrow, of_spark in _FIXED]
    there = {column.name: column for column in log.columns}
    for column in columns:
        elements = there.get(DELETED_ELEMENTS + column.name)
        if elements is not None:
            made.append(_column(CHANGE_ELEMENTS + column.name, elements, decimal_scale))
    deleted = tuple(column.name for column in columns if DELETED + column.name in there)
    return ChangeShape(log.columns, tuple(made), deleted)


def _column(name: str, source: TableColumn, decimal_scale: int) -> Column:
    kind = source.cql_type
    try:
        return Column(name, source.name, arrow_type(kind, decimal_scale), spark_type(kind, decimal_scale))
    except InvalidRequest as error:
        raise ConfigurationError(
            f"column {source.name}: {error.message}", hint="name the others with the option columns"
        ) from None


class ChangeMaker:
    """Makes batches of changes from batches of a log's rows."""

    def __init__(self, shape: ChangeShape) -> None:
        self._shape = shape
        self.schema = pa.schema([pa.field(one.name, one.arrow) for one in shape.columns])
        self._deleted = pa.array(shape.deleted, pa.string())

    def made(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with as many rows, of the columns `selected` of the log."""
        arrays = [self._array(one, rows) for one in self._shape.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, column: Column, rows: pa.RecordBatch) -> pa.Array:
        if column.name == CHANGE_OPERATION:
            return _named(rows.column(OPERATION))
        if column.name in (CHANGE_TIME, CHANGE_WRITTEN):
            return pa.array(times_us(rows.column(TIME))).cast(column.arrow)
        if column.name == CHANGE_DELETED:
            return self._names(rows)
        return rows.column(column.source)

    def _names(self, rows: pa.RecordBatch) -> pa.Array:
        """Of each row, which columns it deletes."""
        count = rows.num_rows
        if not self._shape.deleted:
            return pa.ListArray.from_arrays(
                pa.array(np.zeros(count + 1, dtype="i4")), self._deleted, type=_NAMES
            )
        told = [rows.column(DELETED + name) for name in self._shape.deleted]
        marks = np.stack([_flags(one, count) for one in told], axis=1)
        ends = np.concatenate(([0], np.cumsum(marks.sum(axis=1)))).astype("i4")
        taken = self._deleted.take(pa.array(np.nonzero(marks)[1]))
        return pa.ListArray.from_arrays(pa.array(ends), taken, type=_NAMES)


_NAMES: Final = _FIXED[-1][1]


def _flags(told: pa.Array, count: int) -> Any:
    if told.null_count == count:
        return np.zeros(count, dtype=bool)
    return told.fill_null(False).to_numpy(zero_copy_only=False)


def _named(numbers: pa.Array) -> pa.Array:
    """Operations by their names. ProtocolViolation for numbers that have none."""
    if numbers.null_count:
        raise ProtocolViolation("a row of a log of changes has no operation")
    found = numbers.to_numpy(zero_copy_only=False)
    if len(found) and not 0 <= found.min() <= found.max() < len(OPERATIONS):
        raise ProtocolViolation(f"operations {found.min()} to {found.max()} of a log of changes")
    return pa.array(OPERATIONS).take(numbers)
