"""Conditions that are checked on rows after the read.

Invariant: a null column fulfils no condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.cql.bind.evaluation import Record
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.ranges import required
from lockstep.cql.compile.restrictions import Filter
from lockstep.cql.compile.terms import TermPlan, Values
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.types import CollectionType, CqlType, ListType
from lockstep.values.errors import InvalidRequest

Check = Callable[[Record], bool]

_COMPARISONS: dict[str, Callable[[bytes, bytes], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def bound_filters(
    filters: Sequence[Filter], slots: dict[str, int], values: Values, context: Context
) -> tuple[Check, ...]:
    """The checks of one execution; InvalidRequest for null or unset values."""
    return tuple(_bound(found, slots[found.column.name], values, context) for found in filters)


def supported(term: TermPlan, what: str, name: str, values: Values, context: Context) -> bytes:
    """The bytes of a value that rows are checked for; InvalidRequest when it is null or unset."""
    value = term.get(values, context)
    if value is None or value is UNSET:
        given = "null" if value is None else "unset"
        raise InvalidRequest(f"Unsupported {given} {what} for column {name}")
    return value


def _bound(found: Filter, slot: int, values: Values, context: Context) -> Check:
    name = found.column.name
    if found.operator == "IN":
        wanted = [required(term, name, values, context) for term in found.terms]
        return _one_of(found, slot, wanted, values, context)
    if found.operator == "ELEMENT":
        assert found.element is not None
        key = supported(found.element, "map key", name, values, context)
        return _entry(found.type, slot, key, supported(found.terms[0], "map value", name, values, context))
    wanted = [supported(term, "value", name, values, context) for term in found.terms]
    if found.operator == "CONTAINS":
        return _contains(found.type, slot, wanted[0])
    if found.operator == "CONTAINS KEY":
        return lambda record: record[slot] is not None and wanted[0] in _parts(found.type, record[slot])[::2]
    compare, sort_key = _COMPARISONS[found.operator], found.type.sort_key
    target = sort_key(wanted[0])
    return lambda record: record[slot] is not None and compare(sort_key(record[slot]), target)


def _one_of(found: Filter, slot: int, wanted: Sequence[bytes], values: Values, context: Context) -> Check:
    if found.listed is not None:
        kind = ListType(found.type, frozen=False)
        wanted = _parts(kind, required(found.listed, found.column.name, values, context))
    keys = {found.type.sort_key(value): None for value in wanted}
    return lambda record: record[slot] is not None and found.type.sort_key(record[slot]) in keys


def _parts(kind: CqlType, data: bytes) -> list[bytes]:
    assert isinstance(kind, CollectionType)
    return kind.split(data)


def _contains(kind: CqlType, slot: int, wanted: bytes) -> Check:
    if kind.name == "map":
        return lambda record: record[slot] is not None and wanted in _parts(kind, record[slot])[1::2]
    return lambda record: record[slot] is not None and wanted in _parts(kind, record[slot])


def _entry(kind: CqlType, slot: int, key: bytes, value: bytes) -> Check:
    def check(record: Record) -> bool:
        if record[slot] is None:
            return False
        parts = _parts(kind, record[slot])
        return any(parts[at] == key and parts[at + 1] == value for at in range(0, len(parts), 2))

    return check
