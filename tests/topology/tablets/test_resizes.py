"""Splits and merges of tablets: what is decided, who gets ready, and when the map becomes another one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.registry import Transformation
from lockstep.metadata.repairs import RepairPart
from lockstep.metadata.tablets import ResizePhase, Resizing
from lockstep.placement.tablets.counts import CountSettings
from lockstep.placement.tablets.load import GIB, NodeLoad, TabletLoad
from lockstep.placement.tablets.moves import Why
from lockstep.placement.tablets.resize import Resize, ResizeKind
from lockstep.topology.invariants import check_stale_coordinators, violations
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.repairs import BeginRepair
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.tablets.balancing import Planner, recut
from lockstep.topology.tablets.moves import BeginMoves
from lockstep.topology.tablets.resizes import AdvanceResize, DecideResizes, ResizeChange
from lockstep.topology.tablets.resizing import Heard, Looked, Resizer, Said
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING
from tests.metadata.histories import History
from tests.topology.lone import World
from tests.topology.tablets.worlds import begin, cluster, exclude, map_of, move

SPLIT, MERGE, NONE = ResizeKind.SPLIT, ResizeKind.MERGE, ResizeKind.NONE


def resizing(history: History) -> Resizing:
    (group,) = history.now.tablets.groups
    return group.head.resizing


def decide(history: History, resize: Resize) -> None:
    (group,) = history.now.tablets.groups
    checked(history, DecideResizes(history.now.epoch, (ResizeChange(group.id, resize),)))


def checked(history: History, entry: Transformation) -> None:
    before = history.now
    history.submit(entry)
    history.now.validate(before)
    assert violations(before, history.now) == ()
    assert check_stale_coordinators(history.values[-6:], {}) == ()


def advance(history: History, **more: object) -> None:
    (group,) = history.now.tablets.groups
    known = history.now.epoch if resizing(history).phase is ResizePhase.CLOSING else 0
    entry = AdvanceResize(group.id, resizing(history).epoch, known)
    checked(history, msgspec.structs.replace(entry, **more))


def refused(history: History, entry: Transformation) -> str:
    before = history.now
    refusal = history.tried(entry)
    assert refusal is not None and history.now is before
    return refusal.message


def together(history: History) -> None:
    """All tablets on nodes 1, 2, 3: where pairs are to be joined."""
    world = World(history, random.Random(1))
    for tablet in list(map_of(history).tablets()):
        while wanted := sorted(
            {NodeId(1), NodeId(2), NodeId(3)} - set(map_of(history).at(tablet.right).nodes)
        ):
            now = map_of(history).at(tablet.right)
            source = next(one for one in now.replicas if one[0] > 3)
            base = move(history)
            begin(
                history,
                msgspec.structs.replace(base, right=tablet.right, source=source, target=(wanted[0], 0)),
            )
            for _ in range(800):
                if not history.now.transitions.count:
                    break
                world.round()


# Entries


def test_a_split_halves_every_tablet_where_it_lies() -> None:
    history = cluster(tablets=4)
    before = map_of(history)
    decide(history, Resize(SPLIT, 1))
    assert resizing(history).phase is ResizePhase.PREPARING and map_of(history).ring is before.ring
    advance(history)
    assert resizing(history).phase is ResizePhase.CLOSING and map_of(history).ring is before.ring
    advance(history)
    assert resizing(history) == Resizing(Resize(NONE, 2), ResizePhase.SETTLING, history.now.epoch)
    after = map_of(history)
    assert after.count == 8
    halves = list(after.tablets())
    pairs = zip(halves[::2], halves[1::2], strict=True)
    for old, (left, right) in zip(before.tablets(), pairs, strict=True):
        assert left.range.left == old.range.left and right.right == old.right
        assert left.replicas == right.replicas == old.replicas
        assert left.epoch == right.epoch == history.now.epoch, "requests planned before are planned again"
    advance(history)
    assert resizing(history) == Resizing(Resize(NONE, 2), ResizePhase.NONE, history.now.epoch)
    assert history.replayed() == history.now


def test_a_merge_needs_pairs_in_the_same_places() -> None:
    history = cluster(tablets=4)
    decide(history, Resize(MERGE, 1))
    advance(history)
    (group,) = history.now.tablets.groups
    entry = AdvanceResize(group.id, resizing(history).epoch, history.now.epoch)
    assert "pairs are not in the same places" in refused(history, entry)
    advance(history, back=True)
    assert resizing(history).phase is ResizePhase.PREPARING
    together(history)
    advance(history)
    advance(history)
    assert map_of(history).count == 2 and {tablet.nodes[0] for tablet in map_of(history).tablets()} <= {
        1,
        2,
        3,
    }
    advance(history)
    assert history.replayed() == history.now


def test_some_tablets_are_split_and_merged_alone() -> None:
    history = cluster(tablets=4)
    rights = [tablet.right for tablet in map_of(history).tablets()]
    decide(history, Resize(SPLIT, 1, (rights[1],)))
    for _ in range(3):
        advance(history)
    assert map_of(history).count == 5
    middle = list(map_of(history).tablets())[1].right
    decide(history, Resize(MERGE, 3, (middle,)))
    for _ in range(3):
        advance(history)
    assert [tablet.right for tablet in map_of(history).tablets()] == rights


def test_an_odd_number_leaves_one_alone() -> None:
    history = cluster(tablets=4)
    rights = [tablet.right for tablet in map_of(history).tablets()]
    decide(history, Resize(SPLIT, 1, (rights[3],)))
    for _ in range(3):
        advance(history)
    together(history)
    decide(history, Resize(MERGE, 3, (), rights[2]))
    for _ in range(3):
        advance(history)
    assert [tablet.right for tablet in map_of(history).tablets()] == [rights[1], rights[2], rights[3]]


def test_decisions_have_the_next_number_and_stand_until_they_are_taken_back() -> None:
    history = cluster(tablets=4)
    (group,) = history.now.tablets.groups
    rights = [tablet.right for tablet in map_of(history).tablets()]

    def told(resize: Resize) -> str:
        return refused(history, DecideResizes(history.now.epoch, (ResizeChange(group.id, resize),)))

    assert "does not follow 0" in told(Resize(SPLIT, 2))
    assert "one decision stands until it is taken back" in told(Resize(NONE, 1))
    assert "a tablet of k.t is not there" in told(Resize(SPLIT, 1, (5,)))
    assert "has none behind it" in told(Resize(MERGE, 1, (rights[-1],)))
    assert "merged with both its neighbours" in told(Resize(MERGE, 1, (rights[0], rights[1])))
    assert "cannot be left alone" in told(Resize(MERGE, 1, (), rights[0]))
    assert "resized alone, each once" in told(Resize(SPLIT, 1, (rights[1], rights[0])))
    entry = DecideResizes(history.now.epoch, (ResizeChange(group.id, Resize(SPLIT, 1)),) * 2)
    assert "of each table once" in refused(history, entry)
    assert "and it is" in refused(history, msgspec.structs.replace(entry, plan_epoch=1))
    decide(history, Resize(SPLIT, 1))
    assert "one decision stands" in told(Resize(MERGE, 2))
    decide(history, Resize(NONE, 2))
    assert resizing(history).phase is ResizePhase.NONE
    decide(history, Resize(SPLIT, 3))
    advance(history)
    decide(history, Resize(NONE, 4))
    decide(history, Resize(SPLIT, 5))
    advance(history)
    advance(history)
    assert "which is not everywhere yet" in told(Resize(MERGE, 7))


def test_a_phase_is_left_once() -> None:
    history = cluster(tablets=4)
    decide(history, Resize(SPLIT, 1))
    (group,) = history.now.tablets.groups
    entry = AdvanceResize(group.id, resizing(history).epoch)
    assert "has no way back" in refused(history, msgspec.structs.replace(entry, back=True))
    checked(history, entry)
    assert "is closing since epoch" in refused(history, entry)
    late = AdvanceResize(group.id, resizing(history).epoch, 1)
    assert "was judged" in refused(history, late), "what changed since is judged anew"


def test_nothing_of_the_table_moves_when_its_map_changes() -> None:
    history = cluster(tablets=4)
    wanted, other = move(history, 0), move(history, 1)
    begin(history, wanted)
    decide(history, Resize(SPLIT, 1))
    advance(history)
    (group,) = history.now.tablets.groups
    entry = AdvanceResize(group.id, resizing(history).epoch, history.now.epoch)
    assert "1 of its tablets are on their way" in refused(history, entry)
    assert "split 1 is closing" in refused(history, BeginMoves(0, (other,)))
    world = World(history, random.Random(1))
    while history.now.transitions.count:
        world.round()
    advance(history)
    assert "is settling" in refused(history, BeginMoves(0, (move(history),)))
    advance(history)
    begin(history, move(history))


def test_what_empties_a_node_moves_all_the_same_and_the_split_waits() -> None:
    history = cluster(tablets=4)
    decide(history, Resize(SPLIT, 1))
    advance(history)
    wanted = move(history)
    history.submit(EnqueueRequest(Decommission(wanted.source[0])))
    (group,) = history.now.tablets.groups
    entry = AdvanceResize(group.id, resizing(history).epoch, history.now.epoch)
    assert f"node {wanted.source[0]} is to be emptied first" in refused(history, entry)
    begin(history, wanted)


def test_a_replica_that_is_shut_out_or_a_repair_holds_the_map() -> None:
    history = cluster(tablets=4)
    decide(history, Resize(SPLIT, 1))
    advance(history)
    (group,) = history.now.tablets.groups
    entry = AdvanceResize(group.id, resizing(history).epoch, history.now.epoch)
    table = history.now.schema.table("k", "t")
    assert table is not None
    history.submit(BeginRepair(NodeId(1), (RepairPart("k", group.id, (table.id,), (FULL_RING,)),), 1))
    assert "holds its tablets" in refused(history, entry)
    history = cluster(tablets=4)
    decide(history, Resize(SPLIT, 1))
    advance(history)
    exclude(history, map_of(history).at(0).nodes[0])
    entry = AdvanceResize(group.id, resizing(history).epoch, history.now.epoch)
    assert "is excluded" in refused(history, entry)


# What follows


class Driven:
    """A coordinator with loads that it was told, and nodes that answer it when they are asked."""

    def __init__(self, history: History, bytes_each: int, target: int = 5 * GIB) -> None:
        self.history = history
        self.planner, self.resizer = Planner(target), Resizer(CountSettings(target))
        self.said: dict[NodeId, Said] = {}
        self.dead: tuple[NodeId, ...] = ()
        self.unready: tuple[NodeId, ...] = ()
        self.at_ms = 0
        self.tell(bytes_each)

    def tell(self, bytes_each: int, rates: Sequence[float] = ()) -> None:
        made = map_of(self.history)
        loads: dict[NodeId, dict[int, TabletLoad]] = {n: {} for n in self.history.now.directory.present_ids}
        for at, tablet in enumerate(made.tablets()):
            for node in tablet.nodes:
                rate = rates[at] if rates else 0.0
                loads[node][tablet.right] = TabletLoad(bytes_each, rate / len(tablet.nodes))
        self.planner.refreshed(
            {node: NodeLoad(1000 * GIB, 0.0, {made.id: held}) for node, held in loads.items()}
        )

    def look(self) -> Looked:
        planned = self.planner.look(self.history.now, self.dead)
        return self.resizer.look(self.history.now, planned.cluster, Heard(self.said, self.dead, self.at_ms))

    def answer(self, looked: Looked) -> None:
        if looked.question is None:
            return
        now = self.history.now
        for node in looked.question.nodes:
            if node in self.dead or node in self.unready:
                continue
            ready = {
                group.id: (
                    group.head.resizing.resize.sequence,
                    frozenset(t.right for t in group.map(now.placements).tablets() if node in t.nodes),
                )
                for group in now.tablets.groups
            }
            self.said[node] = Said(now.epoch, ready)

    def once(self) -> Looked:
        looked = self.look()
        if looked.entry is not None:
            checked(self.history, looked.entry)
        self.answer(looked)
        return looked

    def run(self) -> list[ResizePhase]:
        """Until nothing is left to do."""
        seen = [resizing(self.history).phase]
        for _ in range(40):
            looked = self.once()
            if resizing(self.history).phase is not seen[-1]:
                seen.append(resizing(self.history).phase)
            if looked == Looked():
                return seen
        raise AssertionError(looked)


EVERY_PHASE = [ResizePhase(name) for name in ("none", "preparing", "closing", "settling", "none")]


def test_large_tablets_are_split_once_all_replicas_are_ready() -> None:
    history = cluster(tablets=4)
    driven = Driven(history, 11 * GIB)
    assert driven.run() == EVERY_PHASE and map_of(history).count == 8
    assert driven.planner.statistics.tablet(map_of(history).id, 0 - 1, map_of(history).at(-1).nodes).bytes
    assert driven.look() == Looked(), "halves have the right size"
    driven.tell(2 * GIB)
    looked = driven.look()
    assert isinstance(looked.entry, DecideResizes) and looked.entry.changes[0].resize == Resize(MERGE, 3)
    assert looked.reasons == ("merge 3 of k.t: initial of the keyspace: 4 tablets instead of 8",)


def test_scenario_19_a_split_is_kept_and_revoked_by_size() -> None:
    history = cluster(tablets=4)
    driven = Driven(history, 11 * GIB)
    driven.once()
    assert resizing(history).resize == Resize(SPLIT, 1)
    driven.tell(6 * GIB)
    assert driven.look().entry is None
    driven.tell(4 * GIB)
    driven.once()
    assert resizing(history) == Resizing(Resize(NONE, 2), ResizePhase.NONE, history.now.epoch)


def test_a_replica_that_is_not_ready_is_waited_for_and_named() -> None:
    history = cluster(tablets=4)
    driven = Driven(history, 11 * GIB)
    late = map_of(history).at(0).nodes[0]
    driven.unready = (late,)
    for _ in range(6):
        looked = driven.once()
    assert resizing(history).phase is ResizePhase.PREPARING
    held = sum(late in tablet.nodes for tablet in map_of(history).tablets())
    assert [one.reason for one in looked.waits] == [f"not ready for split 1: node {late} ({held} tablets)"]
    assert looked.question is not None and looked.question.nodes == (late,)
    driven.unready = ()
    driven.run()
    assert map_of(history).count == 8


def test_readiness_for_another_number_is_ignored() -> None:
    history = cluster(tablets=4)
    driven = Driven(history, 11 * GIB)
    driven.once()
    driven.answer(driven.look())
    known = driven.said
    driven.said = {
        node: Said(one.epoch, {group: (number - 1, rights) for group, (number, rights) in one.ready.items()})
        for node, one in known.items()
    }
    assert driven.look().entry is None
    driven.said = known
    assert isinstance(driven.look().entry, AdvanceResize)


def test_readiness_is_lost_where_a_replica_moves_in_and_said_before_a_phase_counts_for_nothing() -> None:
    history = cluster(tablets=4)
    driven = Driven(history, 11 * GIB)
    driven.once()
    driven.answer(driven.look())
    wanted = move(history)
    begin(history, wanted)
    world = World(history, random.Random(1))
    while history.now.transitions.count:
        world.round()
    waits = driven.look().waits
    assert waits and wanted.target[0] in waits[0].nodes
    driven.once()
    assert isinstance(driven.once().entry, AdvanceResize)
    waits = driven.look().waits
    assert resizing(history).phase is ResizePhase.CLOSING and waits, "all are asked again in this phase"
    driven.run()
    assert map_of(history).count == 8


def test_a_new_map_settles_when_every_replica_and_whoever_lives_has_it() -> None:
    history = cluster(racks=("r1",) * 5, factor=1, tablets=2)
    driven = Driven(history, 11 * GIB)
    holders = {node for tablet in map_of(history).tablets() for node in tablet.nodes}
    spare = next(node for node in history.now.directory.present_ids if node not in holders)
    while resizing(history).phase is not ResizePhase.SETTLING:
        driven.once()
    driven.unready = (spare,)
    for _ in range(4):
        looked = driven.once()
    assert looked.waits[0].nodes == (spare,)
    driven.dead = (spare,)
    driven.once()
    assert resizing(history).phase is ResizePhase.NONE, "who is dead holds no map, and holds no tablet"


def test_scenario_20_small_tablets_come_together_and_are_merged() -> None:
    history = cluster(tablets=2)
    driven = Driven(history, 11 * GIB)
    driven.run()
    assert map_of(history).count == 4
    apart = spread(history)
    assert apart, "the halves of one lie apart"
    driven.tell(GIB)
    world = World(history, random.Random(1))
    seen = 0
    for _ in range(100):
        looked = driven.once()
        planned = driven.planner.look(history.now, ())
        if looked == Looked() and planned.begins is None:
            break
        if planned.begins is not None:
            checked(history, planned.begins)
            driven.planner.begun(planned)
            seen += sum(one.why is Why.MERGE for one in planned.plan.moves)
        while history.now.transitions.count:
            world.round()
    assert map_of(history).count == 2 and seen > 0
    assert history.replayed() == history.now


def spread(history: History) -> list[tuple[int, int]]:
    """Move halves to nodes that the others are not on; the pairs that are then apart."""
    world = World(history, random.Random(2))
    for number in (1, 3):
        begin(history, move(history, number))
        while history.now.transitions.count:
            world.round()
    made = map_of(history)
    return [pair for pair in made.siblings() if made.merge_refusal(pair[0]) is not None]


def test_statistics_follow_a_new_map() -> None:
    history = cluster(tablets=4)
    driven = Driven(history, 8 * GIB)
    before = map_of(history)
    decide(history, Resize(SPLIT, 1))
    advance(history)
    advance(history)
    halves = recut(driven.planner.statistics, before.ring, map_of(history).ring)
    for tablet in map_of(history).tablets():
        for node in tablet.nodes:
            assert halves.of(node, before.id, tablet.right) == TabletLoad(4 * GIB)
    whole = recut(halves, map_of(history).ring, before.ring)
    assert {node: load.tablets for node, load in whole.nodes.items()} == {
        node: load.tablets for node, load in driven.planner.statistics.nodes.items()
    }


def test_nothing_is_decided_where_the_balancer_is_off_or_the_metadata_is_frozen() -> None:
    history = cluster(tablets=4)
    driven = Driven(history, 11 * GIB)
    now = history.now
    frozen = now.changed(SERVICE.set(msgspec.structs.replace(now.service, frozen="a backup")))
    planned = driven.planner.look(frozen, ())
    looked = driven.resizer.look(frozen, planned.cluster, Heard())
    assert looked.entry is None and "frozen" in looked.waits[0].reason
    assert isinstance(driven.look().entry, DecideResizes)


def test_one_hot_tablet_is_split_alone() -> None:
    history = cluster(tablets=8)
    driven = Driven(history, 4 * GIB)
    hot = list(map_of(history).tablets())[2]
    driven.tell(4 * GIB, (10.0, 10.0, 20_000.0, *[10.0] * 5))
    looked = driven.look()
    assert isinstance(looked.entry, DecideResizes)
    assert looked.entry.changes[0].resize == Resize(SPLIT, 1, (hot.right,))
    driven.run()
    assert map_of(history).count == 9


def test_what_is_of_no_table_is_refused() -> None:
    history = cluster(tablets=8)
    entry = DecideResizes(history.now.epoch, (ResizeChange(99, Resize(SPLIT, 1)),))
    assert "of no table with tablets" in refused(history, entry)
    assert "of no table with tablets" in refused(history, AdvanceResize(99, 1))
