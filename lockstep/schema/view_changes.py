"""Changes of materialized views, what the views of a table forbid or follow when the table changes, and what
a view is to those who read it and to those who keep it up to date.

Invariant: A view's columns have the ids that they have in its base table, so that rows of one become rows of
the other without a translation. The key of a view has all key columns of its base and at most one more
column: two rows of the base never share one of the view. `Table.views` lists exactly the views that name the
table as their base. All of it follows from the schema alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from lockstep.schema.log_tables import check_not_log, check_view
from lockstep.schema.model import Column, ColumnKind, Keyspace, Schema, Table
from lockstep.schema.objects import View
from lockstep.schema.summaries import (
    CREATED,
    DROPPED,
    UPDATED,
    Applied,
    ChangeSummary,
    declared_type,
    no_keyspace,
)
from lockstep.schema.table_options import OptionValue, check_hints, checked_options, option
from lockstep.schema.user_types import check_key_type
from lockstep.values.errors import Rejected
from lockstep.values.limits import TABLE_VIEWS_MAX

_ALREADY_EXISTS: Final = 0x2400
_NAME_CHARACTERS_MAX: Final = 222
_KEY_KINDS: Final = (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
_GRACE_NEEDED: Final = (
    "since this value is used to TTL undelivered updates. Setting gc_grace_seconds too low might cause "
    "undelivered updates to expire before being replayed."
)


class CreateView(msgspec.Struct, frozen=True, array_like=True, tag="create_view"):
    """`selected` () is `*`. `not_null` and `restricted`: columns that WHERE says IS NOT NULL of, and
    something else; `where` is all of it as CQL text. With `base_order` each column keeps the order that it
    has in the base table."""

    keyspace: str
    name: str
    uuid: str
    base_keyspace: str
    base: str
    selected: tuple[str, ...]
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    descending: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    restricted: tuple[str, ...] = ()
    where: str = ""
    options: tuple[tuple[str, OptionValue], ...] = ()
    if_not_exists: bool = False
    base_order: bool = False


class AlterView(msgspec.Struct, frozen=True, array_like=True, tag="alter_view"):
    keyspace: str
    name: str
    options: tuple[tuple[str, OptionValue], ...]
    if_exists: bool = False


class DropView(msgspec.Struct, frozen=True, array_like=True, tag="drop_view"):
    keyspace: str
    name: str
    if_exists: bool = False


ViewChange = CreateView | AlterView | DropView


def apply_view_change(schema: Schema, change: ViewChange, epoch: int) -> Applied:
    """The schema after a change, and its summary (None when nothing changed). Raises Rejected."""
    if isinstance(change, CreateView):
        return create_view(schema, change, epoch)
    if isinstance(change, AlterView):
        return alter_view(schema, change, epoch)
    return drop_view(schema, change, epoch)


# Views


def create_view(schema: Schema, change: CreateView, epoch: int) -> Applied:
    space = schema.by_name.get(change.keyspace)
    if space is None:
        raise no_keyspace(change.keyspace)
    if change.base_keyspace != change.keyspace:
        raise Rejected("Cannot create a materialized view on a table in a different keyspace")
    base = space.by_name.get(change.base)
    if base is None:
        raise Rejected(f"Base table '{change.base}' doesn't exist", keyspace=change.keyspace)
    _check_base(change, base)
    if change.name in space.by_name:
        if change.if_not_exists:
            return schema, None
        raise Rejected(
            f'Cannot add already existing table "{change.name}" to keyspace "{space.name}"',
            cql_code=_ALREADY_EXISTS,
            keyspace=space.name,
            table=change.name,
        )
    if not 0 < len(change.name) <= _NAME_CHARACTERS_MAX or not change.name.replace("_", "a").isalnum():
        raise Rejected(
            f"Table name must not be empty, more than {_NAME_CHARACTERS_MAX} characters long, or contain "
            f'non-alphanumeric-underscore characters (got "{change.name}")'
        )
    if change.uuid in schema.table_ids:
        raise Rejected(f"ID {change.uuid} is already used by another table")
    check_view(space.name, change.name, checked_options(change.options))
    selected = _selected(change, base)
    added = _check_key(change, space, base)
    _check_where(change, base)
    if any(name == "default_time_to_live" and value != "0" for name, value in change.options):
        raise Rejected(f"Cannot set default_time_to_live for a materialized view. {_TTL_FOLLOWS}")
    if len(base.views) >= TABLE_VIEWS_MAX:
        raise Rejected(f"Table '{base.name}' has {TABLE_VIEWS_MAX} materialized views, and cannot have more")
    check_hints(space, change.options)
    columns = _columns(change, base, selected)
    assert {column.id for column in columns} <= {column.id for column in base.columns}, (
        "what is in a view comes from its base"
    )
    made = Table(
        schema.next_table_id,
        change.uuid,
        space.name,
        change.name,
        columns,
        checked_options(change.options),
        epoch,
        base.next_column_id,
        view=View(base.name, change.where, not change.selected, _pairs(columns), added),
    )
    grown = replace(schema, next_table_id=schema.next_table_id + 1)
    assert made.partition_key and made.view is not None, "a view has a key of its own"
    assert {column.name for column in (*base.partition_key, *base.clustering)} <= made.by_name.keys(), (
        "a row of a view names the row that it comes from"
    )
    assert change.name not in base.views, "a base table names a view once"
    listed = replace(base, views=tuple(sorted((*base.views, change.name))))
    summary = ChangeSummary(CREATED, "TABLE", space.name, change.name)
    return grown.with_table(made).with_table(listed), summary


_TTL_FOLLOWS: Final = (
    "Data in a materialized view always expire at the same time than the corresponding data in the parent "
    "table."
)


def alter_view(schema: Schema, change: AlterView, epoch: int) -> Applied:
    view = schema.table(change.keyspace, change.name)
    if view is None or view.view is None:
        if change.if_exists:
            return schema, None
        raise _no_view(change.keyspace, change.name)
    check_hints(schema.by_name[change.keyspace], change.options)
    options = checked_options(change.options, view.options)
    check_view(view.keyspace, view.name, options)
    if int(option(options, "gc_grace_seconds")) == 0:
        raise Rejected(f"Cannot alter gc_grace_seconds of a materialized view to 0, {_GRACE_NEEDED}")
    if int(option(options, "default_time_to_live")):
        raise Rejected(f"Cannot set or alter default_time_to_live for a materialized view. {_TTL_FOLLOWS}")
    if all(option(options, name) == option(view.options, name) for name, _ in options):
        return schema, None
    return (
        schema.with_table(replace(view, options=options, epoch=epoch)),
        ChangeSummary(UPDATED, "TABLE", change.keyspace, change.name),
    )


def drop_view(schema: Schema, change: DropView, epoch: int) -> Applied:
    view = schema.table(change.keyspace, change.name)
    if view is None or view.view is None:
        if change.if_exists:
            return schema, None
        raise _no_view(change.keyspace, change.name)
    base = schema.table(change.keyspace, view.view.base)
    assert base is not None, "a base table is dropped after its views"
    assert view.name in base.views, "a base table names its views"
    listed = replace(base, views=tuple(name for name in base.views if name != view.name))
    return (
        schema.without_table(view).with_table(listed),
        ChangeSummary(DROPPED, "TABLE", change.keyspace, change.name),
    )


# What views mean for changes of tables


def check_table_change(table: Table) -> None:
    """Rejected when what ALTER TABLE names is a view."""
    if table.view is not None:
        raise Rejected("Cannot use ALTER TABLE on a materialized view; use ALTER MATERIALIZED VIEW instead")


def check_drop(table: Table) -> None:
    """Rejected when DROP TABLE may not drop it: a view, or what views are made from."""
    if table.view is not None:
        raise Rejected(
            "Cannot use DROP TABLE on a materialized view. Please use DROP MATERIALIZED VIEW instead."
        )
    if table.views:
        names = ", ".join(f"{table.keyspace}.{name}" for name in table.views)
        raise Rejected(f"Cannot drop a table when materialized views still depend on it ({names})")


def check_column_drop(table: Table, column: str) -> None:
    """Rejected when the table has views: any column may decide whether a row of theirs exists."""
    if table.views:
        raise Rejected(f"Cannot drop column {column} on base table {table.name} with materialized views")


def check_options(table: Table, options: Sequence[tuple[str, str]]) -> None:
    """Rejected for options that a table with views cannot have."""
    if table.views and int(option(options, "gc_grace_seconds")) == 0:
        raise Rejected(
            f"Cannot alter gc_grace_seconds of the base table of a materialized view to 0, {_GRACE_NEEDED}"
        )


def views_follow(schema: Schema, before: Table, after: Table, epoch: int) -> Schema:
    """The schema with the views of an altered table as they are after it: new columns where `*` was selected,
    and new names of key columns."""
    for name in before.views:
        view = schema.table(before.keyspace, name)
        assert view is not None and view.view is not None, "a table lists its views"
        altered = _followed(view, view.view, before, after)
        if altered is not view:
            schema = schema.with_table(replace(altered, epoch=epoch))
    return schema


def emptied_views(schema: Schema, table: Table, epoch: int) -> Schema:
    """The schema with new storage prefixes for the views of a table that was emptied."""
    for name in table.views:
        view = schema.table(table.keyspace, name)
        assert view is not None, "a table lists its views"
        assert view.id < schema.next_table_id, "what was in a view is of an older id"
        fresh = replace(view, id=schema.next_table_id, epoch=epoch)
        schema = replace(schema, next_table_id=schema.next_table_id + 1).with_table(fresh)
    return schema


def check_references(tables: Sequence[Table]) -> None:
    """Assert that views and their base tables name each other, and agree on columns."""
    known = {(table.keyspace, table.name): table for table in tables}
    for table in tables:
        for name in table.views:
            view = known[table.keyspace, name]
            assert view.view is not None and view.view.base == table.name, (
                f"{name} is no view of {table.name}"
            )
            assert all(table.by_id[c.id].name == c.name for c in view.columns), (
                f"{name} has columns of its own"
            )
        if table.view is not None:
            base = known[table.keyspace, table.view.base]
            assert table.name in base.views, f"{base.name} does not know of its view {table.name}"


def check_truncate(table: Table) -> None:
    """Rejected for a view, which is emptied with its base table."""
    if table.view is not None:
        raise Rejected("Cannot TRUNCATE materialized view directly; must truncate base table instead")


def _followed(view: Table, definition: View, before: Table, after: Table) -> Table:
    names = {column.id: column.name for column in after.columns}
    columns = [replace(column, name=names[column.id]) for column in view.columns]
    if definition.all_columns:
        known = {column.id for column in before.columns}
        columns += [
            column for column in after.columns if column.id not in known and column.kind is ColumnKind.REGULAR
        ]
    ordered = _sorted(columns)
    assert len(ordered) >= len(view.columns), "a view loses no column"
    if ordered == view.columns:
        return view if view.next_column_id == after.next_column_id else _numbered(view, after)
    renamed = {
        column.name: names[column.id] for column in before.columns if column.name != names.get(column.id)
    }
    where = renamed_where(definition.where, renamed)
    made = replace(definition, columns=_pairs(ordered), where=where)
    return _numbered(replace(view, columns=ordered, view=made), after)


def _numbered(view: Table, base: Table) -> Table:
    return replace(view, next_column_id=base.next_column_id)


def renamed_where(where: str, renamed: dict[str, str]) -> str:
    """The text of a WHERE clause with other names of columns. Texts are made by `cql`, which quotes all
    names that are not plain, so words of it are told apart by their quotes alone. New names are quoted."""
    if not renamed:
        return where
    parts: list[str] = []
    at = 0
    while at < len(where):
        end = _word_end(where, at)
        assert end > at, "each word has a sign, so that the text ends"
        word = where[at:end]
        name = word[1:-1].replace('""', '"') if word.startswith('"') else word
        # A function, a field of a user's type, or a text.
        other = where[end : end + 1] in ("(", ":") or word.startswith("'")
        parts.append('"' + renamed[name].replace('"', '""') + '"' if name in renamed and not other else word)
        at = end
    return "".join(parts)


def _word_end(text: str, at: int) -> int:
    """Where the word, the quoted text or the sign that begins at a place ends."""
    first = text[at]
    if first in "'\"":
        end = at + 1
        while end < len(text):
            if text[end] != first:
                end += 1
            elif text[end + 1 : end + 2] == first:
                end += 2
            else:
                return end + 1
        return end
    end = at
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return max(end, at + 1)


# Parts


def _check_base(change: CreateView, base: Table) -> None:
    check_not_log(base, "a materialized view")
    if base.is_counter:
        raise Rejected("Materialized views are not supported on counter tables")
    if base.view is not None:
        raise Rejected("Materialized views cannot be created against other materialized views")
    if int(option(base.options, "gc_grace_seconds")) == 0:
        raise Rejected(
            f"Cannot create materialized view '{change.name}' for base table '{base.name}' with "
            f"gc_grace_seconds of 0, {_GRACE_NEEDED}"
        )


def _selected(change: CreateView, base: Table) -> frozenset[str]:
    """Names of the columns that the view has. Raises Rejected."""
    if not change.selected and base.static:
        raise Rejected(
            f"Unable to include static column '{base.static[0].name}' which would be included by "
            "Materialized View SELECT * statement"
        )
    for name in change.selected:
        column = base.by_name.get(name)
        if column is None:
            raise Rejected(f"Undefined column name {name} in table {base.keyspace}.{base.name}")
        if column.kind is ColumnKind.STATIC:
            raise Rejected(f"Cannot include static column '{name}' in materialized view '{change.name}'")
    chosen = change.selected or tuple(base.by_name)
    return frozenset((*chosen, *change.partition, *change.clustering))


def _check_key(change: CreateView, space: Keyspace, base: Table) -> int:
    """The id of the column of the key that is not in the base's, 0 without one. Raises Rejected."""
    view, names = change.name, (*change.partition, *change.clustering)
    if not change.partition:
        raise Rejected(f"Must provide at least one partition key column for materialized view '{view}'")
    for name in names:
        if names.count(name) > 1:
            raise Rejected(f"Duplicate column '{name}' in PRIMARY KEY clause for materialized view '{view}'")
        column = base.by_name.get(name)
        if column is None:
            raise Rejected(
                f"Unknown column '{name}' referenced in PRIMARY KEY for materialized view '{view}'"
            )
        if column.kind is ColumnKind.STATIC:
            raise Rejected(f"Cannot use Static column '{name}' in PRIMARY KEY of materialized view")
        kind = declared_type(space, column.type)
        if kind.is_multicell:
            raise Rejected(f"Cannot use MultiCell column '{name}' in PRIMARY KEY of materialized view")
        check_key_type(name, kind)
    added = [name for name in names if base.by_name[name].kind not in _KEY_KINDS]
    if len(added) > 1:
        raise Rejected(
            "Cannot include more than one non-primary key column in materialized view primary key "
            f"(got {', '.join(added)})"
        )
    missing = [
        column.name for column in base.columns if column.kind in _KEY_KINDS and column.name not in names
    ]
    if missing:
        raise Rejected(
            f"Cannot create materialized view '{view}' without primary key columns {', '.join(missing)} "
            f"from base table '{base.name}'"
        )
    return base.by_name[added[0]].id if added else 0


def _check_where(change: CreateView, base: Table) -> None:
    key = (*change.partition, *change.clustering)
    for name in (*change.not_null, *change.restricted):
        if name not in base.by_name:
            raise Rejected(f"Undefined column name {name} in table {base.keyspace}.{base.name}")
    # IS NOT NULL of another column is taken and, as in Cassandra, leaves no row out.
    others = sorted({name for name in change.restricted if name not in key})
    if others:
        raise Rejected(
            "Non-primary key columns cannot be restricted in the SELECT statement used for materialized view "
            f"creation (got restrictions on: {', '.join(others)})"
        )
    for name in key:
        if name not in change.not_null and name not in change.restricted:
            raise Rejected(f"Primary key column '{name}' is required to be filtered by 'IS NOT NULL'")


def _columns(change: CreateView, base: Table, selected: frozenset[str]) -> tuple[Column, ...]:
    places = {
        **{name: (ColumnKind.PARTITION_KEY, at) for at, name in enumerate(change.partition)},
        **{name: (ColumnKind.CLUSTERING, at) for at, name in enumerate(change.clustering)},
    }
    found = []
    for column in base.columns:
        if column.name in selected:
            kind, position = places.get(column.name, (ColumnKind.REGULAR, -1))
            descending = column.descending if change.base_order else column.name in change.descending
            found.append(Column(column.id, column.name, column.type, kind, position, descending))
    return _sorted(found)


def _sorted(columns: Iterable[Column]) -> tuple[Column, ...]:
    return tuple(sorted(columns, key=lambda column: (column.kind, column.position, column.name)))


def _pairs(columns: Iterable[Column]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((column.id, column.id) for column in columns))


def _no_view(keyspace: str, name: str) -> Rejected:
    return Rejected(f"Materialized view '{keyspace}.{name}' doesn't exist", keyspace=keyspace, table=name)


def views_of(schema: Schema, base: Table) -> tuple[Table, ...]:
    """The views of a table, by name; costs as many as there are."""
    found = (schema.table(base.keyspace, name) for name in base.views)
    return tuple(view for view in found if view is not None)


def unmarking(table: Table) -> tuple[int, ...]:
    """Ids of the columns whose cells make no row exist, ascending: those that were dropped, and all of a view
    whose rows have a marker."""
    ids = list(table.gone)
    if table.view is not None and table.view.added:
        ids += [column.id for column in table.regular]
    return tuple(sorted(ids))
