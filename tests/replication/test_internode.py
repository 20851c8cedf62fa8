from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.internode import serving, verbs
from lockstep.internode.connection import WRITE_BYTES_COALESCED, Connection
from lockstep.internode.frames import REPLY, SHARED, Envelope, encode_frame
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.own_side import ExcludedNodes, LinkFaults, OwnSide, conflict
from lockstep.internode.peer import Peer
from lockstep.internode.serving import Respond
from lockstep.values.codec import encode
from lockstep.values.errors import (
    HandshakeRefused,
    NodeExcluded,
    NotReplica,
    PeerTimeout,
    PeerUnreachable,
    ServerFault,
    StaleEpoch,
)

from .support import TestNode, real_runtime, run, running, until


class Ping(msgspec.Struct, frozen=True, array_like=True):
    text: str


class Pong(msgspec.Struct, frozen=True, array_like=True):
    text: str


async def echo(peer: PeerInfo, request: Ping) -> Pong:
    return Pong(request.text)


def fast_echo(peer: PeerInfo, request: Ping, respond: Respond) -> None:
    respond(Pong(request.text))


def pair(handler: Any = None, fast: Any = None) -> tuple[TestNode, TestNode]:
    nodes = (TestNode(1), TestNode(2))
    for node in nodes:
        if fast is not None:
            node.internode.register_fast(verbs.PING, Ping, Pong, fast)
        else:
            node.internode.register(verbs.PING, Ping, Pong, handler or echo)
    return nodes


def test_requests_are_answered_both_ways_and_carry_epochs() -> None:
    async def test() -> None:
        one, two = pair()
        two.epoch = 5
        async with running(one, two):
            assert await one.internode.request(two.address, verbs.PING, Ping("a"), 1000) == Pong("a")
            assert await two.internode.request(one.address, verbs.PING, Ping("b"), 1000) == Pong("b")
            assert one.internode.connected(two.address)
            assert one.internode.peer(two.address).node_id == 2  # type: ignore[union-attr]
            assert (2, 5) in one.epochs_seen
            two.epoch = 6
            await one.internode.request(two.address, verbs.PING, Ping("c"), 1000)
            assert one.epochs_seen[-1] == (2, 6)

    run(test)


def test_nobody_is_known_where_nobody_was_asked() -> None:
    async def test() -> None:
        one, two = pair()
        assert one.internode.peer(two.address) is None and not one.internode.connected(two.address)
        async with running(one):
            one.internode.send(two.address, verbs.PING, Ping("a"))
            assert one.internode.peer(two.address) is None, "it did not answer"
            assert not one.internode.connected(two.address)

    run(test)


def test_strangers_whose_tls_fails_are_in_the_log_by_the_reason() -> None:
    async def test() -> None:
        node = TestNode(1)
        for reason in ("its certificate is refused", "its certificate is refused", "it does not speak TLS"):
            node.internode._tls_refused(reason)
        node.internode.repeated_log.stop()
        reasons = [(facts["reason"], facts.get("count")) for facts in node.logged("internode.tls_refused")]
        assert reasons == [
            ("its certificate is refused", None),
            ("it does not speak TLS", None),
            ("its certificate is refused", 1),
        ]

    run(test)


def test_many_requests_in_one_tick_find_their_own_replies() -> None:
    async def test() -> None:
        one, two = pair(fast=fast_echo)
        async with running(one, two):
            texts = [str(i) for i in range(500)]
            replies = await asyncio.gather(
                *(one.internode.request(two.address, verbs.PING, Ping(text), 2000) for text in texts)
            )
            assert [reply.text for reply in replies] == texts

    run(test)


class Raw(msgspec.Struct, frozen=True, array_like=True):
    """On the wire as `Ping` and `Pong`, with anything for a text."""

    text: msgspec.Raw


NO_TEXT = Raw(msgspec.Raw(b"\xa2\xff\xfe"))


def test_a_reply_whose_text_is_no_text_ends_its_request() -> None:
    async def test() -> None:
        one, two = pair(fast=lambda peer, request, respond: respond(NO_TEXT))
        async with running(one, two):
            async with asyncio.timeout(5):
                with pytest.raises(PeerTimeout, match="garbled"):
                    await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)

    run(test)


def test_equal_replies_of_one_turn_share_a_frame_and_end_every_request() -> None:
    async def test() -> None:
        waiting: list[Respond] = []
        one, two = pair(fast=lambda peer, request, respond: waiting.append(respond))
        frames: list[Envelope] = []
        async with running(one, two):
            ended = asyncio.gather(
                *(one.internode.request(two.address, verbs.PING, Ping(str(i)), 2000) for i in range(6))
            )
            await until(lambda: len(waiting) == 6)
            receive = Peer.frame_received

            def noting(peer: Peer, connection: Connection, envelope: Envelope) -> None:
                frames.append(envelope)
                receive(peer, connection, envelope)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Peer, "frame_received", noting)
                for number, respond in enumerate(waiting):
                    respond(Pong("even" if number % 2 == 0 else "odd"))
                assert await ended == [Pong("even"), Pong("odd")] * 3
        assert [frame.flags for frame in frames] == [REPLY | SHARED] * 2

    run(test)


def test_a_shared_reply_that_does_not_decode_ends_every_request_as_unknown() -> None:
    async def test() -> None:
        waiting: list[Respond] = []
        one, two = pair(fast=lambda peer, request, respond: waiting.append(respond))
        async with running(one, two):
            ended = asyncio.gather(
                *(one.internode.request(two.address, verbs.PING, Ping(str(i)), 2000) for i in range(3)),
                return_exceptions=True,
            )
            await until(lambda: len(waiting) == 3)
            for respond in waiting:
                respond(7)
            assert [type(outcome) for outcome in await ended] == [PeerTimeout] * 3
            assert not one.internode.connected(two.address)

    run(test)


def test_one_frame_for_several_receivers_is_answered_by_each_with_its_own_context() -> None:
    class Target:
        def __init__(self, address: tuple[str, int]) -> None:
            self.address = address

    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[Any, Any]] = []

        def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
            self.heard.append((context, reply))

        def failed(self, context: Any, error: Exception) -> None:
            self.heard.append((context, type(error)))

    async def test() -> None:
        nodes = [TestNode(index) for index in (1, 2, 3, 4)]
        for node in nodes:
            node.internode.register_fast(verbs.PING, Ping, Pong, fast_echo)
        listener = Listener()
        targets = [Target(node.address) for node in nodes[1:]]
        async with running(*nodes[:3]):
            deadline_s = nodes[0].runtime.clock.monotonic_s() + 2
            nodes[0].internode.submit_each(targets, verbs.PING, encode(Ping("a")), deadline_s, listener)
            assert listener.heard == []
            await until(lambda: len(listener.heard) == 3)
        assert dict(listener.heard) == {
            targets[0]: Pong("a"),
            targets[1]: Pong("a"),
            targets[2]: PeerUnreachable,
        }

    run(test)


@pytest.mark.parametrize("error", [StaleEpoch(9), NotReplica("elsewhere")])
@pytest.mark.parametrize("fast", [False, True])
def test_a_handlers_error_is_raised_at_the_requester(error: Exception, fast: bool) -> None:
    async def failing(peer: PeerInfo, request: Ping) -> Pong:
        raise error

    def failing_fast(peer: PeerInfo, request: Ping, respond: Respond) -> None:
        raise error

    async def test() -> None:
        one, two = pair(fast=failing_fast) if fast else pair(failing)
        async with running(one, two):
            with pytest.raises(type(error)) as caught:
                await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            assert vars(caught.value) == vars(error)

    run(test)


@pytest.mark.parametrize("fast", [False, True])
def test_a_defect_in_a_handler_is_answered_and_reported(fast: bool) -> None:
    async def broken(peer: PeerInfo, request: Ping) -> Pong:
        raise ZeroDivisionError

    def broken_fast(peer: PeerInfo, request: Ping, respond: Respond) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        one, two = pair(fast=broken_fast) if fast else pair(broken)
        async with running(one, two):
            with pytest.raises(ServerFault):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            assert isinstance(two.runtime.tasks.failures[0], ZeroDivisionError)  # type: ignore[attr-defined]

    run(test)


def test_no_listener_is_unreachable_and_backs_off() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one):
            for _ in range(3):
                with pytest.raises(PeerUnreachable):
                    await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            assert len(one.logged("internode.connect_failed")) == 1, "the back-off fails without an attempt"

    run(test)


def test_a_peer_that_connects_to_us_ends_our_back_off() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one):
            with pytest.raises(PeerUnreachable):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            async with running(two):
                await two.internode.request(one.address, verbs.PING, Ping("b"), 1000)
                assert await one.internode.request(two.address, verbs.PING, Ping("c"), 1000) == Pong("c")

    run(test)


def test_a_silent_handler_is_a_timeout_with_unknown_outcome() -> None:
    async def test() -> None:
        one, two = pair(fast=lambda peer, request, respond: None)
        async with running(one, two):
            with pytest.raises(PeerTimeout):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 60)

    run(test)


def test_one_way_messages_that_nobody_answers_never_exhaust_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PEER_REQUESTS_SERVED_MAX", 4)

    async def test() -> None:
        kept: list[Respond] = []
        served: list[str] = []

        def serve(peer: PeerInfo, request: Ping, respond: Respond) -> None:
            served.append(request.text)
            if request.text == "silence":
                kept.append(respond)
            else:
                respond(Pong(request.text))

        one, two = pair(fast=serve)
        async with running(one, two):
            for _ in range(20):
                one.internode.send(two.address, verbs.PING, Ping("silence"))
            await until(lambda: len(served) == 20)
            assert await one.internode.request(two.address, verbs.PING, Ping("a"), 1000) == Pong("a")
            for respond in kept:
                respond(Pong("late"))
            assert await one.internode.request(two.address, verbs.PING, Ping("b"), 1000) == Pong("b")

    run(test)


def test_a_peer_that_never_greets_leaves_nothing_sent() -> None:
    async def test() -> None:
        one, two = pair()
        received: list[bytes] = []

        class Mute(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                received.append(data)

        server = await asyncio.get_running_loop().create_server(Mute, two.host, two.port)
        async with running(one):
            with pytest.raises(PeerUnreachable):
                await one.internode.request(two.address, verbs.PING, Ping("secret"), 80)
        server.close()
        assert b"secret" not in b"".join(received)

    run(test)


def test_a_broken_connection_ends_requests_at_once_with_unknown_outcome() -> None:
    async def test() -> None:
        served: list[str] = []
        one, two = pair(fast=lambda peer, request, respond: served.append(request.text))
        async with running(one, two):
            waiting = asyncio.ensure_future(one.internode.request(two.address, verbs.PING, Ping("a"), 60_000))
            await until(lambda: served == ["a"])
            await two.internode.stop()
            with pytest.raises(PeerTimeout):
                await waiting

    run(test)


def test_a_restarted_peer_is_found_again() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            await two.internode.stop()
            two.internode = two.build()
            two.internode.register(verbs.PING, Ping, Pong, echo)
            await two.start()
            for _ in range(100):
                try:
                    reply = await one.internode.request(two.address, verbs.PING, Ping("b"), 1000)
                    break
                except (PeerUnreachable, PeerTimeout):
                    await asyncio.sleep(0.01)
            assert reply == Pong("b")

    run(test)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cluster_id": "other"}, "cluster id other"),
        ({"lineage": (b"other",)}, "lineage"),
        ({"protocol_version": 99}, "protocol version 99"),
        ({"cluster_name": "prod"}, "cluster name 'prod'"),
    ],
)
def test_strangers_are_refused_with_a_reason(change: dict[str, Any], why: str) -> None:
    async def test() -> None:
        one, two = pair()
        one.greeting = msgspec.structs.replace(one.greeting, **change)
        async with running(one, two):
            with pytest.raises(HandshakeRefused, match=why):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            assert why in two.logged("internode.refused")[0]["reason"]
            assert two.epochs_seen == []

    run(test)


def test_a_node_that_has_not_joined_may_talk() -> None:
    async def test() -> None:
        one, two = pair()
        one.greeting = msgspec.structs.replace(one.greeting, cluster_id="", lineage=(), node_id=0)
        async with running(one, two):
            assert await one.internode.request(two.address, verbs.PING, Ping("a"), 1000) == Pong("a")

    run(test)


def test_the_owners_accept_rule_refuses() -> None:
    async def test() -> None:
        one, two = pair()
        two.refuse = "host-1 was removed at epoch 9"
        async with running(one, two):
            with pytest.raises(HandshakeRefused, match="removed at epoch 9"):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)

    run(test)


def test_an_address_in_use_by_another_host_is_refused() -> None:
    async def test() -> None:
        one, two = pair()
        three = TestNode(3)
        three.internode.register(verbs.PING, Ping, Pong, echo)
        three.greeting = msgspec.structs.replace(three.greeting, address=one.host, port=one.port)
        async with running(one, two, three):
            await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            with pytest.raises(HandshakeRefused, match="in use by host host-1"):
                await three.internode.request(two.address, verbs.PING, Ping("b"), 1000)

    run(test)


def test_a_new_identity_reaches_open_peers() -> None:
    async def test() -> None:
        seen: list[int] = []

        def note(peer: PeerInfo, request: Ping, respond: Respond) -> None:
            seen.append(peer.node_id)
            respond(Pong(request.text))

        one, two = pair(fast=note)
        one.greeting = msgspec.structs.replace(one.greeting, node_id=0)
        async with running(one, two):
            await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            one.greeting = msgspec.structs.replace(one.greeting, node_id=77)
            one.internode.introduce()
            await one.internode.request(two.address, verbs.PING, Ping("b"), 1000)
        assert seen == [0, 77]

    run(test)


@pytest.mark.parametrize("direction", ["blocked_to", "blocked_from"])
def test_a_blocked_peer_is_a_lost_network_until_healed(direction: str) -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            setattr(one.internode.faults, direction, frozenset({two.address}))
            assert not one.internode.connected(two.address)
            with pytest.raises(PeerTimeout):
                await one.internode.request(two.address, verbs.PING, Ping("b"), 40)
            setattr(one.internode.faults, direction, frozenset())
            assert await one.internode.request(two.address, verbs.PING, Ping("c"), 1000) == Pong("c")

    run(test)


def test_a_duplicated_request_is_served_twice_and_answered_once() -> None:
    async def test() -> None:
        served: list[str] = []

        def note(peer: PeerInfo, request: Ping, respond: Respond) -> None:
            served.append(request.text)
            respond(Pong(request.text))

        one, two = pair(fast=note)
        async with running(one, two):
            await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            one.internode.faults.duplicates = lambda: True
            assert await one.internode.request(two.address, verbs.PING, Ping("b"), 1000) == Pong("b")
            one.internode.faults.duplicates = None
            assert await one.internode.request(two.address, verbs.PING, Ping("c"), 1000) == Pong("c")
        assert served == ["a", "b", "b", "c"]

    run(test)


def test_one_way_messages_arrive_in_order() -> None:
    async def test() -> None:
        got: list[str] = []
        one, two = pair(fast=lambda peer, message, respond: got.append(message.text))
        async with running(one, two):
            for i in range(20):
                one.internode.send(two.address, verbs.PING, Ping(str(i)))
            await until(lambda: len(got) == 20)
            assert got == [str(i) for i in range(20)]

    run(test)


def test_call_tells_reply_and_sender_epoch_once() -> None:
    async def test() -> None:
        one, two = pair()
        two.epoch = 12
        ended: list[Any] = []
        async with running(one, two):
            deadline_s = one.runtime.clock.monotonic_s() + 1
            one.internode.call(
                two.address,
                verbs.PING,
                Ping("a"),
                deadline_s,
                lambda r, e: ended.append((r, e)),
                ended.append,
            )
            assert ended == []
            await until(lambda: bool(ended))
            assert ended == [(Pong("a"), 12)]

    run(test)


def test_a_corrupt_frame_closes_the_connection_and_applies_nothing() -> None:
    async def test() -> None:
        served: list[str] = []
        _, two = pair(fast=lambda peer, request, respond: served.append(request.text))
        async with running(two):
            reader, writer = await asyncio.open_connection(two.host, two.port)
            hello = msgspec.structs.replace(two.greeting, host_id="x", address="127.0.1.9", port=1)
            writer.write(encode_frame(verbs.HELLO, 0, 1, 0, encode(hello)))
            assert await reader.read(8)
            good = encode_frame(verbs.PING, 1, 1, 0, encode(Ping("good")))
            bad = encode_frame(verbs.PING, 2, 1, 0, encode(Ping("bad")))
            writer.write(good + bad[:-1] + bytes([bad[-1] ^ 1]))
            await reader.read()
            writer.close()
        assert served == []

    run(test)


def test_a_peers_epoch_is_told_when_it_rises_and_always_while_we_are_behind() -> None:
    async def test() -> None:
        one, two = pair()
        one.epoch = two.epoch = 5
        async with running(one, two):
            for _ in range(3):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            assert one.epochs_seen == [(2, 5)]
            two.epoch = 7
            for _ in range(3):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            assert one.epochs_seen == [(2, 5), (2, 7), (2, 7), (2, 7)]

    run(test)


def test_a_message_before_the_handshake_is_not_served() -> None:
    async def test() -> None:
        served: list[str] = []
        _, two = pair(fast=lambda peer, request, respond: served.append(request.text))
        async with running(two):
            reader, writer = await asyncio.open_connection(two.host, two.port)
            writer.write(encode_frame(verbs.PING, 1, 1, 0, encode(Ping("x"))))
            assert await reader.read() == b""
            writer.close()
        assert served == []
        reasons = [facts["reason"] for facts in two.logged("internode.stranger_closed")]
        assert reasons == ["a message came before the handshake"]

    run(test)


def test_stopping_ends_what_is_in_flight() -> None:
    async def test() -> None:
        one, two = pair(fast=lambda peer, request, respond: None)
        async with running(one, two):
            waiting = asyncio.ensure_future(one.internode.request(two.address, verbs.PING, Ping("a"), 60_000))
            await until(lambda: bool(two.epochs_seen))
            await one.internode.stop()
            with pytest.raises((PeerTimeout, PeerUnreachable)):
                await waiting

    run(test)


def test_an_operator_cuts_each_direction_of_a_link_and_heals_it() -> None:
    """What comes from a node that is cut off is not heard, and it hears no answer."""
    heard: list[str] = []

    async def noted(peer: PeerInfo, request: Ping) -> Pong:
        heard.append(request.text)
        return Pong(request.text)

    async def test() -> None:
        one, two = pair(noted)
        async with running(one, two):
            await one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            cut = two.internode.faults
            for side in ("blocked_to", "blocked_from"):
                setattr(cut, side, frozenset((one.address,)))
                with pytest.raises(PeerTimeout):
                    await one.internode.request(two.address, verbs.PING, Ping(side), 100)
                setattr(cut, side, frozenset())
            assert heard == ["a", "blocked_to"]
            assert await one.internode.request(two.address, verbs.PING, Ping("b"), 1000) == Pong("b")

    run(test)


def test_a_request_of_who_is_shut_out_and_one_that_nobody_serves_hear_why() -> None:
    async def test() -> None:
        one, two = pair()
        one.internode.declare(verbs.READ, Ping, Pong)
        async with running(one, two):
            with pytest.raises(PeerUnreachable, match="not served here"):
                await one.internode.request(two.address, verbs.READ, Ping("a"), 1000)
            two.internode.register(verbs.READ, Ping, Pong, echo)
            assert await one.internode.request(two.address, verbs.READ, Ping("b"), 1000) == Pong("b")
            two.internode.own.excluded = ExcludedNodes(frozenset({one.greeting.host_id}), frozenset())
            with pytest.raises(NodeExcluded):
                await one.internode.request(two.address, verbs.READ, Ping("c"), 1000)
            assert [connection.serving for connection in two.internode.own.incoming] == [0]

    run(test)


def test_a_greeting_from_behind_a_cut_is_not_heard() -> None:
    async def test() -> None:
        one, two = pair()
        async with running(one, two):
            one.internode.faults.blocked_from = frozenset((two.address,))
            with pytest.raises((PeerTimeout, PeerUnreachable)):
                await one.internode.request(two.address, verbs.PING, Ping("a"), 200)
            assert not one.internode.connected(two.address)

    run(test)


class Written:
    """A transport that takes one write, and then has its connection paused."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.connection: Connection | None = None
        self.left = 0

    def write(self, data: bytes) -> None:
        assert self.connection is not None
        self.writes.append(data)
        self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        self.left -= 1
        return self.left + 1

    def is_closing(self) -> bool:
        return False


async def written() -> tuple[Connection, Written]:
    transport = Written()
    connection = Connection(SimpleNamespace(newest=SimpleNamespace(epoch=1)), real_runtime())  # type: ignore[arg-type]
    transport.connection = connection
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def test_large_frames_go_out_one_by_one_while_the_transport_takes_them() -> None:
    async def test() -> None:
        connection, transport = await written()
        frames = [bytes([number]) * WRITE_BYTES_COALESCED for number in range(3)]
        for frame in frames:
            connection.send(frame)
        connection.flush()
        assert transport.writes == frames[:1]
        connection.resume_writing()
        assert transport.writes == frames[:2]
        connection.resume_writing()
        assert transport.writes == frames and connection.room()

    run(test)


def test_raw_bytes_wait_until_the_transport_has_written_what_was_before() -> None:
    async def test() -> None:
        connection, transport = await written()
        transport.left = 3
        assert await connection.drained() is transport
        assert transport.left == -1

    run(test)


def test_who_does_not_read_its_answers_loses_its_connection() -> None:
    closed: list[str] = []
    side: Any = SimpleNamespace(faults=LinkFaults())
    connection: Any = SimpleNamespace(
        peer=PeerInfo(2, "h2", "n2", 1, "node"),
        closed=False,
        room=lambda: False,
        close=lambda why, abort: closed.append(why),
    )
    OwnSide.answer(side, connection, verbs.PING, 5, REPLY, b"")
    assert closed == ["the peer does not read its replies"]


@pytest.mark.parametrize(
    ("address", "host", "why"),
    [
        ("n2", "other", "address n2:1 is in use by host h2"),
        ("n3", "h2", "host h2 is in use at n2:1: a data directory serves one node"),
        ("n2", "h2", None),
        ("n3", "other", None),
    ],
)
def test_a_place_and_a_host_belong_together(address: str, host: str, why: str | None) -> None:
    ended: list[str] = []

    def one(heard_s: float) -> Any:
        peer = PeerInfo(2, "h2", "n2", 1, "node")
        return SimpleNamespace(peer=peer, heard_s=heard_s, close=ended.append)

    mine: Any = SimpleNamespace(peer=None)
    hello: Any = SimpleNamespace(endpoint=(address, 1), host_id=host, address=address, port=1)
    assert conflict([mine, one(9.0)], mine, hello, 5.0) == why
    assert not ended
    assert conflict([one(4.0)], mine, hello, 5.0) is None
    assert bool(ended) is (why is not None), "who was not heard lately makes room"
