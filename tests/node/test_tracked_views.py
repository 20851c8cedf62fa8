"""Views of tracked tables: each replica derives from what comes to it, however it comes."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.schema.changes import AlterKeyspace, CreateTable, EmptyTable
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.sim.plant import replaced
from lockstep.tracking.held import MutationId
from lockstep.values.errors import PeerTimeout
from lockstep.values.ids import Consistency, NodeId
from tests.node.support import Town
from tests.node.test_hints import away, back, pending
from tests.node.test_requests_while_moving import cut, table_of
from tests.node.test_tracked import (
    COLUMNS,
    KEY,
    QUORUM,
    isolated,
    paused,
    rows_of,
    settled,
    tracked,
    unreconciled,
    write,
)
from tests.node.test_tracked_cohorts import apart, collapsed, hasty, whole
from tests.node.test_tracked_migration import repaired, untracked
from tests.node.test_tracked_statements import doors, told
from tests.node.test_views import done, keys_at, make_view, owed, rows_at

NODES = (1, 2, 3)
ONE = Consistency.ONE


def with_view(seed: int) -> Town:
    """Three nodes with a tracked table and a view of it, by its value."""
    town = tracked(seed)
    make_view(town)
    town.until(lambda: all(done(town, number) for number in NODES))
    return town


def lone(town: Town, holder: int, value: bytes, rows: int = 1) -> None:
    """A mutation that one replica holds, of which it told no other one."""

    async def work(node: Node) -> None:
        data, at = node.data, node.runtime.clock.wall_us()
        change = Change("t", KEY, at, QUORUM, 1, tuple((row, value) for row in range(rows)))
        made = mutation_for(change, table_of(node), data.new_mutation_id(), 1)
        data.replica.keeping.give(data.coordinator.plans.plan_of(made, QUORUM), made)

    assert town.finish(town.begin(holder, work)).error is None
    town.until(lambda: owed(town) == 0)


def shown(town: Town) -> list[tuple[list[bytes], int]]:
    """What each node has of the view by itself: the values that rows are found by, and how many rows."""
    return [(sorted(keys_at(town, number, "by_v")), rows_at(town, number, "by_v")) for number in NODES]


def bring_what_two_replicas_hold_alone() -> None:
    """Two replicas hold one write each: only who is brought the other one's can tell that a row has moved."""
    with with_view(61) as town:
        paused(town, *NODES)
        lone(town, 1, b"old")
        lone(town, 2, b"new")
        assert [rows_of(town, number) for number in NODES] == [1, 1, 0]
        assert shown(town) == [([b"new", b"old"], 2)] * 3
        paused(town, *NODES, is_paused=False)
        settled(town)
        town.until(lambda: owed(town) == 0)
        assert shown(town) == [([b"new"], 1)] * 3
        assert town.node(3).data.view_log.spread and not town.node(3).data.view_log.paired


def test_a_lone_write_that_reconciliation_brings_shows_in_the_view() -> None:
    bring_what_two_replicas_hold_alone()


def test_a_lone_write_that_a_read_brings_shows_in_the_view() -> None:
    with with_view(62) as town:
        doors(town, 3)
        paused(town, *NODES)
        lone(town, 1, b"old")
        lone(town, 2, b"new")
        assert told(town, 3, "SELECT v FROM ks.t WHERE pk = 0x70", level=Consistency.ALL) == [(b"new",)]
        town.until(lambda: owed(town) == 0)
        assert shown(town) == [([b"new"], 1)] * 3


def test_what_a_quorum_has_is_kept_no_longer_and_who_was_away_gets_the_rest() -> None:
    with with_view(63) as town:
        away(town, 3)
        for value in (b"a", b"b"):
            assert write(town, 1, value=value).error is None
        town.until(lambda: not any(len(town.node(number).data.batch_store) for number in (1, 2)))
        assert not any(town.node(number).data.batch_store.replayed for number in (1, 2))
        back(town, 3)
        settled(town)
        town.until(lambda: pending(town, 1, 2) == 0 and owed(town) == 0)
        assert shown(town) == [([b"b"], 10)] * 3


def write_to_one_that_is_cut_off() -> None:
    """Who alone has a write brings it to a quorum, also while nothing is reconciled."""
    with with_view(64) as town:
        paused(town, *NODES)
        isolated(town, 1, (2, 3))
        assert write(town, 1, ONE).error is None
        assert [rows_of(town, number) for number in NODES] == [10, 0, 0]
        # What was sent to the others is dropped by then.
        town.wait(3)
        isolated(town, 1, (2, 3), heal=True)
        town.wait(10)
        assert sum(rows_of(town, number) == 10 for number in NODES) >= 2
        assert owed(town) == 0


def test_what_one_replica_alone_has_comes_to_a_quorum_by_the_batch_log() -> None:
    write_to_one_that_is_cut_off()


def take_rows_that_move_one_of_its_own() -> None:
    """Who was away held a write that the others lack, and gets rows of their tables: it alone has both."""
    with with_view(65) as town:
        paused(town, *NODES)
        hasty(town, *NODES)
        lone(town, 3, b"old")
        away(town, 3)
        paused(town, 1, 2, is_paused=False)
        assert write(town, 1, value=b"new").error is None
        collapsed(town, 1, 2)
        assert apart(town, 1) == 1 and rows_of(town, 1) == 10
        stubs = [(town.node(number).data.reconciler._tracked, "pull", get_nothing) for number in (1, 2)]
        with replaced(*stubs):
            back(town, 3)
            town.until(lambda: town.node(3).data.reconciler.cohorts.taken > 0)
            town.until(lambda: pending(town, 1, 2) == 0 and owed(town) == 0)
            assert shown(town) == [([b"new"], 10)] * 3
        whole(town)


async def get_nothing(*_of: object) -> None:
    raise PeerTimeout("nobody answers")


def test_rows_of_a_cohort_show_in_the_view() -> None:
    take_rows_that_move_one_of_its_own()


def test_a_view_of_a_table_that_has_rows_is_built_of_what_a_majority_holds() -> None:
    with tracked(66) as town:
        assert write(town, 1, value=b"a").error is None
        settled(town)
        paused(town, *NODES)
        lone(town, 1, b"b", 3)
        make_view(town)
        town.until(lambda: all(done(town, number) for number in NODES) and owed(town) == 0)
        assert shown(town) == [([b"a", b"b"], 10)] * 3
        paused(town, *NODES, is_paused=False)
        settled(town)
        town.until(lambda: owed(town) == 0)
        assert shown(town) == [([b"a", b"b"], 10)] * 3


STATEMENTS = (
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x01, 1, 'if') IF NOT EXISTS",
    "UPDATE ks.t SET v = 'then' WHERE pk = 0x01 AND ck = 1 IF v = 'if'",
    "BEGIN BATCH INSERT INTO ks.t (pk, ck, v) VALUES (0x02, 1, 'l'); "
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x03, 1, 'l'); APPLY BATCH",
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x04, 1, 'gone')",
    "DELETE FROM ks.t WHERE pk = 0x04",
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x05, 1, 'x')",
    "DELETE v FROM ks.t WHERE pk = 0x05 AND ck = 1",
)


def test_every_kind_of_write_shows_in_the_view_although_a_replica_is_away() -> None:
    with with_view(67) as town:
        doors(town, 1, 2)
        away(town, 3)
        for at, text in enumerate(STATEMENTS):
            told(town, 1 + at % 2, text)
        back(town, 3)
        settled(town)
        town.until(lambda: pending(town, 1, 2) == 0 and owed(town) == 0)
        assert shown(town) == [([b"l", b"then"], 3)] * 3
        found = told(town, 1, "SELECT v, pk FROM ks.by_v WHERE v = 'l'")
        assert sorted(found) == [(b"l", b"\x02"), (b"l", b"\x03")]
        (described,) = told(town, 1, "DESCRIBE MATERIALIZED VIEW ks.by_v")
        assert b"replication_type = 'untracked'" in (described[-1] or b"")


def test_what_comes_late_to_an_emptied_table_is_in_no_view() -> None:
    with with_view(68) as town:
        paused(town, *NODES)
        lone(town, 1, b"old")
        cut(town, 1, 3)
        assert town.finish(town.submit(2, ChangeSchema(EmptyTable("ks", "t")))).error is None
        town.agreed(*NODES)
        cut(town, 1, 3, heal=True)
        paused(town, *NODES, is_paused=False)
        settled(town)
        town.until(lambda: owed(town) == 0)
        assert shown(town) == [([], 0)] * 3
        assert write(town, 2, value=b"new").error is None
        town.until(lambda: owed(town) == 0)
        assert shown(town) == [([b"new"], 10)] * 3


def test_scenario_26_a_table_with_a_view_becomes_tracked_and_untracked_again() -> None:
    with untracked(69) as town:
        make_view(town)
        town.until(lambda: all(done(town, number) for number in NODES))
        assert write(town, 1, value=b"a").error is None
        for word in ("tracked", "untracked"):
            change = ChangeSchema(AlterKeyspace("ks", replication_type=word))
            assert town.finish(town.submit(1, change)).error is None
            town.agreed(*NODES)
            paused(town, *NODES)
            if word == "tracked":
                lone(town, 1, b"b")
                lone(town, 2, b"c")
                repaired(town)
            assert write(town, 2, value=b"d", level=Consistency.ALL).error is None
            paused(town, *NODES, is_paused=False)
            town.until(lambda: not any(unreconciled(town, number) for number in NODES))
            town.until(lambda: pending(town, *NODES) == 0 and owed(town) == 0)
            assert shown(town) == [([b"d"], 10)] * 3


def test_what_is_held_already_lets_no_other_write_be_answered_before_it_is_durable() -> None:
    with tracked(70) as town:
        made = CreateTable(
            *("ks", "u", "00000000-0000-4000-8000-000000000007", COLUMNS),
            (("replication_type", "untracked"),),
        )
        assert town.finish(town.submit(1, ChangeSchema(made))).error is None
        town.agreed(*NODES)
        lone(town, 1, b"held")

        async def work(node: Node) -> None:
            data, epoch = node.data, node.log.cluster.epoch
            journal = data.replica.journal
            assert journal is not None
            ((_, logs),) = journal.shards.items()
            ((log, offsets),) = logs.held.items()
            known = MutationId(NodeId(log[0]), log[1], offsets.first(1).offsets(1)[0], 1)
            await journal.synced()
            asked: list[int] = []
            answers: list[object] = []
            both = asyncio.Event()
            synced = data.replica._engine.synced

            def answered(answer: object) -> None:
                answers.append(answer)
                if len(answers) == 2:
                    both.set()

            async def noted(sequence: int) -> None:
                asked.append(sequence)
                await synced(sequence)

            at = node.runtime.clock.wall_us()
            change = Change("u", KEY, at, QUORUM, 1, ((1, b"v"),))
            table = node.log.cluster.schema.table("ks", "u")
            assert table is not None
            other = mutation_for(change, table, data.new_mutation_id(), 1)
            again = mutation_for(replace(change, table="t"), table_of(node), data.new_mutation_id(), 1)
            with replaced((data.replica._engine, "synced", noted)):
                data.replica.write(WriteRequest(epoch, epoch, other), answered)
                written = data.engine._commit._written
                data.replica.write(WriteRequest(epoch, epoch, again, 0, known), answered)
                await both.wait()
            assert all(isinstance(answer, WriteReply) for answer in answers) and max(asked[:1]) >= written

        assert town.finish(town.begin(1, work)).error is None
