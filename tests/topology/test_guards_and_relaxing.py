"""What a barrier asks beside epochs: guards of closed sessions; and what operators may have it let go."""

from __future__ import annotations

import pytest

from lockstep.metadata.operations import Stage
from lockstep.metadata.transformations import Initialize
from lockstep.topology.barriers import GuardReport, barrier_need, evaluate
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.step import Propose, Reports, Wait, WorkReport, relaxable, step
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, network, simple, started
from tests.topology.drills import register, run_join_to, run_to

A, B, C, X = (NodeId(number) for number in (1, 2, 3, 4))


def joining(stage: Stage) -> History:
    history = started([(100,), (200,), (300,)], ("ks", simple(3)))
    history.submit(register(4, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(X, (150,))))
    run_join_to(history, 1, stage)
    return history


def aware(history: History, *nodes: NodeId) -> dict[NodeId, int]:
    return dict.fromkeys(nodes or (A, B, C, X), history.now.epoch)


def test_a_barrier_names_the_node_that_still_holds_guards_of_the_closed_session() -> None:
    history = joining(Stage.WRITE_BOTH_READ_NEW)
    epoch, session = history.now.epoch, "operation-1-write_both_read_old"

    def waits(*said: GuardReport) -> str:
        decision = step(history.now, Reports(acknowledged=aware(history), guards=dict.fromkeys((X,), *said)))
        assert isinstance(decision, Wait)
        ((node, reason),) = decision.blockers
        assert node == X
        return reason

    assert "still holds 2 guards of session operation-1-write_both_read_old" in waits(
        GuardReport(epoch, ((session, 2),))
    )
    # What it said before it knew that the session is closed says nothing.
    assert "has not said yet" in waits(GuardReport(epoch - 1))
    said = {X: GuardReport(epoch, (("operation-17-write_both_read_old", 1),))}
    assert isinstance(step(history.now, Reports(acknowledged=aware(history), guards=said)), Propose)


def test_only_a_stage_that_closed_a_session_with_work_asks_for_guards() -> None:
    for stage, expected in (
        (Stage.JOIN_GROUP0, ()),
        (Stage.COMMIT_CDC_GENERATION, (X,)),
        (Stage.WRITE_BOTH_READ_OLD, (X,)),
        (Stage.WRITE_BOTH_READ_NEW, (X,)),
        (Stage.NEW_ONLY, ()),
    ):
        history = joining(stage)
        assert barrier_need(history.now.operations[0], history.now).must_release == expected, stage


def test_a_dead_newcomer_never_blocks_the_way_back() -> None:
    history = joining(Stage.WRITE_BOTH_READ_OLD)
    history.submit(CancelOperation(1, "it never came back"))
    known = aware(history, A, B, C)
    alive = step(history.now, Reports(acknowledged=known, guards={}))
    assert isinstance(alive, Wait) and {node for node, _ in alive.blockers} == {X}
    assert isinstance(step(history.now, Reports(acknowledged=known, guards={}, dead=(X,))), Propose)


def two_centres(stage: Stage) -> History:
    """Node 7 joins the first of two data centres of three; each keeps three replicas."""
    history = History()
    founders = tuple(founder(n, (n * 10,), f"dc{1 + n // 4}") for n in range(1, 7))
    history.submit(Initialize("c", "n", founders, voters=(A,)))
    history.submit(SetKeyspaces((("ks", network(dc1=3, dc2=3)),)))
    history.submit(register(7, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(7), (15,))))
    run_join_to(history, 1, stage)
    return history


def test_a_lost_data_centre_blocks_until_operators_let_it_go_and_then_the_quorum_of_all_counts() -> None:
    history = two_centres(Stage.WRITE_BOTH_READ_NEW)
    operation = history.now.operations[0]
    key = (operation.id, operation.stage_epoch)
    seen = aware(history, *(NodeId(n) for n in (1, 2, 3, 7)))
    # Node 4 of the other data centre knows, 5 and 6 do not: no quorum of six, but one of three.
    lost = Reports(acknowledged={**seen, NodeId(4): history.now.epoch})
    blocked = step(history.now, lost)
    assert isinstance(blocked, Wait) and {node for node, _ in blocked.blockers} == {5, 6}
    assert all("in data centre dc2" in reason for _, reason in blocked.blockers)
    ((found, state),) = relaxable(history.now, lost)
    assert found == operation and {missing.node for missing in state.missing} == {5, 6}
    relaxed = Reports(acknowledged=lost.acknowledged, relaxed=(key,))
    assert isinstance(step(history.now, relaxed), Propose)
    # For this stage only.
    other = Reports(acknowledged=lost.acknowledged, relaxed=((operation.id, operation.stage_epoch - 1),))
    assert isinstance(step(history.now, other), Wait)


def test_what_is_let_go_is_never_the_quorum_of_all_nor_a_node_with_work() -> None:
    history = two_centres(Stage.WRITE_BOTH_READ_NEW)
    operation = history.now.operations[0]
    key = (operation.id, operation.stage_epoch)
    few = Reports(acknowledged=aware(history, A, NodeId(4), NodeId(7)), relaxed=(key,))
    assert isinstance(step(history.now, few), Wait) and relaxable(history.now, few) == ()
    history = two_centres(Stage.WRITE_BOTH_READ_OLD)
    operation = history.now.operations[0]
    without_target = aware(history, *(NodeId(n) for n in range(1, 7)))
    reports = Reports(acknowledged=without_target, relaxed=((operation.id, operation.stage_epoch),))
    assert isinstance(step(history.now, reports), Wait) and relaxable(history.now, reports) == ()


@pytest.mark.parametrize("kind", [Remove, Replace])
@pytest.mark.parametrize("stage", [Stage.WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_NEW, Stage.CLEANUP])
def test_the_dead_node_of_a_remove_or_replace_is_never_required(kind: type, stage: Stage) -> None:
    history = started([(at * 100,) for at in range(1, 6)], ("ks", simple(3)))
    if kind is Replace:
        history.submit(register(6, "dc1", "r1"))
        history.submit(PrepareOperation(kind(NodeId(6), replaced=NodeId(5))))
    else:
        history.submit(PrepareOperation(kind(NodeId(5))))
    run_to(history, 1, stage)
    operation = history.now.operations[0]
    need = barrier_need(operation, history.now)
    assert NodeId(5) not in need.nodes()
    others = {node.id: history.now.epoch for node in history.now.directory.nodes if node.id != 5}
    assert evaluate(need, others, others).passed
    session = operation.session_id
    done = {(1, session, node.id): WorkReport.DONE for node in history.now.directory.nodes}
    assert isinstance(step(history.now, Reports(acknowledged=others, work=done)), Propose)
