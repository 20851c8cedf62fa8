"""What each grammar rule of schema statements and DESCRIBE becomes.

Invariant: as in `reductions`; property values become texts, maps become tuples of text pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from lockstep.cql.parse.reductions import Children, Handler, first, flag, has_flag, pick
from lockstep.cql.parse.tree import (
    AlterKeyspaceStatement,
    AlterTableStatement,
    AlterTypeStatement,
    ColumnDefinition,
    CreateKeyspaceStatement,
    CreateTableStatement,
    CreateTypeStatement,
    Describe,
    DropKeyspaceStatement,
    DropTableStatement,
    DropTypeStatement,
    ListLiteral,
    Literal,
    MapLiteral,
    PrimaryKey,
    Properties,
    SetLiteral,
    TableName,
    Using,
)
from lockstep.schema.replication_options import list_text
from lockstep.values.errors import SyntaxError_


class Option(msgspec.Struct, frozen=True):
    name: str
    value: Any


class ClusteringOrder(msgspec.Struct, frozen=True):
    orders: tuple[tuple[str, bool], ...]


class KeyPart(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


def _literal_text(value: Any, option: str) -> str:
    if isinstance(value, Literal) and value.kind != "null":
        return value.text
    raise SyntaxError_(f"Invalid value for property '{option}': only literals are allowed")


def _entry_text(value: Any, option: str) -> str:
    """Of a map of options. A replication has lists of racks, too, which are texts from here on."""
    if option == "replication" and isinstance(value, ListLiteral):
        return list_text(_literal_text(item, option) for item in value.items)
    return _literal_text(value, option)


def check_each_once(names: Iterable[str]) -> None:
    """SyntaxError_ when a map of options names one twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SyntaxError_(f"Multiple definition for property {name}")
        seen.add(name)


def _option(children: Children) -> Option:
    name, value = children
    if isinstance(value, str):
        return Option(name, value)
    if isinstance(value, MapLiteral):
        pairs = tuple((_literal_text(k, name), _entry_text(v, name)) for k, v in value.entries)
        check_each_once(key for key, _ in pairs)
        return Option(name, pairs)
    if isinstance(value, SetLiteral) and not value.items:
        return Option(name, ())
    return Option(name, _literal_text(value, name))


def _properties(children: Children) -> Properties:
    options: dict[str, Any] = {}
    orders: tuple[tuple[str, bool], ...] = ()
    for child in children:
        if isinstance(child, Option):
            if child.name in options:
                raise SyntaxError_(f"Multiple definitions for property '{child.name}'")
            options[child.name] = child.value
        elif isinstance(child, ClusteringOrder):
            orders += child.orders
    return Properties(tuple(options.items()), orders, has_flag(children, "compact_storage"))


def _create_keyspace(children: Children) -> CreateKeyspaceStatement:
    return CreateKeyspaceStatement(
        pick(children, str), pick(children, Properties), has_flag(children, "if_not_exists")
    )


def _alter_keyspace(children: Children) -> AlterKeyspaceStatement:
    return AlterKeyspaceStatement(
        pick(children, str), pick(children, Properties), has_flag(children, "if_exists")
    )


def _drop_keyspace(children: Children) -> DropKeyspaceStatement:
    return DropKeyspaceStatement(pick(children, str), has_flag(children, "if_exists"))


def _column_definition(children: Children) -> ColumnDefinition:
    name, text, *marks = children
    marked = [mark.name for mark in marks]
    return ColumnDefinition(name, text, "static" in marked, "primary" in marked)


def _primary_key(children: Children) -> PrimaryKey:
    return PrimaryKey(children[0].names, tuple(children[1:]))


def _create_table(children: Children) -> CreateTableStatement:
    return CreateTableStatement(
        pick(children, TableName),
        tuple(child for child in children if isinstance(child, ColumnDefinition)),
        tuple(child for child in children if isinstance(child, PrimaryKey)),
        pick(children, Properties, Properties()),
        has_flag(children, "if_not_exists"),
    )


def _drop_table(children: Children) -> DropTableStatement:
    return DropTableStatement(pick(children, TableName), has_flag(children, "if_exists"))


def _alter_add(children: Children) -> AlterTableStatement:
    table = next(i for i, child in enumerate(children) if isinstance(child, TableName))
    return AlterTableStatement(
        children[table],
        has_flag(children[:table], "if_exists"),
        add=tuple(child for child in children if isinstance(child, ColumnDefinition)),
        if_column_not_exists=has_flag(children, "if_not_exists"),
    )


def _alter_drop(children: Children) -> AlterTableStatement:
    table = next(i for i, child in enumerate(children) if isinstance(child, TableName))
    names = next(child.names for child in children[table:] if hasattr(child, "names"))
    return AlterTableStatement(
        children[table],
        has_flag(children[:table], "if_exists"),
        drop=names,
        if_column_exists=has_flag(children[table:], "if_exists"),
        using=pick(children, Using, Using()),
    )


def _alter_rename(children: Children) -> AlterTableStatement:
    table = next(i for i, child in enumerate(children) if isinstance(child, TableName))
    return AlterTableStatement(
        children[table],
        has_flag(children[:table], "if_exists"),
        rename=tuple(child for child in children if isinstance(child, tuple)),
        if_column_exists=has_flag(children[table:], "if_exists"),
    )


def _alter_with(children: Children) -> AlterTableStatement:
    return AlterTableStatement(
        pick(children, TableName), has_flag(children, "if_exists"), properties=pick(children, Properties)
    )


def _alter_type(children: Children) -> AlterTableStatement:
    return AlterTableStatement(
        pick(children, TableName), has_flag(children, "if_exists"), alter_type=children[-1]
    )


def _pairs(children: Children) -> tuple[tuple[str, str], ...]:
    return tuple(child for child in children if isinstance(child, tuple))


def _create_type(children: Children) -> CreateTypeStatement:
    return CreateTypeStatement(
        pick(children, TableName), _pairs(children), has_flag(children, "if_not_exists")
    )


def _alter_type_add(children: Children) -> AlterTypeStatement:
    return AlterTypeStatement(
        pick(children, TableName),
        has_flag(children, "if_exists"),
        add=_pairs(children)[0],
        if_field_not_exists=has_flag(children, "if_not_exists"),
    )


def _alter_type_rename(children: Children) -> AlterTypeStatement:
    name = next(i for i, child in enumerate(children) if isinstance(child, TableName))
    return AlterTypeStatement(
        children[name],
        has_flag(children[:name], "if_exists"),
        rename=_pairs(children),
        if_field_exists=has_flag(children[name:], "if_exists"),
    )


def _alter_type_type(children: Children) -> AlterTypeStatement:
    return AlterTypeStatement(
        pick(children, TableName), has_flag(children, "if_exists"), alter=pick(children, str)
    )


def _drop_type(children: Children) -> DropTypeStatement:
    return DropTypeStatement(pick(children, TableName), has_flag(children, "if_exists"))


def _describe(what: str, *, full: bool = False) -> Handler:
    def reduce(children: Children) -> Describe:
        table = pick(children, TableName)
        name = pick(children, str)
        return Describe(
            what,
            table.keyspace if table is not None else None,
            table.name if table is not None else name,
            full,
            has_flag(children, "only"),
            has_flag(children, "internals"),
        )

    return reduce


_DESCRIBE_KINDS = (
    *("cluster", "schema", "keyspaces", "tables", "types"),
    *("functions", "aggregates", "keyspace", "table", "type", "any"),
    *("function", "aggregate", "index", "view"),
)
HANDLERS: dict[str, Handler] = {
    "create_keyspace": _create_keyspace,
    "alter_keyspace": _alter_keyspace,
    "drop_keyspace": _drop_keyspace,
    "properties": _properties,
    "option": _option,
    "property_word": first,
    "clustering_order": lambda children: ClusteringOrder(tuple(children)),
    "compact_storage": flag("compact_storage"),
    "create_table": _create_table,
    "column_definition": _column_definition,
    "mark_static": flag("static"),
    "mark_primary": flag("primary"),
    "static": flag("static"),
    "primary_key": _primary_key,
    "key_part": lambda children: KeyPart(tuple(children)),
    "drop_table": _drop_table,
    "alter_table_add": _alter_add,
    "added_column": _column_definition,
    "alter_table_drop": _alter_drop,
    "alter_table_rename": _alter_rename,
    "renaming": tuple,
    "alter_table_with": _alter_with,
    "alter_table_type": _alter_type,
    "create_type": _create_type,
    "type_field": tuple,
    "alter_type_add": _alter_type_add,
    "alter_type_rename": _alter_type_rename,
    "alter_type_type": _alter_type_type,
    "drop_type": _drop_type,
    "only": flag("only"),
    "with_internals": flag("internals"),
    **{f"describe_{what}": _describe(what) for what in _DESCRIBE_KINDS},
    "describe_full_schema": _describe("schema", full=True),
}
