"""Entries of secondary indexes: what a row has in an index, and where that lies in the store.

    family 44 | 01 | table id 4 | index id 4 | value, as a component | token 8 | partition key, escaped | 00
              | kind 1 | clustering, escaped | 00 00 (rows only)

Invariants. What follows the value is the place of the row (or of the partition, for what a partition has
once) as in the keys of `storage.keys`, so the entries of one value are in reading order. The entries of a
fragment are a function of the fragment alone: nothing is read to write them, and writing them again changes
nothing. An entry says that some fragment had the value, not that the row has it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import msgspec

from lockstep.schema.clustering import decode
from lockstep.schema.model import Column, ColumnKind, Keyspace, Table
from lockstep.schema.objects import Index
from lockstep.schema.type_changes import ENTRIES, KEYS
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in
from lockstep.storage.rows import keys
from lockstep.storage.store import Family
from lockstep.values.rows import Cell, Mutation, Row

_HEAD = struct.Struct(">ccII")
_TABLE = struct.Struct(">ccI")
_ENTRY = b"\x01"
#: Bytes of a fragment's key that come before its place.
PLACE_AT = keys.PLACE_BYTES - 8
HEAD_BYTES = _HEAD.size


class IndexDefinition(msgspec.Struct, frozen=True, eq=False):
    """One index as a node maintains it. `whole`: a partition has its values once, for all its rows.

    `types` are those of a value's components; `clustering` those of a clustering, with their directions.
    """

    table_id: int
    index_id: int
    column: int
    kind: ColumnKind
    position: int
    parts: int
    target: str
    types: tuple[CqlType, ...]
    multicell: str
    clustering: tuple[tuple[CqlType, ...], tuple[bool, ...]]

    @property
    def whole(self) -> bool:
        return self.kind in (ColumnKind.STATIC, ColumnKind.PARTITION_KEY)

    @property
    def head(self) -> bytes:
        """What the keys of all its entries begin with."""
        return _HEAD.pack(Family.INDEX.value, _ENTRY, self.table_id, self.index_id)

    def values_of(self, key: bytes, row: Row, counts: Callable[[Cell], bool]) -> Iterator[bytes]:
        """Components of the values that a row of the partition `key` has, of the cells that count; the static
        row for what a partition has once."""
        if self.kind is ColumnKind.PARTITION_KEY:
            yield self.types[0].component(_key_part(key, self.position, self.parts))
        elif self.kind is ColumnKind.CLUSTERING:
            if row.liveness is not None or any(counts(cell) for cell in row.cells):
                found = decode(*self.clustering, row.clustering)
                yield self.types[0].component(found[self.position])
        else:
            for cell in row.cells:
                if cell.column == self.column and counts(cell):
                    yield self._component(cell)

    def _component(self, cell: Cell) -> bytes:
        value, path = cell.value or b"", cell.path or b""
        if self.target == ENTRIES:
            return self.types[0].component(path) + self.types[1].component(value)
        if self.target == KEYS or self.multicell == "set":
            return self.types[0].component(path)
        return self.types[0].component(value)

    def value_end(self, entry: bytes) -> int:
        """Where the value in the key of an entry ends."""
        at = HEAD_BYTES
        for kind in self.types:
            at = kind.take_component(entry, at)[1]
        return at


def definition_of(space: Keyspace, table: Table, index: Index) -> IndexDefinition:
    column = table.by_id[index.column]
    kind = type_in(space, column.type)
    clustering = tuple(type_in(space, found.type) for found in table.clustering)
    return IndexDefinition(
        table.id,
        index.id,
        column.id,
        column.kind,
        column.position,
        len(table.partition_key),
        index.target,
        value_types(kind, index.target),
        kind.name if kind.is_multicell else "",
        (clustering, tuple(found.descending for found in table.clustering)),
    )


def value_types(kind: CqlType, target: str) -> tuple[CqlType, ...]:
    """Types of the components of what an index of a column of this type holds."""
    if not kind.is_collection or not kind.is_multicell:
        return (kind,)
    if kind.name != "map":
        return (kind.element,)
    if target == KEYS:
        return (kind.key,)
    return (kind.key, kind.value) if target == ENTRIES else (kind.value,)


def is_whole(column: Column) -> bool:
    """Whether a partition has the values of an indexed column once."""
    return column.kind in (ColumnKind.STATIC, ColumnKind.PARTITION_KEY)


def has_value(cell: Cell) -> bool:
    """Whether a cell is none that says that something is gone."""
    return cell.value is not None


def live_at(now_s: int) -> Callable[[Cell], bool]:
    return lambda cell: cell.value is not None and (not cell.ttl_s or cell.expires_at_s > now_s)


def place_of(prefix: bytes, clustering: bytes | None) -> bytes:
    """The place of a row of the partition with this prefix, or of the partition (None), in an entry."""
    if clustering is None:
        return prefix[PLACE_AT:] + keys.KIND_STATIC
    return keys.row_prefix(prefix, clustering)[PLACE_AT:]


def split_place(table_id: int, place: bytes) -> tuple[int, bytes, bytes, bytes | None]:
    """(token, partition key, partition prefix, clustering or None) of a place."""
    token, key, prefix = keys.split_partition(keys.table_bounds(table_id)[0] + place)
    return token, key, prefix, clustering_in(place, len(prefix) - PLACE_AT)


def clustering_in(place: bytes, kind_at: int) -> bytes | None:
    """The clustering of a place whose partition ends there; None: it is the partition's."""
    if place[kind_at:] == keys.KIND_STATIC:
        return None
    clustering = place[kind_at + 1 : -2]
    return clustering.replace(b"\x00\xff", b"\x00") if clustering else clustering


def entries_of_row(definition: IndexDefinition, key: bytes, prefix: bytes, row: Row) -> list[bytes]:
    """Keys of the entries of one row's fragment, or of the static one's where that has the values."""
    place = place_of(prefix, None if definition.whole else row.clustering)
    head = definition.head
    found = definition.values_of(key, row, has_value)
    return list(dict.fromkeys(head + value + place for value in found))


def entries_of(definition: IndexDefinition, mutation: Mutation, prefix: bytes) -> list[bytes]:
    """Keys of the entries that a mutation makes."""
    if definition.kind is ColumnKind.PARTITION_KEY:
        row = mutation.static or (mutation.rows[0] if mutation.rows else None)
        return [] if row is None else entries_of_row(definition, mutation.key, prefix, row)
    if definition.whole:
        static = mutation.static
        return [] if static is None else entries_of_row(definition, mutation.key, prefix, static)
    return [entry for row in mutation.rows for entry in entries_of_row(definition, mutation.key, prefix, row)]


def entry_bounds(table_id: int, index_id: int | None = None) -> tuple[bytes, bytes]:
    """Store bounds of all entries of a table, or of one index of it."""
    family = Family.INDEX.value
    if index_id is None:
        return _TABLE.pack(family, _ENTRY, table_id), _TABLE.pack(family, _ENTRY, table_id + 1)
    head = _HEAD.pack(family, _ENTRY, table_id, index_id)
    return head, _HEAD.pack(family, _ENTRY, table_id, index_id + 1)


def _key_part(key: bytes, position: int, count: int) -> bytes:
    """One of several components of a partition key, each behind its length and before a zero byte."""
    assert count > 1, "the only column of a partition key has no index"
    at = 0
    for _ in range(position):
        at += 3 + int.from_bytes(key[at : at + 2], "big")
    return key[at + 2 : at + 2 + int.from_bytes(key[at : at + 2], "big")]
