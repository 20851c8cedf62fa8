"""Statements about user functions and aggregates to schema changes, and initial states of aggregates.

Invariant: as in `ddl`; the text of an initial state reads back as the term that was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lockstep.cql.compile.prepared import Scope, cql_name
from lockstep.cql.compile.terms import Constant, compile_term
from lockstep.cql.parse import tree
from lockstep.cql.parse.parser import parse
from lockstep.schema.function_changes import (
    CreateAggregate,
    CreateFunction,
    DropAggregate,
    DropFunction,
    FunctionChange,
)
from lockstep.schema.model import Keyspace
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in
from lockstep.values.errors import InvalidRequest

FunctionStatement = (
    tree.CreateFunctionStatement
    | tree.DropFunctionStatement
    | tree.CreateAggregateStatement
    | tree.DropAggregateStatement
)
_BOTH: Final = "Cannot use both 'OR REPLACE' and 'IF NOT EXISTS' directives"


def function_change(statement: FunctionStatement, keyspace: str) -> FunctionChange:
    """The change that a statement asks for. InvalidRequest."""
    name = statement.table.name
    if isinstance(statement, tree.DropFunctionStatement):
        return DropFunction(keyspace, name, statement.arguments, statement.if_exists)
    if isinstance(statement, tree.DropAggregateStatement):
        return DropAggregate(keyspace, name, statement.arguments, statement.if_exists)
    if statement.or_replace and statement.if_not_exists:
        raise InvalidRequest(_BOTH)
    if isinstance(statement, tree.CreateFunctionStatement):
        return CreateFunction(
            keyspace,
            name,
            statement.arguments,
            statement.returns,
            statement.language.lower(),
            statement.body,
            statement.called_on_null,
            statement.or_replace,
            statement.if_not_exists,
        )
    return CreateAggregate(
        keyspace,
        name,
        statement.arguments,
        statement.state_function,
        statement.state_type,
        statement.final_function,
        None if statement.initial is None else _initial_text(statement.initial),
        statement.or_replace,
        statement.if_not_exists,
    )


def _initial_text(term: tree.Term) -> str | None:
    if isinstance(term, tree.Literal) and term.kind == "null":
        return None
    return _text(term)


def _text(term: tree.Term) -> str:
    """A literal as CQL text. InvalidRequest for what is no literal."""
    if isinstance(term, tree.Literal):
        quoted = term.text.replace("'", "''")
        return f"'{quoted}'" if term.kind == "string" else term.text
    if isinstance(term, tree.ListLiteral):
        return f"[{_texts(term.items)}]"
    if isinstance(term, tree.SetLiteral):
        return f"{{{_texts(term.items)}}}"
    if isinstance(term, tree.TupleLiteral):
        return f"({_texts(term.items)})"
    if isinstance(term, tree.MapLiteral):
        return "{" + ", ".join(f"{_text(key)}: {_text(value)}" for key, value in term.entries) + "}"
    if isinstance(term, tree.UserLiteral):
        return "{" + ", ".join(f"{cql_name(name)}: {_text(value)}" for name, value in term.entries) + "}"
    if isinstance(term, tree.Negation):
        return f"-{_text(term.term)}"
    raise InvalidRequest("INITCOND must be a literal")


def _texts(terms: Iterable[tree.Term]) -> str:
    return ", ".join(_text(term) for term in terms)


def initial_bytes(text: str | None, kind: CqlType, space: Keyspace) -> bytes | None:
    """The serialised initial state of an aggregate. InvalidRequest when the text is none of the type."""
    if text is None:
        return None
    statement = parse(f"INSERT INTO t (state) VALUES ({text})").statement
    assert isinstance(statement, tree.Insert), "so it was written"
    scope = Scope(())
    scope.space = space
    plan = compile_term(statement.values[0], kind, "INITCOND", scope)
    if not isinstance(plan, Constant):
        raise InvalidRequest("INITCOND must be a literal")
    if not plan.data and kind.name not in ("text", "ascii", "blob"):
        raise InvalidRequest("INITCOND must not be empty for all types except TEXT, ASCII, BLOB")
    return plan.data


def check_initial(change: CreateAggregate, space: Keyspace) -> None:
    """InvalidRequest for an initial state that is not of the state's type."""
    initial_bytes(change.initial, type_in(space, change.state_type), space)
