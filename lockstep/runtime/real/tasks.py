"""The small ports of production: the owner of a node's tasks, threads for its blocking calls, entropy of the
operating system, drawn in bulk, and probes: nothing happens at a named place.

Invariant: every task started here is referenced until it ends, and an exception that escapes one is reported
exactly once, whoever else awaits it. Work whose failure is expected handles it inside. No task ends while a
thread works for it: whoever cancels and awaits it may then close what that thread used. Every value comes
from os.urandom; nothing is seeded, nothing repeats after a fork, because a pool belongs to the process that
filled it. Free of effects, and as cheap as a call can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar, cast

from lockstep.values.limits import BLOCKING_THREADS_MAX

T = TypeVar("T")

#: Told the task's name and the exception that escaped it.
Report = Callable[[str, BaseException], None]


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
    """Threads that make the blocking calls of one loop; started when all others are busy, and kept. A call
    costs half of what it does by `run_in_executor`, whose futures have locks and chains of their own."""

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


class RealTasks:
    """Tasks port on whatever loop is running."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._running: dict[asyncio.Task[Any], None] = {}
        self._threads = OF_LOOP.get() or BlockingThreads()

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
        return await self._threads.run(work)

    async def cancel_all(self) -> None:
        """Also ends tasks that others spawn while they are being cancelled; never the caller itself."""
        caller = asyncio.current_task()
        while pending := [task for task in self._running if task is not caller]:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            # `_ended` runs one turn after the task: let it, so that the loop makes progress.
            await asyncio.sleep(0)


_POOL_WORDS = 512
_POOL = struct.Struct(f"={_POOL_WORDS}Q")
_REAL_SCALE = 2.0**-53


def uuid_text(raw: bytes) -> str:
    """Canonical text of a version 4 UUID from 16 random bytes."""
    value = int.from_bytes(raw, "big")
    value = value & ~(0xF << 76) | (4 << 76)
    value = value & ~(0x3 << 62) | (2 << 62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class RealRandom:
    """Random port."""

    def __init__(self) -> None:
        self._pool: list[int] = []
        self._owner = os.getpid()

    def _word(self) -> int:
        if not self._pool or self._owner != os.getpid():
            self._owner = os.getpid()
            self._pool = list(_POOL.unpack(os.urandom(_POOL.size)))
        return self._pool.pop()

    def real(self) -> float:
        return (self._word() >> 11) * _REAL_SCALE

    def below(self, bound: int) -> int:
        """Uniform by rejection: fewer than two draws on average."""
        assert bound > 0, bound
        bits = (bound - 1).bit_length()
        while True:
            value = self._bits(bits)
            if value < bound:
                return value

    def _bits(self, count: int) -> int:
        if count <= 64:
            return self._word() >> (64 - count)
        return int.from_bytes(os.urandom((count + 7) // 8), "big") & ((1 << count) - 1)

    def bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def uuid(self) -> str:
        return uuid_text(os.urandom(16))


class NoProbes:
    """Probes port."""

    # A built-in, for a write passes ten such places and a function would cost twice as much.
    reach = staticmethod(cast(Callable[[str], None], bool))

    async def linger(self, label: str) -> None:
        return

    def observe(self, kind: str, **facts: Any) -> None:
        return
