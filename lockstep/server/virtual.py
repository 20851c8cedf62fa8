"""Virtual tables: tables whose rows are generated when they are read.

Invariant: a read answers exactly what a replica holding the generated rows would answer, so every SELECT
works on them as on stored tables; nothing is kept between two reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lockstep.cql.catalog import TableShape, shape_of
from lockstep.cql.keys import routing_key
from lockstep.schema.clustering import encode_prefix
from lockstep.schema.model import (
    Column,
    ColumnKind,
    KeyspaceHead,
    Replication,
    Table,
    keyspace_of,
    schema_of,
)
from lockstep.schema.types import CollectionType, CqlType, parse_type, uuid_text
from lockstep.server.statements import digest16
from lockstep.values.rows import Cell, Liveness, Partition, ReadCommand, ReadResult, Row
from lockstep.values.tokens import token_of

#: Values by column name; a missing or None value is null. Values of static columns repeat in each row.
VirtualRow = Mapping[str, Any]
Rows = Callable[[], Iterable[VirtualRow]]

#: Generated cells have no write time; any positive one serves.
_WRITTEN_US = 1
_LIVE = Liveness(_WRITTEN_US)
_LOCAL = Replication("LocalStrategy", ())
#: Virtual tables use built-in types only.
_NO_TYPES = keyspace_of(KeyspaceHead("system", _LOCAL))


class VirtualTable(msgspec.Struct, frozen=True):
    """A definition and the function that gives its present rows."""

    table: Table
    rows: Rows


def define(
    keyspace: str,
    name: str,
    columns: str,
    partition: Sequence[str],
    clustering: Sequence[str],
    rows: Rows,
    *,
    static: Sequence[str] = (),
    comment: str = "",
) -> VirtualTable:
    """A virtual table; `columns` is `name type; name type; ...` and `static` names the static ones."""
    kinds = {
        **{column: (ColumnKind.PARTITION_KEY, at) for at, column in enumerate(partition)},
        **{column: (ColumnKind.CLUSTERING, at) for at, column in enumerate(clustering)},
        **dict.fromkeys(static, (ColumnKind.STATIC, -1)),
    }
    declared = []
    for at, text in enumerate(columns.split(";")):
        column, _, type_text = text.strip().partition(" ")
        kind, position = kinds.get(column, (ColumnKind.REGULAR, -1))
        declared.append(Column(at + 1, column, parse_type(type_text.strip()).text, kind, position))
    declared.sort(key=lambda column: (column.kind, column.position, column.name))
    options = (("comment", comment),) if comment else ()
    uuid = uuid_text(digest16(f"{keyspace}.{name}".encode()))
    # The id is given when all tables are known; it is negative, as those of stored tables are positive.
    table = Table(0, uuid, keyspace, name, tuple(declared), options)
    return VirtualTable(table, rows)


class _Generator:
    """Turns the rows of one table into partitions."""

    def __init__(self, table: Table, rows: Rows) -> None:
        shape = shape_of(table, _NO_TYPES)
        self._shape = shape
        self._rows = rows
        self._static = [(column, shape.types[column.name]) for column in table.static]
        self._regular = [(column, shape.types[column.name]) for column in table.regular]

    def partitions(self) -> list[Partition]:
        """All partitions in (token, key) order, their rows in clustering order."""
        found: dict[bytes, tuple[Row | None, dict[bytes, Row]]] = {}
        for row in self._rows():
            key = routing_key(self._parts(self._shape, row, partition=True))
            clustering = encode_prefix(
                self._shape.clustering_types,
                self._shape.descending,
                self._parts(self._shape, row, partition=False),
            )
            known = found.get(key)
            if known is None:
                static = Row(b"", None, None, _cells(self._static, row)) if self._static else None
                known = found[key] = (static, {})
            known[1][clustering] = Row(clustering, _LIVE, None, _cells(self._regular, row))
        partitions = []
        for token, key in sorted((token_of(key), key) for key in found):
            static, rows = found[key]
            partitions.append(Partition(token, key, None, (), static, tuple(rows[c] for c in sorted(rows))))
        return partitions

    @staticmethod
    def _parts(shape: TableShape, row: VirtualRow, *, partition: bool) -> list[bytes]:
        columns = shape.table.partition_key if partition else shape.table.clustering
        return [shape.types[column.name].serialize(row[column.name]) for column in columns]


def _cells(columns: Sequence[tuple[Column, CqlType]], row: VirtualRow) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for column, kind in columns:
        value = row.get(column.name)
        if value is None:
            continue
        data = kind.serialize(value)
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


class VirtualTables:
    """All virtual tables of a node. `schema` is fixed; ids are the same on every node of one version, so
    paging states of virtual tables work on all of them."""

    def __init__(self, tables: Sequence[VirtualTable]) -> None:
        ordered = sorted(tables, key=lambda found: (found.table.keyspace, found.table.name))
        self._generators: dict[int, _Generator] = {}
        keyspaces: dict[str, list[Table]] = {}
        for at, virtual in enumerate(ordered):
            table = msgspec.structs.replace(virtual.table, id=-1 - at)
            keyspaces.setdefault(table.keyspace, []).append(table)
            self._generators[table.id] = _Generator(table, virtual.rows)
        self.schema = schema_of(
            keyspace_of(KeyspaceHead(name, _LOCAL), listed) for name, listed in keyspaces.items()
        )

    def read(self, command: ReadCommand) -> ReadResult:
        """The rows a command asks for; limits on rows are left to the reader, who may take fewer."""
        found = []
        for partition in self._generators[command.table_id].partitions():
            if command.key is not None:
                if partition.key != command.key:
                    continue
            elif not command.left < partition.token <= command.right:
                continue
            narrowed = _narrowed(partition, command)
            if narrowed is not None:
                found.append(narrowed)
        return ReadResult(tuple(found))


def _narrowed(partition: Partition, command: ReadCommand) -> Partition | None:
    """The part of a partition that a command asks for; None when there is nothing."""
    after = command.after
    edge: bytes | None = None
    if after is not None:
        if (partition.token, partition.key) < (after.token, after.key):
            return None
        if partition.key == after.key:
            if after.clustering is None:
                return None
            edge = after.clustering
    rows = [row for row in partition.rows if any(part.contains(row.clustering) for part in command.slices)]
    if command.reverse:
        rows.reverse()
    if edge is not None:
        rows = [row for row in rows if (row.clustering < edge if command.reverse else row.clustering > edge)]
    if command.partition_row_limit > 0:
        rows = rows[: command.partition_row_limit]
    static = partition.static if command.reads_static else None
    if not rows and (static is None or not static.cells or edge is not None):
        return None
    return msgspec.structs.replace(partition, static=static, rows=tuple(rows))
