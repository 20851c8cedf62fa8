"""A change of the replication of tablets: its steps, its way back, and what it and others wait for."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec import structs

from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import Policy, RequestState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import Lone
from lockstep.placement.quorums import dc_factors
from lockstep.placement.tablets.load import GIB, NodeLoad
from lockstep.quorum.plans import PlanBook
from lockstep.schema.changes import AlterKeyspace, CreateKeyspace, CreateTable, DropTable
from lockstep.schema.model import Replication
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.invariants import check_stale_coordinators, violations
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.replication import ReplicationChange, target_of
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.preview import needed_sizes, present_ring, preview
from lockstep.topology.requests import CancelRequest, EnqueueRequest, Rule, why
from lockstep.topology.tablets.balancing import Planner
from lockstep.topology.tablets.moves import BeginMoves
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.errors import OperationRunning
from lockstep.values.ids import Consistency, NodeId
from tests.metadata.histories import History, founder, network, simple
from tests.topology.drills import Coordinator, advance, finish, options, refused
from tests.topology.tablets.worlds import TABLE, begin, map_of, move, on_its_way

OTHER = structs.replace(TABLE, name="u", uuid="00000000-0000-0000-0000-000000000002")


def world(
    replication: Replication,
    nodes: int = 6,
    dcs: int = 1,
    racks: int = 1,
    tablets: int = 8,
    *tables: CreateTable,
) -> History:
    history = History()
    founders = tuple(
        founder(n, (n * 10,), f"dc{(n - 1) % dcs + 1}", f"r{(n - 1) // dcs % racks + 1}")
        for n in range(1, nodes + 1)
    )
    history.submit(Initialize("c", "n", founders, voters=(NodeId(1),)))
    made = CreateKeyspace("k", options(replication), tablets=(("initial", str(tablets)),))
    for change in (made, TABLE, *tables):
        history.submit(ChangeSchema(change))
    return history


def ask(history: History, target: Replication, policy: Policy = Policy.REFUSE) -> None:
    history.submit(EnqueueRequest(ReplicationChange("k", target), policy=policy, actor="a"))


def replication_of(history: History) -> Replication:
    return history.now.schema.by_name["k"].replication


def all_sound(history: History) -> None:
    for before, after in itertools.pairwise(history.values):
        assert violations(before, after) == ()
        after.validate(before)
    history.now.validate()


def spread_by_dc(history: History) -> set[tuple[tuple[str, int], ...]]:
    """How many replicas tablets have in each data centre."""
    dc_of = history.now.directory.dc_by_id
    found = set()
    for group in history.now.tablets.groups:
        for tablet in group.map(history.now.placements).tablets():
            dcs = [dc_of[node] for node in tablet.nodes]
            found.add(tuple((dc, dcs.count(dc)) for dc in sorted(set(dcs))))
    return found


@pytest.mark.parametrize(
    ("before", "after", "dcs"),
    [
        (network(dc1=1), network(dc1=3), 1),
        (network(dc1=3), network(dc1=1), 1),
        (network(dc1=2), network(dc1=6), 1),
        (network(dc1=3), network(dc1=3, dc2=3), 2),
        (network(dc1=2, dc2=2), network(dc2=3), 2),
        (network(dc1=1), network(dc2=1), 2),
    ],
)
@pytest.mark.parametrize("racks", [1, 2])
def test_any_factor_becomes_any_other_in_sound_steps(
    before: Replication, after: Replication, dcs: int, racks: int
) -> None:
    history = world(before, 6, dcs, racks, 8, OTHER)
    ask(history, after)
    finish(history)
    assert replication_of(history) == after
    assert spread_by_dc(history) == {dc_factors(after)}
    assert {ring.replication for ring in history.now.placements.rings} == {after}
    assert history.now.requests.ended[-1].state is RequestState.DONE
    all_sound(history)


def test_a_tablet_has_one_pending_or_one_leaving_replica_at_a_time() -> None:
    history = world(network(dc1=1))
    ask(history, network(dc1=3))
    while history.now.operations:
        for transition in history.now.transitions.listed():
            assert len(transition.gained) + len(transition.lost) == 1
        advance(history)
    steps = [one.operations[0].step for one in history.values if one.operations]
    assert sorted(set(steps)) == [1, 2]
    all_sound(history)


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (1, 2, [(1, 1), (2, 2), (2, 2), (2, 2), (2, 2)]),
        (2, 3, [(2, 2), (3, 3), (2, 2), (2, 2), (2, 2)]),
        (3, 2, [(2, 2), (3, 3), (3, 3), (2, 2), (2, 2)]),
        (2, 1, [(2, 2), (2, 2), (2, 2), (1, 1), (1, 1)]),
    ],
)
def test_a_quorum_is_one_of_the_replicas_that_a_tablet_has(
    before: int, after: int, counts: list[tuple[int, int]]
) -> None:
    """What writes and reads at QUORUM hear, stage by stage."""
    history = world(network(dc1=before), 4)
    table = history.now.schema.by_name["k"].by_name["t"].id
    ask(history, network(dc1=after))
    seen = []
    while history.now.operations:
        book = PlanBook(lambda: history.now, lambda: 1)
        write = book.write_plan(table, 5, Consistency.QUORUM)
        read = book.read_plan(table, 5, Consistency.QUORUM)
        seen.append((write.required, read.required))
        advance(history)
    assert seen == counts
    all_sound(history)


@pytest.mark.parametrize("to", [1, 3])
def test_a_coordinator_that_is_behind_misses_no_quorum(to: int) -> None:
    history = world(network(dc1=2), 4, tablets=2)
    ask(history, network(dc1=to))
    begun = len(history.values) - 1
    finish(history)
    seen: dict[NodeId, int] = {}
    for at in range(begun, len(history.values)):
        values = history.values[begun - 1 : at + 1]
        seen = dict.fromkeys(history.now.directory.present_ids, history.values[at - 1].epoch)
        assert check_stale_coordinators(values, seen) == ()


@pytest.mark.parametrize("advances", range(12))
def test_a_cancel_at_any_point_leads_back_to_the_factor_of_before(advances: int) -> None:
    history = world(network(dc1=1), 4)
    ask(history, network(dc1=3))
    for _ in range(advances):
        if not history.now.operations:
            break
        advance(history)
    if not history.now.operations:
        assert advances > 9
        return
    history.submit(CancelRequest(1, "no"))
    assert "is already rolling back" in refused(history, CancelOperation(1, "no"))
    finish(history)
    assert replication_of(history) == network(dc1=1)
    assert spread_by_dc(history) == {(("dc1", 1),)}
    assert history.now.requests.ended[-1].state is RequestState.CANCELLED
    all_sound(history)


def test_replicas_spread_over_racks_and_nodes() -> None:
    history = world(network(dc1=2), 6, racks=3, tablets=16)
    rack_of = {node.id: node.rack for node in history.now.directory.nodes}
    ask(history, network(dc1=3))
    finish(history)
    held: dict[NodeId, int] = {}
    for tablet in map_of(history).tablets():
        assert len({rack_of[node] for node in tablet.nodes}) == 3
        for node in tablet.nodes:
            held[node] = held.get(node, 0) + 1
    assert set(held.values()) == {8}
    ask(history, network(dc1=1))
    finish(history)
    counts = [len([t for t in map_of(history).tablets() if node in t.nodes]) for node in rack_of]
    assert sum(counts) == 16 and max(counts) - min(counts) <= 1


def test_who_is_shut_out_gives_its_replicas_up_first() -> None:
    history = world(network(dc1=3), 4)
    history.submit(ExcludeNodes((NodeId(2),), "broken"))
    ask(history, network(dc1=2))
    finish(history)
    assert not any(NodeId(2) in tablet.nodes for tablet in map_of(history).tablets())
    assert replication_of(history) == network(dc1=2)
    all_sound(history)


def test_who_was_given_up_by_force_gives_its_replicas_up_first() -> None:
    history = world(network(dc1=3), 4)
    history.submit(ForceRemove(NodeId(2), "burnt"))
    assert history.now.directory.by_id[NodeId(2)].state is NodeState.LEFT
    ask(history, network(dc1=2))
    finish(history)
    assert not any(NodeId(2) in tablet.nodes for tablet in map_of(history).tablets())
    for before, after in itertools.pairwise(history.values):
        after.validate(before)


def test_it_waits_for_tablets_that_move_and_nothing_moves_for_balance_meanwhile() -> None:
    history = world(network(dc1=3), 5)
    wanted = move(history)
    begin(history, wanted)
    ask(history, network(dc1=2), Policy.WAIT)
    (request,) = history.now.requests.queue
    waits = why(history.now, request)
    assert waits is not None and waits.rule is Rule.TABLETS and "1 tablets of keyspace k move" in waits.reason
    planner = Planner()
    planner.refreshed({node: NodeLoad(100 * GIB) for node in history.now.directory.present_ids})
    assert not any(table.is_on for table in planner.look(history.now, ()).cluster.tables)
    while one := on_its_way(history, wanted):
        history.submit(
            AdvanceTransitions((TransitionStep(one.group, one.range.right, Lone(one).stage_epoch),))
        )
    Coordinator(history, random.Random(1)).finish()
    assert on_its_way(history, wanted) is None
    assert replication_of(history) == network(dc1=2)
    assert all(table.is_on for table in planner.look(history.now, ()).cluster.tables)
    all_sound(history)


def test_tablets_in_change_do_not_move_otherwise() -> None:
    history = world(network(dc1=1), 4)
    ask(history, network(dc1=2))
    wanted = move(history)
    assert "operation 1 (replication_change of keyspace k)" in refused(history, BeginMoves(0, (wanted,)))
    held = Planner()
    held.refreshed({node: NodeLoad(100 * GIB) for node in history.now.directory.present_ids})
    assert len(held.look(history.now, ()).cluster.held) == 8
    assert held.look(history.now, ()).begins is None


def test_scenario_28_without_a_node_for_a_tablet_it_is_paused_and_can_be_cancelled() -> None:
    history = world(network(dc1=2), 3)
    history.submit(EnqueueRequest(Decommission(NodeId(3))))
    ask(history, network(dc1=3), Policy.WAIT)
    request = history.now.requests.by_keyspace["k"]
    waits = why(history.now, request)
    assert waits is not None and waits.rule is Rule.TABLETS
    assert "no node of data centre dc1 can get one more replica" in waits.reason
    history.submit(CancelRequest(request.id, "no"))
    assert history.now.requests.by_id[request.id].state is RequestState.CANCELLED
    ask(history, network(dc1=3), Policy.WAIT)
    request = history.now.requests.by_keyspace["k"]
    history.submit(CancelRequest(history.now.requests.queue[0].id, "stay"))
    assert why(history.now, request) is None
    Coordinator(history, random.Random(1)).finish()
    assert spread_by_dc(history) == {(("dc1", 3),)}
    all_sound(history)


def test_a_step_that_finds_no_node_rests_in_the_queue_and_goes_on_later() -> None:
    history = world(network(dc1=1), 3)
    ask(history, network(dc1=3))
    while history.now.operations[0].stage is not Stage.CLEANUP:
        advance(history)
    history.submit(ExcludeNodes((NodeId(3),), "broken"))
    advance(history)
    (request,) = history.now.requests.queue
    assert replication_of(history) == network(dc1=2) and request.original == network(dc1=1)
    waits = why(history.now, request)
    assert waits is not None and waits.rule is Rule.TABLETS
    history.submit(IncludeNodes((NodeId(3),), (history.now.epoch,)))
    history.submit(PrepareOperation(request.body, request.id))
    finish(history)
    assert replication_of(history) == network(dc1=3)
    all_sound(history)


def test_a_way_back_without_a_node_for_a_tablet_ends_where_it_is() -> None:
    history = world(network(dc1=3), 3)
    ask(history, network(dc1=1))
    while history.now.operations[0].step < 2:
        advance(history)
    history.submit(ExcludeNodes((NodeId(3),), "broken"))
    history.submit(CancelRequest(1, "no"))
    finish(history)
    assert replication_of(history) == network(dc1=2)
    ended = history.now.requests.ended[-1]
    assert ended.state is RequestState.CANCELLED and "it stopped at" in ended.outcome
    all_sound(history)


def test_tables_do_not_come_or_go_meanwhile_and_are_altered() -> None:
    history = world(network(dc1=1), 4)
    ask(history, network(dc1=2))
    for change in (OTHER, DropTable("k", "t")):
        with pytest.raises(OperationRunning, match="replication_change of keyspace k"):
            history.submit(ChangeSchema(change))
    history.submit(ChangeSchema(AlterKeyspace("k", durable_writes=False)))
    finish(history)
    history.submit(ChangeSchema(OTHER))
    assert spread_by_dc(history) == {(("dc1", 2),)}
    all_sound(history)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (network(dc1=4), "data centre dc1 has 3 nodes, and each tablet of keyspace k would have 4 replicas"),
        (simple(2), "tablets need NetworkTopologyStrategy"),
        (network(dc9=1), "there is no data centre 'dc9'"),
        (network(dc1=1), "is replicated this way already"),
    ],
)
def test_what_cannot_be_is_refused(target: Replication, message: str) -> None:
    history = world(network(dc1=1), 3)
    assert message in refused(history, EnqueueRequest(ReplicationChange("k", target)))


def test_an_alteration_of_a_keyspace_with_tables_is_an_operation_and_of_one_without_an_entry() -> None:
    history = world(network(dc1=1), 4)
    wanted = AlterKeyspace("k", options(network(dc1=2)))
    assert target_of(history.now, wanted) == network(dc1=2)
    assert "topology rf k" in refused_hint(history, ChangeSchema(wanted))
    history.submit(ChangeSchema(DropTable("k", "t")))
    assert target_of(history.now, wanted) is None
    history.submit(ChangeSchema(wanted))
    assert replication_of(history) == network(dc1=2)
    ask(history, network(dc1=3))
    finish(history)
    assert replication_of(history) == network(dc1=3)
    all_sound(history)


def refused_hint(history: History, change: ChangeSchema) -> str:
    refusal = history.tried(change)
    assert refusal is not None
    return refusal.hint


def test_its_plan_names_who_holds_tablets_now() -> None:
    history = world(network(dc1=1), 4, tablets=4)
    told = preview(history.now, PrepareOperation(ReplicationChange("k", network(dc1=3))))
    sizes = needed_sizes(told.tasks, present_ring(history.now, told.operation))
    group = map_of(history)
    for source, asked in sizes.items():
        for group_id, range_ in asked:
            assert group_id == group.id and source in group.at(range_.right).nodes
    assert not told.starved and told.last.schema.by_name["k"].replication == network(dc1=3)


@pytest.mark.parametrize("seed", range(6))
def test_a_coordinator_brings_it_to_its_end_while_nodes_lag(seed: int) -> None:
    rng = random.Random(seed)
    history = world(network(dc1=rng.randint(1, 3)), 5, racks=rng.randint(1, 3), tablets=4)
    target = network(dc1=rng.choice([n for n in (1, 2, 3, 4) if n != replication_of(history).total]))
    ask(history, target, Policy.WAIT)
    Coordinator(history, rng).finish()
    assert replication_of(history) == target
    assert spread_by_dc(history) == {dc_factors(target)}
    all_sound(history)
