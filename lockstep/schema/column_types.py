"""Which types columns can have, where that depends on more than the type's own text.

Invariant: holds of every column of every table, also after a type inside its type was changed, so that a
description of the schema can be run again.
"""

from __future__ import annotations

from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType, UserDefinedType
from lockstep.schema.user_types import mentions
from lockstep.values.errors import Rejected


def check_column_type(column: Column, kind: CqlType) -> None:
    """Rejected when a column that is there could not be declared with this type."""
    check_nested(kind)
    if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        check_key_type(column.name, kind)


def check_key_type(name: str, kind: CqlType) -> None:
    """Rejected for a type that a column of the primary key cannot have."""
    if kind.is_multicell:
        what = "user-defined type" if isinstance(kind, UserDefinedType) else "collection type"
        raise Rejected(f"Invalid non-frozen {what} {kind.text} for PRIMARY KEY column '{name}'")
    for unordered in ("duration", "counter"):
        if mentions(kind, unordered):
            raise Rejected(f"{unordered} type is not supported for PRIMARY KEY column '{name}'")


def check_nested(kind: CqlType) -> None:
    """Rejected when fields of a value that is not frozen are several cells themselves."""
    if not isinstance(kind, UserDefinedType) or kind.is_frozen:
        return
    if any(field.is_multicell for field in kind.elements):
        raise Rejected("Non-frozen UDTs with nested non-frozen collections are not supported")
