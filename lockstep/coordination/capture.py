"""What a change adds to the log of its table's changes: of one mutation of the base, one of the log.

Invariant: a pure function of the mutation, the stream, what was there before, and the second of now; so it is
the same however often it is sent. All rows of one write time have one `cdc$time`, which follows from that
time, the mutation's id and the partition; they are numbered from 0 on, states before first, states after
last, and the last one ends the batch. Cells of the log have the write time of what they tell of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from lockstep.schema.clustering import decode, encode_prefix, slice_bounds, split_key
from lockstep.schema.log_tables import (
    DELETED,
    DELETED_ELEMENTS,
    END_OF_BATCH,
    OPERATION,
    TTL,
    CaptureOptions,
)
from lockstep.schema.model import Column, Keyspace, Table
from lockstep.schema.types import (
    CollectionType,
    CqlType,
    ListType,
    MapType,
    SetType,
    UserDefinedType,
    field_position,
)
from lockstep.schema.user_types import type_in
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.values.rows import Cell, ColumnDeletion, Liveness, Mutation, Partition, Row
from lockstep.values.tokens import stream_token

PRE_IMAGE, UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE = 0, 1, 2, 3, 4
#: Of the start of a range; that of its end is two more.
RANGE_INCLUSIVE, RANGE_EXCLUSIVE, RANGE_END = 5, 6, 2
POST_IMAGE: Final = 9
#: Ticks of 100 ns from the beginning of the Gregorian calendar, where UUIDs of version 1 begin, to 1970.
_UUID_BEGINS: Final = 0x01B21DD213814000
_TRUE: Final = b"\x01"


def time_uuid(timestamp_us: int, lower: bytes) -> bytes:
    """A UUID of version 1 of that time; `lower` are its other eight bytes, of which two bits are set."""
    ticks = timestamp_us * 10 + _UUID_BEGINS
    head = (ticks & 0xFFFFFFFF).to_bytes(4, "big") + (ticks >> 32 & 0xFFFF).to_bytes(2, "big")
    head += (ticks >> 48 & 0x0FFF | 0x1000).to_bytes(2, "big")
    return head + bytes((lower[0] & 0x3F | 0x80,)) + lower[1:8]


def change_time(mutation: Mutation, timestamp_us: int) -> bytes:
    """`cdc$time` of what a mutation changes at a write time: another for each partition of one request."""
    lower = hashlib.blake2b(mutation.mutation_id + mutation.key, digest_size=8).digest()
    return time_uuid(timestamp_us, lower)


def element_time(path: bytes) -> bytes:
    """The time-ordered id of a list's element as a UUID of version 1. Its count lies in bytes below 0x80, for
    the order of UUIDs takes bytes as signed."""
    at_us = int.from_bytes(path[:8], "big") - (1 << 63)
    count = int.from_bytes(path[13:16], "big")
    digits = bytes(count >> shift & 0x3F for shift in (18, 12, 6, 0))
    return time_uuid(at_us, path[8:12] + digits)


class Told(msgspec.Struct):
    """One row of the log before it is numbered: the parts of the clustering that it names, and its values."""

    timestamp_us: int
    operation: int
    clustering: Sequence[bytes] = ()
    ttl_s: int = 0
    values: dict[int, bytes] = {}


class _Of(msgspec.Struct, frozen=True):
    """A column of the base and what the log has for it."""

    kind: CqlType
    value: int
    deleted: int
    elements: int
    value_type: CqlType
    elements_type: CqlType | None


class _Part(msgspec.Struct):
    """What one write time and lifetime changed in a row."""

    liveness: Liveness | None = None
    cells: list[Cell] = []
    deletions: list[ColumnDeletion] = []


class Capture:
    """Of one table; made again when the table or its log changes."""

    def __init__(self, base: Table, log: Table, space: Keyspace, options: CaptureOptions) -> None:
        self.base, self.log, self.options = base, log, options
        ids = {column.name: column.id for column in log.columns}
        self._operation, self._ttl, self._end = ids[OPERATION], ids[TTL], ids[END_OF_BATCH]
        self._partition = [ids[column.name] for column in base.partition_key]
        self._clustering = [ids[column.name] for column in base.clustering]
        self._types = [type_in(space, column.type) for column in base.clustering]
        self._descending = [column.descending for column in base.clustering]
        self._log_types = [type_in(space, column.type) for column in log.clustering]
        self._columns = {c.id: _of(c, log, space) for c in (*base.static, *base.regular)}

    @property
    def reads_before(self) -> bool:
        return self.options.preimage != "false" or self.options.postimage

    def times_us(self, mutation: Mutation) -> list[int]:
        """The write times of what a mutation changes, ascending; none where it changes nothing."""
        return sorted({one.timestamp_us for one in self._told(mutation)})

    def with_log(self, mutation: Mutation, stream: bytes, before: Partition | None, now_s: int) -> Mutation:
        """A mutation that changes something, with what it adds to the log. `before`: the live state of the
        rows that it touches, where `reads_before`."""
        key = list(zip(self._partition, split_key(mutation.key, len(self._partition)), strict=True))
        batches: dict[int, list[Told]] = {}
        for one in sorted(self._told(mutation), key=lambda one: one.timestamp_us):
            batches.setdefault(one.timestamp_us, []).append(one)
        assert batches, "what changes nothing is not captured"
        if self.reads_before:
            self._add_images(batches, mutation, before)
        rows: list[Row] = []
        for timestamp_us, batch in batches.items():
            time = change_time(mutation, timestamp_us)
            for number, one in enumerate(batch):
                rows.append(self._row(one, time, number, number + 1 == len(batch), key, now_s))
        rows.sort(key=lambda row: row.clustering)
        log = Mutation(
            self.log.id,
            stream_token(stream),
            stream,
            mutation.mutation_id,
            mutation.timestamp_us,
            rows=tuple(rows),
        )
        return msgspec.structs.replace(mutation, captured=log)

    def _row(
        self, one: Told, time: bytes, number: int, ends: bool, key: Iterable[tuple[int, bytes]], now_s: int
    ) -> Row:
        ttl_s, at_us = self.options.ttl_s, one.timestamp_us
        expires_at_s = now_s + ttl_s if ttl_s else 0
        values = {**one.values, **dict(key), **dict(zip(self._clustering, one.clustering, strict=False))}
        values[self._operation] = one.operation.to_bytes(1, "big")
        if one.ttl_s:
            values[self._ttl] = one.ttl_s.to_bytes(8, "big")
        if ends:
            values[self._end] = _TRUE
        cells = tuple(Cell(column, values[column], at_us, ttl_s, expires_at_s) for column in sorted(values))
        place = encode_prefix(self._log_types, (False, False), (time, number.to_bytes(4, "big")))
        return Row(place, Liveness(at_us, ttl_s, expires_at_s), None, cells)

    # -- what is told of a mutation ---------------------------------------------------------------

    def _told(self, mutation: Mutation) -> Iterator[Told]:
        """In the order in which it is numbered: static row, rows, then what is deleted, small to large."""
        if mutation.static is not None:
            yield from self._changed(mutation.static, (), mutation.timestamp_us)
        deleted: list[Told] = []
        for row in mutation.rows:
            place = decode(self._types, self._descending, row.clustering)
            if row.liveness is not None or row.cells or row.column_deletions:
                yield from self._changed(row, place, mutation.timestamp_us)
            if row.deletion is not None:
                deleted.append(Told(row.deletion.timestamp_us, ROW_DELETE, place))
        yield from deleted
        for gone in mutation.range_deletions:
            at_us = gone.deletion.timestamp_us
            start, end = slice_bounds(self._types, self._descending, gone.start, gone.end)
            first = RANGE_INCLUSIVE if start.inclusive else RANGE_EXCLUSIVE
            last = RANGE_INCLUSIVE if end.inclusive else RANGE_EXCLUSIVE
            yield Told(at_us, first, start.values)
            yield Told(at_us, last + RANGE_END, end.values)
        if mutation.deletion is not None:
            yield Told(mutation.deletion.timestamp_us, PARTITION_DELETE)

    def _changed(self, row: Row, place: Sequence[bytes], written_us: int) -> Iterator[Told]:
        """One row of the log for each write time and lifetime."""
        parts: dict[tuple[int, int], _Part] = {}
        if row.liveness is not None:
            at = (row.liveness.timestamp_us, row.liveness.ttl_s)
            parts.setdefault(at, _Part()).liveness = row.liveness
        for cell in row.cells:
            if cell.value is not None:
                parts.setdefault((cell.timestamp_us, cell.ttl_s), _Part()).cells.append(cell)
        times = {at_us for at_us, _ in parts}
        for cell in row.cells:
            if cell.value is None:
                _with(parts, cell.timestamp_us).cells.append(cell)
        for gone in row.column_deletions:
            at_us = gone.deletion.timestamp_us
            # Where a collection is written anew, what it had is deleted just before.
            if at_us + 1 == written_us or at_us + 1 in times:
                at_us += 1
            _with(parts, at_us).deletions.append(gone)
        for (at_us, ttl_s), part in parts.items():
            operation = INSERT if part.liveness is not None else UPDATE
            values = {} if self.options.keys_only else self._values(part)
            yield Told(at_us, operation, place, ttl_s, values)

    def _values(self, part: _Part) -> dict[int, bytes]:
        values: dict[int, bytes] = {}
        elements: dict[int, list[Cell]] = {}
        for gone in part.deletions:
            values[self._columns[gone.column].deleted] = _TRUE
        for cell in part.cells:
            of = self._columns[cell.column]
            if cell.path is not None:
                elements.setdefault(cell.column, []).append(cell)
            elif cell.value is None:
                values[of.deleted] = _TRUE
            else:
                values[of.value] = cell.value
        for column, cells in elements.items():
            of = self._columns[column]
            live = [cell for cell in cells if cell.value is not None]
            dead = [cell for cell in cells if cell.value is None]
            if live:
                values[of.value] = _joined(of, live)
            if dead and of.elements:
                values[of.elements] = _gone(of, dead)
        return values

    # -- states before and after ------------------------------------------------------------------

    def _add_images(
        self, batches: dict[int, list[Told]], mutation: Mutation, before: Partition | None
    ) -> None:
        """States before join the first batch that tells of a row, states after the last one."""
        written = [*mutation.rows, *((mutation.static,) if mutation.static is not None else ())]
        first, last = min(batches), max(batches)
        if self.options.preimage != "false" and before is not None:
            known = {row.clustering: row for row in before.rows}
            states = [
                (before.static if row is mutation.static else known.get(row.clustering), row)
                for row in written
            ]
            found = [self._image(PRE_IMAGE, first, state, row) for state, row in states if state is not None]
            batches[first] = [*found, *batches[first]]
        if self.options.postimage:
            change = Partition(
                mutation.token,
                mutation.key,
                mutation.deletion,
                mutation.range_deletions,
                mutation.static,
                mutation.rows,
            )
            after = merge_partitions((before, change) if before is not None else (change,))
            there = {row.clustering: row for row in after.rows}
            for row in written:
                state = after.static if row is mutation.static else there.get(row.clustering)
                if state is not None and _is_live(state):
                    batches[last].append(self._image(POST_IMAGE, last, state, None))

    def _image(self, operation: int, at_us: int, state: Row, written: Row | None) -> Told:
        """A state of a row: all of it, or of a state before the columns that are written, where that is what
        was asked for and the row is not deleted."""
        cells = [cell for cell in state.cells if cell.value is not None and cell.column in self._columns]
        if written is not None and self.options.preimage != "full" and written.deletion is None:
            touched = {cell.column for cell in written.cells}
            touched |= {gone.column for gone in written.column_deletions}
            cells = [cell for cell in cells if cell.column in touched]
        is_static = not state.clustering and bool(self._types)
        place = () if is_static else decode(self._types, self._descending, state.clustering)
        return Told(at_us, operation, place, 0, self._values(_Part(None, cells)))


def _is_live(row: Row) -> bool:
    return row.liveness is not None or any(cell.value is not None for cell in row.cells)


def _with(parts: dict[tuple[int, int], _Part], at_us: int) -> _Part:
    """The part of a write time that what is deleted belongs to: that of an insertion, else the first one."""
    found = [part for (stamp_us, _), part in parts.items() if stamp_us == at_us]
    if not found:
        return parts.setdefault((at_us, 0), _Part())
    return next((part for part in found if part.liveness is not None), found[0])


def _of(column: Column, log: Table, space: Keyspace) -> _Of:
    value = log.by_name[column.name]
    elements = log.by_name.get(DELETED_ELEMENTS + column.name)
    kind = type_in(space, column.type)
    return _Of(
        kind,
        value.id,
        log.by_name[DELETED + column.name].id,
        elements.id if elements is not None and kind.is_multicell else 0,
        type_in(space, value.type),
        type_in(space, elements.type) if elements is not None and kind.is_multicell else None,
    )


def _joined(of: _Of, cells: Sequence[Cell]) -> bytes:
    """Elements as one value of the log's type."""
    kind, whole = of.kind, of.value_type
    if isinstance(kind, UserDefinedType):
        return kind.joined_cells((cell.path or b"", cell.value or b"") for cell in cells)
    assert isinstance(whole, CollectionType), "elements are of a collection or of fields"
    if isinstance(kind, SetType):
        return whole.join([cell.path or b"" for cell in cells])
    parts: list[Any] = []
    for cell in cells:
        path = cell.path or b""
        parts += (element_time(path) if isinstance(kind, ListType) else path, cell.value)
    assert isinstance(whole, MapType), "a list is told by its elements' ids"
    return whole.join(parts)


def _gone(of: _Of, cells: Sequence[Cell]) -> bytes:
    """Which elements are deleted: their keys, ids, or positions of fields."""
    kind, whole = of.kind, of.elements_type
    assert isinstance(whole, SetType), "a set names what is deleted"
    paths = [cell.path or b"" for cell in cells]
    if isinstance(kind, ListType):
        return whole.join([element_time(path) for path in paths])
    if isinstance(kind, UserDefinedType):
        return whole.join([field_position(path).to_bytes(2, "big") for path in paths])
    return whole.join(paths)
