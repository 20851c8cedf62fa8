"""A join, and a tablet that moves, begin, end and are taken back beside each other."""

from __future__ import annotations

import itertools
import random

import pytest

from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import Lone
from lockstep.topology.invariants import violations
from lockstep.topology.kind import stage_row
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation, can_go_back
from lockstep.values.ids import NodeId
from tests.metadata.histories import History
from tests.topology.drills import register
from tests.topology.tablets.worlds import begin, cluster, map_of, move, on_its_way

NEWCOMER = NodeId(6)


def world() -> tuple[History, TabletMove]:
    history = cluster()
    history.submit(register(NEWCOMER, "dc1", "r1"))
    wanted = move(history)
    begin(history, wanted)
    return history, wanted


def step(history: History, wanted: TabletMove, failed: bool = False) -> None:
    one = on_its_way(history, wanted)
    assert one is not None
    taken = TransitionStep(one.group, one.range.right, Lone(one).stage_epoch, failed)
    history.submit(AdvanceTransitions((taken,)))


def join(history: History) -> None:
    history.submit(PrepareOperation(Bootstrap(NEWCOMER, (5, 77))))


def go_on(history: History) -> None:
    operation = history.now.operations[0]
    history.submit(AdvanceOperation(operation.id, operation.stage, operation.step))


def all_sound(history: History) -> None:
    for before, after in itertools.pairwise(history.values):
        assert violations(before, after) == ()
        after.validate(before)


def test_scenario_03_a_join_ends_beside_a_migration_in_streaming_which_stays_as_it_was() -> None:
    history, wanted = world()
    while (one := on_its_way(history, wanted)) and Lone(one).stage is not Stage.STREAMING:
        step(history, wanted)
    join(history)
    while history.now.operations:
        assert on_its_way(history, wanted) is one
        go_on(history)
    assert history.now.directory.by_id[NEWCOMER].tokens
    while on_its_way(history, wanted):
        step(history, wanted)
    assert wanted.target[0] in map_of(history).at(wanted.right).nodes
    all_sound(history)


@pytest.mark.parametrize("seed", range(40))
def test_neither_changes_a_range_that_the_other_holds(seed: int) -> None:
    rng = random.Random(seed)
    history, wanted = world()
    join(history)
    while history.now.operations or on_its_way(history, wanted):
        before = history.now
        one = on_its_way(history, wanted)
        if one is not None and (not before.operations or rng.random() < 0.5):
            may_fail = stage_row(Lone(one)).on_failure is not None
            step(history, wanted, failed=may_fail and rng.random() < 0.1)
            for ring in before.shared_rings:
                assert history.now.placements.ring(ring.id) is ring
            continue
        operation = before.operations[0]
        if rng.random() < 0.1 and can_go_back(operation):
            history.submit(CancelOperation(operation.id, "drill"))
        else:
            go_on(history)
        assert history.now.placements.ring(wanted.group) is before.placements.ring(wanted.group)
        assert on_its_way(history, wanted) is one
    all_sound(history)
    assert not any(NEWCOMER in tablet.nodes for tablet in map_of(history).tablets())


@pytest.mark.parametrize("joined", [True, False])
def test_nothing_moves_to_a_newcomer_before_it_has_joined(joined: bool) -> None:
    history, wanted = world()
    while on_its_way(history, wanted):
        step(history, wanted)
    join(history)
    other = TabletMove(wanted.group, wanted.right, "migration", wanted.target, (NEWCOMER, 0))
    begun = history.tried(BeginMoves(0, (other,)))
    assert begun is not None and "node 6 is" in begun.message
    if not joined:
        history.submit(CancelOperation(history.now.operations[0].id, "no"))
    while history.now.operations:
        go_on(history)
    assert (history.tried(BeginMoves(0, (other,))) is None) is joined
    all_sound(history)
