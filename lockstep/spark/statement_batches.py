"""Rows of Arrow data as batches of INSERTs: values by whole columns, rows by the replicas that store them.

Invariant: rows of one partition stay in their order. A batch has rows of one range of the ring, so whoever
coordinates it may be a replica of all of them, and is within the sizes of which nodes warn.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from lockstep.cql.wire.messages import UNSET, Value
from lockstep.spark.encoders import encoder
from lockstep.spark.loads.encoding import composite_key, serialised
from lockstep.spark.loads.tokens import tokens_of
from lockstep.spark.plain_values import python_values
from lockstep.spark.ring import TableColumn
from lockstep.spark.static_rows import Kinds, kinds_of, parted
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import TTL_S_MAX
from lockstep.values.node_limits import (
    SPARK_BATCH_BYTES_MAX,
    SPARK_BATCH_PARTITIONS_MAX,
    SPARK_BATCH_ROWS_MAX,
)

#: Of a cell beside its value, and of a row beside its cells, as nodes count them.
_CELL_BYTES: Final = 16
_ROW_BYTES: Final = 32
_TIMESTAMP_MAX: Final = (1 << 63) - 1
Values = tuple[Value, ...]


class RowShape(msgspec.Struct, frozen=True):
    """How rows are bound: `columns` in the order of the data's, then the column of seconds to live and that
    of write times, where there are such. `key` names the partition key, `keys` all that must not be null."""

    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    keys: tuple[str, ...]
    ttl_column: str = ""
    time_column: str = ""
    ignore_nulls: bool = False

    @property
    def kinds(self) -> Kinds:
        return kinds_of((column.name, column.kind) for column in self.columns)

    def of_statics(self) -> RowShape:
        """That of rows of static values alone."""
        columns = tuple(one for one in self.columns if one.kind in ("partition_key", "static"))
        return msgspec.structs.replace(self, columns=columns, keys=self.key)


class RowBatch(msgspec.Struct, frozen=True):
    """`token` is that of its first row. `is_static`: its rows are bound as those of static values alone."""

    token: int
    rows: tuple[Values, ...]
    is_static: bool = False


def batched(shape: RowShape, batch: pa.RecordBatch, rights: Sequence[int]) -> Iterator[RowBatch]:
    """The rows in batches; `rights` are where ranges of the ring end. InvalidRequest that names a column."""
    rows, alone = parted(shape.kinds, batch)
    yield from _batched(shape, rows, rights)
    if alone is not None:
        for one in _batched(shape.of_statics(), alone, rights):
            yield msgspec.structs.replace(one, is_static=True)


def _batched(shape: RowShape, batch: pa.RecordBatch, rights: Sequence[int]) -> Iterator[RowBatch]:
    if not batch.num_rows:
        return
    stored = {column.name: _stored(shape, column, batch.column(column.name)) for column in shape.columns}
    bound = [_bound(shape, stored[column.name]) for column in shape.columns]
    if shape.ttl_column:
        bound.append(_numbers(batch, shape.ttl_column, TTL_S_MAX, 4))
    if shape.time_column:
        bound.append(_numbers(batch, shape.time_column, _TIMESTAMP_MAX, 8))
    rows = list(zip(*bound, strict=True))
    parts = [stored[name] for name in shape.key]
    tokens = tokens_of(parts[0] if len(parts) == 1 else composite_key(parts))
    order = np.argsort(tokens, kind="stable")
    sizes = _sizes(shape, stored, batch.num_rows)[order].tolist()
    yield from _grouped(tokens[order].tolist(), [rows[at] for at in order.tolist()], sizes, rights)


def _grouped(
    tokens: Sequence[int], rows: Sequence[Values], sizes: Sequence[int], rights: Sequence[int]
) -> Iterator[RowBatch]:
    begin, size, partitions, limit = 0, 0, 0, tokens[0]
    for at, token in enumerate(tokens):
        is_new = not at or token != tokens[at - 1]
        full = size + sizes[at] > SPARK_BATCH_BYTES_MAX or at - begin >= SPARK_BATCH_ROWS_MAX
        full = full or (is_new and (partitions >= SPARK_BATCH_PARTITIONS_MAX or token > limit))
        if full and at > begin:
            yield RowBatch(tokens[begin], tuple(rows[begin:at]))
            begin, size, partitions = at, 0, 0
        if begin == at:
            place = bisect.bisect_left(rights, token)
            limit = rights[place] if place < len(rights) else _TIMESTAMP_MAX
        partitions += is_new or begin == at
        size += sizes[at]
    yield RowBatch(tokens[begin], tuple(rows[begin:]))


def _stored(shape: RowShape, column: TableColumn, array: pa.Array) -> pa.BinaryArray:
    """Values as they are sent; nulls stay nulls."""
    if array.null_count and column.name in shape.keys:
        raise InvalidRequest(f"key column {column.name} is null in a row to be written")
    kind = column.cql_type
    found = serialised(kind, column.name, array)
    if found is not None:
        return found
    encode = encoder(kind)
    try:
        values = [None if value is None else encode(value) for value in python_values(array)]
    except InvalidRequest as error:
        raise InvalidRequest(f"column {column.name}: {error.message}") from None
    return pa.array(values, pa.binary())


def _bound(shape: RowShape, array: pa.BinaryArray) -> list[Value]:
    values: list[Value] = array.to_pylist()
    if array.null_count and shape.ignore_nulls:
        return [UNSET if value is None else value for value in values]
    return values


def _numbers(batch: pa.RecordBatch, name: str, most: int, width: int) -> list[Value]:
    array = batch.column(name)
    if array.null_count:
        raise InvalidRequest(f"column {name} is null in a row to be written")
    numbers = array.cast(pa.int64()).to_pylist()
    if not 0 <= min(numbers) <= max(numbers) <= most:
        raise InvalidRequest(f"column {name} has a number that is not from 0 to {most}")
    return [number.to_bytes(width, "big") for number in numbers]


def _sizes(shape: RowShape, stored: dict[str, pa.BinaryArray], count: int) -> np.ndarray:
    found = np.full(count, _ROW_BYTES + _CELL_BYTES * len(shape.columns), dtype=np.int64)
    for array in stored.values():
        offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + count + 1]
        found += np.diff(offsets)
    return found
