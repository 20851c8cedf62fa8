"""Which types columns can have, where that depends on more than the type's own text.

Invariant: holds of every column of every table, also after a type inside its type was changed, so that a
description of the schema can be run again.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.schema.model import Column, ColumnKind, Table
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
    for unordered in ("duration", "counter", "custom"):
        if mentions(kind, unordered):
            raise Rejected(f"{unordered} type is not supported for PRIMARY KEY column '{name}'")


def check_counters(kinds: Iterable[tuple[ColumnKind, CqlType]], default_ttl_s: int) -> None:
    """Rejected unless all columns outside the key are counters, or none is."""
    counting = {kind.name == "counter" for of, kind in kinds if of in (ColumnKind.STATIC, ColumnKind.REGULAR)}
    if len(counting) > 1:
        raise Rejected("Cannot mix counter and non counter columns in the same table")
    if True in counting and default_ttl_s:
        raise Rejected("Cannot set default_time_to_live on a table with counters")


def check_added_counter(table: Table, name: str, kind: CqlType) -> None:
    """Rejected for a column that does not go with those of the table."""
    counts = kind.name == "counter"
    if counts and any(column.name == name and column.type == "counter" for column in table.dropped):
        raise Rejected(f"Cannot re-add previously dropped counter column {name}")
    if counts == table.is_counter or not (*table.static, *table.regular):
        return
    if counts:
        raise Rejected(f"Cannot have a counter column ('{name}') in a non counter table")
    raise Rejected(f"Cannot have a non counter column ('{name}') in a counter table")


def check_nested(kind: CqlType) -> None:
    """Rejected when fields of a value that is not frozen are several cells themselves."""
    if not isinstance(kind, UserDefinedType) or kind.is_frozen:
        return
    if any(field.is_multicell for field in kind.elements):
        raise Rejected("Non-frozen UDTs with nested non-frozen collections are not supported")
