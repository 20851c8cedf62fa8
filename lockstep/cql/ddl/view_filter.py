"""The WHERE clause of a materialized view as a filter of the keys that its rows would have.

Invariant: whether a row of the base table is in the view depends on the columns of the view's key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.cql.compile.catalog import TableShape, shape_of
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepared import Scope
from lockstep.cql.compile.terms import compile_term
from lockstep.cql.functions.native import family, overloads
from lockstep.cql.parse import tree
from lockstep.cql.parse.parser import parse
from lockstep.schema.model import Column, ColumnKind, Keyspace, Table
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest

#: Whether a row whose key columns have these values (by column id) is in the view.
KeyFilter = Callable[[Mapping[int, bytes]], bool]

_Key = tuple[bytes, ...]
#: What no term of a filter depends on.
_ALWAYS: Final = Context(0, 0, 0, 0, bytes(14), bytes)
_COMPARISONS: Final[dict[str, Callable[[_Key, _Key], bool]]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def filter_of(where: str, base: Table, space: Keyspace) -> KeyFilter:
    """The filter of a stored clause."""
    return compile_filter(parsed_where(where), base, space)


def parsed_where(where: str) -> tuple[tree.Relation, ...]:
    """The relations of a stored clause."""
    statement = parse(f"SELECT * FROM t WHERE {where}").statement
    assert isinstance(statement, tree.Select), "a clause makes a statement with any table"
    return statement.where


def compile_filter(relations: Sequence[tree.Relation], base: Table, space: Keyspace) -> KeyFilter:
    """InvalidRequest when a relation does not fit its column or is not one of those that views can have."""
    shape = shape_of(base, space)
    scope = Scope(())
    scope.enter(shape)
    checks = [_check(one, shape, scope) for one in relations if one.operator != "IS NOT NULL"]
    return lambda values: all(check(values) for check in checks)


def _check(relation: tree.Relation, shape: TableShape, scope: Scope) -> KeyFilter:
    columns = [shape.column(name) for name in relation.names]
    terms = relation.values if relation.operator == "IN" else (relation.value,)
    if None in terms or relation.operator not in (*_COMPARISONS, "IN"):
        raise InvalidRequest(
            f"WHERE of a materialized view cannot restrict {columns[0].name} by {relation.operator}"
        )
    if relation.shape == "token":
        raise InvalidRequest("Cannot use token relation when defining a materialized view")
    if relation.shape == "tuple":
        _check_joint(columns, shape)
    kinds = [shape.types[column.name] for column in columns]
    names = [column.name for column in columns]
    targets = []
    for term in terms:
        items = (term,) if relation.shape == "single" else _items(term, len(columns))
        triples = zip(items, kinds, names, strict=True)
        targets.append(
            tuple(kind.sort_key(_constant(item, kind, name, scope)) for item, kind, name in triples)
        )
    places = [(column.id, kind.sort_key) for column, kind in zip(columns, kinds, strict=True)]

    def key(values: Mapping[int, bytes]) -> tuple[bytes, ...]:
        return tuple(sort_key(values[column]) for column, sort_key in places)

    if relation.operator == "IN":
        return lambda values: key(values) in targets
    compare, target = _COMPARISONS[relation.operator], targets[0]
    return lambda values: compare(key(values), target)


def _check_joint(columns: Sequence[Column], shape: TableShape) -> None:
    for column in columns:
        if column.kind != ColumnKind.CLUSTERING:
            raise InvalidRequest(
                "Multi-column relations can only be applied to clustering columns "
                f"but was applied to: {column.name}"
            )
    first = columns[0].position
    if [column.position for column in columns] != list(range(first, first + len(columns))):
        shown = ", ".join(column.name for column in columns)
        raise InvalidRequest(
            f"Clustering columns must appear in the PRIMARY KEY order in multi-column relations: ({shown})"
        )


def _items(term: tree.Term | None, width: int) -> tuple[tree.Term, ...]:
    if not isinstance(term, tree.TupleLiteral) or len(term.items) != width:
        raise InvalidRequest(f"Expected {width} elements in value tuple of a multi-column relation")
    return term.items


def _constant(term: tree.Term | None, kind: CqlType, name: str, scope: Scope) -> bytes:
    assert term is not None
    _refuse_moments(term)
    found = compile_term(term, kind, name, scope).get((), _ALWAYS)
    if not isinstance(found, bytes):
        raise InvalidRequest(f"Invalid null value in condition for column {name}")
    return found


def _refuse_moments(term: tree.Term) -> None:
    """InvalidRequest when a term could be worth something else at another time."""
    if isinstance(term, tree.Bind):
        raise InvalidRequest("Cannot use query parameters in CREATE MATERIALIZED VIEW statements")
    if isinstance(term, tree.Call):
        known = overloads(term.keyspace, term.name)
        if not known and term.name != "token" and family(term.keyspace, term.name) is None:
            raise InvalidRequest("WHERE of a materialized view can only call built-in functions")
        if not all(function.pure for function in known):
            raise InvalidRequest(f"WHERE of a materialized view cannot call {term.name}")
        inner: Sequence[tree.Term] = term.arguments
    elif isinstance(term, tree.Arithmetic):
        inner = (term.left, term.right)
    elif isinstance(term, tree.Negation | tree.TypeHint | tree.Cast):
        inner = (term.term,)
    elif isinstance(term, tree.TupleLiteral | tree.ListLiteral | tree.SetLiteral):
        inner = term.items
    elif isinstance(term, tree.MapLiteral):
        inner = [part for entry in term.entries for part in entry]
    elif isinstance(term, tree.UserLiteral):
        inner = [value for _, value in term.entries]
    else:
        inner = ()
    for part in inner:
        _refuse_moments(part)
