"""User-defined types resolved: which fields a type text stands for in its keyspace, and who uses which type.

Invariant: a text is resolved by the value of its keyspace alone, so a change of a type is seen by all its
users at once, at the epoch of the change. Every use is frozen but that of a column, no type contains
itself, and each is within USER_TYPE_DEPTH_MAX and USER_TYPE_LEAVES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.schema.model import Keyspace, Table, UserType
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
from lockstep.values.errors import InvalidRequest
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
