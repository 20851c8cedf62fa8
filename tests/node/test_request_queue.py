"""Requests for topology operations among real nodes: several joins at once, lost leaders, nodes shut out."""

from __future__ import annotations

import pytest

from lockstep.internode import verbs
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import RequestState
from lockstep.node.log.messages import EpochQuery, RunWork
from lockstep.node.node import Node
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.values.errors import NodeExcluded
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, keyspace
from tests.node.test_requests_while_moving import Writers, founded


def leave(node: int) -> EnqueueRequest:
    return EnqueueRequest(Decommission(NodeId(node)), actor="test")


def ended(town: Town) -> list[tuple[str, int, str]]:
    return [(r.kind, r.node, r.state.value) for r in town.newest.requests.ended]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_three_nodes_that_start_at_once_all_become_normal(seed: int) -> None:
    with Town(seed) as town:
        town.found()
        assert town.finish(town.submit(1, keyspace("ks"))).error is None
        town.start(4, 5, 6)
        town.until(lambda: town.ready(4, 5, 6))
        assert all(node.state is NodeState.NORMAL for node in town.newest.directory.nodes)
        assert sorted(ended(town)) == [("bootstrap", node, "done") for node in (4, 5, 6)]
        for value in town.log.values:
            moving = [n.id for n in value.directory.nodes if n.state is NodeState.BOOTSTRAPPING]
            assert len(moving) <= 1, "with as many replicas as nodes every two joins share ranges"
        epochs = [value.epoch for value in town.log.values]
        assert epochs == sorted(set(epochs))


def test_queued_requests_outlive_the_leader_and_each_ends_once() -> None:
    with Town() as town:
        town.found()
        town.start(4, 5)
        town.until(lambda: town.ready(4, 5) and town.voters_settled and town.management_settled)
        leader = town.leader()
        asker, *spare = [node for node in (1, 2, 3, 4, 5) if node != leader][1:]
        for node in spare:
            assert town.finish(town.submit(asker, leave(node))).error is None
        town.process(leader).crash()
        town.until(lambda: not town.newest.requests.live)
        left = [(kind, node, state) for kind, node, state in ended(town) if kind == "decommission"]
        assert sorted(left) == [("decommission", node, "done") for node in spare]


def test_a_voter_leaves_by_one_request() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        leaving = town.leader()
        request = town.finish(town.submit(1, leave(leaving)))
        assert request.error is None, request.error
        town.until(lambda: town.state_of(leaving) is NodeState.LEFT)
        assert ended(town)[-1] == ("decommission", leaving, "done")
        assert leaving not in town.newest.service.members


def test_a_newcomer_whose_request_is_cancelled_says_so_and_ends() -> None:
    with Town() as town:
        town.found()
        assert town.finish(town.submit(1, keyspace("ks"))).error is None
        town.start(4, 5)
        town.until(lambda: any(r.state is RequestState.QUEUED for r in town.newest.requests.live))
        (waiting,) = (r for r in town.newest.requests.live if r.state is RequestState.QUEUED)
        assert town.finish(town.submit(1, CancelRequest(waiting.id, "one is enough"))).error is None
        town.until(lambda: len(town.ended) == 1)
        assert "cancelled" in next(iter(town.ended.values())).message


def ask(town: Town, asker: int, asked: int, verb: int, message: object) -> Outcome:
    async def send(node: Node) -> object:
        return await node.context.internode.request((f"127.0.0.{asked}", 7000), verb, message, 1000)

    return town.finish(town.begin(asker, send))


def test_an_excluded_node_is_refused_by_all_until_it_is_included_after_catching_up() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        work = RunWork(1, Stage.PREPARED, "none", 1, 1)
        assert not isinstance(ask(town, 4, 2, verbs.RUN_WORK, work).error, NodeExcluded)
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "suspect"))).error is None
        town.agreed(1, 2, 3, 4)
        assert isinstance(ask(town, 4, 2, verbs.RUN_WORK, work).error, NodeExcluded)
        assert not isinstance(ask(town, 1, 2, verbs.RUN_WORK, work).error, NodeExcluded)
        town.process(2).crash()
        town.start(2)
        town.until(lambda: town.ready(2))
        town.wait(2.0)
        assert isinstance(ask(town, 4, 2, verbs.RUN_WORK, work).error, NodeExcluded), "the list persists"
        told = ask(town, 1, 4, verbs.EPOCH_QUERY, EpochQuery(town.newest.epoch))
        assert told.error is None, "it may still catch up"
        back = IncludeNodes((NodeId(4),), (told.value.epoch,))
        assert town.finish(town.submit(1, back)).error is None
        town.agreed(1, 2, 3, 4)
        assert not isinstance(ask(town, 4, 2, verbs.RUN_WORK, work).error, NodeExcluded)


def test_an_excluded_node_reaches_no_quorum_and_the_others_still_do() -> None:
    with founded(3) as town:
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "suspect"))).error is None
        town.agreed(1, 2, 3, 4)
        others, shut_out = Writers(town, (1,), 2), Writers(town, (4,), 2)
        town.until(lambda: len(others.acknowledged) > 20 and len(shut_out.failed) > 20)
        assert not shut_out.acknowledged and not others.failed
        reached = (town.node(4).log.state.epoch,)
        assert town.finish(town.submit(1, IncludeNodes((NodeId(4),), reached))).error is None
        town.agreed(1, 2, 3, 4)
        town.until(lambda: bool(shut_out.acknowledged))
        others.stop()
        shut_out.stop()
