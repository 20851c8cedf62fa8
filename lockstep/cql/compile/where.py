"""WHERE clauses analysed: which combinations of relations a table can answer, and what one relation means for
one column or tuple of columns.

Invariant: a clause that is accepted without ALLOW FILTERING reads no row that it does not return. A relation
of an operator or type that cannot be answered is refused here, in Cassandra's words.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.compile.index_uses import needs_filtering, usable_indexes, with_index
from lockstep.cql.compile.prepared import Scope, TableShape, cql_name
from lockstep.cql.compile.restrictions import (
    RANGE_OPERATORS,
    Bound,
    Choice,
    Clause,
    Filter,
    Restrictions,
    Rule,
    tuple_width,
)
from lockstep.cql.compile.terms import TermPlan, compile_term
from lockstep.cql.parse import tree
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType, ListType, TupleType, parse_type
from lockstep.schema.user_types import mentions
from lockstep.values.errors import InvalidRequest


def choice(clause: Clause, column: Column) -> Choice:
    relations = clause.single[column.name]
    if len(relations) > 1:
        which = "an Equal" if any(relation.operator == "=" for relation in relations) else "a IN"
        raise InvalidRequest(
            f"{column.name} cannot be restricted by more than one relation if it includes {which}"
        )
    relation, kind = relations[0], clause.shape.types[column.name]
    if relation.operator not in ("=", "IN"):
        raise InvalidRequest(
            f'Clustering column "{column.name}" is restricted by a non-EQ relation before a tuple notation'
        )
    if relation.operator == "=":
        assert relation.value is not None
        return Choice(
            (column.name,), (kind,), (compile_term(relation.value, kind, column.name, clause.scope),)
        )
    if relation.value is not None:
        receiver = f"in({column.name})"
        listed = compile_term(relation.value, ListType(kind, frozen=False), receiver, clause.scope)
        return Choice((column.name,), (kind,), listed=listed, is_in=True)
    terms = tuple(compile_term(term, kind, column.name, clause.scope) for term in relation.values)
    return Choice((column.name,), (kind,), terms, is_in=True)


def _tuple_type(clause: Clause, names: Sequence[str]) -> TupleType:
    return TupleType(tuple(clause.shape.types[name] for name in names))


def tuple_choice(clause: Clause, relation: tree.Relation) -> Choice:
    types = tuple(clause.shape.types[name] for name in relation.names)
    whole = _tuple_type(clause, relation.names)
    if relation.operator == "=":
        assert relation.value is not None
        receiver = f"({','.join(relation.names)})"
        term = compile_term(relation.value, whole, receiver, clause.scope)
        return Choice(relation.names, types, (term,), joint=True)
    receiver = f"in({','.join(relation.names)})"
    if relation.value is not None:
        listed = compile_term(relation.value, ListType(whole, frozen=False), receiver, clause.scope)
        return Choice(relation.names, types, listed=listed, is_in=True, joint=True)
    alternatives = []
    for value in relation.values:
        if isinstance(value, tree.TupleLiteral) and len(value.items) != len(relation.names):
            raise tuple_width(len(relation.names), value)
        alternatives.append(compile_term(value, whole, receiver, clause.scope))
    return Choice(relation.names, types, tuple(alternatives), is_in=True, joint=True)


def bounds(clause: Clause, column: Column) -> tuple[Bound | None, Bound | None]:
    relations, kind = clause.single[column.name], clause.shape.types[column.name]
    _check_durations(kind)
    check_bounds([relation.operator for relation in relations], column.name)
    lower = upper = None
    for relation in relations:
        assert relation.value is not None
        term = compile_term(relation.value, kind, column.name, clause.scope)
        bound = Bound(column.position, (term,), "=" in relation.operator, names=(column.name,))
        if relation.operator[0] == ">":
            lower = bound
        else:
            upper = bound
    return lower, upper


def tuple_bounds(clause: Clause, relations: Sequence[tree.Relation]) -> tuple[Bound | None, Bound | None]:
    common = [name for name in relations[0].names if all(name in one.names for one in relations)]
    check_bounds([relation.operator for relation in relations], " ,".join(common))
    lower = upper = None
    for relation in relations:
        first = clause.shape.column(relation.names[0]).position
        inclusive = "=" in relation.operator
        value = relation.value
        if isinstance(value, tree.TupleLiteral):
            if len(value.items) != len(relation.names):
                raise tuple_width(len(relation.names), value)
            terms = tuple(
                compile_term(item, clause.shape.types[name], name, clause.scope)
                for name, item in zip(relation.names, value.items, strict=True)
            )
            bound = Bound(first, terms, inclusive, names=relation.names)
        else:
            assert value is not None
            receiver = f"({','.join(relation.names)})"
            whole = compile_term(value, _tuple_type(clause, relation.names), receiver, clause.scope)
            bound = Bound(first, (), inclusive, whole, relation.names)
        if relation.operator[0] == ">":
            lower = bound
        else:
            upper = bound
    return lower, upper


def compiled_filter(clause: Clause, column: Column, relation: tree.Relation) -> Filter:
    kind, operator, name = clause.shape.types[column.name], relation.operator, column.name
    if operator == "LIKE":
        raise InvalidRequest(
            f"LIKE restriction is only supported on properly indexed columns. {name} LIKE is not valid."
        )
    if operator == "IS NOT NULL":
        raise InvalidRequest(f"Unsupported restriction: {name} IS NOT NULL")
    if relation.shape == "element":
        return _element_filter(clause, column, kind, relation)
    if operator in ("CONTAINS", "CONTAINS KEY"):
        return _contains_filter(clause, column, kind, relation)
    if operator in RANGE_OPERATORS:
        _check_durations(kind)
    if kind.is_multicell and kind.name == "udt":
        raise InvalidRequest(
            f"Non-frozen UDT column '{name}' ({kind.text}) cannot be restricted by any relation"
        )
    if kind.is_multicell:
        raise InvalidRequest(
            f"Collection column '{name}' ({kind.text}) cannot be restricted by a '{operator}' relation"
        )
    if operator == "IN":
        found = choice(clause, column)
        return Filter(column, kind, "IN", found.terms, found.listed)
    assert relation.value is not None
    return Filter(column, kind, operator, (compile_term(relation.value, kind, name, clause.scope),))


def _check_durations(kind: CqlType) -> None:
    """Durations have no order, nor has what holds them."""
    if not mentions(kind, "duration"):
        return
    what = "duration columns"
    if kind.is_collection:
        what = "collections containing durations"
    elif kind.name == "tuple":
        what = "tuples containing durations"
    elif kind.name == "udt":
        what = "UDTs containing durations"
    raise InvalidRequest(f"Slice restrictions are not supported on {what}")


def _element_filter(clause: Clause, column: Column, kind: CqlType, relation: tree.Relation) -> Filter:
    if kind.name != "map":
        raise InvalidRequest(f"Column {column.name} cannot be used as a map")
    if not kind.is_multicell:
        raise InvalidRequest(
            f"Map-entry equality predicates on frozen map column {column.name} are not supported"
        )
    if relation.operator != "=":
        raise InvalidRequest("Only EQ relations are supported on map entries")
    assert relation.element is not None and relation.value is not None
    element = compile_term(relation.element, kind.key, f"key({column.name})", clause.scope)
    value = compile_term(relation.value, kind.value, f"value({column.name})", clause.scope)
    return Filter(column, kind, "ELEMENT", (value,), element=element)


def _contains_filter(clause: Clause, column: Column, kind: CqlType, relation: tree.Relation) -> Filter:
    assert relation.value is not None
    if not kind.is_collection:
        raise InvalidRequest(f"Cannot use {relation.operator} on non-collection column {column.name}")
    if relation.operator == "CONTAINS KEY":
        if kind.name != "map":
            raise InvalidRequest(f"Cannot use CONTAINS KEY on non-map column {column.name}")
        member, receiver = kind.key, f"key({column.name})"
    else:
        member = kind.value if kind.name == "map" else kind.element
        receiver = f"value({column.name})"
    term = compile_term(relation.value, member, receiver, clause.scope)
    return Filter(column, kind, relation.operator, (term,))


def check_bounds(operators: Sequence[str], what: str) -> None:
    if len(operators) < 2:
        return
    if "=" in operators:
        raise InvalidRequest(f"{what} cannot be restricted by more than one relation if it includes an Equal")
    for sign, edge in ((">", "start"), ("<", "end")):
        if sum(operator[0] == sign for operator in operators) > 1:
            raise InvalidRequest(f"More than one restriction was found for the {edge} bound on {what}")


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
