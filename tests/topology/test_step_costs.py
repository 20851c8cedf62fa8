"""What a step of the coordinator costs, in ranges looked at: those of what changed since it last looked."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transitions import TRANSITIONS, Transition
from lockstep.placement.placements import PlacedRange, ReplicaGroup
from lockstep.topology import barriers, board, step, streams
from lockstep.topology.barriers import barrier_need
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.step import Reports, WorkReport, work_key, work_orders
from lockstep.topology.tablets import stages as courses
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.metadata.histories import History, simple, started
from tests.metadata.test_log import register
from tests.topology.drills import random_change, random_start, run_join_to
from tests.topology.lone import COURSES
from tests.topology.lone import moving as moving_alone

RANGES = 300


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many ranges were looked at, by what looked at them."""
    counts: Counter[str] = Counter()

    def watch(module: Any, name: str) -> None:
        original = getattr(module, name)

        def counted(*given: Any) -> Any:
            counts[name] += 1
            return original(*given)

        monkeypatch.setattr(module, name, counted)

    watch(barriers, "_group_needs")
    watch(streams, "pieces")
    return counts


def moving() -> History:
    """Node 5 joins with as many ranges as there are, and the first stage is behind it."""
    owned = [tuple(node * 10 + 1_000 * at for at in range(RANGES)) for node in range(1, 5)]
    history = started(owned, ("k", simple(3)))
    history.submit(register(5))
    history.submit(PrepareOperation(Bootstrap(NodeId(5), tuple(5 + 1_000 * at for at in range(RANGES)))))
    run_join_to(history, 1, Stage.WRITE_BOTH_READ_OLD)
    return history


def reports(cluster: ClusterMetadata, behind: int, **more: Any) -> Reports:
    acknowledged = {node.id: cluster.epoch for node in cluster.directory.nodes if node.id != behind}
    return Reports(acknowledged=acknowledged, **more)


def test_a_report_costs_no_walk_of_the_ranges(looked_at: Counter[str]) -> None:
    now = moving().now
    assert len(now.transitions.of(1)) > RANGES
    first = step.step(now, reports(now, behind=1))
    assert min(looked_at.values()) > RANGES and len(looked_at) == 2
    looked_at.clear()
    answers = [step.step(now, reports(now, behind=node)) for node in range(1, 6)]
    orders = work_orders(now.operations[0], now, ())
    for state in WorkReport:
        work = {work_key(order): state for order in orders}
        answers.append(step.step(now, reports(now, behind=0, work=work)))
    assert not looked_at and answers[0] == first
    assert len({type(answer) for answer in answers}) == 3, "it waits, has work done, and goes on"


def test_another_entry_costs_the_ranges_of_the_operations_that_it_changes(looked_at: Counter[str]) -> None:
    history = moving()
    step.step(history.now, reports(history.now, behind=1))
    looked_at.clear()
    # Neither nodes nor what they lack are others.
    history.submit(AdvanceOperation(1, Stage.WRITE_BOTH_READ_OLD, 0))
    other = history.now
    step.step(other, reports(other, behind=1))
    assert looked_at["_group_needs"] > RANGES
    looked_at.clear()
    step.step(other, reports(other, behind=2))
    assert not looked_at
    # Who is dead decides who streams, and nothing of a barrier.
    before = history.values[-2]
    step.step(before, reports(before, behind=1, dead=(NodeId(1),)))
    assert looked_at["pieces"] > RANGES and not looked_at["_group_needs"]


def test_what_is_kept_is_what_would_be_found_anew() -> None:
    for seed in range(12):
        history, rng = random_start(seed)
        for _ in range(40):
            history.tried(random_change(history, rng))
            for cluster in (history.now, rng.choice(history.values)):
                check_kept(cluster, rng)


def check_kept(cluster: ClusterMetadata, rng: random.Random) -> None:
    dead = tuple(node.id for node in cluster.directory.nodes if rng.random() < 0.2)
    for operation in cluster.operations:
        fresh = msgspec.structs.replace(operation)
        orders = work_orders(operation, cluster, dead)
        assert orders == work_orders(fresh, cluster, dead)
        sources = {source for order in orders for task in order.tasks for source in task.sources}
        assert sources == set[NodeId]().union(*(order.sources for order in orders))
        assert barrier_need(operation, cluster, sources, (), dead) == barrier_need(
            fresh, cluster, sources, (), dead
        )


TABLETS = 100_000


def tablets() -> tuple[ClusterMetadata, list[Transition]]:
    """As many ranges that move by themselves, each between two of nodes 1 to 8; two of them to node 9."""
    history = started([(node,) for node in range(1, 10)], ("k", simple(1)))
    group = history.now.placements.rings[0].id
    width = (TOKEN_MAX - TOKEN_MIN + 1) // TABLETS
    bounds = [TOKEN_MIN + width * at for at in range(TABLETS)] + [TOKEN_MAX]
    placed, begun = [], []
    for at, pair in enumerate(itertools.pairwise(bounds)):
        old, new = (NodeId(1 + at % 8),), (NodeId(9 if at in (5, 70_000) else 1 + (at + 3) % 8),)
        placed.append(PlacedRange(Range(*pair), ReplicaGroup(old, old, 1)))
        begun.append(moving_alone(group, Range(*pair), (old, new), simple(1), history.now.epoch))
    ring = history.now.placements.ring(group).with_ranges(placed)
    value = history.now.changed(
        PLACEMENTS.set(history.now.placements.with_rings((ring,))),
        TRANSITIONS.set(history.now.transitions.moved(begun)),
    )
    return value, begun


@pytest.mark.slow
def test_one_of_many_that_move_by_themselves_costs_a_look_at_it(
    looked_at: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courses, "COURSES", COURSES)
    judged = board.decide

    def counted(*given: Any) -> Any:
        looked_at["decide"] += 1
        return judged(*given)

    monkeypatch.setattr(board, "decide", counted)
    now, begun = tablets()
    memory = board.Board()
    first = memory.look(now, reports(now, behind=9))
    assert looked_at["decide"] == TABLETS and first.wait is not None
    assert first.wait.blockers[0][0] == 9 and len(first.wait.blockers) == 1
    looked_at.clear()
    assert memory.look(now, reports(now, behind=9)) == first and not looked_at
    # One goes on: it alone is planned and judged.
    one = begun[40_000]
    going = AdvanceTransitions((TransitionStep(one.group, one.range.right, now.epoch),))
    on = msgspec.structs.replace(going.apply(now, now.epoch + 1), epoch=now.epoch + 1)
    after = memory.look(on, reports(now, behind=9))
    assert looked_at["decide"] == 1 and looked_at["_group_needs"] <= 4 and looked_at["pieces"] <= 1
    assert after.wait is not None and [node for node, _ in after.wait.blockers] == [1, 4, 9]
    looked_at.clear()
    # What a node reports wakes those that wait for it.
    everyone = {node.id: on.epoch for node in on.directory.nodes}
    memory.look(on, Reports(acknowledged={**everyone, NodeId(1): now.epoch, NodeId(4): now.epoch}))
    assert looked_at["decide"] == 2, "the two that node 9 had to hear of"
    looked_at.clear()
    memory.look(on, Reports(acknowledged=everyone))
    assert looked_at["decide"] == 1 and not looked_at["pieces"]
    # Work that is done wakes the one whose work it was.
    looked_at.clear()
    order = first.orders[0]
    memory.look(on, Reports(acknowledged=everyone, work={work_key(order): WorkReport.DONE}))
    assert looked_at["decide"] == 1
