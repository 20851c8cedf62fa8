"""How much a node takes in from its CQL clients at once, how many bytes of responses it owes them, and who
waits when that is too much.

Invariant: what is in flight on one connection and on all of them is bounded, and so is what was read and has
not begun. Above the bounds nothing more is read, or, where the client asked for it with THROW_ON_OVERLOAD,
requests are refused as overloaded; connections that wait are read again in the order in which they began to
wait. While a client leaves more than RESPONSE_BYTES_OWED_MAX bytes untaken none of its requests begin, and
above twice that a response that is ready is replaced by an OVERLOADED error, so what one connection owes is
bounded whatever was in flight. A client that takes nothing for CLIENT_STALLED_MS_MAX loses its connection;
while the node owes more than NODE_RESPONSE_BYTES_OWED_MAX so do the slowest clients, the largest debt first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from lockstep.runtime.ports import Clock
from lockstep.values.errors import Overloaded
from lockstep.values.limits import (
    CQL_BYTES_IN_FLIGHT_MAX,
    CQL_CONNECTIONS_WOKEN_AT_ONCE,
    CQL_NODE_BYTES_IN_FLIGHT_MAX,
    CQL_NODE_REQUESTS_IN_FLIGHT_MAX,
    CQL_REQUESTS_IN_FLIGHT_MAX,
)
from lockstep.values.node_limits import (
    CLIENT_SLOW_MS_MAX,
    CLIENT_STALLED_MS_MAX,
    NODE_RESPONSE_BYTES_OWED_MAX,
    PAGE_BYTES_MAX,
    RESPONSE_BYTES_OWED_MAX,
    RESPONSE_SIZES_KEPT_MAX,
    RESPONSE_SWEEP_MS,
)


class NodeLoad:
    """The requests in flight of all connections of a node."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.requests_max = CQL_NODE_REQUESTS_IN_FLIGHT_MAX
        self.bytes_max = CQL_NODE_BYTES_IN_FLIGHT_MAX
        self.refused = 0
        #: Requests answered so far.
        self.ended_total = 0
        #: Called once, and forgotten, when the next request ends.
        self.freed: Callable[[], None] | None = None
        self._waiting: dict[Backpressure, None] = {}
        self._wake_due = False

    @property
    def full(self) -> bool:
        return self.bytes >= self.bytes_max or self.requests >= self.requests_max

    @property
    def waiting(self) -> int:
        """Connections that are not read because the node is full."""
        return len(self._waiting)

    def wait(self, flow: Backpressure) -> None:
        self._waiting[flow] = None

    def forget(self, flow: Backpressure) -> None:
        self._waiting.pop(flow, None)

    def ended(self) -> None:
        """Something in flight was answered."""
        self.ended_total += 1
        if self.freed is not None:
            freed, self.freed = self.freed, None
            freed()
        if self._waiting and not self._wake_due and not self.full:
            self._wake_later()

    def _wake_later(self) -> None:
        self._wake_due = True
        asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """A few in each turn of the loop: what they have sent counts before the next ones are read."""
        self._wake_due = False
        if self.full:
            return
        for flow in list(self._waiting)[:CQL_CONNECTIONS_WOKEN_AT_ONCE]:
            del self._waiting[flow]
            flow.regulate()
        if self._waiting:
            self._wake_later()


class Backpressure:
    """One connection's part. `throws`: its client wants errors instead of a door that is not read.
    `client_reads` is False while answers pile up. `unbegun`: enough of what was read waits for its turn.
    `refuses`: nothing more begins, so all that comes is read."""

    def __init__(self, node: NodeLoad) -> None:
        self._node = node
        self.transport: asyncio.Transport | None = None
        self.requests = 0
        self.bytes = 0
        self.throws = False
        self.unbegun = False
        self.refuses = False
        self._client_reads = True
        self._reading = True

    def begin(self, size: int) -> None:
        """Count a request of `size` bytes. Overloaded, and not counted, when there is no room for it."""
        node = self._node
        if self.throws and (node.full or self.bytes >= CQL_BYTES_IN_FLIGHT_MAX):
            node.refused += 1
            raise Overloaded(
                f"Too many requests in flight (connection: {self.bytes}/{CQL_BYTES_IN_FLIGHT_MAX} bytes, "
                f"node: {node.bytes}/{node.bytes_max} bytes, {node.requests}/{node.requests_max} requests)"
            )
        self.requests += 1
        self.bytes += size
        node.requests += 1
        node.bytes += size

    def end(self, size: int) -> None:
        """A request of `size` bytes is answered."""
        node = self._node
        self.requests -= 1
        self.bytes -= size
        node.requests -= 1
        node.bytes -= size
        if not self._reading:
            self.regulate()
        node.ended()

    def client_reads(self, reads: bool) -> None:
        self._client_reads = reads
        self.regulate()

    def regulate(self) -> None:
        """Read only while what is in flight, and what the client has not taken, is bounded."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        wanted = self._client_reads
        if wanted and not self.refuses:
            wanted = not self.unbegun and self.requests < CQL_REQUESTS_IN_FLIGHT_MAX
            if wanted and not self.throws:
                wanted = self.bytes < CQL_BYTES_IN_FLIGHT_MAX
                if wanted and self._node.full:
                    wanted = False
                    self._node.wait(self)
        if wanted is not self._reading:
            self._reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def lost(self) -> None:
        """The connection has ended; its requests may still be in flight."""
        self.transport = None
        self._node.forget(self)


class Unsent(Protocol):
    """What a connection sends."""

    @property
    def unsent(self) -> int:
        """Bytes that wait here for the client to read."""
        ...

    @property
    def sent(self) -> int:
        """Bytes of all responses so far."""
        ...


class NodeResponses:
    """Of all connections of a node. `closed`: told of each connection that is closed for this."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.owed = 0
        #: Bytes that responses being made are expected to have.
        self.expected = 0
        self.owed_max = NODE_RESPONSE_BYTES_OWED_MAX
        self.stalled_ms_max = CLIENT_STALLED_MS_MAX
        self.closed_stalled = 0
        self.closed_slow = 0
        #: Responses that became an error.
        self.refused = 0
        self._owing: dict[Responses, None] = {}
        self._sizes: dict[Hashable, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Connections whose requests wait only for room at the node.
        self._ready: dict[Responses, None] = {}

    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def size_of(self, kind: Hashable) -> int:
        """What a response of this kind is expected to have: as much as a page, until one was seen."""
        return self._sizes.get(kind, PAGE_BYTES_MAX)

    def learn(self, kind: Hashable, size: int) -> None:
        """Large at once, small again slowly."""
        known = self._sizes.pop(kind, 0)
        self._sizes[kind] = max(size, known - (known - size) // 16)
        if len(self._sizes) > RESPONSE_SIZES_KEPT_MAX:
            del self._sizes[next(iter(self._sizes))]

    def has_room(self, size: int) -> bool:
        return self.expected == 0 or self.expected + size <= self.owed_max

    def owing(self, responses: Responses) -> None:
        self._owing[responses] = None
        if self._timer is None:
            self._arm()

    def settled(self, responses: Responses) -> None:
        self._owing.pop(responses, None)

    def ready(self, responses: Responses) -> None:
        """Requests of this connection wait, and its client takes what is sent."""
        self._ready[responses] = None

    def wake(self) -> None:
        """Begin what there is room for, connections in turn."""
        ready = self._ready
        while ready:
            responses = next(iter(ready))
            del ready[responses]
            size = responses.next_size()
            if size is None:
                continue
            if not self.has_room(size):
                self._ready = {responses: None, **ready}
                return
            responses.begin_next()
            ready[responses] = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(RESPONSE_SWEEP_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_s = self.now_s()
        for responses in list(self._owing):
            responses.measure()
            if now_s - responses.moved_s >= self.stalled_ms_max / 1000:
                self.closed_stalled += 1
                responses.close("stalled")
        slow_s = now_s - CLIENT_SLOW_MS_MAX / 1000
        if self.owed > self.owed_max:
            slow = [one for one in self._owing if one.owing_since_s <= slow_s]
            for responses in sorted(slow, key=lambda one: one.owed, reverse=True):
                if self.owed <= self.owed_max:
                    break
                self.closed_slow += 1
                responses.close("slow")
        if self._owing:
            self._arm()


class Responses:
    """Of one connection. `owed` is 0 while its client reads. `close(why)` ends the connection."""

    def __init__(self, node: NodeResponses, unsent: Unsent, close: Callable[[str], None]) -> None:
        self._node = node
        self._unsent = unsent
        self._close = close
        self.owed = 0
        self.owing_since_s = self.moved_s = 0.0
        self._expected = 0
        self._taken = 0
        self._owing = False
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def blocked(self) -> bool:
        """Whether nothing more may begin: the client leaves too much untaken."""
        return self.owed >= RESPONSE_BYTES_OWED_MAX

    def pause(self) -> None:
        """The client does not take what is sent."""
        self._owing = True
        self.owing_since_s = self.moved_s = self._node.now_s()
        self._node.owing(self)
        self.measure()

    def resume(self) -> None:
        """The client has taken nearly everything."""
        self._owing = False
        self._node.owed -= self.owed
        self.owed = 0
        self._node.settled(self)
        self._wake()

    def measure(self) -> None:
        """Look at what waits now."""
        if not self._owing:
            return
        owed = self._unsent.unsent
        self._node.owed += owed - self.owed
        self.owed = owed
        taken = self._unsent.sent - owed
        if taken > self._taken:
            self._taken = taken
            self.moved_s = self._node.now_s()

    def close(self, why: str) -> None:
        self._close(why)

    def lost(self) -> None:
        """The connection has ended; what is being made for it goes nowhere."""
        self.resume()

    # -- what is being made -----------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        if self.blocked:
            return False
        return self._expected == 0 or self.owed + self._expected + size <= RESPONSE_BYTES_OWED_MAX

    def reserve(self, size: int) -> None:
        self._expected += size
        self._node.expected += size

    async def begin(self, kind: Hashable) -> int:
        """Wait until a response of this kind may be made. What was reserved, for `end`."""
        node = self._node
        size = node.size_of(kind)
        if self._queue or not self.has_room(size) or not node.has_room(size):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((size, future))
            node.ready(self)
            await future
        else:
            self.reserve(size)
        return size

    def next_size(self) -> int | None:
        """Of the response that may be made next; None when none may."""
        return self._queue[0][0] if self._queue and self.has_room(self._queue[0][0]) else None

    def begin_next(self) -> None:
        size, future = self._queue.popleft()
        if not future.done():
            self.reserve(size)
            future.set_result(None)

    def end(self, reserved: int) -> None:
        self._expected -= reserved
        self._node.expected -= reserved
        self._wake()

    def _wake(self) -> None:
        if self._queue:
            self._node.ready(self)
        self._node.wake()

    def learn(self, kind: Hashable, size: int) -> None:
        self._node.learn(kind, size)

    def require_taken(self) -> None:
        """Overloaded, instead of one more response, when the client leaves far too much untaken."""
        if not self._owing:
            return
        self.measure()
        node = self._node
        if self.owed > 2 * RESPONSE_BYTES_OWED_MAX or node.owed > 2 * node.owed_max:
            node.refused += 1
            raise Overloaded(
                f"The client leaves {self.owed} bytes of responses unread (node: {node.owed} bytes)"
            )
