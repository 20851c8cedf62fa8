"""Tablets on their way: through every stage, whoever dies or is shut out in it, and what refuses them."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from lockstep.metadata.operations import Stage
from lockstep.metadata.repairs import RepairPart
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transitions import Lone
from lockstep.schema.changes import DropTable, EmptyTable
from lockstep.schema.view_changes import CreateView
from lockstep.topology.barriers import barrier_need
from lockstep.topology.board import Board
from lockstep.topology.invariants import check_stale_coordinators, violations
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.repairs import BeginRepair
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.stages import StageRow, Work, problems
from lockstep.topology.step import Propose, RunWorkOrders, Wait
from lockstep.topology.tablets.balancing import hosts_of
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.topology.tablets.stages import TABLET_STAGES
from lockstep.values import node_limits
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import MOVES_BEGUN_MAX
from lockstep.values.tokens import Range
from tests.metadata.histories import History
from tests.topology.drills import refused
from tests.topology.lone import World
from tests.topology.tablets.worlds import (
    begin,
    change,
    cluster,
    exclude,
    map_of,
    move,
    on_its_way,
    stage_of,
)

FORWARD = (
    Stage.ALLOW_WRITE_BOTH_READ_OLD,
    Stage.WRITE_BOTH_READ_OLD,
    Stage.STREAMING,
    Stage.WRITE_BOTH_READ_NEW,
    Stage.USE_NEW,
    Stage.CLEANUP,
    Stage.END_MIGRATION,
)


def checked(world: World) -> bool:
    """One round, and everything that must hold after it."""
    epoch = world.history.now.epoch
    went_on = world.round()
    if world.history.now.epoch != epoch:
        before, now = world.history.values[-2:]
        now.validate(before)
        assert violations(before, now) == ()
        assert check_stale_coordinators(world.history.values[-8:], world.seen) == ()
    return went_on


def until(world: World, wanted: TabletMove, stage: Stage | None) -> list[Stage]:
    """Rounds until the tablet is there; the stages on the way."""
    seen: list[Stage] = []
    for _ in range(800):
        at = stage_of(world.history, wanted)
        if at is not None and at not in seen:
            seen.append(at)
        if at is stage:
            return seen
        checked(world)
    raise AssertionError(f"{stage_of(world.history, wanted)} instead of {stage}: {world.decided()}")


def replicas(history: History, wanted: TabletMove) -> tuple[NodeId, ...]:
    tablet = map_of(history).ending(wanted.right)
    assert tablet is not None
    return tablet.nodes


def test_the_table_is_sound() -> None:
    assert problems(TABLET_STAGES) == ()


@pytest.mark.parametrize(
    ("stage", "flaw"),
    [
        (Stage.STREAMING, "drain"),
        (Stage.WRITE_BOTH_READ_NEW, "back"),
        (Stage.CLEANUP, "use"),
    ],
)
def test_a_table_with_a_flaw_is_found(stage: Stage, flaw: str) -> None:
    row = next(row for row in TABLET_STAGES if row.stage is stage)
    changed: dict[str, Callable[[], StageRow]] = {
        "drain": lambda: msgspec.structs.replace(row, drain=TABLET_STAGES[0].drain),
        "back": lambda: msgspec.structs.replace(row, on_failure=Stage.CLEANUP_TARGET),
        "use": lambda: msgspec.structs.replace(row, in_use=TABLET_STAGES[4].in_use),
    }
    assert problems([changed[flaw]() if one is row else one for one in TABLET_STAGES])


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("kind", ["migration", "rebuild"])
def test_a_tablet_goes_through_every_stage_to_its_new_place(factor: int, kind: str) -> None:
    history = cluster(factor=factor)
    wanted, before = move(history, kind=kind), map_of(history)
    begin(history, wanted)
    assert map_of(history).ring is before.ring, "replicas stay as they are in the first stage"
    assert until(World(history, random.Random(factor)), wanted, None) == list(FORWARD)
    tablet = before.ending(wanted.right)
    assert tablet is not None
    there = [wanted.target[0] if node == wanted.source[0] else node for node in tablet.nodes]
    assert replicas(history, wanted) == tuple(there)
    assert history.replayed() == history.now


def test_what_each_stage_asks_of_whom() -> None:
    """The transcript: (stage, whose epochs, whose work, with which sources)."""
    history = cluster(tablets=1)
    wanted = move(history)
    begin(history, wanted)
    world, told = World(history, random.Random(1)), []
    old = replicas(history, wanted)
    everyone = sorted((*old, wanted.target[0]))
    for _ in range(200):
        one = on_its_way(history, wanted)
        if one is None:
            break
        stage, decision = Lone(one).stage, world.decided()
        asked = barrier_need(Lone(one), history.now).nodes()
        assert set(asked) <= set(everyone), "nobody else is asked"
        if isinstance(decision, RunWorkOrders):
            told.append((stage, [(o.node, o.kind) for o in decision.orders]))
        elif isinstance(decision, Wait):
            assert {node for node, _ in decision.blockers} <= set(everyone)
        checked(world)
    target, source = wanted.target[0], wanted.source[0]
    assert list(dict.fromkeys((s, *o) for s, o in told)) == [
        (Stage.ALLOW_WRITE_BOTH_READ_OLD, (target, Work.WIPE)),
        (Stage.STREAMING, (target, Work.STREAM)),
        (Stage.CLEANUP, (source, Work.CLEANUP)),
    ]


DEAD_HOLDS = {
    "source": (Stage.CLEANUP,),
    "target": (Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.STREAMING),
}


@pytest.mark.parametrize("stage", FORWARD)
@pytest.mark.parametrize("who", ["source", "target"])
def test_who_is_dead_holds_the_work_that_is_its_own_until_it_returns(stage: Stage, who: str) -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    world = World(history, random.Random(5))
    until(world, wanted, stage)
    dead = (wanted.source if who == "source" else wanted.target)[0]
    world.dead = (dead,)
    world.seen.pop(dead, None)
    reached = FORWARD[FORWARD.index(stage) :]
    holds = next((one for one in reached if one in DEAD_HOLDS[who]), None)
    for _ in range(150):
        checked(world)
    assert stage_of(history, wanted) is holds
    world.dead = ()
    until(world, wanted, None)
    assert wanted.target[0] in replicas(history, wanted)


@pytest.mark.parametrize("stage", FORWARD)
@pytest.mark.parametrize("who", ["source", "target"])
@pytest.mark.parametrize("was_dead", [False, True])
def test_who_is_excluded_holds_nothing(stage: Stage, who: str, was_dead: bool) -> None:
    """Before reads move alone to the new replicas a target leads back; a source is done without."""
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    world = World(history, random.Random(6))
    until(world, wanted, stage)
    lost = (wanted.source if who == "source" else wanted.target)[0]
    world.dead = (lost,)
    world.seen.pop(lost, None)
    if was_dead:
        for _ in range(60):
            world.decided()
    exclude(history, lost)
    seen = until(world, wanted, None)
    goes_back = who == "target" and FORWARD.index(stage) < FORWARD.index(Stage.USE_NEW)
    assert (Stage.REVERT_MIGRATION in seen) == goes_back
    assert (Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP in seen) == (
        goes_back and stage is Stage.WRITE_BOTH_READ_NEW
    )
    assert (wanted.target[0] in replicas(history, wanted)) is not goes_back
    assert (wanted.source[0] in replicas(history, wanted)) is goes_back


@pytest.mark.parametrize("stage", FORWARD)
@pytest.mark.parametrize("seems_dead", [True, False])
@pytest.mark.parametrize("was_waited_for", [False, True])
def test_a_dead_node_that_waits_for_its_removal_holds_up_nothing(
    stage: Stage, seems_dead: bool, was_waited_for: bool
) -> None:
    """Its removal waits until it holds no tablet, so none that was on its way to it waits for it."""
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    world = World(history, random.Random(7))
    until(world, wanted, stage)
    lost = wanted.target[0]
    if seems_dead:
        world.dead = (lost,)
        world.seen.pop(lost, None)
    if was_waited_for:
        for _ in range(60):
            world.decided()
    history.submit(EnqueueRequest(Remove(lost, presumed_dead=True)))
    assert world.decided() == world.decided(Board()), "what it looked at before makes no difference"
    seen = until(world, wanted, None)
    goes_back = seems_dead and FORWARD.index(stage) < FORWARD.index(Stage.USE_NEW)
    assert (Stage.REVERT_MIGRATION in seen) == goes_back
    assert (lost in replicas(history, wanted)) is not goes_back


@pytest.mark.parametrize("stage", FORWARD)
@pytest.mark.parametrize("who", ["source", "target"])
@pytest.mark.parametrize("was_waited_for", [False, True])
def test_a_move_gives_way_where_its_source_is_to_be_filled_anew(
    stage: Stage, who: str, was_waited_for: bool
) -> None:
    """The node may have lost what it is to give, and is filled once none of its tablets is on its way."""
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    world = World(history, random.Random(9))
    until(world, wanted, stage)
    lost = wanted.source[0] if who == "source" else wanted.target[0]
    for _ in range(60 if was_waited_for else 0):
        world.decided()
    history.submit(EnqueueRequest(Rebuild(lost)))
    assert world.decided() == world.decided(Board()), "what it looked at before makes no difference"
    seen = until(world, wanted, None)
    goes_back = who == "source" and FORWARD.index(stage) <= FORWARD.index(Stage.STREAMING)
    assert (Stage.REVERT_MIGRATION in seen) == goes_back
    assert (wanted.source[0] in replicas(history, wanted)) is goes_back
    hosts = {host.node: host.is_up for host in hosts_of(history.now, ())}
    assert not hosts[lost], "the balancer leaves it alone meanwhile"


def test_the_only_copy_of_a_node_that_is_shut_out_stays_its_own() -> None:
    history = cluster(factor=1)
    number = next(n for n, one in enumerate(map_of(history).tablets()) if one.nodes != (NodeId(1),))
    wanted = move(history, number)
    begin(history, wanted)
    world = World(history, random.Random(2))
    until(world, wanted, Stage.WRITE_BOTH_READ_OLD)
    until(world, wanted, Stage.STREAMING)
    exclude(history, wanted.source[0])
    decision = world.decided()
    assert isinstance(decision, Propose)
    checked(world)
    assert stage_of(history, wanted) is Stage.CLEANUP_TARGET


def test_a_tie_of_lost_replicas_goes_forward() -> None:
    """With five replicas, of which the union can do without two."""
    history = cluster(("r1",) * 7, factor=5)
    wanted = move(history)
    begin(history, wanted)
    world = World(history, random.Random(8))
    until(world, wanted, Stage.WRITE_BOTH_READ_NEW)
    exclude(history, wanted.source[0], wanted.target[0])
    seen = until(world, wanted, None)
    assert Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP not in seen and Stage.USE_NEW in seen


def test_work_that_fails_leads_back() -> None:
    history = cluster()
    wanted, before = move(history), map_of(history)
    begin(history, wanted)
    world = World(history, random.Random(3))
    until(world, wanted, Stage.STREAMING)
    world.fails = 1.0
    until(world, wanted, Stage.CLEANUP_TARGET)
    world.fails = 0.0
    until(world, wanted, None)
    tablet = before.ending(wanted.right)
    assert tablet is not None and replicas(history, wanted) == tablet.nodes


@pytest.mark.parametrize("stage", FORWARD)
def test_scenario_14_another_coordinator_goes_on_from_any_stage(stage: Stage) -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    until(World(history, random.Random(4)), wanted, stage)
    seen = until(World(history, random.Random(9)), wanted, None)
    assert seen == list(FORWARD[FORWARD.index(stage) :])


def test_shards_come_with_the_pending_replica_and_go_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_limits, "SHARDS_PER_NODE", 4)
    history = cluster()
    plain = move(history)
    wanted = msgspec.structs.replace(plain, target=(plain.target[0], 3))
    begin(history, wanted)
    node = wanted.target[0]
    world = World(history, random.Random(1))
    assert map_of(history).shard_of(wanted.right, node) == 0
    until(world, wanted, Stage.WRITE_BOTH_READ_OLD)
    assert map_of(history).shard_of(wanted.right, node) == 3
    until(world, wanted, None)
    inside = TabletMove(wanted.group, wanted.right, "intranode", (node, 3), (node, 1))
    before = map_of(history).ring
    begin(history, inside)
    until(world, inside, Stage.WRITE_BOTH_READ_NEW)
    assert map_of(history).shard_of(wanted.right, node) == 3 and map_of(history).ring is before
    until(world, inside, None)
    assert map_of(history).shard_of(wanted.right, node) == 1
    back = TabletMove(wanted.group, wanted.right, "migration", (node, 1), wanted.source)
    begin(history, back)
    until(world, back, None)
    assert not map_of(history).shards.everything()


@pytest.mark.parametrize("stage", FORWARD)
def test_a_dropped_table_ends_what_moves_of_it(stage: Stage) -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    until(World(history, random.Random(1)), wanted, stage)
    one = on_its_way(history, wanted)
    assert one is not None
    change(history, DropTable("k", "t"))
    assert not history.now.transitions.count
    assert not history.now.session_open(Lone(one).session_id)


@pytest.mark.parametrize("empties", [True, False])
def test_scenario_22_another_set_of_tables_begins_the_stream_anew(empties: bool) -> None:
    history = cluster()
    wanted, other = move(history), move(history, 1)
    begin(history, wanted, other)
    world = World(history, random.Random(1))
    until(world, wanted, Stage.STREAMING)
    one, beside = on_its_way(history, wanted), on_its_way(history, other)
    assert one is not None and beside is not None
    view = CreateView("k", "v", "9" * 32, "k", "t", (), ("a",), ("b",), not_null=("a", "b"))
    change(history, EmptyTable("k", "t") if empties else view)
    again = on_its_way(history, wanted)
    assert again is not None and Lone(again).stage is Stage.STREAMING
    assert not history.now.session_open(Lone(one).session_id)
    assert history.now.session_open(Lone(again).session_id)
    if Lone(beside).stage is not Stage.STREAMING:
        assert on_its_way(history, other) is beside
    until(world, wanted, None)
    assert wanted.target[0] in replicas(history, wanted)


@pytest.mark.parametrize("seed", range(6))
def test_random_walks_keep_what_must_hold(seed: int) -> None:
    history, rng = cluster(("r1", "r2", "r3") * 2, tablets=8), random.Random(seed)
    world = World(history, rng, fails=0.05)
    ended = 0
    for _ in range(400):
        draw = rng.random()
        if draw < 0.06 and history.now.transitions.count < 6:
            wanted = move(history, rng.randrange(8), rng.choice(["migration", "rebuild"]), rng.randrange(3))
            if history.tried(BeginMoves(0, (wanted,), force=True)) is None:
                assert violations(*history.values[-2:]) == ()
        elif draw < 0.1:
            world.dead = tuple(NodeId(n) for n in range(1, 7) if rng.random() < 0.15)
        elif draw < 0.12:
            world.board = Board()
        else:
            count = history.now.transitions.count
            checked(world)
            ended += history.now.transitions.count < count
    assert ended


def refusals() -> list[tuple[str, Callable[[History, TabletMove], BeginMoves], str]]:
    def with_(**changed: object) -> Callable[[History, TabletMove], BeginMoves]:
        return lambda _, one: BeginMoves(0, (msgspec.structs.replace(one, **changed),))

    return [
        ("group", with_(group=99), "no table with tablets"),
        ("tablet", with_(right=5), "no tablet of k.t ends at 5"),
        ("node", with_(target=(NodeId(77), 0)), "no node 77"),
        (
            "shard",
            lambda _, m: BeginMoves(0, (msgspec.structs.replace(m, target=(m.target[0], 1)),)),
            "no shard 1",
        ),
        (
            "source",
            lambda _, m: BeginMoves(0, (msgspec.structs.replace(m, source=m.target),)),
            "has no replica",
        ),
        ("target", lambda _, m: BeginMoves(0, (msgspec.structs.replace(m, target=m.source),)), "already"),
        ("kind", with_(kind="leap"), "do not move by 'leap'"),
        ("intranode", with_(kind="intranode"), "from one shard to another"),
        ("twice", lambda _, m: BeginMoves(0, (m, m)), "once at a time"),
        ("none", lambda _, m: BeginMoves(0, ()), "begin to move at once"),
        ("many", lambda _, m: BeginMoves(0, (m,) * (MOVES_BEGUN_MAX + 1)), "begin to move at once"),
        ("epoch", lambda h, m: BeginMoves(h.now.epoch - 1, (m,)), "planned at epoch"),
    ]


@pytest.mark.parametrize(
    ("name", "made", "text"), refusals(), ids=lambda one: one if isinstance(one, str) else ""
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    name: str, made: Callable[[History, TabletMove], BeginMoves], text: str
) -> None:
    history = cluster()
    before = history.now
    assert text in refused(history, made(history, move(history)))
    assert history.now is before


def test_a_tablet_that_moves_or_is_repaired_does_not_move() -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    assert "on its way: migration of (" in refused(history, BeginMoves(0, (wanted,)))
    other = move(history, 1)
    (table,) = history.now.schema.by_name["k"].tables
    part = RepairPart("k", other.group, (table.id,), (Range(other.right - 1, other.right),))
    history.submit(BeginRepair(NodeId(1), (part,), 1))
    assert "is held by repair" in refused(history, BeginMoves(0, (other,)))
    begin(history, move(history, 2))


def test_an_excluded_node_gets_no_tablet() -> None:
    history = cluster()
    wanted = move(history)
    exclude(history, wanted.target[0])
    assert "is excluded" in refused(history, BeginMoves(0, (wanted,)))


def test_racks_are_kept_apart_unless_by_force() -> None:
    history = cluster(("r1", "r2", "r3", "r1"))
    tablet = next(map_of(history).tablets())
    by_id = history.now.directory.by_id
    (free,) = (n for n in by_id if n not in tablet.nodes)
    other = next(one for one in tablet.replicas if by_id[one[0]].rack != by_id[free].rack)
    wanted = TabletMove(map_of(history).id, tablet.right, "migration", other, (free, 0))
    assert "would hold 2 replicas" in refused(history, BeginMoves(0, (wanted,)))
    history.submit(BeginMoves(0, (wanted,), force=True))
    until(World(history, random.Random(1)), wanted, None)


def test_another_data_centre_is_refused() -> None:
    history = cluster(("r1",) * 4, dc="dc2")
    tablet = next(map_of(history).tablets())
    wanted = TabletMove(map_of(history).id, tablet.right, "migration", tablet.replicas[0], (NodeId(4), 0))
    assert "is in data centre dc2" in refused(history, BeginMoves(0, (wanted,)))


def test_a_tablet_with_too_few_or_too_many_replicas_is_found() -> None:
    history = cluster()
    made = map_of(history)
    tablet = next(made.tablets())
    spare_node = move(history).target
    for replicas_then in (tablet.replicas[:2], (*tablet.replicas, spare_node)):
        ring = made.with_replicas({tablet.right: replicas_then}, history.now.epoch + 1).ring
        after = history.now.changed(PLACEMENTS.set(history.now.placements.with_rings((ring,))))
        assert any("3 expected" in line for line in violations(history.now, after))
