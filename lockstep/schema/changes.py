"""Changes of the schema: what a log entry says, and the pure functions that apply it.

Invariant: `apply_change` depends on its arguments only, so every node computes the same schema; a refused
change raises Rejected with the CQL error code a client is told; a change that finds nothing to do (IF
EXISTS, IF NOT EXISTS, what holds already) returns the very schema object it was given. Ids are given out
here and never reused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from lockstep.schema import log_tables
from lockstep.schema.function_changes import FunctionChange, apply_function_change
from lockstep.schema.log_tables import check_alone, check_name, logs_follow, without_log
from lockstep.schema.model import (
    Column,
    ColumnKind,
    DroppedColumn,
    Keyspace,
    Replication,
    Schema,
    Table,
    schema_of,
)
from lockstep.schema.replication_options import (
    SIMPLE,
    TOPOLOGY,
    check_lists,
    parse_replication,
    refused,
)
from lockstep.schema.summaries import (
    CREATED,
    DROPPED,
    EMPTIED,
    UPDATED,
    Applied,
    ChangeSummary,
    declared_type,
    no_keyspace,
)
from lockstep.schema.table_options import OptionValue, check_hints, checked_options, option
from lockstep.schema.tablet_options import keyspace_tablets, refuse_other_spread
from lockstep.schema.tracking import means_tracked, tracking_follows
from lockstep.schema.type_changes import (
    IndexChange,
    TypeChange,
    apply_index_change,
    apply_type_change,
    check_not_indexed,
)
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import (
    check_added_counter,
    check_brought_back,
    check_counters,
    check_key_type,
    check_nested,
)
from lockstep.schema.view_changes import (
    ViewChange,
    apply_view_change,
    check_column_drop,
    check_drop,
    check_options,
    check_references,
    check_table_change,
    check_truncate,
    emptied_views,
    views_follow,
)
from lockstep.values.errors import Rejected

ALREADY_EXISTS: Final = 0x2400
_NAME = re.compile(r"[A-Za-z0-9_]+")
_KEYSPACE_CHARACTERS_MAX = 48
_TABLE_CHARACTERS_MAX = 222
#: Keyspaces that the server serves itself.
SYSTEM_KEYSPACES: Final = frozenset(
    (
        *("system", "system_schema", "system_auth", "system_distributed", "system_traces"),
        *("system_views", "system_virtual_schema", "system_metrics"),
    )
)
Options = tuple[tuple[str, OptionValue], ...]


class NewColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column to be created; it gets its id when the change is applied."""

    name: str
    type: str
    kind: ColumnKind = ColumnKind.REGULAR
    position: int = -1
    descending: bool = False


class CreateKeyspace(msgspec.Struct, frozen=True, array_like=True, tag="create_keyspace"):
    """`replication`: the options as written, `class` among them. `by_server`: no client asked for it, so
    it may be a system keyspace. `tablets`: its options as written; None: its tables lie on a ring."""

    keyspace: str
    replication: tuple[tuple[str, str], ...]
    durable_writes: bool = True
    if_not_exists: bool = False
    by_server: bool = False
    tablets: tuple[tuple[str, str], ...] | None = None
    replication_type: str | None = None


class AlterKeyspace(msgspec.Struct, frozen=True, array_like=True, tag="alter_keyspace"):
    """None leaves a property as it is."""

    keyspace: str
    replication: tuple[tuple[str, str], ...] | None = None
    durable_writes: bool | None = None
    if_exists: bool = False
    tablets: tuple[tuple[str, str], ...] | None = None
    replication_type: str | None = None


class DropKeyspace(msgspec.Struct, frozen=True, array_like=True, tag="drop_keyspace"):
    keyspace: str
    if_exists: bool = False


class CreateTable(msgspec.Struct, frozen=True, array_like=True, tag="create_table"):
    """`uuid` was chosen by the submitter. `by_server`: as for a keyspace."""

    keyspace: str
    name: str
    uuid: str
    columns: tuple[NewColumn, ...]
    options: Options = ()
    if_not_exists: bool = False
    by_server: bool = False


class AddColumns(msgspec.Struct, frozen=True, array_like=True, tag="add_columns"):
    """`brings_back`: names of those that were dropped before and show what is newer than that."""

    keyspace: str
    name: str
    columns: tuple[NewColumn, ...]
    if_exists: bool = False
    if_column_not_exists: bool = False
    brings_back: tuple[str, ...] = ()


class DropColumns(msgspec.Struct, frozen=True, array_like=True, tag="drop_columns"):
    """Cells of the columns at or below `dropped_at_us` are dead."""

    keyspace: str
    name: str
    columns: tuple[str, ...]
    dropped_at_us: int
    if_exists: bool = False
    if_column_exists: bool = False


class RenameColumns(msgspec.Struct, frozen=True, array_like=True, tag="rename_columns"):
    """(old, new) names of primary key columns."""

    keyspace: str
    name: str
    renames: tuple[tuple[str, str], ...]
    if_exists: bool = False
    if_column_exists: bool = False


class AlterOptions(msgspec.Struct, frozen=True, array_like=True, tag="alter_options"):
    keyspace: str
    name: str
    options: Options
    if_exists: bool = False


class DropTable(msgspec.Struct, frozen=True, array_like=True, tag="drop_table"):
    keyspace: str
    name: str
    if_exists: bool = False


class EmptyTable(msgspec.Struct, frozen=True, array_like=True, tag="empty_table"):
    """TRUNCATE: the table gets a new storage prefix; rows under the old one are out of reach at once."""

    keyspace: str
    name: str


TableChange = AddColumns | DropColumns | RenameColumns | AlterOptions
SchemaChange = (
    CreateKeyspace
    | AlterKeyspace
    | DropKeyspace
    | CreateTable
    | TableChange
    | DropTable
    | EmptyTable
    | TypeChange
    | FunctionChange
    | IndexChange
    | ViewChange
)


def apply_change(
    schema: Schema, change: SchemaChange, epoch: int, data_centers: Sequence[str] = ()
) -> Applied:
    """The schema after a change, and its summary (None when nothing changed). Raises Rejected."""
    by_server = isinstance(change, CreateKeyspace | CreateTable) and change.by_server
    if change.keyspace in SYSTEM_KEYSPACES and not by_server:
        raise Rejected(f"{change.keyspace} keyspace is not user-modifiable.", keyspace=change.keyspace)
    schema_after, summary = _applied(schema, change, epoch, data_centers)
    assert summary is not None or schema_after is schema, "who changes something says so"
    return tracking_follows(schema, schema_after, epoch), summary


def _applied(schema: Schema, change: SchemaChange, epoch: int, data_centers: Sequence[str]) -> Applied:
    if isinstance(change, CreateKeyspace):
        return create_keyspace(schema, change, epoch, data_centers)
    if isinstance(change, AlterKeyspace):
        return alter_keyspace(schema, change, epoch, data_centers)
    if isinstance(change, DropKeyspace):
        return drop_keyspace(schema, change)
    if isinstance(change, CreateTable):
        return create_table(schema, change, epoch)
    if isinstance(change, DropTable):
        return drop_table(schema, change)
    if isinstance(change, EmptyTable):
        return empty_table(schema, change, epoch)
    if isinstance(change, TypeChange):
        return apply_type_change(schema, change, epoch)
    if isinstance(change, FunctionChange):
        return apply_function_change(schema, change, epoch)
    if isinstance(change, IndexChange):
        return apply_index_change(schema, change, epoch)
    if isinstance(change, ViewChange):
        return apply_view_change(schema, change, epoch)
    return alter_table(schema, change, epoch)


# Keyspaces


def create_keyspace(
    schema: Schema, change: CreateKeyspace, epoch: int, data_centers: Sequence[str] = ()
) -> Applied:
    name = change.keyspace
    if not _NAME.fullmatch(name) or len(name) > _KEYSPACE_CHARACTERS_MAX:
        raise Rejected(
            f"Keyspace name must not be empty, more than {_KEYSPACE_CHARACTERS_MAX} characters long, or "
            f'contain non-alphanumeric-underscore characters (got "{name}")'
        )
    if name in schema.by_name:
        if change.if_not_exists:
            return schema, None
        raise Rejected(f'Cannot add existing keyspace "{name}"', cql_code=ALREADY_EXISTS, keyspace=name)
    replication = parse_replication(name, change.replication, data_centers)
    tablets = keyspace_tablets(dict(change.tablets), name) if change.tablets is not None else None
    if tablets is not None and replication.strategy == SIMPLE:
        raise refused(f"tablets need {TOPOLOGY}, keyspace {name} is replicated by {SIMPLE}")
    check_lists(replication, tablets, name)
    tracked = change.replication_type is not None and means_tracked(change.replication_type)
    made = Keyspace(name, replication, change.durable_writes, epoch=epoch, tablets=tablets, tracked=tracked)
    return schema.with_keyspace(made), ChangeSummary(CREATED, "KEYSPACE", name)


def alter_keyspace(
    schema: Schema, change: AlterKeyspace, epoch: int, data_centers: Sequence[str] = ()
) -> Applied:
    found = schema.by_name.get(change.keyspace)
    if found is None:
        if change.if_exists:
            return schema, None
        raise no_keyspace(change.keyspace)
    replication: Replication = found.replication
    if change.replication is not None:
        replication = parse_replication(found.name, change.replication, data_centers, found.replication)
    durable = found.durable_writes if change.durable_writes is None else change.durable_writes
    tablets = found.tablets
    if change.tablets is not None:
        tablets = keyspace_tablets(dict(change.tablets), found.name)
        if tablets is not None and found.tablets is not None:
            tablets = replace(tablets, from_ring=found.tablets.from_ring)
    refuse_other_spread(found.tablets, tablets, found.name)
    if tablets is not None and replication.strategy == SIMPLE:
        raise refused(f"tablets need {TOPOLOGY}, keyspace {found.name} would be replicated by {SIMPLE}")
    check_lists(replication, tablets, found.name)
    tracked = found.tracked if change.replication_type is None else means_tracked(change.replication_type)
    present = found.replication, found.durable_writes, found.tablets, found.tracked
    if (replication, durable, tablets, tracked) == present:
        return schema, None
    made = replace(found, replication=replication, durable_writes=durable, tablets=tablets, epoch=epoch)
    made = replace(made, tracked=tracked)
    return schema.with_keyspace(made), ChangeSummary(UPDATED, "KEYSPACE", found.name)


def drop_keyspace(schema: Schema, change: DropKeyspace) -> Applied:
    if change.keyspace not in schema.by_name:
        if change.if_exists:
            return schema, None
        raise no_keyspace(change.keyspace)
    return schema.without_keyspace(change.keyspace), ChangeSummary(DROPPED, "KEYSPACE", change.keyspace)


# Tables


def create_table(schema: Schema, change: CreateTable, epoch: int) -> Applied:
    keyspace = _keyspace(schema, change.keyspace)
    name = change.name
    if not _NAME.fullmatch(name) or len(name) > _TABLE_CHARACTERS_MAX:
        raise Rejected(
            f"Table name must not be empty, more than {_TABLE_CHARACTERS_MAX} characters long, or contain "
            f'non-alphanumeric-underscore characters (got "{name}")'
        )
    check_name(keyspace.name, name)
    if name in keyspace.by_name:
        if change.if_not_exists:
            return schema, None
        raise Rejected(
            f'Cannot add already existing table "{name}" to keyspace "{keyspace.name}"',
            cql_code=ALREADY_EXISTS,
            keyspace=keyspace.name,
            table=name,
        )
    if change.uuid in schema.table_ids:
        raise Rejected(f"ID {change.uuid} is already used by another table")
    _check_columns(change, keyspace)
    check_hints(keyspace, change.options)
    columns = tuple(_numbered(keyspace, change.columns, 1))
    made = Table(
        schema.next_table_id,
        change.uuid,
        keyspace.name,
        name,
        _sorted_columns(columns),
        checked_options(change.options),
        epoch,
        len(columns) + 1,
    )
    assert made.id not in schema.tables_by_id, "a table's id is never given twice"
    assert all(column.id < made.next_column_id for column in made.columns), "nor is a column's"
    grown = replace(schema, next_table_id=schema.next_table_id + 1).with_table(made)
    summary = ChangeSummary(CREATED, "TABLE", keyspace.name, name)
    return logs_follow(grown, None, (keyspace.name, name), epoch), summary


def _check_columns(change: CreateTable, space: Keyspace) -> None:
    seen: dict[str, NewColumn] = {}
    declared: list[tuple[ColumnKind, CqlType]] = []
    for column in change.columns:
        if column.name in seen:
            raise Rejected(f"Duplicate column '{column.name}' declaration for table '{change.name}'")
        seen[column.name] = column
        kind = declared_type(space, column.type)
        check_nested(kind)
        declared.append((column.kind, kind))
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            check_key_type(column.name, kind)
    check_counters(declared, int(option(checked_options(change.options), "default_time_to_live")))
    kinds = [column.kind for column in change.columns]
    if ColumnKind.PARTITION_KEY not in kinds:
        raise Rejected(
            f"No PRIMARY KEY specifed for table '{change.keyspace}.{change.name}' (exactly one required)"
        )
    if ColumnKind.STATIC in kinds and ColumnKind.CLUSTERING not in kinds:
        raise _static_without_clustering()
    for wanted in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        positions = sorted(column.position for column in change.columns if column.kind is wanted)
        if positions != list(range(len(positions))):
            raise Rejected(f"The key positions of table '{change.name}' are not dense")


def drop_table(schema: Schema, change: DropTable) -> Applied:
    keyspace = schema.by_name.get(change.keyspace)
    if keyspace is None or change.name not in keyspace.by_name:
        if change.if_exists:
            return schema, None
        raise _no_table(change.keyspace, change.name)
    table = keyspace.by_name[change.name]
    check_drop(table)
    check_alone(schema, table, "dropped")
    assert not table.views, "what is made from a table goes before it"
    return (
        without_log(schema.without_table(table), table),
        ChangeSummary(DROPPED, "TABLE", change.keyspace, change.name),
    )


def empty_table(schema: Schema, change: EmptyTable, epoch: int) -> Applied:
    table = schema.table(change.keyspace, change.name)
    if table is None:
        raise _no_table(change.keyspace, change.name)
    check_truncate(table)
    check_alone(schema, table, "emptied")
    made = replace(table, id=schema.next_table_id, epoch=epoch)
    assert made.id > table.id, "what was in the table is of an older id"
    grown = replace(schema, next_table_id=schema.next_table_id + 1)
    summary = ChangeSummary(EMPTIED, "TABLE", change.keyspace, change.name)
    return emptied_views(grown.with_table(made), made, epoch), summary


def alter_table(schema: Schema, change: TableChange, epoch: int) -> Applied:
    table = schema.table(change.keyspace, change.name)
    if table is None:
        if change.if_exists:
            return schema, None
        raise _no_table(change.keyspace, change.name)
    check_table_change(table)
    check_alone(schema, table, "altered")
    if isinstance(change, AddColumns):
        altered = _add_columns(schema.by_name[change.keyspace], table, change)
    elif isinstance(change, DropColumns):
        altered = _drop_columns(table, change)
    elif isinstance(change, RenameColumns):
        altered = _rename_columns(table, change)
    else:
        check_hints(schema.by_name[change.keyspace], change.options)
        options = checked_options(change.options, table.options)
        if table.is_counter and int(option(options, "default_time_to_live")):
            raise Rejected("Cannot set default_time_to_live on a table with counters")
        check_options(table, options)
        held = all(option(options, name) == option(table.options, name) for name, _ in options)
        altered = table if held else replace(table, options=options)
    if altered is table:
        return schema, None
    assert altered.id == table.id, "what is in the table stays in it"
    assert altered.next_column_id >= table.next_column_id, "a column's id is never given twice"
    followed = views_follow(schema.with_table(replace(altered, epoch=epoch)), table, altered, epoch)
    return (
        logs_follow(followed, table, (table.keyspace, table.name), epoch),
        ChangeSummary(UPDATED, "TABLE", change.keyspace, change.name),
    )


def _add_columns(space: Keyspace, table: Table, change: AddColumns) -> Table:
    added: list[NewColumn] = []
    for column in change.columns:
        if column.name in table.by_name or any(column.name == other.name for other in added):
            if change.if_column_not_exists:
                continue
            raise Rejected(f"Column with name '{column.name}' already exists")
        if column.kind is ColumnKind.STATIC and not table.clustering:
            raise _static_without_clustering()
        if column.kind not in (ColumnKind.STATIC, ColumnKind.REGULAR):
            raise Rejected("Cannot add PRIMARY KEY columns to a table")
        kind = declared_type(space, column.type)
        check_nested(kind)
        check_added_counter(table, column.name, kind)
        added.append(column)
    if not added:
        return table
    known = {column.name: column for column in table.dropped if column.name in change.brings_back}
    again = [column for column in added if column.name in known]
    new = [column for column in added if column.name not in known]
    columns = [*table.columns, *_numbered(space, new, table.next_column_id)]
    for back in _numbered(space, again, 0):
        was = known[back.name]
        kind, earlier = declared_type(space, back.type), declared_type(space, was.type)
        check_brought_back(back.name, kind, back.kind, earlier, was.kind)
        assert was.id < table.next_column_id, "what comes back was there"
        columns.append(replace(back, id=was.id))
    assert len({column.id for column in columns}) == len(columns), "each column has an id of its own"
    return replace(table, columns=_sorted_columns(columns), next_column_id=table.next_column_id + len(new))


def _drop_columns(table: Table, change: DropColumns) -> Table:
    dropped: list[DroppedColumn] = []
    earlier = {column.id: column.dropped_at_us for column in table.dropped}
    for name in dict.fromkeys(change.columns):
        column = table.by_name.get(name)
        if column is None:
            if change.if_column_exists:
                continue
            raise Rejected(f"Column {name} was not found in table '{table.keyspace}.{table.name}'")
        if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise Rejected(f"Cannot drop PRIMARY KEY column {name}")
        check_not_indexed(table, column)
        check_column_drop(table, name)
        # What is dead stays dead, whatever time is named now.
        at_us = max(change.dropped_at_us, earlier.get(column.id, change.dropped_at_us))
        dropped.append(DroppedColumn(column.id, name, column.type, at_us, column.kind))
    if not dropped:
        return table
    gone = {column.id for column in dropped}
    kept = tuple(column for column in table.columns if column.id not in gone)
    assert len(kept) + len(dropped) == len(table.columns), "no other column goes"
    others = (column for column in table.dropped if column.id not in gone)
    return replace(table, columns=kept, dropped=(*others, *dropped))


def _rename_columns(table: Table, change: RenameColumns) -> Table:
    columns = {column.name: column for column in table.columns}
    renamed = False
    where = f"{table.keyspace}.{table.name}"
    for old, new in change.renames:
        column = columns.get(old)
        if column is None:
            if change.if_column_exists:
                continue
            raise Rejected(f"Column {old} was not found in table {where}")
        if column.kind not in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise Rejected(f"Cannot rename non PRIMARY KEY column {old}")
        if new in columns:
            raise Rejected(
                f"Cannot rename column {old} to {new} in table '{where}'; "
                "another column with that name already exists"
            )
        del columns[old]
        columns[new] = replace(column, name=new)
        renamed = True
    assert len(columns) == len(table.columns), "no column is lost where one is renamed"
    return replace(table, columns=_sorted_columns(tuple(columns.values()))) if renamed else table


# Parts


def _numbered(space: Keyspace, columns: Sequence[NewColumn], first: int) -> list[Column]:
    """Columns with ids from `first` on, in the order declared, and canonical types."""
    assert first >= 0, "ids of columns are counted from 1"
    return [
        Column(
            first + index,
            column.name,
            declared_type(space, column.type).text,
            column.kind,
            column.position,
            column.descending,
        )
        for index, column in enumerate(columns)
    ]


def _sorted_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(sorted(columns, key=lambda column: (column.kind, column.position, column.name)))


def _keyspace(schema: Schema, name: str) -> Keyspace:
    found = schema.by_name.get(name)
    if found is None:
        raise no_keyspace(name)
    return found


def _no_table(keyspace: str, name: str) -> Rejected:
    return Rejected(f"Table '{keyspace}.{name}' doesn't exist", keyspace=keyspace, table=name)


def _static_without_clustering() -> Rejected:
    return Rejected(
        "Static columns are only useful (and thus allowed) if the table has at least one clustering column"
    )


def validate(schema: Schema) -> None:
    """Assert the invariants of a schema value: maps in step, unique ids, whole primary keys."""
    tables = [table for keyspace in schema.keyspaces for table in keyspace.tables]
    for keyspace in schema.keyspaces:
        for name in sorted(keyspace.by_name):
            table = keyspace.by_name[name]
            assert (table.keyspace, table.name) == (keyspace.name, name), f"{name} is kept under another name"
    for table in tables:
        assert table.partition_key, f"damaged table {table.name}"
        assert table.columns == _sorted_columns(table.columns), f"columns of {table.name} are not sorted"
        assert len({one.id for one in table.dropped}) == len(table.dropped), "an id is dropped once"
        used = [*(column.id for column in table.columns), *table.gone]
        assert len(set(used)) == len(used) and max(used) < table.next_column_id, "a column id is reused"
        for key in (table.partition_key, table.clustering):
            assert [column.position for column in key] == list(range(len(key))), "a key has no gaps"
        assert len(table.by_name) == len(table.columns), f"a column of {table.name} is there twice"
        assert table.clustering or not table.static, "static columns are shared by rows"
        indexed = [index.name for index in table.indexes]
        assert indexed == sorted(set(indexed)), "indexes are sorted by name"
        assert all(index.column in table.by_id for index in table.indexes), "an index is of a column"
        assert table.views == tuple(sorted(set(table.views))), "views are sorted by name"
        counters = {column.type == "counter" for column in (*table.static, *table.regular)}
        assert len(counters) < 2, "a table counts, or does not"
    for keyspace in schema.keyspaces:
        names = [stored.name for stored in keyspace.types]
        assert names == sorted(set(names)), f"types of {keyspace.name} are sorted by name"
        assert all(len(t.field_names) == len(set(t.field_names)) for t in keyspace.types), "fields differ"
        assert all(len(t.field_names) == len(t.field_types) for t in keyspace.types), "a field has a type"
        for callables in (keyspace.functions, keyspace.aggregates):
            signatures = [one.signature for one in callables]
            assert signatures == sorted(set(signatures)), f"what {keyspace.name} calls is sorted"
    check_references(tables)
    log_tables.check_references(schema)
    ids = [table.id for table in tables]
    assert len(set(ids)) == len(ids) and max(ids, default=0) < schema.next_table_id, "a table id is reused"
    twin = schema_of(schema.keyspaces, schema.next_table_id)
    assert twin == schema and twin.digest == schema.digest, "the maps of the schema are not in step"
