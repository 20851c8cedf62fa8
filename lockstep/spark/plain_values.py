"""Arrow values as plain Python ones, whatever their dates.

Invariant: a timestamp or date comes as its number since 1970 (microseconds, days) also inside of others, for
Python's own types hold the years 1 to 9999 only, and CQL's more. `encoders` takes both.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def python_values(array: pa.Array) -> list[Any]:
    """What `array` holds, None for nulls."""
    wanted = _numbered(array.type)
    found: list[Any] = (array if wanted == array.type else array.cast(wanted)).to_pylist()
    return found


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of `batch`, each by the names of its columns."""
    names = batch.schema.names
    columns = [python_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _numbered(kind: pa.DataType) -> pa.DataType:
    """The type with numbers in place of timestamps and dates."""
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_numbered(field.type))
