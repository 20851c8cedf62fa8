"""CQL types as Spark's.

Invariant: of every type that `scans.arrow_columns` has an Arrow type for, the Spark type of the same values.
"""

from __future__ import annotations

from typing import Final

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
