"""Who is told how a request between nodes ended, an object, a future, or two callbacks, and one timer for all
operations in flight that must end by a deadline.

Invariant: a waiter hears exactly one of the two, never before the sending call has returned. An operation is
told `expired` at most once, at or at most one sweep after its deadline; where the loop itself stood still,
one more sweep later, when what came meanwhile has been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from lockstep.runtime.ports import Clock
from lockstep.values.errors import LockstepError
from lockstep.values.limits import PEER_SWEEP_MS, SWEEP_LATE_MS


class Waiter(Protocol):
    """Told the end of a request; `context` is what the caller passed with it."""

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None: ...

    def failed(self, context: Any, error: LockstepError) -> None: ...


class FutureWaiter:
    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def failed(self, context: Any, error: LockstepError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class RawWaiter(FutureWaiter):
    """Waits for a reply and the raw bytes behind it: the future has the reply when `take` got all of them.

    `take` may be called in a thread. What comes when nobody waits any more is taken all the same.
    """

    __slots__ = ("reply", "take")

    def __init__(self, future: asyncio.Future[Any], take: Callable[[memoryview], None]) -> None:
        super().__init__(future)
        self.take = take
        self.reply: Any = None

    def ended(self, error: Exception | None) -> None:
        """All bytes were taken, or `error` came between."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(self.reply)
        else:
            self.future.set_exception(error)


class CallbackWaiter:
    __slots__ = ("_on_error", "_on_reply")

    def __init__(
        self, on_reply: Callable[[Any, int], None], on_error: Callable[[LockstepError], None]
    ) -> None:
        self._on_reply = on_reply
        self._on_error = on_error

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
        self._on_reply(reply, sender_epoch)

    def failed(self, context: Any, error: LockstepError) -> None:
        self._on_error(error)


class Expiring(Protocol):
    deadline_s: float

    def expired(self) -> None: ...


class Sweeps:
    """When one timer for many deadlines is due, and what it may call expired."""

    __slots__ = ("_due_s", "_spared")

    def __init__(self) -> None:
        self._due_s = 0.0
        #: Whether the last sweep expired nothing, for it came late.
        self._spared = False

    def delay_s(self, deadline_s: float, now_s: float) -> float:
        """How long to wait for a sweep at the deadline."""
        delay_s = max(deadline_s - now_s, PEER_SWEEP_MS / 1000)
        self._due_s = now_s + delay_s
        return delay_s

    def until_s(self, now_s: float) -> float:
        """Deadlines up to then are over. None, once, when the loop stood still: the next sweep comes when it
        has read what lies in its sockets."""
        self._spared = not self._spared and now_s - self._due_s > SWEEP_LATE_MS / 1000
        return -inf if self._spared else now_s


class Deadlines:
    """Operations enter and leave by number; the earliest deadline arms the timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, Expiring] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._sweeps = Sweeps()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, operation: Expiring) -> int:
        """The number to remove it by."""
        self._number += 1
        self._waiting[self._number] = operation
        if self._timer is None or operation.deadline_s < self._timer_at_s:
            self._arm(operation.deadline_s)
        return self._number

    def remove(self, number: int) -> None:
        self._waiting.pop(number, None)

    def stop(self) -> None:
        """Expire everything now: the node stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for operation in waiting.values():
            operation.expired()

    def validate(self) -> None:
        assert self._timer is not None or not self._waiting, "nobody wakes for a deadline"
        assert all(number <= self._number for number in self._waiting), "numbers are given once"

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = self._sweeps.delay_s(deadline_s, self._clock.monotonic_s())
        self._timer_at_s = deadline_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        until_s = self._sweeps.until_s(self._clock.monotonic_s())
        ended = [number for number, op in self._waiting.items() if op.deadline_s <= until_s]
        operations = [self._waiting.pop(number) for number in ended]
        if self._waiting:
            self._arm(min(operation.deadline_s for operation in self._waiting.values()))
        for operation in operations:
            operation.expired()
