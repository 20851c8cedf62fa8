"""The WHERE clause of a materialized view as a filter of the keys that its rows would have.

Invariant: whether a row of the base table is in the view depends on the columns of the view's key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.cql import tree
from lockstep.cql.catalog import shape_of
from lockstep.cql.parser import parse
from lockstep.cql.prepared import Scope
from lockstep.cql.terms import Constant, compile_term
from lockstep.schema.model import Keyspace, Table
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest

#: Whether a row whose key columns have these values (by column id) is in the view.
KeyFilter = Callable[[Mapping[int, bytes]], bool]

_COMPARISONS: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
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
    checks: list[KeyFilter] = []
    for relation in relations:
        column = shape.column(relation.names[0])
        if relation.operator == "IS NOT NULL":
            continue
        kind = shape.types[column.name]
        terms = relation.values if relation.operator == "IN" else (relation.value,)
        if relation.shape != "single" or None in terms or relation.operator not in (*_COMPARISONS, "IN"):
            raise InvalidRequest(
                f"WHERE of a materialized view cannot restrict {column.name} by {relation.operator}"
            )
        wanted = [_constant(term, kind, column.name, scope) for term in terms if term is not None]
        checks.append(_check(column.id, kind, relation.operator, wanted))
    return lambda values: all(check(values) for check in checks)


def _constant(term: tree.Term, kind: CqlType, name: str, scope: Scope) -> bytes:
    plan = compile_term(term, kind, name, scope)
    if not isinstance(plan, Constant):
        raise InvalidRequest("WHERE of a materialized view can only compare with literals")
    if plan.data is None:
        raise InvalidRequest(f"Invalid null value in condition for column {name}")
    return plan.data


def _check(column: int, kind: CqlType, operator: str, wanted: Sequence[bytes]) -> KeyFilter:
    sort_key = kind.sort_key
    targets = [sort_key(value) for value in wanted]
    if operator == "IN":
        return lambda values: sort_key(values[column]) in targets
    compare, target = _COMPARISONS[operator], targets[0]
    return lambda values: compare(sort_key(values[column]), target)
