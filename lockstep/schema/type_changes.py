"""Changes of user-defined types and of secondary indexes: what a log entry says, and the pure functions that
apply it.

Invariant: as in `changes`. A field keeps its position for ever, so values written before and after a change
are read alike; a change of a type gives every table that uses it the change's epoch, because requests for
those tables carry the epoch that mattered to them. A type that something uses stays. As in `changes`. An
index is known by a name that is unique in its keyspace and by an id that is given once; making or dropping
one gives its table the change's epoch, so no write that was planned before is accepted afterwards. What two
indexes of one table index differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from lockstep.schema.log_tables import check_not_log
from lockstep.schema.model import Column, ColumnKind, Keyspace, Schema, Table, UserType
from lockstep.schema.objects import Index
from lockstep.schema.summaries import (
    CREATED,
    DROPPED,
    UPDATED,
    Applied,
    ChangeSummary,
    declared_type,
    no_keyspace,
)
from lockstep.schema.types import NATIVE_NAMES, CqlType, UserDefinedType
from lockstep.schema.user_types import check_column_type, check_extents, mentions, types_of_table, types_used
from lockstep.values.errors import InvalidRequest, Rejected
from lockstep.values.limits import TABLE_INDEXES_MAX, USER_TYPES_MAX

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
    assert altered.name == found.name, "a type keeps its name"
    assert len(altered.field_types) >= len(found.field_types), "values of a type are never cut"
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
    assert len(set(names)) == len(texts), "each field has a name and a type"
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
    assert len(grown.types) == len(others) + 1, "one type comes, or takes the place of its own"
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
    assert len(kept) + 1 == len(space.types), "no other type goes"
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
        assert table.epoch < epoch, "who uses a type is prepared again"
        schema = schema.with_table(replace(table, epoch=epoch))
    return schema


KEYS, VALUES, ENTRIES, FULL = "keys", "values", "entries", "full"
#: Names of the class that also finds values between bounds, in lower case; the last part of a class counts.
_RANGE_CLASSES: Final = frozenset(("sai", "storageattachedindex"))
_PLAIN_CLASSES: Final = frozenset(("", "legacy_local_table"))
_SASI: Final = "sasiindex"
#: What an index of the range class may be told: only what it does anyway.
_DEFAULT_OPTIONS: Final = {"case_sensitive": "true", "normalize": "false", "ascii": "false"}
_NO_RANGE_TYPES: Final = frozenset(("blob", "vector"))
_NOT_OF_WORDS: Final = re.compile(r"\W")
_NAME: Final = re.compile(r"\w+")
_INDEX_CHARACTERS_MAX: Final = 222


class IndexedPart(msgspec.Struct, frozen=True, array_like=True):
    """`what`: keys, values, entries or full; "" when only the column was named."""

    column: str
    what: str = ""


class CreateIndex(msgspec.Struct, frozen=True, array_like=True, tag="create_index"):
    """`index` "": a name is made of the table's and the column's. `class_`: as USING said it."""

    keyspace: str
    name: str
    index: str
    targets: tuple[IndexedPart, ...]
    class_: str = ""
    options: tuple[tuple[str, str], ...] = ()
    custom: bool = False
    if_not_exists: bool = False


class DropIndex(msgspec.Struct, frozen=True, array_like=True, tag="drop_index"):
    keyspace: str
    index: str
    if_exists: bool = False


IndexChange = CreateIndex | DropIndex


def apply_index_change(schema: Schema, change: IndexChange, epoch: int) -> Applied:
    """The schema after a change, and its summary (None when nothing changed). Raises Rejected."""
    if isinstance(change, CreateIndex):
        return create_index(schema, change, epoch)
    return drop_index(schema, change, epoch)


def finds_ranges(index: Index) -> bool:
    """Whether values between bounds may be asked of it, and together with other such indexes."""
    return is_range_class(index.class_)


def is_range_class(class_: str) -> bool:
    return class_.rpartition(".")[2].lower() in _RANGE_CLASSES


def create_index(schema: Schema, change: CreateIndex, epoch: int) -> Applied:
    space = schema.by_name.get(change.keyspace)
    if space is None:
        raise no_keyspace(change.keyspace)
    table = space.by_name.get(change.name)
    if table is None:
        raise Rejected(f"Table '{change.keyspace}.{change.name}' doesn't exist", keyspace=change.keyspace)
    if change.index and _owner(space, change.index) is not None:
        if change.if_not_exists:
            return schema, None
        raise Rejected(f"Index '{change.index}' already exists", keyspace=change.keyspace)
    check_not_log(table, "an index")
    _check_class(change)
    column, target = _target(space, table, change)
    name = change.index or _free_name(space, f"{table.name}_{column.name}")
    if not _NAME.fullmatch(name) or len(name) > _INDEX_CHARACTERS_MAX:
        raise Rejected(
            f"Index name must not be empty, more than {_INDEX_CHARACTERS_MAX} characters long, or contain "
            f'non-alphanumeric-underscore characters (got "{name}")'
        )
    class_ = "" if change.class_.lower() in _PLAIN_CLASSES else change.class_
    options = tuple(sorted(change.options))
    assert column.id in table.by_id, "an index is of a column that is there"
    made = Index(name, schema.next_table_id, column.id, target, class_, options, epoch)
    for other in table.indexes:
        if (other.column, other.target, finds_ranges(other)) == (column.id, target, finds_ranges(made)):
            if change.if_not_exists:
                return schema, None
            raise Rejected(f"Index {name} is a duplicate of existing index {other.name}")
    if len(table.indexes) >= TABLE_INDEXES_MAX:
        raise Rejected(f"Table '{table.name}' has {TABLE_INDEXES_MAX} indexes, and cannot have more")
    grown = replace(schema, next_table_id=schema.next_table_id + 1)
    return _with_indexes(grown, table, (*table.indexes, made), epoch)


def drop_index(schema: Schema, change: DropIndex, epoch: int) -> Applied:
    space = schema.by_name.get(change.keyspace)
    table = _owner(space, change.index) if space is not None else None
    if table is None:
        if change.if_exists:
            return schema, None
        raise Rejected(f"Index '{change.keyspace}.{change.index}' doesn't exist", keyspace=change.keyspace)
    left = tuple(index for index in table.indexes if index.name != change.index)
    assert len(left) + 1 == len(table.indexes), "one index goes"
    return _with_indexes(schema, table, left, epoch)


def check_not_indexed(table: Table, column: Column) -> None:
    """Rejected when a column that is to be dropped has indexes."""
    found = [index.name for index in table.indexes if index.column == column.id]
    if found:
        raise Rejected(
            f"Cannot drop column {column.name} because it has dependent secondary indexes "
            f"({', '.join(found)})"
        )


def _with_indexes(schema: Schema, table: Table, indexes: tuple[Index, ...], epoch: int) -> Applied:
    ordered = tuple(sorted(indexes, key=lambda index: index.name))
    assert len({index.name for index in ordered}) == len(ordered), "a name is that of one index"
    return (
        schema.with_table(replace(table, indexes=ordered, epoch=epoch)),
        ChangeSummary(UPDATED, "TABLE", table.keyspace, table.name),
    )


def _owner(space: Keyspace, index: str) -> Table | None:
    """The table that has the index of this name."""
    for table in space.tables:
        if any(found.name == index for found in table.indexes):
            return table
    return None


def _free_name(space: Keyspace, wanted: str) -> str:
    base = _NOT_OF_WORDS.sub("", wanted)[: _INDEX_CHARACTERS_MAX - 8] + "_idx"
    taken = {index.name for table in space.tables for index in table.indexes}
    name, number = base, 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    assert number <= len(taken), "one more than there are is free"
    return name


def _check_class(change: CreateIndex) -> None:
    class_ = change.class_.rpartition(".")[2].lower()
    if change.custom and not class_:
        raise Rejected("CUSTOM index requires specifying the index class")
    if class_ == _SASI:
        raise Rejected("SASI indexes are disabled. Enable in cassandra.yaml to use.")
    if class_ in _PLAIN_CLASSES:
        if change.options:
            raise Rejected("Cannot specify options for a non-CUSTOM index")
        return
    if class_ not in _RANGE_CLASSES:
        raise Rejected(f"Unable to find custom indexer class '{change.class_}'")
    for name, _ in change.options:
        if name in ("class_name", "target"):
            raise Rejected(f"Cannot specify {name} as a CUSTOM option")
    foreign = [pair for pair in change.options if _DEFAULT_OPTIONS.get(pair[0]) != pair[1].lower()]
    if foreign:
        said = ", ".join(f"{name}={value}" for name, value in foreign)
        raise Rejected(f"Properties specified {{{said}}} are not understood by StorageAttachedIndex")


def _target(space: Keyspace, table: Table, change: CreateIndex) -> tuple[Column, str]:
    """The column to be indexed and which part of it. Raises Rejected."""
    if table.is_counter:
        raise Rejected("Secondary indexes on counter tables aren't supported")
    if table.view is not None:
        raise Rejected("Secondary indexes on materialized views aren't supported")
    if not change.targets:
        raise Rejected("Only CUSTOM indexes can be created without specifying a target column")
    if len(change.targets) > 1:
        if is_range_class(change.class_):
            raise Rejected("A storage-attached index cannot be created over multiple columns")
        raise Rejected("Only CUSTOM indexes support multiple columns")
    part = change.targets[0]
    column = table.by_name.get(part.column)
    if column is None:
        raise Rejected(f"Column '{part.column}' doesn't exist")
    kind = declared_type(space, column.type)
    _check_durations(kind)
    if column.kind is ColumnKind.PARTITION_KEY and len(table.partition_key) == 1:
        raise Rejected(f"Cannot create secondary index on the only partition key column {column.name}")
    target = part.what or (VALUES if kind.is_collection else "")
    _check_target(column, kind, target)
    if is_range_class(change.class_) and kind.name in _NO_RANGE_TYPES:
        raise Rejected(f"Unsupported type for SAI: {kind.text}")
    if kind.name == "vector":
        raise Rejected(f"Secondary indexes are not supported on vector column {column.name}")
    return column, target or VALUES


def _check_durations(kind: CqlType) -> None:
    if not mentions(kind, "duration"):
        return
    if kind.is_collection:
        raise Rejected("Secondary indexes are not supported on collections containing durations")
    if kind.name == "tuple":
        raise Rejected("Secondary indexes are not supported on tuples containing durations")
    if kind.name == "udt":
        raise Rejected("Secondary indexes are not supported on UDTs containing durations")
    raise Rejected("Secondary indexes are not supported on duration columns")


def _check_target(column: Column, kind: CqlType, target: str) -> None:
    frozen = kind.is_collection and not kind.is_multicell
    if frozen and target != FULL:
        raise Rejected(
            f"Cannot create {target}() index on frozen column {column.name}. Frozen collections are "
            f"immutable and must be fully indexed by using the 'full({column.name})' modifier"
        )
    if target == FULL and not frozen:
        raise Rejected("full() indexes can only be created on frozen collections")
    if target and not kind.is_collection:
        raise Rejected(
            f"Cannot create {target}() index on {column.name}. Non-collection columns only support "
            "simple indexes"
        )
    if target in (KEYS, ENTRIES) and kind.name != "map":
        raise Rejected(f"Cannot create index on {target} of column {column.name} with non-map type")
    if kind.is_multicell and kind.name == "udt":
        raise Rejected(f"Cannot create index on non-frozen UDT column {column.name}")
