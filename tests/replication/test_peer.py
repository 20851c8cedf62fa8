"""The sending side towards one address: limits, back-off, deadlines and answers that make no sense."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.internode import verbs
from lockstep.internode.frames import ERROR, REPLY, REQUEST, SHARED, Envelope, FrameReader, SharedReply
from lockstep.internode.own_side import LinkFaults
from lockstep.internode.peer import (
    SHARED_REQUESTS_MAX,
    SHARED_SPREAD_MS,
    SHARED_STREAMS,
    Link,
    Peer,
    SharedOut,
)
from lockstep.internode.verbs import encode_error
from lockstep.replica.messages import WriteReply
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import LockstepError, Overloaded, PeerTimeout, PeerUnreachable
from lockstep.values.limits import (
    PEER_BACKOFF_MS_MAX,
    PEER_BACKOFF_MS_MIN,
    PEER_ONE_WAY_QUEUED_MAX,
    PEER_REPLAYED_FRAMES_MAX,
    PEER_REQUESTS_IN_FLIGHT_MAX,
    PEER_SILENT_MS,
)

from .support import real_runtime, run

ADDRESS = ("n2", 1)
DECODER = decoder(WriteReply)


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class HandRandom:
    value = 0.0

    def real(self) -> float:
        return self.value


class Connection:
    takes_shared = False
    settled_epoch = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: list[tuple[str, bool]] = []
        self.has_room = True
        self.heard_s = 100.0

    def room(self) -> bool:
        return self.has_room

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def close(self, reason: str, abort: bool = False) -> None:
        self.closed.append((reason, abort))


class Node:
    def __init__(self) -> None:
        real = real_runtime()
        self.clock, self.random = HandClock(), HandRandom()
        self.runtime = SimpleNamespace(clock=self.clock, random=self.random, tasks=real.tasks)
        self.faults = LinkFaults()
        self.logged: list[str] = []
        self.seen: list[int] = []
        self.streams = itertools.count(1)
        self.newest = SimpleNamespace(epoch=5)
        self.marks = None

    def log(self, event: str, **facts: Any) -> None:
        self.logged.append(event)

    def see_epoch(self, connection: Connection, epoch: int) -> None:
        self.seen.append(epoch)


class Waiter:
    """Each context's end."""

    def __init__(self) -> None:
        self.ends: dict[Any, Any] = {}

    def replied(self, context: Any, reply: Any, epoch: int) -> None:
        assert context not in self.ends, "a request ends once"
        self.ends[context] = (reply, epoch)

    def failed(self, context: Any, error: LockstepError) -> None:
        assert context not in self.ends, "a request ends once"
        self.ends[context] = error

    def code_of(self, context: Any) -> type:
        return type(self.ends[context])


class Town:
    """A peer that is idle, or open over `connection`; connecting never comes to an end."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.node, self.waiter, self.connection = Node(), Waiter(), Connection()
        self.peer = Peer(self.node, ADDRESS)  # type: ignore[arg-type]
        self.attempts = 0
        self.peer._connect = self._connect  # type: ignore[method-assign]
        if is_open:
            self.peer.link = Link.OPEN
            self.peer._connection = self.connection  # type: ignore[assignment]

    def _connect(self) -> None:
        self.attempts += 1
        self.peer.link = Link.CONNECTING

    def submit(self, stream: int, deadline_s: float = 200.0) -> None:
        self.peer.submit(stream, verbs.WRITE, b"x", b"", deadline_s, self.waiter, stream, DECODER)

    def hears(self, stream: int, flags: int, body: bytes, epoch: int = 6) -> None:
        envelope = Envelope(verbs.WRITE, stream, epoch, flags, body)
        self.peer.frame_received(self.connection, envelope)  # type: ignore[arg-type]


def test_each_kind_of_answer_ends_its_request_and_no_other() -> None:
    async def test() -> None:
        town = Town()
        for stream in range(1, 6):
            town.submit(stream)
        assert len(town.connection.sent) == 5
        town.hears(1, REPLY, encode(WriteReply(9)))
        town.hears(1, REPLY, encode(WriteReply(9)))
        town.hears(2, ERROR, encode_error(Overloaded("too much")))
        town.hears(9, REPLY, encode(WriteReply(9)))
        shared = SharedReply(encode(WriteReply(8)), [3, 77, 4])
        town.hears(0, REPLY | SHARED, encode(shared), epoch=7)
        ends = town.waiter.ends
        assert ends[1] == (WriteReply(9), 6) and ends[3] == ends[4] == (WriteReply(8), 7)
        assert town.waiter.code_of(2) is Overloaded and 5 not in ends
        assert not town.connection.closed and town.node.seen == [6, 6, 6, 6, 7]
        town.peer.stop()
        assert town.waiter.code_of(5) is PeerTimeout, "it was sent"
        assert town.connection.closed == [("this node stops", False)]

    run(test)


@pytest.mark.parametrize("flags", [REPLY, REPLY | SHARED])
def test_what_does_not_decode_ends_the_connection(flags: int) -> None:
    async def test() -> None:
        town = Town()
        town.submit(1)
        town.hears(1, flags, b"\xc1 no message")
        ((reason, _),) = town.connection.closed
        assert reason.startswith("a reply to ") and "does not decode" in reason
        # A shared answer does not tell whose it is: its requests end with the connection.
        assert (1 in town.waiter.ends) is (flags == REPLY)
        town.peer.connection_closed(town.connection, reason)  # type: ignore[arg-type]
        assert town.waiter.code_of(1) is PeerTimeout and town.peer.link is Link.IDLE

    run(test)


def test_a_request_where_answers_belong_breaks_the_protocol_and_who_is_blocked_is_not_heard() -> None:
    async def test() -> None:
        town = Town()
        town.submit(1)
        town.node.faults.blocked_from = frozenset({ADDRESS})
        town.hears(1, REPLY, encode(WriteReply(9)))
        assert not town.waiter.ends
        town.node.faults.blocked_from = frozenset()
        town.hears(1, REQUEST, b"")
        assert town.waiter.code_of(1) is PeerTimeout
        assert town.connection.closed == [("a request came on a connection for replies", False)]

    run(test)


def test_so_many_requests_are_in_flight_and_no_more_than_it_reads() -> None:
    async def test() -> None:
        town = Town()
        for stream in range(PEER_REQUESTS_IN_FLIGHT_MAX + 1):
            town.submit(stream)
        assert not town.waiter.ends, "never before the call has returned"
        await asyncio.sleep(0)
        assert list(town.waiter.ends) == [PEER_REQUESTS_IN_FLIGHT_MAX]
        assert "too many requests in flight" in town.waiter.ends[PEER_REQUESTS_IN_FLIGHT_MAX].message
        crowded = Town()
        crowded.connection.has_room = False
        crowded.submit(1)
        crowded.peer.send_one_way(verbs.PING, b"x")
        await asyncio.sleep(0)
        assert "does not read its messages" in crowded.waiter.ends[1].message
        assert not crowded.connection.sent

    run(test)


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1.0])
def test_pauses_between_attempts_double_up_to_a_bound_and_vary_by_half(drawn: float) -> None:
    async def test() -> None:
        town = Town(is_open=False)
        town.node.random.value = drawn
        now_s, pauses_ms = town.node.clock.now_s, []
        for attempt in range(1, 24):
            town.submit(attempt)
            assert town.attempts == attempt and town.peer.link is Link.CONNECTING
            town.peer._attempt_failed(PeerUnreachable(f"attempt {attempt}"))
            assert town.waiter.ends[attempt].message == f"attempt {attempt}"
            pauses_ms.append(round((town.peer._retry_at_s - town.node.clock.now_s) * 1000, 6))
            town.node.clock.now_s = town.peer._retry_at_s - 0.001
            town.submit(100 + attempt)
            town.peer.send_one_way(verbs.PING, b"x")
            await asyncio.sleep(0)
            assert town.waiter.ends[100 + attempt].message == f"attempt {attempt}", (
                "it is not tried again yet"
            )
            town.node.clock.now_s = town.peer._retry_at_s
        share = 0.5 + drawn / 2
        wanted = [min(PEER_BACKOFF_MS_MAX, PEER_BACKOFF_MS_MIN << min(n, 16)) * share for n in range(23)]
        assert pauses_ms == pytest.approx(wanted) and town.node.clock.now_s > now_s
        town.peer._attempt_failed(PeerUnreachable("again"))
        town.peer.wake()
        town.submit(99)
        assert town.peer.link is Link.CONNECTING, "it connected to us, so it is tried at once"
        town.peer._attempt_failed(PeerUnreachable("and again"))
        first_ms = (town.peer._retry_at_s - town.node.clock.now_s) * 1000
        assert first_ms == pytest.approx(PEER_BACKOFF_MS_MIN * share)

    run(test)


def test_deadlines_tell_whether_a_request_may_have_arrived() -> None:
    async def test() -> None:
        town = Town(is_open=False)
        town.submit(1, 101.0)
        town.submit(2, 103.0)
        town.peer.link, town.peer._connection = Link.OPEN, town.connection  # type: ignore[assignment]
        town.submit(3, 101.0)
        town.submit(4, 102.0)
        town.node.clock.now_s = 101.0
        town.peer._expire()
        assert {at: type(end) for at, end in town.waiter.ends.items()} == {1: PeerUnreachable, 3: PeerTimeout}
        assert "was not connected in time" in town.waiter.ends[1].message
        assert "did not answer in time" in town.waiter.ends[3].message
        assert town.peer._sweep is not None and town.peer._sweep_at_s == 102.0
        town.hears(3, REPLY, encode(WriteReply(9)))
        town.node.clock.now_s = 103.0
        town.peer._expire()
        town.peer._expire()
        assert set(town.waiter.ends) == {1, 2, 3, 4} and town.peer._sweep is None
        assert not town.connection.closed, "it was heard not long ago"
        town.submit(5, 110.0)
        town.node.clock.now_s = 100.0 + PEER_SILENT_MS / 1000 + 11
        town.peer._expire()
        town.peer._expire()
        assert town.connection.closed == [("requests expire and nothing is heard", True)]
        assert town.waiter.code_of(5) is PeerTimeout

    run(test)


def test_the_earliest_deadline_arms_the_timer_once() -> None:
    async def test() -> None:
        town = Town()
        town.submit(1, 105.0)
        first = town.peer._sweep
        town.submit(2, 106.0)
        assert town.peer._sweep is first and town.peer._sweep_at_s == 105.0
        town.submit(3, 104.0)
        assert first is not None and first.cancelled() and town.peer._sweep_at_s == 104.0
        town.peer.stop()
        assert town.peer._sweep is not None and town.peer._sweep.cancelled()

    run(test)


def test_messages_that_nobody_waits_for_are_dropped_where_they_cannot_go() -> None:
    async def test() -> None:
        town = Town(is_open=False)
        for _ in range(PEER_ONE_WAY_QUEUED_MAX + 5):
            town.peer.send_one_way(verbs.PING, b"x")
        assert len(town.peer._queued) == PEER_ONE_WAY_QUEUED_MAX and town.attempts == 1
        blocked = Town()
        blocked.node.faults.blocked_to = frozenset({ADDRESS})
        blocked.peer.send_one_way(verbs.PING, b"x")
        blocked.submit(1)
        assert not blocked.connection.sent and 1 in blocked.peer._pending, "it will expire"
        opened = Town()
        opened.peer.send_one_way(verbs.PING, b"x")
        assert len(opened.connection.sent) == 1
        opened.node.faults.duplicates = lambda: True
        opened.peer.send_one_way(verbs.PING, b"x")
        assert len(opened.connection.sent) == 3 and opened.connection.sent[1] == opened.connection.sent[2]

    run(test)


def test_what_was_lost_with_the_connection_may_have_arrived() -> None:
    async def test() -> None:
        town = Town()
        town.submit(1)
        other = Connection()
        town.peer.connection_closed(other, "an older one")  # type: ignore[arg-type]
        assert not town.waiter.ends and town.peer.link is Link.OPEN
        town.peer.connection_closed(town.connection, "reset")  # type: ignore[arg-type]
        assert town.waiter.code_of(1) is PeerTimeout and "broke: reset" in town.waiter.ends[1].message
        assert town.node.logged == ["internode.disconnected"]
        town.submit(2)
        await asyncio.sleep(0)
        assert town.waiter.ends[2].message == "n2:1 was lost: reset", "it is left alone for a while"

    run(test)


def test_an_opened_link_sends_what_waited_and_begins_pauses_anew() -> None:
    async def test() -> None:
        town = Town(is_open=False)
        town.submit(50)
        town.peer.send_one_way(verbs.PING, b"x")
        town.peer._failures = 5
        greeted = town.peer._greeted = asyncio.get_running_loop().create_future()
        town.peer._opened(town.connection)  # type: ignore[arg-type]
        assert greeted.done() and town.peer._greeted is None and town.peer.link is Link.OPEN
        assert len(town.connection.sent) == 2 and not town.peer._queued and not town.peer._queued_one_way
        assert town.peer._failures == 0 and town.node.logged[-1] == "internode.connected"

    run(test)


def test_frames_that_were_sent_twice_come_once_more_on_the_next_connection_the_last_ones_only() -> None:
    async def test() -> None:
        town = Town()
        town.node.faults.duplicates = lambda: True
        for number in range(PEER_REPLAYED_FRAMES_MAX + 3):
            town.peer.send_one_way(verbs.PING, b"%d" % number)
        sent = town.connection.sent[::2]
        assert town.peer._replays == sent[-PEER_REPLAYED_FRAMES_MAX:]
        town.connection.sent.clear()
        town.peer._greeted = asyncio.get_running_loop().create_future()
        town.peer._opened(town.connection)  # type: ignore[arg-type]
        assert town.connection.sent == sent[-PEER_REPLAYED_FRAMES_MAX:] and town.peer._replays == []

    run(test)


class Crowd:
    """What waits for one peer, and what of it was posted: (streams of a frame, its flags, its deadline)."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.posted: list[tuple[int, list[int], int]] = []
        newest: Any = SimpleNamespace(epoch=5)
        clock: Any = self.clock
        self.out = SharedOut(newest, clock, self._post)

    def _post(self, first: int, frame: bytes) -> None:
        [one] = FrameReader().feed(frame)
        streams = SHARED_STREAMS.decode(one.body)[0] if one.flags & SHARED else [one.stream]
        assert streams[0] == first and one.epoch == 5
        self.posted.append((one.verb, streams, one.left_ms))

    def add(self, stream: int, deadline_s: float = 110.0, verb: int = verbs.WRITE) -> bool:
        is_first = self.out.add(verb, stream, encode(stream), deadline_s)
        self.out.validate()
        return is_first


def test_what_waits_together_shares_a_frame_of_its_verb_with_the_latest_deadline() -> None:
    crowd = Crowd()
    spread_s = SHARED_SPREAD_MS / 1000
    assert crowd.add(1) and not crowd.add(2, 110.0 + spread_s / 2) and not crowd.add(3, verb=verbs.READ)
    crowd.out.post()
    left_ms = int((10.0 + spread_s / 2) * 1000)
    assert crowd.posted == [(verbs.WRITE, [1, 2], left_ms), (verbs.READ, [3], left_ms)]
    crowd.out.post()
    assert len(crowd.posted) == 2
    assert crowd.add(4), "the first one again"
    crowd.out.forget()
    crowd.out.post()
    assert len(crowd.posted) == 2


def test_those_that_end_far_apart_do_not_share_a_frame() -> None:
    for at_s in (110.0 + 2 * SHARED_SPREAD_MS / 1000, 110.0 - 2 * SHARED_SPREAD_MS / 1000):
        crowd = Crowd()
        crowd.add(1)
        crowd.add(2, at_s)
        assert [streams for _, streams, _ in crowd.posted] == [[1]]
        crowd.out.post()
        assert [streams for _, streams, _ in crowd.posted] == [[1], [2]]


def test_a_frame_holds_so_many_and_what_is_too_late_is_not_sent() -> None:
    crowd = Crowd()
    for stream in range(1, SHARED_REQUESTS_MAX + 1):
        crowd.add(stream)
    assert [len(streams) for _, streams, _ in crowd.posted] == [SHARED_REQUESTS_MAX]
    crowd.add(99)
    crowd.clock.now_s = 110.0
    crowd.out.post()
    assert len(crowd.posted) == 1
