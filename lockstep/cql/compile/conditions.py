"""Single relations compiled: what one condition means for one column or tuple of columns.

Invariant: a relation of an operator or type that cannot be answered is refused here, in Cassandra's words.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.compile.restrictions import RANGE_OPERATORS, Bound, Choice, Clause, Filter, tuple_width
from lockstep.cql.compile.terms import compile_term
from lockstep.cql.parse import tree
from lockstep.schema.model import Column
from lockstep.schema.types import CqlType, ListType, TupleType
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
