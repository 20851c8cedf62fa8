"""What is told to be left of a change of replication of tablets, and of what empties a node."""

from __future__ import annotations

import pytest

from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import Policy, Request
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.placement.tablets.moves import STAGES_MS
from lockstep.schema.changes import CreateKeyspace
from lockstep.topology.kinds.replication import ReplicationChange, way_asked, way_of
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.tablets.left import (
    UNKNOWN,
    BytesOf,
    Left,
    Reported,
    left_of_running,
    left_of_waiting,
    seconds_for,
)
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, network
from tests.topology.tablets.test_recount import advance, ask, options, world

TABLETS = 8
EACH = 1000
NOTHING = Reported()


def weigh(_group: int, _right: int) -> int:
    return EACH


def running(history: History, said: Reported, bytes_of: BytesOf | None) -> Left | None:
    operation = history.now.operations[0]
    return left_of_running(history.now, operation, way_of(history.now, operation), said, bytes_of)


def waiting(history: History, request: Request) -> Left | None:
    way = way_asked(history.now, request)
    assert way is not None
    return left_of_waiting(history.now, way, weigh)


def now(history: History, said: Reported = NOTHING) -> Left:
    found = running(history, said, weigh)
    assert found is not None
    return found


def walked(history: History) -> list[Left]:
    """What is told after each entry."""
    told = []
    while history.now.operations:
        told.append(now(history))
        advance(history)
    return told


def test_a_change_tells_of_all_its_steps_and_never_more_than_before() -> None:
    history = world(network(dc1=1), tablets=TABLETS)
    ask(history, network(dc1=3))
    told = walked(history)
    assert told[0] == Left(2 * TABLETS, 2 * TABLETS, 2 * TABLETS * EACH, seconds_for(2 * TABLETS * EACH, 2))
    assert {one.tablets_total for one in told} == {2 * TABLETS}
    assert [one.tablets for one in told] == sorted([one.tablets for one in told], reverse=True)
    assert [one.bytes for one in told] == sorted([one.bytes for one in told], reverse=True)
    assert {one.tablets for one in told} == {16, 8, 0}
    assert told[-1].bytes == 0


def test_what_streams_have_brought_is_no_more_left() -> None:
    history = world(network(dc1=1), tablets=TABLETS)
    ask(history, network(dc1=2))
    while history.now.operations[0].stage is not Stage.WRITE_BOTH_READ_OLD:
        advance(history)
    half = Reported(bytes=3 * EACH, ranges=3, rate_bytes_s=EACH)
    assert now(history) == Left(8, 8, 8 * EACH, seconds_for(8 * EACH, 1, 50 * 1024 * 1024 * 6))
    assert now(history, half) == Left(5, 8, 5 * EACH, 5 + 1)
    # An estimate that was too low.
    assert now(history, Reported(9 * EACH, 8)).bytes == 0
    advance(history)
    # Reads have moved: whatever is reported now is of something else.
    assert now(history, half) == Left(0, 8, 0, 1)


def test_replicas_that_go_are_counted_and_copy_nothing() -> None:
    history = world(network(dc1=3), tablets=TABLETS)
    ask(history, network(dc1=1))
    assert now(history) == Left(16, 16, 0, seconds_for(0, 2))


def test_without_statistics_the_bytes_are_unknown() -> None:
    history = world(network(dc1=1), tablets=TABLETS)
    ask(history, network(dc1=3))
    assert running(history, NOTHING, None) == Left(16, 16, UNKNOWN, UNKNOWN)


@pytest.mark.parametrize("steps", range(14))
def test_the_way_back_is_counted_whenever_it_begins(steps: int) -> None:
    history = world(network(dc1=1), tablets=TABLETS)
    ask(history, network(dc1=3))
    for _ in range(steps):
        if history.now.operations:
            advance(history)
    if not history.now.operations:
        return
    request = history.now.requests.live[0]
    history.submit(CancelRequest(request.id, "no"))
    told = walked(history)
    assert [one.tablets for one in told] == sorted([one.tablets for one in told], reverse=True)
    assert all(one.tablets <= one.tablets_total for one in told)
    # A replica that comes is dropped again: nothing is copied on the way back.
    assert {one.bytes for one in told} == {0}


def test_what_waits_between_two_steps_counts_those_that_are_done() -> None:
    history = world(network(dc1=1), 3, tablets=TABLETS)
    ask(history, network(dc1=3))
    while history.now.operations[0].stage is not Stage.CLEANUP:
        advance(history)
    history.submit(ExcludeNodes((NodeId(3),), "broken"))
    advance(history)
    (request,) = history.now.requests.queue
    rest = Left(TABLETS, 2 * TABLETS, TABLETS * EACH, seconds_for(TABLETS * EACH, 1))
    assert waiting(history, request) == rest
    history.submit(IncludeNodes((NodeId(3),), (history.now.epoch,)))
    history.submit(PrepareOperation(request.body, request.id))
    assert now(history).tablets_total == rest.tablets_total, "it is the same change as before"
    assert now(history).tablets == rest.tablets


def test_a_keyspace_on_the_ring_has_no_tablets_left() -> None:
    history = world(network(dc1=1), tablets=TABLETS)
    history.submit(ChangeSchema(CreateKeyspace("r", options(network(dc1=1)))))
    history.submit(EnqueueRequest(ReplicationChange("r", network(dc1=3)), policy=Policy.REFUSE, actor="a"))
    assert running(history, NOTHING, weigh) is None
    assert waiting(history, history.now.requests.live[0]) is None


def test_time_is_that_of_bytes_and_of_stages() -> None:
    assert seconds_for(UNKNOWN, 3) == UNKNOWN
    assert seconds_for(0, 4) == 4 * STAGES_MS // 1000
    assert seconds_for(10_000, 0, 1000) == 10
