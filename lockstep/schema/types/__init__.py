"""The CQL type system: texts to types, values to wire bytes, bytes to order.

Invariant: a type is immutable and known by its canonical text; `serialize` writes the native protocol's
format (version 3 and later). Value shapes: int for all integers, timestamp (ms), date (days, signed) and
time (ns); str for text, ascii and inet; bytes for blob, uuid and timeuuid; decimal.Decimal; float; bool;
(months, days, ns) for duration; list for list, set (sorted, unique) and vector; list of (key, value)
sorted by key for map; tuple with None for tuple and for user-defined types; bytes for custom types.
"""

from __future__ import annotations

from lockstep.schema.types.base import CqlType
from lockstep.schema.types.compound import (
    CollectionType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    UserFields,
    VectorType,
    field_path,
    field_position,
)
from lockstep.schema.types.literals import (
    parse_date,
    parse_duration,
    parse_inet,
    parse_time,
    parse_timestamp,
    parse_uuid,
)
from lockstep.schema.types.parse import (
    NATIVE_NAMES,
    TYPE_DEPTH_MAX,
    CustomType,
    Resolver,
    parse_type,
    parse_type_with,
)
from lockstep.schema.types.scalars import uuid_text

__all__ = [
    "NATIVE_NAMES",
    "TYPE_DEPTH_MAX",
    "CollectionType",
    "CqlType",
    "CustomType",
    "ListType",
    "MapType",
    "Resolver",
    "SetType",
    "TupleType",
    "UserDefinedType",
    "UserFields",
    "VectorType",
    "field_path",
    "field_position",
    "parse_date",
    "parse_duration",
    "parse_inet",
    "parse_time",
    "parse_timestamp",
    "parse_type",
    "parse_type_with",
    "parse_uuid",
    "uuid_text",
]
