"""Views in the schema value: what refers to what, races that the log decides, what follows a base table."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.schema.changes import (
    AddColumns,
    DropColumns,
    DropTable,
    EmptyTable,
    NewColumn,
    RenameColumns,
    SchemaChange,
    apply_change,
    validate,
)
from lockstep.schema.model import Schema
from lockstep.schema.view_changes import AlterView, CreateView, DropView, renamed_where
from lockstep.values.errors import Rejected
from tests.schema.test_changes import CLUSTERING, changed, table

V = NewColumn("v", "int")
BASE = table(CLUSTERING, V)


def view(name: str = "m", *key: str, number: int = 2) -> CreateView:
    key = key or ("v", "k", "c")
    uuid = f"00000000-0000-0000-0000-{number:012}"
    where = " AND ".join(f"{column} IS NOT NULL" for column in key)
    return CreateView("ks", name, uuid, "ks", "t", (), key[:1], key[1:], not_null=key, where=where)


def test_of_a_view_and_the_drop_of_its_table_the_first_wins() -> None:
    with pytest.raises(Rejected, match=r"materialized views still depend on it \(ks.m\)"):
        changed(BASE, view(), DropTable("ks", "t"))
    with pytest.raises(Rejected, match="Base table 't' doesn't exist"):
        changed(BASE, DropTable("ks", "t"), view())
    left = changed(BASE, view(), DropView("ks", "m"), DropTable("ks", "t"))
    assert left.by_name["ks"].tables == ()


def test_columns_keep_their_order_in_a_view_that_names_none() -> None:
    down = NewColumn("c", "text", CLUSTERING.kind, CLUSTERING.position, True)
    for base_order in (False, True):
        schema = changed(table(down, V), msgspec.structs.replace(view(), base_order=base_order))
        made = schema.by_name["ks"].by_name["m"]
        assert [column.descending for column in made.columns] == [False, False, base_order]


def test_a_truncate_empties_views_in_the_same_entry() -> None:
    before = changed(BASE, view(), view("n", "c", "k", number=3))
    after, _ = apply_change(before, EmptyTable("ks", "t"), 9)
    validate(after)
    old, new = (schema.by_name["ks"].by_name for schema in (before, after))
    assert all(old[name].id != new[name].id and old[name].uuid == new[name].uuid for name in ("t", "m", "n"))
    with pytest.raises(Rejected, match="Cannot TRUNCATE materialized view directly"):
        apply_change(before, EmptyTable("ks", "m"), 9)


def test_views_follow_names_and_new_columns() -> None:
    schema = changed(
        BASE,
        view(),
        AddColumns("ks", "t", (NewColumn("w", "text"),)),
        RenameColumns("ks", "t", (("c", "select"),)),
    )
    made = schema.by_name["ks"].by_name["m"]
    assert [column.name for column in made.columns] == ["v", "k", "select", "w"]
    assert (
        made.view is not None
        and made.view.where == 'v IS NOT NULL AND k IS NOT NULL AND "select" IS NOT NULL'
    )
    with pytest.raises(Rejected, match="Cannot drop column w on base table t"):
        apply_change(schema, DropColumns("ks", "t", ("w",), 1), 9)


@pytest.mark.parametrize(
    ("where", "after"),
    [
        ("c = 'c' AND k = 1", "\"d\" = 'c' AND k = 1"),
        ("c IN ('it''s c', 'c') AND cc = 1", "\"d\" IN ('it''s c', 'c') AND cc = 1"),
        ("(c, e) > (1, c(2)) AND x = {c: 1, y: 2}", '("d", e) > (1, c(2)) AND x = {c: 1, y: 2}'),
        ('"c" > 1 AND "C" < 1', '"d" > 1 AND "C" < 1'),
    ],
)
def test_names_change_in_clauses_and_texts_do_not(where: str, after: str) -> None:
    assert renamed_where(where, {"c": "d"}) == after


_CHANGES = st.sampled_from(
    [
        BASE,
        DropTable("ks", "t"),
        EmptyTable("ks", "t"),
        AddColumns("ks", "t", (NewColumn("w", "text"),), if_column_not_exists=True),
        RenameColumns("ks", "t", (("c", "d"),)),
        RenameColumns("ks", "t", (("d", "c"),)),
        DropColumns("ks", "t", ("w",), 1),
        view(),
        view("m", "v", "k", "d"),
        view("n", "c", "k", number=3),
        AlterView("ks", "m", (("comment", "x"),)),
        DropView("ks", "m"),
        DropView("ks", "n"),
    ]
)


@given(st.lists(_CHANGES, max_size=20))
@settings(max_examples=100, deadline=None)
def test_no_order_of_changes_leaves_a_reference_to_nothing(changes: list[SchemaChange]) -> None:
    schema: Schema = changed(BASE)
    for epoch, change in enumerate(changes, 3):
        with contextlib.suppress(Rejected):
            schema, _ = apply_change(schema, change, epoch)
        validate(schema)
