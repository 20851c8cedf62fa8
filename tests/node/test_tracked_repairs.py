"""Repairs of tracked tables on real nodes in a simulated world: a wait for ids, and data against ids."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from lockstep.documents import read
from lockstep.documents.runs import Repair as RepairDocument
from lockstep.metadata.repairs import Repair, RepairPart, RepairState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.repairing import data_against_ids, id_waits
from lockstep.node.repairing.progress import RepairProgress
from lockstep.node.work import repairs
from lockstep.placement.tablets.resize import ResizeKind
from lockstep.replica.messages import AskedRange, AskIds
from lockstep.schema.changes import CreateTable
from lockstep.server.admin.repairs import RepairRequests
from lockstep.server.views.tracking_views import tracking_samples
from lockstep.server.views.work_views import repair_rows
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.sim.plant import replaced
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.tablets.asked import AskResize
from lockstep.values.errors import (
    ConfigurationError,
    NotReplica,
    PreconditionError,
    RangeLacking,
    SessionClosed,
)
from lockstep.values.ids import NodeId
from lockstep.values.rows import Mutation
from lockstep.values.tokens import FULL_RING, Range, token_of
from tests.node import test_tracked_tablets as tablets
from tests.node.support import Outcome, Town
from tests.node.test_hints import away, back
from tests.node.test_repairs import part
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import (
    COLUMNS,
    KEY,
    QUORUM,
    ROWS,
    held,
    lone_write,
    paused,
    rows_of,
    rows_read,
    settled,
    tracked,
    unreconciled,
    write,
)
from tests.node.test_tracked_cohorts import hasty, with_cohort
from tests.node.test_tracked_migration import altered, by_ids, untracked
from tests.node.test_tracked_witnesses import roles, witnessed

NODES = (1, 2, 3)


def begin(town: Town, number: int = 1, *ranges: Range, **options: Any) -> Repair:
    asked = town.begin(number, lambda node: node.work.repairs.begin((part(town.newest, *ranges),), **options))
    town.finish(asked)
    assert asked.error is None, asked.error
    begun: Repair = asked.value
    return begun


def ended(town: Town, begun: Repair) -> Repair:
    town.until(lambda: not town.newest.repairs.running)
    found = town.newest.repairs.find(begun.id)
    assert found is not None
    return found


def repair(town: Town, number: int = 1, **options: Any) -> RepairProgress:
    """Run one to its good end."""
    begun = begin(town, number, **options)
    found = ended(town, begun)
    assert found.state is RepairState.DONE, found
    return town.node(number).work.repairs.progress[begun.id]


def running(town: Town) -> bool:
    return bool(town.newest.repairs.running)


def damaged(town: Town, number: int, key: bytes = KEY) -> None:
    """The rows of a partition are gone from a node's tables, and its ids are there."""
    tokens = Range(token_of(key) - 1, token_of(key))

    async def work(node: Node) -> None:
        engine = node.data.engine
        await engine.synced(engine.forget((table_of(node).id,), tokens))

    assert town.finish(town.begin(number, work)).error is None
    assert rows_of(town, number, key) == 0


def unnamed(town: Town, number: int, key: bytes = KEY) -> None:
    """A node's tables have rows that no id stands for."""

    async def work(node: Node) -> None:
        change = Change("t", key, node.runtime.clock.wall_us(), QUORUM, 1, tuple((row, b"u") for row in ROWS))
        made: Mutation = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        await node.data.engine.synced(node.data.engine.apply(made))

    assert town.finish(town.begin(number, work)).error is None


def repair_that_waits() -> None:
    """A repair of a tracked table is done when all hold what any held, and not before."""
    with tracked(201) as town:
        lone_write(town)
        begun = begin(town)
        town.wait(5)
        assert running(town), "two replicas lack a mutation"
        progress = town.node(1).work.repairs.progress[begun.id]
        (place,) = progress.lacking
        assert progress.lacking[place] == 2 and Range(*place[1:]).contains(token_of(KEY))
        paused(town, *NODES, is_paused=False)
        assert ended(town, begun).state is RepairState.DONE
        assert [rows_of(town, number) for number in NODES] == [10, 10, 10]
        assert held(town, 1) == held(town, 2) == held(town, 3)
        assert not progress.lacking
        assert (progress.leaves, progress.changes_sent) == (0, 0), "nothing was compared, nothing streamed"
        assert town.node(2).data.repair_participant.counts.trees == 0
        (recorded,) = town.newest.repairs.by_table[table_of(town.node(1)).id]
        assert recorded.range == FULL_RING and recorded.epoch == begun.began_epoch and recorded.before_s > 0


def test_a_repair_waits_until_all_hold_what_any_of_them_held() -> None:
    repair_that_waits()


@pytest.mark.parametrize("options", [{}, {"incremental": True}, {"full": True}])
def test_a_repair_of_replicas_that_are_equal_is_done_at_once(options: dict[str, bool]) -> None:
    with tracked(202) as town:
        assert write(town, 1).error is None
        settled(town)
        before_s = town.world.now_ns
        progress = repair(town, 2, **options)
        assert town.world.now_ns - before_s < 2_000_000_000
        ranges = len(town.newest.placements.ring(part(town.newest).group).ranges)
        assert progress.ranges_done == progress.ranges == ranges * (2 if options.get("full") else 1)
        assert progress.disagreements == progress.changes_sent == 0


def test_what_is_written_while_a_repair_waits_is_not_waited_for() -> None:
    with tracked(203) as town:
        lone_write(town)
        begun = begin(town)
        town.wait(2)
        (lacking,) = town.node(1).work.repairs.progress[begun.id].lacking.values()
        for number in range(20):
            assert write(town, 1, key=b"later %d" % number).error is None
        town.wait(2)
        assert list(town.node(1).work.repairs.progress[begun.id].lacking.values()) == [lacking]
        paused(town, *NODES, is_paused=False)
        assert ended(town, begun).state is RepairState.DONE


def test_a_participant_that_is_dead_is_named_and_some_hosts_alone_record_nothing() -> None:
    with tracked(204) as town:
        away(town, 3)
        assert write(town, 1).error is None
        asked = town.begin(1, lambda node: node.work.repairs.begin((part(town.newest),)))
        town.finish(asked)
        assert isinstance(asked.error, PreconditionError) and "node 3" in asked.error.message
        repair(town, 1, nodes=(NodeId(1), NodeId(2)))
        assert town.newest.repairs.tables == ()
        back(town, 3)
        repair(town, 1)
        assert rows_of(town, 3) == 10 and town.newest.repairs.tables != ()


def test_a_participant_that_dies_meanwhile_fails_the_repair() -> None:
    with tracked(205) as town:
        lone_write(town)
        begun = begin(town)
        town.wait(1)
        town.process(3).crash()
        found = ended(town, begun)
        assert found.state is RepairState.FAILED and found.reason
        assert town.newest.repairs.tables == ()


def test_a_range_with_other_replicas_fails_the_repair_and_it_may_be_asked_for_again() -> None:
    with tracked(206, 4) as town:
        lone_write(town)
        paused(town, 4)
        begun = begin(town)
        town.wait(1)
        assert running(town)
        wanted = EnqueueRequest(Decommission(NodeId(town.node(4).context.own_id())), actor="operator")
        assert town.finish(town.submit(1, wanted)).error is None
        found = ended(town, begun)
        assert found.state is RepairState.FAILED
        assert "got other replicas or bounds" in found.reason and "run the repair again" in found.reason
        paused(town, *NODES, is_paused=False)
        town.until(lambda: not town.newest.operations and not town.newest.requests.live)
        repair(town)


def test_a_wait_can_be_cancelled() -> None:
    with tracked(207) as town:
        lone_write(town)
        begun = begin(town)
        town.wait(1)
        town.finish(town.begin(2, lambda node: node.work.repairs.cancel(begun.id, "enough")))
        found = ended(town, begun)
        assert found.state is RepairState.CANCELLED and found.reason == "enough"
        town.wait(3)
        assert town.node(1).work.repairs.progress[begun.id].lacking == {}


def test_a_wait_to_which_nothing_comes_is_given_up_and_says_what_lacks() -> None:
    with replaced((id_waits, "REPAIR_IDS_STALLED_S", 5)), tracked(208) as town:
        lone_write(town)
        found = ended(town, begin(town))
        assert found.state is RepairState.FAILED
        assert "nothing came for 5 s" in found.reason and "node 2 lacks 1" in found.reason


def test_tables_of_both_kinds_are_repaired_each_in_its_way() -> None:
    with untracked(209) as town:
        assert write(town, 1).error is None
        made = CreateTable(
            "ks",
            "u",
            "00000000-0000-4000-8000-000000000003",
            COLUMNS,
            options=(("replication_type", "tracked"),),
        )
        assert town.finish(town.submit(1, ChangeSchema(made))).error is None
        town.agreed(*NODES)
        damaged(town, 3)
        progress = repair(town)
        assert rows_of(town, 3) == 10, "the untracked one is compared"
        assert progress.changes_sent == 1 and progress.disagreements == 0


def full_repair_of_damage() -> None:
    """Rows are gone from one node's tables, and its ids claim them."""
    with tracked(210) as town:
        assert write(town, 1).error is None
        settled(town)
        damaged(town, 3)
        assert repair(town).disagreements == 0, "a wait looks at no data"
        assert rows_of(town, 3) == 0
        progress = repair(town, 2, full=True)
        assert rows_of(town, 3) == 10
        assert progress.disagreements == 1
        (found,) = progress.named.values()
        assert (found.lacks, found.holds, found.wrong) == (((3, 10),), (1, 2), "data")
        assert (found.keyspace, found.table, found.key) == ("ks", "t", KEY)
        assert found.range.contains(token_of(KEY))
        (condition,) = [
            one for one in town.node(2).context.conditions.current() if one.code == "IDS_AND_DATA_DISAGREE"
        ]
        assert condition.subject == "ks.t" and "node 3" in condition.detail
        assert rows_read(town, 3) == [b"v"] * 10
        assert repair(town, 2, full=True).disagreements == 0
        assert not [
            one for one in town.node(2).context.conditions.current() if one.code == "IDS_AND_DATA_DISAGREE"
        ]


def test_a_full_repair_names_the_replica_whose_data_lacks_what_its_ids_claim() -> None:
    full_repair_of_damage()


def test_rows_that_one_replica_has_without_an_id_come_to_all_and_its_ids_are_called_wrong() -> None:
    with tracked(211) as town:
        assert write(town, 1).error is None
        settled(town)
        unnamed(town, 2, b"other")
        progress = repair(town, 1, full=True)
        (found,) = progress.named.values()
        assert (found.lacks, found.holds, found.wrong) == (((1, 10), (3, 10)), (2,), "ids")
        assert [rows_of(town, number, b"other") for number in NODES] == [10, 10, 10]


def full_repair_under_load() -> None:
    """Writes under way differ between replicas, and are no disagreement: one node stores a hundred a second
    that the others get by reconciliation alone."""
    with tracked(212) as town:
        assert write(town, 1).error is None
        settled(town)

        async def load(node: Node) -> None:
            data = node.data
            for number in range(2000):
                at_us = node.runtime.clock.wall_us()
                key = b"k%d" % (number % 40)
                change = Change("t", key, at_us, QUORUM, 1, ((number % 10, b"%d" % number),))
                made = mutation_for(change, table_of(node), data.new_mutation_id(), 1)
                data.replica.keeping.give(data.coordinator.plans.plan_of(made, QUORUM), made)
                await asyncio.sleep(0.01)

        town.begin(1, load)
        town.wait(1)
        for _ in range(4):
            progress = repair(town, 2, full=True)
            assert progress.leaves_different > 0, "something was under way"
            assert (progress.disagreements, progress.changes_sent) == (0, 0), progress.named


def test_what_is_under_way_is_no_disagreement() -> None:
    full_repair_under_load()


def test_a_table_on_its_way_to_being_tracked_is_compared_and_then_waited_for() -> None:
    with untracked(213) as town:
        assert write(town, 1).error is None
        damaged(town, 2)
        altered(town, "tracked", *NODES)
        progress = repair(town)
        assert rows_of(town, 2) == 10 and progress.leaves > 0
        town.agreed(*NODES)
        assert by_ids(town, 1)
        assert repair(town).leaves == 0


def test_a_witness_is_waited_for_and_compared_with_nobody() -> None:
    with witnessed(214) as town:
        full, (witness,) = roles(town, KEY)
        assert write(town, 1).error is None
        until_reconciled(town)
        assert repair(town, witness, full=True).disagreements == 0
        damaged(town, full[0])
        progress = repair(town, witness, full=True)
        (found,) = progress.named.values()
        assert [number_of(town, node) for node, _ in found.lacks] == [full[0]]
        assert [number_of(town, node) for node in found.holds] == [full[1]]
        assert sorted(rows_of(town, number) for number in NODES) == [0, 10, 10]


def until_reconciled(town: Town) -> None:
    town.until(lambda: not any(unreconciled(town, number) for number in NODES))


def number_of(town: Town, node: int) -> int:
    return next(int(name[1:]) for name, one in town.nodes.items() if int(one.context.own_id()) == node)


def test_who_is_getting_a_cohort_is_waited_for() -> None:
    with with_cohort(215) as town:
        back(town, 3)
        hasty(town, 3)
        progress = repair(town, full=True)
        assert progress.disagreements == 0
        assert rows_of(town, 3, b"k6") == 10
        assert held(town, 3) == held(town, 1)


def test_tablets_stay_where_they_are_while_a_repair_waits_for_them() -> None:
    with tablets.tracked(216) as town:
        paused(town, 1, 2, 3, 4)
        holder = int(tablets.tablet_of(town, KEY).group.reads[0])
        tablets.lone(town, KEY, tablets.own_number(town, holder))
        group = tablets.group_of(town)
        wanted = RepairPart("ks", group, (table_of(town.node(1)).id,), (FULL_RING,))
        asked = town.finish(town.begin(1, lambda node: node.work.repairs.begin((wanted,))))
        assert asked.error is None, asked.error
        town.wait(2)
        (lacking,) = town.node(1).work.repairs.progress[asked.value.id].lacking.values()
        assert lacking == 2
        refused = town.finish(town.submit(1, AskResize(group, ResizeKind.SPLIT)))
        town.wait(5)
        assert refused.error is None and town.newest.placements.ring(group).count == tablets.TABLETS
        paused(town, 1, 2, 3, 4, is_paused=False)
        assert ended(town, asked.value).state is RepairState.DONE
        assert set(tablets.own_rows(town, KEY).values()) == {10}
        town.until(lambda: town.newest.placements.ring(group).count == 2 * tablets.TABLETS, 120)


def test_what_a_repair_would_do_and_has_found_is_told() -> None:
    with tracked(217) as town:
        assert write(town, 1).error is None
        settled(town)
        damaged(town, 2)
        requests = RepairRequests(town.node(1).services)

        def told(body: dict[str, Any]) -> dict[str, Any]:
            asked = town.finish(town.begin(1, lambda _: requests.submit({"keyspace": "ks", **body})))
            assert asked.error is None, asked.error
            document: dict[str, Any] = asked.value
            return document

        plan = told({"dry_run": True})
        assert [step for step in plan["steps"] if "wait until all replicas hold" in step]
        assert not [step for step in plan["steps"] if "hashes" in step] and plan["refused"] is None
        assert {one["bytes"] for one in plan["participants"]} == {0}
        assert plan["keyspaces"][0]["ranges"] == len(
            town.newest.placements.ring(part(town.newest).group).ranges
        )
        assert [step for step in told({"dry_run": True, "full": True})["steps"] if "hashes" in step]
        run = told({"full": True})
        town.until(lambda: not running(town))
        ended_ = read(RepairDocument, requests.one(str(run["id"])))
        assert ended_.progress is not None and ended_.progress.disagreements == 1
        (found,) = ended_.progress.disagree
        assert (found.lacks[0].node, found.lacks[0].count, found.wrong) == (2, 10, "data")
        rows = [row for row in repair_rows(town.node(1).services) if row["id"] == run["id"]]
        assert [(row["ids_lacking"], row["disagreements"]) for row in rows] == [(0, 1)]
        samples = {one.name: one.value for one in tracking_samples(town.node(1).services)}
        assert samples["lockstep_tracking_disagreements_total"] == 1
        refused = town.finish(
            town.begin(1, lambda _: requests.submit({"keyspace": "ks", "full": True, "incremental": True}))
        )
        assert isinstance(refused.error, ConfigurationError)


def test_a_participant_tells_only_of_ranges_as_they_are_and_of_tables_that_lost_nothing() -> None:
    with tracked(218) as town:
        lone_write(town)
        begun = begin(town)
        town.agreed(*NODES)
        group = part(town.newest).group
        placed = town.newest.placements.ring(group).range_at(token_of(KEY))
        right = AskedRange(placed.range.left, placed.range.right, placed.group.epoch)

        def told(number: int, *ranges: AskedRange, session: str = begun.session_id) -> Outcome:
            ask = AskIds(session, town.newest.epoch, group, ranges)
            return town.finish(town.begin(number, lambda node: node.data.id_participant.ids(ask)))

        assert [held_.count for held_ in told(1, right).value.held] == [1]
        assert [held_.count for held_ in told(2, right).value.held] == [0]
        for wrong in (
            replace(right, since=right.since + 1),
            replace(right, left=right.left + 1),
            replace(right, right=right.right - 1),
        ):
            assert isinstance(told(1, right, wrong).error, NotReplica)
        assert isinstance(told(1, right, session="repair-77").error, SessionClosed)
        town.node(1).data.tracked_ranges._tracked.is_filled = lambda: False
        assert isinstance(told(1, right).error, RangeLacking)


def test_a_large_partition_is_looked_at_page_by_page() -> None:
    few = replaced((repairs, "PAGE_ROWS_MAX", 3), (data_against_ids, "PAGE_ROWS_MAX", 2))
    with few, tracked(219) as town:
        assert write(town, 1).error is None
        assert write(town, 1, key=b"another").error is None
        settled(town)
        damaged(town, 1)
        progress = repair(town, 3, full=True)
        assert (progress.disagreements, len(progress.named)) == (1, 1)
        (found,) = progress.named.values()
        assert (found.lacks, found.holds) == (((1, 10),), (2, 3))
        assert [rows_of(town, number) for number in NODES] == [10, 10, 10]


@pytest.mark.parametrize("gone", [{"delete_rows": (2, 5)}, {"delete_row": 3}, {"delete_partition": True}])
def test_deletions_that_one_replica_lacks_are_found_too(gone: dict[str, Any]) -> None:
    with tracked(220) as town:
        assert write(town, 1).error is None
        settled(town)

        at_us = town.node(1).runtime.clock.wall_us()
        change = Change("t", KEY, at_us, QUORUM, 1, **gone)

        async def delete(node: Node) -> None:
            made = mutation_for(change, table_of(node), node.data.new_mutation_id(), at_us // 1_000_000)
            await node.data.engine.synced(node.data.engine.apply(made))

        for number in (1, 2):
            assert town.finish(town.begin(number, delete)).error is None
        progress = repair(town, 1, full=True)
        (found,) = progress.named.values()
        assert [node for node, _ in found.lacks] == [3] and found.wrong == "data"
        assert repair(town, 1, full=True).disagreements == 0
