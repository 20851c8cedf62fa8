"""Several small requests in one frame between two nodes: each is served and answered as if it came alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from lockstep.internode import serving, verbs
from lockstep.internode.connection import Connection
from lockstep.internode.frames import REQUEST, SHARED, Envelope, encode_frame
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.own_side import ExcludedNodes
from lockstep.internode.peer import SHARED_REQUEST_BYTES_MAX, SHARED_REQUESTS_MAX
from lockstep.internode.serving import Respond
from lockstep.values.codec import encode
from lockstep.values.errors import (
    LockstepError,
    NodeExcluded,
    NotReplica,
    Overloaded,
    PeerTimeout,
    ServerFault,
)
from tests.replication.support import TestNode, run, running, until
from tests.replication.test_internode import Ping, Pong

Serve = Callable[[PeerInfo, Ping, Respond], None]
Test = Callable[[TestNode, TestNode], Awaitable[None]]

GREETING = "hello"


def echo(peer: PeerInfo, request: Ping, respond: Respond) -> None:
    respond(Pong(request.text))


def with_pair(test: Test, serve: Serve = echo, *, takes_shared: bool = True, shares: bool = True) -> None:
    """Run `test` on two nodes that are connected; the second one takes shared frames, or does not say so."""

    def greeted(peer: PeerInfo, request: Ping, respond: Respond) -> None:
        (echo if request.text == GREETING else serve)(peer, request, respond)

    async def main() -> None:
        one, two = TestNode(1), TestNode(2)
        for node in (one, two):
            node.internode.register_fast(verbs.PING, Ping, Pong, greeted, shares=shares)
        two.greeting = msgspec.structs.replace(two.greeting, takes_shared=takes_shared)
        async with running(one, two):
            assert await ask(one, two, GREETING) == [Pong(GREETING)]
            await test(one, two)

    run(main)


def connection_of(one: TestNode, two: TestNode) -> Connection:
    connection = one.internode._peers[two.address]._connection
    assert connection is not None
    return connection


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
    async def test(one: TestNode, two: TestNode) -> None:
        with frames_of(verbs.PING) as frames:
            texts = [str(number) for number in range(2 * SHARED_REQUESTS_MAX + 1)]
            assert [reply.text for reply in await ask(one, two, *texts)] == texts
        assert [frame.flags for frame in frames] == [REQUEST | SHARED, REQUEST | SHARED, REQUEST]
        assert [connection.serving for connection in two.internode.own.incoming] == [0]

    with_pair(test)


def test_a_long_request_goes_alone() -> None:
    async def test(one: TestNode, two: TestNode) -> None:
        with frames_of(verbs.PING) as frames:
            long = "x" * SHARED_REQUEST_BYTES_MAX
            replies = await ask(one, two, "a", long, "b")
            assert [reply.text for reply in replies] == ["a", long, "b"]
        assert sorted(frame.flags for frame in frames) == [REQUEST, REQUEST | SHARED]

    with_pair(test)


def test_a_node_that_does_not_say_that_it_takes_them_gets_one_by_one() -> None:
    async def test(one: TestNode, two: TestNode) -> None:
        with frames_of(verbs.PING) as frames:
            assert [reply.text for reply in await ask(one, two, "a", "b")] == ["a", "b"]
        assert [frame.flags for frame in frames] == [REQUEST] * 2

    with_pair(test, takes_shared=False)


def test_each_request_has_its_own_answer_error_or_report_of_a_defect() -> None:
    def serve(peer: PeerInfo, request: Ping, respond: Respond) -> None:
        if request.text == "bad":
            raise ZeroDivisionError
        if request.text == "refused":
            raise NotReplica("elsewhere")
        respond(NotReplica("elsewhere") if request.text == "no" else Pong(request.text))

    async def test(one: TestNode, two: TestNode) -> None:
        with frames_of(verbs.PING) as frames:
            found = await ask(one, two, "a", "no", "bad", "refused", "b")
        assert [frame.flags for frame in frames] == [REQUEST | SHARED]
        assert [type(answer) for answer in found] == [Pong, NotReplica, ServerFault, NotReplica, Pong]
        assert [type(failure) for failure in two.runtime.tasks.failures] == [ZeroDivisionError]  # type: ignore[attr-defined]
        assert await ask(one, two, "c") == [Pong("c")]

    with_pair(test, serve)


@pytest.mark.parametrize("error", [Overloaded, NodeExcluded])
def test_a_peer_that_is_not_served_hears_it_for_each_request(
    error: type[LockstepError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: TestNode, two: TestNode) -> None:
        if error is Overloaded:
            monkeypatch.setattr(serving, "PEER_REQUESTS_SERVED_MAX", 1)
        else:
            monkeypatch.setattr(verbs, "CATCH_UP", frozenset())  # A ping is of it.
            two.internode.own.excluded = ExcludedNodes(frozenset({one.greeting.host_id}), frozenset())
        assert [type(answer) for answer in await ask(one, two, "a", "b")] == [error] * 2
        assert [connection.serving for connection in two.internode.own.incoming] == [0]

    with_pair(test)


def test_answers_that_wait_for_each_other_are_given_together() -> None:
    waiting: list[Respond] = []

    def keep(peer: PeerInfo, request: Ping, respond: Respond) -> None:
        waiting.append(respond)

    async def test(one: TestNode, two: TestNode) -> None:
        asking = asyncio.ensure_future(ask(one, two, "a", "b", "c"))
        await until(lambda: len(waiting) == 3)
        waiting[1].release()
        Respond.all(waiting, Pong("all"))
        assert not any(respond.is_open for respond in waiting)
        with pytest.raises(AssertionError):
            Respond.all(waiting[:1], Pong("twice"))
        await until(lambda: all(connection.serving == 0 for connection in two.internode.own.incoming))
        await two.internode.stop()
        assert [type(answer) for answer in await asking] == [Pong, PeerTimeout, Pong]

    with_pair(test, keep)


def test_a_connection_that_ends_in_the_same_turn_ends_each_request_as_unknown() -> None:
    async def test(one: TestNode, two: TestNode) -> None:
        asking = asyncio.ensure_future(ask(one, two, "a", "b", timeout_ms=60_000))
        await asyncio.sleep(0)
        connection_of(one, two).close("cut", abort=True)
        assert [type(answer) for answer in await asking] == [PeerTimeout] * 2
        one.internode._peers[two.address].wake()
        assert await ask(one, two, "c") == [Pong("c")]

    with_pair(test)


def test_a_blocked_peer_gets_nothing_of_what_waits() -> None:
    async def test(one: TestNode, two: TestNode) -> None:
        with frames_of(verbs.PING) as frames:
            asking = asyncio.ensure_future(ask(one, two, "a", "b", timeout_ms=60))
            await asyncio.sleep(0)
            one.internode.faults.blocked_to = frozenset({two.address})
            assert [type(answer) for answer in await asking] == [PeerTimeout] * 2
            assert frames == []

    with_pair(test)


@pytest.mark.parametrize(
    ("shares", "body", "reason"),
    [
        (True, encode(([1, 2], [Ping("a")])), "1 ping messages came for 2 streams"),
        (True, encode(([1], [7])), "do not decode"),
        (True, b"\xc1", "do not decode"),
        (False, encode(([9], [Ping("a")])), "ping messages do not share a frame"),
    ],
)
def test_a_frame_that_makes_no_sense_ends_the_connection(
    shares: bool, body: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = Connection.close

    def noting(connection: Connection, why: str, *, abort: bool = False) -> None:
        closed.append(why)
        close(connection, why, abort=abort)

    async def test(one: TestNode, two: TestNode) -> None:
        monkeypatch.setattr(Connection, "close", noting)
        connection = connection_of(one, two)
        connection.send(encode_frame(verbs.PING, 0, 1, REQUEST | SHARED, body))
        await until(lambda: connection.closed)
        assert reason in closed[0]

    with_pair(test, shares=shares)
