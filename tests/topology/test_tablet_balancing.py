"""Tablets: what the balancer begins, who waits until a node is empty, and what can never be emptied."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import DIRECTORY, NodeState
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import Policy, RequestState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import TRANSITIONS, Position, Transition
from lockstep.placement.placements import PlacedRange, ReplicaGroup
from lockstep.placement.tablets.load import GIB, Drain, NodeLoad, TabletLoad
from lockstep.placement.tablets.moves import WRITES_MAX, Why
from lockstep.quorum.plans import PlanBook
from lockstep.topology.health import View, findings, level_of
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import CancelRequest, EnqueueRequest, FailRequest, Rule, choose, why
from lockstep.topology.tablets import drains
from lockstep.topology.tablets import stages as courses
from lockstep.topology.tablets.balancing import KINDS as SWITCH_KINDS
from lockstep.topology.tablets.balancing import Planner, SetBalancing, hosts_of
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.conditions import Level
from lockstep.values.errors import Rejected
from lockstep.values.ids import Consistency, NodeId
from tests.metadata.histories import History, founder, registry
from tests.metadata.test_tablet_groups import keyspace, table
from tests.topology.lone import COURSES, SHUFFLE

TABLETS = 32
CAPACITY = 100 * GIB


def cluster_of(nodes: int, factor: int = 3) -> History:
    history = History(registry(SWITCH_KINDS))
    founders = tuple(founder(n, (n * 10,)) for n in range(1, nodes + 1))
    history.submit(Initialize("c", "n", founders, voters=(NodeId(1),)))
    history.submit(ChangeSchema(keyspace(tablets=(("initial", str(TABLETS)),), factor=factor)))
    history.submit(ChangeSchema(table("t")))
    return history


def without_tablets(cluster: ClusterMetadata, *empty: int) -> ClusterMetadata:
    """All tablets on nodes 1 to 3: the others have just come."""
    (group,) = cluster.tablets.groups
    ring = cluster.placements.ring(group.id)
    nodes = tuple(node for node in cluster.directory.present_ids if node not in empty)[:3]
    made = [
        PlacedRange(placed.range, ReplicaGroup(nodes, nodes, placed.group.epoch)) for placed in ring.ranges
    ]
    return cluster.changed(PLACEMENTS.set(cluster.placements.with_rings([ring.replaced(made)])))


def measured(cluster: ClusterMetadata, *silent: int) -> Planner:
    """A planner that was told that each tablet has a gibibyte."""
    (group,) = cluster.tablets.groups
    found = {}
    for node in cluster.directory.present_ids:
        held = {
            placed.range.right: TabletLoad(GIB)
            for placed in cluster.placements.ring(group.id).ranges
            if node in placed.group.reads
        }
        if node not in silent:
            found[node] = NodeLoad(CAPACITY, 0.0, {group.id: held})
    planner = Planner()
    planner.refreshed(found)
    return planner


def left(cluster: ClusterMetadata, node: int) -> ClusterMetadata:
    info = cluster.directory.by_id[NodeId(node)]
    gone = msgspec.structs.replace(info, state=NodeState.LEFT, tokens=(), epoch=cluster.epoch)
    return cluster.changed(DIRECTORY.set(cluster.directory.with_node(gone)))


def test_a_newcomer_gets_its_share() -> None:
    cluster = without_tablets(cluster_of(4).now, 4)
    planned = measured(cluster).look(cluster, ())
    assert planned.begins is not None and planned.begins.plan_epoch == cluster.epoch
    everything = (*planned.plan.moves, *planned.plan.left)
    assert len(everything) == TABLETS * 3 // 4 and {move.target[0] for move in everything} == {4}
    assert {move.kind for move in planned.begins.moves} == {"migration"}
    assert sum(move.weight() for move in planned.plan.moves) <= WRITES_MAX, "bounded by the newcomer's slots"
    assert not planned.fails and not planned.waits


def test_an_even_cluster_moves_nothing() -> None:
    cluster = cluster_of(4).now
    planned = measured(cluster).look(cluster, ())
    assert planned.begins is None and planned.plan.is_empty


def test_a_node_without_statistics_gets_nothing_and_is_named() -> None:
    cluster = without_tablets(cluster_of(4).now, 4)
    planned = measured(cluster, 4).look(cluster, ())
    assert planned.begins is None
    assert planned.waits == ("node 4 has no statistics: nothing moves to it, or from it",)


def test_a_node_that_is_down_gets_nothing() -> None:
    cluster = without_tablets(cluster_of(4).now, 4)
    assert measured(cluster).look(cluster, (NodeId(4),)).begins is None


def test_the_target_is_kept_where_moves_begun_and_made_anew_where_they_were_refused() -> None:
    cluster = without_tablets(cluster_of(4).now, 4)
    planner = measured(cluster)
    first = planner.look(cluster, ())
    assert planner.look(cluster, ()).plan == first.plan, "looking changes nothing"
    planner.begun(first)
    assert planner.look(cluster, ()).plan.left != first.plan.moves + first.plan.left
    planner.refused()
    assert planner.look(cluster, ()).plan == first.plan


@pytest.mark.parametrize("by_table", [False, True])
def test_switched_off_nothing_is_moved_for_balance(by_table: bool) -> None:
    history = cluster_of(4)
    (group,) = history.now.tablets.groups
    entry = SetBalancing(False, group.id if by_table else 0)
    history.submit(entry)
    again = history.tried(entry)
    assert again is not None and "off" in again.message and "already" in again.message
    cluster = without_tablets(history.now, 4)
    assert measured(cluster).look(cluster, ()).begins is None
    history.submit(SetBalancing(True, entry.group))
    cluster = without_tablets(history.now, 4)
    assert measured(cluster).look(cluster, ()).begins is not None
    assert history.replayed() == history.now


def test_a_group_that_is_not_there_is_not_switched() -> None:
    refused = cluster_of(4).tried(SetBalancing(False, 99))
    assert refused is not None and refused.message == "there is no tablet group 99"


def test_a_frozen_cluster_begins_no_moves() -> None:
    cluster = without_tablets(cluster_of(4).now, 4)
    frozen = msgspec.structs.replace(cluster.service, frozen="upgrade")
    cluster = cluster.changed(SERVICE.set(frozen))
    planned = measured(cluster).look(cluster, ())
    assert planned.begins is None and "frozen" in planned.waits[0] and planned.plan.moves


# ---- drains


def test_a_request_is_paused_while_its_node_holds_tablets() -> None:
    history = cluster_of(4)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    (request,) = history.now.requests.live
    held = drains.held_tablets(history.now, NodeId(4))
    assert held == TABLETS * 3 // 4
    found = why(history.now, request)
    assert found is not None and found.rule is Rule.TABLETS and found.node == 4
    assert found.reason == f"paused: node 4 holds {held} tablets, which other nodes get first"
    assert choose(history.now).run is None and choose(history.now).fails is None
    assert history.now.directory.by_id[NodeId(4)].state is NodeState.NORMAL
    refused = history.tried(PrepareOperation(request.body, request.id))
    assert refused is not None and "paused" in refused.message
    now = without_tablets(history.now, 4)
    assert choose(now).run == request, "it begins once the node is empty"


def test_a_request_that_does_not_wait_is_refused_while_its_node_holds_tablets() -> None:
    refused = cluster_of(4).tried(EnqueueRequest(Decommission(NodeId(4)), policy=Policy.REFUSE))
    assert refused is not None and "holds 24 tablets" in refused.message


def test_taken_back_while_paused_the_node_is_normal_and_keeps_its_tablets() -> None:
    history = cluster_of(4)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    (request,) = history.now.requests.live
    history.submit(CancelRequest(request.id))
    assert history.now.requests.by_id[request.id].state is RequestState.CANCELLED
    assert hosts_of(history.now, ())[3].drain is Drain.NONE
    assert measured(history.now).look(history.now, ()).plan.is_empty


@pytest.mark.parametrize(
    ("body", "dead", "kind"),
    [(Decommission(NodeId(4)), (), "migration"), (Remove(NodeId(4)), (NodeId(4),), "rebuild")],
)
@pytest.mark.parametrize("is_on", [True, False])
def test_a_node_that_goes_is_emptied_whatever_the_switch(
    body: Decommission | Remove, dead: tuple[NodeId, ...], kind: str, is_on: bool
) -> None:
    history = cluster_of(5)
    if not is_on:
        history.submit(SetBalancing(False))
    history.submit(EnqueueRequest(body))
    planned = measured(history.now).look(history.now, dead)
    assert planned.begins is not None and not planned.fails
    assert {(move.kind, move.source[0]) for move in planned.begins.moves} == {(kind, 4)}
    moves = (*planned.plan.moves, *planned.plan.left)
    assert len([move for move in moves if move.source[0] == 4]) == drains.held_tablets(history.now, NodeId(4))
    assert 4 not in {move.target[0] for move in moves}


def test_several_nodes_are_emptied_at_once() -> None:
    history = cluster_of(6)
    for node in (5, 6):
        history.submit(EnqueueRequest(Decommission(NodeId(node))))
    planned = measured(history.now).look(history.now, ())
    drained = {move.source[0] for move in planned.plan.moves if move.why is Why.DRAIN}
    assert drained == {5, 6}


def test_scenario_08_without_a_place_for_a_tablet_that_request_alone_fails_and_names_it() -> None:
    history = cluster_of(4)
    for node in (3, 4):
        history.submit(EnqueueRequest(Decommission(NodeId(node))))
    planned = measured(history.now).look(history.now, ())
    (fail,) = planned.fails
    assert fail.request_id == 2, "the one that was asked for last"
    assert "the tablet of k.t that ends at" in fail.reason and "cannot leave node 4" in fail.reason
    assert planned.begins is None
    history.submit(fail)
    ended = history.now.requests.by_id[fail.request_id]
    assert ended.state is RequestState.FAILED and ended.outcome == fail.reason
    assert history.now.directory.by_id[NodeId(4)].state is NodeState.NORMAL
    assert history.now.service.leaving == (3,)
    planned = measured(history.now).look(history.now, ())
    assert planned.begins is not None and {move.source[0] for move in planned.begins.moves} == {3}
    assert history.replayed() == history.now


def test_while_a_node_is_down_nothing_fails_for_want_of_a_place() -> None:
    history = cluster_of(4)
    history.submit(EnqueueRequest(Decommission(NodeId(3))))
    planned = measured(history.now).look(history.now, (NodeId(4),))
    assert not planned.fails and any("node 4 is down, or changes its place" in wait for wait in planned.waits)


def test_a_drain_waits_for_the_statistics_of_a_node_that_it_names() -> None:
    history = cluster_of(5)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    planned = measured(history.now, 5).look(history.now, ())
    assert planned.begins is None and not planned.fails
    assert any("node 5 has no statistics, so node 4 is not drained" in wait for wait in planned.waits)


def test_only_what_waits_for_tablets_fails_for_them() -> None:
    history = cluster_of(4)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    (request,) = history.now.requests.live
    refused = history.tried(FailRequest(request.id, "x" * 10_000))
    assert refused is not None and "at most" in refused.message
    history = cluster_of(4)
    history.submit(EnqueueRequest(Remove(NodeId(4))))
    emptied = without_tablets(history.now, 4)
    with pytest.raises(Rejected, match="does not wait for tablets"):
        FailRequest(1, "nowhere").apply(emptied, emptied.epoch + 1)


def test_what_a_node_held_that_has_left_is_built_anew() -> None:
    cluster = left(cluster_of(5).now, 4)
    assert drains.left_holders(cluster) == (4,)
    host = next(host for host in hosts_of(cluster, ()) if host.node == 4)
    assert host.drain is Drain.REMOVE and host.is_excluded and not host.is_up
    planned = measured(cluster).look(cluster, ())
    assert planned.begins is not None
    assert {(move.kind, move.source[0]) for move in planned.begins.moves} == {("rebuild", 4)}


def test_nothing_is_asked_of_a_node_that_has_left_and_counts_stay() -> None:
    cluster = left(cluster_of(4).now, 4)
    plans = PlanBook(lambda: cluster, lambda: 1)
    table_id = cluster.schema.table("k", "t").id  # type: ignore[union-attr]
    (group,) = cluster.tablets.groups
    token = next(
        placed.range.right for placed in cluster.placements.ring(group.id).ranges if 4 in placed.group.reads
    )
    for plan in (
        plans.write_plan(table_id, token, Consistency.QUORUM),
        plans.write_plan(table_id, token, Consistency.ALL),
        plans.read_plan(table_id, token, Consistency.QUORUM),
    ):
        assert 4 not in plan.by_node and len(plan.targets) == 2
        assert plan.required == (3 if plan.consistency is Consistency.ALL else 2)


# ---- what is on its way


def on_its_way(cluster: ClusterMetadata, stage: Stage) -> tuple[ClusterMetadata, Transition]:
    """The first tablet moves from node 1 to node 4."""
    (group,) = cluster.tablets.groups
    ring = cluster.placements.ring(group.id)
    placed = ring.ranges[0]
    new = tuple(NodeId(4) if node == 1 else node for node in placed.group.reads)
    position = Position(SHUFFLE.name, stage, cluster.epoch)
    one = Transition(group.id, placed.range, placed.group.reads, new, ring.replication, position=position)
    return cluster.changed(TRANSITIONS.set(cluster.transitions.moved((one,)))), one


def test_what_is_on_its_way_counts_as_arrived_and_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses, "COURSES", COURSES)
    before = without_tablets(cluster_of(4).now, 4)
    cluster, one = on_its_way(before, Stage.WRITE_BOTH_READ_OLD)
    planned = measured(cluster).look(cluster, ())
    (running,) = planned.cluster.running
    assert running.is_streaming and (running.move.source, running.move.target) == ((1, 0), (4, 0))
    moves = (*planned.plan.moves, *planned.plan.left)
    assert len(moves) == TABLETS * 3 // 4 - 1
    assert one.range.right not in {move.right for move in planned.plan.moves}
    assert drains.held_tablets(cluster, NodeId(4)) == 1, "a node that takes one in is not empty"
    assert "holds 1 tablet," in drains.paused(cluster, Decommission(NodeId(4)))
    assert not drains.paused(cluster, Remove(NodeId(4))), "who is gone takes nothing in"


def test_what_goes_back_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses, "COURSES", COURSES)
    cluster, one = on_its_way(without_tablets(cluster_of(4).now, 4), Stage.ROLLBACK_TO_NORMAL)
    planned = measured(cluster).look(cluster, ())
    assert not planned.cluster.running and list(planned.cluster.held) == [(one.group, one.range.right)]


def test_statistics_follow_a_move_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses, "COURSES", COURSES)
    before = without_tablets(cluster_of(4).now, 4)
    moving, one = on_its_way(before, Stage.WRITE_BOTH_READ_NEW)
    planner = measured(before)
    planner.look(moving, ())
    ring = before.placements.ring(one.group)
    arrived = PlacedRange(one.range, ReplicaGroup(one.new, one.new, before.epoch))
    after = before.changed(PLACEMENTS.set(before.placements.with_rings([ring.replaced([arrived])])))
    planner.look(after, ())
    assert planner.statistics.of(NodeId(4), one.group, one.range.right) == TabletLoad(GIB)
    assert planner.statistics.of(NodeId(1), one.group, one.range.right) is None


def test_an_excluded_node_can_hand_nothing_over() -> None:
    history = cluster_of(5)
    history.submit(EnqueueRequest(Decommission(NodeId(4))))
    history.submit(ExcludeNodes((NodeId(4),), "broken"))
    (fail,) = measured(history.now).look(history.now, (NodeId(4),)).fails
    assert "it can be removed" in fail.reason


def test_the_verdict_warns_until_what_left_is_built_anew() -> None:
    cluster = left(cluster_of(5).now, 4)
    view = View(1, frozenset(cluster.directory.present_ids), {}, frozenset())
    told = {finding.condition.code: finding.condition for finding in findings(cluster, view)}
    held = drains.held_tablets(cluster, NodeId(4))
    assert told["TABLETS_LACK_REPLICAS"].detail == f"{held} of node 4"
    built = without_tablets(cluster, 4)
    assert not [one for one in findings(built, view) if one.condition.code == "TABLETS_LACK_REPLICAS"]


def test_what_left_counts_in_no_quorum() -> None:
    cluster = left(cluster_of(5).now, 4)
    present = frozenset(cluster.directory.present_ids)
    assert level_of(findings(cluster, View(1, present, {}))) is Level.DEGRADED
    (group,) = cluster.tablets.by_group
    beside = {
        node
        for one in cluster.placements.ring(group).ranges
        for node in one.group.reads
        if 4 in one.group.reads
    }
    without = View(1, present - {max(beside - {1, 4})}, {})
    assert level_of(findings(cluster, without)) is Level.UNAVAILABLE
    assert level_of(findings(without_tablets(cluster, 4), without)) is Level.DEGRADED
