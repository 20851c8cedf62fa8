"""IF clauses: compiled, what a conditional statement asks of the row it is about to change, and judged,
whether the values of a row are that.

Invariant: a condition that can never be judged is refused here, in Cassandra's words. A collection that is
kept in cells is null when it is empty, and equal to an empty one; nothing is above or below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepared import Scope, TableShape
from lockstep.cql.compile.restrictions import RANGE_OPERATORS, Restrictions
from lockstep.cql.compile.terms import TermPlan, Values, compile_term
from lockstep.cql.parse import tree
from lockstep.cql.wire.messages import UNSET, Value
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CollectionType, CqlType, ListType, TupleType, UserDefinedType, parse_type
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

    def __post_init__(self) -> None:
        assert self.column.kind not in _KEYS, "conditions are on what may change"
        assert self.element is None or self.field is None, "an element or a field is compared"
        assert self.listed is None or (self.operator == "IN" and not self.terms), "only IN has a list"


class Conditions(msgspec.Struct, frozen=True):
    """IF NOT EXISTS, IF EXISTS, or conditions in the order of the statement."""

    not_exists: bool = False
    exists: bool = False
    columns: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        kinds = self.not_exists + self.exists + bool(self.columns)
        assert kinds == 1, "a statement has one kind of condition"

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


#: Told the column's value.
Check = Callable[[bytes | None], bool]

_COMPARISONS: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def bound(condition: Condition, values: Values, context: Context) -> Check:
    """The check of one execution. InvalidRequest for values that cannot be compared."""
    part = _part(condition, values, context)
    if condition.operator in ("CONTAINS", "CONTAINS KEY"):
        return _if_contains(condition, _value(condition.terms[0].get(values, context)))
    if condition.operator == "IN":
        wanted, operator = _alternatives(condition, values, context), "="
    else:
        wanted, operator = [_value(condition.terms[0].get(values, context))], condition.operator
    kind = condition.compared
    whole = condition.element is None and condition.field is None
    empty = _empty(kind) if whole and kind.is_multicell else None
    compares = [_comparison(kind, operator, value, empty) for value in wanted]
    return lambda current: any(compare(part(current)) for compare in compares)


def _value(given: Value) -> bytes | None:
    if given is UNSET:
        raise InvalidRequest("Invalid 'unset' value in condition")
    return given


def _alternatives(condition: Condition, values: Values, context: Context) -> Sequence[bytes | None]:
    if condition.listed is not None:
        listed = _value(condition.listed.get(values, context))
        if listed is None:
            raise InvalidRequest("Invalid null list in IN condition")
        return ListType(condition.compared, frozen=False).split(listed)
    given = [term.get(values, context) for term in condition.terms]
    return [value for value in given if value is not UNSET]


def _empty(kind: CqlType) -> bytes | None:
    return kind.join([]) if isinstance(kind, CollectionType) else None


def _comparison(kind: CqlType, operator: str, wanted: bytes | None, empty: bytes | None) -> Check:
    if wanted is None or wanted == empty:
        if operator == "=":
            return lambda current: current is None or current == empty
        if operator == "!=":
            return lambda current: current is not None and current != empty
        if wanted is None:
            raise InvalidRequest(f'Invalid comparison with null for operator "{operator}"')
        raise InvalidRequest(f'Invalid comparison with an empty {kind.name} for operator "{operator}"')
    compare, target = _COMPARISONS[operator], kind.sort_key(wanted)

    def check(current: bytes | None) -> bool:
        if current is None or current == empty:
            return operator == "!="
        return compare(kind.sort_key(current), target)

    return check


def _part(condition: Condition, values: Values, context: Context) -> Callable[[bytes | None], bytes | None]:
    """What of the column's value is compared."""
    kind, position = condition.kind, condition.field
    if position is not None:
        assert isinstance(kind, UserDefinedType), "fields are of user types"
        at = position

        def field(current: bytes | None) -> bytes | None:
            parts = [] if current is None else kind.split(current)
            return parts[at] if at < len(parts) else None

        return field
    if condition.element is None:
        return lambda current: current
    element = _value(condition.element.get(values, context))
    assert isinstance(kind, CollectionType), "elements are of collections"
    if element is None:
        raise InvalidRequest(f"Invalid null value for {kind.name} element access")
    if kind.name == "map":
        return lambda current: _entry(kind, current, element)
    index = int.from_bytes(element, "big", signed=True)
    if index < 0:
        raise InvalidRequest(f"Invalid negative list index {index}")

    def item(current: bytes | None) -> bytes | None:
        parts = [] if current is None else kind.split(current)
        return parts[index] if index < len(parts) else None

    return item


def _entry(kind: CollectionType, current: bytes | None, key: bytes) -> bytes | None:
    parts = [] if current is None else kind.split(current)
    for at in range(0, len(parts), 2):
        if parts[at] == key:
            return parts[at + 1]
    return None


def _if_contains(condition: Condition, wanted: bytes | None) -> Check:
    if wanted is None:
        raise InvalidRequest(f'Invalid comparison with null for operator "{condition.operator}"')
    kind = condition.kind
    assert isinstance(kind, CollectionType), "only collections contain"
    start = 1 if kind.name == "map" and condition.operator == "CONTAINS" else 0
    step = kind.parts_per_entry
    return lambda current: current is not None and wanted in kind.split(current)[start::step]
