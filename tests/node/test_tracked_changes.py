"""Captured changes of tracked tables: one id brings a change and what it adds to the log, and so does
all that brings rows without ids."""

from __future__ import annotations

import pytest

from lockstep.coordination.capturing import Capturing
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import EmptyTable
from lockstep.server.views.tracking_views import reconciled_rows
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.values.ids import Consistency
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, stream_token, token_of
from tests.node.support import Town
from tests.node.test_hints import away, back, pending
from tests.node.test_requests_while_moving import cut, table_of
from tests.node.test_tracked import (
    KEY,
    QUORUM,
    ROWS,
    held,
    isolated,
    paused,
    rows_of,
    rows_read,
    settled,
    tracked,
    unreconciled,
)
from tests.node.test_tracked_cohorts import apart, collapsed, hasty, whole
from tests.node.test_tracked_migration import altered, by_ids, filled, repaired, untracked
from tests.node.test_tracked_moves import alike, comes
from tests.node.test_tracked_statements import WRITTEN, Rows, doors, told

LOG = "ks.t_scylla_cdc_log"
CAPTURE = "ALTER TABLE ks.t WITH cdc = {'enabled': true}"
#: Rows of the log of what WRITTEN does to the table: a deleted range has two.
LOGGED = 12
ONE = Consistency.ONE


def captured(seed: int, *more: str) -> Town:
    """Nodes with a tracked table whose changes are captured."""
    town = tracked(seed)
    doors(town, 1, 2, 3)
    told(town, 1, CAPTURE, *more)
    town.agreed(1, 2, 3)
    return town


def logged(town: Town, number: int, level: Consistency = QUORUM) -> Rows:
    found = told(town, number, f'SELECT v, "cdc$operation", "cdc$time" FROM {LOG}', level=level)
    return sorted(found, key=lambda row: (row[2] or b"", row[0] or b""))


def changed(town: Town) -> None:
    for at, text in enumerate(text for text in WRITTEN if "ks.c" not in text):
        told(town, 1 + at % 2, text)


def key_of(town: Town, *, is_elsewhere: bool) -> bytes:
    """A partition whose log rows lie in its range, or in another one: the ring's streams wrap round."""
    node = town.node(1)
    cluster = node.log.cluster
    ring = cluster.placements.ring(cluster.schema.by_name["ks"].group_of(table_of(node)))
    for key in (b"k%d" % number for number in range(100)):
        token = token_of(key)
        stream = cluster.generations[-1].stream_for(token)
        if ring.range_at(token).range.contains(stream_token(stream)) != is_elsewhere:
            return key
    raise AssertionError("no such partition")


def lone_change(town: Town, holder: int = 1, key: bytes = KEY) -> None:
    """A change whose coordinator stored it and told nobody, the client neither."""
    paused(town, 1, 2, 3)

    async def work(node: Node) -> None:
        data, now_us = node.data, node.runtime.clock.wall_us
        change = Change("t", key, now_us(), QUORUM, 1, tuple((row, b"v") for row in ROWS))
        made = mutation_for(change, table_of(node), data.new_mutation_id(), 1)
        capturing = Capturing(lambda: node.log.cluster, None, now_us, 1.0)  # type: ignore[arg-type]
        (added,) = await capturing.attached((made,))
        data.replica.keeping.give(data.coordinator.plans.plan_of(added, QUORUM), added)

    assert town.finish(town.begin(holder, work)).error is None
    assert [rows_of(town, n, key) for n in (1, 2, 3)] == [10 * (n == holder) for n in (1, 2, 3)]


def test_who_was_away_gets_changes_and_their_log_rows_by_one_id_each() -> None:
    with captured(61) as town:
        away(town, 3)
        changed(town)
        writes = unreconciled(town, 1)
        assert pending(town, 1, 2) == 0
        expected = logged(town, 1)
        assert len(expected) == LOGGED
        back(town, 3)
        settled(town)
        assert held(town, 1) == held(town, 3)
        assert 0 < town.node(3).data.reconciler.pulled <= writes, "some come with others"
        doors(town, 3)
        isolated(town, 3, (1, 2))
        assert logged(town, 3, ONE) == expected


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_read_of_the_log_brings_the_change_that_it_tells_of(is_elsewhere: bool) -> None:
    with captured(62) as town:
        key = key_of(town, is_elsewhere=is_elsewhere)
        lone_change(town, key=key)
        cut(town, 1, 3)
        assert len(logged(town, 1)) == 10
        assert rows_of(town, 2, key) == 10
        cut(town, 1, 3, heal=True)
        isolated(town, 1, (2, 3))
        assert len(logged(town, 2)) == 10 and rows_read(town, 2, key=key) == [b"v"] * 10


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_read_of_the_table_brings_what_the_log_tells_of_it(is_elsewhere: bool) -> None:
    with captured(63) as town:
        key = key_of(town, is_elsewhere=is_elsewhere)
        lone_change(town, key=key)
        isolated(town, 3, (1, 2))
        assert rows_read(town, 2, 3, key=key) == [b"v"]
        isolated(town, 3, (1, 2), heal=True)
        isolated(town, 1, (2, 3))
        assert len(logged(town, 2, ONE)) == 10 and len(logged(town, 3)) == 10


def test_a_change_that_is_late_for_its_table_is_in_the_log() -> None:
    """TRUNCATE is not told, and what was captured before stays."""
    with captured(64) as town:
        lone_change(town)
        assert town.finish(town.submit(2, ChangeSchema(EmptyTable("ks", "t")))).error is None
        town.agreed(1, 2, 3)
        paused(town, 1, 2, 3, is_paused=False)
        settled(town)
        isolated(town, 1, (2, 3))
        assert rows_read(town, 2) == [] and len(logged(town, 2)) == 10


def test_a_log_that_is_dropped_takes_nothing_more() -> None:
    with captured(65) as town:
        lone_change(town)
        told(town, 2, "ALTER TABLE ks.t WITH cdc = {'enabled': false}", f"DROP TABLE {LOG}")
        town.agreed(1, 2, 3)
        paused(town, 1, 2, 3, is_paused=False)
        settled(town)
        assert [rows_of(town, number) for number in (1, 2, 3)] == [10, 10, 10]


def away_for_long() -> None:
    """Ids of changes are in a cohort: who is back gets rows of the table and of its log."""
    with captured(66) as town:
        hasty(town, 1, 2, 3)
        away(town, 3)
        changed(town)
        expected = logged(town, 1)
        collapsed(town, 1, 2)
        assert apart(town, 1) == apart(town, 2) > 0
        back(town, 3)
        whole(town)
        doors(town, 3)
        isolated(town, 3, (1, 2))
        assert logged(town, 3, ONE) == expected and len(expected) == LOGGED


def test_who_was_away_for_long_gets_rows_of_both() -> None:
    away_for_long()


def test_a_captured_table_becomes_tracked_with_its_log_and_goes_back() -> None:
    with untracked(67) as town:
        doors(town, 1, 2, 3)
        told(town, 1, CAPTURE)
        town.agreed(1, 2, 3)
        away(town, 3)
        told(town, 1, "INSERT INTO ks.t (pk, ck, v) VALUES (0x01, 1, 'before')")
        altered(town, "tracked", 1, 2)
        told(town, 2, "INSERT INTO ks.t (pk, ck, v) VALUES (0x01, 2, 'after')")
        back(town, 3)
        doors(town, 3)
        assert not by_ids(town, 1) and [row[0] for row in logged(town, 3)] == [b"before", b"after"]
        repaired(town)
        assert by_ids(town, 1)
        settled(town)
        lone_change(town)
        altered(town, "untracked", 1, 2, 3)
        paused(town, 1, 2, 3, is_paused=False)
        for number in (1, 2, 3):
            filled(town, number)
        isolated(town, 1, (2, 3))
        assert len(logged(town, 2)) == 12


@pytest.mark.parametrize("is_read", [False, True])
def test_who_joins_has_changes_and_log_rows_while_streams_lie_elsewhere(is_read: bool) -> None:
    """Ranges are cut at once, and streams for the cuts count a minute later."""
    with captured(68) as town:
        paused(town, 1, 2, 3)
        changed(town)
        lone_change(town)
        before = len(logged(town, 1)) if is_read else LOGGED + 10
        comes(town, 4)
        changed(town)
        assert len(logged(town, 1)) == before + LOGGED - 2, "what was made once is made no more"
        paused(town, 1, 2, 3, is_paused=False)
        alike(town, 1, 2, 3, 4)
        assert len(logged(town, 2, Consistency.ALL)) == before + LOGGED - 2


def moment_us(town: Town, number: int, table: str = "t_scylla_cdc_log") -> int:
    """Up to when all is everywhere, by what one node says; 0: it knows of no such moment."""
    rows = [row for row in reconciled_rows(town.node(number).services) if row["table_name"] == table]
    assert rows[-1]["last_token"] == TOKEN_MAX and rows[0]["first_token"] == TOKEN_MIN + 1
    return min((row["reconciled_until"] or 0) * 1000 for row in rows)


def now_us(town: Town, number: int) -> int:
    return town.node(number).runtime.clock.wall_us()


def test_the_moment_up_to_which_all_is_everywhere_stops_while_a_replica_is_away() -> None:
    with captured(69) as town:
        changed(town)
        written_us = now_us(town, 1)
        moment_us(town, 1)
        town.wait(5)
        assert moment_us(town, 1) > written_us, "a range that nobody writes to is asked about"
        town.wait(10)
        assert now_us(town, 1) - moment_us(town, 1) < 5_000_000
        away(town, 3)
        away_us = now_us(town, 1)
        told(town, 1, "INSERT INTO ks.t (pk, ck, v) VALUES (0x09, 1, 'v')")
        town.wait(30)
        assert moment_us(town, 1) < away_us
        back(town, 3)
        town.wait(5)
        assert moment_us(town, 1) > away_us


def test_no_moment_is_told_of_rows_that_had_no_ids_before_a_repair() -> None:
    with untracked(70) as town:
        doors(town, 1, 2, 3)
        told(town, 1, CAPTURE)
        town.agreed(1, 2, 3)
        assert list(reconciled_rows(town.node(1).services)) == []
        altered(town, "tracked", 1, 2, 3)
        told(town, 1, "INSERT INTO ks.t (pk, ck, v) VALUES (0x09, 1, 'v')")
        moment_us(town, 1)
        town.wait(5)
        assert moment_us(town, 1) == 0
        repaired(town)
        assert moment_us(town, 1) > 0 and moment_us(town, 1, "t") > 0
