"""Rounds of reads that are met only with one of those that show data."""

from __future__ import annotations

from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import Requirement
from lockstep.quorum.plans import Asker, Plan
from lockstep.quorum.round import READ, Ask, Round, Target
from lockstep.values.errors import PeerUnreachable, Unavailable
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.tokens import FULL_RING


def plan_of(blind: set[int], required: int, own: int = 0) -> Plan:
    """Of three replicas, some of which show no data."""
    nodes = tuple(map(NodeId, (1, 2, 3)))
    targets = tuple(Target(node, (f"n{node}", 1), "a", node not in blind) for node in nodes)
    group = ReplicaGroup(nodes, nodes, 1)
    needs = (Requirement("", required),)
    return Plan(5, 1, FULL_RING, group, targets, needs, Consistency.QUORUM, Asker(NodeId(own), "a"))


def asked(effects: object) -> list[int]:
    assert isinstance(effects, tuple)
    return [int(target.node) for one in effects if isinstance(one, Ask) for target in one.targets]


def test_enough_answers_without_data_are_not_enough() -> None:
    plan = plan_of({2, 3}, 2)
    assert not plan.satisfied_by([NodeId(2), NodeId(3)])
    assert plan.satisfied_by([NodeId(1), NodeId(3)])
    assert plan.shows(1) and not plan.shows(3)
    shortage = plan.shortage([NodeId(2), NodeId(3)])
    assert isinstance(shortage, Unavailable) and shortage.alive < shortage.required


def test_one_that_shows_data_is_asked_first_and_the_nearest_beside_it() -> None:
    plan = plan_of({3}, 2, own=3)
    assert [int(target.node) for target in plan.first_near] == [1, 3]
    assert [int(target.node) for target in plan_of({1, 2}, 1).first_near] == [3]


def test_another_one_that_shows_data_is_asked_in_the_place_of_one_that_failed() -> None:
    plan = plan_of({1}, 2)
    round_ = Round(READ, plan, plan.near_first)
    assert asked(round_.begin(None)) == [2, 1]
    assert not asked(round_.answered(NodeId(1), 5))
    failed = round_.failed(plan.by_node[NodeId(2)], PeerUnreachable("gone"))
    assert asked(failed) == [3]
    round_.validate()


def test_a_plan_without_anybody_that_shows_data_is_never_attainable() -> None:
    assert not plan_of({1, 2, 3}, 1).attainable
    assert plan_of(set(), 1).readers is None
