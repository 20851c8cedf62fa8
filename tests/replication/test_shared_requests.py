"""Several small requests in one frame between two nodes: each is served and answered as if it came alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from lockstep.replication import verbs
from lockstep.replication.connection import Connection
from lockstep.replication.frames import REQUEST, SHARED, Envelope, encode_frame
from lockstep.replication.handshake import PeerInfo
from lockstep.replication.internode import Internode
from lockstep.replication.responding import Respond
from lockstep.replication.shared_requests import SHARED_REQUEST_BYTES_MAX, SHARED_REQUESTS_MAX
from lockstep.values.codec import encode
from lockstep.values.errors import NotReplica, PeerTimeout, ServerFault
from tests.replication.support import TestNode, run, running, until
from tests.replication.test_internode import Ping, Pong

Serve = Callable[[PeerInfo, list[Ping], list[Respond]], None]


def echo_all(peer: PeerInfo, requests: list[Ping], responds: list[Respond]) -> None:
    for request, respond in zip(requests, responds, strict=True):
        respond(Pong(request.text))


def pair(serve: Serve = echo_all) -> tuple[TestNode, TestNode]:
    nodes = (TestNode(1), TestNode(2))
    for node in nodes:
        node.internode.register_fast(
            verbs.PING, Ping, Pong, lambda peer, request, respond: serve(peer, [request], [respond])
        )
        node.internode.register_shared(verbs.PING, Ping, serve)
    return nodes


@contextmanager
def frames_of(verb: int) -> Iterator[list[Envelope]]:
    """The frames of requests that arrive anywhere."""
    frames: list[Envelope] = []
    receive = Internode.frame_received

    def noting(node: Internode, connection: Connection, envelope: Envelope) -> None:
        if envelope.verb == verb:
            frames.append(envelope)
        receive(node, connection, envelope)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Internode, "frame_received", noting)
        yield frames


async def ask(one: TestNode, two: TestNode, *texts: str, timeout_ms: float = 5000) -> list[Any]:
    """Ask everything in one turn; the replies, or the errors."""
    begun = [one.internode.begin(two.address, verbs.PING, Ping(text), timeout_ms) for text in texts]
    return await asyncio.gather(*begun, return_exceptions=True)


def test_requests_of_one_turn_share_frames_and_find_their_own_replies() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            await ask(one, two, "first")
            with frames_of(verbs.PING) as frames:
                texts = [str(number) for number in range(2 * SHARED_REQUESTS_MAX + 1)]
                assert [reply.text for reply in await ask(one, two, *texts)] == texts
            assert [frame.flags for frame in frames] == [REQUEST | SHARED, REQUEST | SHARED, REQUEST]
            assert [connection.serving for connection in two.internode._incoming] == [0]

    run(test)


def test_a_long_request_goes_alone() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            await ask(one, two, "first")
            with frames_of(verbs.PING) as frames:
                long = "x" * SHARED_REQUEST_BYTES_MAX
                replies = await ask(one, two, "a", long, "b")
                assert [reply.text for reply in replies] == ["a", long, "b"]
            assert sorted(frame.flags for frame in frames) == [REQUEST, REQUEST | SHARED]

    run(test)


def test_a_node_that_does_not_say_that_it_takes_them_gets_one_by_one() -> None:
    async def test() -> None:
        one, two = pair()
        two.greeting = msgspec.structs.replace(two.greeting, takes_shared=False)
        async with running(one, two):
            await ask(one, two, "first")
            with frames_of(verbs.PING) as frames:
                assert [reply.text for reply in await ask(one, two, "a", "b")] == ["a", "b"]
            assert [frame.flags for frame in frames] == [REQUEST] * 2

    run(test)


def test_each_request_has_its_own_error() -> None:
    def serve(peer: PeerInfo, requests: list[Ping], responds: list[Respond]) -> None:
        for request, respond in zip(requests, responds, strict=True):
            respond(NotReplica("elsewhere") if request.text == "no" else Pong(request.text))

    async def test() -> None:
        one, two = pair(serve)
        async with running(one, two):
            await ask(one, two, "first")
            found = await ask(one, two, "a", "no", "b")
            assert [type(answer) for answer in found] == [Pong, NotReplica, Pong]

    run(test)


def test_a_defect_is_answered_to_those_who_wait_and_reported() -> None:
    def serve(peer: PeerInfo, requests: list[Ping], responds: list[Respond]) -> None:
        for request, respond in zip(requests, responds, strict=True):
            if request.text == "bad":
                raise ZeroDivisionError
            respond(Pong(request.text))

    async def test() -> None:
        one, two = pair(serve)
        async with running(one, two):
            await ask(one, two, "first")
            found = await ask(one, two, "a", "bad", "b")
            assert [type(answer) for answer in found] == [Pong, ServerFault, ServerFault]
            assert [type(failure) for failure in two.runtime.tasks.failures] == [ZeroDivisionError]  # type: ignore[attr-defined]
            assert (await ask(one, two, "c"))[0] == Pong("c")

    run(test)


def test_answers_that_wait_for_each_other_are_given_together() -> None:
    waiting: list[Respond] = []

    def keep(peer: PeerInfo, requests: list[Ping], responds: list[Respond]) -> None:
        waiting.extend(responds)

    async def test() -> None:
        one, two = pair(keep)
        async with running(one, two):
            asking = asyncio.ensure_future(ask(one, two, "a", "b", "c"))
            await until(lambda: len(waiting) == 3)
            waiting[1].release()
            Respond.all(waiting, Pong("all"))
            assert not any(respond.is_open for respond in waiting)
            with pytest.raises(AssertionError):
                Respond.all(waiting[:1], Pong("twice"))
            await until(lambda: all(connection.serving == 0 for connection in two.internode._incoming))
            await two.internode.stop()
            assert [type(answer) for answer in await asking] == [Pong, PeerTimeout, Pong]

    run(test)


def test_a_connection_that_ends_in_the_same_turn_ends_each_request_as_unknown() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            await ask(one, two, "first")
            asking = asyncio.ensure_future(ask(one, two, "a", "b", timeout_ms=60_000))
            await asyncio.sleep(0)
            connection = one.internode._peers[two.address]._connection
            assert connection is not None
            connection.close("cut", abort=True)
            assert [type(answer) for answer in await asking] == [PeerTimeout] * 2
            one.internode._peers[two.address].wake()
            assert await ask(one, two, "c") == [Pong("c")]

    run(test)


def test_a_blocked_peer_gets_nothing_of_what_waits() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            await ask(one, two, "first")
            with frames_of(verbs.PING) as frames:
                asking = asyncio.ensure_future(ask(one, two, "a", "b", timeout_ms=60))
                await asyncio.sleep(0)
                one.internode.blocked_to.add(two.address)
                assert [type(answer) for answer in await asking] == [PeerTimeout] * 2
                assert frames == []

    run(test)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (encode(([1, 2], [Ping("a")])), "1 ping messages came for 2 streams"),
        (encode(([1], [7])), "do not decode"),
        (b"\xc1", "do not decode"),
    ],
)
def test_a_frame_that_makes_no_sense_ends_the_connection(body: bytes, reason: str) -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            await ask(one, two, "first")
            peer = one.internode._peers[two.address]
            assert peer._connection is not None
            closed: list[str] = []
            for incoming in two.internode._incoming:
                close = incoming.close
                incoming.close = lambda why, close=close, **how: (closed.append(why), close(why, **how))[1]  # type: ignore[method-assign,misc]
            peer._connection.send(encode_frame(verbs.PING, 0, 1, REQUEST | SHARED, body))
            await until(lambda: bool(closed))
            assert reason in closed[0]

    run(test)


def test_a_verb_that_shares_no_frames_refuses_them() -> None:
    async def test() -> None:
        one, two = TestNode(1), TestNode(2)
        for node in (one, two):
            node.internode.register_fast(
                verbs.PING, Ping, Pong, lambda peer, request, respond: respond(Pong(request.text))
            )
        async with running(one, two):
            await ask(one, two, "first")
            connection = one.internode._peers[two.address]._connection
            assert connection is not None
            body = encode(([9], [Ping("a")]))
            connection.send(encode_frame(verbs.PING, 0, 1, REQUEST | SHARED, body))
            await until(lambda: connection.closed)

    run(test)
