"""Hints: a replica that was away gets what it missed, without a read; nobody keeps what is of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.handoff import hint_delivery
from lockstep.handoff.hint_delivery import HintDelivery
from lockstep.handoff.hints import DISABLED, EXPIRED, INVALID, WINDOW, HintPolicy, Left
from lockstep.metadata.directory import NodeState
from lockstep.metadata.repairs import REPAIRS, Repaired, Repairs, TableRepairs
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.membership import decommission_handoff
from lockstep.node.node import Node
from lockstep.replica.messages import WriteRequest
from lockstep.schema.changes import (
    AddColumns,
    AlterOptions,
    CreateTable,
    DropColumns,
    EmptyTable,
    NewColumn,
)
from lockstep.schema.model import ColumnKind, Table
from lockstep.server.views.live_views import found_by
from lockstep.sim.door import command_for, mutation_for
from lockstep.sim.load.history import Change, Look
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.probes import CrashRule
from lockstep.storage.store import Batch, Family
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import DiskRefused, InvalidRequest, Unavailable, WriteTimeout
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import STORE_BATCH_ROWS_MAX
from lockstep.values.rows import Cell, Mutation, Row
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range, token_of
from tests.node.support import Outcome, Town, leave
from tests.node.test_repairs import repair
from tests.node.test_requests_while_moving import founded, table_of

TIMEOUT_MS = 1000
COUNT = 8
KEYS = [b"p%d" % number for number in range(COUNT)]
QUORUM, ANY, ONE = Consistency.QUORUM, Consistency.ANY, Consistency.ONE


def write_all(town: Town, number: int, level: Consistency = QUORUM) -> Outcome:
    """One row of each key through a node."""
    return town.finish(submit_batch(town, number, level))


def submit_batch(town: Town, number: int, level: Consistency) -> Outcome:

    async def work(node: Node) -> None:
        for key in KEYS:
            at = node.runtime.clock.wall_us()
            change = Change("t", key, at, level, TIMEOUT_MS, ((0, b"v"),))
            made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            await node.data.coordinator.write(made, level, TIMEOUT_MS)

    return town.begin(number, work)


def held(town: Town, number: int) -> int:
    """How many of the keys a node holds by itself, without a read of any other."""

    async def work(node: Node) -> int:
        found = 0
        for key in KEYS:
            command = command_for(Look("t", key, None, ONE, TIMEOUT_MS), table_of(node), 1, None)
            found += bool((await node.data.engine.read(command)).partitions)
        return found

    return int(town.finish(town.begin(number, work)).value)


def pending(town: Town, *numbers: int) -> int:
    return sum(town.node(number).data.hints.store.count() for number in numbers)


def away(town: Town, number: int, others: Sequence[int] = (1, 2)) -> None:
    """Stop a node, until the others take it for dead."""
    town.process(number).crash()
    node_id = int(town.node(number).context.own_id())
    town.until(lambda: not any(town.node(other).membership.liveness.alive(node_id) for other in others))


def back(town: Town, number: int) -> None:
    """Start a node again, and let it hear of the others."""
    town.start(number)
    town.until(lambda: town.ready(number))
    town.wait(0.6)


def test_a_replica_that_was_down_gets_what_it_missed_without_a_read() -> None:
    with founded(1) as town:
        away(town, 3)
        assert write_all(town, 1).error is None
        assert pending(town, 1) == COUNT
        back(town, 3)
        town.until(lambda: pending(town, 1) == 0)
        assert held(town, 3) == COUNT
        assert town.node(1).data.hint_delivery.delivered == COUNT


def test_a_replica_that_does_not_answer_in_time_gets_a_hint_after_the_client_got_its_answer() -> None:
    with founded(2) as town:
        town.process(3).pause()
        outcome = write_all(town, 1)
        assert outcome.error is None and outcome.done_s - outcome.begun_s < 0.5
        town.wait(TIMEOUT_MS / 1000 + 0.1)
        assert pending(town, 1) == COUNT
        town.process(3).resume()
        town.until(lambda: pending(town, 1) == 0)
        assert held(town, 3) == COUNT


def test_hints_survive_a_power_loss_of_their_coordinator() -> None:
    with founded(3) as town:
        away(town, 3)
        write_all(town, 1)
        town.wait(0.2)
        town.process(1).crash("power")
        back(town, 1)
        assert pending(town, 1) == COUNT
        back(town, 3)
        town.until(lambda: pending(town, 1) == 0)
        assert held(town, 3) == COUNT


def test_a_write_at_any_is_content_with_a_durable_hint() -> None:
    with founded(4) as town:
        away(town, 3)
        away(town, 2, [1])
        town.node(1).data.replica.write = _refuses  # type: ignore[method-assign, assignment]
        assert isinstance(write_all(town, 1, QUORUM).error, Unavailable)
        assert write_all(town, 1, ANY).error is None
        town.process(1).crash("power")
        back(town, 1)
        assert pending(town, 1) >= 2 * COUNT
        back(town, 2)
        back(town, 3)
        town.until(lambda: pending(town, 1) == 0)
        assert [held(town, number) for number in (1, 2, 3)][1:] == [COUNT, COUNT]


def test_a_write_at_any_that_ends_twice_leaves_other_writes_in_flight_alone() -> None:
    """It is acknowledged here while its hint becomes durable, and waits for a replica after that."""
    with founded(44) as town:
        away(town, 3)
        town.process(2).pause()
        waiting = submit_batch(town, 1, QUORUM)
        town.wait(0.05)
        assert write_all(town, 1, ANY).error is None
        assert isinstance(town.finish(waiting).error, WriteTimeout)
        assert town.node(1).data.coordinator.in_flight() == (0, 0)


def _refuses(_request: object, _answer: object) -> None:
    raise Unavailable(1, 1, 0)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("[hints]\nhinted_handoff_enabled=false\n", DISABLED),
        ("[hints]\nmax_hint_window_ms=1\n", WINDOW),
    ],
)
def test_a_hint_that_is_not_kept_leaves_a_mark_that_survives(lines: str, reason: str) -> None:
    with founded(5) as town:
        town.extra_lines["n1"] = lines
        town.process(1).crash()
        back(town, 1)
        away(town, 3)
        write_all(town, 1)
        assert pending(town, 1) == 0
        assert town.node(1).data.hints.dropped[reason] == COUNT
        town.wait(0.2)
        town.process(1).crash("power")
        back(town, 1)
        marks = list(town.node(1).data.hints.store.marks())
        assert {(mark.node, mark.reason) for mark in marks} == {(town.node(3).context.own_id(), reason)}
        hints, table, cluster = town.node(1).data.hints, table_of(town.node(1)).id, town.newest
        began_s = max(mark.newest_us for mark in marks) // 1_000_000
        cut = (marks[0].left + marks[0].right) // 2
        before, behind = ([one for one in marks if one.left < cut], [one for one in marks if one.right > cut])
        for times, left in (((1, 0), behind), ((1,), behind), ((0, 1), before), ((1, 1), [])):
            # Two parts, as repairs of different nodes' ranges leave them.
            parts = zip((Range(TOKEN_MIN, cut), Range(cut, TOKEN_MAX)), times, strict=False)
            ranges = tuple(Repaired(part, began_s + after_s, 0, 1) for part, after_s in parts)
            tables = (TableRepairs(table, ranges), TableRepairs(table + 1, ranges))
            known = {place: dict(of) for place, of in hints.store._marks.items()}
            with replaced((hints.store, "_marks", known)):
                hints.forget_marks(cluster.changed(REPAIRS.set(Repairs(tables=tables))))
                assert list(hints.store.marks()) == left, "a repair that began before is not enough"
        emptied = ChangeSchema(EmptyTable("ks", "t"))
        assert town.finish(town.submit(1, emptied)).error is None
        town.until(lambda: not list(hints.store.marks()))


def test_a_mark_counts_when_the_store_has_it() -> None:
    """Whoever gives a write up awaits its mark, also a known one, or hears that there is none."""
    with founded(5) as town:
        node = town.node(1)
        store, taken = node.data.hints.store._store, list[int]()

        def take(family: Family, batch: Batch) -> int:
            taken.append(store.write_records(family, batch))
            return taken[-1]

        def refuse(_family: Family, _batch: Batch) -> int:
            raise DiskRefused("there is no more room than the reserve")

        async def leave_three() -> list[Left]:
            change = Change("t", KEYS[0], node.runtime.clock.wall_us(), ONE, TIMEOUT_MS, ((0, b"v"),))
            made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            plan = node.data.hints.plans.write_plan(made.table_id, made.token, ONE)
            return [node.data.hints.leave(made, plan.epoch, plan.targets[:1]) for _ in range(3)]

        disabled = (node.data.hints, "policy", HintPolicy(enabled=False))
        for takes in (refuse, take):
            stub = SimpleNamespace(write_records=takes, records=store.records, synced=store.synced)
            with replaced(disabled, (node.data.hints.store, "_store", stub)):
                found = town.finish(town.begin(1, lambda _node: leave_three())).value
            assert all((left.kept, left.whole) == (0, False) for left in found)
            assert all(bool(left.unmarked) == (takes is refuse) for left in found)
        # The fourth is written because the store has none yet, the others as any known ones are.
        assert len(taken) == 1 and [left.sequence for left in found] == taken * 3
        assert [mark.count for mark in node.data.hints.store.marks()] == [6]


def test_a_hint_older_than_gc_grace_is_dropped_and_its_range_is_marked() -> None:
    with founded(6) as town:
        grace = ChangeSchema(AlterOptions("ks", "t", (("gc_grace_seconds", "20"),)))
        assert town.finish(town.submit(1, grace)).error is None
        away(town, 3)
        write_all(town, 1)
        assert pending(town, 1) == COUNT
        town.wait(25)
        back(town, 3)
        town.until(lambda: pending(town, 1) == 0)
        assert held(town, 3) == 0
        assert town.node(1).data.hints.dropped[EXPIRED] == COUNT
        assert {mark.reason for mark in town.node(1).data.hints.store.marks()} == {EXPIRED}


def test_a_node_that_stays_away_holds_purging_back_for_its_grace_time_only() -> None:
    with founded(6) as town:
        grace = ChangeSchema(AlterOptions("ks", "t", (("gc_grace_seconds", "20"),)))
        assert town.finish(town.submit(1, grace)).error is None
        away(town, 3)
        write_all(town, 1)
        town.wait(10)
        assert pending(town, 1) == COUNT and town.node(1).data.oldest_hint_us() is not None
        town.wait(15)
        assert pending(town, 1) == 0 and town.node(1).data.oldest_hint_us() is None
        marks = list(town.node(1).data.hints.store.marks())
        assert {(mark.node, mark.reason) for mark in marks} == {(town.node(3).context.own_id(), EXPIRED)}
        assert sum(mark.count for mark in marks) == COUNT


def test_a_write_that_no_replica_can_take_is_refused_before_it_is_sent_or_kept() -> None:
    with founded(12) as town:

        async def write(node: Node) -> None:
            at, known = node.runtime.clock.wall_us(), table_of(node)
            cells = (Cell(known.by_name["v"].id, b"v", at),)
            rows = tuple(Row(b"%08d" % at_row, cells=cells) for at_row in range(STORE_BATCH_ROWS_MAX + 1))
            many, one = (
                Mutation(known.id, token_of(key), key, node.data.new_mutation_id(), at, rows=some)
                for key, some in ((b"many", rows), (b"one", rows[:1]))
            )
            with pytest.raises(InvalidRequest):
                await node.data.coordinator.write(many, QUORUM, TIMEOUT_MS)
            with pytest.raises(InvalidRequest):
                await node.data.batches.write([one, many], QUORUM, TIMEOUT_MS)

        outcome = town.finish(town.begin(1, write))
        assert outcome.error is None, outcome.error
        town.wait(2)
        assert pending(town, 1, 2, 3) == 0
        assert [len(town.node(number).data.batch_store) for number in (1, 2, 3)] == [0, 0, 0]


def test_a_hint_that_its_replica_refuses_for_good_is_given_up_and_keeps_no_others_waiting() -> None:
    with founded(13) as town, replaced((hint_delivery, "HINTS_AT_ONCE_MAX", 2)):
        away(town, 3)
        write_all(town, 1)
        assert pending(town, 1) == COUNT
        back(town, 3)
        taken, replica = [], town.node(3).data.replica
        write = replica.write

        def judge(request: WriteRequest, answer: Callable[[Any], None]) -> None:
            if request.mutation.key in KEYS[:3]:
                raise InvalidRequest("never")
            taken.append(request.mutation.key)
            write(request, answer)

        with replaced((replica, "write", judge)):
            town.until(lambda: pending(town, 1) == 0)
        assert sorted(taken) == KEYS[3:]
        assert town.node(1).data.hints.dropped[INVALID] == 3
        assert sum(mark.count for mark in town.node(1).data.hints.store.marks()) == 3


def remove_the_only_one_that_has_a_hint() -> None:
    """A write of which only hints for one node are left, which then is removed."""
    with founded(7) as town:
        town.start(4)
        town.until(lambda: town.ready(4))
        lost = NodeId(town.node(3).context.own_id())
        away(town, 3, [1, 2, 4])

        async def leave_hints(node: Node) -> None:
            for key in KEYS:
                at = node.runtime.clock.wall_us()
                change = Change("t", key, at, ANY, TIMEOUT_MS, ((0, b"v"),))
                made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
                plan = node.data.hints.plans.write_plan(made.table_id, made.token, ANY)
                hinted = [target for target in plan.targets if target.node == lost]
                node.data.hints.leave(made, plan.epoch, hinted)

        town.finish(town.begin(1, leave_hints))
        mine = pending(town, 1)
        assert 0 < mine <= COUNT
        gone = EnqueueRequest(Remove(lost, presumed_dead=True), actor="operator")
        assert town.finish(town.submit(1, gone)).error is None
        town.until(lambda: town.state_of(int(lost)) is NodeState.LEFT)
        town.until(lambda: pending(town, 1) == 0)
        assert sum(held(town, number) for number in (1, 2, 4)) == 3 * mine


def test_hints_of_a_node_that_was_removed_reach_the_replicas_of_now() -> None:
    remove_the_only_one_that_has_a_hint()


def test_a_node_that_leaves_hands_its_hints_over() -> None:
    with founded(8) as town:
        town.start(4)
        town.until(lambda: town.ready(4))
        leaver = NodeId(town.node(1).context.own_id())
        assert town.finish(town.submit(2, leave(leaver))).error is None
        away(town, 3, [1, 2, 4])
        write_all(town, 1)
        mine = pending(town, 1)
        assert mine > 0
        town.until(lambda: town.node(2).membership.liveness.alive(int(leaver)))
        given = town.begin(1, lambda node: node.data.hint_delivery.hand_over())
        town.until(lambda: given.done)
        assert given.value is True
        assert pending(town, 1) == 0 and pending(town, 2, 4) >= mine
        back(town, 3)
        town.until(lambda: pending(town, 2, 4) == 0)


def test_a_node_that_leaves_without_an_heir_has_its_ranges_recorded_until_a_repair() -> None:
    """Nobody takes its hints, nor does whom they are for: the operation ends all the same, and says so."""
    with (
        replaced(
            (decommission_handoff, "LEAVING_FAREWELL_MS", 500), (HintDelivery, "_take_over", _takes_nothing)
        ),
        founded(8) as town,
    ):
        town.start(4)
        town.until(lambda: town.ready(4))
        # A write that is planned while the join ends may be owed to a replica of before.
        town.until(
            lambda: {town.node(number).log.state.epoch for number in (1, 2, 3, 4)} == {town.newest.epoch}
        )
        leaver, lacking = NodeId(town.node(4).context.own_id()), NodeId(town.node(3).context.own_id())
        town.node(3).data.replica.write = _refuses  # type: ignore[method-assign, assignment]
        write_all(town, 4)
        assert town.finish(town.submit(2, leave(leaver))).error is None
        town.until(lambda: town.state_of(int(leaver)) is NodeState.LEFT)
        # The entry that ends the operation comes after the one that says what is lacking.
        assert town.newest.degraded and {one.missing for one in town.newest.degraded} == {(lacking,)}
        assert {one.keyspaces for one in town.newest.degraded} == {("ks",)}
        town.until(
            lambda: "RANGES_DEGRADED" in [one.condition.code for one in found_by(town.node(2).services)]
        )
        del town.node(3).data.replica.write  # type: ignore[misc]
        assert held(town, 3) < held(town, 2)
        repair(town, 2)
        assert town.newest.degraded == ()
        assert held(town, 3) == held(town, 2)


async def _takes_nothing(_delivery: HintDelivery, _peer: object, _given: object) -> object:
    raise DiskRefused("no room for hints")


def test_hints_go_to_the_next_one_when_who_takes_them_dies() -> None:
    with founded(9) as town:
        town.start(4)
        town.until(lambda: town.ready(4))
        leaver = NodeId(town.node(1).context.own_id())
        assert town.finish(town.submit(2, leave(leaver))).error is None
        away(town, 3, [1, 2, 4])
        ids = {town.node(number).context.own_id(): number for number in (2, 4)}
        heirs = [ids[target.node] for target in town.node(1).data.hint_delivery._heirs()]
        assert sorted(heirs) == [2, 4]
        crash = CrashRule(label="hints.taken_over", process=f"n{heirs[0]}", hit=1, kind="power")
        town.world.probes.add(crash)
        write_all(town, 1)
        assert pending(town, 1) > 0
        given = town.begin(1, lambda node: node.data.hint_delivery.hand_over())
        town.until(lambda: given.done and not town.process(heirs[0]).alive)
        assert given.value is True
        assert pending(town, 1) == 0 and pending(town, heirs[1]) > 0
        back(town, heirs[0])
        back(town, 3)
        town.until(lambda: town.state_of(int(leaver)) is NodeState.LEFT)
        town.until(lambda: pending(town, 2, 4) == 0)
        assert held(town, 3) == held(town, 4) == held(town, 2) > 0, "writes ended when too few were alive"


def test_hints_outlive_changes_of_their_table() -> None:
    """A column is dropped and comes back under its name while hints with its cells wait; the rows arrive, and
    the column is empty on all replicas alike."""
    with founded(10) as town:
        away(town, 3)
        assert write_all(town, 1).error is None
        wall_us = town.node(1).runtime.clock.wall_us()
        old = table_of(town.node(1)).by_name["v"].id
        for change in (
            DropColumns("ks", "t", ("v",), wall_us),
            AddColumns("ks", "t", (NewColumn("v", "text"),)),
            AlterOptions("ks", "t", (("comment", "again"),)),
        ):
            assert town.finish(town.submit(1, ChangeSchema(change))).error is None
        assert pending(town, 1) == COUNT
        back(town, 3)
        town.until(lambda: pending(town, 1) == 0)
        assert held(town, 3) == COUNT
        assert table_of(town.node(3)).by_name["v"].id != old
        assert write_all(town, 3).error is None
        assert town.node(1).data.hint_delivery.failed == 0


def test_hints_of_counters_outlive_a_wipe_of_the_node_that_counted() -> None:
    """What it counts then is beside what the hint brings, and each is counted once."""
    with founded(11) as town:
        columns = (NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0), NewColumn("n", "counter"))
        made = CreateTable("ks", "counts", "00000000-0000-4000-8000-000000000003", columns)
        assert town.finish(town.submit(1, ChangeSchema(made))).error is None
        town.agreed(1, 2, 3)
        away(town, 3)
        count(town, 1, 5)
        assert pending(town, 1) == 1

        async def wipe(node: Node) -> None:
            await node.data.engine.synced(node.data.engine.forget([counts_of(node).id], FULL_RING))

        assert town.finish(town.begin(1, wipe)).error is None
        count(town, 1, 2)
        back(town, 3)
        town.until(lambda: pending(town, 1) == 0)
        assert counted_at(town, 3) == counted_at(town, 2) == 7
        assert counted_at(town, 1) == 2, "nobody has brought it what it lost"
        count(town, 3, 10)
        assert counted_at(town, 3) == counted_at(town, 2) == 17


def counts_of(node: Node) -> Table:
    found = node.log.cluster.schema.table("ks", "counts")
    assert found is not None
    return found


def count(town: Town, number: int, amount: int) -> None:
    """Add to the one counter through a node, which counts itself."""

    async def work(node: Node) -> None:
        table = counts_of(node)
        cell = Cell(table.by_name["n"].id, amount.to_bytes(8, "big", signed=True), 1)
        row = Row(b"", cells=(cell,))
        change = Mutation(table.id, token_of(b"k"), b"k", node.data.new_mutation_id(), 1, rows=(row,))
        await node.data.counters.change(change, QUORUM, TIMEOUT_MS)

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    town.wait(0.2)


def counted_at(town: Town, number: int) -> int:
    """What a node has of the counter by itself."""

    async def work(node: Node) -> int:
        command = command_for(Look("counts", b"k", None, ONE, TIMEOUT_MS), counts_of(node), 1, None)
        found = (await node.data.engine.read(command)).partitions
        cells = [cell for partition in found for row in partition.rows for cell in row.cells]
        return sum(int.from_bytes(cell.value or b"", "big", signed=True) for cell in cells)

    return int(town.finish(town.begin(number, work)).value)
