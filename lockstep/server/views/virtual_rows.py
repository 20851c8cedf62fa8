"""Rows that are generated when they are read, as the rows a replica would hold.

Invariant: equal values give equal rows, on every node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.cql.bind.keys import routing_key
from lockstep.cql.compile.catalog import shape_of
from lockstep.schema.clustering import encode_prefix
from lockstep.schema.model import Column, KeyspaceHead, Replication, Table, keyspace_of
from lockstep.schema.types import CollectionType, CqlType
from lockstep.values.rows import Cell, Liveness, Row

#: Values by column name; a missing or None value is null. Values of static columns repeat in each row.
VirtualRow = Mapping[str, Any]


class Serialized(bytes):
    """A value that is already in the form of its column's type: what many rows share is serialised once."""


LOCAL = Replication("LocalStrategy", ())
#: Generated cells have no write time; any positive one serves.
_WRITTEN_US = 1
_LIVE = Liveness(_WRITTEN_US)
#: Virtual tables use built-in types only.
_NO_TYPES = keyspace_of(KeyspaceHead("system", LOCAL))


class RowEncoder:
    """Encodes the rows of one table."""

    def __init__(self, table: Table) -> None:
        shape = shape_of(table, _NO_TYPES)
        self._shape = shape
        self._key = [(column.name, shape.types[column.name]) for column in table.partition_key]
        self._clustering = [(column.name, shape.types[column.name]) for column in table.clustering]
        self._static = [(column, shape.types[column.name]) for column in table.static]
        self._regular = [(column, shape.types[column.name]) for column in table.regular]

    @property
    def clustering_types(self) -> tuple[CqlType, ...]:
        return self._shape.clustering_types

    def key(self, row: VirtualRow) -> bytes:
        return routing_key([kind.serialize(row[name]) for name, kind in self._key])

    def key_value(self, key: bytes) -> object:
        """The value of a partition key of one column."""
        assert len(self._key) == 1, "only keys of one column are told apart"
        return self._key[0][1].deserialize(key)

    def static(self, row: VirtualRow) -> Row | None:
        """The static row; None when the table has none."""
        return Row(b"", None, None, _cells(self._static, row)) if self._static else None

    def row(self, row: VirtualRow) -> Row:
        values = [kind.serialize(row[name]) for name, kind in self._clustering]
        clustering = encode_prefix(self._shape.clustering_types, self._shape.descending, values)
        return Row(clustering, _LIVE, None, _cells(self._regular, row))


def _cells(columns: Sequence[tuple[Column, CqlType]], row: VirtualRow) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for column, kind in columns:
        value = row.get(column.name)
        if value is None:
            continue
        data = value if type(value) is Serialized else kind.serialize(value)
        if kind.is_multicell:
            assert isinstance(kind, CollectionType)
            cells += _elements(column.id, kind, kind.split(data))
        else:
            cells.append(Cell(column.id, data, _WRITTEN_US))
    cells.sort(key=lambda cell: (cell.column, cell.path or b""))
    return tuple(cells)


def _elements(column: int, kind: CollectionType, parts: Sequence[bytes]) -> list[Cell]:
    if kind.name == "set":
        return [Cell(column, b"", _WRITTEN_US, path=part) for part in parts]
    if kind.name == "list":
        return [Cell(column, part, _WRITTEN_US, path=at.to_bytes(16, "big")) for at, part in enumerate(parts)]
    return [Cell(column, parts[at + 1], _WRITTEN_US, path=parts[at]) for at in range(0, len(parts), 2)]
