"""`system_traces` before its first trace: what clients see is what is made then."""

from __future__ import annotations

from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.select import plan_select
from lockstep.cql.ddl.describe import ClusterFacts, describe
from lockstep.schema.changes import SchemaChange, apply_change
from lockstep.schema.model import Schema
from lockstep.server.statements.statements import Catalogs
from lockstep.server.views.system_schema import SchemaTables
from lockstep.server.views.tool_keyspaces import changes_that_make_it, trace_tables
from lockstep.server.views.virtual import VirtualTables
from tests.server.test_named_rows import CONTEXT


class Shown:
    """What clients are shown of one schema, which changes."""

    def __init__(self) -> None:
        self.stored = Schema()
        made = [*SchemaTables(lambda: self.stored, lambda: self.virtual.schema).tables(), *trace_tables()]
        self.virtual = VirtualTables(made)
        self.catalogs = Catalogs(lambda: self.stored, self.virtual.schema)

    def apply(self, change: SchemaChange) -> None:
        self.stored, _ = apply_change(self.stored, change, 7)

    def described(self, text: str) -> tuple[tuple[bytes | None, ...], ...]:
        catalog = self.catalogs.current()
        return describe(prepare(text, None, catalog), catalog, ClusterFacts("c")).rows

    def selected(self, text: str) -> list[object]:
        catalog = self.catalogs.current()
        prepared = prepare(text, None, catalog)
        assert prepared.is_virtual
        builder = PageBuilder(plan_select(prepared, (), CONTEXT))
        while commands := builder.commands():
            builder.add([self.virtual.read(command) for command in commands])
        return list(builder.page().rows)

    def all(self) -> list[object]:
        texts = ("DESCRIBE KEYSPACES", "DESCRIBE KEYSPACE system_traces", "DESCRIBE TABLES")
        tables = ("keyspaces", "tables", "columns")
        by_name = [
            self.selected(f"SELECT * FROM system_schema.{name} WHERE keyspace_name = 'system_traces'")
            for name in tables
        ]
        return [
            *(self.described(text) for text in texts),
            *(self.selected(f"SELECT * FROM system_schema.{name}") for name in tables),
            *by_name,
        ]


def test_the_first_trace_changes_nothing_that_clients_see() -> None:
    shown = Shown()
    before = shown.all()
    assert (b"system_traces", b"keyspace", b"system_traces") in before[0]  # type: ignore[operator]
    assert not shown.selected("SELECT * FROM system_traces.sessions")
    changes = changes_that_make_it(shown.stored)
    assert len(changes) == 3
    for change in changes:
        shown.apply(change.change)
        assert shown.all() == before, "each is a change of its own, and the node that makes them may die"
        if change is not changes[-1]:
            assert not shown.selected("SELECT * FROM system_traces.sessions")
            assert not shown.selected("SELECT * FROM system_traces.events")
    assert not shown.catalogs.current().is_virtual("system_traces")
    assert not changes_that_make_it(shown.stored)


def test_what_an_interrupted_trace_left_out_is_made_by_the_next() -> None:
    shown = Shown()
    keyspace, sessions, events = (one.change for one in changes_that_make_it(shown.stored))
    shown.apply(keyspace)
    shown.apply(events)
    assert [one.change for one in changes_that_make_it(shown.stored)] == [sessions]


def test_keyspaces_that_cassandra_replicates_are_described_as_such() -> None:
    rows = Shown().described("DESCRIBE KEYSPACE system_traces")
    assert rows[0][3] == (
        b"CREATE KEYSPACE system_traces WITH replication = {'class': 'SimpleStrategy', "
        b"'replication_factor': '2'}  AND durable_writes = true;"
    )
    assert b"comment = 'tracing sessions'" in (rows[2][3] or b"")
