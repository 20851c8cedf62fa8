"""What each grammar rule of indexes, views, functions and aggregates becomes.

Invariant: as in `reductions`; the body of a function and the WHERE clause of a view stay as written.
"""

from __future__ import annotations

import msgspec

from lockstep.cql.parse.reductions import Children, Clause, Handler, Where, flag, has_flag, pick
from lockstep.cql.parse.tree import (
    AlterViewStatement,
    CreateAggregateStatement,
    CreateFunctionStatement,
    CreateIndexStatement,
    CreateViewStatement,
    DropAggregateStatement,
    DropFunctionStatement,
    DropIndexStatement,
    DropViewStatement,
    IndexTarget,
    PrimaryKey,
    Properties,
    TableName,
    Term,
)
from lockstep.values.errors import SyntaxError_

_TARGETS = ("keys", "values", "entries", "full")


class IndexName(msgspec.Struct, frozen=True):
    name: str


class IndexClass(msgspec.Struct, frozen=True):
    name: str


class Argument(msgspec.Struct, frozen=True):
    name: str
    type: str


class Signature(msgspec.Struct, frozen=True):
    types: tuple[str, ...]


class Returned(msgspec.Struct, frozen=True):
    type: str


class Language(msgspec.Struct, frozen=True):
    name: str


class StateFunction(msgspec.Struct, frozen=True):
    name: str


class FinalFunction(msgspec.Struct, frozen=True):
    name: str


class InitialState(msgspec.Struct, frozen=True):
    value: Term


def _index_target(children: Children) -> IndexTarget:
    if len(children) == 1:
        return IndexTarget(children[0])
    what, column = children
    if what not in _TARGETS:
        raise SyntaxError_(f"no viable alternative at input '{what}': an index is on {', '.join(_TARGETS)}")
    return IndexTarget(column, what)


def _create_index(children: Children) -> CreateIndexStatement:
    named, of_class = pick(children, IndexName), pick(children, IndexClass)
    return CreateIndexStatement(
        named.name if named is not None else None,
        pick(children, TableName),
        tuple(child for child in children if isinstance(child, IndexTarget)),
        of_class.name if of_class is not None else None,
        pick(children, Properties, Properties()),
        has_flag(children, "custom"),
        has_flag(children, "if_not_exists"),
    )


def _create_view(children: Children) -> CreateViewStatement:
    names = [child for child in children if isinstance(child, TableName)]
    where = pick(children, Where)
    return CreateViewStatement(
        names[0],
        names[1],
        pick(children, Clause).value,
        where.relations if where is not None else (),
        pick(children, PrimaryKey),
        pick(children, Properties, Properties()),
        has_flag(children, "if_not_exists"),
    )


def _create_function(children: Children) -> CreateFunctionStatement:
    arguments = tuple((child.name, child.type) for child in children if isinstance(child, Argument))
    return CreateFunctionStatement(
        pick(children, TableName),
        arguments,
        pick(children, Returned).type,
        pick(children, Language).name,
        str(children[-1]),
        called_on_null=has_flag(children, "called_on_null"),
        or_replace=has_flag(children, "or_replace"),
        if_not_exists=has_flag(children, "if_not_exists"),
    )


def _create_aggregate(children: Children) -> CreateAggregateStatement:
    final, initial = pick(children, FinalFunction), pick(children, InitialState)
    return CreateAggregateStatement(
        pick(children, TableName),
        pick(children, Signature).types,
        pick(children, StateFunction).name,
        pick(children, Returned).type,
        final.name if final is not None else None,
        initial.value if initial is not None else None,
        or_replace=has_flag(children, "or_replace"),
        if_not_exists=has_flag(children, "if_not_exists"),
    )


def _signature_of(children: Children) -> tuple[str, ...] | None:
    found = pick(children, Signature)
    return found.types if found is not None else None


HANDLERS: dict[str, Handler] = {
    "custom": flag("custom"),
    "index_name": lambda children: IndexName(children[0]),
    "index_target": _index_target,
    "index_entries": lambda children: IndexTarget(children[0], "entries"),
    "index_full": lambda children: IndexTarget(children[0], "full"),
    "using_class": lambda children: IndexClass(children[0]),
    "create_index": _create_index,
    "drop_index": lambda children: DropIndexStatement(
        pick(children, TableName), has_flag(children, "if_exists")
    ),
    "create_view": _create_view,
    "alter_view": lambda children: AlterViewStatement(
        pick(children, TableName), pick(children, Properties), has_flag(children, "if_exists")
    ),
    "drop_view": lambda children: DropViewStatement(
        pick(children, TableName), has_flag(children, "if_exists")
    ),
    "or_replace": flag("or_replace"),
    "argument": lambda children: Argument(*children),
    "called_on_null": flag("called_on_null"),
    "null_on_null": flag("null_on_null"),
    "returned": lambda children: Returned(children[0]),
    "language": lambda children: Language(children[0]),
    "signature": lambda children: Signature(tuple(children)),
    "state_function": lambda children: StateFunction(children[0]),
    "final_function": lambda children: FinalFunction(children[0]),
    "initial_state": lambda children: InitialState(children[0]),
    "create_function": _create_function,
    "drop_function": lambda children: DropFunctionStatement(
        pick(children, TableName), _signature_of(children), has_flag(children, "if_exists")
    ),
    "create_aggregate": _create_aggregate,
    "drop_aggregate": lambda children: DropAggregateStatement(
        pick(children, TableName), _signature_of(children), has_flag(children, "if_exists")
    ),
}
