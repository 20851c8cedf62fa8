"""Who streams from whom, what the coordinator does next, and how it tells people."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from lockstep.metadata.operations import Stage
from lockstep.metadata.transformations import Initialize
from lockstep.schema.model import Replication
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.stages import Work
from lockstep.topology.step import Idle, Propose, Reports, RunWorkOrders, Wait, WorkReport, step
from lockstep.topology.story import can_cancel, explain, headline
from lockstep.topology.streams import stream_plan
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, network, simple, started
from tests.topology.drills import Coordinator, random_change, random_start, register, run_join_to

A, B, C, X = (NodeId(number) for number in (1, 2, 3, 4))
ALL = (A, B, C, X)


def joining(replication: Replication, stage: Stage = Stage.WRITE_BOTH_READ_OLD, nodes: int = 3) -> History:
    history = started([(at * 100,) for at in range(1, nodes + 1)], ("ks", replication))
    history.submit(register(nodes + 1, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(nodes + 1), (150,))))
    run_join_to(history, 1, stage)
    return history


def test_the_replica_that_gives_the_range_up_is_the_source() -> None:
    history = joining(simple(2))
    operation = history.now.operations[0]
    tasks = stream_plan(operation, history.now, ())
    for task, transition in zip(tasks, history.now.transitions.of(operation.id), strict=True):
        assert task.target == X and task.range == transition.range
        assert task.sources == transition.lost and len(task.sources) == 1


def test_a_dead_giver_is_replaced_by_a_read_quorum_of_the_old_group() -> None:
    history = joining(simple(3))
    operation = history.now.operations[0]
    giver = history.now.transitions.of(operation.id)[0].lost[0]
    task = stream_plan(operation, history.now, (giver,))[0]
    assert task.needs_all and len(task.sources) == 2 and giver not in task.sources
    other = task.sources[0]
    assert stream_plan(operation, history.now, (giver, other))[0].sources == ()


def test_where_nobody_gives_up_a_quorum_is_read() -> None:
    history = joining(simple(3), nodes=2)
    for task in stream_plan(history.now.operations[0], history.now, ()):
        assert sorted(task.sources) == [A, B]
    # Every write quorum of three is both of two, so one that lives has every acknowledged write.
    assert all(task.sources == (B,) for task in stream_plan(history.now.operations[0], history.now, (A,)))
    assert all(not task.sources for task in stream_plan(history.now.operations[0], history.now, (A, B)))


def test_a_new_data_centre_reads_a_quorum_of_each_old_one() -> None:
    history = History()
    founders = tuple(founder(n, (n * 10,), "dc1") for n in range(1, 4))
    history.submit(Initialize("c", "n", founders))
    history.submit(register(4, "dc2", "r1"))
    history.submit(SetKeyspaces((("ks", network(dc1=3, dc2=1)),)))
    history.submit(PrepareOperation(Bootstrap(X, (15,))))
    tasks = stream_plan(history.now.operations[0], history.now, (A,))
    assert tasks and all(sorted(task.sources) == [B, C] for task in tasks)


def test_a_leave_streams_from_the_leaving_node() -> None:
    history = started([(at * 100,) for at in range(1, 5)], ("ks", simple(2)))
    history.submit(PrepareOperation(Decommission(X)))
    tasks = stream_plan(history.now.operations[0], history.now, ())
    assert tasks and all(task.sources == (X,) and task.target != X for task in tasks)


@pytest.mark.parametrize("seed", range(20))
def test_sources_meet_every_quorum_that_acknowledged_a_write(seed: int) -> None:
    """For every live-enough plan: each old quorum (global or of one data centre) has a source or its heir."""
    history, rng = random_start(seed)
    for _ in range(60):
        history.tried(random_change(history, rng))
        now = history.now
        dead = tuple(node.id for node in now.directory.nodes if rng.random() < 0.2)
        for operation in now.operations:
            for task in stream_plan(operation, now, dead):
                assert not set(task.sources) & {*dead, operation.about.presumed_dead}
                if isinstance(operation.body, Rebuild):
                    assert task.target == operation.node and operation.node not in task.sources
                    if operation.body.source_dc:
                        continue
                transition = next(
                    t
                    for t in now.transitions.of(operation.id)
                    if t.range.intersects(task.range) and t.group == task.group
                )
                if any(d.range.intersects(task.range) for d in now.degraded):
                    continue  # Some of the quorums that acknowledged had nodes that are gone.
                if not task.sources or (task.sources[0] in transition.lost and len(task.sources) == 1):
                    continue
                quorum = transition.replication.total // 2 + 1
                for choice in combinations(transition.old, quorum):
                    assert set(choice) & set(task.sources), (task, transition, choice)


def aware(history: History, *nodes: NodeId) -> dict[NodeId, int]:
    return dict.fromkeys(nodes or ALL, history.now.epoch)


def test_each_stage_goes_barrier_then_work_then_entry() -> None:
    history = joining(simple(3), Stage.JOIN_GROUP0)
    waiting = step(history.now, Reports())
    assert isinstance(waiting, Wait) and waiting.epoch == history.now.epoch
    assert [node for node, _ in waiting.blockers] == [A, B, C, X]
    working = step(history.now, Reports(acknowledged=aware(history)))
    assert isinstance(working, RunWorkOrders)
    (order,) = working.orders
    assert (order.node, order.kind, order.session_id) == (X, Work.WIPE, "operation-1-join_group0")
    assert [r for _, r in order.ranges] == [t.range for t in history.now.transitions.of(1)]
    key = (1, "operation-1-join_group0", X)
    running = Reports(acknowledged=aware(history), work={key: WorkReport.RUNNING}, texts={key: "half"})
    still = step(history.now, running)
    assert isinstance(still, Wait) and still.blockers == ((X, "wipe is running: half"),)
    done = Reports(acknowledged=aware(history), work={key: WorkReport.DONE})
    assert step(history.now, done) == Propose(AdvanceOperation(1, Stage.JOIN_GROUP0), 1)


def test_streams_wait_for_their_sources_to_drain_when_drains_are_reported() -> None:
    history = joining(simple(3))
    known = aware(history)
    blocked = step(history.now, Reports(acknowledged=known, drained={}))
    assert isinstance(blocked, Wait) and "older requests" in blocked.blockers[0][1]
    ready = step(history.now, Reports(acknowledged=known, drained=known))
    assert isinstance(ready, RunWorkOrders) and ready.orders[0].kind is Work.STREAM
    assert {task.target for task in ready.orders[0].tasks} == {X}
    key = (1, "operation-1-write_both_read_old", X)
    finished = step(history.now, Reports(acknowledged=known, drained={}, work={key: WorkReport.DONE}))
    assert isinstance(finished, Propose)


def test_failed_work_sends_the_operation_back_with_the_reason() -> None:
    history = joining(simple(3))
    key = (1, "operation-1-write_both_read_old", X)
    reports = Reports(acknowledged=aware(history), work={key: WorkReport.FAILED}, texts={key: "disk full"})
    decision = step(history.now, reports)
    assert decision == Propose(CancelOperation(1, "stream failed on node 4: disk full", failed=True), 1)
    history.submit(decision.transformation)
    # The node lives: it drops what it received before it may do anything else.
    back = step(history.now, Reports(acknowledged=aware(history)))
    assert isinstance(back, RunWorkOrders)
    (order,) = back.orders
    assert (order.node, order.kind) == (X, Work.DISCARD)
    assert [r for _, r in order.ranges] == [t.range for t in history.now.transitions.of(1)]
    finish = Propose(AdvanceOperation(1, Stage.ROLLBACK_TO_NORMAL), 1)
    done = {(1, "operation-1-rollback_to_normal", X): WorkReport.DONE}
    assert step(history.now, Reports(acknowledged=aware(history), work=done)) == finish
    # Dead, it is not waited for: it wipes that before it may own it again.
    assert step(history.now, Reports(acknowledged=aware(history, A, B, C), dead=(X,))) == finish


def test_work_that_fails_where_there_is_no_way_back_is_asked_for_again() -> None:
    history = joining(simple(1), Stage.CLEANUP)
    known = aware(history)
    first = step(history.now, Reports(acknowledged=known))
    assert isinstance(first, RunWorkOrders)
    failed = {(1, "operation-1-cleanup", order.node): WorkReport.FAILED for order in first.orders}
    assert step(history.now, Reports(acknowledged=known, work=failed)) == first


def test_too_few_live_sources_wait_and_say_so() -> None:
    history = joining(simple(3))
    operation = history.now.operations[0]
    reports = Reports(acknowledged=aware(history), dead=(A, B))
    decision = step(history.now, reports)
    assert isinstance(decision, Wait)
    assert all("too few live replicas" in reason for _, reason in decision.blockers)
    assert explain(operation, history.now, reports)[1].startswith("waiting for node 4: too few live")


def test_without_operations_there_is_nothing_to_do() -> None:
    assert step(started([(1,)]).now, Reports()) == Idle()


def test_explanations_name_the_node_the_epoch_and_the_next_step() -> None:
    history = joining(simple(3), Stage.WRITE_BOTH_READ_NEW)
    operation = history.now.operations[0]
    epoch = history.now.epoch
    lines = explain(operation, history.now, Reports(acknowledged={A: epoch, B: epoch, C: epoch - 3}))
    assert lines[0] == (
        f"operation 1 (bootstrap of node 4): write_both_read_new since epoch {epoch}, step 4 of 6"
    )
    assert lines[1].startswith(f"waiting for node 3: last seen epoch {epoch - 3}, needs {epoch} (")
    assert explain(operation, history.now, Reports(acknowledged=aware(history)))[1] == "next: enter new_only"
    assert not can_cancel(operation)
    early = joining(simple(3), Stage.JOIN_GROUP0)
    assert can_cancel(early.now.operations[0])
    early.submit(CancelOperation(1, "changed my mind"))
    assert headline(early.now.operations[0]).endswith("cancelled: changed my mind")
    all_know = Reports(acknowledged=aware(early))
    assert explain(early.now.operations[0], early.now, all_know)[1] == "next: discard on node 4"
    dropped = {(1, "operation-1-rollback_to_normal", X): WorkReport.DONE}
    all_know = Reports(acknowledged=aware(early), work=dropped)
    assert explain(early.now.operations[0], early.now, all_know)[1] == "next: finish"


def test_parallel_operations_wait_together_for_the_newest_epoch() -> None:
    history = started([(at * 100,) for at in range(6)], ("ks", simple(1)))
    for number, token in ((7, 150), (8, 350)):
        history.submit(register(number, "dc1", "r1"))
        history.submit(PrepareOperation(Bootstrap(NodeId(number), (token,))))
    decision = step(history.now, Reports())
    assert isinstance(decision, Wait)
    assert decision.operation_id == 1 and decision.epoch == history.now.epoch
    assert {7, 8} <= {node for node, _ in decision.blockers}


@pytest.mark.parametrize("dead", [(), (C,)])
def test_a_coordinator_may_be_replaced_at_any_point(dead: tuple[NodeId, ...]) -> None:
    """A new one that knows nothing continues from the metadata alone and reaches the same end."""
    ends = set()
    for crash_chance in (0.0, 0.05, 0.1):
        history = joining(simple(3), Stage.JOIN_GROUP0)
        world = Coordinator(history, random.Random(1), dead)
        for _ in range(2000):
            if world.rng.random() < crash_chance:
                world.known, world.work = {}, {}
            if not world.round():
                break
        assert history.now.operations == (), world.log
        ends.add((history.now.epoch, history.now.directory, history.now.placements))
    assert len(ends) == 1
