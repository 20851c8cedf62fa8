"""How much of what clients ask a node begins in one turn of its loop, and is worked on at once; how many at
once, and how long others may wait, is learned, not set.

Two measurements decide. How long requests are worked on follows from how many were in flight and how many
ended (Little's law); how busy the loop is from how late its timer comes. While requests take longer than
ADMISSION_TARGET_MS on a busy loop, fewer are admitted; while others wait although requests are fast, or
though the loop has time (what is slow then is elsewhere), more are.

Invariant: beyond CQL_STATEMENTS_A_TURN nothing that clients sent begins before the loop has looked at every
socket and timer again, so the answers of other nodes pass whatever clients send; and no batch begins while
those in flight have CQL_BATCHED_IN_FLIGHT_MAX statements. No more is worked on at once than `admission` has
learned, and what has waited for longer than it says is refused before it costs anything, batches only when
nobody waits for them any more: who loads in bulk is slowed down. Connections that wait are served in turn, a
few requests each; a request begins whole. ADMISSION_MIN <= limit <= ADMISSION_MAX. A request waits for
ADMISSION_PATIENCE_MS at most, and for ADMISSION_STANDING_MS once others have waited all the time for that
long: a burst is taken in, a queue that stays is shortened. Time is given in, never asked for.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from lockstep.cql.wire.messages import Prepare, Query, Request
from lockstep.runtime.ports import Clock
from lockstep.server.cql.backpressure import NodeLoad
from lockstep.values.limits import (
    CQL_BATCHED_IN_FLIGHT_MAX,
    CQL_REQUESTS_A_CONNECTION_TURN,
    CQL_STATEMENTS_A_TURN,
)
from lockstep.values.node_limits import (
    ADMISSION_BUSY_MS,
    ADMISSION_MAX,
    ADMISSION_MIN,
    ADMISSION_PATIENCE_MS,
    ADMISSION_STANDING_MS,
    ADMISSION_START,
    ADMISSION_TARGET_MS,
    ADMISSION_TICK_MS,
    ADMISSION_WINDOW_MS,
    BATCH_PATIENCE_MS,
    TEXT_CHARACTERS_A_STATEMENT,
)


class Admission:
    """Fed by `observe`; answers with `limit` and `patience_s`."""

    def __init__(self) -> None:
        self.limit = ADMISSION_START
        self._began_s = -1.0
        self._seen_s = 0.0
        self._ended_before = 0
        #: Requests in flight times seconds.
        self._area = 0.0
        self._late_s = 0.0
        self._observed = 0
        self._wanted = False
        self._standing_since_s = -1.0

    def observe(self, now_s: float, in_flight: int, ended: int, late_s: float, *, waiting: bool) -> None:
        """`ended`: requests so far; `late_s`: by how much the timer that calls this was late; `waiting`: some
        requests wait for admission."""
        if not waiting:
            self._standing_since_s = -1.0
        elif self._standing_since_s < 0:
            self._standing_since_s = now_s
        if self._began_s < 0:
            self._begin(now_s, ended)
            return
        self._area += in_flight * (now_s - self._seen_s)
        self._seen_s = now_s
        self._late_s += late_s
        self._observed += 1
        self._wanted = self._wanted or waiting
        if now_s - self._began_s >= ADMISSION_WINDOW_MS / 1000:
            self._judge(now_s, ended)
            self._begin(now_s, ended)

    def rest(self) -> None:
        """Nothing is in flight and nobody waits: what was observed says nothing of what comes next."""
        self._began_s = self._standing_since_s = -1.0

    def patience_s(self, now_s: float) -> float:
        """How long a request may have waited that is still admitted."""
        since_s = self._standing_since_s
        stands = since_s >= 0 and now_s - since_s >= ADMISSION_PATIENCE_MS / 1000
        return (ADMISSION_STANDING_MS if stands else ADMISSION_PATIENCE_MS) / 1000

    def _begin(self, now_s: float, ended: int) -> None:
        self._began_s = self._seen_s = now_s
        self._ended_before = ended
        self._area = self._late_s = 0.0
        self._observed = 0
        self._wanted = False

    def _judge(self, now_s: float, ended: int) -> None:
        done = ended - self._ended_before
        assert done >= 0, "what has ended stays so"
        took_s = self._area / max(done, 1)
        busy = self._late_s / self._observed >= ADMISSION_BUSY_MS / 1000
        target_s = ADMISSION_TARGET_MS / 1000
        if busy and took_s > target_s:
            # No lower than half, for one window may be an accident.
            worked_on = min(self.limit, self._area / (now_s - self._began_s))
            self.limit = max(ADMISSION_MIN, int(worked_on * max(0.5, target_s / took_s)))
        elif self._wanted:
            self.limit = min(ADMISSION_MAX, self.limit + max(4, self.limit // 8))
        assert ADMISSION_MIN <= self.limit <= ADMISSION_MAX, f"a limit of {self.limit}"


def work_of_texts(request: Request) -> int:
    """As how many statements more a request counts, whose text is read and planned in one go."""
    return len(request.text) // TEXT_CHARACTERS_A_STATEMENT if isinstance(request, Query | Prepare) else 0


class Waiting(Protocol):
    """A connection that has read more than has begun."""

    def shed(self, before_s: float, batches_before_s: float) -> int:
        """Refuse what was read before then and waits; how much that was."""
        ...

    def begin_waiting(self, requests_max: int) -> bool:
        """Begin some of it while the turn is open; whether there is more that only waits for a turn."""
        ...


class LoopBudget:
    """Of all connections of a node. `open`: whether more may begin in this turn; `batches_open`: whether a
    batch may at all. `load`: what is in flight."""

    def __init__(self, load: NodeLoad, clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self.admission = Admission()
        #: Requests that were refused because they had waited for too long.
        self.shed = 0
        self._tick_due_s = 0.0
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
    def may_begin(self) -> bool:
        """Whether one more request may begin now."""
        return self.open and self._load.requests < self.admission.limit

    def now_s(self) -> float:
        return self._clock.monotonic_s()

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
        while waiting and self.may_begin:
            connection = next(iter(waiting))
            del waiting[connection]
            if connection.begin_waiting(CQL_REQUESTS_A_CONNECTION_TURN):
                waiting[connection] = None
        if waiting and self.open:
            self._load.freed = self._next_soon
        if not self._tick_due_s:
            self._tick_soon()

    # -- admission --------------------------------------------------------------------------------

    def _tick_soon(self) -> None:
        self._tick_due_s = self.now_s() + ADMISSION_TICK_MS / 1000
        asyncio.get_running_loop().call_later(ADMISSION_TICK_MS / 1000, self._tick)

    def _tick(self) -> None:
        """Look at what waits and what is in flight, until there is neither."""
        now_s, load, waiting = self.now_s(), self._load, self._waiting
        late_s = max(0.0, now_s - self._tick_due_s)
        self._tick_due_s = 0.0
        self.admission.observe(now_s, load.requests, load.ended_total, late_s, waiting=bool(waiting))
        if not waiting and not self._held and not load.requests:
            self.admission.rest()
            return
        before_s = now_s - self.admission.patience_s(now_s)
        batches_before_s = now_s - BATCH_PATIENCE_MS / 1000
        for connection in [*waiting, *self._held]:
            self.shed += connection.shed(before_s, batches_before_s)
        if waiting and self.may_begin:
            self._next_soon()
        self._tick_soon()
