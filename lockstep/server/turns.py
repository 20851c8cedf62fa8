"""How much of what clients ask a node begins in one turn of its loop.

Invariant: beyond CQL_STATEMENTS_A_TURN nothing that clients sent begins before the loop has looked at every
socket and timer again, so the answers of other nodes pass whatever clients send. Connections that wait are
served in turn, a few requests each; a request begins whole.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from lockstep.values.limits import CQL_REQUESTS_A_CONNECTION_TURN, CQL_STATEMENTS_A_TURN


class Waiting(Protocol):
    """A connection that has read more than has begun."""

    def begin_waiting(self, requests_max: int) -> bool:
        """Begin some of it while the turn is open; whether there is more."""
        ...


class Turns:
    """Of all connections of a node. `open`: whether more may begin in this turn."""

    def __init__(self) -> None:
        self.open = True
        self.statements_max = CQL_STATEMENTS_A_TURN
        self._left = self.statements_max
        self._waiting: dict[Waiting, None] = {}
        self._next_due = False

    @property
    def waiting(self) -> int:
        """Connections with requests that were read and have not begun."""
        return len(self._waiting)

    def begun(self, statements: int) -> None:
        """A request of so many statements begins in this turn."""
        self._left -= statements
        if self._left <= 0:
            self.open = False
        if not self._next_due:
            self._next_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def wait(self, connection: Waiting) -> None:
        """Call `begin_waiting` when it is this connection's turn."""
        self._waiting[connection] = None

    def forget(self, connection: Waiting) -> None:
        self._waiting.pop(connection, None)

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
