"""Texts and columns of files as the types of a table, without losing anything on the way.

Invariant: a value that is there comes out as exactly that value or the row is a reject, with the column and
what the column takes; nothing is rounded, cut or turned into null. Everything is an expression of Spark: no
row passes through Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import types as spark

from lockstep.scans.arrow_columns import DECIMAL_DIGITS
from lockstep.schema.types import CollectionType, CqlType, MapType, TupleType, VectorType
from lockstep.spark.columns import spark_type
from lockstep.spark.ring import TableColumn
from lockstep.values.errors import ConfigurationError, InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import Column

_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_TIME: Final = r"^([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?$"
_WHOLE: Final = r"^[+-]?\d+$"
_INFINITE: Final = "^(?i)[+-]?inf(inity)?$"
_WHOLE_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")
#: Holds every one of them, and what lies between two of them.
_ANY_NUMBER: Final = "decimal(38,18)"
_DAY_NS: Final = 86_400_000_000_000
#: What JSON can hold inside a collection without a doubt about its meaning.
_IN_JSON: Final = (
    "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "text", "ascii", "date",
    "timestamp",
)  # fmt: skip
_TAKES: Final = {
    "timestamp": "a date and time, or milliseconds since 1970",
    "date": "a date as 2024-12-31",
    "time": "a time as 12:30:59.5, or nanoseconds since midnight",
    "uuid": "a UUID",
    "timeuuid": "a UUID",
    "blob": "hexadecimal digits, with or without 0x",
    "ascii": "ASCII text",
    "boolean": "true or false",
    "inet": "an IPv4 address",
}


class Cast(msgspec.Struct, frozen=True):
    """`value` is null where there is none, or none that fits; `is_bad` tells those that do not fit."""

    name: str
    value: Column
    is_bad: Column
    takes: str


def from_text(column: TableColumn, given: Column, decimal_scale: int) -> Cast:
    """Of CSV and JSON. `given` is null where there is no value. ConfigurationError for a type without a
    text."""
    from pyspark.sql import functions as f

    value = _of_text(column, given, decimal_scale)
    takes = _TAKES.get(column.cql_type.name, f"a value of {column.type}")
    if column.cql_type.name == "decimal":
        takes = f"a number with at most {decimal_scale} digits behind the point"
    return Cast(column.name, value, f.isnotnull(given) & f.isnull(value), takes)


def from_typed(column: TableColumn, given: Column, found: spark.DataType, decimal_scale: int) -> Cast:
    """Of Parquet. ConfigurationError for a type that cannot become that of the column."""
    from pyspark.sql import functions as f

    expected = spark_type(column.cql_type, decimal_scale)
    if _same(found, expected):
        return Cast(column.name, given, f.lit(False), column.type)
    if _nested(found) or _nested(expected) or isinstance(found, spark.BinaryType):
        raise ConfigurationError(
            f"column {column.name} is {found.simpleString()} in the files, but {column.type} takes "
            f"{expected.simpleString()}"
        )
    if isinstance(found, spark.StringType):
        return from_text(column, given, decimal_scale)
    value = given.try_cast(expected)
    back = value.try_cast(found)
    return Cast(
        column.name, value, f.isnotnull(given) & ~given.eqNullSafe(back), f"a value that {column.type} holds"
    )


def _of_text(column: TableColumn, given: Column, scale: int) -> Column:
    from pyspark.sql import functions as f

    kind = column.cql_type
    try:
        expected = spark_type(kind, scale)
    except InvalidRequest as error:
        raise ConfigurationError(f"column {column.name} cannot be loaded: {error.message}") from None
    trimmed = f.trim(given)
    match kind.name:
        case "text":
            return given
        case "ascii":
            return f.when(given.rlike(r"^[\x00-\x7F]*$"), given)
        case "uuid" | "timeuuid":
            return f.when(trimmed.rlike(_UUID), f.lower(trimmed))
        case "blob":
            digits = f.regexp_replace(trimmed, "^0[xX]", "")
            return f.when(digits.rlike("^([0-9a-fA-F]{2})*$"), f.unhex(digits))
        case "time":
            return _time(trimmed)
        case "inet":
            return _inet(trimmed)
        case "timestamp":
            ms = f.timestamp_millis(trimmed.try_cast("bigint"))
            return f.when(trimmed.rlike(_WHOLE), ms).otherwise(trimmed.try_cast("timestamp"))
        case "varint" | "decimal":
            behind = scale if kind.name == "decimal" else 0
            point = rf"(\.\d{{0,{behind}}}0*)?" if behind else ""
            shape = rf"^[+-]?0*\d{{1,{DECIMAL_DIGITS - behind}}}{point}$"
            return f.when(trimmed.rlike(shape), trimmed.try_cast(expected))
        case "float" | "double":
            number = trimmed.try_cast(expected)
            return f.when(~_infinite(number) | trimmed.rlike(_INFINITE), number)
    if not _nested(expected):
        return trimmed.try_cast(expected)
    leaves = [leaf.name for leaf in _leaves(kind) if leaf.name not in _IN_JSON]
    if leaves:
        raise ConfigurationError(
            f"column {column.name} is {column.type}: {leaves[0]} inside of it has no form in text",
            hint="load it from Parquet, or leave it out with --columns",
        )
    parsed = f.try_parse_json(given)
    return f.when(_fits(kind, parsed), f.try_variant_get(parsed, "$", expected.simpleString()))


def _fits(kind: CqlType, given: Column) -> Column:
    """Whether what JSON has is a value of the type to the last element. Spark takes apart what it can, and
    leaves null for the rest: of [1.5, "x"] as ints it makes 1 and null."""
    from pyspark.sql import functions as f

    def no_value(one: Column) -> Column:
        return f.isnull(one) | f.is_variant_null(one)

    def each(found: Column, fits: Callable[[Column], Column]) -> Column:
        return f.coalesce(f.forall(found, fits), f.lit(False))

    if isinstance(kind, MapType):
        values = f.map_values(f.try_variant_get(given, "$", "map<string,variant>"))
        return each(values, lambda one: _fits(kind.value, one))
    if isinstance(kind, CollectionType | VectorType):
        return each(f.try_variant_get(given, "$", "array<variant>"), lambda one: _fits(kind.element, one))
    if isinstance(kind, TupleType):
        fields = f.try_variant_get(given, "$", "map<string,variant>")
        made = spark_type(kind, 0)
        assert isinstance(made, spark.StructType), "which is what tuples and user-defined types are"
        names = made.fieldNames()
        is_known = each(f.map_keys(fields), lambda name: name.isin(names))
        for name, element in zip(names, kind.elements, strict=True):
            one = f.try_element_at(fields, f.lit(name))
            is_known &= no_value(one) | _fits(element, one)
        return is_known
    value = f.try_variant_get(given, "$", spark_type(kind, 0).simpleString())
    if kind.name in _WHOLE_NUMBERS:
        number = f.try_variant_get(given, "$", _ANY_NUMBER)
        return f.coalesce(number == value, f.lit(False))
    if kind.name in ("float", "double"):
        text = f.try_variant_get(given, "$", "string")
        return f.isnotnull(value) & (~_infinite(value) | text.rlike(_INFINITE))
    return f.isnotnull(value)


def _infinite(number: Column) -> Column:
    """Also what is too large for the type."""
    from pyspark.sql import functions as f

    return f.abs(number) == f.lit(float("inf"))


def _time(text: Column) -> Column:
    from pyspark.sql import functions as f

    def part(number: int) -> Column:
        return f.regexp_extract(text, _TIME, number)

    seconds = part(1).try_cast("bigint") * 3600 + part(2).try_cast("bigint") * 60 + part(3).try_cast("bigint")
    ns = seconds * 1_000_000_000 + f.rpad(part(4), 9, "0").try_cast("bigint")
    whole = text.try_cast("bigint")
    return f.when(text.rlike(_TIME), ns).when((whole >= 0) & (whole < _DAY_NS), whole)


def _inet(text: Column) -> Column:
    """Four numbers below 256, as four bytes."""
    from pyspark.sql import functions as f

    number = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
    digits = f.concat(
        *[f.lpad(f.hex(f.get(f.split(text, r"\."), f.lit(at)).try_cast("bigint")), 2, "0") for at in range(4)]
    )
    return f.when(text.rlike(rf"^{number}(\.{number}){{3}}$"), f.unhex(digits))


def _nested(kind: spark.DataType) -> bool:
    return isinstance(kind, spark.ArrayType | spark.MapType | spark.StructType)


def _same(found: spark.DataType, expected: spark.DataType) -> bool:
    """Equal but for nullability."""
    return found.simpleString() == expected.simpleString()


def _leaves(kind: CqlType) -> Iterator[CqlType]:
    if isinstance(kind, MapType):
        yield from (*_leaves(kind.key), *_leaves(kind.value))
    elif isinstance(kind, CollectionType | VectorType):
        yield from _leaves(kind.element)
    elif isinstance(kind, TupleType):
        for element in kind.elements:
            yield from _leaves(element)
    else:
        yield kind
