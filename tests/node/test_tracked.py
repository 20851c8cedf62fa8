"""Tracked tables on real nodes in a simulated world: ids, journals, reads and reconciliation together."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.work import condition_watches, reconciling
from lockstep.replica.messages import Known, Tracking
from lockstep.schema.changes import (
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropTable,
    EmptyTable,
    NewColumn,
)
from lockstep.schema.model import ColumnKind
from lockstep.server.views.tracking_views import journal_rows
from lockstep.sim.door import command_for, mutation_for
from lockstep.sim.load.history import Change, Look
from lockstep.storage.rows.keys import token_bounds
from lockstep.storage.shard_logs import Shard
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.requests import EnqueueRequest
from lockstep.tracking.held import Held
from lockstep.tracking.intervals import IntervalSet
from lockstep.values.errors import InvalidRequest, Unavailable, WriteTimeout
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.rows import ReadCommand, ReadResult
from lockstep.values.tokens import FULL_RING
from tests.node.support import Outcome, Town
from tests.node.test_hints import away, back, pending
from tests.node.test_requests_while_moving import cut, table_of

TIMEOUT_MS = 1000
KEY = b"p"
ROWS = tuple(range(10))
QUORUM, ONE, ALL = Consistency.QUORUM, Consistency.ONE, Consistency.ALL
REPLICATION = (("class", "SimpleStrategy"), ("replication_factor", "3"))
COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "text"),
)


def tracked(seed: int, nodes: int = 3) -> Town:
    """Nodes with a tracked table on three of them."""
    town = Town(seed, nodes)
    town.found()
    wanted = CreateKeyspace("ks", REPLICATION, replication_type="tracked")
    assert town.finish(town.submit(1, ChangeSchema(wanted))).error is None
    made = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS)
    assert town.finish(town.submit(1, ChangeSchema(made))).error is None
    town.agreed(*range(1, nodes + 1))
    return town


def begin_write(
    town: Town,
    number: int,
    level: Consistency = QUORUM,
    rows: Sequence[int] = ROWS,
    value: bytes = b"v",
    key: bytes = KEY,
) -> Outcome:
    """One mutation of these rows of the partition."""

    async def work(node: Node) -> None:
        at = node.runtime.clock.wall_us()
        change = Change("t", key, at, level, TIMEOUT_MS, tuple((row, value) for row in rows))
        made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        await node.data.coordinator.write(made, level, TIMEOUT_MS)

    return town.begin(number, work)


def write(
    town: Town, number: int, level: Consistency = QUORUM, value: bytes = b"v", key: bytes = KEY
) -> Outcome:
    return town.finish(begin_write(town, number, level, value=value, key=key))


def looked_for(node: Node, row: int | None, key: bytes = KEY) -> ReadCommand:
    return command_for(Look("t", key, row, QUORUM, TIMEOUT_MS), table_of(node), 1, None)


def rows_read(
    town: Town, number: int, row: int | None = None, level: Consistency = QUORUM, key: bytes = KEY
) -> list[bytes]:
    """The values of the rows that a client is told of."""

    async def work(node: Node) -> list[bytes]:
        result = await node.data.coordinator.read(looked_for(node, row, key), level, TIMEOUT_MS)
        found = (cell.value for part in result.partitions for one in part.rows for cell in one.cells)
        return [value for value in found if value is not None]

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    values: list[bytes] = outcome.value
    return values


def rows_of(town: Town, number: int, key: bytes = KEY) -> int:
    """How many rows a node holds by itself."""

    async def work(node: Node) -> int:
        result = await node.data.engine.read(looked_for(node, None, key))
        return sum(len(part.rows) for part in result.partitions)

    return int(town.finish(town.begin(number, work)).value)


def paused(town: Town, *numbers: int, is_paused: bool = True) -> None:
    """Have these nodes bring each other nothing of their own accord."""
    for number in numbers:
        town.node(number).data.reconciler.is_paused = is_paused


def held(town: Town, number: int) -> dict[Shard, Held]:
    journal = town.node(number).data.replica.journal
    assert journal is not None
    journal.validate()
    return {shard: logs.held for shard, logs in journal.shards.items()}


def unreconciled(town: Town, number: int) -> int:
    journal = town.node(number).data.replica.journal
    assert journal is not None
    journal.validate()
    return sum(logs.open.count for logs in journal.shards.values())


def settled(town: Town) -> None:
    """Wait until all replicas hold the same, and know it."""

    def same() -> bool:
        found = [held(town, number) for number in (1, 2, 3)]
        return found[0] == found[1] == found[2] and not any(unreconciled(town, n) for n in (1, 2, 3))

    town.until(same)


def isolated(town: Town, number: int, others: Sequence[int], *, heal: bool = False) -> None:
    for other in others:
        cut(town, number, other, heal=heal)


def lone_write(town: Town, key: bytes = KEY, holder: int = 1) -> None:
    """A write whose coordinator stored it and told nobody, the client neither."""
    paused(town, 1, 2, 3)

    async def work(node: Node) -> None:
        data = node.data
        change = Change("t", key, node.runtime.clock.wall_us(), QUORUM, 1, tuple((row, b"v") for row in ROWS))
        made = mutation_for(change, table_of(node), data.new_mutation_id(), 1)
        data.replica.keeping.give(data.coordinator.plans.plan_of(made, QUORUM), made)

    town.finish(town.begin(holder, work))
    assert [rows_of(town, number, key) for number in (1, 2, 3)] == [10 * (n == holder) for n in (1, 2, 3)]


def test_writes_are_held_by_id_and_let_go_of_once_all_hold_them() -> None:
    with tracked(1) as town:
        for _ in range(5):
            assert write(town, 1).error is None
        assert write(town, 2).error is None
        settled(town)
        assert held(town, 1) == held(town, 2) == held(town, 3)
        (everything,) = held(town, 1).values()
        assert sorted(runs for _, _, runs in everything.logs) == [(0, 0), (0, 4)]
        assert rows_read(town, 3) == [b"v"] * 10


def test_scenario_1_a_row_that_is_read_brings_its_whole_mutation() -> None:
    with tracked(2) as town:
        lone_write(town)
        cut(town, 1, 3)
        assert rows_read(town, 1, 3) == [b"v"]
        assert rows_of(town, 2) == 10
        cut(town, 1, 3, heal=True)
        isolated(town, 1, (2, 3))
        assert rows_read(town, 2) == [b"v"] * 10


def test_scenario_2_what_no_replica_asked_holds_is_not_seen_at_all() -> None:
    with tracked(3) as town:
        lone_write(town)
        isolated(town, 1, (2, 3))
        assert rows_read(town, 2) == []
        isolated(town, 1, (2, 3), heal=True)
        paused(town, 1, 2, 3, is_paused=False)
        settled(town)
        assert [rows_of(town, number) for number in (1, 2, 3)] == [10, 10, 10]


def test_the_replica_with_the_data_gets_what_another_one_holds_before_it_answers() -> None:
    with tracked(4) as town:
        lone_write(town)
        cut(town, 2, 3)
        assert rows_read(town, 2, 7) == [b"v"]
        assert rows_of(town, 2) == 10


def test_scenario_5_no_read_omits_what_an_earlier_one_showed() -> None:
    with tracked(5) as town:
        lone_write(town)
        seen = False
        for turn in range(30):
            number, other = 1 + turn % 3, 1 + (turn + 1 + turn // 3 % 2) % 3
            third = 6 - number - other
            isolated(town, third, (number, other))
            found = len(rows_read(town, number, turn % 10))
            isolated(town, third, (number, other), heal=True)
            assert found or not seen
            seen = seen or bool(found)
        assert seen


def test_scenario_8_a_lost_acknowledgement_leaves_nothing_open() -> None:
    with tracked(6) as town:
        town.world.network.block("127.0.0.2", "127.0.0.1")
        town.world.network.block("127.0.0.3", "127.0.0.1")
        assert isinstance(write(town, 1).error, WriteTimeout)
        town.world.network.heal()
        settled(town)
        assert held(town, 1) == held(town, 2) == held(town, 3)
        assert rows_read(town, 2) == [b"v"] * 10


def test_scenario_10_a_coordinator_that_is_no_replica_has_one_lead() -> None:
    with tracked(7, 4) as town:
        outsider = next(number for number in range(1, 5) if _is_outside(town, number))
        assert write(town, outsider).error is None
        assert not held(town, outsider)
        assert rows_read(town, outsider) == [b"v"] * 10
        assert sum(bool(held(town, number)) for number in range(1, 5)) == 3


def refuse_a_write_that_comes_again() -> None:
    """A replica that sees no other one refuses to lead a write; a copy comes to it once all are back."""
    with tracked(33, 4) as town:
        outsider = next(number for number in range(1, 5) if _is_outside(town, number))
        replicas = [number for number in range(1, 5) if number != outsider]
        node = town.node(outsider)
        token = looked_for(node, None).right
        plan = node.data.coordinator.plans.write_plan(table_of(node).id, token, QUORUM)
        leader = next(number for number in replicas if own_id(town, number) == plan.near_first[0].node)
        others = [number for number in replicas if number != leader]
        alive = town.node(leader).membership.liveness.alive
        isolated(town, leader, others)
        town.until(lambda: not any(alive(own_id(town, other)) for other in others))
        node.context.internode.faults.duplicates = lambda: True
        assert isinstance(write(town, outsider).error, Unavailable)
        node.context.internode.faults.duplicates = None
        isolated(town, leader, others, heal=True)
        town.until(lambda: all(alive(own_id(town, other)) for other in others))
        # A lost connection: the next one begins with what was sent twice before.
        address = (f"127.0.0.{leader}", plan.near_first[0].address[1])
        peer = node.context.internode._peers[address]
        assert peer._replays and peer._connection is not None
        peer._connection.close("lost")
        town.wait(3.0)
        assert [rows_of(town, number) for number in replicas] == [0, 0, 0]


def test_a_write_that_its_leader_refused_is_not_done_when_it_comes_again() -> None:
    refuse_a_write_that_comes_again()


def own_id(town: Town, number: int) -> int:
    return int(town.node(number).context.own_id())


def known_of(town: Town, number: int) -> Known:
    """What a node tells a read of its whole range."""
    known = town.node(number).data.replica.known(
        looked_for(town.node(number), None), Tracking.SUMMARY, lists_all=False
    )
    assert known is not None
    return known


def _is_outside(town: Town, number: int) -> bool:
    node = town.node(number)
    plan = node.data.coordinator.plans.read_plan(table_of(node).id, looked_for(node, None).right, QUORUM)
    return plan.local is None


def test_scenario_11_no_id_is_given_again_after_a_power_loss() -> None:
    with tracked(8) as town:
        assert write(town, 1, value=b"a").error is None
        before = held(town, 1)
        town.process(1).crash("power")
        back(town, 1)
        assert write(town, 1, ALL, value=b"b").error is None
        settled(town)
        (shard,) = before
        starts = {
            start for node, start, _ in held(town, 1)[shard].logs if node == town.node(1).context.own_id()
        }
        assert len(starts) == 2
        assert rows_read(town, 3) == [b"b"] * 10
        told = [known_of(town, number) for number in (1, 2, 3)]
        assert told[0].over and all(one.over == told[0].over and len(one.held.logs) == 1 for one in told)
        # Who has not heard that the log is over lists it, and the read asks again for all.
        logs = town.node(2).data.reconciler.journal.logs_of(shard)
        (over,) = (log for log in logs.held.logs if log not in told[0].held.logs)
        logs.set_apart(over[:2], IntervalSet(over[2]))
        assert known_of(town, 2).over == b""
        before = town.world.probes.counts.get("read.tracked_listed", 0)
        isolated(town, 3, (1, 2))
        assert rows_read(town, 1) == [b"b"] * 10
        assert town.world.probes.counts["read.tracked_listed"] == before + 1


def test_scenario_14_a_replica_that_was_away_gets_what_it_missed_and_nobody_keeps_hints() -> None:
    with tracked(9) as town:
        away(town, 3)
        for _ in range(20):
            assert write(town, 1).error is None
        assert pending(town, 1, 2) == 0
        assert unreconciled(town, 1) == unreconciled(town, 2) == 20
        back(town, 3)
        settled(town)
        assert rows_of(town, 3) == 10
        assert held(town, 1) == held(town, 3)
        # Both of the others have all that it lacks; one of them sends it.
        assert town.node(3).data.reconciler.pulled == 20


def test_scenario_30_what_is_of_a_dropped_table_is_held_as_nothing() -> None:
    with tracked(10) as town:
        away(town, 3)
        assert write(town, 1).error is None
        assert town.finish(town.submit(1, ChangeSchema(DropTable("ks", "t")))).error is None
        again = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000002", COLUMNS)
        assert town.finish(town.submit(1, ChangeSchema(again))).error is None
        back(town, 3)
        settled(town)
        assert rows_read(town, 3) == []


def test_what_is_late_does_not_bring_back_what_was_truncated() -> None:
    with tracked(11) as town:
        lone_write(town)
        assert town.finish(town.submit(2, ChangeSchema(EmptyTable("ks", "t")))).error is None
        town.agreed(1, 2, 3)
        paused(town, 1, 2, 3, is_paused=False)
        settled(town)
        assert held(town, 1) == held(town, 2) == held(town, 3)
        assert [rows_read(town, number) for number in (1, 2, 3)] == [[], [], []]


def test_an_untracked_keyspace_goes_on_with_what_there_is() -> None:
    with tracked(12) as town:
        assert write(town, 1, value=b"a").error is None
        change = ChangeSchema(AlterKeyspace("ks", replication_type="untracked"))
        assert town.finish(town.submit(1, change)).error is None
        town.agreed(1, 2, 3)
        assert rows_read(town, 2) == [b"a"] * 10
        assert write(town, 2, value=b"b").error is None
        assert rows_read(town, 3) == [b"b"] * 10
        town.until(lambda: not any(held(town, number) for number in (1, 2, 3)))


@pytest.mark.parametrize("level", [Consistency.ANY])
def test_no_write_is_content_with_a_hint(level: Consistency) -> None:
    with tracked(14) as town:
        error = write(town, 1, level).error
        assert isinstance(error, InvalidRequest) and "hints" in error.message
        assert not held(town, 1)


def test_one_replica_reads_data_for_a_quorum() -> None:
    with tracked(15) as town:
        assert write(town, 1).error is None
        settled(town)
        reads = {number: _counted_reads(town.node(number)) for number in (1, 2, 3)}
        for _ in range(50):
            assert rows_read(town, 1) == [b"v"] * 10
        assert [found[0] for found in reads.values()] == [50, 0, 0]


def _counted_reads(node: Node) -> list[int]:
    """Counts what a node's store is read for replicas' answers, from now on."""
    count, replica = [0], node.data.replica
    engine = replica._engine
    now = engine.read_now

    def read_now(command: ReadCommand) -> ReadResult | None:
        found = now(command)
        count[0] += found is not None
        return found

    async def read(command: ReadCommand) -> ReadResult:
        count[0] += 1
        return await node.data.engine.read(command)

    replica._engine = SimpleNamespace(  # type: ignore[assignment]
        read_now=read_now, read=read, apply=engine.apply, synced=engine.synced
    )
    return count


def test_a_table_may_differ_from_its_keyspace() -> None:
    with tracked(16) as town:
        change = ChangeSchema(AlterOptions("ks", "t", (("replication_type", "untracked"),)))
        assert write(town, 1).error is None
        assert town.finish(town.submit(1, change)).error is None
        town.agreed(1, 2, 3)
        town.until(lambda: not held(town, 1))
        away(town, 3)
        assert write(town, 1).error is None
        assert pending(town, 1) == 1


def test_tombstones_wait_for_what_may_be_older() -> None:
    with tracked(17) as town:
        reconciler = town.node(1).data.reconciler
        table = table_of(town.node(1))
        token = looked_for(town.node(1), None).right
        town.wait(120)
        away(town, 3)
        assert write(town, 1).error is None
        town.wait(150)
        assert not reconciler.purge_before_s(table, token)
        back(town, 3)
        settled(town)
        town.wait(130)
        before_s = reconciler.purge_before_s(table, token)
        assert before_s is not None and before_s > town.node(1).runtime.clock.wall_us() // 1_000_000 - 300


def test_a_journal_says_what_is_kept_for_whom_and_a_replica_that_lags_is_told_of() -> None:
    with tracked(19) as town:
        node = town.node(1)
        reconciler, conditions = node.data.reconciler, node.context.conditions
        assert write(town, 1).error is None
        settled(town)
        away(town, 3)
        for _ in range(4):
            assert write(town, 1).error is None
        town.wait(5)
        gone = next(lag for lag in reconciler.lags(with_ages=True) if lag.node == 3)
        assert gone.lacks == 4 and gone.oldest_us is not None
        assert gone.oldest_us < node.runtime.clock.wall_us() - 4_000_000
        assert reconciler.journal.entry_count == 4 and reconciler.journal_bytes > 4 * 100
        (journaled,) = (row for row in journal_rows(node) if row["entries"])
        assert journaled["kept_for"] == (3,) and journaled["entries"] == 4
        assert not [one for one in conditions.current() if one.code == "REPLICA_LAGS"]
        town.wait(610)
        told = [one for one in conditions.current() if one.code == "REPLICA_LAGS"]
        assert [one.subject for one in told] == ["node 3"]
        back(town, 3)
        settled(town)
        town.wait(2)
        assert not [one for one in conditions.current() if one.code == "REPLICA_LAGS"]
        assert reconciler.journal_bytes == 0 and not reconciler.left_s(3)


def test_a_large_journal_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition_watches, "JOURNAL_LARGE_BYTES", 1000)
    with tracked(20) as town:
        away(town, 3)
        for _ in range(3):
            assert write(town, 1).error is None
        conditions = town.node(1).context.conditions
        assert [one.code for one in conditions.current() if one.code == "JOURNAL_LARGE"]
        back(town, 3)
        settled(town)
        assert not [one.code for one in conditions.current() if one.code == "JOURNAL_LARGE"]


def test_a_node_that_rebuilds_itself_takes_what_only_it_has_ids_of_from_its_journal() -> None:
    """Its tables lost rows that no other replica has, and it claims their ids, so nobody would bring them."""
    with tracked(21) as town:
        lone_write(town)

        async def lose(node: Node) -> int:
            store, table_id = node.data.store, table_of(node).id
            keys = [key for key, _ in store.scan(*token_bounds(table_id, FULL_RING))]
            store.write([("delete", key) for key in keys])
            return len(keys)

        assert town.finish(town.begin(1, lose)).value == 10 and rows_of(town, 1) == 0
        request = EnqueueRequest(Rebuild(NodeId(1)), actor="operator")
        assert town.finish(town.submit(1, request)).error is None
        town.until(lambda: not town.newest.operations and not town.newest.requests.live)
        assert [rows_of(town, number) for number in (1, 2, 3)] == [10, 0, 0]
        paused(town, 1, 2, 3, is_paused=False)
        settled(town)
        assert [rows_of(town, number) for number in (1, 2, 3)] == [10, 10, 10]


def test_what_a_replica_told_is_void_once_it_may_have_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "RECONCILE_SHARDS_A_TURN", 1)
    with tracked(31) as town:
        for number in range(12):
            assert write(town, 1, ALL, key=b"k%d" % number).error is None
        settled(town)
        node = town.node(1)
        reconciler, cluster = node.data.reconciler, node.log.cluster
        shards = sorted(reconciler.journal.shards)
        assert len(shards) > 2
        told = [reconciler._told_of(cluster, shard, reconciler.journal.held(shard)) for shard in shards]
        hearing = reconciler._heard(2, told)
        hearing.send(None)
        assert reconciler.journal.told[shards[0]][2] == told[0].held
        reconciler.void(shards[1], 2)
        reconciler.void(shards[0], 2)
        with pytest.raises(StopIteration) as end:
            hearing.send(None)
        assert end.value.value == told[:1]
        assert not any(2 in reconciler.journal.told.get(shard, {}) for shard in shards[:2])
