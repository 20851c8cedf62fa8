"""Questions to a group that wait for the word of a quorum: does this member lead now?

Invariant: every question is answered once, or its asker has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.values.errors import NotLeader


class PendingReads:
    """Questions by their context, a number that is never used twice."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._newest = 0

    async def ask(self, put: Callable[[int], None]) -> None:
        """`put` the question with its context, and return once it is confirmed; NotLeader otherwise."""
        self._newest += 1
        context = self._newest
        answer = self._waiting[context] = asyncio.get_running_loop().create_future()
        try:
            put(context)
            await answer
        finally:
            self._waiting.pop(context, None)

    def confirm(self, context: int) -> None:
        answer = self._waiting.get(context)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def refuse(self, context: int, reason: NotLeader) -> None:
        answer = self._waiting.get(context)
        if answer is not None and not answer.done():
            answer.set_exception(reason)

    def refuse_all(self, reason: NotLeader) -> None:
        for context in list(self._waiting):
            self.refuse(context, reason)
