"""WHERE clauses analysed: which combinations of relations a table can answer.

Invariant: a clause that is accepted without ALLOW FILTERING reads no row that it does not return.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.compile.catalog import TableShape, cql_name
from lockstep.cql.compile.conditions import (
    bounds,
    check_bounds,
    choice,
    compiled_filter,
    tuple_bounds,
    tuple_choice,
)
from lockstep.cql.compile.index_uses import needs_filtering, usable_indexes, with_index
from lockstep.cql.compile.prepared import Scope
from lockstep.cql.compile.restrictions import RANGE_OPERATORS, Bound, Choice, Clause, Restrictions, Rule
from lockstep.cql.compile.terms import TermPlan, compile_term
from lockstep.cql.parse import tree
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import parse_type
from lockstep.values.errors import InvalidRequest


def analyse(shape: TableShape, relations: Sequence[tree.Relation], scope: Scope, rule: Rule) -> Restrictions:
    """Compile a WHERE clause; InvalidRequest when the table cannot answer it."""
    clause = Clause(shape, scope, rule)
    clause.sort(relations)
    usable = usable_indexes(clause)
    if usable:
        # What indexes do not answer is judged at the end.
        clause.rule = Rule(rule.verb, allow_filtering=True)
    partition = _partition(clause)
    tokens = _token_bounds(clause)
    choices, lower, upper = _clustering(clause)
    _others(clause)
    found = Restrictions(partition, tokens, choices, lower, upper, tuple(clause.filters))
    if usable:
        return with_index(clause, found, usable, allowed=rule.allow_filtering)
    if (
        rule.verb == "SELECT"
        and not rule.allow_filtering
        and (found.filters or (found.has_clustering and not partition))
    ):
        raise InvalidRequest(needs_filtering())
    return found


def _partition(clause: Clause) -> tuple[Choice, ...]:
    keys = clause.shape.table.partition_key
    given = [column for column in keys if column.name in clause.single]
    if clause.tokens:
        if given and (len(given) < len(keys) or not _by_values(clause, given)):
            raise InvalidRequest(
                "Columns cannot be restricted by both a normal relation and a token relation: "
                + ", ".join(column.name for column in given)
            )
        return tuple(choice(clause, column) for column in given)
    usable = _by_values(clause, given)
    if not usable:
        if clause.rule.verb != "SELECT":
            raise InvalidRequest(
                "Only EQ and IN relation are supported on the partition key "
                f"(unless you use the token() function) for {clause.rule.verb} statements"
            )
        if not clause.rule.allow_filtering:
            raise InvalidRequest(needs_filtering())
    if usable and len(given) == len(keys):
        return tuple(choice(clause, column) for column in keys)
    if given and clause.rule.verb == "SELECT" and not clause.rule.allow_filtering:
        raise InvalidRequest(needs_filtering())
    if clause.rule.verb != "SELECT":
        missing = ", ".join(column.name for column in keys if column.name not in clause.single)
        raise InvalidRequest(f"Some partition key parts are missing: {missing}")
    for column in given:
        _filter(clause, column)
    return ()


def _by_values(clause: Clause, columns: Sequence[Column]) -> bool:
    """Whether equality and IN alone restrict the columns."""
    return all(
        relation.operator in ("=", "IN") and relation.shape == "single"
        for column in columns
        for relation in clause.single[column.name]
    )


def _token_bounds(clause: Clause) -> tuple[tuple[str, TermPlan], ...]:
    keys = tuple(column.name for column in clause.shape.table.partition_key)
    bounds = []
    for relation in clause.tokens:
        for name in relation.names:
            clause.shape.column(name)
        if clause.rule.verb != "SELECT":
            raise InvalidRequest(
                f"The token function cannot be used in WHERE clauses for {clause.rule.verb} statements"
            )
        if sorted(relation.names) != sorted(keys):
            raise InvalidRequest(
                "The token() function must be applied to all partition key components or none of them"
            )
        if relation.names != keys:
            raise InvalidRequest(
                f"The token function arguments must be in the partition key order: {', '.join(keys)}"
            )
        if relation.operator not in RANGE_OPERATORS | {"="}:
            raise InvalidRequest(f"{relation.operator} cannot be used with the token function")
        assert relation.value is not None
        term = compile_term(relation.value, parse_type("bigint"), "partition key token", clause.scope)
        bounds.append((relation.operator, term))
    check_bounds([operator for operator, _ in bounds], "token(" + ", ".join(keys) + ")")
    return tuple(bounds)


def _clustering(clause: Clause) -> tuple[tuple[Choice, ...], Bound | None, Bound | None]:
    columns = clause.shape.table.clustering
    choices: list[Choice] = []
    at = 0
    while at < len(columns):
        column = columns[at]
        relations = clause.single.get(column.name, ())
        joint = [relation for relation in clause.multi if relation.names[0] == column.name]
        if joint and joint[0].operator not in ("=", "IN"):
            lower, upper = tuple_bounds(clause, joint)
            width = max(len(relation.names) for relation in joint)
            _rest(clause, at + width, column.name, sliced=True)
            return tuple(choices), lower, upper
        if joint:
            choices.append(tuple_choice(clause, joint[0]))
            at += len(joint[0].names)
            continue
        if not relations:
            _rest(clause, at + 1, column.name, sliced=False)
            return tuple(choices), None, None
        if all(relation.operator in ("=", "IN") and relation.shape == "single" for relation in relations):
            choices.append(choice(clause, column))
            at += 1
            continue
        if any(
            relation.operator not in RANGE_OPERATORS or relation.shape != "single" for relation in relations
        ):
            _rest(clause, at, column.name, sliced=False)
            return tuple(choices), None, None
        lower, upper = bounds(clause, column)
        _rest(clause, at + 1, column.name, sliced=True)
        return tuple(choices), lower, upper
    return tuple(choices), None, None


def _rest(clause: Clause, start: int, stopped_at: str, *, sliced: bool) -> None:
    """Relations on clustering columns that the prefix does not reach must be filtered."""
    for column in clause.shape.table.clustering[start:]:
        joint = [relation for relation in clause.multi if column.name == relation.names[0]]
        if column.name not in clause.single and not joint:
            continue
        if clause.rule.allow_filtering and joint:
            raise InvalidRequest(
                "Multicolumn IN filters are not supported"
                if joint[0].operator == "IN"
                else "Multi-column slice restrictions cannot be used for filtering."
            )
        if not clause.rule.allow_filtering:
            if sliced:
                raise InvalidRequest(
                    f'Clustering column "{column.name}" cannot be restricted (preceding column '
                    f'"{stopped_at}" is restricted by a non-EQ relation)'
                )
            if any(r.operator.startswith("CONTAINS") for r in clause.single.get(column.name, ())):
                _filter(clause, column)
                raise InvalidRequest(
                    "Clustering columns can only be restricted with CONTAINS with a secondary index or "
                    "filtering"
                )
            if column.name == stopped_at:
                raise InvalidRequest(needs_filtering())
            raise _gap(clause, column.name, stopped_at)
        _filter(clause, column)


def _filter(clause: Clause, column: Column) -> None:
    for relation in clause.single[column.name]:
        clause.filters.append(compiled_filter(clause, column, relation))


def _others(clause: Clause) -> None:
    """Relations on columns outside the primary key."""
    for name in clause.single:
        column = clause.shape.column(name)
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            continue
        if clause.rule.verb != "SELECT":
            raise InvalidRequest(f"Non PRIMARY KEY columns found in where clause: {name} ")
        _filter(clause, column)


def _gap(clause: Clause, name: str, preceding: str) -> InvalidRequest:
    if clause.rule.verb == "UPDATE":
        given = {*clause.single, *(one for relation in clause.multi for one in relation.names)}
        missing = [column.name for column in clause.shape.table.clustering if column.name not in given]
        return InvalidRequest(f"Some clustering keys are missing: {', '.join(missing)}")
    return InvalidRequest(
        f'PRIMARY KEY column "{cql_name(name)}" cannot be restricted as preceding column '
        f'"{cql_name(preceding)}" is not restricted'
    )
