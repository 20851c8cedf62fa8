"""What a node does for others when it has left: it writes the batches and hands over the hints that it keeps.

Invariant: it ends once, when all is given away, or when nobody took it in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.replication.batch_store import BatchStore
from lockstep.replication.hint_delivery import HintDelivery
from lockstep.replication.hint_store import HintStore
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError
from lockstep.values.limits import LEAVING_FAREWELL_MS


class Farewell:
    def __init__(
        self,
        runtime: Runtime,
        batches: BatchStore,
        hints: HintStore,
        delivery: HintDelivery,
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._batches = batches
        self._hints = hints
        self._delivery = delivery
        self._log = log
        self._begun = False

    def begin(self, end: Callable[[], None]) -> None:
        """Give away what there is, then call `end`; at once when there is nothing."""
        if self._begun:
            return
        if not self._hints.pending and not len(self._batches):
            end()
            return
        self._begun = True
        self._runtime.tasks.spawn(self._give(end), "node.farewell")

    async def _give(self, end: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(LEAVING_FAREWELL_MS / 1000):
                kept = 0
                while len(self._batches) != kept:  # a page at a time, as long as some are written
                    kept = len(self._batches)
                    await self._batches.replay_due(everything=True)
                await self._delivery.hand_over()
        except (TimeoutError, LockstepError) as error:
            self._log("hints.not_handed_over", hints=self._hints.count(), error=str(error))
        end()
