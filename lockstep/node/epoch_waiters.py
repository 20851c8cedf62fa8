"""Who waits for an epoch to be applied here.

Invariant: everyone who waits is told: that the epoch is there, or why it never will be.
"""

from __future__ import annotations

import asyncio

from lockstep.values.errors import LockstepError


class EpochWaiters:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def wait(self, epoch: int) -> None:
        """Return once `reached` was called with this epoch or a later one; raises what `fail` was given."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (epoch, future)
        self._waiting.append(waiter)
        try:
            await future
        finally:
            if future.cancelled():
                self._waiting = [other for other in self._waiting if other is not waiter]

    def reached(self, epoch: int) -> None:
        if not self._waiting:
            return
        waiting = self._waiting
        self._waiting = [pair for pair in waiting if pair[0] > epoch and not pair[1].done()]
        for wanted, future in waiting:
            if wanted <= epoch and not future.done():
                future.set_result(None)

    def fail(self, error: LockstepError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
