"""Move, replace, remove and rebuild: their rings, who is asked and who never is, and what is refused."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.transformations import Initialize
from lockstep.schema.model import Replication
from lockstep.topology.barriers import barrier_need, evaluate
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.invariants import check_restored, violations
from lockstep.topology.kind import kind_of
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.planning import streaming_session
from lockstep.topology.stages import Work
from lockstep.topology.step import Propose, Reports, RunWorkOrders, WorkReport, step, work_orders
from lockstep.topology.story import explain, headline
from lockstep.topology.streams import stream_plan
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, network, simple, started
from tests.topology.drills import Coordinator, refused, register, replacing, run_out, run_to
from tests.topology.test_operations import drawn

A, B, C, D, X = (NodeId(number) for number in (1, 2, 3, 4, 5))
REMOVE_D = PrepareOperation(Remove(D))
MOVE_D = PrepareOperation(Move(D, (150,)))
REPLACE_D = PrepareOperation(Replace(X, D))
REBUILD_D = PrepareOperation(Rebuild(D))


def four(replication: Replication | None = None, same_address: bool = True) -> History:
    """A 100, B 200, C 300, D 400; X is there to replace D."""
    history = started([(100,), (200,), (300,), (400,)], ("ks", replication or simple(3)))
    history.submit(replacing(5, history.now.directory.by_id[D], same_address))
    return history


def everywhere(history: History) -> list[str]:
    pairs = zip(history.values, history.values[1:], strict=False)
    return [line for before, after in pairs for line in violations(before, after)]


def test_a_replacement_takes_the_tokens_and_the_address_and_the_dead_node_has_left() -> None:
    history = four()
    before = drawn(history.now)
    assert "D" not in before
    history.submit(REPLACE_D)
    assert history.now.operations[0].title() == "operation 1 (replace of node 4 by node 5)"
    assert history.now.directory.by_id[X].state is NodeState.REPLACING
    assert history.now.directory.by_id[D].state is NodeState.NORMAL
    run_out(history, 1)
    directory = history.now.directory
    dead, new = directory.by_id[D], directory.by_id[X]
    assert (dead.state, dead.tokens, new.state, new.tokens) == (NodeState.LEFT, (), NodeState.NORMAL, (400,))
    assert directory.by_address[(dead.address, dead.internode_port)].id == X
    assert everywhere(history) == []
    history.now.validate()


@pytest.mark.parametrize("body", [MOVE_D, REPLACE_D, REMOVE_D])
@pytest.mark.parametrize("at", [0, 1])
def test_a_cancel_restores_everything_and_the_operation_can_run_again(
    body: PrepareOperation, at: int
) -> None:
    history = four()
    before = history.now
    history.submit(body)
    run_to(history, 1, kind_of(body.body).stages[at].stage)
    history.submit(CancelOperation(1, "no"))
    run_out(history, 1)
    assert check_restored(before, history.now) == ()
    states = [(node.id, node.state) for node in before.directory.nodes]
    assert [(node.id, node.state) for node in history.now.directory.nodes] == states
    history.submit(body)
    run_out(history, 2)
    assert everywhere(history) == []


def test_a_move_keeps_the_node_and_changes_its_tokens_and_losers_clean_up() -> None:
    history = four(simple(2))
    history.submit(MOVE_D)
    assert history.now.directory.by_id[D].state is NodeState.NORMAL
    assert "takes part in operation 1" in refused(history, REMOVE_D)
    run_to(history, 1, Stage.CLEANUP)
    orders = work_orders(history.now.operations[0], history.now, ())
    lost = {node for t in history.now.transitions.of(1) for node in t.lost}
    assert {order.node for order in orders} == lost and D in lost
    for order in orders:
        assert order.kind is Work.CLEANUP and order.session_id == "operation-1-cleanup"
        for group, range_ in order.ranges:
            assert order.node not in history.now.group_for(group, range_.right).writes
    assert [o.node for o in work_orders(history.now.operations[0], history.now, (D,))] == sorted(lost - {D})
    run_out(history, 1)
    assert history.now.directory.by_id[D].tokens == (150,)
    assert everywhere(history) == []


@pytest.mark.parametrize("body", [REPLACE_D, REMOVE_D])
def test_the_dead_node_is_no_source_counts_as_unaware_and_cleans_nothing(body: PrepareOperation) -> None:
    history = four()
    history.submit(body)
    for stage in [row.stage for row in kind_of(body.body).stages][:4]:
        operation = run_to(history, 1, stage)
        need = barrier_need(operation, history.now)
        assert D not in need.nodes()
        everybody = dict.fromkeys((A, B, C, D, X), need.epoch)
        assert evaluate(need, everybody, everybody).passed
        # The dead one and one more are a quorum of three, whatever the dead one said before.
        state = evaluate(need, {**everybody, A: 1}, everybody)
        assert not state.passed and {m.node for m in state.missing} == {A}
    tasks = stream_plan(operation, history.now, ())
    assert tasks and all(D not in task.sources and len(task.sources) == 2 for task in tasks)
    run_to(history, 1, Stage.CLEANUP)
    assert all(order.node != D for order in work_orders(history.now.operations[0], history.now, ()))


@pytest.mark.parametrize("factor", [2, 3])
def test_a_driven_replacement_of_a_dead_node_ends(factor: int) -> None:
    history = four(simple(factor))
    history.submit(REPLACE_D)
    world = Coordinator(history, random.Random(1), dead=(D,))
    world.finish()
    assert history.now.operations == () and history.now.directory.by_id[X].tokens == (400,)


def test_the_only_copies_are_not_given_up_without_force() -> None:
    history = four(simple(1))
    for body in (REMOVE_D, REPLACE_D):
        assert "only node 4 is sure to have all of range" in refused(history, body)


def test_a_rebuild_streams_what_the_node_owns_from_the_others_and_moves_nothing() -> None:
    history = four()
    before = drawn(history.now)
    history.submit(REBUILD_D)
    operation = history.now.operations[0]
    assert history.now.directory.by_id[D].state is NodeState.REBUILDING
    assert drawn(history.now) == before
    tasks = stream_plan(operation, history.now, ())
    owned = [p.range for p in history.now.placements.rings[0].ranges if D in p.group.reads]
    assert [task.range for task in tasks] == owned
    assert all(task.target == D and len(task.sources) == 2 and D not in task.sources for task in tasks)
    everybody = dict.fromkeys((A, B, C, D), history.now.epoch)
    decision = step(history.now, Reports(acknowledged=everybody))
    assert isinstance(decision, RunWorkOrders)
    assert [(o.node, o.kind, o.session_id) for o in decision.orders] == [
        (D, Work.REBUILD, "operation-1-rebuilding")
    ]
    assert headline(operation).endswith("step 1 of 1")
    assert explain(operation, history.now, Reports(acknowledged=everybody))[1] == "next: rebuild on node 4"
    key = (1, "operation-1-rebuilding", D)
    done = step(history.now, Reports(acknowledged=everybody, work={key: WorkReport.DONE}))
    assert done == Propose(AdvanceOperation(1, Stage.REBUILDING), 1)
    run_out(history, 1)
    assert history.now.directory.by_id[D].state is NodeState.NORMAL
    assert drawn(history.now) == before and everywhere(history) == []


def test_a_rebuild_that_fails_returns_the_node_to_normal() -> None:
    history = four()
    history.submit(REBUILD_D)
    key = (1, "operation-1-rebuilding", D)
    everybody = dict.fromkeys((A, B, C, D), history.now.epoch)
    reports = Reports(acknowledged=everybody, work={key: WorkReport.FAILED}, texts={key: "disk full"})
    decision = step(history.now, reports)
    assert decision == Propose(CancelOperation(1, "rebuild failed on node 4: disk full", failed=True), 1)
    history.submit(decision.transformation)
    failed = history.now.operations[0]
    assert not failed.session_id and streaming_session(failed), "what it took in is counted"
    run_out(history, 1)
    assert history.now.directory.by_id[D].state is NodeState.NORMAL
    assert history.now.directory.by_id[D].tokens == (400,)


def test_a_rebuild_from_a_data_centre_reads_only_there() -> None:
    history = History()
    founders = tuple(founder(n, (n * 10,), f"dc{1 + n // 4}") for n in range(1, 7))
    history.submit(Initialize("c", "n", founders, voters=(A,)))
    history.submit(SetKeyspaces((("ks", network(dc1=3, dc2=3)),)))
    history.submit(PrepareOperation(Rebuild(D, source_dc="dc1")))
    tasks = stream_plan(history.now.operations[0], history.now, (A,))
    assert tasks and all(set(task.sources) == {B, C} for task in tasks)
    tasks = stream_plan(history.now.operations[0], history.now, (A, B))
    assert tasks and all(task.sources == () for task in tasks)
    assert "no data centre" in refused(history, PrepareOperation(Rebuild(X, source_dc="moon")))


def test_operations_that_are_each_fine_but_not_together_are_refused() -> None:
    history = started([(at * 100,) for at in range(5)], ("ks", simple(4)))
    history.submit(PrepareOperation(Remove(X)))
    message = refused(history, PrepareOperation(Decommission(D)))
    assert message == "3 normal nodes would be left, but ks has replication factor 4"
    assert "3 normal nodes" in refused(history, REMOVE_D)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            PrepareOperation(Replace(X, A)),
            "was admitted to replace node 4, not node 1",
        ),
        (PrepareOperation(Replace(X, NodeId(9))), "there is no node 9 to replace"),
        (PrepareOperation(Replace(X, X)), "only a normal node is replaced"),
        (
            PrepareOperation(Replace(B, D)),
            "needs a node in state none; node 2 is normal",
        ),
        (PrepareOperation(Bootstrap(X, (5,))), "was admitted to replace node 4"),
        (PrepareOperation(Remove(X)), "needs a node in state normal; node 5 is none"),
        (PrepareOperation(Remove(A)), "node 1 is a voter"),
        (PrepareOperation(Move(D, (400,))), "owns exactly these tokens"),
        (PrepareOperation(Move(D, (300,))), "token 300 belongs to node 3"),
        (PrepareOperation(Move(D)), "a node owns 1 to"),
    ],
)
def test_an_operation_that_cannot_start_says_why(body: PrepareOperation, why: str) -> None:
    assert why in refused(four(), body)


def test_a_node_that_never_joined_is_dropped_by_force() -> None:
    history = four()
    refusal = history.tried(PrepareOperation(Remove(X)))
    assert refusal is not None and "remove 5 --force" in refusal.hint, refusal
    history.submit(ForceRemove(X))
    assert history.now.directory.by_id[X].state is NodeState.LEFT and not history.now.degraded


def test_a_node_that_another_operation_is_about_is_not_replaced() -> None:
    history = started([(at * 100,) for at in range(6)], ("ks", simple(1)))
    history.submit(replacing(7, history.now.directory.by_id[NodeId(6)]))
    history.submit(PrepareOperation(Decommission(NodeId(6))))
    wanted = PrepareOperation(Replace(NodeId(7), NodeId(6)))
    assert refused(history, wanted) == "node 6 takes part in operation 1 (decommission of node 6)"
    history.submit(CancelOperation(1))
    run_out(history, 1)


def test_a_replacement_registers_only_for_a_node_that_can_be_replaced() -> None:
    history = four()
    dead = history.now.directory.by_id[D]
    assert "node 5 was admitted to replace node 4 and is none" in refused(history, replacing(6, dead))
    plain = register(6, "dc1", "r1")
    message = refused(history, structs.replace(plain, address=dead.address))
    assert message == f"address {dead.address}:7000 belongs to node 4"
    elsewhere = structs.replace(plain, rack="r9", replaces=A)
    assert "its replacement in dc1/r9" in refused(history, elsewhere)
    nobody = structs.replace(plain, replaces=NodeId(77))
    assert "there is no such node" in refused(history, nobody)


def test_the_only_replica_of_its_data_centre_is_rebuilt_from_the_others() -> None:
    history = History()
    founders = tuple(founder(n, (n * 10,), f"dc{n}") for n in (1, 2))
    history.submit(Initialize("c", "n", founders, voters=(A,)))
    history.submit(SetKeyspaces((("ks", network(dc1=1, dc2=1)),)))
    history.submit(PrepareOperation(Rebuild(B)))
    tasks = stream_plan(history.now.operations[0], history.now, ())
    assert tasks and all(task.sources == (A,) for task in tasks)


def test_a_node_that_is_gone_is_excluded_no_more() -> None:
    history = four()
    history.submit(ExcludeNodes((D,), "its disk burnt"))
    history.submit(REMOVE_D)
    run_to(history, 1, Stage.CLEANUP)
    assert [one.node for one in history.now.excluded] == [D]
    run_out(history, 1)
    assert history.now.excluded == ()
