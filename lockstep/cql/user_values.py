"""Values of CQL as user functions see them, and back.

Invariant: what goes in and comes out unchanged has the same bytes, except that a set of values that Python
cannot hold in a set is a list, and a map with such keys a list of pairs. UUIDs are texts, times whole numbers
of nanoseconds and durations (months, days, nanoseconds), which Python's own types would round.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lockstep.schema.types import (
    CqlType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    VectorType,
    parse_uuid,
    uuid_text,
)
from lockstep.values.errors import InvalidRequest

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST_DAY = datetime.date(1970, 1, 1)
_MS = datetime.timedelta(milliseconds=1)


def _hashable(kind: CqlType) -> bool:
    return not kind.is_collection and not isinstance(kind, TupleType | VectorType)


def to_python(kind: CqlType, data: bytes | None) -> Any:
    """A serialised value for a function. InvalidRequest when Python has no such value."""
    return None if data is None else _shaped(kind, kind.deserialize(data))


def _shaped(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    try:
        if kind.name == "timestamp":
            return _EPOCH + value * _MS
        if kind.name == "date":
            return _FIRST_DAY + datetime.timedelta(days=value)
    except OverflowError:
        raise InvalidRequest(f"a {kind.name} outside the years 1 to 9999") from None
    if kind.name in ("uuid", "timeuuid"):
        return uuid_text(value)
    if isinstance(kind, ListType | VectorType):
        return [_shaped(kind.element, item) for item in value]
    if isinstance(kind, SetType):
        items = [_shaped(kind.element, item) for item in value]
        return set(items) if _hashable(kind.element) else items
    if isinstance(kind, MapType):
        pairs = [(_shaped(kind.key, key), _shaped(kind.value, item)) for key, item in value]
        return dict(pairs) if _hashable(kind.key) else pairs
    if isinstance(kind, TupleType):
        parts = [_shaped(part, item) for part, item in zip(kind.elements, value, strict=False)]
        if not isinstance(kind, UserDefinedType):
            return tuple(parts)
        missing = [None] * (len(kind.field_names) - len(parts))
        return dict(zip(kind.field_names, parts + missing, strict=True))
    return value


def from_python(kind: CqlType, value: Any) -> bytes | None:
    """What a function returned, serialised. InvalidRequest when it is not of the type."""
    return None if value is None else kind.serialize(_plain(kind, value))


def _plain(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    if kind.name in ("uuid", "timeuuid") and isinstance(value, str):
        return parse_uuid(value)
    if isinstance(value, datetime.datetime) and kind.name in ("timestamp", "date"):
        at = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return (at - _EPOCH) // _MS if kind.name == "timestamp" else (at.date() - _FIRST_DAY).days
    if isinstance(value, datetime.date) and kind.name == "date":
        return (value - _FIRST_DAY).days
    if kind.name == "decimal" and isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(str(value))
    if isinstance(kind, ListType | VectorType | SetType) and isinstance(
        value, list | tuple | set | frozenset
    ):
        return [_plain(kind.element, item) for item in value]
    if isinstance(kind, MapType) and isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_plain(kind.key, key), _plain(kind.value, item)) for key, item in pairs]
    if isinstance(kind, UserDefinedType) and isinstance(value, Mapping):
        known = {name: _plain(part, value.get(name)) for name, part in _fields(kind)}
        return known | {name: item for name, item in value.items() if name not in known}
    if isinstance(kind, TupleType) and isinstance(value, list | tuple):
        if len(value) > len(kind.elements):
            raise InvalidRequest(f"{len(value)} values for {kind.text}")
        return tuple(_plain(part, item) for part, item in zip(kind.elements, value, strict=False))
    return value


def _fields(kind: UserDefinedType) -> list[tuple[str, CqlType]]:
    return list(zip(kind.field_names, kind.elements, strict=True))
