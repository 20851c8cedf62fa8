"""One bootstrap and one decommission, line by line, and what is refused."""

from __future__ import annotations

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.schema.model import Replication
from lockstep.topology.invariants import check_restored
from lockstep.topology.kind import kind_of
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.limits import PARALLEL_OPERATIONS_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN
from tests.metadata.histories import History, SetKeyspaces, network, simple, started
from tests.topology.drills import refused, register, run_out, run_to

A, B, C, X = (NodeId(number) for number in (1, 2, 3, 4))
LEAVE_A = PrepareOperation(Decommission(A))
JOIN_X = PrepareOperation(Bootstrap(X, (150,)))
NAMES = {A: "A", B: "B", C: "C", X: "X"}


def three(replication: Replication | None = None) -> History:
    """The worked example of the transactional metadata proposal: A 100, B 200, C 300, factor 2."""
    history = started([(100,), (200,), (300,)], ("ks", replication or simple(2)))
    history.submit(register(4, "dc1", "r1"))
    return history


def drawn(cluster: ClusterMetadata) -> str:
    """The first ring, one range a line."""
    lines = []
    for placed in cluster.placements.rings[0].ranges:
        bounds = [
            {TOKEN_MIN: "min", TOKEN_MAX: "max"}.get(t, str(t))
            for t in (placed.range.left, placed.range.right)
        ]
        reads, writes = (
            "".join(NAMES[n] for n in side) for side in (placed.group.reads, placed.group.writes)
        )
        lines.append(f"({bounds[0]}, {bounds[1]}] {reads} {writes} @{placed.group.epoch}")
    return "\n".join(lines)


def transcript(history: History, operation_id: int, body: PrepareOperation) -> str:
    history.submit(body)
    pages = []
    while True:
        running = history.now.operations_by_id.get(operation_id)
        node = history.now.directory.by_id[body.body.node]
        session = running.session_id if running is not None else ""
        stage = running.stage if running is not None else "finished"
        pages.append(
            f"{history.now.epoch} {stage}, node {node.state}, session {session or '-'}\n{drawn(history.now)}"
        )
        if running is None:
            return "\n".join(pages)
        history.submit(AdvanceOperation(operation_id, running.stage))


BOOTSTRAP = """\
4 join_group0, node bootstrapping, session operation-1-join_group0
(min, 100] AB AB @2
(100, 150] BC BC @2
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AB AB @2
5 commit_cdc_generation, node bootstrapping, session -
(min, 100] AB AB @2
(100, 150] BC BC @2
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AB AB @2
6 write_both_read_old, node bootstrapping, session operation-1-write_both_read_old
(min, 100] AB ABX @6
(100, 150] BC BCX @6
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AB ABX @6
7 write_both_read_new, node bootstrapping, session -
(min, 100] AX AXB @7
(100, 150] XB XBC @7
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AX AXB @7
8 new_only, node bootstrapping, session -
(min, 100] AX AX @8
(100, 150] XB XB @8
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AX AX @8
9 cleanup, node bootstrapping, session operation-1-cleanup
(min, 100] AX AX @8
(100, 150] XB XB @8
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AX AX @8
10 finished, node normal, session -
(min, 100] AX AX @8
(100, 150] XB XB @8
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AX AX @8"""

DECOMMISSION = """\
11 prepared, node decommissioning, session operation-2-prepared
(min, 100] AX AX @8
(100, 150] XB XB @8
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AX AX @8
12 write_both_read_old, node decommissioning, session operation-2-write_both_read_old
(min, 100] AX AXB @12
(100, 150] XB XBC @12
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AX AXB @12
13 write_both_read_new, node decommissioning, session -
(min, 100] AB ABX @13
(100, 150] BC BCX @13
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AB ABX @13
14 left_token_ring, node decommissioning, session -
(min, 100] AB AB @14
(100, 150] BC BC @14
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AB AB @14
15 cleanup, node decommissioning, session operation-2-cleanup
(min, 100] AB AB @14
(100, 150] BC BC @14
(150, 200] BC BC @2
(200, 300] CA CA @2
(300, max] AB AB @14
16 finished, node left, session -
(min, 100] AB AB @14
(100, 200] BC BC @14
(200, 300] CA CA @2
(300, max] AB AB @14"""


def test_a_bootstrap_and_the_leave_of_the_same_node_step_by_step() -> None:
    history = three()
    assert transcript(history, 1, JOIN_X) == BOOTSTRAP
    assert history.now.directory.circle.owner_of(150) == X
    leave = PrepareOperation(Decommission(X))
    assert transcript(history, 2, leave) == DECOMMISSION
    assert history.now.directory.by_id[X].tokens == ()
    assert history.now.sessions == history.now.operations == () and not history.now.transitions.count


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("body", [JOIN_X, PrepareOperation(Decommission(X))])
def test_a_cancel_restores_everything_and_the_operation_can_run_again(
    at: int, body: PrepareOperation
) -> None:
    history = three()
    if isinstance(body.body, Decommission):
        history.submit(JOIN_X)
        run_out(history, 1)
    before = history.now
    operation_id = before.next_operation_id
    history.submit(body)
    run_to(history, operation_id, kind_of(body.body).stages[at].stage)
    history.submit(CancelOperation(operation_id, "no need"))
    (session,) = history.now.sessions
    assert session.stage is Stage.ROLLBACK_TO_NORMAL, "only what was received is still to be dropped"
    assert history.now.operations[0].cancel_reason == "no need"
    assert "already rolling back" in refused(history, CancelOperation(operation_id))
    history.submit(AdvanceOperation(operation_id, Stage.ROLLBACK_TO_NORMAL))
    assert check_restored(before, history.now) == ()
    assert history.now.directory.by_id[X].state is before.directory.by_id[X].state
    history.submit(body)
    run_out(history, operation_id + 1)


@pytest.mark.parametrize("stage", [Stage.WRITE_BOTH_READ_NEW, Stage.NEW_ONLY])
def test_once_reads_moved_an_operation_only_goes_forward(stage: Stage) -> None:
    history = three()
    history.submit(JOIN_X)
    run_to(history, 1, stage)
    assert "goes forward only" in refused(history, CancelOperation(1))


def test_a_step_is_taken_once() -> None:
    history = three()
    history.submit(JOIN_X)
    history.submit(AdvanceOperation(1, Stage.JOIN_GROUP0))
    message = refused(history, AdvanceOperation(1, Stage.JOIN_GROUP0))
    assert message == "operation 1 (bootstrap of node 4) is in stage commit_cdc_generation, not join_group0"
    assert refused(history, AdvanceOperation(9, Stage.JOIN_GROUP0)) == "operation 9 is not running"


def test_overlapping_operations_are_refused_with_the_name_of_the_holder() -> None:
    history = three()
    history.submit(register(5, "dc1", "r1"))
    history.submit(JOIN_X)
    message = refused(history, PrepareOperation(Bootstrap(NodeId(5), (120,))))
    assert message.startswith("operation 1 (bootstrap of node 4) holds range (")
    assert "is bootstrapping, by operation 1" in refused(history, JOIN_X)
    run_out(history, 1)
    history.submit(PrepareOperation(Bootstrap(NodeId(5), (120,))))


def test_disjoint_operations_run_together() -> None:
    tokens = [(at * 100,) for at in range(6)]
    history = started(tokens, ("ks", simple(1)))
    history.submit(register(7, "dc1", "r1"))
    history.submit(register(8, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(7), (150,))))
    history.submit(PrepareOperation(Bootstrap(NodeId(8), (350,))))
    run_out(history, 2)
    assert [operation.id for operation in history.now.operations] == [1]
    run_out(history, 1)


def test_no_more_than_so_many_run_at_once_whoever_asks() -> None:
    most = PARALLEL_OPERATIONS_MAX
    history = started([(at * 100,) for at in range(2 * most + 4)], ("ks", simple(1)))
    for node in range(2, 2 * most + 2, 2):
        history.submit(PrepareOperation(Decommission(NodeId(node))))
    for kind in (Decommission, Rebuild):
        message = refused(history, PrepareOperation(kind(NodeId(2 * most + 3))))
        assert message.startswith(f"at most {most} operations run at once: operation 1 (decommission of n")
        assert f", operation {most} (decommission of node {2 * most})" in message
    run_out(history, 1)
    history.submit(PrepareOperation(Decommission(NodeId(2 * most + 3))))


def test_ranges_that_meet_at_the_end_of_the_ring_conflict() -> None:
    """Both newcomers take part of what wraps around the end of the ring."""
    history = started([(0,), (100,)], ("ks", simple(1)))
    history.submit(register(3, "dc1", "r1"))
    history.submit(register(4, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(3), (-50,))))
    message = refused(history, PrepareOperation(Bootstrap(NodeId(4), (500,))))
    assert message.startswith("operation 1 (bootstrap of node 3) holds range (")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (PrepareOperation(Bootstrap(NodeId(9), (5,))), "there is no node 9"),
        (PrepareOperation(Bootstrap(A, (5,))), "node 1 is normal"),
        (PrepareOperation(Decommission(X)), "needs a node in state normal; node 4 is none"),
        (PrepareOperation(Bootstrap(X)), "a node owns 1 to"),
        (PrepareOperation(Bootstrap(X, (100,))), "token 100 belongs to node 1"),
        (PrepareOperation(Bootstrap(X, (7, 7))), "not distinct"),
        (LEAVE_A, "node 1 is a voter of the metadata group"),
    ],
)
def test_an_operation_that_cannot_start_says_why(body: PrepareOperation, why: str) -> None:
    assert why in refused(three(), body)


def five(replication: Replication) -> History:
    """Only A votes."""
    return started([(at * 100,) for at in range(5)], ("ks", replication))


@pytest.mark.parametrize("replication", [simple(5), network(dc1=5)])
def test_a_leave_keeps_enough_nodes_for_every_factor(replication: Replication) -> None:
    message = refused(five(replication), PrepareOperation(Decommission(NodeId(5))))
    assert message.startswith("4 normal nodes would be left") and "ks has replication factor 5" in message


def test_leaves_that_are_each_fine_but_not_together_are_refused() -> None:
    history = five(simple(4))
    history.submit(PrepareOperation(Decommission(NodeId(5))))
    message = refused(history, PrepareOperation(Decommission(NodeId(4))))
    assert message == "3 normal nodes would be left, but ks has replication factor 4"


def test_a_keyspace_that_moves_no_data_is_accepted_during_an_operation_and_others_are_not() -> None:
    history = three()
    history.submit(JOIN_X)
    same = SetKeyspaces((("ks", simple(2)), ("more", simple(2))))
    assert history.tried(same) is None
    other = SetKeyspaces((("ks", simple(2)), ("more", simple(1))))
    assert "while operation 1 holds ranges" in refused(history, other)


def test_a_cluster_without_keyspaces_grows_and_shrinks() -> None:
    history = started([(0,), (1,), (2,)])
    history.submit(register(4, "dc1", "r1"))
    history.submit(JOIN_X)
    run_out(history, 1)
    history.submit(PrepareOperation(Decommission(X)))
    run_out(history, 2)
    assert history.now.directory.by_id[X].state is NodeState.LEFT
