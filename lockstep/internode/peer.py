"""The sending side towards one address: connection with back-off, requests in flight, their ends.

Small requests of one verb that leave for one peer in one turn of the loop share a frame.

Invariant: every request ends exactly once, with a reply, the peer's error, PeerUnreachable (it never left
this node) or PeerTimeout (it may have arrived); one sweep timer serves all deadlines. A request that waits to
share a frame leaves at the end of the turn at the latest, or its connection is gone, or the loop has stood
still meanwhile until nobody waits for an answer any more. What is sent alone in that turn may leave before
it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from lockstep.internode import verbs
from lockstep.internode.connection import Connection
from lockstep.internode.frames import (
    ERROR,
    ONE_WAY,
    REPLY,
    REQUEST,
    SHARED,
    SHARED_REPLY,
    Envelope,
    encode_frame,
    encode_request,
)
from lockstep.internode.handshake import Address, HasEpoch, Hello, PeerInfo, peer_of
from lockstep.internode.own_side import OwnSide
from lockstep.internode.verbs import decode_error
from lockstep.internode.waiters import RawWaiter, Sweeps, Waiter
from lockstep.runtime.ports import Clock
from lockstep.values.codec import UNREADABLE, Decoder, decoder, encode
from lockstep.values.errors import FrameCorrupt, HandshakeRefused, LockstepError, PeerTimeout, PeerUnreachable
from lockstep.values.limits import (
    PEER_BACKOFF_MS_MAX,
    PEER_BACKOFF_MS_MIN,
    PEER_CONNECT_TIMEOUT_MS,
    PEER_ONE_WAY_QUEUED_MAX,
    PEER_REPLAYED_FRAMES_MAX,
    PEER_REQUESTS_IN_FLIGHT_MAX,
    PEER_SILENT_MS,
)

Q = TypeVar("Q")

#: Longer requests do not share: their own bytes cost more than a frame.
SHARED_REQUEST_BYTES_MAX: Final = 4096
#: Requests whose senders give them up so far apart do not share: of a frame is said when the last of them is
#: given up, and a write that is asked again may be older than those that begin.
SHARED_SPREAD_MS: Final = 50
#: What one frame holds: a receiver judges all of it in one step, half a millisecond of work.
SHARED_REQUESTS_MAX: Final = 64


class SharedRequests(msgspec.Struct, Generic[Q], frozen=True, array_like=True, gc=False):
    """`streams` pair replies with the requests, one each."""

    streams: list[int]
    requests: list[Q]


#: Only the streams of a frame.
SHARED_STREAMS: Final = decoder(tuple[list[int], msgspec.Raw])


class SharedOut:
    """What waits for one peer. `post` takes the frame of the request of a stream; `own` knows what goes with
    it."""

    __slots__ = ("_clock", "_from_s", "_newest", "_own", "_post", "_until_s", "_waiting")

    def __init__(
        self,
        newest: HasEpoch,
        clock: Clock,
        post: Callable[[int, bytes], None],
        own: OwnSide | None = None,
    ) -> None:
        self._newest = newest
        self._own = own
        self._clock = clock
        #: The earliest and the latest deadline of all that waits.
        self._from_s = self._until_s = 0.0
        self._post = post
        #: Verb -> streams and bodies.
        self._waiting: dict[int, tuple[list[int], list[bytes]]] = {}

    def add(self, verb: int, stream: int, body: bytes, deadline_s: float) -> bool:
        """Whether it is the first one that waits."""
        if not self._waiting:
            self._from_s = self._until_s = deadline_s
        elif not self._from_s <= deadline_s <= self._until_s:
            self._spread(deadline_s)
        waiting = self._waiting.get(verb)
        if waiting is None:
            is_first = not self._waiting
            self._waiting[verb] = ([stream], [body])
            return is_first
        waiting[0].append(stream)
        waiting[1].append(body)
        if len(waiting[0]) >= SHARED_REQUESTS_MAX:
            self.post()
        return False

    def _spread(self, deadline_s: float) -> None:
        """A request joins that is given up before all that wait, or after them."""
        from_s, until_s = min(self._from_s, deadline_s), max(self._until_s, deadline_s)
        if until_s - from_s > SHARED_SPREAD_MS / 1000:
            self.post()
            from_s = until_s = deadline_s
        self._from_s, self._until_s = from_s, until_s

    def post(self) -> None:
        """Hand on everything that waits, unless all of it is too late."""
        waiting, self._waiting = self._waiting, {}
        now_s, until_s = self._clock.monotonic_s(), self._until_s
        if until_s <= now_s:
            return  # Their senders hear of it from the sweep, as if no answer had come.
        own = self._own if self._own is not None and self._own.marks is not None else None
        for verb, (streams, bodies) in waiting.items():
            stream, body, flags = streams[0], bodies[0], REQUEST
            if len(streams) > 1:
                stream, flags = 0, REQUEST | SHARED
                body = encode((streams, [msgspec.Raw(body) for body in bodies]))
            epoch, mark = self._newest.epoch, own.mark(verb) if own is not None else 0
            frame = encode_request(verb, stream, epoch, body, now_s, until_s, flags, mark)
            self._post(streams[0], frame)

    def forget(self) -> None:
        """The connection is gone."""
        self._waiting = {}

    def validate(self) -> None:
        assert 0 <= self._until_s - self._from_s <= SHARED_SPREAD_MS / 1000, "those that wait end together"
        for streams, bodies in self._waiting.values():
            assert 0 < len(streams) == len(bodies) < SHARED_REQUESTS_MAX, "each body has its stream"


class Pending(msgspec.Struct, eq=False):
    """A request that has not ended."""

    waiter: Waiter
    context: Any
    deadline_s: float
    reply_decoder: Decoder[Any]


def end_shared(pendings: dict[int, Pending], envelope: Envelope) -> None:
    """Equal replies to several requests of one verb, so one decoding serves them all. One of UNREADABLE."""
    reply = None
    shared = SHARED_REPLY.decode(envelope.body)
    for stream in shared.streams:
        pending = pendings.get(stream)
        if pending is None:
            continue
        if reply is None:
            reply = pending.reply_decoder.decode(shared.body)
        del pendings[stream]
        pending.waiter.replied(pending.context, reply, envelope.epoch)


class Link(enum.Enum):
    IDLE = "idle"
    CONNECTING = "connecting"
    OPEN = "open"


class Peer:
    def __init__(self, node: OwnSide, address: Address) -> None:
        self._node = node
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._clock = node.runtime.clock
        self.link = Link.IDLE
        self._connection: Connection | None = None
        self._greeted: asyncio.Future[None] | None = None
        self._greeting: Hello
        self._connecting: asyncio.Task[None] | None = None
        self._pending: dict[int, Pending] = {}
        self._queued: dict[int, bytes] = {}
        self._queued_one_way = 0
        self._failures = 0
        self._retry_at_s = 0.0
        self._last_error: LockstepError = PeerUnreachable(f"{address[0]}:{address[1]} was never reached")
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at_s = 0.0
        self._sweeps = Sweeps()
        self._replays: list[bytes] = []
        self.newest = node.newest
        self._shared = SharedOut(node.newest, self._clock, self._post_shared, node)

    @property
    def info(self) -> PeerInfo | None:
        return self._connection.peer if self._connection is not None else None

    # -- sending ----------------------------------------------------------------------------------

    def submit(
        self,
        stream: int,
        verb: int,
        body: bytes,
        frame: bytes,
        deadline_s: float,
        waiter: Waiter,
        context: Any,
        reply_decoder: Decoder[Any],
    ) -> None:
        """Send a request; its end is told to `waiter`, never before this returns. No frame: it may share."""
        node = self._node
        if len(self._pending) >= PEER_REQUESTS_IN_FLIGHT_MAX:
            self._refuse(waiter, context, PeerUnreachable(f"{self._name()} has too many requests in flight"))
            return
        connection = self._connection
        if connection is not None and not connection.room():
            self._refuse(waiter, context, PeerUnreachable(f"{self._name()} does not read its messages"))
            return
        if self.address not in node.faults.blocked_to:
            if self.link is Link.IDLE and self._clock.monotonic_s() < self._retry_at_s:
                self._refuse(waiter, context, self._last_error)
                return
            if frame:
                self._post(stream, frame)
            elif connection is None or self.link is not Link.OPEN or not connection.takes_shared:
                now_s = self._clock.monotonic_s()
                epoch, mark = node.newest.epoch, node.mark(verb) if node.marks is not None else 0
                self._post(stream, encode_request(verb, stream, epoch, body, now_s, deadline_s, mark=mark))
            elif self._shared.add(verb, stream, body, deadline_s):
                connection.before_flush(self._shared.post)
        self._pending[stream] = Pending(waiter, context, deadline_s, reply_decoder)
        if self._sweep is None or deadline_s < self._sweep_at_s:
            self._arm(deadline_s)

    def _post_shared(self, stream: int, frame: bytes) -> None:
        if self.link is Link.OPEN and self.address not in self._node.faults.blocked_to:
            self._post(stream, frame)

    def send_one_way(self, verb: int, body: bytes) -> None:
        """Best effort: dropped when the peer is blocked, in back-off or does not read."""
        node = self._node
        if self.address in node.faults.blocked_to or (
            self._connection is not None and not self._connection.room()
        ):
            return
        if self.link is Link.IDLE and self._clock.monotonic_s() < self._retry_at_s:
            return
        stream = next(node.streams)
        if self.link is not Link.OPEN:
            if self._queued_one_way >= PEER_ONE_WAY_QUEUED_MAX:
                return
            self._queued_one_way += 1
        self._post(stream, encode_frame(verb, stream, node.newest.epoch, ONE_WAY, body))

    def introduce(self) -> None:
        """Tell an open peer this node's present identity again (it changed since the handshake)."""
        if self.link is Link.OPEN and self._connection is not None:
            self._connection.send(_hello_frame(self._node, self._node.hello()))

    def _post(self, stream: int, frame: bytes) -> None:
        if self.link is Link.OPEN:
            assert self._connection is not None, "an open link has a connection"
            self._connection.send(frame)
            duplicates = self._node.faults.duplicates
            if duplicates is not None and duplicates():
                self._connection.send(frame)
                self._replays = [*self._replays[1 - PEER_REPLAYED_FRAMES_MAX :], frame]
            return
        self._queued[stream] = frame
        if self.link is Link.IDLE:
            self._connect()

    def _refuse(self, waiter: Waiter, context: Any, error: LockstepError) -> None:
        self._loop.call_soon(waiter.failed, context, error)

    # -- connecting -------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.link = Link.CONNECTING
        self._greeted = self._loop.create_future()
        self._connecting = self._node.runtime.tasks.spawn(
            self._attempt(), f"internode-connect-{self._name()}"
        )

    async def _attempt(self) -> None:
        assert self._greeted is not None, "an attempt waits for its greeting"
        host, port = self.address
        try:
            async with asyncio.timeout(PEER_CONNECT_TIMEOUT_MS / 1000):
                _, protocol = await self._node.runtime.network.connect(
                    host, port, lambda: Connection(self, self._node.runtime), self._node.tls
                )
                assert isinstance(protocol, Connection), "the network returns the protocol it was given"
                self._connection = protocol
                self._greeting = self._node.proofs.dial(self._node.hello())
                protocol.send(_hello_frame(self._node, self._greeting))
                await self._greeted
        except LockstepError as error:
            self._attempt_failed(error)
        except (OSError, TimeoutError) as error:
            if self.link is Link.OPEN:
                return  # the greeting came in the very tick of the timeout
            reason = str(error) or "no answer in time"
            self._attempt_failed(PeerUnreachable(f"{self._name()} cannot be reached: {reason}"))

    def _attempt_failed(self, error: LockstepError) -> None:
        self._greeted = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(error.message, abort=True)
        self._back_off(error)
        self._node.log("internode.connect_failed", peer=self._name(), reason=error.message)
        unsent = [stream for stream in self._pending if stream in self._queued]
        self._queued, self._queued_one_way = {}, 0
        for stream in unsent:
            pending = self._pending.pop(stream)
            pending.waiter.failed(pending.context, error)

    def _back_off(self, error: LockstepError) -> None:
        self.link = Link.IDLE
        pause_ms = min(PEER_BACKOFF_MS_MAX, PEER_BACKOFF_MS_MIN << min(self._failures, 16))
        self._failures += 1
        jitter = 0.5 + self._node.runtime.random.real() / 2
        self._retry_at_s = self._clock.monotonic_s() + pause_ms * jitter / 1000
        self._last_error = error

    def wake(self) -> None:
        """The peer is known to be up (it connected to us): forget the back-off."""
        self._failures = 0
        self._retry_at_s = 0.0

    def hello_received(self, connection: Connection, envelope: Envelope) -> None:
        """The other side's half of the handshake, on our outgoing connection."""
        node = self._node
        if connection is not self._connection or self._greeted is None or self._greeted.done():
            return
        if self.address in node.faults.blocked_from:
            return
        reason, hello = node.judge(envelope)
        if envelope.flags & ERROR:
            self._greeted.set_exception(decode_error(envelope.body))
            return
        if reason is None and hello is not None:
            reason = node.conflict(connection, hello) or node.proofs.refuse_acceptor(self._greeting, hello)
        if reason is not None:
            node.log("internode.refused", peer=self._name(), reason=reason)
            self._greeted.set_exception(HandshakeRefused(f"{self._name()}: {reason}"))
            return
        assert hello is not None, "what is not refused was decoded"
        _prove(node, connection, self._greeting, hello)
        peer = _introduced(connection, hello, envelope.epoch)
        self._opened(connection)
        node.tell(peer, envelope.epoch)

    def _opened(self, connection: Connection) -> None:
        assert self._greeted is not None, "a link opens out of its handshake"
        self._greeted.set_result(None)
        self._greeted = None
        self.link = Link.OPEN
        self._failures = 0
        replays, self._replays = self._replays, []
        for frame in (*self._queued.values(), *replays):
            connection.send(frame)
        self._queued, self._queued_one_way = {}, 0
        self._node.log("internode.connected", peer=self._name())

    # -- receiving --------------------------------------------------------------------------------

    def frame_received(self, connection: Connection, envelope: Envelope) -> None:
        node = self._node
        if self.address in node.faults.blocked_from:
            return
        if envelope.epoch > connection.settled_epoch:
            node.see_epoch(connection, envelope.epoch)
        flags = envelope.flags
        if flags & SHARED:
            try:
                end_shared(self._pending, envelope)
            except UNREADABLE as error:
                self._garbled(connection, envelope, error)
            return
        pending = self._pending.pop(envelope.stream, None)
        if pending is None:
            return  # expired here, or the second answer to a duplicated frame
        if flags & REPLY:
            try:
                reply = pending.reply_decoder.decode(envelope.body)
            except UNREADABLE as error:
                self._garbled(connection, envelope, error)
                pending.waiter.failed(pending.context, PeerTimeout(f"{self._name()} sent a garbled reply"))
                return
            pending.waiter.replied(pending.context, reply, envelope.epoch)
        elif flags & ERROR:
            pending.waiter.failed(pending.context, decode_error(envelope.body))
        else:
            connection.close("a request came on a connection for replies")
            pending.waiter.failed(pending.context, PeerTimeout(f"{self._name()} broke the protocol"))

    def raw_follows(self, connection: Connection, envelope: Envelope, body: bytes) -> RawWaiter | None:
        if self.address in self._node.faults.blocked_from:
            return None
        self._node.see_epoch(connection, envelope.epoch)
        return _announced(self._pending.pop(envelope.stream, None), body, self._name())

    def _garbled(self, connection: Connection, envelope: Envelope, error: Exception) -> None:
        connection.close(f"a reply to {verbs.NAMES.get(envelope.verb)} does not decode: {error}")

    def connection_closed(self, connection: Connection, reason: str) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._shared.forget()
        if self._greeted is not None:
            if not self._greeted.done():
                self._greeted.set_exception(PeerUnreachable(f"{self._name()} closed: {reason}"))
            return
        self._node.log("internode.disconnected", peer=self._name(), reason=reason)
        self._back_off(PeerUnreachable(f"{self._name()} was lost: {reason}"))
        pendings, self._pending = self._pending, {}
        for pending in pendings.values():
            error = PeerTimeout(f"the connection to {self._name()} broke: {reason}")
            pending.waiter.failed(pending.context, error)

    # -- deadlines --------------------------------------------------------------------------------

    def _arm(self, deadline_s: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        delay_s = self._sweeps.delay_s(deadline_s, self._clock.monotonic_s())
        self._sweep_at_s = deadline_s
        self._sweep = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        now_s = self._clock.monotonic_s()
        until_s = self._sweeps.until_s(now_s)
        expired = [stream for stream, pending in self._pending.items() if pending.deadline_s <= until_s]
        ended = [(self._pending.pop(stream), self._queued.pop(stream, None) is None) for stream in expired]
        if self._pending:
            self._arm(min(pending.deadline_s for pending in self._pending.values()))
        connection = self._connection
        silent = connection is not None and now_s - connection.heard_s > PEER_SILENT_MS / 1000
        if ended and self.link is Link.OPEN and silent and connection is not None:
            connection.close("requests expire and nothing is heard", abort=True)
        for pending, was_sent in ended:
            kind = PeerTimeout if was_sent else PeerUnreachable
            missing = "did not answer" if was_sent else "was not connected"
            pending.waiter.failed(pending.context, kind(f"{self._name()} {missing} in time"))

    def stop(self) -> None:
        """End the connection and every request in flight."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        self._greeted = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close("this node stops")
        self._shared.forget()
        self.link = Link.IDLE
        pendings, self._pending = self._pending, {}
        for stream, pending in pendings.items():
            kind = PeerUnreachable if stream in self._queued else PeerTimeout
            pending.waiter.failed(pending.context, kind("this node stops"))
        self._queued = {}

    def _name(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


def _prove(node: OwnSide, connection: Connection, own: Hello, theirs: Hello) -> None:
    """Show what the acceptor asks for before it serves anything, where there is a secret."""
    if node.proofs.required:
        connection.send(_hello_frame(node, node.proofs.answer(own, theirs)))


def _introduced(connection: Connection, hello: Hello, epoch: int) -> PeerInfo:
    """Note who is at the other end."""
    connection.peer = peer = peer_of(hello)
    connection.takes_shared, connection.peer_epoch = hello.takes_shared, epoch
    return peer


def _hello_frame(node: OwnSide, hello: Hello) -> bytes:
    return encode_frame(verbs.HELLO, 0, node.newest.epoch, REQUEST, encode(hello))


def _announced(pending: Pending | None, body: bytes, name: str) -> RawWaiter | None:
    """Who takes the raw bytes behind the reply `body`. None: it expired here, or answers a duplicated frame.
    FrameCorrupt: the request ended, and so does the connection."""
    if pending is None:
        return None
    waiter = pending.waiter
    try:
        if not isinstance(waiter, RawWaiter):
            raise FrameCorrupt("raw bytes came that nobody asked for")
        waiter.reply = pending.reply_decoder.decode(body)
    except (FrameCorrupt, *UNREADABLE) as error:
        waiter.failed(pending.context, PeerTimeout(f"{name} sent a garbled reply"))
        raise FrameCorrupt(f"a garbled reply: {error}") from error
    return waiter
