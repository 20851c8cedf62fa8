"""Threads that make the blocking calls of one process: syncs, reads of files, what computes for long.

A call costs half of what it does through `run_in_executor`, whose futures have locks and chains of their own:
each sync of a write is one.

Invariant: nobody who awaits a call goes on, or ends, while a thread makes it; the loop that asked hears once
what it led to. Threads are started when all others are busy, and kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from lockstep.values.limits import BLOCKING_THREADS_MAX

T = TypeVar("T")


class _Call(Generic[T]):
    """One call; `ended` is for who was cancelled meanwhile."""

    __slots__ = ("_error", "_loop", "_value", "_work", "ended", "is_over", "outcome")

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._value: T | None = None
        self._error: BaseException | None = None
        self.outcome: asyncio.Future[Any] = loop.create_future()
        self.ended: asyncio.Future[None] | None = None
        self.is_over = False

    def make(self) -> None:
        """In a thread."""
        try:
            self._value = self._work()
        except StopIteration as error:
            self._error = RuntimeError(f"a blocking call raised {error!r}")
        except BaseException as error:
            self._error = error
        # Nobody waits any more on a loop that is closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self.is_over = True
        error, self._error = self._error, None
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)
        elif not self.outcome.done():
            if error is None:
                self.outcome.set_result(self._value)
            else:
                self.outcome.set_exception(error)


def _serve(calls: SimpleQueue[_Call[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        del call  # Else it would live until the next one comes.


def _let_go(calls: SimpleQueue[_Call[Any] | None], threads: list[Thread]) -> None:
    for _ in threads:
        calls.put(None)
    threads.clear()


class BlockingThreads:
    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        #: Calls that somebody waits for.
        self._awaited = 0
        weakref.finalize(self, _let_go, self._calls, self._threads)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work()` returns or raises. A cancelled caller is so once the call has ended."""
        loop = asyncio.get_running_loop()
        call = _Call(work, loop)
        self._awaited += 1
        if self._awaited > len(self._threads) < BLOCKING_THREADS_MAX:
            self._start()
        self._calls.put(call)
        try:
            found: T = await call.outcome
            return found
        except asyncio.CancelledError:
            while not call.is_over:
                call.ended = loop.create_future()
                with contextlib.suppress(asyncio.CancelledError):
                    await call.ended
            raise
        finally:
            self._awaited -= 1

    def _start(self) -> None:
        name = f"blocking-{len(self._threads)}"
        thread = Thread(target=_serve, args=(self._calls,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def close(self) -> None:
        """Return once all calls that were asked for have been made, and the threads have ended."""
        ending = list(self._threads)
        _let_go(self._calls, self._threads)
        for thread in ending:
            thread.join()


#: Those that are closed with the loop that runs now.
OF_LOOP: ContextVar[BlockingThreads | None] = ContextVar("blocking threads", default=None)
