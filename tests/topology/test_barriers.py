"""When a barrier passes: worked examples, and a twin that tries every quorum of unaware nodes."""

from __future__ import annotations

import itertools

import pytest
from msgspec import structs

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transformations import Initialize
from lockstep.schema.model import Replication
from lockstep.topology import barriers
from lockstep.topology.barriers import BarrierState, GuardReport, barrier_need, evaluate
from lockstep.topology.kind import stage_row
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.stages import Drain, Side
from lockstep.topology.streams import stream_plan
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, network, simple, started
from tests.topology.drills import random_change, random_start, register, run_to

A, B, C, X = (NodeId(number) for number in (1, 2, 3, 4))


def joining(factor: int, stage: Stage) -> tuple[ClusterMetadata, Operation]:
    """X joins A, B and C; at most the last replica of a range gives it up."""
    history = started([(100,), (200,), (300,)], ("ks", simple(factor)))
    history.submit(register(4, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(X, (150,))))
    if stage is Stage.ROLLBACK_TO_NORMAL:
        run_to(history, 1, Stage.WRITE_BOTH_READ_OLD)
        history.submit(CancelOperation(1))
    else:
        run_to(history, 1, stage)
    return history.now, history.now.operations[0]


def passed(cluster: ClusterMetadata, operation: Operation, aware: tuple[NodeId, ...]) -> BarrierState:
    need = barrier_need(operation, cluster)
    acknowledged = dict.fromkeys(aware, need.epoch)
    return evaluate(need, acknowledged, acknowledged)


@pytest.mark.parametrize("stage", [Stage.WRITE_BOTH_READ_NEW, Stage.NEW_ONLY])
def test_at_factor_three_with_one_change_three_of_four_must_know(stage: Stage) -> None:
    cluster, operation = joining(3, stage)
    for aware in itertools.combinations((A, B, C, X), 3):
        assert passed(cluster, operation, aware).passed, aware
    for aware in itertools.combinations((A, B, C, X), 2):
        assert not passed(cluster, operation, aware).passed, aware


@pytest.mark.parametrize("stage", [Stage.JOIN_GROUP0, Stage.WRITE_BOTH_READ_OLD])
def test_a_node_that_gets_work_must_know_itself(stage: Stage) -> None:
    cluster, operation = joining(3, stage)
    state = passed(cluster, operation, (A, B, C))
    assert not state.passed
    assert [(m.node, m.seen, m.reason) for m in state.missing] == [(X, 0, "receives ranges")]
    assert passed(cluster, operation, (A, B, X)).passed


def test_at_factor_one_everybody_must_know_but_a_dead_newcomer_does_not_block_the_way_back() -> None:
    cluster, operation = joining(1, Stage.WRITE_BOTH_READ_NEW)
    lost = cluster.transitions.of(operation.id)[0].lost[0]
    assert not passed(cluster, operation, (A, X)).passed or lost == A
    assert not passed(cluster, operation, (X,)).passed
    assert passed(cluster, operation, (lost, X)).passed
    cluster, operation = joining(1, Stage.ROLLBACK_TO_NORMAL)
    assert passed(cluster, operation, (lost,)).passed
    assert not passed(cluster, operation, (X,)).passed


def test_a_majority_of_all_is_not_enough_when_a_data_centre_lacks_its_own() -> None:
    """Two unaware nodes of three in one data centre hide in four aware ones of seven."""
    history = History()
    founders = tuple(founder(n, (n * 10,), f"dc{1 + n // 4}") for n in range(1, 7))
    history.submit(Initialize("c", "n", founders, voters=(A,)))
    history.submit(SetKeyspaces((("ks", network(dc1=3, dc2=3)),)))
    history.submit(register(7, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(7), (15,))))
    run_to(history, 1, Stage.WRITE_BOTH_READ_NEW)
    operation = history.now.operations[0]
    aware = tuple(NodeId(n) for n in (3, 4, 5, 6, 7))
    state = passed(history.now, operation, aware)
    assert not state.passed and {m.node for m in state.missing} == {1, 2}
    assert any("in data centre dc1" in m.reason for m in state.missing)
    assert passed(history.now, operation, (*aware, NodeId(1))).passed


def test_a_stage_may_have_all_replicas_finish_older_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, operation = joining(3, Stage.WRITE_BOTH_READ_OLD)
    row = structs.replace(stage_row(operation), drain=Drain.ALL)
    monkeypatch.setattr(barriers, "stage_row", lambda *_: row)
    assert barrier_need(operation, cluster, (A,)).must_drain == (A, B, C, X)


def test_sources_must_have_finished_older_requests() -> None:
    cluster, operation = joining(3, Stage.WRITE_BOTH_READ_OLD)
    tasks = stream_plan(operation, cluster, ())
    sources = sorted({source for task in tasks for source in task.sources})
    need = barrier_need(operation, cluster, sources)
    assert need.must_drain == tuple(sources) and sources
    everyone = dict.fromkeys((A, B, C, X), need.epoch)
    assert not evaluate(need, everyone, {}).passed
    state = evaluate(need, everyone, {**everyone, sources[0]: need.epoch - 1})
    assert [m.node for m in state.missing] == [sources[0]] and "older requests" in state.missing[0].reason
    assert evaluate(need, everyone, everyone).passed


def counts_of(replication: Replication) -> list[tuple[str | None, int]]:
    """(data centre or None for all, factor) of everything that a quorum is counted in."""
    per_dc = replication.strategy == "NetworkTopologyStrategy"
    return [(None, replication.total), *(replication.factors if per_dc else ())]


def twin(cluster: ClusterMetadata, operation: Operation, aware: set[NodeId]) -> bool:
    """By the words: no quorum, of all or of one data centre, may consist of unaware members."""
    row = stage_row(operation)
    if isinstance(operation.body, Remove):
        aware = aware - {operation.node}
    aware = aware - {operation.about.replaced}
    if row.work.value == "rebuild" and operation.node not in aware:
        return False
    for transition in cluster.transitions.of(operation.id):
        if row.work.value in ("wipe", "stream") and not set(transition.gained) <= aware:
            return False
        members = {Side.OLD: transition.old, Side.NEW: transition.new, Side.UNION: transition.union}
        by_side = {Side.OLD: counts_of(transition.replication)}
        by_side[Side.NEW] = counts_of(transition.replication_after)
        cases = [(used, used, count) for used in row.in_use if used in by_side for count in by_side[used]]
        one_way = operation.about.is_global and not (transition.gained and transition.lost)
        if one_way and row.stage in (Stage.WRITE_BOTH_READ_NEW, Stage.ROLLBACK_TO_NORMAL):
            # Whoever counts the old group alone is refused since both were written, or does no harm.
            cases = [case for case in cases if case[0] is not Side.OLD]
        if Side.UNION in row.in_use:
            sides = (Side.OLD, Side.NEW) if operation.about.is_global else (Side.OLD,)
            cases += [(Side.UNION, beside, count) for beside in sides for count in by_side[beside]]
        for side, beside, (dc, factor) in cases:
            local = [n for n in members[side] if dc in (None, cluster.directory.by_id[n].dc)]
            quorum = factor // 2 + 1
            if side is Side.UNION and (one_way or operation.stage is Stage.ROLLBACK_TO_NORMAL):
                # As coordinators count: with those that only the other side has.
                others = transition.lost if one_way and beside is Side.NEW else transition.gained
                quorum += sum(1 for n in others if n in local)
            if any(not set(choice) & aware for choice in itertools.combinations(local, quorum)):
                return False
    return True


@pytest.mark.parametrize("seed", range(30))
def test_barriers_equal_trying_every_quorum(seed: int) -> None:
    history, rng = random_start(seed)
    compared = outcomes = 0
    for _ in range(60):
        history.tried(random_change(history, rng))
        for operation in history.now.operations:
            for _ in range(4):
                nodes = [node.id for node in history.now.directory.nodes]
                aware = tuple(node for node in nodes if rng.random() < 0.75)
                state = passed(history.now, operation, aware)
                assert state.passed == twin(history.now, operation, set(aware)), (operation, aware)
                assert state.passed == (not state.missing)
                assert not (set(aware) - {operation.about.presumed_dead}) & {m.node for m in state.missing}
                compared, outcomes = compared + 1, outcomes + state.passed
    assert not compared or outcomes > 0


def test_an_older_acknowledgement_is_named_with_its_epoch() -> None:
    cluster, operation = joining(3, Stage.WRITE_BOTH_READ_NEW)
    need = barrier_need(operation, cluster)
    state = evaluate(need, {A: need.epoch, B: need.epoch, C: 2}, {})
    assert [(m.node, m.seen, m.needed) for m in state.missing] == [(C, 2, need.epoch), (X, 0, need.epoch)]
    assert need.nodes() == (A, B, C, X)


def test_whatever_a_node_is_waited_for_it_is_named_with_what_it_was_last_seen_at() -> None:
    cluster, operation = joining(3, Stage.WRITE_BOTH_READ_OLD)
    tasks = stream_plan(operation, cluster, ())
    need = barrier_need(operation, cluster, {source for task in tasks for source in task.sources})
    giver = need.must_drain[0]
    epoch = need.epoch
    everyone = dict.fromkeys((A, B, C, X), epoch)
    fresh = {node: GuardReport(epoch) for node in need.must_release}
    session = f"{need.session_prefix}x"
    cases: list[tuple[dict[NodeId, int], dict[NodeId, int], GuardReport, dict[NodeId, tuple[int, str]]]] = [
        (everyone, everyone, GuardReport(epoch), {}),
        ({X: epoch - 2}, everyone, GuardReport(epoch), {X: (epoch - 2, "receives ranges")}),
        ({giver: epoch - 1}, everyone, GuardReport(epoch), {giver: (epoch - 1, "has older requests")}),
        ({}, {giver: epoch - 1}, GuardReport(epoch), {giver: (epoch, "has older requests")}),
        ({}, {}, GuardReport(epoch - 1, ()), {X: (epoch, "has not said yet")}),
        ({}, {}, GuardReport(epoch, ((session, 1),)), {X: (epoch, f"holds 1 guard of session {session}")}),
        ({}, {}, GuardReport(epoch, ((session, 2),)), {X: (epoch, f"holds 2 guards of session {session}")}),
        ({}, {}, GuardReport(epoch, (("operation-77-x", 1),)), {}),
    ]
    for seen, drained, report, wanted in cases:
        state = evaluate(need, {**everyone, **seen}, {**everyone, **drained}, {**fresh, X: report})
        assert {m.node: m.seen for m in state.missing} == {node: at for node, (at, _) in wanted.items()}
        assert all(wanted[m.node][1] in m.reason and m.needed == epoch for m in state.missing), state
        assert state.passed is not bool(wanted) and not state.relaxable
    assert evaluate(need, {}, {}, None).missing[0].seen == 0
    silent = evaluate(need, everyone, everyone, {})
    assert {m.node for m in silent.missing} == set(need.must_release) == {X}
