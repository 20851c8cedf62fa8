"""One internode byte stream: coalesced writes, checked reads, the handshake's state, and raw bytes behind a
reply's frame: content of files, which no message wraps and no loop copies.

How long a message waited on its way, from the sender's own clock.

The clocks of two nodes differ by something unknown, so the difference between sending and receiving says
nothing. How much larger it is than the smallest one seen lately says how much longer than the fastest message
this one took.

Invariant: no frame but HELLO is handed to the owner before the handshake succeeded; after a corrupt frame
nothing more is read; what one loop tick sends goes out in one write. Apart from the drift of clocks within
DELAY_WINDOW_S a delay is never told too long. While raw bytes go out on a connection nothing else does, and
while they come in nothing behind them is read; one on which they end too early is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from lockstep.internode import verbs
from lockstep.internode.frames import (
    RAW,
    REPLY,
    SHARED,
    Envelope,
    FrameReader,
    SharedReply,
    encode_frame,
    encode_raw_frame,
    raw_body,
)
from lockstep.internode.handshake import HasEpoch, Hello, PeerInfo
from lockstep.internode.waiters import RawWaiter
from lockstep.runtime.ports import FileReader, Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import FrameCorrupt, LockstepError, PeerTimeout
from lockstep.values.limits import PEER_QUEUED_BYTES_MAX, RAW_SILENT_MS
from lockstep.values.node_limits import EXPIRED_SLACK_MS

#: The smallest difference is of the last one or two such times: clocks drift by some ms a minute at worst.
DELAY_WINDOW_S: Final = 30.0


class QueueingDelay:
    """Of the messages of one connection."""

    __slots__ = ("_before_s", "_least_s", "_until_s")

    def __init__(self) -> None:
        self._before_s: float | None = None
        self._least_s: float | None = None
        self._until_s = 0.0

    def delay_s(self, sent_s: float, now_s: float) -> float:
        """How much longer than the fastest lately a message took that was sent then and is read now."""
        took_s = now_s - sent_s
        if now_s >= self._until_s:
            self._until_s = now_s + DELAY_WINDOW_S
            self._before_s, self._least_s = self._least_s, took_s
        if self._least_s is None or took_s < self._least_s:
            self._least_s = took_s
        least_s = self._least_s if self._before_s is None else min(self._least_s, self._before_s)
        return took_s - least_s


#: Longer replies are rarely equal, and comparing them would cost more than a frame.
SHARED_BODY_BYTES_MAX: Final = 32
#: Above this, queued frames go out one by one instead of as one write: each is large, or they are many.
WRITE_BYTES_COALESCED: Final = 256 * 1024
#: What a queued small reply counts towards the backlog.
REPLY_BYTES: Final = 40
#: How often a transport is looked at that has yet to write something before raw bytes.
DRAIN_MS: Final = 1


class Owner(Protocol):
    """What a connection tells; both directions implement it."""

    newest: HasEpoch

    def hello_received(self, connection: Connection, envelope: Envelope) -> None: ...

    def frame_received(self, connection: Connection, envelope: Envelope) -> None: ...

    def raw_follows(self, connection: Connection, envelope: Envelope, body: bytes) -> RawWaiter | None:
        """Who takes the raw bytes behind this frame of a reply `body`; nobody: they are dropped."""
        ...

    def connection_closed(self, connection: Connection, reason: str) -> None: ...


class FileReply:
    """A reply whose raw bytes are a part of a file; closes the file."""

    __slots__ = ("file", "offset", "reply", "size")

    def __init__(self, reply: Any, file: FileReader, offset: int, size: int) -> None:
        self.reply = reply
        self.file = file
        self.offset = offset
        self.size = size


class RawSender:
    """What goes out on one connection, one part after the other."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._waiting: deque[tuple[bytes, FileReply]] = deque()
        self._task: asyncio.Task[None] | None = None
        #: The connection may not write.
        self.busy = False

    def send(self, frame: bytes, content: FileReply) -> None:
        self._waiting.append((frame, content))
        if self._task is None:
            self._task = self._runtime.tasks.spawn(self._send_all(), "internode-raw-out")

    async def _send_all(self) -> None:
        connection = self._connection
        try:
            while self._waiting and not connection.closed:
                frame, content = self._waiting.popleft()
                try:
                    await self._send_one(frame, content)
                finally:
                    self.busy = False
                    content.file.close()
                connection.flush()
        except (OSError, LockstepError) as error:
            connection.close(f"raw bytes were not sent: {error}", abort=True)
        finally:
            self._task = None
            self._drop()

    async def _send_one(self, frame: bytes, content: FileReply) -> None:
        connection = self._connection
        connection.flush()
        self.busy = True
        transport = await connection.drained()
        await self._runtime.network.send_file(transport, frame, content.file, content.offset, content.size)

    def stop(self) -> None:
        """The connection is closed."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._drop()

    def _drop(self) -> None:
        while self._waiting:
            self._waiting.popleft()[1].file.close()


class RawReceiver:
    """What comes in on one connection, with reading paused."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None

    def receive(
        self, transport: asyncio.Transport, first: memoryview, size: int, waiter: RawWaiter | None
    ) -> None:
        """`first` is what was read already, perhaps with frames behind. Without a waiter they are dropped."""
        self._task = self._runtime.tasks.spawn(
            self._receive(transport, first, size, waiter), "internode-raw-in"
        )

    async def _receive(
        self, transport: asyncio.Transport, first: memoryview, size: int, waiter: RawWaiter | None
    ) -> None:
        connection = self._connection
        behind = b""
        error: Exception | None = PeerTimeout("the connection broke within raw bytes")
        take = waiter.take if waiter is not None else _drop
        try:
            behind = await self._runtime.network.receive(transport, first, size, take)
            error = None
        except OSError as reason:
            connection.close(f"raw bytes did not arrive: {reason}", abort=True)
        except LockstepError as reason:
            error = reason
            connection.close(f"raw bytes were not taken: {reason.message}", abort=True)
        finally:
            self._task = None
            if waiter is not None:
                waiter.ended(error)
        if error is None:
            connection.read_on(behind)

    def stop(self) -> None:
        """The connection is closed."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def _drop(data: memoryview) -> None:
    return


class Connection(asyncio.Protocol):
    def __init__(self, owner: Owner, runtime: Runtime) -> None:
        self._owner = owner
        self._clock = runtime.clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._raw_out = RawSender(self, runtime)
        self._raw_in = RawReceiver(self, runtime)
        #: Small replies of this tick: (verb, body) -> streams.
        self._replies: dict[tuple[int, bytes], list[int]] = {}
        self._out_bytes = 0
        #: Has more to send in this tick, and is asked for it before the write.
        self._before_flush: Callable[[], None] | None = None
        self._paused = False
        self._reason = "closed by the other side"
        #: Identity from the handshake; None until it succeeded.
        self.peer: PeerInfo | None = None
        #: Both sides' greetings, of a connection whose dialer is to prove itself or has.
        self.greetings: tuple[Hello, Hello] | None = None
        #: Whether it takes several requests in one frame, by its handshake.
        self.takes_shared = False
        #: Highest epoch this connection's peer has shown.
        self.peer_epoch = 0
        #: Highest epoch seen here that this node had applied by then: of such nothing is to be told.
        self.settled_epoch = 0
        #: Requests of the peer that are being answered.
        self.serving = 0
        self.heard_s = self._clock.monotonic_s()
        self._delay = QueueingDelay()
        self.closed = False

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        if self.closed:
            transport.close()
        else:
            self.flush()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.heard_s = self._clock.monotonic_s()
        try:
            envelopes = self._reader.feed(data)
        except FrameCorrupt as error:
            self.close(error.message)
            return
        owner = self._owner
        for envelope in envelopes:
            if self.closed:
                return
            if envelope.verb == verbs.HELLO:
                owner.hello_received(self, envelope)
            elif self.peer is not None:
                if envelope.flags & RAW:
                    self._raw_follows(envelope)
                    return
                owner.frame_received(self, envelope)
            else:
                self.close("a message came before the handshake")

    def waits_until_s(self, envelope: Envelope) -> float:
        """Until when, by this node's clock, the sender of what was read just now waits for an answer."""
        delay_s = self._delay.delay_s(envelope.sent_ms / 1000, self.heard_s)
        return self.heard_s - delay_s + (envelope.left_ms + EXPIRED_SLACK_MS) / 1000

    def _raw_follows(self, envelope: Envelope) -> None:
        """Let the raw bytes behind this frame be taken; it is the last one that was read."""
        transport, rest = self._transport, self._reader.rest
        assert transport is not None, "frames come from a transport"
        self._reader.rest = memoryview(b"")
        transport.pause_reading()
        try:
            size, body = raw_body(envelope.body)
            waiter = self._owner.raw_follows(self, envelope, body)
        except FrameCorrupt as error:
            self.close(error.message)
            return
        self._raw_in.receive(transport, rest, size, waiter)

    def read_on(self, rest: bytes) -> None:
        """All raw bytes were taken; `rest` was read behind them."""
        self.heard_s = self._clock.monotonic_s()
        if self.closed or self._transport is None:
            return
        self._transport.resume_reading()
        if rest:
            self.data_received(rest)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        already = self.closed
        self.closed = True
        self._transport = None
        self._forget()
        if not already:
            self._owner.connection_closed(self, str(exc) if exc is not None else self._reason)

    # -- sending ----------------------------------------------------------------------------------

    def room(self) -> bool:
        """False when the peer does not read and its backlog has reached the limit."""
        return self._out_bytes < PEER_QUEUED_BYTES_MAX

    def send(self, frame: bytes) -> None:
        """Queue a whole frame for this tick's write; a closed connection drops it."""
        if self.closed:
            return
        self._flush_soon()
        self._out.append(frame)
        self._out_bytes += len(frame)

    def before_flush(self, ask: Callable[[], None]) -> None:
        """Call `ask` once, before what this tick sends is written."""
        if self.closed:
            return
        self._flush_soon()
        self._before_flush = ask

    def _flush_soon(self) -> None:
        """Called before the first thing of a tick is queued, and before each other, where it does nothing."""
        if not self._out and not self._replies and self._before_flush is None:
            self._loop.call_soon(self.flush)

    def reply_raw(self, verb: int, stream: int, body: bytes, content: FileReply) -> None:
        """Queue a reply and the part of a file behind it."""
        frame = encode_raw_frame(verb, stream, self._owner.newest.epoch, body, content.size)
        self._raw_out.send(frame, content)

    async def drained(self) -> asyncio.Transport:
        """The transport, once it has written everything. OSError when it is gone."""
        await asyncio.sleep(0)  # What was written in this turn may not be counted yet.
        for _ in range(RAW_SILENT_MS // DRAIN_MS):
            transport = self._transport
            if transport is None or self.closed:
                raise ConnectionResetError("the connection is closed")
            if not transport.get_write_buffer_size():
                return transport
            await asyncio.sleep(DRAIN_MS / 1000)
        raise TimeoutError("the peer does not read")

    def reply(self, verb: int, stream: int, body: bytes) -> None:
        """Queue a reply; equal ones of one tick share a frame, for acknowledgements come in crowds."""
        if len(body) > SHARED_BODY_BYTES_MAX:
            self.send(encode_frame(verb, stream, self._owner.newest.epoch, REPLY, body))
            return
        self.reply_all(verb, (stream,), body)

    def shares(self, body: bytes) -> bool:
        """Whether replies with this body share frames, and there is room for them."""
        return len(body) <= SHARED_BODY_BYTES_MAX and self._out_bytes < PEER_QUEUED_BYTES_MAX

    def reply_all(self, verb: int, streams: Sequence[int], body: bytes) -> None:
        """As `reply` with a small body, to the requests of several streams."""
        if self.closed:
            return
        self._flush_soon()
        crowd = self._replies.get((verb, body))
        if crowd is None:
            self._replies[verb, body] = list(streams)
        else:
            crowd.extend(streams)
        self._out_bytes += REPLY_BYTES * len(streams)

    def _frame_replies(self) -> None:
        replies, self._replies = self._replies, {}
        epoch = self._owner.newest.epoch
        for (verb, body), streams in replies.items():
            if len(streams) == 1:
                frame = encode_frame(verb, streams[0], epoch, REPLY, body)
            else:
                frame = encode_frame(verb, 0, epoch, REPLY | SHARED, encode(SharedReply(body, streams)))
            self._out.append(frame)

    def flush(self) -> None:
        """Write what is queued, unless something is in the way that calls again."""
        if self._paused or self._transport is None or self._raw_out.busy:
            return
        if self._before_flush is not None:
            self._before_flush()
            self._before_flush = None
        if self._replies:
            self._frame_replies()
        if not self._out:
            return
        if self._out_bytes > WRITE_BYTES_COALESCED:
            self._flush_large()
            return
        out = self._out
        self._out = []
        self._out_bytes = 0
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _flush_large(self) -> None:
        """Frame by frame while the transport takes them: its buffer would be moved with each byte sent."""
        transport, out = self._transport, self._out
        assert transport is not None, "a flush has a transport"
        sent = 0
        while sent < len(out) and not self._paused:
            frame = out[sent]
            sent += 1
            self._out_bytes -= len(frame)
            transport.write(frame)
        # Small replies are counted with a fixed size, so what is left is summed up anew.
        self._out = out[sent:]
        self._out_bytes = sum(map(len, self._out))

    # -- ending -----------------------------------------------------------------------------------

    def close(self, reason: str, *, abort: bool = False) -> None:
        """Stop at once; what was queued before still goes out unless `abort`."""
        if self.closed:
            return
        if not abort:
            self.flush()
        self.closed = True
        self._forget()
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()
        self._owner.connection_closed(self, reason)

    def _forget(self) -> None:
        self._out = []
        self._before_flush = None
        self._replies = {}
        self._raw_out.stop()
        self._raw_in.stop()
