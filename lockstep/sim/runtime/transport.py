"""One end of a simulated TCP connection, as asyncio's transports behave; and directed links between hosts:
how long bytes take, and what keeps them from passing.

Invariant: bytes reach the peer's protocol in the order written, without gaps, or the connection ends.
What the kernel of a dead process would do is the Fabric's business; an end only knows its own state.
All draws about a link come from that link's own stream.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal, Protocol

import msgspec

from lockstep.sim.runtime.loop import Callback, SimLoop, Stage

#: Most bytes one data_received gets, as asyncio's loops read.
READ_BYTES_MAX = 256 * 1024
_HIGH_WATER_BYTES = 64 * 1024
_LOW_WATER_BYTES = 16 * 1024

Address = tuple[str, int]


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One direction between two hosts. Times in milliseconds, the rest probabilities."""

    #: `uniform` in [low, high]; `exponential` and `heavy` have a tail beyond high.
    shape: Literal["uniform", "exponential", "heavy"] = "uniform"
    low_ms: float = 0.2
    high_ms: float = 2.0
    #: A segment is lost and comes a retransmission later.
    loss: float = 0.0
    retransmit_ms: float = 200.0
    #: A write arrives in two pieces.
    fragment: float = 0.05
    #: A write joins one of the same instant, as a kernel's buffer does.
    coalesce: float = 0.8
    #: One bit of a segment flips, unnoticed by TCP.
    corrupt: float = 0.0
    #: The first packet of a connection is lost.
    syn_loss: float = 0.0
    #: The connection is established and then silent for ever.
    dead_on_accept: float = 0.0


class Link:
    """Bytes from one host to another: their delays and what blocks them."""

    def __init__(self, world: Stage, source: str, target: str, settings: LinkSettings) -> None:
        self.source = source
        self.target = target
        self.name = f"{source}>{target}"
        self.draw = world.stream(f"link/{self.name}")
        self.chance = self.draw.random
        self.blocked = False
        self.clogged_until_ns = 0
        self._world = world
        self.configure(settings)

    def configure(self, settings: LinkSettings) -> None:
        self.settings = settings
        self._low_ns = int(settings.low_ms * 1e6)
        self._span_ns = int((settings.high_ms - settings.low_ms) * 1e6)

    def arrival_ns(self, sent_ns: int) -> int:
        """When a packet sent then arrives, as if it were alone."""
        settings = self.settings
        share = self.chance()
        if settings.shape == "exponential":
            share = -math.log1p(-share)
        elif settings.shape == "heavy":
            share = min((1.0 - share) ** -0.7 - 1.0, 200.0)
        arrival = sent_ns + self._low_ns + int(self._span_ns * share)
        if settings.loss and self.chance() < settings.loss:
            self._world.count("net.retransmitted")
            arrival += self.retransmit_ns()
        if self.clogged_until_ns > arrival:
            self._world.count("net.clogged")
            arrival = self.clogged_until_ns + int(self.chance() * 10_000_000)
        return arrival

    def retransmit_ns(self) -> int:
        return int(self.settings.retransmit_ms * 1e6 * (1.0 + self.chance()))


class Segment:
    """Bytes on their way; writes at one instant share it. `chunks` None: end of stream."""

    __slots__ = ("chunks", "sent_ns")

    def __init__(self, sent_ns: int, data: bytes | None) -> None:
        self.sent_ns = sent_ns
        self.chunks: list[bytes] | None = None if data is None else [data]

    def size(self) -> int:
        return 0 if self.chunks is None else sum(map(len, self.chunks))


class Wires(Protocol):
    """What ends of connections, and those who make them, ask of the Fabric."""

    #: Open connections by number: client's end, server's end.
    connections: dict[int, tuple[SimTransport, SimTransport]]

    def count(self, effect: str, times: int = 1) -> None: ...
    def link(self, source: str, target: str) -> Link: ...
    def kernel_is_up(self, host: str) -> bool: ...
    def send(self, end: SimTransport, data: bytes) -> None: ...
    def send_end(self, end: SimTransport) -> None: ...
    def send_reset(self, end: SimTransport) -> None: ...
    def acknowledge(self, sender: SimTransport, size: int) -> None: ...
    def end_closed(self, end: SimTransport) -> None: ...


class SimTransport(asyncio.Transport):
    """`peer` and `link` (outgoing) are set by the Fabric before anything else happens."""

    peer: SimTransport
    link: Link

    def __init__(
        self,
        wires: Wires,
        loop: SimLoop,
        number: int,
        local: Address,
        remote: Address,
        context: contextvars.Context,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.wires = wires
        self.loop = loop
        self.number = number
        self.context = context
        self.protocol: asyncio.Protocol | None = None
        #: No more writes; `closed`: the protocol was told, or its process is dead.
        self.closing = False
        self.closed = False
        #: The path is dead in both directions and nobody will ever say so.
        self.black = False
        # What the Fabric keeps about the outgoing direction.
        self.last_arrival_ns = 0
        self.tail: Segment | None = None
        self.held: list[Segment] = []
        self.unanswered = False
        self.in_flight = 0
        self.acks_held = 0
        self._high, self._low = _HIGH_WATER_BYTES, _LOW_WATER_BYTES
        self._write_paused = False
        self._fin_sent = False
        self._inbox: deque[bytes | None] = deque()
        self._reading = True
        self._read_queued = False
        #: Somebody waits for bytes instead of the protocol.
        self._awaited: asyncio.Future[None] | None = None
        #: Somebody waits until everything written was taken.
        self._emptied: asyncio.Future[None] | None = None
        self._read_callback = Callback(self._read, (), context, "read")

    # ---- asyncio's interface

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol), protocol
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self.closing or self.loop.dead

    def is_reading(self) -> bool:
        return self._reading and not self.closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._queue_read()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 4 * low if low is not None else _HIGH_WATER_BYTES
        self._high, self._low = high, high // 4 if low is None else low
        self._press()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self.in_flight

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.closing or self._fin_sent or self.loop.dead or not data:
            return
        content = data if type(data) is bytes else bytes(data)
        self.in_flight += len(content)
        self.wires.send(self, content)
        if self.in_flight > self._high:
            self._press()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._fin_sent and not self.loop.dead:
            self._fin_sent = True
            self.wires.send_end(self)

    def close(self) -> None:
        if self.closing or self.loop.dead:
            return
        self.write_eof()
        self._end_soon(None)

    def abort(self) -> None:
        if self.closed or self.loop.dead:
            return
        self.wires.send_reset(self)
        self._end_soon(None)

    # ---- raw bytes

    async def pulled(self, size: int) -> bytes:
        """What comes next, at most `size` bytes of it, while reading is paused. OSError at the end."""
        assert not self._reading, "either the protocol reads or somebody else"
        while not self._inbox and not self.closing:
            self._awaited = self.loop.create_future()
            await self._awaited
        if self.closing or self._inbox[0] is None:
            raise ConnectionResetError(104, "Connection reset by peer")
        data = self._take()
        if len(data) > size:
            self._inbox.appendleft(data[size:])
            data = data[:size]
        self.wires.acknowledge(self.peer, len(data))
        return data

    async def drained(self) -> None:
        """Everything written has been taken. OSError when the connection ended before."""
        while self.in_flight and not self.closing:
            self._emptied = self.loop.create_future()
            await self._emptied
        if self.closing:
            raise ConnectionResetError(104, "Connection reset by peer")

    def _tell_awaited(self) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    def _tell_emptied(self) -> None:
        emptied, self._emptied = self._emptied, None
        if emptied is not None and not emptied.done():
            emptied.set_result(None)

    # ---- what the Fabric tells

    def made(self, protocol: asyncio.Protocol) -> None:
        """Connected: on this end's loop."""
        self.protocol = protocol
        protocol.connection_made(self)

    def arrived(self, segment: Segment) -> None:
        """Bytes, or the end of the stream, reached this end's kernel."""
        if segment.chunks is None:
            self._inbox.append(None)
        else:
            self._inbox.extend(segment.chunks)
        self._queue_read()

    def reset(self) -> None:
        """The peer's kernel, or a fault, broke the connection."""
        self._end_soon(ConnectionResetError(104, "Connection reset by peer"))

    def acknowledged(self, size: int) -> None:
        """The peer's application took `size` bytes."""
        self.in_flight -= size
        if self._emptied is not None and not self.in_flight and not self.closed:
            self.loop.push(Callback(self._tell_emptied, (), self.context, "emptied"))
        if self._write_paused and self.in_flight <= self._low and not self.closed:
            self.loop.push(Callback(self._release, (), self.context, "writable"))

    def silence(self) -> None:
        """This end's process is dead; nothing is called any more."""
        self.closing = self.closed = True
        self._inbox.clear()
        self.protocol = None

    # ---- inside

    def _queue_read(self) -> None:
        if self._awaited is not None:
            self.loop.push(Callback(self._tell_awaited, (), self.context, "readable"))
        if self._inbox and self._reading and not self._read_queued and not self.closing:
            self._read_queued = True
            self.loop.push(self._read_callback)

    def _read(self) -> None:
        self._read_queued = False
        inbox, protocol = self._inbox, self.protocol
        if self.closing or not self._reading or not inbox or protocol is None:
            return
        if inbox[0] is None:
            inbox.popleft()
            if not protocol.eof_received():
                self.close()
            return
        data = self._take()
        try:
            protocol.data_received(data)
        except Exception as error:
            self.loop.call_exception_handler(
                {"message": "a protocol failed on received data", "exception": error}
            )
            self.abort()
            return
        self.wires.acknowledge(self.peer, len(data))
        self._queue_read()

    def _take(self) -> bytes:
        """Up to READ_BYTES_MAX bytes from the inbox, up to the end of the stream."""
        inbox = self._inbox
        first = inbox.popleft()
        assert first is not None
        if len(first) > READ_BYTES_MAX:
            inbox.appendleft(first[READ_BYTES_MAX:])
            return first[:READ_BYTES_MAX]
        if not inbox or inbox[0] is None:
            return first
        parts, size = [first], len(first)
        while inbox and (chunk := inbox[0]) is not None and size + len(chunk) <= READ_BYTES_MAX:
            parts.append(chunk)
            size += len(chunk)
            inbox.popleft()
        return b"".join(parts)

    def _press(self) -> None:
        if self.in_flight > self._high and not self._write_paused and not self.closing:
            self._write_paused = True
            self.wires.count("net.backpressure")
            self.get_protocol().pause_writing()

    def _release(self) -> None:
        if self._write_paused and not self.closed and self.in_flight <= self._low:
            self._write_paused = False
            self.get_protocol().resume_writing()

    def _end_soon(self, error: Exception | None) -> None:
        if self.closed or (self.closing and error is None):
            return
        self.closing = True
        self.loop.push(Callback(self._end, (error,), self.context, "close" if error is None else "reset"))

    def _end(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._tell_awaited()
        self._tell_emptied()
        self._inbox.clear()
        self.wires.end_closed(self)
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(error)
