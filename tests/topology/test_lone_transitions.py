"""Transitions that move by themselves: through the stages, back, beside requests, and what a board keeps."""

from __future__ import annotations

import random

import pytest

from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transitions import TRANSITIONS, Lone
from lockstep.topology.board import Board
from lockstep.topology.invariants import (
    check_endings,
    check_stale_coordinators,
    check_transitions,
    violations,
)
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.stages import Course, Filling
from lockstep.topology.step import Idle, Looked, Propose, Reports, Wait, step
from lockstep.topology.tablets import stages as kinds_that_move
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import LONE_ORDERS_PER_NODE_MAX, TRANSITIONS_ADVANCED_MAX
from lockstep.values.tokens import TOKEN_MAX
from tests.metadata.histories import History, simple, started
from tests.topology.drills import refused
from tests.topology.lone import COURSES, KINDS, SHUFFLE, BeginShuffle, World

NODES = 6


@pytest.fixture(autouse=True)
def courses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds_that_move, "COURSES", COURSES)


def cluster(factor: int = 3, per_node: int = 2) -> History:
    owned = [tuple(node + 10 * NODES * at for at in range(per_node)) for node in range(1, NODES + 1)]
    return started(owned, ("k", simple(factor)), kinds=KINDS)


def group_of(history: History) -> int:
    return history.now.placements.rings[0].id


def free_moves(history: History, rng: random.Random, count: int) -> BeginShuffle:
    """So many ranges that are at rest go to replicas of which one is another node."""
    group = group_of(history)
    ring, transitions = history.now.placements.ring(group), history.now.transitions
    free = [placed for placed in ring.ranges if transitions.at(group, placed.range.right) is None]
    moves = []
    for placed in rng.sample(free, min(count, len(free))):
        others = [NodeId(n) for n in range(1, NODES + 1) if n not in placed.group.reads]
        new = list(placed.group.reads)
        new[rng.randrange(len(new))] = rng.choice(others)
        moves.append((placed.range.right, tuple(new)))
    return BeginShuffle(group, tuple(moves))


def stage_of(history: History, right: int) -> Stage:
    one = history.now.transitions.at(group_of(history), right)
    assert one is not None
    return Lone(one).stage


@pytest.mark.parametrize(
    ("factor", "filling"), [(1, Filling.GIVERS), (3, Filling.GIVERS), (3, Filling.QUORUM)]
)
def test_each_goes_through_its_stages_and_no_reader_misses_a_write(
    factor: int, filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        kinds_that_move, "COURSES", {SHUFFLE.name: Course(SHUFFLE.name, SHUFFLE.stages, filling)}
    )
    history, rng = cluster(factor), random.Random(factor)
    world = World(history, rng)
    wanted = dict[int, tuple[NodeId, ...]]()
    for _ in range(600):
        epoch = history.now.epoch
        if history.now.transitions.count < 4 and len(wanted) < 12:
            begun = free_moves(history, rng, 2)
            history.submit(begun)
            wanted.update(begun.moves)
        elif not world.round():
            break
        if history.now.epoch != epoch:
            assert violations(history.values[-2], history.now) == ()
            assert check_stale_coordinators(history.values[-6:], world.seen) == ()
    assert not history.now.transitions.count and isinstance(world.decided(), Idle)
    ring = history.now.placements.ring(group_of(history))
    assert len(wanted) >= 6
    for right, replicas in wanted.items():
        group = ring.group_for(right)
        assert group.reads == group.writes == replicas


def test_work_that_fails_sends_back_that_one_alone() -> None:
    history, rng = cluster(), random.Random(7)
    before = history.now.placements
    begun = free_moves(history, rng, 5)
    history.submit(begun)
    world = World(history, rng, fails=0.4)
    went_back = set[int]()
    for _ in range(900):
        if not world.round():
            break
        for one in history.now.transitions.listed():
            if Lone(one).stage is Stage.ROLLBACK_TO_NORMAL:
                went_back.add(one.range.right)
                world.fails = 0.0
        assert violations(history.values[-2], history.now) == ()
    assert not history.now.transitions.count and 0 < len(went_back) < 5
    ring, former = history.now.placements.ring(group_of(history)), before.ring(group_of(history))
    for right, replicas in begun.moves:
        wanted = former.group_for(right).reads if right in went_back else replicas
        assert ring.group_for(right).reads == ring.group_for(right).writes == wanted


@pytest.mark.parametrize("seed", range(6))
def test_a_board_finds_what_one_that_begins_now_finds(seed: int) -> None:
    """Whatever it looked at before, nodes that seem dead and alive again included."""
    history, rng = cluster(), random.Random(seed)
    world = World(history, rng, fails=0.1)
    kinds = set[type]()
    for _ in range(250):
        draw = rng.random()
        if draw < 0.1:
            history.submit(free_moves(history, rng, rng.randint(1, 4)))
        elif draw < 0.2:
            world.dead = tuple(NodeId(n) for n in range(1, NODES + 1) if rng.random() < 0.2)
        else:
            world.round()
        reports = world.reports()
        looked, fresh = (board.look(history.now, reports) for board in (world.board, Board()))
        assert alike(looked) == alike(fresh)
        kinds.add(type(step(history.now, reports, looked)))
    assert len(kinds) >= 3


def alike(looked: Looked) -> object:
    """What was found, in no order. Of many reasons why a node is waited for one is told."""
    wait = looked.wait and (sorted(node for node, _ in looked.wait.blockers), looked.wait.operation_id)
    orders = sorted(looked.orders, key=lambda order: (order.node, order.session_id))
    return sorted(looked.steps, key=lambda one: (one.group, one.right)), orders, wait


def test_an_entry_of_many_is_taken_once_and_whole() -> None:
    history, rng = cluster(), random.Random(3)
    history.submit(free_moves(history, rng, 3))
    group, epoch = group_of(history), history.now.epoch
    rights = [one.range.right for one in history.now.transitions.listed()]
    steps = tuple(TransitionStep(group, right, epoch) for right in rights)
    assert "in an entry" in refused(history, AdvanceTransitions((*steps, steps[0])))
    assert "go on at once" in refused(history, AdvanceTransitions(()))
    assert "go on at once" in refused(history, AdvanceTransitions(steps * TRANSITIONS_ADVANCED_MAX))
    assert "moves by itself" in refused(
        history, AdvanceTransitions((TransitionStep(group, TOKEN_MAX - 1, epoch),))
    )
    history.submit(AdvanceTransitions(steps))
    assert {stage_of(history, right) for right in rights} == {Stage.WRITE_BOTH_READ_OLD}
    message = refused(history, AdvanceTransitions(steps))
    assert message.startswith("shuffle of (") and f"since epoch {history.now.epoch}" in message
    now = history.now.epoch
    history.submit(AdvanceTransitions(tuple(TransitionStep(group, right, now) for right in rights)))
    failed = TransitionStep(group, rights[0], history.now.epoch, failed=True)
    assert "goes forward only" in refused(history, AdvanceTransitions((failed,)))


def test_what_moves_by_itself_is_held_and_its_session_is_open_for_as_long_as_the_stage() -> None:
    history, rng = cluster(per_node=1), random.Random(5)
    history.submit(free_moves(history, rng, NODES))
    for one in history.now.transitions.listed():
        session = Lone(one).session_id
        assert history.now.session_open(session) and not history.now.session_open(f"{session}0")
        found = history.now.transitions.lone_of(session)
        assert found is not None and found.transition is one
    sessions = [Lone(one).session_id for one in history.now.transitions.listed()]
    message = refused(history, PrepareOperation(Decommission(NodeId(2))))
    assert message.startswith("shuffle of (") and "holds range" in message
    group, epoch = group_of(history), history.now.epoch
    rights = [one.range.right for one in history.now.transitions.listed()]
    history.submit(AdvanceTransitions(tuple(TransitionStep(group, right, epoch) for right in rights)))
    assert not any(map(history.now.session_open, sessions))
    assert all(not history.now.session_open(name) for name in ("", "transition-1-2", "transition-x-1-2"))
    assert check_transitions(history.now) == ()


def test_all_that_wait_ask_in_one_round_and_each_node_has_few_orders() -> None:
    history, rng = cluster(per_node=40), random.Random(9)
    for _ in range(3):
        history.submit(free_moves(history, rng, 70))
    world = World(history, rng)
    decision = world.decided()
    assert isinstance(decision, Wait) and decision.epoch == history.now.epoch
    nodes = [node for node, _ in decision.blockers]
    assert len(nodes) == len(set(nodes)) <= NODES
    assert any(reason.endswith(" more ranges") for _, reason in decision.blockers)
    world.seen = {NodeId(node): history.now.epoch for node in range(1, NODES + 1)}
    looked = world.board.look(history.now, world.reports())
    assert looked.wait is None
    assert all(
        sum(order.node == node for order in looked.orders) == LONE_ORDERS_PER_NODE_MAX
        for node in range(1, NODES + 1)
    )


def test_whoever_steps_without_a_look_at_what_moves_alone_is_noticed() -> None:
    history = cluster()
    assert isinstance(step(history.now, Reports()), Idle)
    history.submit(free_moves(history, random.Random(1), 1))
    with pytest.raises(AssertionError, match="moves alone"):
        step(history.now, Reports())


def test_a_queued_request_waits_for_what_moves_by_itself() -> None:
    history, rng = cluster(per_node=1), random.Random(5)
    world = World(history, rng)
    history.submit(free_moves(history, rng, NODES))
    history.submit(EnqueueRequest(Decommission(NodeId(2)), actor="test"))
    for _ in range(400):
        if not history.now.transitions.count:
            break
        assert not history.now.operations
        world.round()
    decision = world.decided()
    assert isinstance(decision, Propose) and isinstance(decision.transformation, PrepareOperation)


def test_a_range_moves_once_at_a_time() -> None:
    history = cluster()
    begun = free_moves(history, random.Random(2), 1)
    history.submit(begun)
    with pytest.raises(Rejected, match="holds the range"):
        history.submit(begun)


def test_one_that_ends_too_early_or_with_other_replicas_is_found() -> None:
    history, rng = cluster(), random.Random(4)
    history.submit(free_moves(history, rng, 1))
    (one,) = history.now.transitions.listed()
    early = history.now.changed(TRANSITIONS.set(history.now.transitions.moved([], [one])))
    assert check_endings(history.now, early) == (f"OP-1: the {Lone(one).title()} ended in stage prepared",)
    world = World(history, rng)
    while history.now.transitions.count:
        before = history.now
        world.round()
    assert check_endings(before, history.now) == ()
    moved = history.now.changed(PLACEMENTS.set(history.values[2].placements))
    assert all(" left " in line and ", not " in line for line in check_endings(before, moved))
    assert check_endings(before, moved)


def test_a_range_that_a_board_forgot_is_found_by_one_that_begins_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node reports wakes nobody: the comparison with a new board tells."""
    monkeypatch.setattr(Board, "_newly_said", lambda *_: [])
    with pytest.raises(AssertionError):
        test_a_board_finds_what_one_that_begins_now_finds(0)
