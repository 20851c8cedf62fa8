"""Rows of two frames as digests by bucket, and the rows of chosen buckets compared column by column.

Invariant: rows that differ by more than what is tolerated have different digests, up to chance in 64 bits: a
missing value is told from any other, and within a tolerance numbers are taken to a grid no wider than it, so
whatever lies further apart lies at different places. Equal digests are no proof that values are the same to
the last digit, different ones none that they are not: the rows decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import types as spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BUCKET: Final = "__bucket"
_HASH: Final = "__hash"
_KEY: Final = "__key"
_LEFT: Final = "__left"
_RIGHT: Final = "__right"
_TOLD: Final = "struct<column: string, left: string, right: string>"


class Tolerance(msgspec.Struct, frozen=True):
    """How far values of columns (not inside of collections) may lie apart; 0: not at all."""

    number: float = 0.0
    time_ms: float = 0.0


class Compared(msgspec.Struct, frozen=True):
    """Columns of two frames: `partition` decides the bucket, `key` which rows belong together."""

    partition: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    buckets: int
    tolerance: Tolerance = Tolerance()


class Sum(msgspec.Struct, frozen=True):
    """Of one bucket, whatever the order of its rows."""

    rows: int
    digest: int


def sums(frame: DataFrame, compared: Compared) -> dict[int, Sum]:
    """The buckets that have rows."""
    from pyspark.sql import functions as f

    row = _row_hash(frame, compared)
    found = (
        frame.select(_bucket(frame, compared).alias(_BUCKET), row.alias(_HASH))
        .groupBy(_BUCKET)
        .agg(f.count("*"), f.bit_xor(f.col(_HASH)))
        .collect()
    )
    return {int(bucket): Sum(int(rows), int(digest)) for bucket, rows, digest in found}


def unlike(one: dict[int, Sum], other: dict[int, Sum]) -> list[int]:
    """Buckets that differ, ascending."""
    return sorted(bucket for bucket in one.keys() | other.keys() if one.get(bucket) != other.get(bucket))


class RowDifference(msgspec.Struct, frozen=True):
    """`partition` are the values of the partition key, with timestamps and dates as microseconds and days
    since 1970: Python has no year 10000. `key` is the whole key as texts, None for no value. `missing` is
    left or right for a row that is on the other side alone; else `columns` has (column, left, right) as
    texts."""

    partition: tuple[Any, ...]
    key: tuple[str | None, ...]
    missing: str
    columns: tuple[tuple[str, str | None, str | None], ...] = ()


def differences(
    one: DataFrame, other: DataFrame, compared: Compared, buckets: Sequence[int], most: int
) -> list[RowDifference]:
    """Rows of the buckets that differ, at most so many."""
    from pyspark.sql import functions as f

    left, right = (_rows(frame, compared, buckets, name) for frame, name in ((one, _LEFT), (other, _RIGHT)))
    joined = left.join(right, _KEY, "full_outer")
    wrong = [f.lit(None).cast(_TOLD)]
    for number, name in enumerate(compared.columns):
        if name in compared.key:
            continue
        mine, theirs = f.col(f"{_LEFT}.c{number}"), f.col(f"{_RIGHT}.c{number}")
        kind = one.schema[name].dataType
        told = f.struct(
            f.lit(name).alias("column"), _shown(mine, kind).alias("left"), _shown(theirs, kind).alias("right")
        )
        wrong.append(f.when(~_equal(mine, theirs, kind, compared.tolerance), told))
    both = f.isnotnull(f.col(_LEFT)) & f.isnotnull(f.col(_RIGHT))
    found = f.filter(f.array(*wrong), f.isnotnull)
    found_in = {name: number for number, name in enumerate(compared.columns)}

    def value(name: str) -> Column:
        return f.coalesce(f.col(f"{_LEFT}.c{found_in[name]}"), f.col(f"{_RIGHT}.c{found_in[name]}"))

    rows = joined.select(
        f.struct(*[_numbered(value(name), one.schema[name].dataType) for name in compared.partition]),
        f.struct(*[_shown(value(name), one.schema[name].dataType) for name in compared.key]),
        f.when(f.isnull(f.col(_LEFT)), "left").when(f.isnull(f.col(_RIGHT)), "right").otherwise(""),
        f.when(both, found).otherwise(f.array().cast(f"array<{_TOLD}>")),
    ).toDF("partition", "key", "missing", "columns")
    collected = rows.where((f.col("missing") != "") | (f.size("columns") > 0)).limit(most).collect()
    return [
        RowDifference(tuple(row[0]), tuple(row[1]), row[2], tuple((one[0], one[1], one[2]) for one in row[3]))
        for row in collected
    ]


def _rows(frame: DataFrame, compared: Compared, buckets: Sequence[int], name: str) -> DataFrame:
    from pyspark.sql import functions as f

    chosen = frame.where(_bucket(frame, compared).isin(list(buckets)))
    key = f.struct(*[_canonical(f.col(f"`{one}`"), frame.schema[one].dataType) for one in compared.key])
    row = f.struct(*[f.col(f"`{one}`").alias(f"c{number}") for number, one in enumerate(compared.columns)])
    return chosen.select(key.alias(_KEY), row.alias(name))


def _bucket(frame: DataFrame, compared: Compared) -> Column:
    from pyspark.sql import functions as f

    keys = [_canonical(f.col(f"`{name}`"), frame.schema[name].dataType) for name in compared.partition]
    return f.pmod(f.xxhash64(*keys), f.lit(compared.buckets)).cast("int")


def _row_hash(frame: DataFrame, compared: Compared) -> Column:
    from pyspark.sql import functions as f

    parts = []
    for name in compared.columns:
        column, kind = f.col(f"`{name}`"), frame.schema[name].dataType
        # A missing value leaves the hash as it is: that it is missing is hashed before it.
        parts += [f.isnull(column), _on_grid(column, kind, compared.tolerance)]
    return f.xxhash64(*parts)


def _on_grid(column: Column, kind: spark.DataType, tolerance: Tolerance) -> Column:
    from pyspark.sql import functions as f

    if isinstance(kind, spark.FloatType | spark.DoubleType) and tolerance.number:
        return f.rint(column.cast("double") / tolerance.number) + f.lit(0.0)
    if isinstance(kind, spark.TimestampType) and tolerance.time_ms:
        return f.rint(f.unix_micros(column) / (tolerance.time_ms * 1000)) + f.lit(0.0)
    return _canonical(column, kind)


def _equal(mine: Column, theirs: Column, kind: spark.DataType, tolerance: Tolerance) -> Column:
    from pyspark.sql import functions as f

    if isinstance(kind, spark.FloatType | spark.DoubleType) and tolerance.number:
        near = f.abs(mine.cast("double") - theirs.cast("double")) <= tolerance.number
        return mine.eqNullSafe(theirs) | f.coalesce(near, f.lit(False))
    if isinstance(kind, spark.TimestampType) and tolerance.time_ms:
        near = f.abs(f.unix_micros(mine) - f.unix_micros(theirs)) <= tolerance.time_ms * 1000
        return mine.eqNullSafe(theirs) | f.coalesce(near, f.lit(False))
    return _canonical(mine, kind).eqNullSafe(_canonical(theirs, kind))


def _canonical(column: Column, kind: spark.DataType) -> Column:
    """The value in a form that can be hashed and compared: maps have an order, what is missing a mark, and
    what has elements their number before them, as the hash is of the elements of all lists in one row."""
    from pyspark.sql import functions as f

    if isinstance(kind, spark.MapType):
        entries = spark.StructType(
            [spark.StructField("key", kind.keyType), spark.StructField("value", kind.valueType)]
        )
        return _counted(
            column, f.array_sort(f.transform(f.map_entries(column), lambda one: _canonical(one, entries)))
        )
    if isinstance(kind, spark.ArrayType):
        element = kind.elementType
        return _counted(
            column, f.transform(column, lambda one: f.struct(f.isnull(one), _canonical(one, element)))
        )
    if isinstance(kind, spark.StructType):
        parts = []
        for field in kind.fields:
            part = column.getField(field.name)
            parts += [f.isnull(part), _canonical(part, field.dataType)]
        return f.when(f.isnotnull(column), f.struct(*parts))
    return column


def _counted(column: Column, elements: Column) -> Column:
    """Null for a column without a value."""
    from pyspark.sql import functions as f

    return f.when(f.isnotnull(column), f.struct(f.size(elements), elements))


def _numbered(column: Column, kind: spark.DataType) -> Column:
    """The value with numbers in place of timestamps and dates."""
    from pyspark.sql import functions as f

    if isinstance(kind, spark.TimestampType):
        return f.unix_micros(column)
    if isinstance(kind, spark.DateType):
        return f.unix_date(column)
    if isinstance(kind, spark.ArrayType):
        element = kind.elementType
        return f.transform(column, lambda one: _numbered(one, element))
    if isinstance(kind, spark.MapType):
        entries = spark.StructType(
            [spark.StructField("key", kind.keyType), spark.StructField("value", kind.valueType)]
        )
        return f.transform(f.map_entries(column), lambda one: _numbered(one, entries))
    if isinstance(kind, spark.StructType):
        parts = [_numbered(column.getField(field.name), field.dataType) for field in kind.fields]
        return f.when(f.isnotnull(column), f.struct(*parts))
    return column


def _shown(column: Column, kind: spark.DataType) -> Column:
    from pyspark.sql import functions as f

    if isinstance(kind, spark.BinaryType):
        return f.concat(f.lit("0x"), f.lower(f.hex(column)))
    if isinstance(kind, spark.ArrayType | spark.MapType | spark.StructType):
        return f.to_json(column)
    return column.cast("string")
