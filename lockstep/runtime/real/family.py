"""Composition of the production ports, and the entry into their event loop.

Invariant: every call of `real_runtime` gives ports of its own, so several nodes can live in one process.

The system's clocks.

Invariant: monotonic_s never steps back; wall_us is what the host believes and may jump.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lockstep.runtime.ports import Helpers, Runtime, Workers
from lockstep.runtime.real.disk import RealDisk
from lockstep.runtime.real.network import RealNetwork
from lockstep.runtime.real.tasks import NoProbes, RealRandom, RealTasks, Report
from lockstep.values.limits import BLOCKING_THREADS_MAX


class RealClock:
    """Clock port."""

    # The system's function itself, for every request asks several times.
    monotonic_s = staticmethod(time.monotonic)

    def wall_us(self) -> int:
        return time.time_ns() // 1000


T = TypeVar("T")


def real_runtime(
    root: str,
    report: Report | None = None,
    *,
    archive: str = "",
    workers: Workers | None = None,
    helpers: Helpers | None = None,
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
    )


def _tell_loop(name: str, error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": f"task {name} failed", "exception": error})


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` to its end under uvloop; what it left running is cancelled."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_with_threads(main))


async def _with_threads(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(BLOCKING_THREADS_MAX, thread_name_prefix="blocking")
    asyncio.get_running_loop().set_default_executor(pool)
    return await main()
