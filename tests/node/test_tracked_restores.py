"""Restores into tracked tables: rows without ids, on all replicas before anybody is read by ids again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lockstep.metadata.repairs import Repair, RepairState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.replica.backup_messages import BackupAction, BackupOrder, BackupStatus
from lockstep.schema.changes import EmptyTable
from lockstep.server.views.tracking_views import migration_rows
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.values.errors import Rejected
from tests.node.support import Town
from tests.node.test_backups import back_up, ended, restore, restoring
from tests.node.test_repairs import done, part, table_id
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import (
    KEY,
    QUORUM,
    TIMEOUT_MS,
    _counted_reads,
    held,
    isolated,
    rows_of,
    rows_read,
    settled,
    tracked,
    write,
)
from tests.node.test_tracked_migration import altered, by_ids, filled, untracked
from tests.node.test_tracked_moves import comes
from tests.node.test_tracked_repairs import repair
from tests.node.test_tracked_witnesses import altered as factor_altered
from tests.node.test_tracked_witnesses import witnessed

NODES = (1, 2, 3)
Work = Callable[[BackupOrder], Awaitable[BackupStatus]]


def emptied(town: Town) -> None:
    done(town, town.submit(1, ChangeSchema(EmptyTable("ks", "t"))))
    town.agreed(*NODES)


def since(town: Town) -> int:
    return town.newest.schema.by_name["ks"].by_name["t"].tracked_since


def held_at(town: Town, *numbers: int) -> list[bool]:
    """These nodes bring themselves nothing of a restore before the list has an element."""
    free: list[bool] = []

    def slow(load: Work) -> Work:
        async def wait(order: BackupOrder) -> BackupStatus:
            # The test stands outside this loop, so it sets no event.
            while not free:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return await load(order)

        return wait

    for number in numbers:
        desk = town.node(number).work.backups._desk
        actions = dict(desk._actions)
        desk._actions = {**actions, BackupAction.LOAD: slow(actions[BackupAction.LOAD])}
    return free


def begun(town: Town, *, empty: bool = False) -> Repair:
    made: Repair = done(town, town.begin(2, lambda node: restoring(node, "b", empty=empty)))
    return made


@pytest.mark.parametrize("empty", [False, True])
def test_a_restored_table_is_read_by_ids_again_once_all_replicas_have_it(empty: bool) -> None:
    with tracked(301) as town:
        assert write(town, 1, value=b"a").error is None
        settled(town)
        assert back_up(town).state is RepairState.DONE
        if not empty:
            emptied(town)
        assert restore(town, empty=empty).state is RepairState.DONE
        town.agreed(*NODES)
        assert since(town) == 0 and all(by_ids(town, number) for number in NODES)
        assert [rows_of(town, number) for number in NODES] == [10, 10, 10]
        reads = [_counted_reads(town.node(number)) for number in NODES]
        assert rows_read(town, 1) == [b"a"] * 10
        assert sum(found[0] for found in reads) == 1
        assert repair(town, 1, full=True).disagreements == 0
        assert write(town, 3, value=b"b").error is None
        assert rows_read(town, 2) == [b"b"] * 10


def read_while_one_replica_has_nothing_yet(*, empty: bool = False) -> None:
    """What one replica alone has taken in is seen by each later read, as of an untracked table."""
    with tracked(302) as town:
        assert write(town, 1, value=b"a").error is None
        settled(town)
        back_up(town)
        if not empty:
            emptied(town)
        free, before = held_at(town, 2, 3), table_id(town.newest)
        restoring_ = begun(town, empty=empty)
        town.until(lambda: (table_id(town.newest) != before) is empty)
        town.agreed(*NODES)
        filled(town, 1)
        town.agreed(*NODES)
        assert [rows_of(town, number) for number in (2, 3)] == [0, 0]
        assert since(town) > 0 and not by_ids(town, 2)
        isolated(town, 3, (1, 2))
        assert rows_read(town, 2) == [b"a"] * 10
        isolated(town, 3, (1, 2), heal=True)
        isolated(town, 1, (2, 3))
        assert rows_read(town, 2) == [b"a"] * 10, "it was shown before"
        isolated(town, 1, (2, 3), heal=True)
        free.append(True)
        assert ended(town, restoring_).state is RepairState.DONE
        town.agreed(*NODES)
        assert since(town) == 0


@pytest.mark.parametrize("empty", [False, True])
def test_what_a_restore_brought_to_one_replica_is_never_unseen_again(empty: bool) -> None:
    read_while_one_replica_has_nothing_yet(empty=empty)


def test_a_restore_that_ends_early_leaves_a_table_that_a_repair_makes_whole() -> None:
    with tracked(303) as town:
        assert write(town, 1).error is None
        settled(town)
        back_up(town)
        emptied(town)
        held_at(town, 2, 3)
        restoring_ = begun(town)
        filled(town, 1)
        done(town, town.begin(1, lambda node: node.work.backups.cancel(restoring_.id, "enough")))
        assert ended(town, restoring_).state is RepairState.CANCELLED
        town.agreed(*NODES)
        (row,) = migration_rows(town.node(1).services)
        assert row["pending"] == row["ranges"] and not by_ids(town, 3)
        assert repair(town).leaves > 0
        town.agreed(*NODES)
        assert [rows_of(town, number) for number in NODES] == [10, 10, 10]
        assert all(by_ids(town, number) for number in NODES)


def test_a_restore_that_is_begun_again_leaves_it_to_a_repair() -> None:
    with tracked(304) as town:
        assert write(town, 1).error is None
        settled(town)
        back_up(town)
        emptied(town)
        free = held_at(town, 3)
        restoring_ = begun(town)
        done(town, town.begin(1, lambda node: node.work.backups.cancel(restoring_.id, "enough")))
        free.append(True)
        assert restore(town).state is RepairState.DONE
        town.agreed(*NODES)
        assert [rows_of(town, number) for number in NODES] == [10, 10, 10]
        assert not by_ids(town, 1) and rows_read(town, 3) == [b"v"] * 10
        repair(town)
        town.agreed(*NODES)
        assert by_ids(town, 1)


def test_what_is_written_meanwhile_has_ids_and_what_is_newer_counts() -> None:
    with tracked(305) as town:
        assert write(town, 1, value=b"a").error is None
        settled(town)
        back_up(town)
        free = held_at(town, 3)
        restoring_ = begun(town)
        town.agreed(*NODES)
        assert write(town, 2, value=b"b").error is None
        assert rows_read(town, 1) == [b"b"] * 10
        free.append(True)
        assert ended(town, restoring_).state is RepairState.DONE
        settled(town)
        assert held(town, 1) == held(town, 2) == held(town, 3)
        assert rows_read(town, 3) == [b"b"] * 10


def test_a_table_half_way_to_being_tracked_is_repaired_first() -> None:
    with untracked(306) as town:
        assert write(town, 1).error is None
        back_up(town)
        altered(town, "tracked", *NODES)
        assert restore(town).state is RepairState.DONE, "nothing tells by ids yet"
        town.agreed(*NODES)
        assert not by_ids(town, 1)
        ranges = town.newest.placements.ring(town.newest.schema.by_name["ks"].group).ranges
        first = part(town.newest, ranges[0].range)
        done(town, town.begin(1, lambda node: node.work.repairs.begin((first,))))
        town.until(lambda: not town.newest.repairs.running)
        refused = town.begin(2, lambda node: restoring(node, "b"))
        town.finish(refused)
        assert isinstance(refused.error, Rejected) and "on its way to being tracked" in refused.error.message


def test_a_keyspace_with_witnesses_takes_a_restore_once_these_are_taken_away() -> None:
    with witnessed(307) as town:
        assert write(town, 1).error is None
        settled(town)
        assert back_up(town).state is RepairState.DONE
        refused = town.begin(2, lambda node: restoring(node, "b"))
        town.finish(refused)
        assert isinstance(refused.error, Rejected) and "witnesses" in refused.error.message
        assert "ALTER KEYSPACE" in (refused.error.hint or "")
        factor_altered(town, "3")
        emptied(town)
        assert rows_read(town, 1) == []
        assert restore(town).state is RepairState.DONE
        town.agreed(*NODES)
        factor_altered(town, "3/1")
        for number in NODES:
            assert rows_read(town, number) == [b"v"] * 10
        assert sorted(rows_of(town, number) for number in NODES) == [0, 10, 10]


def test_what_was_deleted_since_stays_deleted_on_every_replica() -> None:
    with tracked(308) as town:
        assert write(town, 1).error is None
        assert write(town, 1, key=b"kept").error is None
        settled(town)
        back_up(town)

        async def delete(node: Node) -> None:
            at_us = node.runtime.clock.wall_us()
            change = Change("t", KEY, at_us, QUORUM, TIMEOUT_MS, delete_rows=(0, 9))
            made = mutation_for(change, table_of(node), node.data.new_mutation_id(), at_us // 1_000_000)
            await node.data.coordinator.write(made, QUORUM, TIMEOUT_MS)

        done(town, town.begin(2, delete))
        settled(town)
        assert restore(town).state is RepairState.DONE
        town.agreed(*NODES)
        for number in NODES:
            assert (len(rows_read(town, number)), len(rows_read(town, number, key=b"kept"))) == (1, 10)
        assert repair(town, 1, full=True).disagreements == 0


def test_a_node_that_joins_meanwhile_has_it_too_before_anybody_is_read_by_ids() -> None:
    with tracked(309) as town:
        for number in range(30):
            assert write(town, 1, key=b"k%d" % number).error is None
        settled(town)
        back_up(town)
        emptied(town)
        free = held_at(town, 3)
        restoring_ = begun(town)
        comes(town, 4)
        free.append(True)
        assert ended(town, restoring_).state is RepairState.DONE
        town.agreed(1, 2, 3, 4)
        assert since(town) == 0 and all(by_ids(town, number) for number in (1, 2, 3, 4))
        stored = [sum(rows_of(town, n, b"k%d" % number) for number in range(30)) for n in (1, 2, 3, 4)]
        assert sum(stored) >= 3 * 300 and stored[3] > 0
        assert repair(town, 4, full=True).disagreements == 0
        for number in range(30):
            assert rows_read(town, 1 + number % 4, key=b"k%d" % number) == [b"v"] * 10
