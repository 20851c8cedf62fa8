"""IF clauses compiled: what a conditional statement asks of the row it is about to change.

Invariant: a condition that can never be judged is refused here, in Cassandra's words.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.cql.compile.catalog import TableShape
from lockstep.cql.compile.prepared import Scope
from lockstep.cql.compile.restrictions import RANGE_OPERATORS, Restrictions
from lockstep.cql.compile.terms import TermPlan, compile_term
from lockstep.cql.parse import tree
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType, ListType, TupleType, UserDefinedType, parse_type
from lockstep.values.errors import InvalidRequest

_KEYS = (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)


class Condition(msgspec.Struct, frozen=True):
    """`kind` is the column's type, `compared` that of the values: of the column, of an element or a field.

    `terms` are the values, or `listed` yields a list of them for IN. `element`: the key or index in a
    collection; `field`: the position in a user type.
    """

    column: Column
    kind: CqlType
    compared: CqlType
    operator: str
    terms: tuple[TermPlan, ...] = ()
    listed: TermPlan | None = None
    element: TermPlan | None = None
    field: int | None = None


class Conditions(msgspec.Struct, frozen=True):
    """IF NOT EXISTS, IF EXISTS, or conditions in the order of the statement."""

    not_exists: bool = False
    exists: bool = False
    columns: tuple[Condition, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """Columns that are shown when the conditions are not met: regular ones, then static ones."""
        names = [found.column.name for found in self.columns if found.column.kind is ColumnKind.REGULAR]
        names += [found.column.name for found in self.columns if found.column.kind is ColumnKind.STATIC]
        return tuple(dict.fromkeys(names))


def compile_conditions(
    conditions: tree.Conditions | None, using: tree.Using, shape: TableShape, scope: Scope
) -> Conditions | None:
    """None without conditions. InvalidRequest for what cannot be asked of the table."""
    if conditions is None:
        return None
    if using.timestamp is not None:
        raise InvalidRequest("Cannot provide custom timestamp for conditional updates")
    columns = tuple(_condition(relation, shape, scope) for relation in conditions.relations)
    return Conditions(conditions.not_exists, conditions.exists, columns)


def _condition(relation: tree.Relation, shape: TableShape, scope: Scope) -> Condition:
    column, kind = shape.column(relation.names[0]), shape.types[relation.names[0]]
    if column.kind in _KEYS:
        raise InvalidRequest(f"PRIMARY KEY column '{column.name}' cannot have IF conditions")
    if kind.name == "counter":
        raise InvalidRequest("Conditions on counters are not supported")
    if relation.shape == "element":
        return _on_element(relation, column, kind, scope)
    if relation.shape == "field":
        return _on_field(relation, column, kind, scope)
    if relation.operator in ("CONTAINS", "CONTAINS KEY"):
        return _contains(relation, column, kind, scope)
    return _compared(relation, Condition(column, kind, kind, relation.operator), column.name, scope)


def _compared(relation: tree.Relation, condition: Condition, receiver: str, scope: Scope) -> Condition:
    """The condition with its values."""
    kind = condition.compared
    if relation.operator in RANGE_OPERATORS:
        _check_durations(kind, relation.operator)
    if relation.operator != "IN":
        assert relation.value is not None, "only IN has several values"
        term = compile_term(relation.value, kind, receiver, scope)
        return msgspec.structs.replace(condition, terms=(term,))
    if relation.value is not None:
        listed = compile_term(relation.value, ListType(kind, frozen=False), f"in({receiver})", scope)
        return msgspec.structs.replace(condition, listed=listed)
    terms = tuple(compile_term(term, kind, receiver, scope) for term in relation.values)
    return msgspec.structs.replace(condition, terms=terms)


def _on_element(relation: tree.Relation, column: Column, kind: CqlType, scope: Scope) -> Condition:
    name = column.name
    if not kind.is_collection:
        raise InvalidRequest(f"Invalid element access syntax for non-collection column {name}")
    if kind.name == "set":
        raise InvalidRequest(f"Invalid element access syntax for set column {name}")
    assert relation.element is not None, "an element is named"
    if kind.name == "map":
        compared, key, receiver = kind.value, kind.key, f"key({name})"
    else:
        compared, key, receiver = kind.element, parse_type("int"), f"idx({name})"
    element = compile_term(relation.element, key, receiver, scope)
    condition = Condition(column, kind, compared, relation.operator, element=element)
    return _compared(relation, condition, f"value({name})", scope)


def _on_field(relation: tree.Relation, column: Column, kind: CqlType, scope: Scope) -> Condition:
    if not isinstance(kind, UserDefinedType):
        raise InvalidRequest(f"Invalid field access syntax for non-UDT column {column.name}")
    assert relation.field is not None, "a field is named"
    found = kind.field(relation.field)
    if found is None:
        raise InvalidRequest(f"Unknown field {relation.field} for column {column.name}")
    condition = Condition(column, kind, found[1], relation.operator, field=found[0])
    return _compared(relation, condition, f"{column.name}.{relation.field}", scope)


def _contains(relation: tree.Relation, column: Column, kind: CqlType, scope: Scope) -> Condition:
    by_key = relation.operator == "CONTAINS KEY"
    if by_key and kind.name != "map":
        raise InvalidRequest(f"Cannot use CONTAINS KEY on non-map column {column.name}")
    if not kind.is_collection:
        raise InvalidRequest(f"Cannot use CONTAINS on non-collection column {column.name}")
    if by_key:
        member, receiver = kind.key, f"key({column.name})"
    else:
        member = kind.value if kind.name == "map" else kind.element
        receiver = f"value({column.name})"
    return _compared(relation, Condition(column, kind, member, relation.operator), receiver, scope)


def _check_durations(kind: CqlType, operator: str) -> None:
    if not _has_durations(kind):
        return
    for named, matches in (
        ("collections", kind.is_collection),
        ("UDTs", isinstance(kind, UserDefinedType)),
        ("tuples", isinstance(kind, TupleType)),
    ):
        if matches:
            raise InvalidRequest(f"Slice conditions are not supported on {named} containing durations")
    raise InvalidRequest(f"Slice conditions ( {operator} ) are not supported on durations")


def _has_durations(kind: CqlType) -> bool:
    if kind.is_collection:
        members = (kind.key, kind.value) if kind.name == "map" else (kind.element,)
        return any(_has_durations(member) for member in members)
    if isinstance(kind, TupleType):
        return any(_has_durations(member) for member in kind.elements)
    return kind.name == "duration"


def asks_rows(conditions: tree.Conditions | None, shape: TableShape) -> bool:
    """Whether conditions of a statement are about regular columns, so that it must name a row."""
    if conditions is None:
        return False
    names = (relation.names[0] for relation in conditions.relations)
    return any(shape.column(name).kind is ColumnKind.REGULAR for name in names)


def check_deletion(
    conditions: tree.Conditions | None,
    shape: TableShape,
    restrictions: Restrictions,
    kinds: Sequence[ColumnKind],
) -> None:
    """`kinds`: of the columns that are deleted, none for whole rows. InvalidRequest when conditions need a
    row that the statement does not name."""
    if conditions is None:
        return
    named = bool(restrictions.partition) and restrictions.lower is None and restrictions.upper is None
    if named and restrictions.clustering_width == len(shape.table.clustering):
        return
    needed = "DELETE statements must restrict all PRIMARY KEY columns with equality relations in order to"
    if not kinds or ColumnKind.REGULAR in kinds:
        raise InvalidRequest(f"{needed} delete non static columns")
    if asks_rows(conditions, shape):
        raise InvalidRequest(f"{needed} use IF condition on non static columns")


def check_in(conditions: Conditions, restrictions: Restrictions, verb: str) -> None:
    """Conditions are about one row. InvalidRequest for IN in the WHERE clause."""
    what = "deletions" if verb == "DELETE" else "updates"
    for where, choices in (
        ("partition key", restrictions.partition),
        ("clustering key columns", restrictions.clustering),
    ):
        if any(choice.is_in for choice in choices):
            raise InvalidRequest(f"IN on the {where} is not supported with conditional {what}")
