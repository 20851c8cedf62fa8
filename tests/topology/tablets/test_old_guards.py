"""What was begun under a session of a tablet, once the tablet has another one."""

from __future__ import annotations

import random

import pytest

from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import Lone
from lockstep.replica.session_guards import SessionGuards
from lockstep.topology.barriers import GuardReport, barrier_need, evaluate
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.values.errors import SessionClosed
from tests.topology.lone import World
from tests.topology.tablets.worlds import begin, cluster, move


def test_work_of_a_tablets_former_session_has_no_effect_under_the_next_one_and_holds_its_barrier() -> None:
    history = cluster(tablets=4)
    begin(history, move(history))
    world = World(history, random.Random(1))
    while not any(one.position.stage is Stage.STREAMING for one in history.now.transitions.listed()):
        world.round()
    former = Lone(history.now.transitions.listed()[0])
    one, guards = former.transition, SessionGuards(lambda: history.now)
    step = TransitionStep(one.group, one.range.right, former.stage_epoch, failed=True)
    with guards.hold(former.session_id):
        history.submit(AdvanceTransitions((step,)))
        now = Lone(history.now.transitions.listed()[0])
        assert now.stage is Stage.CLEANUP_TARGET and now.session_id not in ("", former.session_id)
        with pytest.raises(SessionClosed):
            guards.require(former.session_id)
        with guards.hold(now.session_id):
            assert guards.stragglers() == ((former.session_id, 1),)
        need = barrier_need(now, history.now)
        (target,) = one.gained
        assert target in need.must_release
        all_seen = dict.fromkeys(need.nodes(), history.now.epoch)

        def passes() -> bool:
            said = GuardReport(history.now.epoch, guards.stragglers())
            return evaluate(need, all_seen, all_seen, dict.fromkeys(need.nodes(), said)).passed

        assert not passes()
    assert passes()
