"""Joins in bad company: members that fail, are shut out or leave while they are asked; joiners shut out."""

from __future__ import annotations

import pytest

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes
from lockstep.node.node import Node
from lockstep.server.admin.requests import ExcludeList
from lockstep.sim.runtime.probes import DelayRule
from lockstep.topology.joining import AskJoin, JoinAnswer, JoinTerms, Presentation
from lockstep.values.errors import (
    LockstepError,
    NodeExcluded,
    Overloaded,
    PeerUnreachable,
    ServerFault,
)
from lockstep.values.ids import NodeId
from tests.node.support import Town, decommission
from tests.node.test_joining import with_data

FAULTS = [Overloaded("planted"), ServerFault("planted"), NodeExcluded("planted"), PeerUnreachable("planted")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("verb", [verbs.JOIN_ASK, verbs.JOIN_PRESENT])
def test_a_member_that_fails_is_passed_over(verb: int, fault: LockstepError) -> None:
    with Town() as town:
        town.found()

        async def failing(_peer: PeerInfo, _question: object) -> JoinTerms | JoinAnswer:
            raise fault

        internode = town.node(1).context.internode
        if verb == verbs.JOIN_ASK:
            internode.register(verb, AskJoin, JoinTerms, failing)  # type: ignore[arg-type]
        else:
            internode.register(verb, Presentation, JoinAnswer, failing)  # type: ignore[arg-type]
        town.cluster_lines["n4"] = 'seeds=["127.0.0.1", "127.0.0.2"]\n'
        town.start(4)
        town.until(lambda: town.ready(4) or "n4" in town.ended)
        assert town.ready(4), town.ended


def test_a_member_that_cannot_submit_any_more_sends_the_newcomer_on() -> None:
    with Town() as town:
        town.found()

        async def refusing(*_entry: object, **_options: object) -> int:
            raise NodeExcluded("the member that was asked is excluded")

        desk = town.node(1).membership.membership.join_desk
        desk._submitter = type("Refusing", (), {"submit": staticmethod(refusing)})()  # type: ignore[assignment]
        town.cluster_lines["n4"] = 'seeds=["127.0.0.1", "127.0.0.2"]\n'
        town.start(4)
        town.until(lambda: town.ready(4) or "n4" in town.ended)
        assert town.ready(4), town.ended


def joining(town: Town) -> None:
    """Node 4 was accepted, and died while its data was on its way."""
    with_data(town)
    town.world.probes.add(DelayRule(label="work.done", process="n4", low_s=60.0, high_s=60.0))
    town.start(4)
    town.until(lambda: bool(town.newest.operations))
    town.process(4).crash()


@pytest.mark.parametrize("place", [4, 14])
def test_a_joining_node_that_was_shut_out_says_so_and_joins_once_it_is_taken_back(place: int) -> None:
    with Town() as town:
        joining(town)
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "suspect"))).error is None
        if place != 4:
            town.process(place).swap_disk(town.process(4).disk)
        town.start(place)
        name = f"n{place}"
        town.until(lambda: town.node(1).work.topology.acknowledged(4) >= town.newest.epoch)
        town.wait(5.0)
        assert not town.ready(place) and name not in town.ended
        assert any("excluded" in said["reason"] for said in town.logged("join.waits", name))
        taken = ExcludeList(town.node(1).services)
        back = town.begin(1, lambda _node: taken.change({"nodes": [4], "undo": True}))
        assert town.finish(back).error is None, back.error
        town.until(lambda: town.ready(place) or name in town.ended, limit_s=120)
        assert town.ready(place), town.ended
        assert town.newest.directory.by_id[NodeId(4)].state is NodeState.NORMAL


def test_the_member_that_is_asked_leaves_and_the_next_one_is_asked() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        town.until(lambda: 4 not in town.newest.service.members)

        def prepare(name: str, node: Node) -> None:
            if name == "n5":
                town.submit(1, decommission(4))

        town.prepare = prepare
        town.cluster_lines["n5"] = 'seeds=["127.0.0.4"]\n'
        town.start(5)
        town.until(lambda: town.ready(5), limit_s=120)
        assert town.state_of(4) in (NodeState.LEFT, NodeState.NORMAL, NodeState.DECOMMISSIONING)
