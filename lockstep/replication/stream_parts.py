"""Parts of a sorted file on their way to its target: how large they are, and how many are asked for ahead.

Invariant: parts are written in the order of the file; what came out of turn is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from lockstep.replication import verbs
from lockstep.replication.internode import Internode
from lockstep.replication.messages import StreamAskPart, StreamPart
from lockstep.replication.stream_files import ArrivingFile, StreamKey
from lockstep.runtime.ports import Clock
from lockstep.values.errors import FrameCorrupt
from lockstep.values.limits import (
    STREAM_PART_BYTES,
    STREAM_PART_BYTES_MIN,
    STREAM_PART_MS_FAST,
    STREAM_PART_MS_SLOW,
    STREAM_PARTS_AHEAD,
    STREAM_TIMEOUT_MS,
)


class Pace:
    """How much is asked for at once: more while parts come fast, less when they are slow."""

    def __init__(self) -> None:
        self.part_bytes = STREAM_PART_BYTES_MIN

    def judge(self, size: int, took_ms: float) -> None:
        if took_ms < STREAM_PART_MS_FAST:
            self.part_bytes = min(STREAM_PART_BYTES, max(self.part_bytes, 2 * size))
        elif took_ms > STREAM_PART_MS_SLOW:
            self.part_bytes = max(STREAM_PART_BYTES_MIN, size // 2)


class PartsAhead:
    def __init__(
        self,
        internode: Internode,
        clock: Clock,
        key: StreamKey,
        file: ArrivingFile,
        request: Callable[[int], StreamAskPart | None],
        pace: Pace,
    ) -> None:
        """`request` asks for what begins at an offset; None at the file's end."""
        self._internode = internode
        self._clock = clock
        self._source = key.source
        self._file = file
        self._request = request
        self._pace = pace
        self._asked = file.size_bytes
        self._coming: deque[tuple[StreamAskPart, asyncio.Future[StreamPart]]] = deque()

    def ask(self) -> None:
        """Ask for what may be on its way."""
        while len(self._coming) < STREAM_PARTS_AHEAD and (ask := self._request(self._asked)) is not None:
            self._coming.append((ask, self._begin(ask)))
            self._asked += ask.size

    async def next(self, require: Callable[[], None]) -> None:
        """Wait until the first of them is written. `require` raises when nobody may wait any more."""
        while True:
            ask, coming = self._coming[0]
            began_s = self._clock.monotonic_s()
            part = await coming
            require()
            if part.size == ask.size and self._file.size_bytes >= ask.offset + ask.size:
                break
            if part.size not in (0, ask.size):
                raise FrameCorrupt("a part of another size came")
            # The source has no turn yet, or it came before the one that it follows.
            self._coming[0] = ask, self._begin(ask)
        self._coming.popleft()
        self._pace.judge(ask.size, (self._clock.monotonic_s() - began_s) * 1000)

    def _begin(self, ask: StreamAskPart) -> asyncio.Future[StreamPart]:
        take = self._file.taker(ask.offset)
        return self._internode.lanes.begin(self._source, verbs.STREAM_PART, ask, STREAM_TIMEOUT_MS, take)

    def close(self) -> None:
        for _, coming in self._coming:
            if not coming.cancel() and not coming.cancelled():
                coming.exception()  # Heard, so that nobody calls it lost.
