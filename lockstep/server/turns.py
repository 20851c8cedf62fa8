"""How much of what clients ask a node begins in one turn of its loop.

Invariant: beyond CQL_STATEMENTS_A_TURN nothing that clients sent begins before the loop has looked at every
socket and timer again, so the answers of other nodes pass whatever clients send; and no batch begins while
those in flight have CQL_BATCHED_IN_FLIGHT_MAX statements. Connections that wait are served in turn, a few
requests each; a request begins whole.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from lockstep.cql.wire.messages import Prepare, Query, Request
from lockstep.values.limits import (
    CQL_BATCHED_IN_FLIGHT_MAX,
    CQL_REQUESTS_A_CONNECTION_TURN,
    CQL_STATEMENTS_A_TURN,
)
from lockstep.values.request_limits import TEXT_CHARACTERS_A_STATEMENT


def work_of_texts(request: Request) -> int:
    """As how many statements more a request counts, whose text is read and planned in one go."""
    return len(request.text) // TEXT_CHARACTERS_A_STATEMENT if isinstance(request, Query | Prepare) else 0


class Waiting(Protocol):
    """A connection that has read more than has begun."""

    def begin_waiting(self, requests_max: int) -> bool:
        """Begin some of it while the turn is open; whether there is more that only waits for a turn."""
        ...


class Turns:
    """Of all connections of a node. `open`: whether more may begin in this turn; `batches_open`: whether a
    batch may at all."""

    def __init__(self) -> None:
        self.open = True
        self.statements_max = CQL_STATEMENTS_A_TURN
        self._left = self.statements_max
        self._waiting: dict[Waiting, None] = {}
        self._next_due = False
        self.batches_open = True
        #: Statements of batches in flight, and connections whose next request is a batch that waits for them.
        self._batched = 0
        self._held: dict[Waiting, None] = {}

    @property
    def waiting(self) -> int:
        """Connections with requests that were read and have not begun."""
        return len(self._waiting) + len(self._held)

    def begun(self, statements: int) -> None:
        """A request of so many statements begins in this turn."""
        self._left -= statements
        if self._left <= 0:
            self.open = False
        if not self._next_due:
            self._next_soon()  # Called in every request, so it is asked here.

    def batch_begun(self, statements: int) -> None:
        """As `begun`; `batch_ended` is called once it is answered."""
        self._batched += statements
        self.batches_open = self._batched < CQL_BATCHED_IN_FLIGHT_MAX
        self.begun(statements)

    def batch_ended(self, statements: int) -> None:
        self._batched -= statements
        self.batches_open = self._batched < CQL_BATCHED_IN_FLIGHT_MAX
        if self.batches_open and self._held:
            self._waiting |= self._held
            self._held = {}
            self._next_soon()

    def wait(self, connection: Waiting) -> None:
        """Call `begin_waiting` when it is this connection's turn."""
        self._waiting[connection] = None
        self._next_soon()

    def hold(self, connection: Waiting) -> None:
        """Call `begin_waiting` once there is room for a batch."""
        self._held[connection] = None

    def forget(self, connection: Waiting) -> None:
        self._waiting.pop(connection, None)
        self._held.pop(connection, None)

    def _next_soon(self) -> None:
        if not self._next_due:
            self._next_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._next_due = False
        self._left = self.statements_max
        self.open = True
        waiting = self._waiting
        while waiting and self.open:
            connection = next(iter(waiting))
            del waiting[connection]
            if connection.begin_waiting(CQL_REQUESTS_A_CONNECTION_TURN):
                waiting[connection] = None
