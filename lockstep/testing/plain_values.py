"""Python values as tests write them, to and from the values that CQL types serialise.

Owns: which Python type stands for which CQL type. Invariant: what `plain` returns, `shaped` accepts for the
same type, and both stand for one CQL value. Types follow what Python's drivers return: datetime for
timestamp (naive, UTC), date, time, UUID, Decimal, set, dict, tuple; texts for inet.
"""

from __future__ import annotations

import datetime
import ipaddress
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.schema.types import (
    CqlType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    VectorType,
)

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001
_DAY = datetime.date(1970, 1, 1)
_MS = datetime.timedelta(milliseconds=1)


def serialized(kind: CqlType, value: Any) -> bytes | None:
    """Bytes of a Python value as `kind`; None is null. InvalidRequest when it does not fit."""
    return None if value is None else kind.serialize(shaped(kind, value))


def deserialized(kind: CqlType, data: bytes | None) -> Any:
    """The Python value of what a node sent."""
    return None if data is None else plain(kind, kind.deserialize(data))


def shaped(kind: CqlType, value: Any) -> Any:
    """`value` in the shape that `kind.serialize` takes; values already in that shape pass through."""
    if value is None:
        return None
    if isinstance(kind, MapType):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(shaped(kind.key, key), shaped(kind.value, held)) for key, held in pairs]
    if isinstance(kind, ListType | SetType | VectorType):
        return [shaped(kind.element, element) for element in value]
    if isinstance(kind, UserDefinedType) and isinstance(value, Mapping):
        fields = dict(zip(kind.field_names, kind.elements, strict=True))
        return {name: shaped(fields[name], held) if name in fields else held for name, held in value.items()}
    if isinstance(kind, TupleType):
        return tuple(shaped(part, held) for part, held in zip(kind.elements, value, strict=False))
    make = _SHAPERS.get(kind.name)
    return make(value) if make else value


def plain(kind: CqlType, value: Any) -> Any:
    """What `kind.deserialize` returned, as Python's own types."""
    if value is None:
        return None
    if isinstance(kind, MapType):
        return {_key(plain(kind.key, key)): plain(kind.value, held) for key, held in value}
    if isinstance(kind, SetType):
        return {_key(plain(kind.element, element)) for element in value}
    if isinstance(kind, ListType | VectorType):
        return [plain(kind.element, element) for element in value]
    if isinstance(kind, UserDefinedType):
        parts = zip(kind.field_names, kind.elements, value, strict=False)
        return {name: plain(part, held) for name, part, held in parts}
    if isinstance(kind, TupleType):
        return tuple(plain(part, held) for part, held in zip(kind.elements, value, strict=False))
    make = _PLAINERS.get(kind.name)
    return make(value) if make else value


def _key(value: Any) -> Any:
    """A collection as an element of a set or a key of a map."""
    if isinstance(value, list):
        return tuple(_key(element) for element in value)
    if isinstance(value, set):
        return frozenset(value)
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _timestamp_ms(value: Any) -> Any:
    if not isinstance(value, datetime.datetime):
        return value
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return (value - _EPOCH) // _MS


def _date_days(value: Any) -> Any:
    return (value - _DAY).days if type(value) is datetime.date else value


def _time_ns(value: Any) -> Any:
    if not isinstance(value, datetime.time):
        return value
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000


def _uuid_bytes(value: Any) -> Any:
    if isinstance(value, str):
        value = uuid.UUID(value)
    return value.bytes if isinstance(value, uuid.UUID) else value


def _address(value: Any) -> Any:
    return str(value) if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address) else value


def _plain_time(ns: int) -> datetime.time:
    return (_EPOCH + datetime.timedelta(microseconds=ns // 1000)).time()


def _plain_timestamp(ms: int) -> datetime.datetime | int:
    try:
        return _EPOCH + ms * _MS
    except OverflowError:
        return ms  # CQL's timestamps reach further than Python's.


def _plain_date(days: int) -> datetime.date | int:
    try:
        return _DAY + datetime.timedelta(days=days)
    except OverflowError:
        return days


_SHAPERS: dict[str, Callable[[Any], Any]] = {
    "timestamp": _timestamp_ms,
    "date": _date_days,
    "time": _time_ns,
    "uuid": _uuid_bytes,
    "timeuuid": _uuid_bytes,
    "inet": _address,
}
_PLAINERS: dict[str, Callable[[Any], Any]] = {
    "timestamp": _plain_timestamp,
    "date": _plain_date,
    "time": _plain_time,
    "uuid": lambda data: uuid.UUID(bytes=data),
    "timeuuid": lambda data: uuid.UUID(bytes=data),
}
