"""Changes of secondary indexes: what a log entry says, and the pure functions that apply it.

Invariant: as in `changes`. An index is known by a name that is unique in its keyspace and by an id that is
given once; making or dropping one gives its table the change's epoch, so no write that was planned before is
accepted afterwards. What two indexes of one table index differs.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec.structs import replace

from lockstep.schema.model import Column, ColumnKind, Keyspace, Schema, Table
from lockstep.schema.objects import Index
from lockstep.schema.summaries import UPDATED, Applied, ChangeSummary, declared_type, no_keyspace
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import mentions
from lockstep.values.errors import Rejected
from lockstep.values.limits import TABLE_INDEXES_MAX

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
_CHARACTERS_MAX: Final = 222


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
    _check_class(change)
    column, target = _target(space, table, change)
    name = change.index or _free_name(space, f"{table.name}_{column.name}")
    if not _NAME.fullmatch(name) or len(name) > _CHARACTERS_MAX:
        raise Rejected(
            f"Index name must not be empty, more than {_CHARACTERS_MAX} characters long, or contain "
            f'non-alphanumeric-underscore characters (got "{name}")'
        )
    class_ = "" if change.class_.lower() in _PLAIN_CLASSES else change.class_
    options = tuple(sorted(change.options))
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
    base = _NOT_OF_WORDS.sub("", wanted)[: _CHARACTERS_MAX - 8] + "_idx"
    taken = {index.name for table in space.tables for index in table.indexes}
    name, number = base, 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
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
