"""Changes of user-defined types: what a log entry says, and the pure functions that apply it.

Invariant: as in `changes`. A field keeps its position for ever, so values written before and after a change
are read alike; a change of a type gives every table that uses it the change's epoch, because requests for
those tables carry the epoch that mattered to them. A type that something uses stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from lockstep.schema.column_types import check_column_type
from lockstep.schema.model import ColumnKind, Keyspace, Schema, Table, UserType
from lockstep.schema.summaries import (
    CREATED,
    DROPPED,
    UPDATED,
    Applied,
    ChangeSummary,
    declared_type,
    no_keyspace,
)
from lockstep.schema.types import NATIVE_NAMES, UserDefinedType
from lockstep.schema.user_types import check_extents, types_of_table, types_used
from lockstep.values.errors import InvalidRequest, Rejected
from lockstep.values.limits import USER_TYPES_MAX

_CHARACTERS_MAX = 222


class CreateType(msgspec.Struct, frozen=True, array_like=True, tag="create_type"):
    """`fields`: (name, type text)."""

    keyspace: str
    name: str
    fields: tuple[tuple[str, str], ...]
    if_not_exists: bool = False


class AddTypeField(msgspec.Struct, frozen=True, array_like=True, tag="add_type_field"):
    """`field`: (name, type text); it comes last."""

    keyspace: str
    name: str
    field: tuple[str, str]
    if_exists: bool = False
    if_field_not_exists: bool = False


class RenameTypeFields(msgspec.Struct, frozen=True, array_like=True, tag="rename_type_fields"):
    """(old, new) names."""

    keyspace: str
    name: str
    renames: tuple[tuple[str, str], ...]
    if_exists: bool = False
    if_field_exists: bool = False


class DropType(msgspec.Struct, frozen=True, array_like=True, tag="drop_type"):
    keyspace: str
    name: str
    if_exists: bool = False


TypeChange = CreateType | AddTypeField | RenameTypeFields | DropType


def apply_type_change(schema: Schema, change: TypeChange, epoch: int) -> Applied:
    """The schema after a change, and its summary (None when nothing changed). Raises Rejected."""
    if isinstance(change, CreateType):
        return create_type(schema, change, epoch)
    space = schema.by_name.get(change.keyspace)
    found = space.types_by_name.get(change.name) if space is not None else None
    if space is None or found is None:
        if change.if_exists:
            return schema, None
        raise Rejected(f"Type '{change.keyspace}.{change.name}' doesn't exist", keyspace=change.keyspace)
    if isinstance(change, DropType):
        return _drop_type(schema, space, found)
    if isinstance(change, AddTypeField):
        altered = _add_field(space, found, change)
    else:
        altered = _rename_fields(space, found, change)
    if altered is found:
        return schema, None
    return (
        _with_altered(schema, space, replace(altered, epoch=epoch), epoch),
        ChangeSummary(UPDATED, "TYPE", space.name, found.name),
    )


def create_type(schema: Schema, change: CreateType, epoch: int) -> Applied:
    space, name = schema.by_name.get(change.keyspace), change.name
    if space is None:
        raise no_keyspace(change.keyspace)
    if name in space.types_by_name:
        if change.if_not_exists:
            return schema, None
        raise Rejected(f"A user type with name '{name}' already exists", keyspace=space.name)
    # Unlike a table's, a type's name may hold any characters.
    if not 0 < len(name) <= _CHARACTERS_MAX:
        raise Rejected(f"Type name must not be empty or more than {_CHARACTERS_MAX} characters long")
    if name in NATIVE_NAMES:
        # Nothing could tell the two apart where a column names its type.
        raise Rejected(f"Type name '{name}' is that of a built-in type")
    if len(space.types) >= USER_TYPES_MAX:
        raise Rejected(f"Keyspace '{space.name}' has {USER_TYPES_MAX} user types, and cannot have more")
    names = [field for field, _ in change.fields]
    for field in names:
        if names.count(field) > 1:
            raise Rejected(f"Duplicate field name '{field}' in type '{name}'")
    texts = tuple(_field_type(space, text) for _, text in change.fields)
    made = UserType(name, tuple(names), texts, epoch)
    return (
        schema.with_keyspace(_checked(space, made)),
        ChangeSummary(CREATED, "TYPE", space.name, name),
    )


def _field_type(space: Keyspace, text: str) -> str:
    """The canonical text of a field's type."""
    kind = declared_type(space, text)
    if kind.name == "counter":
        raise Rejected("A user type cannot contain counters")
    if isinstance(kind, UserDefinedType) and kind.is_multicell:
        raise Rejected("A user type cannot contain non-frozen UDTs")
    return kind.text


def _checked(space: Keyspace, made: UserType) -> Keyspace:
    """The keyspace with a type added or replaced."""
    others = [other for other in space.types if other.name != made.name]
    grown = replace(space, types=tuple(sorted((*others, made), key=lambda found: found.name)))
    try:
        check_extents(grown)
    except InvalidRequest as error:
        raise Rejected(error.message) from error
    return grown


def _drop_type(schema: Schema, space: Keyspace, dropped: UserType) -> Applied:
    functions = [
        one.name
        for one in space.functions
        if dropped in types_used(space, (one.returns, *one.argument_types))
    ]
    if functions:
        raise _in_use(space, dropped, "functions", functions)
    types = [
        other.name
        for other in space.types
        if other.name != dropped.name and dropped in types_used(space, other.field_types)
    ]
    if types:
        raise _in_use(space, dropped, "user types", types)
    tables = [table.name for table in _tables_using(space, dropped)]
    if tables:
        raise _in_use(space, dropped, "tables", tables)
    kept = tuple(other for other in space.types if other is not dropped)
    return (
        schema.with_keyspace(replace(space, types=kept)),
        ChangeSummary(DROPPED, "TYPE", space.name, dropped.name),
    )


def _in_use(space: Keyspace, dropped: UserType, what: str, users: Sequence[str]) -> Rejected:
    return Rejected(
        f"Cannot drop user type '{space.name}.{dropped.name}' as it is still used by {what} "
        f"[{', '.join(users)}]",
        keyspace=space.name,
    )


def _tables_using(space: Keyspace, used: UserType) -> list[Table]:
    """Tables with a column of the type, also inside others, by name.

    Costs a look at the texts of all columns; only those in which a name of such a type occurs are parsed.
    """
    holders = [used, *(other for other in space.types if used in types_used(space, other.field_types))]
    names = [holder.name.replace('"', '""') for holder in holders]
    found = [
        table
        for table in space.by_name.values()
        if any(name in column.type for column in table.columns for name in names)
        and used in types_of_table(space, table)
    ]
    return sorted(found, key=attrgetter("name"))


def _add_field(space: Keyspace, found: UserType, change: AddTypeField) -> UserType:
    name, text = change.field
    if name in found.field_names:
        if change.if_field_not_exists:
            return found
        raise Rejected(
            f"Cannot add field {name} to type {found.name}: a field with name {name} already exists"
        )
    canonical = _field_type(space, text)
    if found in types_used(space, [canonical]):
        raise Rejected(
            f"Cannot add new field {name} of type {canonical} to user type {found.name} "
            "as it would create a circular reference"
        )
    # Rows lie at the token of their partition key's bytes, and one value must have one form in it.
    keyed = [
        f"{space.name}.{table.name}"
        for table in _tables_using(space, found)
        if found in types_used(space, [c.type for c in table.columns if c.kind is ColumnKind.PARTITION_KEY])
    ]
    if keyed:
        raise Rejected(
            f"Cannot add new field {name} of type {canonical} to user type {found.name} as the type is being "
            f"used in partition key by the following tables: {', '.join(keyed)}"
        )
    return replace(found, field_names=(*found.field_names, name), field_types=(*found.field_types, canonical))


def _rename_fields(space: Keyspace, found: UserType, change: RenameTypeFields) -> UserType:
    names = list(found.field_names)
    for old, new in change.renames:
        if old in found.field_names:
            names[found.field_names.index(old)] = new
        elif not change.if_field_exists:
            raise Rejected(f"Unkown field {old} in user type {space.name}.{found.name}")
    for name in names:
        if names.count(name) > 1:
            raise Rejected(f"Duplicate field name {name} in type {space.name}.{found.name}")
    return found if tuple(names) == found.field_names else replace(found, field_names=tuple(names))


def _with_altered(schema: Schema, space: Keyspace, altered: UserType, epoch: int) -> Schema:
    users = _tables_using(space, space.types_by_name[altered.name])
    changed = _checked(space, altered)
    for table in users:
        for column in table.columns:
            check_column_type(column, declared_type(changed, column.type))
    schema = schema.with_keyspace(changed)
    for table in users:
        schema = schema.with_table(replace(table, epoch=epoch))
    return schema
