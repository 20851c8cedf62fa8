"""The schema as a value.

Invariant: sequences are sorted (keyspaces and tables by name, columns by kind, then position or name),
so that equal schemas have equal bytes. `Table.id` and `Column.id` are given once by the log.
"""

from __future__ import annotations

import enum
from functools import cached_property

import msgspec


class ColumnKind(enum.IntEnum):
    PARTITION_KEY = 0
    CLUSTERING = 1
    STATIC = 2
    REGULAR = 3


class Column(msgspec.Struct, frozen=True, array_like=True):
    """`type` is the canonical CQL text of the type, such as `map<text, frozen<list<int>>>`."""

    id: int
    name: str
    type: str
    kind: ColumnKind
    position: int = -1
    descending: bool = False


class DroppedColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column that was dropped: its cells at or below the time are dead, and its id is never reused."""

    id: int
    name: str
    type: str
    dropped_at_us: int


class Table(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`id` is the storage prefix; `uuid` is what drivers see; `epoch` last changed it."""

    id: int
    uuid: str
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    options: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    next_column_id: int = 1
    dropped: tuple[DroppedColumn, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def by_id(self) -> dict[int, Column]:
        return {column.id: column for column in self.columns}

    @cached_property
    def partition_key(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.PARTITION_KEY)

    @cached_property
    def clustering(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.CLUSTERING)

    @cached_property
    def static(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.STATIC)

    @cached_property
    def regular(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.REGULAR)

    def option(self, name: str, default: str) -> str:
        return dict(self.options).get(name, default)


class Replication(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`strategy` is SimpleStrategy or NetworkTopologyStrategy (short names).

    `factors` is (("", rf),) for SimpleStrategy and sorted (data centre, rf) pairs otherwise.
    """

    strategy: str
    factors: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        return sum(factor for _, factor in self.factors)


class Keyspace(msgspec.Struct, frozen=True, array_like=True, dict=True):
    name: str
    replication: Replication
    durable_writes: bool = True
    tables: tuple[Table, ...] = ()
    epoch: int = 0

    @cached_property
    def by_name(self) -> dict[str, Table]:
        return {table.name: table for table in self.tables}


class Schema(msgspec.Struct, frozen=True, array_like=True, dict=True):
    keyspaces: tuple[Keyspace, ...] = ()
    next_table_id: int = 1

    @cached_property
    def by_name(self) -> dict[str, Keyspace]:
        return {keyspace.name: keyspace for keyspace in self.keyspaces}

    @cached_property
    def tables_by_id(self) -> dict[int, Table]:
        return {table.id: table for keyspace in self.keyspaces for table in keyspace.tables}

    def table(self, keyspace: str, name: str) -> Table | None:
        found = self.by_name.get(keyspace)
        return found.by_name.get(name) if found is not None else None
