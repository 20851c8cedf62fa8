"""Virtual tables against a brute-force answer, and statements' ids and memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.bind.page_positions import decode
from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.compile.select import plan_select
from lockstep.schema.model import Keyspace, Replication, Schema, schema_of
from lockstep.server.statements.statements import Statements
from lockstep.server.views.virtual import VirtualTables, define
from lockstep.values.errors import InvalidRequest, SyntaxError_, Unprepared
from lockstep.values.limits import PREPARED_STATEMENTS_MAX

CONTEXT = Context(1, 1, 1, 1, bytes(14), lambda: bytes(16))
COLUMNS = "p text; c int; s text; v int; tags set<text>; notes map<text, text>; steps list<int>"


def tables(rows: list[dict[str, Any]]) -> VirtualTables:
    return VirtualTables([define("seen", "t", COLUMNS, ("p",), ("c",), lambda: rows, static=("s",))])


def select(virtual: VirtualTables, text: str, page_size: int = -1) -> list[tuple[bytes | None, ...]]:
    """All pages of a SELECT, each from the state of the one before."""
    prepared = prepare(text, None, Catalog(Schema(), virtual.schema))
    rows: list[tuple[bytes | None, ...]] = []
    state = None
    while True:
        position = decode(state, prepared.plan.shape.table.uuid) if state is not None else None
        builder = PageBuilder(plan_select(prepared, (), CONTEXT, position, page_size))
        while commands := builder.commands():
            builder.add([virtual.read(command) for command in commands])
        page = builder.page()
        assert page_size < 0 or len(page.rows) <= page_size
        rows += page.rows
        state = page.paging_state
        if state is None:
            return rows


def number(data: bytes | None) -> int:
    assert data is not None
    return int.from_bytes(data, "big", signed=True)


keys = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), unique=True, max_size=20)


@settings(max_examples=60, deadline=None)
@given(found=keys, size=st.integers(1, 7), low=st.integers(-5, 5), reverse=st.booleans())
def test_selects_equal_brute_force_whatever_the_page_size(
    found: list[tuple[str, int]], size: int, low: int, reverse: bool
) -> None:
    virtual = tables([{"p": p, "c": c, "s": p * 2, "v": c * c} for p, c in found])
    every = [(p.decode(), number(c)) for p, c in select(virtual, "SELECT p, c FROM seen.t", size) if p]
    assert sorted(every) == sorted(found)
    order = "DESC" if reverse else "ASC"
    one = select(virtual, f"SELECT c, v FROM seen.t WHERE p = 'a' AND c >= {low} ORDER BY c {order}", size)
    wanted = sorted((c for p, c in found if p == "a" and c >= low), reverse=reverse)
    assert [(number(c), number(v)) for c, v in one] == [(c, c * c) for c in wanted]
    several = select(virtual, "SELECT p, c FROM seen.t WHERE p IN ('c', 'a')", size)
    chosen = [(p.decode(), number(c)) for p, c in several if p]
    assert chosen == sorted((p, c) for p, c in found if p in "ac")
    distinct = select(virtual, "SELECT DISTINCT p, s FROM seen.t", size)
    assert sorted((p, s) for p, s in distinct) == sorted({(p.encode(), (p * 2).encode()) for p, _ in found})


def test_collections_and_nulls_are_read_as_columns() -> None:
    row = {"p": "a", "c": 1, "tags": ["y", "x"], "notes": {"k": "v"}, "steps": [3, 1]}
    [found] = select(tables([row]), "SELECT tags, notes, steps, v, s FROM seen.t")
    assert found[0] == b"\0\0\0\2\0\0\0\1x\0\0\0\1y"
    assert found[1] == b"\0\0\0\1\0\0\0\1k\0\0\0\1v"
    assert found[2] == b"\0\0\0\2\0\0\0\4\0\0\0\3\0\0\0\4\0\0\0\1"
    assert found[3:] == (None, None)


def test_a_filter_needs_no_permission_on_virtual_tables() -> None:
    virtual = tables([{"p": "a", "c": c, "v": c % 2} for c in range(4)])
    assert len(select(virtual, "SELECT c FROM seen.t WHERE v = 1")) == 2


def test_rows_are_generated_anew_for_every_read() -> None:
    rows: list[dict[str, Any]] = [{"p": "a", "c": 1}]
    virtual = tables(rows)
    assert len(select(virtual, "SELECT * FROM seen.t")) == 1
    rows.append({"p": "a", "c": 2})
    assert len(select(virtual, "SELECT * FROM seen.t")) == 2


def statements(*names: str) -> Statements:
    virtual = tables([])
    replication = Replication("SimpleStrategy", (("", 1),))
    catalog = Catalog(schema_of(Keyspace(name, replication) for name in names), virtual.schema)
    return Statements(lambda: catalog)


def test_ids_depend_on_the_keyspace_only_where_the_statement_does() -> None:
    one, other = statements(), statements("unrelated")
    named = "SELECT v FROM seen.t"
    assert one.prepare(named, None).id == one.prepare(named, "system").id == other.prepare(named, None).id
    bare = "SELECT v FROM t"
    assert one.prepare(bare, "seen").id == other.prepare(bare, "seen").id != one.prepare(named, None).id
    assert one.prepare("SELECT c FROM t", "seen").id != one.prepare(bare, "seen").id


def test_statements_used_least_recently_are_forgotten_first() -> None:
    known = statements()
    first = known.prepare("SELECT v FROM seen.t LIMIT 1", None).id
    second = known.prepare("SELECT v FROM seen.t LIMIT 2", None).id
    template = known.by_id(first)
    for at in range(PREPARED_STATEMENTS_MAX - 2):
        known._prepared.put(at, template)
    assert known.by_id(first).id == first
    known._prepared.put("one more", template)
    assert known.by_id(first).id == first
    with pytest.raises(Unprepared) as found:
        known.by_id(second)
    assert found.value.statement_id == second
    assert len(known) == PREPARED_STATEMENTS_MAX


def test_a_text_that_does_not_parse_or_fit_is_not_kept() -> None:
    known = statements()
    with pytest.raises(SyntaxError_):
        known.prepare("SELECT", None)
    with pytest.raises(InvalidRequest):
        known.prepare("SELECT nothing FROM seen.t", None)
    assert len(known) == 0
