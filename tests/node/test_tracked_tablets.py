"""Tracked tables whose ranges are tablets: these move, split and merge, and each takes its ids along."""

from __future__ import annotations

from msgspec.structs import replace

from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.tablets import ResizePhase
from lockstep.node.node import Node
from lockstep.placement.placements import PlacedRange
from lockstep.placement.tablets.resize import ResizeKind
from lockstep.schema.changes import AlterKeyspace, CreateKeyspace, CreateTable, DropTable
from lockstep.schema.model import Replication
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.storage.shard_logs import Taking
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.tablets.asked import AskResize
from lockstep.topology.tablets.balancing import SetBalancing
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.values.ids import NodeId
from lockstep.values.tokens import token_of
from tests.node.support import Town, leave
from tests.node.test_hints import away, back
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import (
    ALL,
    COLUMNS,
    ONE,
    QUORUM,
    ROWS,
    paused,
    rows_of,
    rows_read,
    unreconciled,
    write,
)
from tests.node.test_tracked_cohorts import apart, hasty
from tests.node.test_tracked_moves import KEYS, LONE, alike, comes

SPREAD = (("class", "NetworkTopologyStrategy"), ("dc1", "3"))
TABLETS = 4


def tracked(seed: int, nodes: int = 4, *, is_balanced: bool = False, word: str = "tracked") -> Town:
    """Nodes with a tracked table on tablets, which move when they are told to."""
    town = Town(seed, nodes)
    town.found()
    tablets = (("initial", str(TABLETS)),)
    changes = [
        ChangeSchema(CreateKeyspace("ks", SPREAD, tablets=tablets, replication_type=word)),
        ChangeSchema(CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS)),
    ]
    for change in changes if is_balanced else (SetBalancing(False), *changes):
        assert town.finish(town.submit(1, change)).error is None
    town.agreed(*range(1, nodes + 1))
    return town


def group_of(town: Town) -> int:
    (group,) = town.newest.tablets.groups
    return group.id


def tablet_of(town: Town, key: bytes) -> PlacedRange:
    return town.newest.placements.ring(group_of(town)).range_at(token_of(key))


def own_number(town: Town, node: int) -> int:
    """The number of the process of a node."""
    return next(int(name[1:]) for name, one in town.nodes.items() if int(one.context.own_id()) == node)


def moved(town: Town, key: bytes, source: int, target: int) -> None:
    """Have the tablet of a partition go from one node to another, to its end."""
    right = tablet_of(town, key).range.right
    move = TabletMove(group_of(town), right, "migration", (NodeId(source), 0), (NodeId(target), 0))
    outcome = town.finish(town.submit(1, BeginMoves(0, (move,))))
    assert outcome.error is None, outcome.error
    town.until(lambda: not town.newest.transitions.count, 120)
    assert target in tablet_of(town, key).group.reads and source not in tablet_of(town, key).group.reads


def spare(town: Town, key: bytes) -> int:
    """The node of four that is no replica of a partition."""
    (found,) = {1, 2, 3, 4} - {int(node) for node in tablet_of(town, key).group.reads}
    return found


def resized(town: Town, kind: ResizeKind, count: int) -> None:
    outcome = town.finish(town.submit(1, AskResize(group_of(town), kind)))
    assert outcome.error is None, outcome.error

    def is_done() -> bool:
        (group,) = town.newest.tablets.groups
        return group.head.resizing.phase is ResizePhase.NONE

    town.until(is_done, 120)
    assert town.newest.placements.ring(group_of(town)).count == count
    town.agreed(*(int(name[1:]) for name in town.nodes if town.process(int(name[1:])).alive))


def own_rows(town: Town, key: bytes) -> dict[int, int]:
    """Rows that each replica of a partition holds by itself."""
    return {
        int(node): rows_of(town, own_number(town, node), key) for node in tablet_of(town, key).group.reads
    }


def whole(town: Town, keys: tuple[bytes, ...] = KEYS, value: bytes = b"v") -> None:
    """Each replica has all rows of each partition, and so says every node."""
    for number, key in enumerate(keys):
        assert set(own_rows(town, key).values()) == {10}
        assert rows_read(town, 1 + number % 4, key=key) == [value] * 10


def test_each_tablet_has_logs_of_its_own_and_lets_go_of_what_all_its_replicas_hold() -> None:
    with tracked(61) as town:
        for number, key in enumerate(KEYS):
            assert write(town, 1 + number % 4, key=key).error is None
        alike(town, 1, 2, 3, 4)
        group, rights = group_of(town), {tablet_of(town, key).range.right for key in KEYS}
        assert len(rights) > 1
        found = {shard for n in (1, 2, 3, 4) for shard in town.node(n).data.reconciler.journal.shards}
        assert found == {(group, right) for right in rights}
        whole(town)


def test_what_was_open_at_a_start_is_brought_afterwards() -> None:
    with tracked(62) as town:
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 1, ALL, key=key).error is None
        opened = unreconciled(town, 2)
        assert opened > 0
        away(town, 2, (1, 3, 4))
        for key in KEYS:
            assert write(town, 1, value=b"w", key=key).error is None
        back(town, 2)
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, value=b"w")


def test_a_tablet_that_moves_takes_along_what_is_reconciled_and_what_is_not() -> None:
    with tracked(63) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        alike(town, 1, 2, 3, 4)
        paused(town, 1, 2, 3, 4)
        for key in KEYS[:4]:
            assert write(town, 1, value=b"w", key=key).error is None
        source, target = int(tablet_of(town, KEYS[0]).group.reads[0]), spare(town, KEYS[0])
        moved(town, KEYS[0], source, target)
        number, right = own_number(town, target), tablet_of(town, KEYS[0]).range.right
        journal = town.node(number).data.reconciler.journal
        journal.validate()
        logs = journal.logs_of((group_of(town), right))
        assert logs.reconciled and logs.open, "both are known of what was streamed"
        assert rows_read(town, number, level=ONE, key=KEYS[0]) == [b"w"] * 10, "it answers alone"
        gone = town.node(own_number(town, source)).data.reconciler.journal
        assert (group_of(town), right) not in gone.shards
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, KEYS[:4], b"w")
        whole(town, KEYS[4:])


def test_a_write_that_one_read_has_shown_outlives_the_move_of_its_only_giver() -> None:
    with tracked(64) as town:
        holder = int(tablet_of(town, LONE[0]).group.reads[0])
        others = [int(node) for node in tablet_of(town, LONE[0]).group.reads[1:]]
        paused(town, 1, 2, 3, 4)
        lone(town, LONE[0], own_number(town, holder))
        assert rows_read(town, own_number(town, holder), key=LONE[0]) == [b"v"] * 10
        moved(town, LONE[0], holder, spare(town, LONE[0]))
        for node in others:
            assert rows_read(town, own_number(town, node), key=LONE[0]) == [b"v"] * 10


def lone(town: Town, key: bytes, number: int) -> None:
    """A write that its first replica alone has, and nobody was told of."""

    async def work(node: Node) -> None:
        data = node.data
        change = Change("t", key, node.runtime.clock.wall_us(), QUORUM, 1, tuple((row, b"v") for row in ROWS))
        made = mutation_for(change, table_of(node), data.new_mutation_id(), 1)
        data.replica.keeping.give(data.coordinator.plans.plan_of(made, QUORUM), made)

    town.finish(town.begin(number, work))


def test_a_tablet_that_goes_and_comes_back_claims_nothing_of_what_was_wiped() -> None:
    with tracked(65) as town:
        key = KEYS[0]
        assert write(town, 1, key=key).error is None
        alike(town, 1, 2, 3, 4)
        source, target = int(tablet_of(town, key).group.reads[0]), spare(town, key)
        moved(town, key, source, target)
        assert write(town, 1, value=b"w", key=key).error is None
        moved(town, key, target, source)
        assert write(town, 1, value=b"x", key=key).error is None
        alike(town, 1, 2, 3, 4)
        whole(town, (key,), b"x")


def test_a_split_divides_open_ids_and_a_merge_joins_them() -> None:
    with tracked(66) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        alike(town, 1, 2, 3, 4)
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 2, value=b"w", key=key).error is None
        opened = sum(unreconciled(town, number) for number in (1, 2, 3, 4))
        resized(town, ResizeKind.SPLIT, 2 * TABLETS)
        assert sum(unreconciled(town, number) for number in (1, 2, 3, 4)) == opened
        for key in KEYS[:4]:
            assert write(town, 3, value=b"x", key=key).error is None
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, KEYS[:4], b"x")
        whole(town, KEYS[4:], b"w")
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 1, value=b"y", key=key).error is None
        resized(town, ResizeKind.MERGE, TABLETS)
        assert write(town, 1, value=b"z", key=KEYS[0]).error is None
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, KEYS[1:], b"y")
        whole(town, KEYS[:1], b"z")


def test_tablets_are_cut_once_nobody_is_getting_what_it_missed_of_them() -> None:
    with tracked(76) as town:
        assert write(town, 1, key=KEYS[0]).error is None
        alike(town, 1, 2, 3, 4)
        source, lagging = (own_number(town, node) for node in tablet_of(town, KEYS[0]).group.reads[:2])
        shard = group_of(town), tablet_of(town, KEYS[0]).range.right
        journal = town.node(lagging).data.reconciler.journal
        town.node(lagging).data.reconciler.is_paused = True
        journal.take_from(shard, Taking((int(town.node(source).context.own_id()),)))
        assert town.finish(town.submit(1, AskResize(shard[0], ResizeKind.SPLIT))).error is None
        town.wait(10)
        assert town.newest.placements.ring(shard[0]).count == TABLETS
        journal.take_from(shard, None)
        town.until(lambda: town.newest.placements.ring(shard[0]).count == 2 * TABLETS)


def test_halves_of_which_one_moved_are_joined_whole() -> None:
    with tracked(67) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        paused(town, 1, 2, 3, 4)
        resized(town, ResizeKind.SPLIT, 2 * TABLETS)
        key = KEYS[0]
        source, target = int(tablet_of(town, key).group.reads[0]), spare(town, key)
        moved(town, key, source, target)
        for other in KEYS:
            assert write(town, 2, value=b"w", key=other).error is None
        assert town.finish(town.submit(1, SetBalancing(True))).error is None
        resized(town, ResizeKind.MERGE, TABLETS)
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)
        whole(town, value=b"w")


def test_a_replica_that_was_away_during_a_split_gets_what_it_missed_of_the_tablets_of_now() -> None:
    with tracked(68) as town:
        for key in KEYS:
            assert write(town, 1, ALL, key=key).error is None
        resized(town, ResizeKind.SPLIT, 2 * TABLETS)
        away(town, 4, (1, 2, 3))
        for key in KEYS:
            assert write(town, 1, value=b"w", key=key).error is None
        back(town, 4)
        alike(town, 1, 2, 3, 4)
        whole(town, value=b"w")


def test_a_factor_that_grows_and_shrinks_takes_the_ids_along() -> None:
    with tracked(69) as town:
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        for factor in (4, 3):
            target = Replication("NetworkTopologyStrategy", (("dc1", factor),))
            outcome = town.finish(
                town.submit(1, EnqueueRequest(ReplicationChange("ks", target), actor="operator"))
            )
            assert outcome.error is None, outcome.error
            town.until(lambda: not town.newest.requests.live, 200)
            whole(town)
        paused(town, 1, 2, 3, 4, is_paused=False)
        alike(town, 1, 2, 3, 4)


def test_who_joins_gets_tablets_and_who_leaves_gives_them_up_while_much_is_open() -> None:
    with tracked(70, 3, is_balanced=True) as town:
        paused(town, 1, 2, 3)
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        comes(town, 4)
        town.until(lambda: bool(own_tablets(town, 4)) and not town.newest.transitions.count, 200)
        whole(town)
        paused(town, 4)
        for key in KEYS:
            assert write(town, 1, value=b"w", key=key).error is None
        assert town.finish(town.submit(1, leave(3))).error is None
        town.until(lambda: town.state_of(3) is NodeState.LEFT, 300)
        paused(town, 1, 2, 4, is_paused=False)
        alike(town, 1, 2, 4)
        for key in KEYS:
            assert set(own_rows(town, key).values()) == {10}
            assert rows_read(town, 1, key=key) == [b"w"] * 10


def own_tablets(town: Town, node: int) -> list[PlacedRange]:
    return [one for one in town.newest.placements.ring(group_of(town)).ranges if node in one.group.reads]


def test_who_is_given_up_by_force_is_replaced_from_a_quorum() -> None:
    with tracked(71, is_balanced=True) as town:
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        away(town, 4, (1, 2, 3))
        outcome = town.finish(town.submit(1, ForceRemove(NodeId(4), "it burned")))
        assert outcome.error is None, outcome.error
        town.until(lambda: not own_tablets(town, 4), 300)
        town.until(lambda: not town.newest.transitions.count, 120)
        paused(town, 1, 2, 3, is_paused=False)
        alike(town, 1, 2, 3)
        for key in KEYS:
            assert set(own_rows(town, key).values()) == {10}
            assert rows_read(town, 1, key=key) == [b"v"] * 10


def test_ids_of_a_table_that_is_dropped_go_with_its_tablets() -> None:
    with tracked(72) as town:
        paused(town, 1, 2, 3, 4)
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        assert town.finish(town.submit(1, ChangeSchema(DropTable("ks", "t")))).error is None
        town.agreed(1, 2, 3, 4)
        paused(town, 1, 2, 3, 4, is_paused=False)
        town.wait(3)
        assert [unreconciled(town, number) for number in (1, 2, 3, 4)] == [0] * 4
        assert not town.logged("reconcile.failed")


def test_a_keyspace_with_tablets_becomes_tracked_and_untracked_again() -> None:
    with tracked(73, word="untracked") as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        for wanted in ("tracked", "untracked"):
            change = ChangeSchema(AlterKeyspace("ks", replication_type=wanted))
            assert town.finish(town.submit(1, change)).error is None
            town.agreed(1, 2, 3, 4)
            for key in KEYS:
                assert write(town, 2, value=wanted.encode(), key=key).error is None
            source, target = int(tablet_of(town, KEYS[0]).group.reads[0]), spare(town, KEYS[0])
            moved(town, KEYS[0], source, target)
            for key in KEYS:
                assert rows_read(town, 3, key=key) == [wanted.encode()] * 10
        town.until(lambda: not any(unreconciled(town, number) for number in (1, 2, 3, 4)), 60)


def test_what_was_told_before_a_gap_in_the_epochs_counts_for_nothing() -> None:
    """Who installs a snapshot does not see which replicas went meanwhile, and came back emptied."""
    with tracked(74) as town:
        for key in KEYS:
            assert write(town, 1, key=key).error is None
        alike(town, 1, 2, 3, 4)
        node = town.node(1)
        ranges, cluster, journal = node.data.tracked_ranges, node.log.cluster, node.data.reconciler.journal
        assert any(journal.told.values())
        ring = cluster.placements.ring(group_of(town))
        for behind in (1, 2):
            later = cluster.epoch + behind
            placed = cluster.placements.with_rings((ring.recounted(ring.replication, later),))
            after = replace(cluster.changed(PLACEMENTS.set(placed)), epoch=later)
            ranges._applied(cluster, after, None)
            assert any(journal.told.values()) is (behind == 1)
        assert any(logs.reconciled for logs in journal.shards.values())


def test_a_newcomer_claims_a_cohort_and_gives_it_to_who_was_away() -> None:
    with tracked(75) as town:
        hasty(town, 1, 2, 3, 4)
        key = KEYS[0]
        stays, gives, absent = (own_number(town, node) for node in tablet_of(town, key).group.reads)
        target = spare(town, key)
        for value in (b"a", b"b"):
            assert write(town, stays, value=value, key=key).error is None
        alike(town, 1, 2, 3, 4)
        away(town, absent, [number for number in (1, 2, 3, 4) if number != absent])
        assert write(town, stays, value=b"w", key=key).error is None
        town.until(lambda: apart(town, stays) == apart(town, gives) == 1 and not unreconciled(town, stays))
        moved(town, key, int(town.node(gives).context.own_id()), target)
        newcomer = own_number(town, target)
        assert apart(town, newcomer) == 1 and rows_of(town, newcomer, key) == 10
        away(town, stays, (gives, newcomer))
        back(town, absent)
        shard = group_of(town), tablet_of(town, key).range.right
        lagging, full = (town.node(number).data.reconciler.journal for number in (absent, newcomer))
        town.until(lambda: lagging.held(shard) == full.held(shard) and lagging.taking(shard) is None)
        assert rows_read(town, absent, key=key) == [b"w"] * 10
        back(town, stays)
        hasty(town, stays, absent)
        alike(town, 1, 2, 3, 4)
        assert not any(apart(town, number) for number in (1, 2, 3, 4))
        whole(town, (key,), b"w")
