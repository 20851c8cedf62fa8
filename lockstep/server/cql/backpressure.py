"""How much a node takes in from its CQL clients at once, and who waits when that is too much.

Invariant: what is in flight on one connection and on all of them is bounded, and so is what was read and has
not begun. Above the bounds nothing more is read, or, where the client asked for it with
THROW_ON_OVERLOAD, requests are refused as overloaded; connections that wait are read again in the order in
which they began to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.values.errors import Overloaded
from lockstep.values.limits import (
    CQL_BYTES_IN_FLIGHT_MAX,
    CQL_CONNECTIONS_WOKEN_AT_ONCE,
    CQL_NODE_BYTES_IN_FLIGHT_MAX,
    CQL_NODE_REQUESTS_IN_FLIGHT_MAX,
    CQL_REQUESTS_IN_FLIGHT_MAX,
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
