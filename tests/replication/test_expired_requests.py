"""Requests that waited for longer than their senders do are dropped unread, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
from math import inf
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.internode import verbs
from lockstep.internode.connection import DELAY_WINDOW_S, QueueingDelay
from lockstep.internode.frames import ERROR, REQUEST, SHARED, FrameReader, encode_frame
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.peer import SHARED_STREAMS, SharedOut
from lockstep.internode.serving import Respond
from lockstep.replica.messages import ReadRequest, WriteRequest
from lockstep.values.codec import encode
from lockstep.values.errors import PeerTimeout
from lockstep.values.node_limits import EXPIRED_SLACK_MS
from tests.replication.clusters import make_nodes, read_one, upsert, whole_ring
from tests.replication.support import TestNode, run, running
from tests.replication.test_internode import Ping, Pong
from tests.replication.test_responding import Connection as Asking
from tests.replication.test_responding import Node as Answering

served: list[str] = []


def serve(peer: PeerInfo, request: Ping, respond: Respond) -> None:
    served.append(request.text)
    respond(Pong(request.text))


def test_what_a_frame_says_of_time_is_behind_what_older_nodes_read() -> None:
    plain = FrameReader().feed(encode_frame(verbs.WRITE, 5, 7, REQUEST, b"x"))[0]
    timed = FrameReader().feed(encode_frame(verbs.WRITE, 5, 7, REQUEST, b"x", 1234, 500))[0]
    assert (plain.sent_ms, plain.left_ms) == (0, 0)
    assert (timed.verb, timed.stream, timed.epoch, timed.flags, timed.body) == (
        verbs.WRITE,
        5,
        7,
        REQUEST,
        b"x",
    )
    assert (timed.sent_ms, timed.left_ms) == (1234, 500)


@pytest.mark.parametrize("shared", [False, True])
def test_an_expired_frame_is_counted_and_refused(shared: bool) -> None:
    async def main() -> None:
        one, two = TestNode(1), TestNode(2)
        for node in (one, two):
            node.internode.register_fast(verbs.WRITE, Ping, Pong, serve, shares=True)
        async with running(one, two):
            assert await one.internode.begin(two.address, verbs.WRITE, Ping("first"), 5000) == Pong("first")
            peer = one.internode._peers[two.address]
            now_ms = int(one.runtime.clock.monotonic_s() * 1000)
            sent_ms, left_ms = now_ms - 1000, 1000 - 2 * EXPIRED_SLACK_MS
            bodies = [encode(Ping(text)) for text in "xy"]
            if shared:
                body = encode(([901, 902], [msgspec.Raw(one) for one in bodies]))
                frame = encode_frame(verbs.WRITE, 0, 1, REQUEST | SHARED, body, sent_ms, left_ms)
            else:
                frame = encode_frame(verbs.WRITE, 901, 1, REQUEST, bodies[0], sent_ms, left_ms)
            peer._post(901, frame)
            assert await one.internode.begin(two.address, verbs.WRITE, Ping("last"), 5000) == Pong("last")
            assert two.internode.own.expired == (2 if shared else 1)
            assert served == ["first", "last"]

    served.clear()
    run(main)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 5)), min_size=1, max_size=60),
    st.floats(-1e6, 1e6),
)
def test_a_delay_is_never_told_too_long_and_exactly_after_a_fast_message(
    messages: list[tuple[float, float]], offset_s: float
) -> None:
    """Messages are (pause before it, time on its way), the sender's clock is off by anything."""
    delay, now_s = QueueingDelay(), 0.0
    fastest_s = -DELAY_WINDOW_S
    for pause_s, way_s in messages:
        sent_s = now_s + pause_s
        now_s = sent_s + way_s
        found = delay.delay_s(sent_s + offset_s, now_s)
        assert -1e-6 <= found <= way_s + 1e-6
        if not way_s:
            fastest_s = now_s
        if now_s - fastest_s < DELAY_WINDOW_S and fastest_s >= 0:
            assert found == pytest.approx(way_s, abs=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_who_serves_a_request_knows_until_when_it_is_waited_for(shared: bool) -> None:
    async def main() -> None:
        one, two = TestNode(1), TestNode(2)
        untils_s: list[float] = []

        def note(peer: PeerInfo, request: Ping, respond: Respond) -> None:
            untils_s.append(respond.until_s)
            respond(Pong(request.text))

        for node in (one, two):
            node.internode.register_fast(verbs.WRITE, Ping, Pong, note, shares=True)
            node.internode.register_fast(verbs.HINT, Ping, Pong, note)
        async with running(one, two):
            clock = two.runtime.clock
            before_s = clock.monotonic_s()
            await asyncio.gather(
                *(
                    one.internode.begin(two.address, verbs.WRITE, Ping(text), 5000)
                    for text in "xyz"[: 1 + 2 * shared]
                )
            )
            left_s = 5 + EXPIRED_SLACK_MS / 1000
            for until_s in untils_s:
                assert before_s + left_s - 0.1 <= until_s <= clock.monotonic_s() + left_s
            await one.internode.begin(two.address, verbs.HINT, Ping("hint"), 5000)
            assert untils_s[-1] == inf

    run(main)


@pytest.mark.parametrize(("left_s", "served"), [(-0.001, False), (60.0, True), (inf, True)])
def test_what_nobody_waits_for_once_the_metadata_is_there_is_dropped(left_s: float, served: bool) -> None:
    async def main() -> None:
        _, nodes = make_nodes(3, whole_ring(6, [1, 2, 3], group_epoch=6))
        behind, node = nodes[1], Answering()
        replica, until_s = behind.replica, behind.runtime.clock.monotonic_s() + left_s
        for verb, receive, request in (
            (verbs.WRITE, replica._receive_write, WriteRequest(6, 6, upsert(1))),
            (verbs.READ, replica._receive_read, ReadRequest(6, 6, read_one(1))),
        ):
            behind.cluster = whole_ring(5, [1, 2, 3])
            respond = Respond(node, Asking(1), verb, 5, True, until_s)  # type: ignore[arg-type]
            receive(nodes[0].internode.peer, request, respond)  # type: ignore[operator]
            for _ in range(20):
                await asyncio.sleep(0)
            assert not respond.is_open
        assert behind.catch_ups == [6, 6]
        assert len(behind.engine.applied) == served and behind.engine.reads == served
        refused = [verb for _, verb, _, flags in node.answers if flags == ERROR]
        assert refused == ([] if served else [verbs.WRITE, verbs.READ])

    run(main)


def test_what_waits_to_share_a_frame_is_not_sent_once_all_of_it_is_too_late() -> None:
    """As on a node that stood still between the turn in which a write began and the next."""
    clock, posted = Still(), []
    out = SharedOut(SimpleNamespace(epoch=7), clock, lambda stream, frame: posted.append((stream, frame)))
    for number, (deadlines_s, now_s, sent) in enumerate(
        (
            ((1.0,), 0.5, True),
            ((1.98, 2.0), 2.0, False),
            ((2.17, 2.21), 2.2, True),
            ((2.0,), 2.3, False),
            ((5.0,), 2.4, True),
        )
    ):
        posted.clear()
        for stream, deadline_s in enumerate(deadlines_s, 1):
            assert out.add(verbs.WRITE, stream, b"body", deadline_s) is (stream == 1), number
        clock.now_s = now_s
        out.post()
        assert bool(posted) is sent, number
        if sent:
            [envelope] = FrameReader().feed(posted[0][1])
            left_ms = int((max(deadlines_s) - now_s) * 1000)
            assert (envelope.sent_ms, envelope.left_ms) == (int(now_s * 1000), left_ms)


@pytest.mark.parametrize(
    ("deadlines_s", "frames"),
    [
        ((5.0, 5.05, 5.02), [3]),
        ((5.05, 5.0), [2]),
        ((5.0, 5.051), [1, 1]),
        ((5.0, 4.949), [1, 1]),
        ((5.0, 5.03, 5.06), [2, 1]),
        ((3.0, 5.0, 5.0, 3.0, 5.0), [1, 2, 1, 1]),
    ],
)
def test_requests_that_are_given_up_far_apart_share_no_frame(
    deadlines_s: tuple[float, ...], frames: list[int]
) -> None:
    """Else a replica would work on an old write for as long as somebody waits for a new one."""
    posted: list[bytes] = []
    out = SharedOut(SimpleNamespace(epoch=7), Still(), lambda stream, frame: posted.append(frame))
    for stream, deadline_s in enumerate(deadlines_s, 1):
        out.add(verbs.WRITE, stream, encode(stream), deadline_s)
    out.post()
    found = [envelope for frame in posted for envelope in FrameReader().feed(frame)]
    counts = [len(SHARED_STREAMS.decode(one.body)[0]) if one.flags & SHARED else 1 for one in found]
    assert counts == frames
    ends = [sum(frames[: at + 1]) for at in range(len(frames))]
    latest = [max(deadlines_s[end - count : end]) for end, count in zip(ends, frames, strict=True)]
    assert [one.left_ms for one in found] == [int(deadline_s * 1000) for deadline_s in latest]


class Still:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return 0


@pytest.mark.parametrize(("verb", "shares"), [(verbs.WRITE, True), (verbs.READ, False), (verbs.PING, False)])
def test_a_request_whose_time_is_over_is_not_sent_where_nobody_would_wait(verb: int, shares: bool) -> None:
    async def main() -> None:
        one, two = TestNode(1), TestNode(2)
        for node in (one, two):
            node.internode.register_fast(verb, Ping, Pong, serve, shares=shares)
        async with running(one, two):
            assert await one.internode.begin(two.address, verb, Ping("first"), 5000) == Pong("first")
            expires = verb != verbs.PING
            with pytest.raises(PeerTimeout) if expires else contextlib.nullcontext():
                await one.internode.begin(two.address, verb, Ping("late"), 0)
            assert await one.internode.begin(two.address, verb, Ping("last"), 5000) == Pong("last")
            # What else nodes tell each other has its effect whoever waits.
            assert served == (["first", "last"] if expires else ["first", "late", "last"])

    served.clear()
    run(main)
