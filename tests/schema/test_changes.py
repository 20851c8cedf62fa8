"""Changes of the schema value: what changes nothing, and what no later change may make impossible."""

from __future__ import annotations

import pytest

from lockstep.schema.changes import (
    AddColumns,
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropColumns,
    NewColumn,
    SchemaChange,
    apply_change,
    validate,
)
from lockstep.schema.model import ColumnKind, Schema
from lockstep.schema.statements import meant
from lockstep.schema.type_changes import AddTypeField, CreateType, DropType
from lockstep.schema.types import NATIVE_NAMES
from lockstep.schema.user_types import type_in
from lockstep.values.errors import InvalidRequest, Rejected

ONE = (("class", "SimpleStrategy"), ("replication_factor", "1"))
KEY = NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0)
CLUSTERING = NewColumn("c", "int", ColumnKind.CLUSTERING, 0)
POINT = CreateType("ks", "point", (("x", "int"),))


def table(*columns: NewColumn) -> CreateTable:
    return CreateTable("ks", "t", "00000000-0000-0000-0000-000000000001", (KEY, *columns))


def changed(*changes: SchemaChange) -> Schema:
    schema = Schema()
    for epoch, change in enumerate((CreateKeyspace("ks", ONE), *changes), 1):
        schema, _ = apply_change(schema, change, epoch)
        validate(schema)
    return schema


@pytest.mark.parametrize(
    "change",
    [
        AlterKeyspace("ks"),
        AlterKeyspace("ks", ONE, durable_writes=True),
        AlterOptions("ks", "t", (("comment", "said"),)),
        AlterOptions("ks", "t", (("gc_grace_seconds", "864000"),)),
        AlterOptions("ks", "t", ()),
    ],
)
def test_what_holds_already_delays_no_request(change: SchemaChange) -> None:
    schema = changed(table(), AlterOptions("ks", "t", (("comment", "said"),)))
    after, summary = apply_change(schema, change, 99)
    assert after is schema and summary is None


def test_another_option_is_a_change() -> None:
    schema = changed(table())
    for at, change in enumerate(
        (AlterOptions("ks", "t", (("comment", "x"),)), AlterKeyspace("ks", durable_writes=False)), 50
    ):
        after, summary = apply_change(schema, change, at)
        found = after.table("ks", "t")
        assert summary is not None and found is not None
        assert max(found.epoch, after.by_name["ks"].epoch) == at


@pytest.mark.parametrize("name", NATIVE_NAMES)
def test_no_type_has_the_name_of_a_built_in_one(name: str) -> None:
    """A column's text names no keyspace, so it would mean the built-in type."""
    with pytest.raises(Rejected, match="built-in"):
        apply_change(changed(), CreateType("ks", name, (("x", "int"),)), 5)


@pytest.mark.parametrize(
    ("column", "field", "message"),
    [
        (NewColumn("v", "point"), "list<int>", "Non-frozen UDTs with nested non-frozen collections"),
        (NewColumn("c", "frozen<point>", ColumnKind.CLUSTERING, 0), "duration", "PRIMARY KEY column 'c'"),
        (
            NewColumn("c", "frozen<list<point>>", ColumnKind.CLUSTERING, 0),
            "frozen<list<duration>>",
            "duration",
        ),
    ],
)
def test_a_field_is_refused_that_a_column_could_not_be_declared_with(
    column: NewColumn, field: str, message: str
) -> None:
    schema = changed(POINT, table(column))
    with pytest.raises(Rejected, match=message):
        apply_change(schema, AddTypeField("ks", "point", ("l", field)), 9)
    elsewhere = changed(POINT, table(NewColumn("v", "frozen<point>")))
    validate(apply_change(elsewhere, AddTypeField("ks", "point", ("l", field)), 9)[0])


def test_what_was_dropped_keeps_its_kind() -> None:
    schema = changed(table(CLUSTERING, NewColumn("s", "int", ColumnKind.STATIC), NewColumn("v", "int")))
    schema, _ = apply_change(schema, DropColumns("ks", "t", ("s", "v"), 5), 7)
    found = schema.table("ks", "t")
    assert found is not None
    assert [dropped.kind for dropped in found.dropped] == [ColumnKind.STATIC, ColumnKind.REGULAR]
    again, _ = apply_change(schema, AddColumns("ks", "t", (NewColumn("s", "int"),)), 8)
    validate(again)
    with pytest.raises(Rejected, match="'s' of kind REGULAR, incompatible with previous kind STATIC"):
        meant(schema, AddColumns("ks", "t", (NewColumn("s", "int"),)))


@pytest.mark.parametrize(
    ("was", "now", "fits"),
    [
        ("int", "varint", False),
        ("int", "blob", False),
        ("text", "blob", True),
        ("ascii", "text", True),
        ("text", "ascii", False),
        ("timestamp", "bigint", True),
        ("timeuuid", "uuid", True),
        ("int", "date", False),
        ("list<int>", "list<int>", True),
        ("list<int>", "set<int>", False),
        ("list<int>", "frozen<list<int>>", False),
        ("set<ascii>", "set<text>", True),
        ("set<timestamp>", "set<bigint>", False),
        ("map<ascii, timestamp>", "map<text, bigint>", True),
        ("map<timestamp, int>", "map<bigint, int>", False),
        ("set<text>", "blob", False),
        ("frozen<set<text>>", "blob", True),
        ("blob", "map<int, int>", False),
        ("frozen<list<int>>", "frozen<list<varint>>", False),
        ("frozen<tuple<int>>", "frozen<tuple<varint, text>>", True),
        ("frozen<tuple<int, text>>", "frozen<tuple<int>>", False),
        ("frozen<point>", "frozen<tuple<int>>", True),
        ("vector<float, 3>", "blob", False),
        ("vector<text, 3>", "blob", True),
        ("vector<int, 2>", "vector<int, 3>", False),
    ],
)
def test_a_column_comes_back_with_a_type_that_reads_what_it_held(was: str, now: str, fits: bool) -> None:
    schema = changed(POINT, table(NewColumn("v", was)), DropColumns("ks", "t", ("v",), 5))
    back = AddColumns("ks", "t", (NewColumn("v", now),))
    # Entries of a log say what was asked for, and bring it back as anything.
    validate(apply_change(schema, back, 9)[0])
    if fits:
        wanted = meant(schema, back)
        assert isinstance(wanted, AddColumns) and wanted.brings_back == ("v",)
        again, _ = apply_change(schema, wanted, 9)
        validate(again)
        was_table, now_table = schema.table("ks", "t"), again.table("ks", "t")
        assert was_table is not None and now_table is not None
        assert now_table.by_name["v"].id == was_table.dropped[0].id
        assert now_table.dead == ((was_table.dropped[0].id, 5),) and now_table.gone == ()
        assert now_table.next_column_id == was_table.next_column_id
        return
    with pytest.raises(Rejected) as caught:
        meant(schema, back)
    assert caught.value.message == (
        f"Cannot re-add previously dropped column 'v' of type {now}, incompatible with previous type {was}"
    )


def test_a_column_of_a_users_type_in_cells_stays_and_a_frozen_one_goes_with_its_type() -> None:
    schema = changed(POINT, table(NewColumn("v", "point"), NewColumn("f", "frozen<point>")))
    with pytest.raises(Rejected, match="Cannot drop non-frozen column v of user type point"):
        meant(schema, DropColumns("ks", "t", ("v",), 5))
    frozen = changed(
        POINT,
        table(NewColumn("f", "frozen<point>")),
        DropColumns("ks", "t", ("f",), 5),
        DropType("ks", "point"),
    )
    back = AddColumns("ks", "t", (NewColumn("f", "int"),))
    assert meant(frozen, back) is back
    validate(apply_change(frozen, back, 9)[0])


def test_a_key_with_a_field_that_is_not_known_yet_is_refused_and_not_a_defect() -> None:
    schema = changed(POINT)
    later, _ = apply_change(schema, AddTypeField("ks", "point", ("y", "int")), 9)
    old, new = (type_in(found.by_name["ks"], "frozen<point>") for found in (schema, later))
    component = new.component(new.serialize((1, 2)))
    assert new.take_component(component, 0)[0] == new.serialize((1, 2))
    with pytest.raises(InvalidRequest):
        old.take_component(component, 0)
    assert old.take_component(new.component(new.serialize((1, None))), 0)[0] == old.serialize((1,))
