"""CQL types as Spark's, and values as Spark has them in the bytes that CQL types serialise.

Invariant: the inverse of `scans.arrow_columns` for every type that has a Spark type; a value that does not
fit raises InvalidRequest. Timestamps lose what is below a millisecond, which CQL cannot hold.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pyspark.sql import types as spark

from lockstep.scans.arrow_columns import DECIMAL_DIGITS, DECIMAL_SCALE_DEFAULT
from lockstep.schema.types import CollectionType, CqlType, MapType, TupleType, UserDefinedType, VectorType
from lockstep.values.errors import InvalidRequest

#: CQL name -> Spark type.
_SIMPLE: Final = {
    "tinyint": spark.ByteType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "time": spark.LongType(),
    "timestamp": spark.TimestampType(),
    "date": spark.DateType(),
    "boolean": spark.BooleanType(),
    "uuid": spark.StringType(),
    "timeuuid": spark.StringType(),
    "text": spark.StringType(),
    "ascii": spark.StringType(),
    "blob": spark.BinaryType(),
    "inet": spark.BinaryType(),
}


def spark_type(kind: CqlType, decimal_scale: int = DECIMAL_SCALE_DEFAULT) -> spark.DataType:
    """The Spark type of a CQL type; InvalidRequest for counter and duration, which have none."""
    if kind.name in _SIMPLE:
        return _SIMPLE[kind.name]
    if kind.name == "varint":
        return spark.DecimalType(DECIMAL_DIGITS, 0)
    if kind.name == "decimal":
        return spark.DecimalType(DECIMAL_DIGITS, decimal_scale)
    if isinstance(kind, MapType):
        return spark.MapType(spark_type(kind.key, decimal_scale), spark_type(kind.value, decimal_scale))
    if isinstance(kind, CollectionType | VectorType):
        return spark.ArrayType(spark_type(kind.element, decimal_scale))
    if isinstance(kind, TupleType):
        names = tuple(f"_{index}" for index in range(1, len(kind.elements) + 1))
        if isinstance(kind, UserDefinedType):
            names = kind.field_names
        return spark.StructType(
            [
                spark.StructField(name, spark_type(element, decimal_scale))
                for name, element in zip(names, kind.elements, strict=True)
            ]
        )
    raise InvalidRequest(f"{kind.text} has no Spark type")


Encoder: TypeAlias = Callable[[Any], bytes]

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY: Final = datetime.date(1970, 1, 1)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
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
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise _misfit(kind, value)
    return (value - _EPOCH) // _MILLISECOND


def _date(kind: CqlType, value: Any) -> int:
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
