"""Virtual tables: tables whose rows are generated when they are read, all of them, by key, or by name.

The partition key is the keyspace's name, the first clustering column the name of the thing; a thing may have
several rows. A read of one name costs that thing's rows, a page of a scan the rows of the page.

Invariant: a read answers exactly what a replica holding the generated rows would answer, so every SELECT
works on them as on stored tables; nothing is kept between two reads. Equal values give equal rows, on every
node. What `of` gives holds every row that the read asks for, maybe more; the reader takes what fits, so a
keyed read answers exactly what a read of all rows would. A read answers what a replica holding all rows would
answer.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from lockstep.cql.compile.prepared import shape_of
from lockstep.schema.clustering import after_prefix, encode_prefix, routing_key
from lockstep.schema.model import (
    Column,
    ColumnKind,
    Keyspace,
    KeyspaceHead,
    Replication,
    Schema,
    Table,
    keyspace_of,
    schema_of,
)
from lockstep.schema.types import CollectionType, CqlType, parse_type, uuid_text
from lockstep.server.statements.statements import digest16
from lockstep.values.limits import VIRTUAL_ROWS_AT_ONCE_MAX
from lockstep.values.rows import Cell, Liveness, Partition, Position, ReadCommand, ReadResult, Row, Slice
from lockstep.values.tokens import token_of


class NamedRows(msgspec.Struct, frozen=True):
    """`keyspaces`: those that are listed. `keyspace`: one of them by name. `things`: all of one, each with a
    `name`, by name. `thing`: one by name. `rows`: of one thing, in any order; of
    several with one key the last counts. `at_once`: how many rows at most are made in one go. `before`: what
    is done before that, told of the things that rows may be made of, and of more."""

    keyspaces: Callable[[], Iterable[Keyspace]]
    keyspace: Callable[[str], Keyspace | None]
    things: Callable[[Keyspace], Sequence[Any]]
    thing: Callable[[Keyspace, str], Any]
    rows: Callable[[Any], Iterable[VirtualRow]]
    at_once: int = VIRTUAL_ROWS_AT_ONCE_MAX
    before: Callable[[Iterator[Any]], Awaitable[None]] | None = None


class NamedReader:
    """Answers reads of one table."""

    def __init__(self, table: Table, source: NamedRows) -> None:
        self._source = source
        self._encoder = RowEncoder(table)
        self._type = self._encoder.clustering_types[0]
        #: Ends every component of a text, and is in none.
        self._end = self._type.component(b"")

    async def prepare(self, command: ReadCommand) -> None:
        """What is to be done before a read, which has to follow at once."""
        if self._source.before is not None:
            await self._source.before(self._things(command))

    def _things(self, command: ReadCommand) -> Iterator[Any]:
        for _, _, keyspace, edge in self._asked(command):
            for part in sorted(command.slices, key=attrgetter("start"), reverse=command.reverse):
                yield from self._between(keyspace, _behind(part, edge, command.reverse), command.reverse)

    def read(self, command: ReadCommand) -> ReadResult:
        """As many rows as are made at once; `more` when it stopped there or at the command's limit."""
        room = self._source.at_once
        if command.row_limit > 0:
            room = min(room, command.row_limit)
        partitions: list[Partition] = []
        for token, key, keyspace, edge in self._asked(command):
            if room == 0:
                last = partitions[-1]
                return ReadResult(tuple(partitions), True, Position(last.token, last.key))
            bound = min(room, command.partition_row_limit or room)
            rows: list[Row] = []
            for row in self._rows(keyspace, command, edge):
                if len(rows) == bound:
                    break
                rows.append(row)
            else:
                bound = 0
            if rows:
                partitions.append(Partition(token, key, None, (), None, tuple(rows)))
                room -= len(rows)
            if bound and bound != command.partition_row_limit:
                return ReadResult(tuple(partitions), True, Position(token, key, rows[-1].clustering))
        return ReadResult(tuple(partitions))

    def _asked(self, command: ReadCommand) -> Iterator[tuple[int, bytes, Keyspace, bytes | None]]:
        """(token, key, keyspace, clustering behind which to go on) of the partitions that are asked for."""
        if command.key is not None:
            keyspace = self._source.keyspace(command.key.decode(errors="replace"))
            found = [(token_of(command.key), command.key, keyspace)] if keyspace is not None else []
        else:
            keys = [(found.name.encode(), found) for found in self._source.keyspaces()]
            listed = [(token_of(key), key, keyspace) for key, keyspace in keys]
            found = sorted(
                (one for one in listed if command.left < one[0] <= command.right), key=lambda one: one[:2]
            )
        after = command.after
        for token, key, keyspace in found:
            if after is None or (after.token, after.key) < (token, key):
                yield token, key, keyspace, None
            elif after.key == key and after.clustering is not None:
                yield token, key, keyspace, after.clustering

    def _rows(self, keyspace: Keyspace, command: ReadCommand, edge: bytes | None) -> Iterator[Row]:
        """Rows in the order of the command that lie in its slices and behind the edge."""
        reverse = command.reverse
        for part in sorted(command.slices, key=attrgetter("start"), reverse=reverse):
            for thing in self._between(keyspace, _behind(part, edge, reverse), reverse):
                rows = {row.clustering: row for row in map(self._encoder.row, self._source.rows(thing))}
                for at in sorted(rows, reverse=reverse):
                    if part.contains(at) and (edge is None or (at < edge if reverse else at > edge)):
                        yield rows[at]
                        edge = at

    def _between(self, keyspace: Keyspace, part: Slice, reverse: bool) -> Iterable[Any]:
        """The things that have rows within a slice, and maybe one more at its beginning."""
        end = part.start.find(self._end)
        if end >= 0 and part.end and part.end <= after_prefix(part.start[: end + len(self._end)]):
            name, _ = self._type.take_component(part.start, 0)
            thing = self._source.thing(keyspace, name.decode(errors="replace"))
            return () if thing is None else (thing,)
        things = self._source.things(keyspace)
        first = max(0, bisect_left(things, part.start, key=self._encoded) - 1)
        last = bisect_left(things, part.end, key=self._encoded) if part.end else len(things)
        places = range(first, last)
        return (things[at] for at in (reversed(places) if reverse else places))

    def _encoded(self, thing: Any) -> bytes:
        return self._type.component(thing.name.encode())


def _behind(part: Slice, edge: bytes | None, reverse: bool) -> Slice:
    """The part of a slice that is left behind an edge, which may itself be in it."""
    if edge is None:
        return part
    if not reverse:
        return Slice(max(part.start, edge), part.end)
    upper = edge + b"\x00"
    return Slice(part.start, min(part.end, upper) if part.end else upper)


_BIGINT_BYTES = 8
_SIGN = 1 << 63


class Between(msgspec.Struct, frozen=True):
    """Bounds, both included, of the first clustering column where it is a bigint; all of them elsewhere."""

    low: int = -_SIGN
    high: int = _SIGN - 1


EVERYTHING = Between()


class KeyedRows(msgspec.Struct, frozen=True):
    """`every`: all rows. `of`: those of one partition key (as its type reads it) that may lie in bounds."""

    every: Callable[[], Iterable[VirtualRow]]
    of: Callable[[Any, Between], Iterable[VirtualRow]]

    def wanted(self, encoder: RowEncoder, command: ReadCommand) -> Iterable[VirtualRow]:
        if command.key is None:
            return self.every()
        return self.of(encoder.key_value(command.key), _bounds(encoder, command))


def _bounds(encoder: RowEncoder, command: ReadCommand) -> Between:
    kinds = encoder.clustering_types
    if not kinds or kinds[0].name != "bigint":
        return EVERYTHING
    lows = [_number(part.start, b"\x00") if part.start else EVERYTHING.low for part in command.slices]
    highs = [_number(part.end, b"\xff") if part.end else EVERYTHING.high for part in command.slices]
    return Between(min(lows, default=EVERYTHING.low), max(highs, default=EVERYTHING.high))


def _number(encoded: bytes, filler: bytes) -> int:
    """The number in a component or in a beginning of one, which ends at the filler; see schema.clustering."""
    digits = encoded[1 : 1 + _BIGINT_BYTES].ljust(_BIGINT_BYTES, filler)
    return int.from_bytes(digits, "big") - _SIGN


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
    descending: Sequence[str] = (),
    comment: str = "",
) -> VirtualTable:
    """A virtual table; `columns` is `name type; name type; ...`, `static` names the static ones, `descending`
    those whose larger values come first."""
    # Lists where they are written, for they read so; tuples here, for they are kept by what they say.
    keys = tuple(partition), tuple(clustering), tuple(static), tuple(descending)
    return VirtualTable(_definition(keyspace, name, columns, *keys, comment), rows)


@functools.cache
def _definition(
    keyspace: str,
    name: str,
    columns: str,
    partition: tuple[str, ...],
    clustering: tuple[str, ...],
    static: tuple[str, ...],
    descending: tuple[str, ...],
    comment: str,
) -> Table:
    """Kept: what is defined is written in the sources, so there are no more than tables there."""
    kinds = {
        **{column: (ColumnKind.PARTITION_KEY, at) for at, column in enumerate(partition)},
        **{column: (ColumnKind.CLUSTERING, at) for at, column in enumerate(clustering)},
        **dict.fromkeys(static, (ColumnKind.STATIC, -1)),
    }
    declared = []
    for at, declaration in enumerate(columns.split(";")):
        column, _, type_text = declaration.strip().partition(" ")
        kind, position = kinds.get(column, (ColumnKind.REGULAR, -1))
        text = parse_type(type_text.strip()).text
        declared.append(Column(at + 1, column, text, kind, position, column in descending))
    declared.sort(key=lambda column: (column.kind, column.position, column.name))
    options = (("comment", comment),) if comment else ()
    uuid = uuid_text(digest16(f"{keyspace}.{name}".encode()))
    # The id is given when all tables are known; it is negative, as those of stored tables are positive.
    return Table(0, uuid, keyspace, name, tuple(declared), options)


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
        self.schema, numbered = _numbered(tuple(virtual.table for virtual in ordered))
        self._rows: dict[int, tuple[Table, Rows | NamedRows | KeyedRows | AskedRows]] = {
            table.id: (table, virtual.rows) for table, virtual in zip(numbered, ordered, strict=True)
        }
        #: Of the tables that were read: how rows are encoded is worked out then.
        self._readers: dict[int, _Generator | NamedReader] = {}

    async def prepare(self, command: ReadCommand) -> None:
        """To be awaited before each read, which follows at once."""
        reader = self._reader(command.table_id)
        if isinstance(reader, NamedReader):
            await reader.prepare(command)
        else:
            await reader.prepare()

    def read(self, command: ReadCommand) -> ReadResult:
        """The rows a command asks for, all or (`more`) as many as are made at once."""
        return self._reader(command.table_id).read(command)

    def _reader(self, table_id: int) -> _Generator | NamedReader:
        reader = self._readers.get(table_id)
        if reader is None:
            table, rows = self._rows[table_id]
            reader = NamedReader(table, rows) if isinstance(rows, NamedRows) else _Generator(table, rows)
            self._readers[table_id] = reader
        return reader


@functools.lru_cache(maxsize=1)
def _numbered(tables: tuple[Table, ...]) -> tuple[Schema, tuple[Table, ...]]:
    """The last is kept: all nodes of a process have the same tables."""
    keyspaces: dict[str, list[Table]] = {}
    numbered = tuple(msgspec.structs.replace(table, id=-1 - at) for at, table in enumerate(tables))
    for table in numbered:
        keyspaces.setdefault(table.keyspace, []).append(table)
    schema = schema_of(
        keyspace_of(KeyspaceHead(name, REPLICATION.get(name, LOCAL)), listed)
        for name, listed in keyspaces.items()
    )
    return schema, numbered


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
