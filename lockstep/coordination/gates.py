"""One conditional request of a partition at a time, as far as one coordinator can see to it.

Invariant: requests pass in the order they came; what nobody waits for is forgotten. Passing is a courtesy
that saves ballots: safety never depends on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

Place = tuple[int, bytes]


class Gates:
    def __init__(self) -> None:
        #: Who waits for each place that someone is in.
        self._waiting: dict[Place, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def passing(self, place: Place, timeout_s: float) -> AsyncIterator[None]:
        """TimeoutError when the turn does not come."""
        queue = self._waiting.get(place)
        if queue is None:
            self._waiting[place] = deque()
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(turn)
            try:
                async with asyncio.timeout(timeout_s):
                    await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._leave(place)
                elif turn in queue:
                    queue.remove(turn)
                raise
        try:
            yield
        finally:
            self._leave(place)

    def _leave(self, place: Place) -> None:
        queue = self._waiting[place]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[place]
