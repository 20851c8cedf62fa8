"""One timer for all operations in flight that must end by a deadline.

Invariant: an operation is told `expired` at most once, at or at most one sweep after its deadline.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from lockstep.runtime.ports import Clock
from lockstep.values.limits import PEER_SWEEP_MS


class Expiring(Protocol):
    deadline_s: float

    def expired(self) -> None: ...


class Deadlines:
    """Operations enter and leave by number; the earliest deadline arms the timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, Expiring] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

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

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_s - self._clock.monotonic_s(), PEER_SWEEP_MS / 1000)
        self._timer_at_s = deadline_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        ended = [number for number, op in self._waiting.items() if op.deadline_s <= now_s]
        operations = [self._waiting.pop(number) for number in ended]
        if self._waiting:
            self._arm(min(operation.deadline_s for operation in self._waiting.values()))
        for operation in operations:
            operation.expired()
