"""Scenarios of tablets that no other test shows as a whole, by their numbers; each number has a test."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import RequestState
from lockstep.placement.tablets.balancer import plan
from lockstep.placement.tablets.load import Drain, Host
from lockstep.placement.tablets.target import Cluster
from lockstep.quorum.plans import PlanBook
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import CancelRequest, EnqueueRequest, choose
from lockstep.topology.tablets import drains
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import Consistency, NodeId
from tests.placement.tablets.clusters import Carried, hosts_of, measured, new_table, setting
from tests.placement.tablets.test_balancer import tables
from tests.topology import test_tablet_balancing as balancing
from tests.topology.drills import register
from tests.topology.lone import World
from tests.topology.tablets.test_migrations import FORWARD, until
from tests.topology.tablets.worlds import begin, cluster, map_of, move, on_its_way

LAST, LAST_TRACKED = 28, 30


@pytest.mark.parametrize(("is_tracked", "last"), [(False, LAST), (True, LAST_TRACKED)])
def test_every_scenario_has_a_test_of_its_number(is_tracked: bool, last: int) -> None:
    """Of tablets, and of tracked tables, whose modules say so or load into them."""
    found = set()
    for path in Path(__file__).parents[2].rglob("test_*.py"):
        of_tracked = "tracked" in path.name or path.name == "test_loads.py"
        if of_tracked is not is_tracked:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_scenario_"):
                found.add(int(node.name.split("_")[2]))
    assert found == set(range(1, last + 1))


def test_scenario_02_a_join_goes_before_a_leave_which_is_paused_while_its_node_holds_tablets() -> None:
    history = balancing.cluster_of(4)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    assert choose(history.now).run is None
    history.submit(register(5, "dc1", "r1"))
    history.submit(EnqueueRequest(Bootstrap(NodeId(5), (55,))))
    chosen = choose(history.now).run
    assert chosen is not None and isinstance(chosen.body, Bootstrap)
    history.submit(PrepareOperation(chosen.body, chosen.id))
    leaving = next(one for one in history.now.requests.live if isinstance(one.body, Decommission))
    assert leaving.state is RequestState.QUEUED and drains.paused(history.now, leaving)
    assert history.now.directory.by_id[NodeId(4)].state is NodeState.NORMAL


def test_scenario_04_nodes_of_two_racks_leave_at_once_and_none_leaves_a_rack_empty() -> None:
    hosts = hosts_of(*[("dc1", rack, 1) for rack in "aabbc"])
    one = new_table(1, 24, setting(dc1=3), hosts, measured(hosts))
    for at, rack in ((0, "a"), (2, "b"), (4, "c")):
        hosts[at] = Host(hosts[at].node, "dc1", rack, 1, Drain.LEAVE)
    statistics = measured(hosts, [one])
    found, _ = plan(Cluster(hosts, tables(one), statistics))
    (failure,) = found.failures
    assert failure.node == hosts[4].node and "rack c of data centre dc1 has no place for it" in failure.reason
    hosts[4] = Host(hosts[4].node, "dc1", "c", 1)
    carried = Carried(hosts, tables(one), statistics, slow=2)
    assert {move.source[0] for move in carried.step().moves} == {hosts[0].node, hosts[2].node}
    carried.run()
    assert carried.on_nodes()[hosts[0].node] == carried.on_nodes()[hosts[2].node] == 0


def test_scenario_05_a_paused_leave_is_cancelled_and_tried_again_and_one_that_runs_goes_back() -> None:
    history = balancing.cluster_of(4)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    (request,) = history.now.requests.live
    held = drains.held_tablets(history.now, NodeId(4))
    history.submit(CancelRequest(request.id))
    assert history.now.requests.by_id[request.id].state is RequestState.CANCELLED
    assert history.now.directory.by_id[NodeId(4)].state is NodeState.NORMAL
    assert drains.held_tablets(history.now, NodeId(4)) == held > 0
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    (again,) = history.now.requests.live
    planned = balancing.measured(history.now).look(history.now, ())
    assert planned.begins is not None and {move.source[0] for move in planned.begins.moves} == {4}
    assert choose(balancing.without_tablets(history.now, 4)).run == again


def test_scenario_06_a_leave_whose_node_is_gone_fails_and_a_removal_builds_all_anew() -> None:
    history = balancing.cluster_of(5)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    history.submit(ExcludeNodes((NodeId(4),), "it died"))
    planned = balancing.measured(history.now).look(history.now, (NodeId(4),))
    (fail,) = planned.fails
    moves = (*planned.plan.moves, *planned.plan.left)
    assert not [move for move in moves if move.source[0] == 4], "nothing of it is built anew meanwhile"
    history.submit(fail)
    assert not history.now.requests.live
    history.submit(EnqueueRequest(Remove(NodeId(4))))
    planned = balancing.measured(history.now, 4).look(history.now, (NodeId(4),))
    assert planned.begins is not None and {one.kind for one in planned.begins.moves} == {"rebuild"}
    moves = (*planned.plan.moves, *planned.plan.left)
    wanted = drains.held_tablets(history.now, NodeId(4))
    assert len([move for move in moves if move.source[0] == 4]) == wanted


def test_scenario_07_nodes_that_are_down_are_named_and_once_shut_out_they_can_be_removed() -> None:
    history, down = balancing.cluster_of(5), (NodeId(4), NodeId(5))
    history.submit(EnqueueRequest(Decommission(NodeId(3))))
    (leave,) = history.now.requests.live
    planned = balancing.measured(history.now, 4, 5).look(history.now, down)
    assert planned.begins is None and not planned.fails
    text = "; ".join(planned.waits)
    assert "node 4 has no statistics, so node 3 is not drained" in text
    assert all(f"node {node} has no statistics" in text for node in down)
    history.submit(CancelRequest(leave.id))
    history.submit(ExcludeNodes(down, "gone"))
    history.submit(EnqueueRequest(Remove(NodeId(4))))
    history.submit(EnqueueRequest(Remove(NodeId(5))))
    planned = balancing.measured(history.now, 4, 5).look(history.now, down)
    assert planned.begins is not None and {one.kind for one in planned.begins.moves} == {"rebuild"}
    assert not planned.waits and not planned.fails, "who is to be removed is asked for nothing"
    assert {move.source[0] for move in (*planned.plan.moves, *planned.plan.left)} == set(down)


#: Who is written, and how many must answer at QUORUM, of three replicas and a newcomer; who is read.
OLD, NEW, BOTH = ("old",), ("new",), ("old", "new")
SELECTED = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: (OLD, 2, OLD),
    Stage.WRITE_BOTH_READ_OLD: (BOTH, 3, OLD),
    Stage.STREAMING: (BOTH, 3, OLD),
    Stage.WRITE_BOTH_READ_NEW: (BOTH, 3, NEW),
    Stage.USE_NEW: (NEW, 2, NEW),
    Stage.CLEANUP: (NEW, 2, NEW),
    Stage.END_MIGRATION: (NEW, 2, NEW),
}


@pytest.mark.parametrize("stage", FORWARD)
def test_scenario_10_requests_go_where_the_table_of_stages_says(stage: Stage) -> None:
    history = cluster()
    wanted = move(history)
    old = set(map_of(history).at(wanted.right).nodes)
    begin(history, wanted)
    until(World(history, random.Random(5)), wanted, stage)
    one, now = on_its_way(history, wanted), history.now
    assert one is not None and one.position is not None and one.position.stage is stage
    sides = {"old": old, "new": set(one.new)}
    written, required, read = SELECTED[stage]
    book = _plans(now)
    table = now.schema.table("k", "t")
    assert table is not None
    writes = book.write_plan(table.id, wanted.right, Consistency.QUORUM)
    assert set(writes.by_node) == set().union(*(sides[side] for side in written))
    assert writes.required == required
    alone = book.read_plan(table.id, wanted.right, Consistency.ONE)
    assert set(alone.by_node) == sides[read[0]] and alone.required == 1
    # A read that is never to go back while replicas change hears as many as a write does.
    reads = book.read_plan(table.id, wanted.right, Consistency.QUORUM)
    assert set(reads.by_node) == set(writes.by_node) and reads.required == required


def _plans(now: ClusterMetadata) -> PlanBook:
    return PlanBook(lambda: now, lambda: 1)
