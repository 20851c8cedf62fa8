"""Tables that become tracked, half way back, and back, under load (scenario 26 of tracking)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import AlterKeyspace, CreateKeyspace, CreateTable
from lockstep.schema.view_changes import CreateView
from lockstep.server.views.tracking_views import migration_rows
from lockstep.values.errors import Rejected
from lockstep.values.ids import Consistency
from tests.node.support import Town
from tests.node.test_hints import away, back, pending
from tests.node.test_repairs import repair
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import (
    COLUMNS,
    QUORUM,
    REPLICATION,
    _counted_reads,
    begin_write,
    held,
    isolated,
    lone_write,
    looked_for,
    paused,
    rows_of,
    rows_read,
    settled,
    tracked,
    unreconciled,
    write,
)
from tests.node.test_tracked_moves import KEYS, LONE, alike, comes, has


def untracked(seed: int) -> Town:
    town = Town(seed, 3)
    town.found()
    for change in (
        CreateKeyspace("ks", REPLICATION),
        CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS),
    ):
        assert town.finish(town.submit(1, ChangeSchema(change))).error is None
    town.agreed(1, 2, 3)
    return town


def altered(town: Town, word: str, *numbers: int) -> None:
    change = ChangeSchema(AlterKeyspace("ks", replication_type=word))
    assert town.finish(town.submit(numbers[0], change)).error is None
    town.agreed(*numbers)


def repaired(town: Town) -> None:
    repair(town)
    town.agreed(1, 2, 3)


def filled(town: Town, number: int) -> None:
    """Wait until a node holds all rows by itself."""
    for _ in range(60):
        if rows_of(town, number) == 10:
            return
        town.wait(0.5)
    raise AssertionError(f"node {number} holds {rows_of(town, number)} rows")


def by_ids(town: Town, number: int) -> bool:
    node = town.node(number)
    plans = node.data.coordinator.plans
    return plans.read_plan(table_of(node).id, looked_for(node, None).right, QUORUM).reads_ids


def read_on_the_way_to_tracked() -> None:
    """What a replica missed before it has no id: answers are compared by data until a repair."""
    with untracked(41) as town:
        away(town, 3)
        assert write(town, 1).error is None
        altered(town, "tracked", 1, 2)
        isolated(town, 3, (1,))
        town.start(3)
        town.until(lambda: town.ready(3) and town.node(3).context.alive(town.node(2).context.own_id()))
        isolated(town, 1, (2,))
        assert rows_of(town, 3) == 0 and not by_ids(town, 3)
        assert rows_read(town, 3) == [b"v"] * 10


def test_scenario_26_reads_are_right_on_the_way_to_tracked() -> None:
    read_on_the_way_to_tracked()


def test_scenario_26_a_repair_makes_ids_tell_of_everything() -> None:
    with untracked(42) as town:
        assert write(town, 1, value=b"a").error is None
        altered(town, "tracked", 1, 2, 3)
        assert write(town, 1, value=b"b").error is None
        assert not by_ids(town, 1) and rows_read(town, 2) == [b"b"] * 10
        repaired(town)
        assert all(by_ids(town, number) for number in (1, 2, 3))
        settled(town)
        reads = [_counted_reads(town.node(number)) for number in (1, 2, 3)]
        for _ in range(10):
            assert rows_read(town, 1) == [b"b"] * 10
        assert [found[0] for found in reads] == [10, 0, 0]
        trees = [town.node(number).data.repair_participant.counts.trees for number in (1, 2, 3)]
        repaired(town)
        assert [town.node(n).data.repair_participant.counts.trees for n in (1, 2, 3)] == trees, (
            "it only waits"
        )
        assert all(by_ids(town, number) for number in (1, 2, 3))


def test_scenario_26_half_way_back_and_there_again() -> None:
    with untracked(43) as town:
        assert write(town, 1, value=b"a").error is None
        altered(town, "tracked", 1, 2, 3)
        assert write(town, 2, value=b"b").error is None
        altered(town, "untracked", 1, 2, 3)
        assert rows_read(town, 3) == [b"b"] * 10
        assert write(town, 3, value=b"c").error is None
        altered(town, "tracked", 1, 2, 3)
        # What the first time recorded does not count: something came without an id meanwhile.
        assert not by_ids(town, 1) and rows_read(town, 2) == [b"c"] * 10
        repaired(town)
        assert by_ids(town, 2) and rows_read(town, 2) == [b"c"] * 10


def test_scenario_26_a_hint_of_before_gets_an_id_and_comes_to_all() -> None:
    with untracked(44) as town:
        away(town, 3)
        assert write(town, 1).error is None
        assert pending(town, 1) == 1
        altered(town, "tracked", 1, 2)
        back(town, 3)
        town.until(lambda: pending(town, 1) == 0)
        filled(town, 3)
        settled(town)
        assert held(town, 1) == held(town, 2) == held(town, 3) != {}


def test_scenario_26_a_write_under_way_gets_ids() -> None:
    with untracked(45) as town:
        isolated(town, 1, (2, 3))
        outcome = begin_write(town, 1, Consistency.ALL)
        town.wait(0.05)
        change = ChangeSchema(AlterKeyspace("ks", replication_type="tracked"))
        submitted = town.submit(2, change)
        town.wait(0.3)
        isolated(town, 1, (2, 3), heal=True)
        town.finish(submitted)
        town.finish(outcome)
        town.agreed(1, 2, 3)
        repaired(town)
        settled(town)
        assert rows_of(town, 1) == rows_of(town, 2) == rows_of(town, 3)


def end_while_one_is_away() -> None:
    """What is not reconciled when tracking ends is reconciled before the journal goes."""
    with tracked(46) as town:
        away(town, 3)
        assert write(town, 1).error is None
        altered(town, "untracked", 1, 2)
        town.wait(14)
        assert unreconciled(town, 1) == unreconciled(town, 2) == 1
        assert pending(town, 1, 2) == 0
        back(town, 3)
        filled(town, 3)
        town.until(lambda: not any(held(town, number) for number in (1, 2, 3)))


def test_scenario_26_what_is_open_when_tracking_ends_comes_to_all() -> None:
    end_while_one_is_away()


def test_scenario_26_what_cannot_be_tracked_is_refused_with_the_reason() -> None:
    with tracked(47) as town:
        columns = ("ck", "pk")
        uuid = "00000000-0000-4000-8000-000000000009"
        view = CreateView("ks", "by_ck", uuid, "ks", "t", (), ("ck",), ("pk",), (), columns)
        asked = replace(view, options=(("replication_type", "tracked"),))
        error = town.finish(town.submit(1, ChangeSchema(asked))).error
        assert isinstance(error, Rejected) and "no mutation that has an id" in error.message
        assert town.finish(town.submit(1, ChangeSchema(view))).error is None


@pytest.mark.parametrize("word", ["logged", "tracked"])
def test_a_new_table_of_an_altered_keyspace_reads_by_ids_at_once(word: str) -> None:
    with untracked(48) as town:
        altered(town, word, 1, 2, 3)
        made = CreateTable("ks", "u", "00000000-0000-4000-8000-000000000003", COLUMNS)
        assert town.finish(town.submit(1, ChangeSchema(made))).error is None
        keyspace = town.newest.schema.by_name["ks"]
        assert [keyspace.by_name[name].tracked_since > 0 for name in ("t", "u")] == [True, False]


def test_what_is_pending_is_told_by_table() -> None:
    with untracked(49) as town:
        altered(town, "tracked", 1, 2, 3)
        (row,) = migration_rows(town.node(1).services)
        assert (row["table_name"], row["pending"]) == ("t", row["ranges"]) and row["ranges"]
        repaired(town)
        (row,) = migration_rows(town.node(1).services)
        assert row["pending"] == 0


def test_what_is_open_at_the_end_follows_the_cuts_of_ranges() -> None:
    with tracked(50) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        for key in LONE:
            lone_write(town, key)
        altered(town, "untracked", 1, 2, 3)
        town.start(4)
        town.until(lambda: town.ready(4), 300)
        journals = {number: town.node(number).data.reconciler.journal for number in (1, 2, 3, 4)}
        assert unreconciled(town, 1) and journals[1].tables and not town.newest.requests.live
        paused(town, 1, 2, 3, is_paused=False)
        town.until(lambda: not any(held(town, number) for number in journals), 120)
        for key in (*KEYS, *LONE):
            assert all(rows_of(town, number, key) == 10 for number in journals if has(town, number, key))
        assert not any(journal.tables for journal in journals.values())


def test_who_comes_between_the_change_and_the_repair_is_read_as_the_others() -> None:
    with untracked(51) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        altered(town, "tracked", 1, 2, 3)
        for key in KEYS[:4]:
            assert write(town, 2, value=b"w", key=key).error is None
        wanted = {key: [b"w" if key in KEYS[:4] else b"v"] * 10 for key in KEYS}
        comes(town, 4)
        town.agreed(1, 2, 3, 4)
        assert not by_ids(town, 4) and {key: rows_read(town, 4, key=key) for key in KEYS} == wanted
        repair(town)
        town.agreed(1, 2, 3, 4)
        assert all(by_ids(town, number) for number in (1, 2, 3, 4))
        alike(town, 1, 2, 3, 4)
        assert {key: rows_read(town, 4, key=key) for key in KEYS} == wanted


def test_nothing_becomes_tracked_while_replicas_move_and_new_tables_may_be() -> None:
    with untracked(52) as town:
        town.start(4)
        town.until(lambda: bool(town.newest.requests.live or town.newest.operations))
        change = ChangeSchema(AlterKeyspace("ks", replication_type="tracked"))
        error = town.finish(town.submit(1, change)).error
        assert isinstance(error, Rejected) and "while replicas move" in error.message
        uuid, options = "00000000-0000-4000-8000-000000000004", (("replication_type", "tracked"),)
        assert (
            town.finish(town.submit(1, ChangeSchema(CreateTable("ks", "u", uuid, COLUMNS, options)))).error
            is None
        )
        town.until(lambda: town.ready(4), 300)
