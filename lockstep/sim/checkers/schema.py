"""SCH-1: a schema has no dangling references, ids are given once, and of a race one comes out.

Invariant: judged from two neighbouring epochs' values alone, and only what changed between them; together
with LOG-1, which holds every node to the first value seen at an epoch, one epoch is one schema.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.schema.changes import validate
from lockstep.schema.model import Schema, Table
from lockstep.schema.user_types import type_in
from lockstep.sim.checkers.violation import Violation
from lockstep.values.errors import InvalidRequest
from lockstep.values.hash_tree import changed

#: Every so many epochs the whole value is checked, also what did not change.
WHOLE_EVERY = 64


def check_schema(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """Raises Violation."""
    old, new = before.schema, after.schema
    if old is not new:
        _check_ids(old, new)
        for _, was, now in changed(old.table_tree, new.table_tree):
            if now is not None:
                _check_table(new, now)
            if was is not None and now is not None:
                _check_columns(was, now)
        _check_types(old, new)
        _check_rings(after)
    if after.epoch % WHOLE_EVERY == 0:
        try:
            validate(new)
        except AssertionError as broken:
            raise Violation("SCH-1", f"epoch {after.epoch}: {broken}") from broken


def _check_ids(old: Schema, new: Schema) -> None:
    if new.next_table_id < old.next_table_id:
        raise Violation("SCH-1", f"the next table id went from {old.next_table_id} to {new.next_table_id}")
    for table_id, was, now in changed(old.table_tree, new.table_tree):
        if was is None and not old.next_table_id <= table_id < new.next_table_id:
            raise Violation("SCH-1", f"table id {table_id} was given before")
        if was is not None and now is not None and was.uuid != now.uuid:
            raise Violation("SCH-1", f"table {was.keyspace}.{was.name} became another one under its id")


def _check_table(schema: Schema, table: Table) -> None:
    where = f"{table.keyspace}.{table.name}"
    space = schema.by_name.get(table.keyspace)
    if space is None or space.by_name.get(table.name) is not table:
        raise Violation("SCH-1", f"table {where} is in no keyspace, or another one has its name")
    if schema.table_ids.get(table.uuid) != table.id:
        raise Violation("SCH-1", f"two tables have the uuid of {where}")
    try:
        for column in table.columns:
            type_in(space, column.type)
    except InvalidRequest as missing:
        raise Violation("SCH-1", f"table {where} uses a type that is gone: {missing.message}") from missing


def _check_types(old: Schema, new: Schema) -> None:
    """Where types changed, also of the tables that did not."""
    for space in new.keyspaces:
        before = old.by_name.get(space.name)
        if before is not None and before.types is not space.types and before.types != space.types:
            for table in space.by_name.values():
                _check_table(new, table)


def _check_columns(was: Table, now: Table) -> None:
    """An id is of one column for ever; cells that a drop made dead stay dead when it comes back."""
    where = f"{now.keyspace}.{now.name}"
    gone = {column.id: column for column in was.dropped}
    for column in now.columns:
        known = was.by_id.get(column.id)
        back = gone.get(column.id) if known is None else None
        if known is None and column.id < was.next_column_id and (back is None or back.name != column.name):
            raise Violation("SCH-1", f"column {column.name} of {where} has an id that was given before")
        if known is not None and (known.kind, known.position) != (column.kind, column.position):
            raise Violation("SCH-1", f"column {column.name} of {where} changed its place")
    later = {column.id: column.dropped_at_us for column in now.dropped}
    if any(id_ not in later or later[id_] < column.dropped_at_us for id_, column in gone.items()):
        raise Violation("SCH-1", f"{where} has forgotten a dropped column")


def _check_rings(after: ClusterMetadata) -> None:
    used = {keyspace.replication for keyspace in after.schema.keyspaces}
    if used != after.placements.by_replication.keys():
        raise Violation("SCH-1", "the rings are not those of the keyspaces")
