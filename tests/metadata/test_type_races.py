"""Two submissions about one user-defined type: one wins, the other is told why, whatever the order."""

from __future__ import annotations

import pytest

from lockstep.metadata.cluster import REGISTERED
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.log.tip import Appended, Judgement, Refused
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import KINDS, Initialize
from lockstep.schema.changes import (
    AddColumns,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    NewColumn,
    SchemaChange,
)
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import AddTypeField, CreateType, DropType, RenameTypeFields
from tests.metadata.histories import History, founder
from tests.metadata.stored import stored

_OPTIONS = (("class", "SimpleStrategy"), ("replication_factor", "1"))
_KEY = NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0)


def table(*columns: NewColumn) -> CreateTable:
    return CreateTable("ks", "t", "00000000-0000-0000-0000-000000000001", (_KEY, *columns))


_POINT = CreateType("ks", "point", (("x", "int"),))
_USING = table(NewColumn("v", "map<int, frozen<point>>"))
_PLAIN = table()


def history(*changes: SchemaChange) -> History:
    made = History(Registry(KINDS, SCHEMA_KINDS))
    made.submit(Initialize("c", "n", (founder(1, (0,)),)))
    for change in (CreateKeyspace("ks", _OPTIONS), *changes):
        made.submit(ChangeSchema(change))
    return made


def judge(made: History, number: int, change: SchemaChange) -> Judgement:
    """Judge at the tip, on top of what is appended and not committed yet."""
    kind, body = made.registry.encode(ChangeSchema(change))
    return made.tip.judge(b"race" + number.to_bytes(12, "big"), kind, body, "test", 5_000, 1)


_NO_TYPE = "Type 'ks.point' doesn't exist"
_RACES = [
    ("use against drop", [_POINT], _USING, DropType("ks", "point"),
     "Cannot drop user type 'ks.point' as it is still used by tables [t]", "Unknown type ks.point"),
    ("column against drop", [_POINT, _PLAIN], AddColumns("ks", "t", (NewColumn("v", "frozen<point>"),)),
     DropType("ks", "point"),
     "Cannot drop user type 'ks.point' as it is still used by tables [t]", "Unknown type ks.point"),
    ("nest against drop", [_POINT], CreateType("ks", "line", (("a", "frozen<point>"),)),
     DropType("ks", "point"),
     "Cannot drop user type 'ks.point' as it is still used by user types [line]", "Unknown type ks.point"),
    ("two of one name", [], _POINT, CreateType("ks", "point", (("y", "text"),)),
     "A user type with name 'point' already exists", "A user type with name 'point' already exists"),
    ("field against drop", [_POINT], AddTypeField("ks", "point", ("y", "int")), DropType("ks", "point"),
     None, _NO_TYPE),
    ("two fields of one name", [_POINT], AddTypeField("ks", "point", ("y", "int")),
     AddTypeField("ks", "point", ("y", "text")),
     "Cannot add field y to type point: a field with name y already exists",
     "Cannot add field y to type point: a field with name y already exists"),
    ("field against rename", [_POINT], AddTypeField("ks", "point", ("y", "int")),
     RenameTypeFields("ks", "point", (("x", "y"),)),
     "Duplicate field name y in type ks.point",
     "Cannot add field y to type point: a field with name y already exists"),
    ("rename against drop", [_POINT], RenameTypeFields("ks", "point", (("x", "y"),)),
     DropType("ks", "point"), None, _NO_TYPE),
    ("create against the keyspace's end", [], _POINT, DropKeyspace("ks"),
     None, "Keyspace 'ks' doesn't exist"),
    ("two drops", [_POINT], DropType("ks", "point"), DropType("ks", "point"), _NO_TYPE, _NO_TYPE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "first", "second", "second_loses", "first_loses"),
    [race[1:] for race in _RACES],
    ids=[race[0] for race in _RACES],
)
def test_of_two_changes_that_exclude_each_other_the_first_in_the_log_wins(
    before: list[SchemaChange],
    first: SchemaChange,
    second: SchemaChange,
    second_loses: str | None,
    first_loses: str | None,
) -> None:
    for winner, loser, words in ((first, second, second_loses), (second, first, first_loses)):
        made = history(*before)
        assert isinstance(judge(made, 1, winner), Appended)
        judged = judge(made, 2, loser)
        if words is None:
            assert isinstance(judged, Appended)
        else:
            assert isinstance(judged, Refused)
            assert (judged.rejection.cql_code, judged.rejection.message) == (0x2200, words)
            assert judged.judged_epoch == made.now.epoch + 1


def test_a_loser_that_allows_for_the_other_changes_nothing() -> None:
    made = history(_POINT)
    for number, change in enumerate(
        (
            CreateType("ks", "point", (("z", "int"),), if_not_exists=True),
            DropType("ks", "other", if_exists=True),
            AddTypeField("ks", "other", ("z", "int"), if_exists=True),
            AddTypeField("ks", "point", ("x", "int"), if_field_not_exists=True),
            RenameTypeFields("ks", "point", (("nope", "z"),), if_field_exists=True),
        )
    ):
        before = made.now.schema
        assert isinstance(judge(made, number, change), Appended)
        assert made.tip.value.schema is before


def test_a_change_of_a_type_is_one_of_every_table_that_uses_it_and_of_no_other() -> None:
    line = CreateType("ks", "line", (("a", "frozen<point>"), ("b", "frozen<point>")))
    deep = CreateTable(
        "ks", "deep", "00000000-0000-0000-0000-000000000002",
        (_KEY, NewColumn("v", "list<frozen<tuple<int, line>>>")),
    )  # fmt: skip
    other = CreateTable("ks", "other", "00000000-0000-0000-0000-000000000003", (_KEY,))
    made = history(_POINT, line, _USING, deep, other)
    before = {name: made.now.schema.table("ks", name) for name in ("t", "deep", "other")}
    made.submit(ChangeSchema(AddTypeField("ks", "point", ("y", "int"))))
    after = made.now.schema
    assert after.table("ks", "other") is before["other"]
    for name in ("t", "deep"):
        known, now = before[name], after.table("ks", name)
        assert known is not None and now is not None
        assert (now.epoch, now.columns, now.id) == (made.now.epoch, known.columns, known.id)
    assert after.by_name["ks"].types_by_name["point"].epoch == made.now.epoch
    made.now.validate()


def test_types_are_in_digests_snapshots_and_replays() -> None:
    made = history(_POINT, _USING)
    decoder = SnapshotDecoder(REGISTERED)
    for piece in pieces(made.now):
        decoder.feed(piece)
    decoded = decoder.finish()
    assert decoded == made.now
    assert decoded.schema.by_name["ks"].types == made.now.schema.by_name["ks"].types != ()
    digest = state_digest(made.now)
    assert state_digest(decoded) == digest
    without = history(_PLAIN)
    assert (
        without.now.schema.digest != history(CreateType("ks", "p", (("x", "int"),)), _PLAIN).now.schema.digest
    )
    assert stored(made.replayed()) == stored(made.now)
