"""Long statements are read and planned beside the loop, one after the other.

Invariant: what is planned on the loop has at most STATEMENT_INLINE_CHARACTERS of text and VALUES_INLINE_BYTES
of values; of what is longer one is planned at a time, so that other blocking calls find threads, and at most
PLANNED_ASIDE_QUEUED_MAX wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from lockstep.cql.compile.context import Lists
from lockstep.cql.wire.messages import Value
from lockstep.runtime.ports import Tasks
from lockstep.values.errors import Overloaded
from lockstep.values.request_limits import (
    PLANNED_ASIDE_QUEUED_MAX,
    ROW_CELLS_INLINE,
    STATEMENT_INLINE_CHARACTERS,
    VALUES_INLINE_BYTES,
)

T = TypeVar("T")


def is_long(text: str, values: Sequence[Value] = ()) -> bool:
    """Whether a statement and its values are too much for the loop."""
    if len(text) > STATEMENT_INLINE_CHARACTERS:
        return True
    return sum([len(value) for value in values if isinstance(value, bytes)]) > VALUES_INLINE_BYTES


def are_long(lists: Lists | None) -> bool:
    """Whether lists that a statement changes are too much for the loop."""
    return lists is not None and sum(map(len, lists.values())) > ROW_CELLS_INLINE


class LongStatements:
    """Of one node."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives, which may touch nothing that changes. Its errors, or Overloaded."""
        if self._waiting >= PLANNED_ASIDE_QUEUED_MAX:
            raise Overloaded("too many long statements wait to be planned on this node")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._tasks.run_blocking(work)
        finally:
            self._waiting -= 1
