"""Conditions judged: whether the values of a row are what an IF clause wants.

Invariant: a collection that is kept in cells is null when it is empty, and equal to an empty one; nothing is
above or below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.if_clause import Condition
from lockstep.cql.compile.terms import Values
from lockstep.cql.wire.messages import UNSET, Value
from lockstep.schema.types import CollectionType, CqlType, ListType, UserDefinedType
from lockstep.values.errors import InvalidRequest

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
        return _contains(condition, _value(condition.terms[0].get(values, context)))
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


def _contains(condition: Condition, wanted: bytes | None) -> Check:
    if wanted is None:
        raise InvalidRequest(f'Invalid comparison with null for operator "{condition.operator}"')
    kind = condition.kind
    assert isinstance(kind, CollectionType), "only collections contain"
    start = 1 if kind.name == "map" and condition.operator == "CONTAINS" else 0
    step = kind.parts_per_entry
    return lambda current: current is not None and wanted in kind.split(current)[start::step]
