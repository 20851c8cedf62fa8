"""Replicas that are away for long: what the others hold goes to a cohort, and who is back gets its rows."""

from __future__ import annotations

from msgspec.structs import replace

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import EmptyTable
from lockstep.server.admin import reconcile
from lockstep.server.views.tracking_views import journal_rows
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.storage.shard_logs import Shard, Taking
from lockstep.tracking.held import held_of
from lockstep.tracking.intervals import of
from lockstep.values.errors import ReadTimeout
from lockstep.values.node_limits import RECONCILE_ALL_EVERY
from lockstep.values.rows import Mutation
from lockstep.values.tokens import token_of
from tests.node.support import Town
from tests.node.test_hints import away, back, pending
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import (
    ALL,
    ONE,
    QUORUM,
    ROWS,
    TIMEOUT_MS,
    held,
    isolated,
    looked_for,
    paused,
    rows_of,
    rows_read,
    settled,
    tracked,
    unreconciled,
    write,
)
from tests.node.test_witness_decisions import serial_rows

AFTER_S = 5.0


def hasty(town: Town, *numbers: int) -> None:
    """Have these nodes take a silent replica to be away soon."""
    for number in numbers:
        town.node(number).data.reconciler.cohort_after_s = AFTER_S


def apart(town: Town, number: int) -> int:
    """Ids that a node has no entries of while a replica is away."""
    journal = town.node(number).data.reconciler.journal
    journal.validate()
    return sum(logs.apart.count for logs in journal.shards.values())


def collapsed(town: Town, *numbers: int) -> None:
    """Wait until these nodes have no entries."""
    town.until(lambda: not any(unreconciled(town, number) for number in numbers))


def with_cohort(seed: int, count: int = 20) -> Town:
    """Nodes of which the third is away, and the others keep apart what was written meanwhile."""
    town = tracked(seed)
    hasty(town, 1, 2, 3)
    assert write(town, 1, ALL, b"old").error is None
    settled(town)
    away(town, 3)
    for number in range(count):
        assert write(town, 1 + number % 2, value=b"%d" % number, key=b"k%d" % (number % 7)).error is None
    collapsed(town, 1, 2)
    assert apart(town, 1) == apart(town, 2) == count
    return town


def whole(town: Town) -> None:
    """Wait until nothing is apart, nor got, any more."""
    settled(town)
    journals = [town.node(number).data.reconciler.journal for number in (1, 2, 3)]
    town.until(lambda: not any(apart(town, n) for n in (1, 2, 3)))
    town.until(lambda: not any(logs.taking for journal in journals for logs in journal.shards.values()))


def test_scenario_14_a_long_outage_leaves_no_entries_and_who_is_back_gets_the_rows() -> None:
    with with_cohort(1) as town:
        journal = town.node(1).data.reconciler.journal
        assert journal.entry_count == journal.estimated_bytes(journal.entry_count) == 0
        assert pending(town, 1, 2) == 0
        listed = [row for row in journal_rows(town.node(1)) if row["in_cohorts"]]
        assert sum(row["in_cohorts"] for row in listed) == 20 and {row["kept_for"] for row in listed} == {
            (3,)
        }
        assert rows_read(town, 2, key=b"k6") == [b"13"] * 10
        back(town, 3)
        hasty(town, 3)
        whole(town)
        cohorts = town.node(3).data.reconciler.cohorts
        assert held(town, 1) == held(town, 2) == held(town, 3)
        assert rows_of(town, 3, b"k6") == 10 and cohorts.claimed == 20
        assert cohorts.bytes > 0


def test_a_replica_in_a_cohort_lacks_since_what_it_missed_first() -> None:
    """Mutations of now have entries, and those in the cohort none."""
    with tracked(3) as town:
        hasty(town, 1, 2)
        assert write(town, 1, ALL).error is None
        town.wait(2.5 * RECONCILE_ALL_EVERY)
        away(town, 3)
        for _ in range(20):
            assert write(town, 1).error is None
        collapsed(town, 1, 2)
        town.wait(600.0)
        assert write(town, 1).error is None
        node = town.node(1)

        def told() -> list[tuple[int, int | None]]:
            document = reconcile._document(node)
            return [(lag["lacks"], lag["lacks_s"]) for lag in document["lags"] if lag["node"] == 3]

        ((lacks, age_s),) = told()
        assert lacks == 21 and age_s is not None and 600 <= age_s < 600 + 2 * RECONCILE_ALL_EVERY
        # As after a start, when that moment is not known any more.
        node.data.reconciler.moments.complete_us.clear()
        ((_, age_s),) = told()
        assert age_s is not None and 600 <= age_s < 620


def test_a_read_goes_on_while_one_replica_has_let_go_of_entries_of_others_and_another_has_them() -> None:
    """Of what is apart nobody can say of which partition it is; of entries that is known."""
    with with_cohort(8) as town:
        paused(town, 2)
        assert write(town, 2, key=b"beside").error is None
        collapsed(town, 1)
        assert apart(town, 1) == 21 and unreconciled(town, 2) == 1
        anew = town.world.probes.counts.get("read.tracked_anew", 0)
        for number in (1, 2):
            assert rows_read(town, number, key=b"k6") == [b"13"] * 10
            assert serial_rows(town, number, b"k6") == 10
        assert town.world.probes.counts.get("read.tracked_anew", 0) == anew


def test_a_read_goes_on_while_one_replica_has_let_go_of_entries_for_the_first_time() -> None:
    with tracked(9) as town:
        assert write(town, 1, ALL, b"old").error is None
        settled(town)
        away(town, 3)
        for number in range(20):
            if number == 4:
                # Ranges that are written first from here on have never seen a round there.
                town.wait(3.0)
                paused(town, 2)
                hasty(town, 1)
            key = b"k%d" % (number % 7)
            assert write(town, 1 + number % 2, value=b"%d" % number, key=key).error is None
        collapsed(town, 1)
        assert apart(town, 1) == unreconciled(town, 2) == 20 and not apart(town, 2)
        for number in (1, 2):
            assert rows_read(town, number, key=b"k6") == [b"13"] * 10
            assert serial_rows(town, number, b"k6") == 10


def test_what_is_apart_is_known_again_after_a_start() -> None:
    with with_cohort(2) as town:
        assert write(town, 1, key=b"last").error is None
        for number in (1, 2):
            town.process(number).crash("power")
            back(town, number)
        assert apart(town, 1) == apart(town, 2) == 20 and unreconciled(town, 1) == 1
        back(town, 3)
        whole(town)
        assert rows_of(town, 3, b"k3") == 10


def test_scenario_15_absences_overlap_and_each_gets_what_it_missed() -> None:
    with with_cohort(3) as town:
        back(town, 3)
        hasty(town, 3)
        paused(town, 3)
        away(town, 2, (1, 3))
        # Node 3 has nothing of the first cohort yet: what it and node 1 hold goes to another one.
        for number in range(6):
            assert write(town, 1, value=b"late%d" % number, key=b"m%d" % number).error is None
        paused(town, 3, is_paused=False)
        collapsed(town, 1, 3)
        back(town, 2)
        whole(town)
        assert held(town, 1) == held(town, 2) == held(town, 3)
        for number in (1, 2, 3):
            assert rows_of(town, number, b"m5") == rows_of(town, number, b"k5") == 10


def test_a_replica_that_is_back_answers_with_data_only_once_it_has_the_cohort() -> None:
    with with_cohort(4) as town:
        back(town, 3)
        paused(town, 1, 2, 3)
        town.node(3).data.reconciler.cohorts.offers = {}
        assert rows_of(town, 3, b"k6") == 0
        isolated(town, 1, (2, 3))
        # Its own answer lacks the cohort, the other one's does not; both of which later reads ask have it.
        assert rows_read(town, 3, key=b"k6") == [b"13"] * 10
        assert rows_of(town, 3, b"k6") == 0
        isolated(town, 1, (2, 3), heal=True)
        paused(town, 1, 2, 3, is_paused=False)
        whole(town)
        assert rows_of(town, 3, b"k6") == 10


def test_who_gets_what_it_missed_shows_nobody_its_tables() -> None:
    with tracked(5) as town:
        assert write(town, 1, ALL).error is None
        settled(town)
        journal = town.node(3).data.reconciler.journal
        (shard,) = journal.shards
        paused(town, 1, 2, 3)
        journal.take_from(shard, Taking((1,)))
        assert rows_read(town, 3) == [b"v"] * 10
        isolated(town, 3, (1, 2))
        assert len(rows_read(town, 3, level=ONE)) == 10, "nothing is promised at ONE"
        isolated(town, 3, (1, 2), heal=True)
        paused(town, 1, 2, 3, is_paused=False)
        whole(town)
        assert journal.taking(shard) is None


def test_where_each_replica_lacks_something_a_read_waits_until_one_has_it() -> None:
    with with_cohort(6) as town:
        back(town, 3)
        paused(town, 1, 2, 3)
        journal = town.node(3).data.reconciler.journal
        shard = shard_of(town)
        # As if node 3 and others had collapsed something that nodes 1 and 2 lack.
        own = mutation_of(town.node(3))
        given = journal.give(shard, own, 1)
        journal.set_apart(shard, held_of({given.log: of([given.offset])}))
        assert journal.apart(shard).count == 1
        isolated(town, 1, (2, 3))
        assert isinstance(failed_read(town, 3), ReadTimeout)
        isolated(town, 1, (2, 3), heal=True)
        paused(town, 1, 2, 3, is_paused=False)
        whole(town)
        assert rows_read(town, 1, key=b"k6") == [b"o"] * 10
        assert [rows_of(town, number, b"k6") for number in (1, 2, 3)] == [10, 10, 10]


def shard_of(town: Town) -> Shard:
    node = town.node(3)
    plan = node.data.coordinator.plans.read_plan(table_of(node).id, token_of(b"k6"), QUORUM)
    assert plan.shard is not None
    return plan.shard


def mutation_of(node: Node) -> Mutation:
    change = Change("t", b"k6", node.runtime.clock.wall_us(), QUORUM, 1, tuple((row, b"o") for row in ROWS))
    return mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)


def failed_read(town: Town, number: int) -> object:
    async def work(node: Node) -> None:
        await node.data.coordinator.read(looked_for(node, None, b"k6"), QUORUM, TIMEOUT_MS)

    return town.finish(town.begin(number, work)).error


def test_scenario_20_no_tombstone_goes_while_a_cohort_is_not_everywhere() -> None:
    with with_cohort(7) as town:
        reconciler, table = town.node(1).data.reconciler, table_of(town.node(1))
        token = looked_for(town.node(1), None, b"k6").right
        since_s = town.node(1).runtime.clock.wall_us() // 1_000_000
        town.wait(200)
        before_s = reconciler.purge_before_s(table, token)
        assert before_s is not None and before_s < since_s - 20, "nothing of the outage is purged"
        back(town, 3)
        whole(town)
        town.wait(200)
        before_s = reconciler.purge_before_s(table, token)
        assert before_s is not None and before_s > since_s


def test_what_was_truncated_while_a_replica_was_away_stays_so() -> None:
    with with_cohort(8) as town:
        assert town.finish(town.submit(2, ChangeSchema(EmptyTable("ks", "t")))).error is None
        town.agreed(1, 2)
        back(town, 3)
        whole(town)
        assert held(town, 1) == held(town, 3)
        assert [rows_read(town, number, key=b"k6") for number in (1, 2, 3)] == [[], [], []]


def test_too_few_that_are_there_let_go_of_nothing() -> None:
    with tracked(9) as town:
        hasty(town, 1, 2, 3)
        assert write(town, 1, ALL).error is None
        settled(town)
        away(town, 2, (1, 3))
        away(town, 3, (1,))
        assert write(town, 1, ONE).error is None
        town.wait(3 * AFTER_S)
        assert unreconciled(town, 1) == 1 and apart(town, 1) == 0


def test_a_replica_that_starts_again_soon_gets_single_mutations() -> None:
    with tracked(10) as town:
        town.node(1).data.reconciler.cohort_after_s = 1000.0
        town.node(2).data.reconciler.cohort_after_s = 1000.0
        away(town, 3)
        assert write(town, 1).error is None
        town.wait(10)
        assert unreconciled(town, 1) == 1 and apart(town, 1) == 0
        back(town, 3)
        settled(town)
        assert town.node(3).data.reconciler.cohorts.claimed == 0


def test_what_was_joined_of_two_ranges_is_told_of_only_by_entries() -> None:
    with with_cohort(11) as town:
        journal = town.node(1).data.reconciler.journal
        shard = next(shard for shard in journal.shards if journal.apart(shard))
        count = journal.apart(shard).count
        journal.take_from(shard, Taking((2,), is_joined=True))
        reconciler, cluster = town.node(1).data.reconciler, town.node(1).log.cluster
        told = reconciler._told_of(cluster, shard, journal.held(shard))
        assert not told.held and not told.apart
        journal.take_from(shard, replace(journal.taking(shard) or Taking(()), is_joined=False))
        assert reconciler._told_of(cluster, shard, journal.held(shard)).apart.count == count
        back(town, 3)
        whole(town)


def test_what_a_replica_told_before_it_was_filled_goes_to_no_cohort() -> None:
    """It told in a round, and is filled in the same one: what it told is void."""
    with tracked(17) as town:
        hasty(town, 1)
        assert write(town, 1, ALL, b"old").error is None
        settled(town)
        away(town, 3)
        reconciler, own_ids = town.node(1).data.reconciler, [town.node(n).context.own_id() for n in (2, 3)]
        paused(town, 1, 2)
        assert write(town, 1).error is None
        town.until(lambda: not town.node(1).context.alive(own_ids[1]))
        town.wait(2 * AFTER_S)
        shard = shard_of(town)
        held_here, cluster = reconciler.journal.held(shard), town.node(1).log.cluster
        reconciler._is_away(own_ids[1])
        town.wait(2 * AFTER_S)
        assert reconciler._is_away(own_ids[1])
        reconciler.void(shard, own_ids[0])
        reconciler._part(cluster, shard, held_here, {own_ids[0]})
        assert apart(town, 1) == 0 and unreconciled(town, 1) == 1


def test_what_was_to_come_from_a_replica_that_left_comes_from_the_others() -> None:
    with tracked(12) as town:
        assert write(town, 1, ALL).error is None
        settled(town)
        reconciler = town.node(1).data.reconciler
        (shard,) = (shard for shard, logs in reconciler.journal.shards.items() if logs.held)
        others = tuple(sorted(int(town.node(number).context.own_id()) for number in (2, 3)))
        for left, now in (((99,), others), ((99, others[0]), others), ((others[0],), others[:1])):
            reconciler.journal.take_from(shard, Taking(left))
            reconciler.fit(town.node(1).log.cluster)
            assert reconciler.journal.taking(shard) == Taking(now)
            town.until(lambda: reconciler.journal.taking(shard) is None)
