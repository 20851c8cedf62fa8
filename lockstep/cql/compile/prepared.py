"""The schema as statements see it, names to keyspaces and tables with their types; and a statement ready to
be executed any number of times, and what a client is told about it.

Invariant: immutable, and a function of (text, session keyspace, catalog). A Catalog is a value; a plan made
against it stays valid for exactly its tables' epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from lockstep.cql.parse.grammar import RESERVED
from lockstep.cql.parse.tree import Statement, Term
from lockstep.cql.wire.messages import Value
from lockstep.cql.wire.responses import ColumnSpec
from lockstep.schema.log_tables import token_in
from lockstep.schema.model import Column, Keyspace, Schema, Table
from lockstep.schema.types import CqlType, parse_type
from lockstep.schema.user_types import type_in
from lockstep.values.errors import InvalidRequest
from lockstep.values.tokens import token_of


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
    assert len(types) == len(table.columns), "each column has a name of its own"
    assert table.partition_key, "rows have a key"
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


#: Kinds of statements that have a plan.
_COMPILED = frozenset(("SELECT", "MODIFY", "BATCH"))


class Prepared(msgspec.Struct, frozen=True):
    """`kind`: SELECT, MODIFY, BATCH, TRUNCATE, USE, DDL, DESCRIBE.

    `keyspace`, `table`: what it touches ("" where that is nothing or several). `table_id` and
    `table_epoch` are those planned against, so a cached statement can be prepared again when they
    moved. `partition_key_indexes`: bind indexes of the whole partition key in order, or () when it is
    not bound completely. `result_columns`: () unless SELECT. `plan`: the compiled ModificationPlan,
    BatchPlan or SelectPrepared; None for other kinds, which are read from `statement`.
    `is_counter_batch`, `is_logged` describe a BATCH. `called`: (keyspace, name) of user functions and
    aggregates that it may call.
    """

    kind: str
    statement: Statement
    keyspace: str
    table: str
    table_id: int
    table_epoch: int
    bind_columns: tuple[ColumnSpec, ...]
    bind_names: tuple[str | None, ...]
    partition_key_indexes: tuple[int, ...] = ()
    result_columns: tuple[ColumnSpec, ...] = ()
    plan: Any = None
    session_keyspace: str | None = None
    is_virtual: bool = False
    called: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.bind_names) == len(self.bind_columns), "each bind variable has its type"
        key = self.partition_key_indexes
        assert not key or 0 <= min(key) <= max(key) < len(self.bind_columns), "a key is bound"
        assert (self.plan is not None) is (self.kind in _COMPILED), "what reads or writes is compiled"
        assert self.kind == "SELECT" or not (self.result_columns or self.is_virtual), "only reads answer rows"
        assert self.keyspace or not self.table, "a table is in a keyspace"

    def check_values(self, values: object) -> None:
        """InvalidRequest when the number of values is wrong."""
        given = len(values) if isinstance(values, list | tuple) else 0
        if given != len(self.bind_columns):
            raise wrong_value_count(len(self.bind_columns), given)

    def positional(self, named: dict[str, Value]) -> list[Value]:
        """Values sent by name, in bind order; InvalidRequest for a variable without a value."""
        values: list[Value] = []
        for column in self.bind_columns:
            if column.name not in named:
                raise InvalidRequest(f"Missing value for bind variable {column.name}")
            values.append(named[column.name])
        return values


def wrong_value_count(expected: int, given: int) -> InvalidRequest:
    return InvalidRequest(f"Invalid amount of bind variables: expected {expected} but got {given}")


class Scope:
    """Collects the bind variables of one statement while its terms are compiled."""

    def __init__(self, names: tuple[str | None, ...]) -> None:
        self.keyspace = ""
        self.table = ""
        self.partition_types: tuple[CqlType, ...] = ()
        #: From a partition key of the table to its token.
        self.token_of: Callable[[bytes], int] = token_of
        self.space: Keyspace | None = None
        #: Where functions of other keyspaces are looked up.
        self.catalog: Catalog | None = None
        self._called: dict[tuple[str, str], None] = {}
        self.names = names
        self._columns: list[ColumnSpec | None] = [None] * len(names)
        #: Types of calls and operators, so that those inside each other are worked out once.
        self.types: dict[Term, CqlType] = {}
        #: How many calls are being compiled, each inside the one before.
        self.depth = 0

    def enter(self, shape: TableShape) -> None:
        """The bind variables that follow belong to this table."""
        self.keyspace = shape.table.keyspace
        self.table = shape.table.name
        self.partition_types = shape.partition_types
        self.token_of = partial(token_in, shape.table)
        self.space = shape.space
        self.types = {}

    def type_named(self, text: str) -> CqlType:
        """The type that a text of the statement names, user-defined ones included."""
        return parse_type(text) if self.space is None else type_in(self.space, text)

    def space_of(self, keyspace: str | None, name: str) -> Keyspace | None:
        """The keyspace that a call of a function of this name looks into, which is remembered."""
        space = self.space
        if keyspace is not None and (space is None or keyspace != space.name):
            space = self.catalog.schema.by_name.get(keyspace) if self.catalog is not None else None
        if space is not None and name in space.function_names:
            self._called[space.name, name] = None
        return space

    @property
    def called(self) -> tuple[tuple[str, str], ...]:
        """(keyspace, name) of the user functions and aggregates that calls so far may mean."""
        return tuple(self._called)

    def bind(self, index: int, receiver: str, kind: CqlType) -> None:
        name = self.names[index]
        self._columns[index] = ColumnSpec(
            self.keyspace, self.table, name if name is not None else receiver, kind
        )

    def columns(self) -> tuple[ColumnSpec, ...]:
        found = tuple(column for column in self._columns if column is not None)
        if len(found) != len(self._columns):
            raise InvalidRequest("Cannot infer the type of a bind variable; use a type hint")
        return found


__all__ = ["ColumnSpec", "Prepared", "Scope", "wrong_value_count"]
