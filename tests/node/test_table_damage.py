"""What a node says of what it lacks, and how far it is filled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.work.conditions import Conditions
from lockstep.node.work.table_damage import TableDamage, lacks_everything
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.rows.keys import token_bounds
from lockstep.storage.store_position import FIRST_KEY, LAST_KEY, Lack, Lacking, lacking_record
from lockstep.values.tokens import Range
from tests.metadata.histories import History, network
from tests.topology.test_replication_change import with_table


def history() -> History:
    """`ks` with two tables."""
    found = with_table(3, network(dc1=3))
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    found.submit(ChangeSchema(CreateTable("ks", "second", "uuid-second", columns)))
    return found


def damage(*lacks: Lack) -> tuple[Lacking, Conditions]:
    """Of a node that lacks these."""
    now = history().now
    lacking = Lacking(SimpleNamespace(local_fact=lambda _key: lacking_record(lacks)[2]))  # type: ignore[arg-type]
    conditions = Conditions(SimpleNamespace(wall_us=lambda: 7), lambda *_, **__: None)  # type: ignore[arg-type]
    context: Any = SimpleNamespace(conditions=conditions, cluster=lambda: now, log=lambda *_, **__: None)
    TableDamage(context, DamagedFiles(), lacking)
    return lacking, conditions


def test_a_node_that_lost_its_store_says_what_it_lacks_and_how_far_it_is_filled() -> None:
    lacking, conditions = damage(Lack(FIRST_KEY, LAST_KEY))
    (told,) = conditions.current()
    assert (told.code, told.subject) == ("RANGE_LACKING", "all of it") and lacks_everything([told])
    assert told.detail == "no rebuild has begun; it lacks ks.second, ks.t"
    progress = SimpleNamespace(ranges=0, ranges_total=9)
    lacking.filling = progress
    for ranges in (0, 4):
        progress.ranges = ranges
        (told,) = conditions.current()
        assert told.detail == f"{ranges} of 9 ranges are filled; it lacks ks.second, ks.t"
        assert told.since_us == 7
    lacking.filling = None
    assert conditions.current()[0].detail.startswith("no rebuild has begun"), (
        "it failed, and is asked for again"
    )
    lacking.current = ()
    assert not conditions.current()


def test_of_a_damaged_file_it_says_which_tokens() -> None:
    table = history().now.schema.by_name["ks"].by_name["t"].id
    first_key, above = token_bounds(table, Range(4, 9))
    _, conditions = damage(
        Lack(first_key, above, "000007.sst"), Lack(first_key, above, "000007.sst", sole=True)
    )
    lost, lacks = conditions.current()
    assert (lacks.code, lacks.subject) == ("RANGE_LACKING", "000007.sst")
    assert lacks.detail.startswith("no rebuild has begun; it lacks ks.t (4, ")
    assert lost.code == "RANGE_LOST" and lost.subject.startswith("ks.t (4, ") and lost.detail == "000007.sst"
