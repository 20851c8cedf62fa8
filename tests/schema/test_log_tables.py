"""Logs of changes as tables: made, altered and dropped with the table whose changes they have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lockstep.schema.changes import (
    AddColumns,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropColumns,
    DropTable,
    EmptyTable,
    NewColumn,
    RenameColumns,
    SchemaChange,
    apply_change,
    validate,
)
from lockstep.schema.log_tables import capture_options, is_log, log_of, token_in
from lockstep.schema.model import ColumnKind, Schema, Table
from lockstep.schema.summaries import changed_views
from lockstep.schema.type_changes import CreateIndex, IndexedPart
from lockstep.schema.view_changes import CreateView
from lockstep.values.errors import Rejected
from lockstep.values.tokens import token_of

ON = ("cdc", (("enabled", "true"), ("preimage", "full")))
OFF = ("cdc", (("enabled", "false"),))
COLUMNS = (
    NewColumn("p", "int", ColumnKind.PARTITION_KEY, 0),
    NewColumn("c", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "text"),
    NewColumn("m", "map<text, int>"),
    NewColumn("l", "list<int>"),
    NewColumn("s", "set<int>", ColumnKind.STATIC),
)


def table(name: str = "t", *, columns: tuple[NewColumn, ...] = COLUMNS, options=(ON,), number: int = 1):
    return CreateTable("k", name, f"00000000-0000-4000-8000-{number:012}", columns, options)


def after(*changes: SchemaChange, tablets: bool = False) -> Schema:
    strategy = "NetworkTopologyStrategy" if tablets else "SimpleStrategy"
    factors = ("dc1" if tablets else "replication_factor", "1")
    space = CreateKeyspace("k", (("class", strategy), factors), tablets=() if tablets else None)
    schema = Schema()
    for epoch, change in enumerate((space, *changes), start=1):
        schema, _ = apply_change(schema, change, epoch, ("dc1",))
        validate(schema)
    return schema


def log(schema: Schema) -> Table:
    found = log_of(schema, schema.by_name["k"].by_name["t"])
    assert found is not None
    return found


def types(of: Table) -> dict[str, str]:
    return {column.name: column.type for column in of.columns if column.kind is ColumnKind.REGULAR}


def test_a_log_has_columns_for_all_that_can_change() -> None:
    schema = after(table())
    made = log(schema)
    assert [c.name for c in (*made.partition_key, *made.clustering)] == [
        "cdc$stream_id",
        "cdc$time",
        "cdc$batch_seq_no",
    ]
    assert types(made) == {
        "cdc$operation": "tinyint",
        "cdc$ttl": "bigint",
        "cdc$end_of_batch": "boolean",
        "p": "int",
        "c": "int",
        "v": "text",
        "cdc$deleted_v": "boolean",
        "m": "frozen<map<text, int>>",
        "cdc$deleted_m": "boolean",
        "l": "frozen<map<timeuuid, int>>",
        "cdc$deleted_l": "boolean",
        "s": "frozen<set<int>>",
        "cdc$deleted_s": "boolean",
        "cdc$deleted_elements_m": "frozen<set<text>>",
        "cdc$deleted_elements_l": "frozen<set<timeuuid>>",
        "cdc$deleted_elements_s": "frozen<set<int>>",
    }
    options = capture_options(schema.by_name["k"].by_name["t"])
    assert options is not None
    assert (options.preimage, options.postimage, options.keys_only, options.ttl_s) == (
        "full",
        False,
        False,
        86400,
    )
    assert made.epoch == 2 and is_log(made)
    stream = (77).to_bytes(8, "big") + bytes(8)
    assert token_in(made, stream) == 77
    assert token_in(schema.by_name["k"].by_name["t"], stream) == token_of(stream)


def test_a_log_follows_its_table_and_keeps_the_ids_of_what_stays() -> None:
    before = after(table())
    added = after(table(), AddColumns("k", "t", (NewColumn("n", "int"),)))
    ids = {column.name: column.id for column in log(before).columns}
    assert {c.name: c.id for c in log(added).columns if c.name in ids} == ids
    assert types(log(added))["n"] == "int"
    dropped = after(table(), DropColumns("k", "t", ("m",), 5))
    assert not {"m", "cdc$deleted_m", "cdc$deleted_elements_m"} & types(log(dropped)).keys()
    renamed = after(table(), RenameColumns("k", "t", (("c", "d"),)))
    assert log(renamed).by_name["d"].id == ids["c"] and "c" not in log(renamed).by_name
    again = after(table(), DropColumns("k", "t", ("m",), 5), AddColumns("k", "t", (NewColumn("m", "int"),)))
    assert log(again).by_name["m"].id not in ids.values(), "other values are out of reach"


def test_what_ends_capturing_leaves_the_log_which_may_go_alone_then() -> None:
    off = AlterOptions("k", "t", (OFF,))
    schema = after(table(), off)
    assert log_of(schema, schema.by_name["k"].by_name["t"]) is None
    assert "t_scylla_cdc_log" in schema.by_name["k"].by_name
    assert set(after(table(), off, DropTable("k", "t_scylla_cdc_log")).by_name["k"].by_name) == {"t"}
    assert not set(after(table(), off, DropTable("k", "t")).by_name["k"].by_name)
    assert not set(after(table(), DropTable("k", "t")).by_name["k"].by_name)
    on = after(table(), off, AddColumns("k", "t", (NewColumn("n", "int"),)), AlterOptions("k", "t", (ON,)))
    assert log(on).uuid == log(after(table())).uuid and "n" in log(on).by_name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (DropTable("k", "t_scylla_cdc_log"), "cannot be dropped alone"),
        (EmptyTable("k", "t_scylla_cdc_log"), "cannot be emptied alone"),
        (AlterOptions("k", "t_scylla_cdc_log", (("comment", "x"),)), "cannot be altered alone"),
        (table("x_scylla_cdc_log", number=2), "those of logs"),
        (CreateIndex("k", "t_scylla_cdc_log", "i", (IndexedPart("v"),)), "is a log of changes"),
        (
            CreateView(
                "k", "x", "00000000-0000-4000-8000-000000000002", "k", "t_scylla_cdc_log", (), ("v",), ()
            ),
            "is a log of changes",
        ),
        (AddColumns("k", "t", (NewColumn("cdc$x", "int"),)), "a name of the log's own"),
        (AddColumns("k", "t", (NewColumn("elements_m", "int"),)), "cdc\\$deleted_elements_m"),
        (table("u", columns=(COLUMNS[0], NewColumn("n", "counter")), number=2), "it counts"),
        (table("u", options=(("cdc", (("ttl", "-1"),)),), number=2), "greater than or equal to 0"),
        (table("u", options=(("cdc", (("preimage", "some"),)),), number=2), "Invalid boolean"),
    ],
)
def test_what_does_not_go_with_a_log_is_refused(change: SchemaChange, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        after(table(), change)


def test_tables_between_the_ring_and_tablets_are_refused() -> None:
    plain = after(table(options=()), tablets=True)
    space = plain.by_name["k"]
    between = replace(space, tablets=replace(space.tablets, from_ring=True))
    with pytest.raises(Rejected, match="on its way from the ring to tablets"):
        apply_change(plain.with_keyspace(between), AlterOptions("k", "t", (ON,)), 9)
    assert log(after(table(), tablets=True)).name == "t_scylla_cdc_log"


def test_drivers_are_told_of_the_log() -> None:
    bare, made = after(), after(table())
    _, summary = apply_change(bare, table(), 2)
    assert summary is not None
    assert [(one.change, one.name) for one in changed_views(summary, bare, made)] == [
        ("CREATED", "t_scylla_cdc_log")
    ]
    gone, summary = apply_change(made, DropTable("k", "t"), 3)
    assert summary is not None
    assert [(one.change, one.name) for one in changed_views(summary, made, gone)] == [
        ("DROPPED", "t_scylla_cdc_log")
    ]
