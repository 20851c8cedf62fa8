"""User-defined types resolved: which fields a type text stands for in its keyspace, and who uses them; and
which types columns can have, where that depends on more than the type's own text.

Invariant: a text is resolved by the value of its keyspace alone, so a change of a type is seen by all its
users at once, at the epoch of the change. Every use is frozen but that of a column, no type contains itself,
and each is within USER_TYPE_DEPTH_MAX and USER_TYPE_LEAVES_MAX. Holds of every column of every table, also
after a type inside its type was changed, so that a description of the schema can be run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lockstep.schema.model import Column, ColumnKind, Keyspace, Table, UserType
from lockstep.schema.types import (
    CollectionType,
    CqlType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    UserFields,
    VectorType,
    parse_type,
    parse_type_with,
)
from lockstep.values.errors import InvalidRequest, Rejected
from lockstep.values.limits import USER_TYPE_DEPTH_MAX, USER_TYPE_LEAVES_MAX


class _Resolution:
    """Resolves names for one text or several; `found` gathers every type met, also inside others."""

    def __init__(self, space: Keyspace) -> None:
        self._space = space
        self.found: dict[str, UserFields] = {}

    def __call__(self, keyspace: str | None, name: str) -> UserFields:
        space = self._space
        if keyspace is not None and keyspace != space.name:
            raise InvalidRequest(
                f"Statement on keyspace {space.name} cannot refer to a user type in keyspace {keyspace}; "
                "user types can only be used in the keyspace they are defined in"
            )
        known = self.found.get(name)
        if known is not None:
            return known
        stored = space.types_by_name.get(name)
        if stored is None:
            raise InvalidRequest(f"Unknown type {space.name}.{name}")
        types = tuple([parse_type_with(text, self) for text in stored.field_types])
        made = self.found[name] = UserFields(space.name, stored.field_names, types)
        return made


def type_in(space: Keyspace, text: str) -> CqlType:
    """The type that `text` names in a keyspace; InvalidRequest for an unknown or impossible one."""
    if space.types:
        return parse_type_with(text, _Resolution(space))
    try:
        return parse_type(text)
    except InvalidRequest:
        # Again, for the error that names the keyspace.
        return parse_type_with(text, _Resolution(space))


def types_used(space: Keyspace, texts: Iterable[str]) -> tuple[UserType, ...]:
    """The user-defined types that texts name, directly or inside other types, by name."""
    if not space.types:
        return ()
    resolution = _Resolution(space)
    for text in texts:
        parse_type_with(text, resolution)
    return tuple(space.types_by_name[name] for name in sorted(resolution.found))


def types_of_table(space: Keyspace, table: Table) -> tuple[UserType, ...]:
    """The user-defined types that a table of the keyspace uses, by name."""
    return types_used(space, (column.type for column in table.columns))


def check_extents(space: Keyspace) -> None:
    """InvalidRequest when a type of the keyspace is nested too deeply or spells out to too many fields."""
    resolution = _Resolution(space)
    extents: dict[str, tuple[int, int]] = {}
    for stored in in_order_of_use(space):
        depth, leaves = 0, 0
        for text in stored.field_types:
            inner_depth, inner_leaves = _extent(parse_type_with(text, resolution), extents)
            depth, leaves = max(depth, inner_depth), leaves + inner_leaves
        assert depth <= len(extents), "types inside were looked at before, so none is inside itself"
        extents[stored.name] = depth + 1, leaves
        if depth + 1 > USER_TYPE_DEPTH_MAX:
            raise InvalidRequest(f"User type {space.name}.{stored.name} is nested too deeply")
        if leaves > USER_TYPE_LEAVES_MAX:
            raise InvalidRequest(
                f"User type {space.name}.{stored.name} has {leaves} fields with those of the types inside, "
                f"more than {USER_TYPE_LEAVES_MAX}"
            )


def _extent(kind: CqlType, extents: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """(levels of user-defined types, fields spelled out) of a type."""
    if isinstance(kind, UserDefinedType):
        return extents[kind.type_name]
    found = [_extent(part, extents) for part in _inner(kind)]
    return max((depth for depth, _ in found), default=0), max(1, sum(leaves for _, leaves in found))


def _inner(kind: CqlType) -> tuple[CqlType, ...]:
    if isinstance(kind, TupleType):
        return kind.elements
    if isinstance(kind, CollectionType):
        return kind.part_types()
    return (kind.element,) if isinstance(kind, VectorType) else ()


def mentions(kind: CqlType, name: str) -> bool:
    """Whether a type is, or holds at any depth, the built-in type of this name."""
    return kind.name == name or any(mentions(part, name) for part in _inner(kind))


def in_order_of_use(space: Keyspace) -> tuple[UserType, ...]:
    """All types of a keyspace, each behind those it uses, else by name."""
    ordered: dict[str, UserType] = {}
    resolution = _Resolution(space)
    for stored in space.types:
        for text in stored.field_types:
            parse_type_with(text, resolution)
        for name in (*resolution.found, stored.name):
            ordered.setdefault(name, space.types_by_name[name])
    assert len(ordered) == len(space.types), "each type comes once"
    return tuple(ordered.values())


def without_user_types(space: Keyspace, text: str) -> str:
    """The type with tuples in place of user types, as it outlives these; `text` itself where one is gone."""
    try:
        return _spelled_out(type_in(space, text)).text
    except InvalidRequest:
        return text


def _spelled_out(kind: CqlType) -> CqlType:
    if isinstance(kind, TupleType):
        return TupleType(tuple(map(_spelled_out, kind.elements)))
    if isinstance(kind, VectorType):
        return VectorType(_spelled_out(kind.element), kind.dimensions)
    if isinstance(kind, MapType):
        return MapType(_spelled_out(kind.key), _spelled_out(kind.value), frozen=kind.is_frozen)
    if isinstance(kind, ListType | SetType):
        return type(kind)(_spelled_out(kind.element), frozen=kind.is_frozen)
    return kind


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
