"""Who gives way to whom in the queue, what a decision costs, and that nobody blocks others for ever."""

from __future__ import annotations

import time

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.requests import REQUESTS, Request, Requests, RequestState
from lockstep.metadata.transformations import Initialize
from lockstep.topology import requests as queue
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.registry import KINDS
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.requests import EnqueueRequest, Rule, Verdict, choose, holder, is_passed_over, why
from lockstep.topology.step import Propose, Reports, step
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.limits import REQUESTS_PASSED_MAX, REQUESTS_PLANNED_MAX
from tests.metadata.histories import History, SetKeyspaces, founder, simple
from tests.topology.drills import refused, run_out
from tests.topology.test_queue import LEAVE, ask, proceed, ring


def crowd(nodes: int, operation: PrepareOperation) -> ClusterMetadata:
    """A ring of two tokens a node with one operation running, and a leave of every other node queued."""
    history = History()
    founders = tuple(founder(n, (n * 1000, n * 1000 + 7)) for n in range(1, nodes + 1))
    history.submit(Initialize("c", "n", founders, voters=(NodeId(nodes),)))
    history.submit(SetKeyspaces((("ks", simple(3)),)))
    history.submit(operation)
    requests = history.now.requests
    for node in range(2, nodes):
        requests = requests.with_new(Request(requests.next_id, LEAVE(NodeId(node))))
    return history.now.changed(REQUESTS.set(requests))


@pytest.mark.slow
def test_a_thousand_queued_requests_do_not_slow_the_step() -> None:
    """Plans are counted, not timed; the time is only a bound that no slow machine misses."""
    crowded = crowd(1010, PrepareOperation(LEAVE(NodeId(1))))
    alone = crowded.changed(REQUESTS.set(Requests(crowded.requests.live[:1])))
    planned = 0

    def counted(cluster: object, request: object) -> Verdict | None:
        nonlocal planned
        planned += 1
        return Verdict("operation 1 (decommission of node 1) holds it", is_planned=True)

    real, queue._refusal = queue._refusal, counted
    try:
        step(crowded, Reports())
        assert planned == REQUESTS_PLANNED_MAX
        began = time.perf_counter()
        for _ in range(20):
            step(crowded, Reports())
        assert planned == REQUESTS_PLANNED_MAX, "nothing that matters changed"
        per_step_s = (time.perf_counter() - began) / 20
        began = time.perf_counter()
        for _ in range(20):
            step(alone, Reports())
        alone_s = (time.perf_counter() - began) / 20
        assert per_step_s < alone_s * 2 + 0.005
    finally:
        queue._refusal = real


def test_a_range_that_is_held_is_found_without_a_plan_and_only_such_ones_are() -> None:
    crowded = crowd(40, PrepareOperation(LEAVE(NodeId(20))))
    found = 0
    others = [request for request in crowded.requests.queue if request.node != 20]
    for request in others:
        held = holder(crowded, request)
        verdict = queue._judged(crowded, request)
        if held is not None:
            found += 1
            assert verdict is not None and verdict.refusal.startswith(held[1].split(" (")[0]), request
            assert held[0] is not None and held[0].title() in verdict.refusal
    assert found >= 2
    assert any(holder(crowded, r) is None and queue._judged(crowded, r) for r in others)


def test_what_is_held_does_not_use_up_the_plans_of_those_behind_it() -> None:
    """More than REQUESTS_PLANNED_MAX leaves wait for the running one; a join elsewhere begins."""
    crowded = crowd(12, PrepareOperation(LEAVE(NodeId(5))))
    choice = choose(crowded)
    waiting = [one for one in choice.waiting if one.rule is Rule.OPERATION]
    assert waiting and {one.operation_id for one in waiting} == {1}
    assert choice.run is not None or len(choice.waiting) == len(crowded.requests.queue)


def test_requests_that_an_exclusion_holds_up_do_not_block_others() -> None:
    history = ring(30, 2)
    history.submit(ExcludeNodes(tuple(NodeId(n) for n in range(2, 14)), "late"))
    for node in range(2, 14):
        history.submit(ask(LEAVE, node))
    history.submit(ask(LEAVE, 20))
    choice = choose(history.now)
    assert choice.run is not None and choice.run.node == 20
    assert {one.rule for one in choice.waiting} == {Rule.EXCLUSION}


def test_an_excluded_node_gets_no_ranges_and_whoever_would_give_them_waits() -> None:
    history = ring(6, 1)
    history.submit(ExcludeNodes((NodeId(3),), "late"))
    # Node 2 leaves its range to node 3.
    assert "node 3 is excluded and would get range" in refused(history, PrepareOperation(LEAVE(NodeId(2))))
    history.submit(ask(LEAVE, 2))
    waits = why(history.now, history.now.requests.queue[0])
    assert waits is not None and (waits.rule, waits.node) == (Rule.EXCLUSION, 3)
    assert choose(history.now).fails is None, "it can run as soon as the node is taken back"
    history.submit(IncludeNodes((NodeId(3),), (history.now.epoch,)))
    assert proceed(history) == "PrepareOperation"


def test_what_was_passed_too_often_is_passed_no_more_but_by_what_mends_a_dead_node() -> None:
    history = ring(14, 2)
    history.submit(ask(LEAVE, 3))
    proceed(history)
    history.submit(ask(LEAVE, 4))
    history.submit(ask(LEAVE, 9))
    assert proceed(history) == "PrepareOperation", "node 9 passes node 4, which waits for node 3"
    run_out(history, 2)
    now = history.now
    waiting = now.requests.queue[0]
    assert not is_passed_over(now, waiting)
    ended = now.requests.ended[-1]
    more = tuple(msgspec.structs.replace(ended, id=100 + n) for n in range(REQUESTS_PASSED_MAX))
    often = now.changed(REQUESTS.set(msgspec.structs.replace(now.requests, ended=more, next_id=200)))
    assert is_passed_over(often, waiting)
    leave = Request(200, LEAVE(NodeId(12)))
    held = often.changed(REQUESTS.set(often.requests.with_new(leave)))
    choice = choose(held)
    assert choice.run is None
    reason = next(one for one in choice.waiting if one.request_id == 200)
    assert reason.rule is Rule.TURN and "later ones have begun before it" in reason.reason
    assert (
        choose(
            now.changed(
                REQUESTS.set(now.requests.with_new(msgspec.structs.replace(leave, id=now.requests.next_id)))
            )
        ).run
        is not None
    )
    mends = Request(200, Remove(NodeId(12)))
    # It stands before the leaves in the queue, and is not held back by them either.
    going = often.changed(REQUESTS.set(often.requests.with_new(mends)))
    assert choose(going).run == mends


def passed_over(history: History, times: int) -> ClusterMetadata:
    """The value as if so many requests that were asked for later had begun and ended already."""
    now = history.now
    later = Request(0, LEAVE(NodeId(1)), state=RequestState.DONE, began_epoch=1, ended_epoch=2)
    more = tuple(msgspec.structs.replace(later, id=100 + number) for number in range(times))
    return now.changed(REQUESTS.set(msgspec.structs.replace(now.requests, ended=more)))


def test_what_a_held_range_keeps_waiting_is_passed_no_more_either() -> None:
    """The range that the join wants is locked, which is found without a plan."""
    history = ring(14, 1, newcomers=2)
    history.submit(ask(LEAVE, 3))
    proceed(history)
    history.submit(ask(Bootstrap, 15, 250))
    history.submit(ask(Bootstrap, 16, 950))
    held, free = history.now.requests.queue
    assert holder(history.now, held) is not None and holder(history.now, free) is None
    assert choose(passed_over(history, REQUESTS_PASSED_MAX - 1)).run == free
    choice = choose(passed_over(history, REQUESTS_PASSED_MAX))
    assert choice.run is None and choice.fails is None
    first, second = choice.waiting
    assert (first.rule, first.operation_id, first.node) == (Rule.OPERATION, 1, 3)
    assert (second.rule, second.node) == (Rule.TURN, 15)
    assert second.reason == (
        f"{held.title()} goes first: {REQUESTS_PASSED_MAX} later ones have begun before it"
    )


def test_of_two_that_were_passed_too_often_the_first_is_named() -> None:
    history = ring(14, 1, newcomers=3)
    history.submit(ask(LEAVE, 3))
    proceed(history)
    for node, token in ((15, 250), (16, 260), (17, 950)):
        history.submit(ask(Bootstrap, node, token))
    waiting = choose(passed_over(history, REQUESTS_PASSED_MAX)).waiting
    assert [(one.rule, one.node) for one in waiting] == [
        (Rule.OPERATION, 3), (Rule.TURN, 15), (Rule.TURN, 15),
    ]  # fmt: skip


def test_who_is_not_looked_at_yet_is_told_how_many_wait_before_it() -> None:
    crowded = crowd(40, PrepareOperation(LEAVE(NodeId(1))))
    nobody = Verdict("operation 1 (decommission of node 1) holds it", is_planned=True)
    real, queue._refusal = queue._refusal, lambda *_: nobody
    try:
        last = crowded.requests.queue[-1]
        waits = why(crowded, last)
    finally:
        queue._refusal = real
    assert waits is not None and (waits.rule, waits.request_id) == (Rule.TURN, last.id)
    count = int(waits.reason.split()[0])
    assert waits.reason == f"{count} requests that go first wait too"
    assert REQUESTS_PLANNED_MAX <= count < len(crowded.requests.queue)


def test_every_kind_has_its_place_and_nothing_that_runs_gives_way() -> None:
    order = sorted(KINDS, key=lambda kind: kind.precedence)
    assert len({kind.precedence for kind in order}) == len(order) and all(kind.why for kind in order)
    assert [kind.name for kind in order if not kind.is_held_back] == ["replace", "remove"]
    assert [kind.name for kind in order if kind.is_global] == ["replication_change"]
    history = ring(6, 1, newcomers=1)
    history.submit(ask(LEAVE, 3))
    proceed(history)
    running = history.now.operations
    history.submit(EnqueueRequest(Replace(NodeId(7), NodeId(4))))
    decision = step(history.now, Reports())
    assert not (isinstance(decision, Propose) and isinstance(decision.transformation, CancelOperation))
    assert history.now.operations == running
