"""Plain Python values, as Spark and Arrow have them, in the bytes that CQL types serialise.

Invariant: the inverse of `scans.arrow_columns` for every type that has a Spark type; a value that does not
fit raises InvalidRequest. Timestamps lose what is below a millisecond, which CQL cannot hold. Timestamps and
dates may come as microseconds and days since 1970, which have all years.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from lockstep.schema.types import CollectionType, CqlType, MapType, TupleType, VectorType
from lockstep.values.errors import InvalidRequest

Encoder: TypeAlias = Callable[[Any], bytes]

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY: Final = datetime.date(1970, 1, 1)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_MICROSECONDS: Final = 1000
_INET_BYTES: Final = (4, 16)


def encoder(kind: CqlType) -> Encoder:
    """The function that serialises one value (never None) of `kind`."""
    special = _SPECIAL.get(kind.name)
    if special is not None:
        return lambda value: kind.serialize(special(kind, value))
    if kind.name == "inet":
        return lambda value: _inet(kind, value)
    if isinstance(kind, MapType):
        return _map_encoder(kind)
    if isinstance(kind, CollectionType | VectorType):
        return _list_encoder(kind)
    if isinstance(kind, TupleType):
        return _tuple_encoder(kind)
    return kind.serialize


def _list_encoder(kind: CollectionType | VectorType) -> Encoder:
    element = encoder(kind.element)

    def encode(value: Any) -> bytes:
        if isinstance(kind, VectorType) and len(value) != kind.dimensions:
            raise _misfit(kind, value)
        return kind.join([element(_present(kind, item)) for item in value])

    return encode


def _map_encoder(kind: MapType) -> Encoder:
    key, value = encoder(kind.key), encoder(kind.value)

    def encode(entries: Any) -> bytes:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        parts: list[bytes] = []
        for one, other in pairs:
            parts += (key(_present(kind, one)), value(_present(kind, other)))
        return kind.join(parts)

    return encode


def _tuple_encoder(kind: TupleType) -> Encoder:
    fields = [encoder(element) for element in kind.elements]

    def encode(value: Any) -> bytes:
        items = list(value.values()) if isinstance(value, Mapping) else list(value)
        if len(items) != len(fields):
            raise _misfit(kind, value)
        return kind.join(
            None if item is None else field(item) for item, field in zip(items, fields, strict=True)
        )

    return encode


def _present(kind: CqlType, value: Any) -> Any:
    if value is None:
        raise InvalidRequest(f"null is not allowed inside {kind.text}")
    return value


def _uuid(kind: CqlType, value: Any) -> bytes:
    try:
        return uuid.UUID(value).bytes
    except (ValueError, AttributeError, TypeError):
        raise _misfit(kind, value) from None


def _timestamp(kind: CqlType, value: Any) -> int:
    if type(value) is int:
        return value // _MICROSECONDS
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise _misfit(kind, value)
    return (value - _EPOCH) // _MILLISECOND


def _date(kind: CqlType, value: Any) -> int:
    if type(value) is int:
        return value
    if not isinstance(value, datetime.date):
        raise _misfit(kind, value)
    return (value - _EPOCH_DAY).days


def _varint(kind: CqlType, value: Any) -> int:
    if not isinstance(value, int | decimal.Decimal) or value != int(value):
        raise _misfit(kind, value)
    return int(value)


def _inet(kind: CqlType, value: Any) -> bytes:
    if isinstance(value, str):
        return kind.serialize(value)
    if not isinstance(value, bytes | bytearray) or len(value) not in _INET_BYTES:
        raise _misfit(kind, value)
    return bytes(value)


def _misfit(kind: CqlType, value: object) -> InvalidRequest:
    return InvalidRequest(f"{value!r} cannot be stored as {kind.text}")


_SPECIAL: Final[dict[str, Callable[[CqlType, Any], object]]] = {
    "uuid": _uuid,
    "timeuuid": _uuid,
    "timestamp": _timestamp,
    "date": _date,
    "varint": _varint,
}
