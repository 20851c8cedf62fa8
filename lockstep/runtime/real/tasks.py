"""The owner of a node's tasks.

Invariant: every task started here is referenced until it ends, and an exception that escapes one is
reported exactly once, whoever else awaits it. Work whose failure is expected handles it inside. No task ends
while a thread works for it: whoever cancels and awaits it may then close what that thread used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Told the task's name and the exception that escaped it.
Report = Callable[[str, BaseException], None]


class RealTasks:
    """Tasks port on whatever loop is running."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._running: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(task.get_name(), error)

    async def run_blocking(self, work: Callable[[], T]) -> T:
        call = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            while not call.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([call])
            raise

    async def cancel_all(self) -> None:
        """Also ends tasks that others spawn while they are being cancelled; never the caller itself."""
        caller = asyncio.current_task()
        while pending := [task for task in self._running if task is not caller]:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            # `_ended` runs one turn after the task: let it, so that the loop makes progress.
            await asyncio.sleep(0)
