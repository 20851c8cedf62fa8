"""The schema as statements see it: names to keyspaces and tables with their types.

Invariant: a Catalog is a value; a plan made against it stays valid for exactly its tables' epochs.
"""

from __future__ import annotations

import msgspec

from lockstep.cql.parse.grammar import RESERVED
from lockstep.schema.model import Column, Keyspace, Schema, Table
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in
from lockstep.values.errors import InvalidRequest


class TableShape(msgspec.Struct, frozen=True):
    """A table with its types parsed; sequences follow the primary key's order."""

    table: Table
    space: Keyspace
    types: dict[str, CqlType]
    partition_types: tuple[CqlType, ...]
    clustering_types: tuple[CqlType, ...]
    descending: tuple[bool, ...]

    def column(self, name: str) -> Column:
        found = self.table.by_name.get(name)
        if found is None:
            raise InvalidRequest(
                f"Undefined column name {cql_name(name)} in table {self.table.keyspace}.{self.table.name}"
            )
        return found


def shape_of(table: Table, space: Keyspace) -> TableShape:
    """The shape of a table of the keyspace `space`, whose user-defined types its columns may name."""
    types = {column.name: type_in(space, column.type) for column in table.columns}
    return TableShape(
        table,
        space,
        types,
        tuple(types[column.name] for column in table.partition_key),
        tuple(types[column.name] for column in table.clustering),
        tuple(column.descending for column in table.clustering),
    )


class Catalog(msgspec.Struct, frozen=True):
    """User keyspaces and, kept apart, the virtual ones of the server (never both with one name)."""

    schema: Schema
    virtual: Schema = Schema()

    def keyspace(self, name: str) -> Keyspace:
        """InvalidRequest when there is none."""
        found = self.schema.by_name.get(name) or self.virtual.by_name.get(name)
        if found is None:
            raise InvalidRequest(f"keyspace {name} does not exist")
        return found

    def has_keyspace(self, name: str) -> bool:
        return name in self.schema.by_name or name in self.virtual.by_name

    def is_virtual(self, keyspace: str) -> bool:
        return keyspace in self.virtual.by_name

    def table(self, keyspace: str | None, name: str, session_keyspace: str | None) -> Table:
        """The table a statement names; InvalidRequest when keyspace or table is missing."""
        chosen = keyspace if keyspace is not None else session_keyspace
        if chosen is None:
            raise no_keyspace()
        found = self.keyspace(chosen).by_name.get(name)
        if found is None:
            raise InvalidRequest(f"table {name} does not exist")
        return found


def no_keyspace() -> InvalidRequest:
    return InvalidRequest(
        "No keyspace has been specified. USE a keyspace, or explicitly specify keyspace.tablename"
    )


_PLAIN_FIRST = frozenset("abcdefghijklmnopqrstuvwxyz")
_PLAIN = _PLAIN_FIRST | frozenset("0123456789_")


def cql_name(name: str) -> str:
    """A name as CQL text: quoted when it would not read back as itself."""
    if name and name[0] in _PLAIN_FIRST and _PLAIN.issuperset(name) and name not in RESERVED:
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
