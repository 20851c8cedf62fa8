"""Virtual tables: tables whose rows are generated when they are read.

Invariant: a read answers exactly what a replica holding the generated rows would answer, so every SELECT
works on them as on stored tables; nothing is kept between two reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.schema.model import Column, ColumnKind, KeyspaceHead, Replication, Table, keyspace_of, schema_of
from lockstep.schema.types import parse_type, uuid_text
from lockstep.server.statements.statements import digest16
from lockstep.server.views.keyed_rows import KeyedRows
from lockstep.server.views.named_rows import NamedReader, NamedRows
from lockstep.server.views.virtual_rows import LOCAL, RowEncoder, VirtualRow
from lockstep.values.rows import Partition, ReadCommand, ReadResult, Row
from lockstep.values.tokens import token_of

Rows = Callable[[], Iterable[VirtualRow]]

#: What tools are told of keyspaces that Cassandra replicates; the others are each node's own.
REPLICATION: Final[Mapping[str, Replication]] = {
    name: Replication("SimpleStrategy", (("", factor),))
    for name, factor in (("system_auth", 1), ("system_distributed", 3), ("system_traces", 2))
}


class AskedRows(msgspec.Struct, frozen=True):
    """Rows that another node may know: `ask` gives all of them, asked for before each read."""

    ask: Callable[[], Awaitable[Iterable[VirtualRow]]]


class VirtualTable(msgspec.Struct, frozen=True):
    """A definition and what gives its present rows: all of them, those of a key, of things by name, or of
    another node."""

    table: Table
    rows: Rows | NamedRows | KeyedRows | AskedRows


def define(
    keyspace: str,
    name: str,
    columns: str,
    partition: Sequence[str],
    clustering: Sequence[str],
    rows: Rows | NamedRows | KeyedRows | AskedRows,
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
    """Reads of a table whose rows are generated, all or those of a key, whatever else the read asks for."""

    def __init__(self, table: Table, rows: Rows | KeyedRows | AskedRows) -> None:
        self._encoder = RowEncoder(table)
        self._asked = rows if isinstance(rows, AskedRows) else None
        self._rows: Rows | KeyedRows = tuple if isinstance(rows, AskedRows) else rows

    async def prepare(self) -> None:
        """What is to be done before a read, which has to follow at once."""
        if self._asked is not None:
            told = tuple(await self._asked.ask())
            self._rows = lambda: told

    def read(self, command: ReadCommand) -> ReadResult:
        """The rows a command asks for; limits on rows are left to the reader, who may take fewer."""
        found = []
        for partition in self._partitions(command):
            if command.key is not None:
                if partition.key != command.key:
                    continue
            elif not command.left < partition.token <= command.right:
                continue
            narrowed = _narrowed(partition, command)
            if narrowed is not None:
                found.append(narrowed)
        return ReadResult(tuple(found))

    def _partitions(self, command: ReadCommand) -> list[Partition]:
        """The partitions in (token, key) order, their rows in clustering order."""
        found: dict[bytes, tuple[Row | None, dict[bytes, Row]]] = {}
        source = self._rows
        for row in source.wanted(self._encoder, command) if isinstance(source, KeyedRows) else source():
            key = self._encoder.key(row)
            known = found.get(key)
            if known is None:
                known = found[key] = (self._encoder.static(row), {})
            encoded = self._encoder.row(row)
            known[1][encoded.clustering] = encoded
        partitions = []
        for token, key in sorted((token_of(key), key) for key in found):
            static, rows = found[key]
            partitions.append(Partition(token, key, None, (), static, tuple(rows[c] for c in sorted(rows))))
        return partitions


class VirtualTables:
    """All virtual tables of a node. `schema` is fixed; ids are the same on every node of one version, so
    paging states of virtual tables work on all of them."""

    def __init__(self, tables: Sequence[VirtualTable]) -> None:
        ordered = sorted(tables, key=lambda found: (found.table.keyspace, found.table.name))
        self._readers: dict[int, _Generator | NamedReader] = {}
        keyspaces: dict[str, list[Table]] = {}
        for at, virtual in enumerate(ordered):
            table = msgspec.structs.replace(virtual.table, id=-1 - at)
            keyspaces.setdefault(table.keyspace, []).append(table)
            rows = virtual.rows
            self._readers[table.id] = (
                NamedReader(table, rows) if isinstance(rows, NamedRows) else _Generator(table, rows)
            )
        self.schema = schema_of(
            keyspace_of(KeyspaceHead(name, REPLICATION.get(name, LOCAL)), listed)
            for name, listed in keyspaces.items()
        )

    async def prepare(self, command: ReadCommand) -> None:
        """To be awaited before each read, which follows at once."""
        reader = self._readers[command.table_id]
        if isinstance(reader, NamedReader):
            await reader.prepare(command)
        else:
            await reader.prepare()

    def read(self, command: ReadCommand) -> ReadResult:
        """The rows a command asks for, all or (`more`) as many as are made at once."""
        return self._readers[command.table_id].read(command)


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
