"""Which types columns can have, where that depends on more than the type's own text.

Invariant: holds of every column of every table, also after a type inside its type was changed, so that a
description of the schema can be run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lockstep.schema.model import Column, ColumnKind, Table
from lockstep.schema.types import CollectionType, CqlType, TupleType, UserDefinedType, VectorType
from lockstep.schema.user_types import mentions
from lockstep.values.errors import Rejected

#: Types whose values have a length that is written nowhere.
_FIXED_BYTES: Final = {
    "boolean": 1,
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("bigint", "double", "timestamp"), 8),
    **dict.fromkeys(("uuid", "timeuuid"), 16),
}
#: What values of other types can be read as a type, in its order or in another one.
_IN_ORDER: Final = {"blob": ("ascii", "text"), "text": ("ascii",)}
_IN_ANY_ORDER: Final = {
    **_IN_ORDER,
    "bigint": ("timestamp",),
    "date": ("int",),
    "time": ("bigint",),
    "timestamp": ("bigint",),
    "uuid": ("timeuuid",),
    "varint": ("int", "bigint", "timestamp"),
}


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
    where, configuration = f"{table.keyspace}.{table.name}", 0x2300
    if counts:
        words = f'Cannot have a counter column ("{name}") in a non counter table'
    else:
        words = f'Cannot have a non counter column ("{name}") in a counter table'
    raise Rejected(f"{where}: {words}", cql_code=configuration)


def check_brought_back(name: str, kind: CqlType, of: ColumnKind, was: CqlType, was_of: ColumnKind) -> None:
    """Rejected for a column of another type than the one of its name that was dropped: Cassandra would read
    what that one left behind."""
    if not _reads_cells(kind, was):
        raise Rejected(
            f"Cannot re-add previously dropped column '{name}' of type {kind.text}, incompatible with "
            f"previous type {was.text}"
        )
    if of is not was_of:
        raise Rejected(
            f"Cannot re-add previously dropped column '{name}' of kind {of.name}, incompatible with previous "
            f"kind {was_of.name}"
        )


def _reads_cells(kind: CqlType, was: CqlType) -> bool:
    if not _reads(kind, was):
        return False
    if isinstance(kind, CollectionType) and isinstance(was, CollectionType):
        return kind.name == "set" or _reads_cells(_last(kind), _last(was))
    return _fixed_bytes(kind) == _fixed_bytes(was) and kind.is_multicell == was.is_multicell


def _reads(kind: CqlType, was: CqlType, in_order: bool = False) -> bool:
    """Whether values of `was` can be taken for such of `kind`, and sort as these do."""
    if kind.text == was.text or (kind.name == "blob" and not in_order):
        return True
    if isinstance(kind, TupleType) and isinstance(was, TupleType):
        parts = zip(kind.elements, was.elements, strict=False)
        return len(kind.elements) >= len(was.elements) and all(_reads(*pair, in_order) for pair in parts)
    if isinstance(kind, CollectionType) and isinstance(was, CollectionType):
        if kind.name != was.name or kind.is_multicell != was.is_multicell:
            return False
        if kind.name == "map" and not _reads(kind.key, was.key, in_order=True):
            return False
        if kind.is_multicell and kind.name != "set":
            return _reads_cells(_last(kind), _last(was))
        return _reads(_last(kind), _last(was), in_order or kind.name == "set")
    return was.name in (_IN_ORDER if in_order else _IN_ANY_ORDER).get(kind.name, ())


def _last(kind: CollectionType) -> CqlType:
    return kind.value if kind.name == "map" else kind.element


def _fixed_bytes(kind: CqlType) -> int | None:
    if isinstance(kind, VectorType):
        each = _fixed_bytes(kind.element)
        return None if each is None else each * kind.dimensions
    return _FIXED_BYTES.get(kind.name)


def check_nested(kind: CqlType) -> None:
    """Rejected when fields of a value that is not frozen are several cells themselves."""
    if not isinstance(kind, UserDefinedType) or kind.is_frozen:
        return
    if any(field.is_multicell for field in kind.elements):
        raise Rejected("Non-frozen UDTs with nested non-frozen collections are not supported")
