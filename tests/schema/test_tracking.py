"""What is tracked, and what a tracked table may not have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.schema.changes import (
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropTable,
    EmptyTable,
    NewColumn,
    SchemaChange,
    apply_change,
)
from lockstep.schema.model import ColumnKind, Schema
from lockstep.schema.tracking import is_tracked, newly_tracked, tracked_groups, tracked_tables
from lockstep.schema.view_changes import AlterView, CreateView
from lockstep.values.errors import Rejected

ONE = (("class", "SimpleStrategy"), ("replication_factor", "1"))
TWO = (("class", "SimpleStrategy"), ("replication_factor", "2"))
SPREAD = (("class", "NetworkTopologyStrategy"), ("dc1", "1"))
KEY = NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0)


def table(name: str, *options: tuple[str, str], column: str = "int") -> CreateTable:
    columns = (KEY, NewColumn("v", column))
    return CreateTable("ks", name, f"00000000-0000-4000-8000-0000000000{ord(name):02x}", columns, options)


def applied(*changes: SchemaChange) -> Schema:
    schema = Schema()
    for epoch, change in enumerate(changes, start=1):
        schema, _ = apply_change(schema, change, epoch)
    return schema


def keyspace(word: str | None = "tracked") -> CreateKeyspace:
    return CreateKeyspace("ks", ONE, replication_type=word)


@pytest.mark.parametrize(
    ("word", "option", "expected"),
    [
        ("tracked", None, True),
        ("logged", None, True),
        ("legacy", None, False),
        ("untracked", None, False),
        (None, None, False),
        ("tracked", "keyspace", True),
        ("tracked", "untracked", False),
        ("tracked", "legacy", False),
        ("untracked", "tracked", True),
        ("untracked", "LOGGED", True),
    ],
)
def test_a_table_is_what_it_says_or_what_its_keyspace_says(
    word: str | None, option: str | None, expected: bool
) -> None:
    options = (("replication_type", option),) if option is not None else ()
    schema = applied(keyspace(word), table("t", *options))
    found = schema.table("ks", "t")
    assert found is not None and is_tracked(schema.by_name["ks"], found) is expected
    assert list(tracked_tables(schema)) == [found] * expected
    assert newly_tracked(Schema(), schema) == [], "it was never untracked"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((keyspace("maybe"),), "not 'maybe'"),
        ((keyspace(), table("t", ("replication_type", "maybe"))), "not 'maybe'"),
    ],
)
def test_what_cannot_be_tracked_is_refused_with_the_reason(
    changes: tuple[SchemaChange, ...], words: str
) -> None:
    assert applied(*changes[:-1]) is not None
    with pytest.raises(Rejected, match=words):
        applied(*changes)


@pytest.mark.parametrize(
    ("spread", "option"), [("tracked", None), ("tracked", "keyspace"), ("untracked", "tracked")]
)
def test_tables_with_tablets_are_tracked_as_others(spread: str, option: str | None) -> None:
    options = (("replication_type", option),) if option is not None else ()
    schema = applied(CreateKeyspace("ks", SPREAD, tablets=(), replication_type=spread), table("t", *options))
    assert [found.name for found in tracked_tables(schema)] == ["t"]


@pytest.mark.parametrize(
    "change",
    [
        AlterKeyspace("ks", replication_type="tracked"),
        AlterOptions("ks", "t", (("replication_type", "tracked"),)),
        table("u", ("replication_type", "tracked")),
    ],
)
def test_nothing_becomes_tracked_on_its_way_from_the_ring(change: SchemaChange) -> None:
    schema = applied(CreateKeyspace("ks", SPREAD, tablets=()), table("t"))
    keyspace = schema.by_name["ks"]
    assert keyspace.tablets is not None
    between = schema.with_keyspace(replace(keyspace, tablets=replace(keyspace.tablets, from_ring=True)))
    with pytest.raises(Rejected, match="on its way from the ring") as refused:
        apply_change(between, change, 3)
    assert "finalize" in refused.value.hint
    finished, _ = apply_change(schema, change, 3)
    assert list(tracked_tables(finished))


def view(*options: tuple[str, str]) -> CreateView:
    key, uuid = ("v", "k"), "00000000-0000-4000-8000-0000000000ff"
    return CreateView("ks", "w", uuid, "ks", "t", (), key[:1], key[1:], not_null=key, options=options)


@pytest.mark.parametrize(
    "changes",
    [
        (keyspace(), table("t"), view()),
        (keyspace(), table("t"), view(("replication_type", "untracked"))),
        (keyspace(None), table("t"), view(), AlterKeyspace("ks", replication_type="tracked")),
        (keyspace(None), table("t"), view(), AlterOptions("ks", "t", (("replication_type", "tracked"),))),
    ],
)
def test_a_view_of_a_tracked_table_is_untracked_by_itself(changes: tuple[SchemaChange, ...]) -> None:
    schema = applied(*changes)
    assert [found.name for found in tracked_tables(schema)] == ["t"]
    made = schema.table("ks", "w")
    assert made is not None and made.tracked_since == 0
    again = applied(*changes, EmptyTable("ks", "t"))
    assert [found.name for found in tracked_tables(again)] == ["t"]


@pytest.mark.parametrize(
    "change", [view(("replication_type", "logged")), AlterView("ks", "w", (("replication_type", "tracked"),))]
)
def test_a_view_cannot_be_tracked(change: SchemaChange) -> None:
    made = () if isinstance(change, CreateView) else (view(),)
    for word in ("tracked", "untracked"):
        with pytest.raises(Rejected, match="no mutation that has an id"):
            applied(keyspace(word), table("t"), *made, change)


def test_tracking_ends_at_any_time() -> None:
    schema = applied(keyspace(), table("t"), AlterKeyspace("ks", replication_type="untracked"))
    assert list(tracked_tables(schema)) == []
    again = applied(keyspace(), table("t"), AlterOptions("ks", "t", (("replication_type", "untracked"),)))
    assert list(tracked_tables(again)) == []
    assert applied(keyspace(), AlterKeyspace("ks", TWO)).by_name["ks"].replication.total == 2


@pytest.mark.parametrize(
    "change",
    [
        AlterKeyspace("ks", replication_type="tracked"),
        AlterOptions("ks", "t", (("replication_type", "tracked"),)),
    ],
)
def test_a_table_says_since_when_it_is_tracked_until_it_is_emptied_or_tracked_no_more(
    change: SchemaChange,
) -> None:
    changes = (keyspace(None), table("t"), change)
    before, after = applied(*changes[:2]), applied(*changes)
    found = after.by_name["ks"].by_name["t"]
    assert found.tracked_since == 3 and newly_tracked(before, after) == [found]
    again = applied(*changes, AlterOptions("ks", "t", (("comment", "other"),)))
    assert again.by_name["ks"].by_name["t"].tracked_since == 3
    emptied = applied(*changes, EmptyTable("ks", "t"))
    assert emptied.by_name["ks"].by_name["t"].tracked_since == 0
    word = (("replication_type", "untracked"),)
    ended = applied(*changes, AlterOptions("ks", "t", word))
    assert ended.by_name["ks"].by_name["t"].tracked_since == 0
    back = AlterOptions("ks", "t", (("replication_type", "tracked"),))
    assert (
        applied(*changes, AlterOptions("ks", "t", word), back).by_name["ks"].by_name["t"].tracked_since == 5
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "captured", "drop", "empty", "option", "keyspace", "untracked"]),
            st.sampled_from("abcd"),
            st.sampled_from(["tracked", "untracked"]),
        ),
        max_size=14,
    ),
    st.sampled_from(["tracked", "untracked"]),
)
def test_what_is_tracked_is_taken_over_from_schema_to_schema(
    steps: list[tuple[str, str, str]], word: str
) -> None:
    schema = applied(keyspace(word))
    assert tracked_groups(schema) == {}
    for epoch, (kind, name, said) in enumerate(steps, start=2):
        change = {
            "create": table(name, ("replication_type", said)),
            "captured": table(name, ("cdc", "true"), ("replication_type", said)),
            "untracked": table(name),
            "drop": DropTable("ks", name),
            "empty": EmptyTable("ks", name),
            "option": AlterOptions("ks", name, (("replication_type", said),)),
            "keyspace": AlterKeyspace("ks", replication_type=said),
        }[kind]
        try:
            schema, _ = apply_change(schema, change, epoch)
        except Rejected:
            continue
        space = schema.by_name["ks"]
        found = {one.id: space.group_of(one) for one in space.tables if is_tracked(space, one)}
        assert list(tracked_groups(schema).items()) == list(found.items())


def test_a_table_more_costs_no_walk_over_all_where_none_is_tracked() -> None:
    schema = applied(keyspace("untracked"), table("a"), table("b"))
    known = tracked_groups(schema)
    after, _ = apply_change(schema, table("c"), 9)
    assert tracked_groups(after) is known and "tables" not in after.by_name["ks"].__dict__


CAPTURED = (("cdc", "true"),)
TRACK, UNTRACK = ((("replication_type", word),) for word in ("tracked", "untracked"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((keyspace(), table("t", *CAPTURED)), True),
        ((keyspace(), table("t"), AlterOptions("ks", "t", CAPTURED)), True),
        ((keyspace(None), table("t", *CAPTURED, *TRACK)), True),
        ((keyspace(None), table("t", *CAPTURED), AlterOptions("ks", "t", TRACK)), True),
        ((keyspace(None), table("t", *CAPTURED), AlterKeyspace("ks", replication_type="tracked")), True),
        ((keyspace(), table("t", *CAPTURED, *UNTRACK)), False),
        ((keyspace(), table("t", *CAPTURED), AlterOptions("ks", "t", UNTRACK)), False),
        ((keyspace(), table("t", *CAPTURED), AlterKeyspace("ks", replication_type="untracked")), False),
        ((CreateKeyspace("ks", SPREAD, tablets=(), replication_type="tracked"), table("t", *CAPTURED)), True),
    ],
)
def test_a_log_of_changes_is_tracked_as_its_table(changes: tuple[SchemaChange, ...], expected: bool) -> None:
    schema = applied(*changes)
    base, log = (schema.table("ks", name) for name in ("t", "t_scylla_cdc_log"))
    assert base is not None and log is not None
    space = schema.by_name["ks"]
    assert is_tracked(space, base) is is_tracked(space, log) is expected
    assert base.tracked_since == log.tracked_since, "a repair makes both equal"
    assert list(tracked_tables(schema)) == ([base, log] if expected else [])


def test_a_log_goes_back_with_its_table_and_says_nothing_where_that_says_nothing() -> None:
    made = (keyspace(None), table("t", *CAPTURED), AlterOptions("ks", "t", TRACK))
    inherit = AlterOptions("ks", "t", (("replication_type", "keyspace"),))
    log = applied(*made, inherit).by_name["ks"].by_name["t_scylla_cdc_log"]
    assert log.options == applied(*made[:2]).by_name["ks"].by_name["t_scylla_cdc_log"].options
    assert log.tracked_since == 0
    off = AlterOptions("ks", "t", (("cdc", "false"),))
    left = applied(*made, off, AlterOptions("ks", "t", UNTRACK))
    assert [found.name for found in tracked_tables(left)] == ["t_scylla_cdc_log"], "it is a table by itself"
    again = applied(*made, off, AlterOptions("ks", "t", UNTRACK), AlterOptions("ks", "t", CAPTURED))
    assert list(tracked_tables(again)) == []
