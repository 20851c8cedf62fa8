"""Requests from the wish to the end: the queue, who is in whose way, and what is remembered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.metadata.operations import Body
from lockstep.metadata.requests import (
    NO_REQUESTS,
    Policy,
    Request,
    Requests,
    RequestState,
    begun,
    failing,
    finished,
    rested,
    without_node,
)
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import REQUESTS_ENDED_KEPT_MAX
from tests.metadata.histories import simple


def wish(number: int, body: Body, **more: Any) -> Request:
    return Request(number, body, **more)


def queued(*wishes: Request) -> Requests:
    requests = NO_REQUESTS
    for one in wishes:
        requests = requests.with_new(one)
    return requests


MOVE = wish(1, Move(NodeId(4), (10, 20)))
REPLACE = wish(2, Replace(NodeId(5), NodeId(6)))
REPLICATION = wish(3, ReplicationChange("ks", simple(3)))
WAITING = queued(MOVE, REPLACE, REPLICATION)


def test_each_request_is_found_by_all_that_it_is_about() -> None:
    assert WAITING.by_id == {1: MOVE, 2: REPLACE, 3: REPLICATION}
    assert WAITING.by_node == {4: MOVE, 5: REPLACE, 6: REPLACE}
    assert WAITING.by_keyspace == {"ks": REPLICATION}
    assert WAITING.by_token == {10: MOVE, 20: MOVE}
    assert WAITING.by_operation == {} and WAITING.next_id == 4
    running = begun(WAITING, msgspec.structs.replace(MOVE, operation_id=9), 50)
    ended = running.with_ended(2, RequestState.CANCELLED, "why", 60)
    assert ended.by_node == {4: running.by_id[1]} and ended.by_token == {
        10: running.by_id[1],
        20: running.by_id[1],
    }
    assert ended.by_operation == {9: running.by_id[1]}
    assert ended.by_id[2] == msgspec.structs.replace(
        REPLACE, state=RequestState.CANCELLED, outcome="why", ended_epoch=60
    )
    assert [one.id for one in ended.live] == [1, 3] and not ended.by_id[2].is_live


def test_the_queue_goes_by_kind_and_then_by_age() -> None:
    first_to_last = (Replace, Bootstrap, Remove, Decommission, Move, Rebuild, ReplicationChange)
    kinds = (*reversed(first_to_last), *reversed(first_to_last))
    bodies = [kind(str(at)) if kind is ReplicationChange else kind(at) for at, kind in enumerate(kinds, 1)]
    requests = queued(*(wish(at, body) for at, body in enumerate(bodies, 1)))
    assert [type(one.body) for one in requests.queue] == [kind for kind in first_to_last for _ in range(2)]
    assert [one.id for one in requests.queue[:4]] == [7, 14, 6, 13]
    first = msgspec.structs.replace(requests.queue[0], operation_id=1)
    assert [one.id for one in begun(requests, first, 9).queue[:2]] == [14, 6], "what runs waits no more"


def test_what_begins_says_since_when_and_under_which_operation() -> None:
    after = begun(WAITING, msgspec.structs.replace(MOVE, operation_id=7), 40)
    assert after.by_id[1] == msgspec.structs.replace(
        MOVE, state=RequestState.RUNNING, operation_id=7, began_epoch=40
    )
    at_once = begun(WAITING, wish(0, Rebuild(NodeId(8)), operation_id=7), 40)
    assert at_once.by_id[4] == Request(
        4, Rebuild(NodeId(8)), policy=Policy.REFUSE, requested_epoch=40,
        state=RequestState.RUNNING, operation_id=7, began_epoch=40,
    )  # fmt: skip
    assert at_once.next_id == 5


@pytest.mark.parametrize(
    ("wanted", "why", "hint"),
    [
        (wish(0, Rebuild(NodeId(4))), "node 4 has request 1 (move of node 4), which is queued",
         "`lockstep topology cancel 1` takes it back"),
        (wish(0, Rebuild(NodeId(6))), "node 6 has request 2 (replace of node 5)", "cancel 2"),
        (wish(0, Replace(NodeId(9), NodeId(5))), "node 5 has request 2", "cancel 2"),
        (wish(1, Move(NodeId(5), (10, 20))), "node 5 has request 2", "cancel 2"),
        (wish(0, ReplicationChange("ks")),
         "the replication of keyspace ks is being changed by request 3 (replication_change of keyspace ks), "
         "which is queued",
         "`lockstep topology watch 3` follows it, `lockstep topology cancel 3` takes it back"),
        (wish(8, Move(NodeId(9))), "request 8 is not known", ""),
        (wish(1, Move(NodeId(4), (10,))), "asks for something else", ""),
        (wish(1, Rebuild(NodeId(4))), "asks for something else", ""),
        (wish(3, ReplicationChange("ks", simple(2))), "asks for something else", ""),
        (wish(2, Replace(NodeId(5))), "asks for something else", ""),
    ],
)  # fmt: skip
def test_what_cannot_begin_is_refused_with_who_is_in_its_way(wanted: Request, why: str, hint: str) -> None:
    with pytest.raises(Rejected) as refusal:
        begun(WAITING, wanted, 40)
    assert why in refusal.value.message and hint in (refusal.value.hint or "")
    assert bool(hint) is bool(refusal.value.hint)


def test_a_request_begins_once_and_is_named_to_drivers_where_it_holds_a_keyspace() -> None:
    running = begun(WAITING, msgspec.structs.replace(MOVE, operation_id=7), 40)
    with pytest.raises(Rejected, match="request 1 is running"):
        begun(running, msgspec.structs.replace(MOVE, operation_id=8), 41)
    ended = finished(running, 7, "", False, 50)
    with pytest.raises(Rejected, match="request 1 is done"):
        begun(ended, msgspec.structs.replace(MOVE, operation_id=8), 51)
    with pytest.raises(Rejected) as refusal:
        begun(WAITING, wish(0, ReplicationChange("ks")), 40)
    assert (refusal.value.cql_code, refusal.value.keyspace) == (0x2300, "ks")


@pytest.mark.parametrize(
    ("fails", "rolled_back", "state", "outcome"),
    [
        (False, False, RequestState.DONE, ""),
        (False, True, RequestState.CANCELLED, "why"),
        (True, True, RequestState.FAILED, "why"),
        (True, False, RequestState.DONE, ""),
    ],
)
def test_how_a_request_ends(fails: bool, rolled_back: bool, state: RequestState, outcome: str) -> None:
    requests = begun(WAITING, msgspec.structs.replace(REPLACE, operation_id=7), 40)
    if fails:
        requests = failing(requests, 7)
        assert requests.by_operation[7].is_failing and requests.by_operation[7].is_live
    after = finished(requests, 7, "why", rolled_back, 44)
    ended = after.by_id[2]
    assert (ended.state, ended.outcome, ended.ended_epoch) == (state, outcome, 44)
    assert after.ended == (ended,) and [one.id for one in after.live] == [1, 3]


def test_a_change_of_replication_goes_back_into_the_queue_between_two_steps() -> None:
    running = begun(WAITING, msgspec.structs.replace(REPLICATION, operation_id=7), 40)
    after = rested(running, 7, simple(1))
    again = after.by_id[3]
    assert (again.state, again.operation_id, again.original) == (RequestState.QUEUED, 0, simple(1))
    assert again in after.queue and not after.by_operation


def test_a_node_that_is_gone_takes_its_queued_request_along_and_no_other() -> None:
    after = without_node(WAITING, NodeId(6), "node 6 is gone", 45)
    assert (after.by_id[2].state, after.by_id[2].outcome) == (RequestState.FAILED, "node 6 is gone")
    assert after.by_id[2].ended_epoch == 45 and [one.id for one in after.live] == [1, 3]
    assert without_node(WAITING, NodeId(9), "", 45) is WAITING
    running = begun(WAITING, msgspec.structs.replace(REPLACE, operation_id=7), 40)
    assert without_node(running, NodeId(6), "", 45) is running


def test_the_latest_ends_are_remembered() -> None:
    requests = NO_REQUESTS
    for number in range(1, REQUESTS_ENDED_KEPT_MAX + 3):
        requests = requests.with_new(wish(number, Move(NodeId(1))))
        requests = requests.with_ended(number, RequestState.FAILED, "", number)
    assert [one.id for one in requests.ended] == list(range(3, REQUESTS_ENDED_KEPT_MAX + 3))
    requests.validate(())
    with pytest.raises(AssertionError, match="ends once"):
        requests.with_ended(5, RequestState.DONE, "", 9)
    with pytest.raises(AssertionError, match="ends once"):
        WAITING.with_ended(1, RequestState.RUNNING, "", 9)
    with pytest.raises(AssertionError, match="next id"):
        WAITING.with_new(MOVE)


def test_titles_name_what_a_request_is_about() -> None:
    assert [one.title() for one in (MOVE, REPLICATION)] == [
        "request 1 (move of node 4)", "request 3 (replication_change of keyspace ks)",
    ]  # fmt: skip
    assert [one.about.nodes for one in (MOVE, REPLACE, REPLICATION)] == [(4,), (5, 6), ()]


RUNNING = msgspec.structs.replace(MOVE, state=RequestState.RUNNING, operation_id=7)
ENDED = msgspec.structs.replace(MOVE, state=RequestState.DONE)


@pytest.mark.parametrize(
    ("requests", "operations", "why"),
    [
        (Requests((REPLACE, MOVE), (), 4), (), "sorted by id"),
        (Requests((MOVE, MOVE), (), 4), (), "sorted by id"),
        (Requests((ENDED,), (), 4), (), "live requests are live"),
        (Requests((), (MOVE,), 4), (), "ended requests have ended"),
        (Requests((MOVE,), (ENDED,), 4), (), "is live or ended"),
        (Requests((), (ENDED, ENDED), 4), (), "is live or ended"),
        (Requests((MOVE, REPLACE), (), 2), (), "never reused"),
        (Requests((), (ENDED,), 1), (), "never reused"),
        (Requests((MOVE, wish(2, Rebuild(NodeId(4)))), (), 4), (), "a node has one"),
        (Requests((REPLACE, wish(4, Move(NodeId(6)))), (), 5), (), "a node has one"),
        (Requests((REPLICATION, wish(4, ReplicationChange("ks"))), (), 5), (), "a keyspace"),
        (Requests((RUNNING,), (), 4), (), "match"),
        (Requests((RUNNING,), (), 4), (8,), "match"),
        (Requests((MOVE,), (), 4), (7,), "match"),
        (Requests((msgspec.structs.replace(MOVE, operation_id=7),), (), 4), (), ""),
    ],
)
def test_requests_that_contradict_themselves_are_noticed(
    requests: Requests, operations: tuple[int, ...], why: str
) -> None:
    with pytest.raises(AssertionError) as found:
        requests.validate(operations)
    assert why in str(found.value)


def test_requests_that_are_sound_are_accepted() -> None:
    WAITING.validate(())
    Requests(
        (RUNNING, REPLICATION), (msgspec.structs.replace(REPLACE, state=RequestState.FAILED),), 4
    ).validate((7,))
    many = tuple(msgspec.structs.replace(ENDED, id=at) for at in range(1, REQUESTS_ENDED_KEPT_MAX + 2))
    Requests((), many[1:], len(many) + 1).validate(())
    with pytest.raises(AssertionError, match="bounded"):
        Requests((), many, len(many) + 1).validate(())
