"""Writes to other data centres, sent and passed on without a network."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.coordination.forwarding import ForwardAnswer, Forwarding, ForwardRequest, dc_of_own
from lockstep.internode import verbs
from lockstep.internode.own_side import ExcludedNodes
from lockstep.internode.verbs import encode_error
from lockstep.quorum.round import Target
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.values.codec import decoder
from lockstep.values.errors import (
    LockstepError,
    NodeExcluded,
    NotReplica,
    Overloaded,
    PeerTimeout,
    PeerUnreachable,
    StaleEpoch,
)
from lockstep.values.ids import NodeId

from .clusters import ScriptedInternode, Wire, upsert
from .support import RecordingProbes, run

OWN = ("n1", 1)
ORIGIN = ("n9", 1)
DECODER = decoder(ForwardRequest)


def target(node: int, dc: str) -> Target:
    return Target(NodeId(node), (f"n{node}", 1), dc)


NEAR = [target(1, "dc1"), target(2, "dc1")]
FAR = [target(3, "dc2"), target(4, "dc2"), target(5, "dc2")]
LONE = target(6, "dc3")


def write_of(token: int = 1) -> WriteRequest:
    return WriteRequest(5, 1, upsert(token, b"a", b"x"))


class Writing:
    """Hears of its replicas."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, Any]] = []

    def replied(self, context: Target, reply: WriteReply, sender_epoch: int) -> None:
        assert reply.accepted_epoch == sender_epoch
        self.heard.append((context.node, reply.accepted_epoch))

    def failed(self, context: Target, error: LockstepError) -> None:
        self.heard.append((context.node, type(error)))


class Office:
    """Node 1 of dc1. `submitted` are messages that are waited for, `sent` others; it has `taken` writes."""

    def __init__(self, dead: tuple[int, ...] = ()) -> None:
        self.now_s = 0.0
        self.submitted: list[tuple[Any, ...]] = []
        self.sent: list[tuple[Any, int, Any]] = []
        self.taken: list[tuple[Any, WriteRequest, Any]] = []
        self.refuses: LockstepError | None = None
        self.probes = RecordingProbes()
        internode: Any = ScriptedInternode(Wire(), 1, lambda: 5)
        internode.submit = lambda *message: self.submitted.append(message)
        internode.send = lambda *message: self.sent.append(message)
        internode.own = SimpleNamespace(excluded=ExcludedNodes())
        self.internode = internode
        context: Any = SimpleNamespace(
            runtime=SimpleNamespace(clock=self, probes=self.probes),
            internode=internode,
            replica=SimpleNamespace(take=self._take),
            alive=lambda node: node not in dead,
        )
        self.forwarding = Forwarding(context, lambda: "dc1", OWN)

    def monotonic_s(self) -> float:
        return self.now_s

    def _take(self, source: Any, request: WriteRequest, respond: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.taken.append((source, request, respond))

    def receive(self, request: ForwardRequest) -> list[Any]:
        answers: list[Any] = []
        _, handler = self.internode.fast[verbs.FORWARD]
        handler(self.internode.peer, request, answers.append)
        return answers

    def hears(self, answer: ForwardAnswer) -> None:
        _, handler = self.internode.fast[verbs.FORWARDED]
        handler(self.internode.peer, answer, None)


def test_one_of_each_far_data_centre_gets_the_write_for_the_others_there() -> None:
    async def test() -> None:
        office, write = Office(), Writing()
        assert office.forwarding.send(write, NEAR, write_of(), 10.0) is NEAR
        direct = office.forwarding.send(write, [*NEAR, *FAR, LONE], write_of(4), 10.0)
        assert list(direct) == [*NEAR, LONE] and office.forwarding.spared == 2
        [(address, verb, body, deadline_s, _, context)] = office.submitted
        assert (address, verb, deadline_s, context) == (("n4", 1), verbs.FORWARD, 10.0, FAR[1])
        request = DECODER.decode(body)
        assert (request.write, request.origin, request.number) == (write_of(4), OWN, 0)
        assert [other[1:] for other in request.others] == [("n3", 1), ("n5", 1)]
        assert len({other[0] for other in request.others}) == 2
        assert office.probes.reached == ["forward.sent"]
        office.forwarding.stop()

    run(test)


def test_who_seems_dead_is_asked_directly() -> None:
    async def test() -> None:
        office = Office(dead=(4, 5))
        assert list(office.forwarding.send(Writing(), FAR, write_of(), 10.0)) == [FAR[1], FAR[2], FAR[0]]
        assert not office.submitted

    run(test)


def test_each_answer_ends_its_own_replica_once_and_those_of_others_none() -> None:
    async def test() -> None:
        office, write = Office(), Writing()
        office.forwarding.send(write, FAR, write_of(3), 10.0)
        [(_, _, body, _, passing, first)] = office.submitted
        one, other = (number for number, *_ in DECODER.decode(body).others)
        name = write_of(3).mutation.mutation_id
        office.hears(ForwardAnswer(one, b"another write", 5))
        office.hears(ForwardAnswer(one + other + 1, name, 5))
        assert write.heard == []
        office.hears(ForwardAnswer(one, name, 5))
        office.hears(ForwardAnswer(one, name, 5))
        office.hears(ForwardAnswer(other, name, 0, encode_error(StaleEpoch(7))))
        passing.replied(first, WriteReply(6), 6)
        assert write.heard == [(4, 5), (5, StaleEpoch), (3, 6)]
        office.forwarding.stop()
        assert len(write.heard) == 3

    run(test)


@pytest.mark.parametrize(
    ("error", "others"),
    [
        (PeerUnreachable("away"), PeerUnreachable),
        (PeerTimeout("silent"), PeerTimeout),
        (NodeExcluded("shut out"), PeerUnreachable),
        (NotReplica("not mine"), None),
    ],
)
def test_what_a_forwarder_says_of_itself_says_nothing_of_others_unless_it_was_not_reached(
    error: LockstepError, others: type[LockstepError] | None
) -> None:
    async def test() -> None:
        office, write = Office(), Writing()
        office.forwarding.send(write, FAR, write_of(3), 10.0)
        passing, first = office.submitted[0][4:]
        passing.failed(first, error)
        behind = [] if others is None else [(4, others), (5, others)]
        assert write.heard == [(3, type(error)), *behind]
        office.forwarding.stop()
        assert [node for node, _ in write.heard] == [3, 4, 5], "each is told once"

    run(test)


def test_a_replica_that_nothing_is_heard_of_in_half_the_time_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        timers: list[tuple[float, Any]] = []

        def later(delay_s: float, work: Any) -> Any:
            timers.append((delay_s, work))
            return SimpleNamespace(cancel=lambda: None)

        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", later)
        office, write = Office(), Writing()
        office.now_s = 2.0
        office.forwarding.send(write, FAR, write_of(3), 10.0)
        [(delay_s, sweep)] = timers
        assert delay_s == 4.0
        office.now_s = 6.0
        sweep()
        assert write.heard == [(4, PeerTimeout), (5, PeerTimeout)]

    run(test)


def test_a_receiver_takes_the_write_and_passes_it_on_by_number() -> None:
    office = Office()
    request = ForwardRequest(write_of(), ORIGIN, ((7, "n4", 1), (8, "n5", 2)))
    answers = office.receive(request)
    assert office.sent == [
        (("n4", 1), verbs.FORWARD, ForwardRequest(write_of(), ORIGIN, (), 7)),
        (("n5", 2), verbs.FORWARD, ForwardRequest(write_of(), ORIGIN, (), 8)),
    ]
    [(source, taken, respond)] = office.taken
    assert (source, taken) == (office.internode.peer.endpoint, write_of())
    respond("answer")
    assert answers == ["answer"] and office.probes.reached == ["forward.passed_on"] * 2


def test_who_got_it_from_another_replica_answers_the_coordinator() -> None:
    office = Office()
    request = ForwardRequest(write_of(), ORIGIN, (), 7)
    name = write_of().mutation.mutation_id
    assert office.receive(request) == []
    [(source, _, answer)] = office.taken
    assert source == ORIGIN
    answer(WriteReply(6))
    answer(StaleEpoch(7))
    assert office.sent == [
        (ORIGIN, verbs.FORWARDED, ForwardAnswer(7, name, 6)),
        (ORIGIN, verbs.FORWARDED, ForwardAnswer(7, name, 0, encode_error(StaleEpoch(7)))),
    ]
    office.refuses = Overloaded("full")
    office.receive(request)
    assert office.sent[-1][2] == ForwardAnswer(7, name, 0, encode_error(Overloaded("full")))


def test_nothing_is_taken_for_a_coordinator_that_is_shut_out() -> None:
    office = Office()
    office.internode.own.excluded = ExcludedNodes(at=frozenset({ORIGIN}))
    office.receive(ForwardRequest(write_of(), ORIGIN, (), 7))
    assert not office.taken and office.probes.reached == ["forward.origin_shut_out"]
    office.receive(ForwardRequest(write_of(), ORIGIN))
    assert len(office.taken) == 1, "its own message is judged where it comes in"


def test_before_it_is_a_member_a_node_is_in_no_data_centre() -> None:
    dcs = {NodeId(1): "dc1"}
    assert dc_of_own(lambda: dcs, lambda: 1)() == "dc1"
    assert dc_of_own(lambda: dcs, lambda: 2)() == ""
