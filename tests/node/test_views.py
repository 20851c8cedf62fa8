"""View updates of nodes that lose power, and builds that are interrupted."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace

import msgspec

from lockstep.handoff.hints import REFUSED
from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import EmptyTable
from lockstep.schema.model import Table
from lockstep.schema.view_changes import AlterView, CreateView, unmarking
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.probes import CrashRule
from lockstep.storage.store import Batch, Family
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import DiskRefused
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.rows import ALL_ROWS, ReadCommand, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, token_of
from tests.node.support import Outcome, Town
from tests.node.test_requests_while_moving import cut, founded, table_of

TIMEOUT_MS = 1000
ALL = Consistency.ALL
KEY = ("v", "pk", "ck")


def begin_view(town: Town, name: str = "by_v", key: tuple[str, ...] = KEY) -> Outcome:
    change = CreateView(
        "ks",
        name,
        "00000000-0000-4000-8000-000000000002",
        "ks",
        "t",
        (),
        key[:1],
        key[1:],
        not_null=key,
        where=" AND ".join(f"{column} IS NOT NULL" for column in key),
    )
    return town.submit(1, ChangeSchema(change))


def make_view(town: Town) -> None:
    assert town.finish(begin_view(town)).error is None
    town.agreed(1, 2, 3)


def put(town: Town, number: int, *keys: bytes, deletes: bool = False) -> Outcome:
    async def work(node: Node) -> None:
        for key in keys:
            change = Change("t", key, node.runtime.clock.wall_us(), ALL, TIMEOUT_MS, ((0, b"v"),))
            if deletes:
                change = msgspec.structs.replace(change, puts=(), delete_row=0)
            mutation = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            await node.data.coordinator.write(mutation, Consistency.QUORUM, TIMEOUT_MS)

    return town.begin(number, work)


def _everything(table: Table) -> ReadCommand:
    return ReadCommand(
        table.id,
        TOKEN_MIN,
        TOKEN_MAX,
        None,
        ALL_ROWS,
        (),
        reads_static=False,
        reverse=False,
        row_limit=1000,
        partition_row_limit=0,
        now_s=1,
        dropped=unmarking(table),
    )


def viewed(town: Town, number: int) -> int:
    """How many rows the view has."""

    async def work(node: Node) -> int:
        view = node.log.cluster.schema.table("ks", "by_v")
        assert view is not None
        result = await node.data.coordinator.read(_everything(view), ALL, TIMEOUT_MS)
        return sum(len(partition.rows) for partition in result.partitions)

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    return int(outcome.value)


def owed(town: Town) -> int:
    return sum(len(town.node(number).data.batch_store) for number in (1, 2, 3))


def lose_power_before_view_updates_are_sent() -> None:
    with founded(31) as town:
        make_view(town)
        town.until(lambda: all(done(town, number) for number in (1, 2, 3)))
        for number in (1, 2, 3):
            rule = CrashRule(label="views.durable", process=f"n{number}", hit=1, kind="power")
            town.world.probes.add(rule)
        put(town, 1, b"a")
        town.until(lambda: not any(town.process(number).alive for number in (1, 2, 3)))
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        town.until(lambda: owed(town) == 0)
        town.wait(1)
        assert viewed(town, 2) == 1


def test_view_updates_of_a_durable_write_outlive_a_power_loss_of_all_nodes() -> None:
    lose_power_before_view_updates_are_sent()


def rows_at(town: Town, number: int, name: str) -> int:
    """How many rows of a table a node has by itself."""

    async def work(node: Node) -> int:
        table = node.log.cluster.schema.table("ks", name)
        assert table is not None
        result = await node.data.engine.read(_everything(table))
        return sum(_is_live(row) for partition in result.partitions for row in partition.rows)

    return int(town.finish(town.begin(number, work)).value)


def test_each_replica_of_the_base_writes_to_one_of_the_view() -> None:
    with founded(33) as town:
        make_view(town)
        town.until(lambda: all(done(town, number) for number in (1, 2, 3)))
        assert town.finish(put(town, 1, b"a", b"b", b"c")).error is None
        town.until(lambda: owed(town) == 0)
        logs = [town.node(number).data.view_log for number in (1, 2, 3)]
        assert [(log.paired, log.spread) for log in logs] == [(3, 0)] * 3
        assert [rows_at(town, number, "by_v") for number in (1, 2, 3)] == [3, 3, 3]
        assert not any(town.node(number).data.batch_store.replayed for number in (1, 2, 3))


def lose_a_coordinator_that_left_no_hint() -> None:
    """Two replicas have a write, the third never hears of it, and nobody reads it."""
    with founded(34) as town:
        make_view(town)
        cut(town, 1, 3)
        town.world.probes.add(CrashRule(label="views.durable", process="n1", hit=1, kind="power"))
        put(town, 1, b"a")
        town.until(lambda: not town.process(1).alive)
        town.wait(10)
        assert [rows_at(town, number, name) for number in (2, 3) for name in ("t", "by_v")] == [1, 1, 1, 1]


def test_a_write_whose_coordinator_died_comes_to_each_replica() -> None:
    lose_a_coordinator_that_left_no_hint()


def test_view_updates_go_on_after_the_store_refused_to_forget_one() -> None:
    with founded(35) as town:
        make_view(town)
        node = town.node(1)
        synced, records = node.data.view_log._store.synced, node.data.batch_store._store
        held: list[int] = []

        async def slow(sequence: int) -> None:
            held.append(sequence)
            await asyncio.sleep(1.0 if len(held) == 1 else 0)
            await synced(sequence)

        # The write settles before its updates, of which there are none, are sent.
        with replaced(
            (node.data.view_log, "_store", SimpleNamespace(synced=slow, peek=node.data.view_log._store.peek))
        ):
            outcome = town.finish(put(town, 2, b"a", deletes=True))
            assert outcome.error is None and held
            with replaced((node.data.batch_store, "_store", SimpleNamespace(write_records=refuse))):
                town.until(lambda: node.data.view_log.left_to_replay == 1)
        assert node.data.batch_store._store is records and len(node.data.batch_store) == 1
        assert town.finish(put(town, 2, b"b")).error is None
        town.until(lambda: len(node.data.batch_store) == 1, 5)
        assert [rows_at(town, number, "by_v") for number in (1, 2, 3)] == [1, 1, 1]
        town.until(lambda: owed(town) == 0)
        assert (node.data.batch_store.replayed, node.data.view_log.left_to_replay) == (1, 1)


def test_a_write_whose_coordinator_keeps_no_hints_comes_to_each_replica() -> None:
    with founded(36) as town:
        make_view(town)
        town.process(3).crash()
        hints, store = town.node(1).data.hints, town.node(1).data.engine
        stub = SimpleNamespace(write_records=refuse, records=store.records, synced=store.synced)
        with replaced((hints.store, "_store", stub)):
            assert town.finish(put(town, 1, b"a")).error is None
            town.until(lambda: hints.dropped[REFUSED] > 0, 15)
            town.wait(1)
        assert [len(town.node(number).data.batch_store) for number in (1, 2)] == [1, 1]
        town.start(3)
        town.until(lambda: town.ready(3) and owed(town) == 0)
        assert [rows_at(town, 3, name) for name in ("t", "by_v")] == [1, 1]


def refuse(_family: Family, _batch: Batch) -> int:
    raise DiskRefused("there is no more room than the reserve")


def move_a_row_while_a_replica_is_away() -> None:
    """What it had told its pair is told to be gone by another one: it may never be back, and who takes its
    place gets the row as it is by then."""
    with founded(39, factor=2) as town:
        make_view(town)
        key, pairs = one_of_two_pairs(town)
        assert town.finish(put(town, 1, key)).error is None
        town.until(lambda: owed(town) == 0)
        only_base, only_view = pairs
        assert rows_at(town, only_view, "by_v") == 1
        town.process(only_base).crash()
        (writer,) = {1, 2, 3} - {*pairs}

        async def move(node: Node) -> None:
            change = Change("t", key, node.runtime.clock.wall_us(), ALL, TIMEOUT_MS, ((0, b"w"),))
            mutation = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            await node.data.coordinator.write(mutation, Consistency.ONE, TIMEOUT_MS)

        assert town.finish(town.begin(writer, move)).error is None
        town.wait(5)
        keys = keys_at(town, only_view, "by_v")
        assert b"v" not in keys, keys


def test_a_deleted_row_is_gone_from_a_view_although_a_replica_is_lost() -> None:
    """Who takes its place has a base without the row, and so derives nothing from the deletion."""
    with founded(41, factor=2) as town:
        town.start(4)
        town.until(lambda: town.ready(4))
        begin_view(town, "by_ck", ("ck", "pk"))
        town.agreed(1, 2, 3, 4)
        town.until(lambda: all(done(town, number) for number in (1, 2, 3, 4)))
        node = town.node(1)
        view = node.log.cluster.schema.table("ks", "by_ck")
        assert view is not None
        there = replicas(node, view, bytes(4))
        keys = (b"k%d" % number for number in range(100))
        key = next(key for key in keys if not replicas(node, table_of(node), key) & there)
        lost, other = sorted(replicas(node, table_of(node), key))
        assert town.finish(put(town, other, key)).error is None
        town.until(lambda: not any(len(town.node(number).data.batch_store) for number in (1, 2, 3, 4)))
        assert all(rows_at(town, number, "by_ck") == 1 for number in there)
        town.process(lost).crash()

        async def delete(node: Node) -> None:
            change = Change("t", key, node.runtime.clock.wall_us(), ALL, TIMEOUT_MS, delete_partition=True)
            mutation = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            await node.data.coordinator.write(mutation, Consistency.ONE, TIMEOUT_MS)

        assert town.finish(town.begin(other, delete)).error is None
        gone = EnqueueRequest(Remove(NodeId(lost), presumed_dead=True), actor="operator")
        assert town.finish(town.submit(other, gone)).error is None
        town.until(lambda: town.state_of(lost) is NodeState.LEFT)
        town.wait(20)
        assert [rows_at(town, number, "by_ck") for number in {1, 2, 3, 4} - {lost}] == [0, 0, 0]


def replicas(node: Node, table: Table, key: bytes) -> set[int]:
    placement = node.data.coordinator.plans.placement(table.id)
    assert placement is not None
    return set(placement.ring.group_for(token_of(key)).reads)


def one_of_two_pairs(town: Town) -> tuple[bytes, tuple[int, int]]:
    """A key of the base of whose two replicas only one keeps the view's row for `v`, with those that keep but
    one of the two."""
    node = town.node(1)
    view = node.log.cluster.schema.table("ks", "by_v")
    assert view is not None
    there = replicas(node, view, b"v")
    for number in range(100):
        key = b"k%d" % number
        here = replicas(node, table_of(node), key)
        if len(here & there) == 1:
            (only_base,), (only_view,) = here - there, there - here
            return key, (only_base, only_view)
    raise AssertionError("there is no such key")


def keys_at(town: Town, number: int, name: str) -> list[bytes]:
    """Of the partitions in which a node has rows by itself."""

    async def work(node: Node) -> list[bytes]:
        table = node.log.cluster.schema.table("ks", name)
        assert table is not None
        result = await node.data.engine.read(_everything(table))
        return [one.key for one in result.partitions if any(map(_is_live, one.rows))]

    found: list[bytes] = town.finish(town.begin(number, work)).value
    return found


def _is_live(row: Row) -> bool:
    return row.liveness is not None or any(cell.value is not None for cell in row.cells)


def test_a_row_that_moves_is_gone_from_its_place_although_a_replica_is_away() -> None:
    move_a_row_while_a_replica_is_away()


def test_what_is_gone_is_told_to_a_view_that_a_replica_has_not_heard_of() -> None:
    """Others have built it from what they had; the late one would tell its pair neither row nor deletion."""

    async def delete(node: Node) -> None:
        change = Change("t", b"a", node.runtime.clock.wall_us(), ALL, TIMEOUT_MS, delete_partition=True)
        mutation = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        await node.data.coordinator.write(mutation, Consistency.QUORUM, TIMEOUT_MS)

    with founded(38) as town:
        assert town.finish(put(town, 1, b"a")).error is None
        late = town.node(3).log.state
        late.hold_at(late.epoch)
        begin_view(town, "by_ck", ("ck", "pk"))
        town.until(lambda: all(done(town, number) for number in (1, 2)))
        assert town.finish(town.begin(1, delete)).error is None
        town.wait(2)
        late.hold_at(None)
        town.until(lambda: done(town, 3) and owed(town) == 0)
        town.wait(10)
        assert [rows_at(town, number, name) for number in (1, 2, 3) for name in ("t", "by_ck")] == [0] * 6


def test_a_build_takes_no_row_from_a_replica_that_is_behind() -> None:
    """It may give its range up before it hears of the newer value, and its row would be there for ever."""

    async def keep(node: Node, value: bytes, at_us: int) -> None:
        change = Change("t", b"a", at_us, ALL, TIMEOUT_MS, ((0, value),))
        mutation = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        await node.data.engine.synced(node.data.engine.apply(mutation, first_epoch=None))

    with founded(42) as town:
        for number, value, at_us in ((1, b"old", 1), (2, b"new", 2), (3, b"new", 2)):
            kept = town.begin(number, partial(keep, value=value, at_us=at_us))
            assert town.finish(kept).error is None
        begin_view(town)
        town.until(lambda: all(done(town, number) for number in (1, 2, 3)) and owed(town) == 0)
        assert [keys_at(town, number, "by_v") for number in (1, 2, 3)] == [[b"new"]] * 3
        assert [keys_at(town, number, "t") for number in (1, 2, 3)] == [[b"a"]] * 3


def test_a_build_goes_on_after_a_crash() -> None:
    with founded(32) as town:
        keys = [b"k%d" % number for number in range(30)]
        assert town.finish(put(town, 1, *keys)).error is None
        for number in (1, 2, 3):
            rule = CrashRule(label="views.build_page", process=f"n{number}", hit=1, kind="power")
            town.world.probes.add(rule)
        begin_view(town)
        town.until(lambda: not any(town.process(number).alive for number in (1, 2, 3)))
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        town.until(lambda: all(done(town, number) for number in (1, 2, 3)))
        town.wait(3)
        assert viewed(town, 3) == len(keys)


def done(town: Town, number: int) -> bool:
    builds = town.node(number).data.view_builds.builds
    return bool(builds) and all(build.done for build in builds.values())


def test_a_view_is_as_old_as_its_beginning_whatever_is_done_to_it() -> None:
    with founded(37) as town:
        make_view(town)
        began = town.newest.epoch
        town.until(lambda: all(done(town, number) for number in (1, 2, 3)))
        for change in (
            AlterView("ks", "by_v", (("comment", "altered"),)),
            EmptyTable("ks", "t"),
            AlterView("ks", "by_v", (("comment", "again"),)),
        ):
            assert town.finish(town.submit(1, ChangeSchema(change))).error is None
        town.agreed(1, 2, 3)
        town.until(lambda: all(done(town, number) for number in (1, 2, 3)))
        town.process(2).crash()
        town.start(2)
        town.until(lambda: town.ready(2))
        for number in (1, 2, 3):
            (build,) = town.node(number).data.view_builds.builds.values()
            assert build.done and build.since_epoch == began
