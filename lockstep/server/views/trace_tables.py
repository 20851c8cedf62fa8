"""`system_traces`: its tables, as changes that make them and as empty ones that are shown before that.

Invariant: clients see the same keyspace, tables and ids before the first trace as after it. A cluster that
never traces stores, streams and repairs nothing for it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import Schema
from lockstep.server.views.virtual import REPLICATION, VirtualTable, define
from lockstep.server.views.virtual_rows import VirtualRow

KEYSPACE: Final = "system_traces"
_SESSIONS: Final = (
    "session_id uuid; client inet; command text; coordinator inet; coordinator_port int; duration int; "
    "parameters map<text, text>; request text; started_at timestamp"
)
_EVENTS: Final = (
    "session_id uuid; event_id timeuuid; activity text; source inet; source_port int; source_elapsed int; "
    "thread text"
)


def trace_tables() -> list[VirtualTable]:
    """The tables without a row, for as long as there are no others."""
    return [
        _kept_shortly(define(KEYSPACE, name, columns, ("session_id",), clustering, _nothing, comment=comment))
        for name, columns, clustering, comment in (
            ("sessions", _SESSIONS, (), "tracing sessions"),
            ("events", _EVENTS, ("event_id",), "tracing events"),
        )
    ]


def _nothing() -> tuple[VirtualRow, ...]:
    return ()


def _kept_shortly(found: VirtualTable) -> VirtualTable:
    """Rows expire and are never deleted."""
    options = (*found.table.options, ("gc_grace_seconds", "0"))
    return VirtualTable(msgspec.structs.replace(found.table, options=options), found.rows)


def changes_that_make_it(schema: Schema) -> list[ChangeSchema]:
    """What the schema lacks of it."""
    space = schema.by_name.get(KEYSPACE)
    found: list[ChangeSchema] = []
    if space is None:
        strategy, factors = REPLICATION[KEYSPACE].strategy, REPLICATION[KEYSPACE].factors
        replication = (("class", strategy), *(("replication_factor", str(factor)) for _, factor in factors))
        found.append(ChangeSchema(CreateKeyspace(KEYSPACE, replication, if_not_exists=True, by_server=True)))
    for made in trace_tables():
        table = made.table
        if space is None or table.name not in space.by_name:
            columns = tuple(NewColumn(c.name, c.type, c.kind, c.position) for c in table.columns)
            change = CreateTable(
                KEYSPACE, table.name, table.uuid, columns, table.options, if_not_exists=True, by_server=True
            )
            found.append(ChangeSchema(change))
    return found
