"""Tables that are read by name, against the same rows generated all at once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.bind.page_positions import decode
from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.compile.select import plan_select
from lockstep.schema.changes import AddColumns, CreateTable, DropColumns, NewColumn, apply_change
from lockstep.schema.model import ColumnKind, KeyspaceHead, Replication, Schema, keyspace_of, schema_of
from lockstep.server.views import virtual
from lockstep.server.views.system_schema import SchemaTables
from lockstep.server.views.virtual import VirtualTables, define
from lockstep.values.limits import VIRTUAL_ROWS_AT_ONCE_MAX

CONTEXT = Context(1, 1, 1, 1, bytes(14), lambda: bytes(16))
COLUMNS = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("v", "text"), NewColumn("a", "int"))
SHAPE = (
    "keyspace_name text; table_name text; column_name text; clustering_order text; "
    "column_name_bytes blob; kind text; position int; type text"
)


def schema(names: list[tuple[str, str]]) -> Schema:
    replication = Replication("SimpleStrategy", (("", 1),))
    made = schema_of(keyspace_of(KeyspaceHead(name, replication)) for name in ("a", "b", "c"))
    for at, (keyspace, name) in enumerate(names):
        made, _ = apply_change(made, CreateTable(keyspace, name, f"uuid-{at}", COLUMNS), at)
    return made


class Both:
    """One schema, listed by name and, in the keyspace `twin`, generated whole."""

    def __init__(self, stored: Schema) -> None:
        rows = [
            {
                "keyspace_name": table.keyspace,
                "table_name": table.name,
                "column_name": column.name,
                "clustering_order": "none",
                "column_name_bytes": column.name.encode(),
                "kind": "partition_key" if column.position == 0 else "regular",
                "position": column.position,
                "type": column.type,
            }
            for table in stored.tables_by_id.values()
            for column in table.columns
        ]
        keys = (("keyspace_name",), ("table_name", "column_name"))
        self.virtual = VirtualTables(
            [
                *SchemaTables(lambda: stored, Schema).tables(),
                define("twin", "columns", SHAPE, *keys, lambda: rows),
            ]
        )

    def agree(self, rest: str, size: int) -> list[tuple[bytes | None, ...]]:
        found = self.select(f"SELECT * FROM system_schema.columns {rest}", size)
        assert found == self.select(f"SELECT * FROM twin.columns {rest}", size), rest
        return found

    def select(self, text: str, size: int = -1) -> list[tuple[bytes | None, ...]]:
        prepared = prepare(text, None, Catalog(Schema(), self.virtual.schema))
        rows: list[tuple[bytes | None, ...]] = []
        state: Any = b""
        while state is not None:
            position = decode(state, prepared.plan.shape.table.uuid) if state else None
            builder = PageBuilder(plan_select(prepared, (), CONTEXT, position, size))
            while commands := builder.commands():
                builder.add([self.virtual.read(command) for command in commands])
            page = builder.page()
            rows += page.rows
            state = page.paging_state
        return rows


NAMES = st.sampled_from(["t", "t0", "t00", "T", "_", "u", "zz"])


@settings(max_examples=60, deadline=None)
@given(
    listed=st.lists(st.tuples(st.sampled_from("abc"), NAMES), unique=True, max_size=12),
    size=st.integers(1, 7),
    one=NAMES,
    other=NAMES,
    order=st.sampled_from(["", " ORDER BY table_name DESC, column_name DESC"]),
)
def test_reads_by_name_equal_reads_of_all_rows(
    listed: list[tuple[str, str]], size: int, one: str, other: str, order: str
) -> None:
    both = Both(schema(listed))
    assert len(both.agree("", size)) == 3 * len(listed)
    found = both.agree(f"WHERE keyspace_name = 'a' AND table_name = '{one}'{order}", size)
    assert len(found) == 3 * listed.count(("a", one))
    for rest in (
        "keyspace_name = 'a'",
        "keyspace_name = 'nobody'",
        f"keyspace_name = 'a' AND table_name > '{one}'",
        f"keyspace_name = 'a' AND table_name >= '{one}' AND table_name < '{other}'",
        f"keyspace_name = 'b' AND table_name = '{one}' AND column_name = 'a'",
        f"keyspace_name = 'b' AND table_name = '{one}' AND column_name > 'a'",
        f"keyspace_name = 'a' AND (table_name, column_name) > ('{one}', 'k')",
    ):
        both.agree(f"WHERE {rest}{order}", size)
    both.agree(f"WHERE keyspace_name IN ('c', 'a') AND table_name IN ('{one}', '{other}')", size)
    both.agree("PER PARTITION LIMIT 2", size)
    both.agree("WHERE kind = 'regular' ALLOW FILTERING", size)
    both.agree(f"WHERE keyspace_name = 'a' LIMIT {size}", -1)


def test_more_rows_than_are_made_at_once_are_read_in_several_rounds() -> None:
    stored = schema([("b", f"t{at:04}") for at in range(VIRTUAL_ROWS_AT_ONCE_MAX)] + [("a", "t")])
    both = Both(stored)
    for size in (-1, 100, VIRTUAL_ROWS_AT_ONCE_MAX):
        assert len(both.agree("", size)) == 3 * VIRTUAL_ROWS_AT_ONCE_MAX + 3


def test_a_read_of_one_table_looks_at_no_other(monkeypatch: Any) -> None:
    both = Both(schema([("a", f"t{at}") for at in range(100)]))
    rows = []
    encoded = virtual.RowEncoder.row
    monkeypatch.setattr(
        virtual.RowEncoder, "row", lambda self, row: (rows.append(row), encoded(self, row))[1]
    )
    text = "SELECT * FROM system_schema.columns WHERE keyspace_name = 'a' AND table_name = 't7'"
    assert len(both.select(text)) == 3 and len(rows) == 3


def test_a_column_that_was_dropped_twice_is_listed_with_its_last_time() -> None:
    made = schema([("a", "t")])
    for at in (1_000_000, 3_000_000):
        made, _ = apply_change(made, DropColumns("a", "t", ("v",), at), 9)
        made, _ = apply_change(made, AddColumns("a", "t", (NewColumn("v", "text"),)), 10)
    [found] = Both(made).select("SELECT column_name, dropped_time FROM system_schema.dropped_columns")
    assert found == (b"v", (3_000).to_bytes(8, "big"))
