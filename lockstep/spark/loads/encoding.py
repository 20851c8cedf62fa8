"""Rows of Arrow data as what a store keeps of them: keys, values and tokens, made by whole columns.

Invariants. A row becomes what INSERT of it becomes, with the same write time, time to live and write id; the
way through the language's own plans, one row at a time, gives the same (`encoded_by_rows`), and is taken for
collections that are no single value, and for static columns. Nothing here asks a clock: times come with the
plan.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.cql.bind.modify import plan_modification
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog, Prepared
from lockstep.cql.wire.messages import UNSET, Value
from lockstep.scans.arrow_columns import arrow_type
from lockstep.schema.clustering import KEY_BYTES_MAX, encode_prefix
from lockstep.schema.model import Column, ColumnKind, Keyspace, Replication, Table, UserType, schema_of
from lockstep.schema.table_options import option
from lockstep.schema.types import CqlType
from lockstep.schema.types.base import CqlType as BaseType
from lockstep.schema.types.numbers import FixedInteger
from lockstep.schema.user_types import type_in
from lockstep.spark.encoders import encoder
from lockstep.spark.loads.tokens import octets_of, tokens_of
from lockstep.spark.plain_values import python_values
from lockstep.spark.static_rows import Kinds, kinds_of, parted
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import MUTATION_ID_BYTES
from lockstep.values.limits import MUTATION_BYTES_MAX, TTL_S_MAX
from lockstep.values.tokens import token_of

_BIAS: Final = np.uint64(1 << 63)
_TIMESTAMP_MAX: Final = (1 << 63) - 1
_WORD_FROM: Final = 1 << 32
_MICROSECONDS: Final = 1_000_000
_RANDOM_BYTES: Final = 16
#: Of the value of a row fragment: four fields, six of a cell, three of a liveness.
_ROW, _CELL, _LIVENESS = b"\x94", b"\x96", b"\x93"
_NIL, _NO_ITEMS = b"\xc0", b"\x90"
_BIN_8 = 0xC4


#: In place of a write id, in the places of elements of lists.
_OF_LISTS: Final = bytes(MUTATION_ID_BYTES)


class EncodePlan(msgspec.Struct, frozen=True, dict=True):
    """What a load writes. `columns` name the table's columns in the order of the data's; `ttl_column` and
    `time_column` name further ones of the data, of seconds and microseconds. `ttl_s` 0: rows live as long as
    the table says."""

    table: Table
    types: tuple[UserType, ...]
    stored_id: int
    columns: tuple[str, ...]
    timestamp_us: int
    now_s: int
    ttl_s: int = 0
    ttl_column: str = ""
    time_column: str = ""
    ignore_nulls: bool = False

    @cached_property
    def space(self) -> Keyspace:
        return Keyspace(self.table.keyspace, Replication("SimpleStrategy", ()), types=self.types)

    @cached_property
    def default_ttl_s(self) -> int:
        return self.ttl_s or int(option(self.table.options, "default_time_to_live"))

    def type_of(self, column: Column) -> CqlType:
        return type_in(self.space, column.type)

    @cached_property
    def written(self) -> tuple[Column, ...]:
        return tuple(self.table.by_name[name] for name in self.columns)

    @cached_property
    def by_columns(self) -> bool:
        """Whether whole columns can be encoded: each is one cell or a part of the key."""
        kinds = (ColumnKind.STATIC,)
        return not any(one.kind in kinds or self.type_of(one).is_multicell for one in self.written)

    @cached_property
    def kinds(self) -> Kinds:
        return kinds_of((one.name, one.kind.name.lower()) for one in self.written)

    def of_statics(self) -> EncodePlan:
        """That of rows of static values alone."""
        kinds = (ColumnKind.PARTITION_KEY, ColumnKind.STATIC)
        return msgspec.structs.replace(
            self, columns=tuple(one.name for one in self.written if one.kind in kinds)
        )


class Encoded(msgspec.Struct, frozen=True):
    """Fragments, in no order: `tokens` (numpy) of their partitions, store keys and values (Arrow)."""

    tokens: Any
    keys: pa.BinaryArray
    values: pa.BinaryArray


def write_id_of(job: str, partition: int) -> bytes:
    """The write id of all that one partition of a job writes, whichever attempt at it is the one."""
    return hashlib.blake2b(f"{job}/{partition}".encode(), digest_size=MUTATION_ID_BYTES).digest()


def encoded(plan: EncodePlan, batch: pa.RecordBatch, write_id: bytes) -> Encoded:
    """InvalidRequest when a value does not fit, naming the column."""
    if plan.by_columns:
        return _Columns(plan, batch, write_id).encoded()
    rows, alone = parted(plan.kinds, batch)
    made = encoded_by_rows(plan, rows, write_id)
    if alone is None:
        return made
    more = encoded_by_rows(plan.of_statics(), alone, write_id)
    return Encoded(
        np.concatenate([made.tokens, more.tokens]),
        pa.concat_arrays([made.keys, more.keys]),
        pa.concat_arrays([made.values, more.values]),
    )


# -- row by row -------------------------------------------------------------------------------------


def encoded_by_rows(plan: EncodePlan, batch: pa.RecordBatch, write_id: bytes) -> Encoded:
    """As `encoded`, through the language's plans."""
    prepared = _insert(plan)
    columns = [
        _python_values(plan, column, batch.column(name))
        for name, column in zip(plan.columns, plan.written, strict=True)
    ]
    times = _times(plan, batch)
    ttls = _ttls(plan, batch)
    made: list[tuple[int, bytes, bytes]] = []
    for at in range(batch.num_rows):
        row: list[Value] = [column[at] for column in columns]
        row += [int(times[at]).to_bytes(8, "big", signed=True), int(ttls[at]).to_bytes(4, "big", signed=True)]
        context = _context(plan, int(times[at]), write_id, at)
        for planned in plan_modification(prepared, row, context):
            mutation = msgspec.structs.replace(planned, mutation_id=write_id)
            token = token_of(mutation.key)
            prefix = keys.partition_prefix(plan.stored_id, token, mutation.key)
            made += [(token, key, value) for _, key, value in fragments_of(mutation, prefix)]
    return Encoded(
        np.array([one[0] for one in made], dtype=np.int64),
        pa.array([one[1] for one in made], pa.binary()),
        pa.array([one[2] for one in made], pa.binary()),
    )


def _insert(plan: EncodePlan) -> Prepared:
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in plan.columns)
    marks = ", ".join("?" for _ in plan.columns)
    table = plan.table
    text = (
        f'INSERT INTO "{table.keyspace}"."{table.name}" ({names}) VALUES ({marks}) '
        "USING TIMESTAMP ? AND TTL ?"
    )
    known = msgspec.structs.replace(schema_of((plan.space,)), next_table_id=table.id + 1)
    return prepare(text, None, Catalog(known.with_table(table)))


def _context(plan: EncodePlan, time_us: int, write_id: bytes, row: int) -> Context:
    drawn = itertools.count()

    def bits() -> bytes:
        text = f"{row}/{next(drawn)}".encode()
        return hashlib.blake2b(text, key=write_id, digest_size=_RANDOM_BYTES).digest()

    # Elements of a list have their places by the row's write time and by nothing of the job: so they are the
    # same ones in every row of a partition that has the list, and when the row is loaded again.
    now_us = plan.now_s * _MICROSECONDS
    return Context(now_us, plan.now_s, min(now_us, time_us), time_us, _OF_LISTS, bits)


def _python_values(plan: EncodePlan, column: Column, array: pa.Array) -> list[Value]:
    kind = plan.type_of(column)
    encode, absent = encoder(kind), UNSET if plan.ignore_nulls else None
    is_key = column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
    found: list[Value] = []
    for value in python_values(_typed(kind, column.name, array)):
        if value is None:
            if is_key:
                raise _null_key(column)
            found.append(absent)
            continue
        try:
            found.append(kind.canonical(encode(value)))
        except InvalidRequest as error:
            raise InvalidRequest(f"column {column.name}: {error.message}") from None
    return found


def _null_key(column: Column) -> InvalidRequest:
    return InvalidRequest(f"key column {column.name} is null in a row to be written")


def _typed(kind: CqlType, name: str, array: pa.Array) -> pa.Array:
    """The data in the Arrow type that the column is read as."""
    expected = arrow_type(kind)
    if pa.types.is_decimal(array.type) and pa.types.is_decimal(expected):
        return array
    if array.type == expected:
        return array
    try:
        return array.cast(expected)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"column {name}: {error}") from None
    except pa.ArrowNotImplementedError:
        raise InvalidRequest(f"column {name} takes {expected}, not {array.type}") from None


def _times(plan: EncodePlan, batch: pa.RecordBatch) -> Any:
    if not plan.time_column:
        return np.full(batch.num_rows, plan.timestamp_us, dtype=np.int64)
    return _whole_numbers(batch, plan.time_column, -_TIMESTAMP_MAX, _TIMESTAMP_MAX)


def _ttls(plan: EncodePlan, batch: pa.RecordBatch) -> Any:
    if not plan.ttl_column:
        return np.full(batch.num_rows, plan.default_ttl_s, dtype=np.int64)
    return _whole_numbers(batch, plan.ttl_column, 0, TTL_S_MAX)


def _whole_numbers(batch: pa.RecordBatch, name: str, low: int, high: int) -> Any:
    array = batch.column(name)
    if array.null_count:
        raise InvalidRequest(f"column {name} is null in a row to be written")
    found = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if len(found) and not low <= int(found.min()) <= int(found.max()) <= high:
        raise InvalidRequest(f"column {name} has a number that is not from {low} to {high}")
    return found


# -- by whole columns -------------------------------------------------------------------------------


class _Columns:
    """One batch on its way."""

    def __init__(self, plan: EncodePlan, batch: pa.RecordBatch, write_id: bytes) -> None:
        self._plan = plan
        self._batch = batch
        self._write_id = write_id
        self._count = batch.num_rows
        self._times = _times(plan, batch)
        self._ttls = _ttls(plan, batch)

    def encoded(self) -> Encoded:
        plan = self._plan
        cells = {
            column.name: _serialised(plan, column, self._batch.column(name))
            for name, column in zip(plan.columns, plan.written, strict=True)
        }
        for column in (*plan.table.partition_key, *plan.table.clustering):
            if cells[column.name].null_count:
                raise _null_key(column)
        tokens, store_keys = self._keys(cells)
        values = self._values(cells)
        if self._count:
            size = pc.max(pc.add(pc.binary_length(store_keys), pc.binary_length(values))).as_py()
            if size > MUTATION_BYTES_MAX:
                raise InvalidRequest(f"a row of {size} bytes is over the limit of {MUTATION_BYTES_MAX}")
        return Encoded(tokens, store_keys, values)

    # Keys

    def _keys(self, cells: dict[str, pa.BinaryArray]) -> tuple[Any, pa.BinaryArray]:
        parts = [cells[column.name] for column in self._plan.table.partition_key]
        key = parts[0] if len(parts) == 1 else composite_key(parts)
        lengths = pc.binary_length(key)
        if self._count and not 0 < pc.min(lengths).as_py() <= pc.max(lengths).as_py() <= KEY_BYTES_MAX:
            raise InvalidRequest(f"a partition key is empty, or longer than {KEY_BYTES_MAX} bytes")
        tokens = tokens_of(key)
        head = np.empty((self._count, keys.PLACE_BYTES), dtype=np.uint8)
        head[:, :5] = np.frombuffer(keys.table_bounds(self._plan.stored_id)[0], dtype=np.uint8)
        head[:, 5:] = _big_endian((tokens.view(np.uint64) ^ _BIAS), ">u8")
        inverted = _big_endian((_TIMESTAMP_MAX - self._times).view(np.uint64), ">u8")
        pieces = [_binary(head), _escaped(key), b"\x00" + keys.KIND_ROW]
        if self._plan.table.clustering:
            pieces.append(_escaped(self._clustering(cells)))
        return tokens, _joined([*pieces, b"\x00\x00", _binary(inverted), self._write_id], self._count)

    def _clustering(self, cells: dict[str, pa.BinaryArray]) -> pa.BinaryArray:
        columns = self._plan.table.clustering
        parts: list[Any] = [
            _component(self._plan.type_of(column), column.descending, cells[column.name])
            for column in columns
        ]
        return parts[0] if len(parts) == 1 else _joined(parts, self._count)

    # Values

    def _values(self, cells: dict[str, pa.BinaryArray]) -> pa.BinaryArray:
        plan = self._plan
        time, life, gone = self._time(), self._life(), self._gone()
        pieces: list[Any] = [_ROW + _LIVENESS, *time, *life, _NIL]
        shown: list[Any] = []
        regular = sorted(
            (one for one in plan.written if one.kind is ColumnKind.REGULAR), key=lambda one: one.id
        )
        counts = np.full(self._count, len(regular), dtype=np.int64)
        for column in regular:
            head, array = _CELL + codec.encode(column.id), cells[column.name]
            if not array.null_count:
                shown += [head, _bin_heads(array), array, *time, *life, _NIL]
                continue
            there = array.is_valid()
            filled = array.fill_null(b"")
            present = _joined([head, _bin_heads(filled), filled, *time, *life, _NIL], self._count)
            if plan.ignore_nulls:
                absent: Any = pa.scalar(b"", pa.binary())
                counts = counts - (~there.to_numpy(zero_copy_only=False)).astype(np.int64)
            else:
                absent = _joined([head + _NIL, *time, *gone, _NIL], self._count)
            shown.append(pc.if_else(there, present, absent))
        pieces.append(_taken(counts, _array_head))
        return _joined([*pieces, *shown, _NO_ITEMS], self._count)

    def _time(self) -> list[Any]:
        if not self._plan.time_column:
            return [codec.encode(self._plan.timestamp_us)]
        times = self._times
        if len(times) and times.min() >= _WORD_FROM:
            return [b"\xcf", _binary(_big_endian(times.view(np.uint64), ">u8"))]
        return [_taken(times, codec.encode)]

    def _life(self) -> list[Any]:
        """Time to live and when it ends."""
        now_s = self._plan.now_s

        def told(ttl_s: int) -> bytes:
            return codec.encode(ttl_s) + codec.encode(now_s + ttl_s if ttl_s else 0)

        if not self._plan.ttl_column:
            return [told(self._plan.default_ttl_s)]
        return [_taken(self._ttls, told)]

    def _gone(self) -> list[Any]:
        """Of what a null deletes."""
        return [codec.encode(0) + codec.encode(self._plan.now_s)]


def _array_head(count: int) -> bytes:
    assert count < 1 << 16, "a row has no more columns"
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _taken(numbers: Any, encode: Any) -> pa.BinaryArray:
    """Each number encoded; equal ones once."""
    distinct, at = np.unique(numbers, return_inverse=True)
    return pa.array([encode(int(one)) for one in distinct], pa.binary()).take(pa.array(at))


def _bin_heads(array: pa.BinaryArray) -> pa.BinaryArray:
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False)
    if len(lengths) and lengths.max() < 256:
        heads = np.empty((len(lengths), 2), dtype=np.uint8)
        heads[:, 0] = _BIN_8
        heads[:, 1] = lengths
        return _binary(heads)
    return _taken(lengths, lambda length: codec.encode(bytes(length))[:-length] if length else b"\xc4\x00")


def _joined(pieces: Sequence[Any], count: int) -> pa.BinaryArray:
    """Arrays and constants, row by row one behind the other."""
    merged: list[Any] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, bytes) for piece in merged):
        return pa.array([merged[0]] * count, pa.binary())
    told = [pa.scalar(one, pa.binary()) if isinstance(one, bytes) else one for one in merged]
    return pc.binary_join_element_wise(*told, pa.scalar(b"", pa.binary()))


def _escaped(array: pa.BinaryArray) -> pa.BinaryArray:
    return pc.replace_substring(array, b"\x00", b"\x00\xff")


def composite_key(parts: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Partition keys of several columns."""
    pieces: list[Any] = []
    for part in parts:
        lengths = pc.binary_length(part).to_numpy(zero_copy_only=False)
        if len(lengths) and lengths.max() > KEY_BYTES_MAX:
            raise InvalidRequest(f"a partition key is longer than {KEY_BYTES_MAX} bytes")
        pieces += [_binary(_big_endian(lengths, ">u2")), part, b"\x00"]
    return _joined(pieces, len(parts[0]))


def _big_endian(numbers: Any, layout: str) -> Any:
    """Numbers as rows of bytes."""
    return numbers.astype(layout).view(np.uint8).reshape(len(numbers), -1)


def _binary(octets: Any) -> pa.BinaryArray:
    """Rows of bytes, all equally long, as binary values."""
    count, width = octets.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    data = pa.py_buffer(np.ascontiguousarray(octets).tobytes())
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])


_NATIVE: Final = {
    "tinyint": ">i1",
    "smallint": ">i2",
    "int": ">i4",
    "bigint": ">i8",
    "float": ">f4",
    "double": ">f8",
    "boolean": ">u1",
}


def _serialised(plan: EncodePlan, column: Column, array: pa.Array) -> pa.BinaryArray:
    """Values as they are stored; nulls stay nulls."""
    made = serialised(plan.type_of(column), column.name, array)
    if made is not None:
        return made
    found = _python_values(plan, column, array)
    return pa.array([None if one is None or one is UNSET else one for one in found], pa.binary())


def serialised(kind: CqlType, name: str, array: pa.Array) -> pa.BinaryArray | None:
    """Values of a column as they are stored, nulls as nulls; None for a type that is not encoded by whole
    columns. InvalidRequest that names the column."""
    array = _typed(kind, name, array)
    octets = _fixed(kind, array)
    if octets is not None:
        made = _binary(octets)
        return pc.if_else(array.is_valid(), made, pa.scalar(None, pa.binary())) if array.null_count else made
    if kind.name in ("text", "blob"):
        return array.cast(pa.binary())
    if kind.name == "ascii" and pc.all(pc.string_is_ascii(array)).as_py() is not False:
        return array.cast(pa.binary())
    return None


def _fixed(kind: CqlType, array: pa.Array) -> Any:
    """Rows of bytes of a type whose values are numbers; None for others."""
    layout = _NATIVE.get(kind.name)
    if layout is not None:
        if kind.name == "boolean":
            array = array.cast(pa.uint8())
        return _big_endian(array.fill_null(0).to_numpy(zero_copy_only=False), layout)
    if kind.name == "timestamp":
        numbers = array.cast(pa.timestamp("us", "UTC")).view(pa.int64()).fill_null(0)
        return _big_endian(numbers.to_numpy(zero_copy_only=False) // 1000, ">i8")
    if kind.name == "date":
        days = array.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return _big_endian(days + (1 << 31), ">u4")
    return None


def _component(kind: CqlType, descending: bool, values: pa.BinaryArray) -> Any:
    """The part of one column in clustering bytes."""
    if type(kind).component is FixedInteger.component and kind.fixed_bytes:
        width, count = kind.fixed_bytes, len(values)
        octets = np.empty((count, width + 1), dtype=np.uint8)
        octets[:, 0] = 2
        octets[:, 1:] = octets_of(values, width)
        octets[:, 1] ^= 0x80
        return _binary(~octets if descending else octets)
    if type(kind).sort_key is BaseType.sort_key and kind.fixed_bytes is None and not descending:
        return _joined([_escaped(values), b"\x00\x01"], len(values))
    made = [encode_prefix((kind,), (descending,), (value,)) for value in values.to_pylist()]
    return pa.array(made, pa.binary())
