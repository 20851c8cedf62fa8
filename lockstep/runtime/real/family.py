"""Composition of the production ports, the entry into their event loop, and what the interpreter itself has
to say: it goes to the node's log.

Invariant: every call of `real_runtime` gives ports of its own, so several nodes can live in one process.
Monotonic_s never steps back; wall_us is what the host believes and may jump. After `route_diagnostics`,
nothing but a crash of the interpreter writes to standard error by itself.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TextIO, TypeVar

from lockstep.runtime.ports import Doors, Helpers, Runtime, Workers
from lockstep.runtime.real.disk import RealDisk
from lockstep.runtime.real.network import RealNetwork
from lockstep.runtime.real.tasks import OF_LOOP, BlockingThreads, NoProbes, RealRandom, RealTasks, Report
from lockstep.values.limits import BLOCKING_THREADS_MAX


class RealClock:
    """Clock port."""

    # The system's function itself, for every request asks several times.
    monotonic_s = staticmethod(time.monotonic)

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def processor_s(self) -> float:
        return time.process_time()


T = TypeVar("T")


def real_runtime(
    root: str,
    report: Report | None = None,
    *,
    archive: str = "",
    workers: Workers | None = None,
    helpers: Helpers | None = None,
    doors: Doors | None = None,
) -> Runtime:
    """Ports of one node whose files lie below `root`. `report` hears of exceptions that escape tasks;
    without it the loop's exception handler does. `archive` is a directory for what the metadata log drops."""
    tasks = RealTasks(report or _tell_loop)
    return Runtime(
        clock=RealClock(),
        random=RealRandom(),
        disk=RealDisk(root, tasks.run_blocking),
        network=RealNetwork(),
        tasks=tasks,
        probes=NoProbes(),
        archive=RealDisk(archive, tasks.run_blocking) if archive else None,
        workers=workers,
        helpers=helpers,
        doors=doors,
    )


def _tell_loop(name: str, error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": f"task {name} failed", "exception": error})


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` to its end under uvloop; what it left running is cancelled."""
    import uvloop

    threads = BlockingThreads()
    OF_LOOP.set(threads)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_with_threads(main))
    finally:
        OF_LOOP.set(None)
        threads.close()


async def _with_threads(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(BLOCKING_THREADS_MAX, thread_name_prefix="blocking")
    asyncio.get_running_loop().set_default_executor(pool)
    return await main()


Log = Callable[..., None]


def facts_of(error: BaseException) -> dict[str, Any]:
    """A defect as facts of a log line."""
    return {
        "error": f"{type(error).__name__}: {error}",
        "trace": "".join(traceback.format_exception(error)),
    }


def route_diagnostics(log: Log) -> None:
    """Let this process's warnings and defects be events of the log."""

    def uncaught(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        log("process.fault", **facts_of(error))

    def in_thread(given: threading.ExceptHookArgs) -> None:
        if given.exc_value is not None:
            log("thread.fault", thread=given.thread.name if given.thread else "", **facts_of(given.exc_value))

    def unraisable(given: sys.UnraisableHookArgs) -> None:
        facts = facts_of(given.exc_value) if given.exc_value is not None else {}
        log("object.fault", message=given.err_msg or "an exception that nobody could take", **facts)

    def warned(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        log("python.warned", category=category.__name__, message=str(message), at=f"{filename}:{lineno}")

    sys.excepthook = uncaught
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
    warnings.showwarning = warned
    root = logging.getLogger()
    root.handlers = [_Handler(log)]
    root.setLevel(logging.WARNING)


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts |= facts_of(record.exc_info[1])
        self._log("library.fault" if record.levelno >= logging.ERROR else "library.warned", **facts)
