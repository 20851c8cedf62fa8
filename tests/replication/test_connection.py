"""One byte stream between nodes, over a transport that takes what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.internode import connection as module
from lockstep.internode import verbs
from lockstep.internode.connection import DELAY_WINDOW_S, SHARED_BODY_BYTES_MAX, Connection, QueueingDelay
from lockstep.internode.frames import (
    REPLY,
    REQUEST,
    SHARED,
    SHARED_REPLY,
    Envelope,
    FrameReader,
    encode_frame,
)
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.throttle import BURST_S, Throttle
from lockstep.values.limits import PEER_QUEUED_BYTES_MAX
from lockstep.values.node_limits import EXPIRED_SLACK_MS

from .support import real_runtime, run

PEER = PeerInfo(2, "host2", "n2", 1, "node")


class Transport:
    """Keeps each write; calls `on_write` with how many there were."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ends: list[str] = []
        self.on_write: Callable[[int], None] = lambda count: None

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.on_write(len(self.written))

    def close(self) -> None:
        self.ends.append("closed")

    def abort(self) -> None:
        self.ends.append("aborted")

    def frames(self) -> list[Envelope]:
        return FrameReader().feed(b"".join(self.written))


class Wire:
    """One connection that is open, and what its owner hears."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.now_s = 100.0
        self.newest = SimpleNamespace(epoch=7)
        self.heard: list[tuple[str, Any]] = []
        clock: Any = SimpleNamespace(monotonic_s=lambda: self.now_s)
        owner: Any = self
        self.connection = Connection(owner, msgspec.structs.replace(real_runtime(), clock=clock))
        self.transport = Transport()
        if is_open:
            self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def hello_received(self, connection: Connection, envelope: Envelope) -> None:
        self.heard.append(("hello", envelope.body))

    def frame_received(self, connection: Connection, envelope: Envelope) -> None:
        self.heard.append(("frame", envelope.body))

    def connection_closed(self, connection: Connection, reason: str) -> None:
        self.heard.append(("closed", reason))


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def frame_of(body: bytes, verb: int = verbs.READ) -> bytes:
    return encode_frame(verb, 1, 5, REQUEST, body)


def test_what_one_turn_sends_goes_out_in_one_write() -> None:
    async def test() -> None:
        wire = Wire()
        for body in (b"a", b"b"):
            wire.connection.send(frame_of(body))
        assert wire.transport.written == []
        await turn()
        assert wire.transport.written == [frame_of(b"a") + frame_of(b"b")]
        wire.connection.send(frame_of(b"c"))
        await turn()
        assert wire.transport.written[1:] == [frame_of(b"c")]
        await turn()
        assert len(wire.transport.written) == 2

    run(test)


def test_what_is_sent_before_there_is_a_transport_goes_out_with_it() -> None:
    async def test() -> None:
        wire = Wire(is_open=False)
        wire.connection.send(frame_of(b"a"))
        await turn()
        wire.connection.connection_made(wire.transport)  # type: ignore[arg-type]
        assert wire.transport.written == [frame_of(b"a")]
        late = Wire(is_open=False)
        late.connection.close("given up")
        late.connection.connection_made(late.transport)  # type: ignore[arg-type]
        assert late.transport.ends == ["closed"]

    run(test)


def test_a_transport_that_takes_nothing_is_waited_for() -> None:
    async def test() -> None:
        wire = Wire()
        wire.connection.pause_writing()
        wire.connection.send(frame_of(b"a"))
        await turn()
        assert wire.transport.written == []
        wire.connection.resume_writing()
        assert wire.transport.written == [frame_of(b"a")]
        wire.connection.send(frame_of(b"b"))
        await turn()
        assert len(wire.transport.written) == 2

    run(test)


def test_a_large_backlog_goes_out_frame_by_frame_while_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_BYTES_COALESCED", 100)

    async def test() -> None:
        wire = Wire()
        frames = [frame_of(b"%d" % number * 40) for number in range(4)]

        def full(count: int) -> None:
            if count == 2:
                wire.connection.pause_writing()

        wire.transport.on_write = full
        for frame in frames:
            wire.connection.send(frame)
        await turn()
        assert wire.transport.written == frames[:2]
        assert wire.connection._out == frames[2:]
        assert wire.connection._out_bytes == sum(map(len, frames[2:]))
        wire.connection.resume_writing()
        assert b"".join(wire.transport.written) == b"".join(frames) and wire.connection._out_bytes == 0

    run(test)


def test_there_is_room_until_the_backlog_is_at_its_limit() -> None:
    async def test() -> None:
        wire = Wire()
        wire.connection.pause_writing()
        assert wire.connection.room() and wire.connection.shares(b"x")
        wire.connection._out_bytes = PEER_QUEUED_BYTES_MAX - 1
        assert wire.connection.room() and wire.connection.shares(b"x")
        wire.connection._out_bytes = PEER_QUEUED_BYTES_MAX
        assert not wire.connection.room() and not wire.connection.shares(b"x")

    run(test)


def test_equal_small_replies_of_one_turn_share_a_frame_and_large_ones_do_not() -> None:
    async def test() -> None:
        wire = Wire()
        small, large = b"s" * SHARED_BODY_BYTES_MAX, b"l" * (SHARED_BODY_BYTES_MAX + 1)
        assert wire.connection.shares(small) and not wire.connection.shares(large)
        for stream in (3, 4):
            wire.connection.reply(verbs.WRITE, stream, small)
            wire.connection.reply(verbs.WRITE, stream, large)
        wire.connection.reply_all(verbs.WRITE, (5, 6), small)
        wire.connection.reply(verbs.READ, 7, small)
        assert wire.connection._out_bytes > 5 * module.REPLY_BYTES
        await turn()
        assert len(wire.transport.written) == 1 and wire.connection._out_bytes == 0
        first, second, shared, alone = wire.transport.frames()
        assert [(one.stream, one.flags, one.body, one.epoch) for one in (first, second)] == [
            (3, REPLY, large, 7),
            (4, REPLY, large, 7),
        ]
        assert (shared.verb, shared.stream, shared.flags) == (verbs.WRITE, 0, REPLY | SHARED)
        found = SHARED_REPLY.decode(shared.body)
        assert (found.body, found.streams) == (small, [3, 4, 5, 6])
        assert (alone.verb, alone.stream, alone.flags, alone.body) == (verbs.READ, 7, REPLY, small)

    run(test)


def test_who_has_more_to_send_in_a_turn_is_asked_once_before_the_write() -> None:
    async def test() -> None:
        wire = Wire()
        asked: list[int] = []

        def more() -> None:
            asked.append(1)
            wire.connection.send(frame_of(b"more"))

        wire.connection.before_flush(more)
        await turn()
        assert asked == [1] and wire.transport.written == [frame_of(b"more")]
        await turn()
        assert asked == [1]

    run(test)


@pytest.mark.parametrize(("abort", "written"), [(False, 1), (True, 0)])
def test_what_was_queued_still_goes_out_unless_the_end_is_sudden(abort: bool, written: int) -> None:
    async def test() -> None:
        wire = Wire()
        wire.connection.send(frame_of(b"a"))
        wire.connection.close("enough", abort=abort)
        assert len(wire.transport.written) == written
        assert wire.transport.ends == ["aborted" if abort else "closed"]
        wire.connection.close("again")
        wire.connection.connection_lost(None)
        wire.connection.send(frame_of(b"b"))
        wire.connection.reply_all(verbs.WRITE, (1,), b"x")
        wire.connection.before_flush(lambda: wire.heard.append(("asked", None)))
        await turn()
        assert wire.heard == [("closed", "enough")] and len(wire.transport.written) == written

    run(test)


@pytest.mark.parametrize(("error", "told"), [(None, "closed by the other side"), (OSError("reset"), "reset")])
def test_a_connection_that_breaks_says_why(error: Exception | None, told: str) -> None:
    async def test() -> None:
        wire = Wire()
        wire.connection.connection_lost(error)
        assert wire.heard == [("closed", told)] and wire.connection.closed

    run(test)


def test_nothing_but_a_greeting_is_heard_before_the_handshake() -> None:
    async def test() -> None:
        wire = Wire()
        wire.connection.data_received(frame_of(b"me", verbs.HELLO))
        assert wire.heard == [("hello", b"me")]
        wire.connection.data_received(frame_of(b"a") + frame_of(b"b", verbs.HELLO))
        assert wire.heard[1:] == [("closed", "a message came before the handshake")]
        wire.connection.data_received(frame_of(b"c", verbs.HELLO))
        assert len(wire.heard) == 2
        known = Wire()
        known.connection.peer = PEER
        known.now_s = 103.0
        known.connection.data_received(frame_of(b"a") + frame_of(b"b"))
        assert known.heard == [("frame", b"a"), ("frame", b"b")] and known.connection.heard_s == 103.0
        known.connection.data_received(b"\0" * 64)
        assert known.heard[-1][0] == "closed" and "frame length" in known.heard[-1][1]

    run(test)


def test_how_long_a_message_waited_is_told_by_the_fastest_one_lately() -> None:
    delay = QueueingDelay()
    assert delay.delay_s(50.0, 100.0) == 0
    assert delay.delay_s(51.0, 101.5) == 0.5
    assert delay.delay_s(52.0, 101.0) == 0, "it was faster"
    assert delay.delay_s(53.0, 103.0) == 1.0
    at_s = 100.0 + DELAY_WINDOW_S
    assert delay.delay_s(at_s - 51.0, at_s) == 2.0, "of the time before, too"
    assert delay.delay_s(at_s + DELAY_WINDOW_S - 50.5, at_s + DELAY_WINDOW_S) == 0, "and then no more"


def test_an_answer_is_waited_for_until_the_time_that_the_sender_said() -> None:
    async def test() -> None:
        wire = Wire()
        first = Envelope(verbs.READ, 1, 5, REQUEST, b"", sent_ms=40_000, left_ms=1000)
        assert wire.connection.waits_until_s(first) == pytest.approx(101.0 + EXPIRED_SLACK_MS / 1000)
        wire.connection.heard_s = 102.5
        later = Envelope(verbs.READ, 2, 5, REQUEST, b"", sent_ms=42_000, left_ms=1000)
        assert wire.connection.waits_until_s(later) == pytest.approx(103.0 + EXPIRED_SLACK_MS / 1000)

    run(test)


def test_a_turn_that_is_too_far_is_refused_and_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        now_s, slept = [100.0], list[float]()
        clock: Any = SimpleNamespace(monotonic_s=lambda: now_s[0])

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        throttle = Throttle(clock, 1000)
        assert await throttle.take(2000, 0) and slept == []
        wait_s = 2.0 - BURST_S
        assert not await throttle.take(500, 100) and slept == [0.1]
        assert await throttle.take(500, 5000) and slept[1:] == [pytest.approx(wait_s)]
        assert throttle.waited_s == pytest.approx(wait_s + 0.1)
        turns: dict[tuple[int, int], float] = {}
        assert not await throttle.take(500, 100, turns, (1, 0))
        assert turns == {(1, 0): pytest.approx(100.0 + wait_s + 0.5)}, "its place is kept"
        now_s[0] += wait_s + 0.5
        assert await throttle.take(500, 0, turns, (1, 0)) and turns == {}

    run(test)
