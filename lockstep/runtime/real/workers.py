"""A pool of confined processes that evaluate what nobody trusts, and the end of those that do not answer.

Invariant: a process serves one owner from its start to its end, so that code of one owner never meets values
of another's; one that failed to answer in time, or at all, never answers again; at most WORKERS_MAX run.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, Process
from typing import Final

from lockstep.runtime.ports import WorkersRefused
from lockstep.runtime.real.piped_process import PipedProcess, paths_of, start
from lockstep.values.process_limits import (
    WORKER_BUSY_S_MAX,
    WORKER_CPU_S_MAX,
    WORKER_MEMORY_BYTES,
    WORKER_MESSAGE_BYTES_MAX,
    WORKER_QUEUE_MAX,
    WORKER_START_S_MAX,
    WORKERS_MAX,
)

_PROGRAM: Final = (
    "import sys; sys.path[:0] = {paths!r}; from lockstep.runtime.real.worker_process import main; "
    "main({handler!r}, {memory}, {cpu_s})"
)


class _Worker(PipedProcess):
    def __init__(self, owner: str, process: Process, transport: asyncio.SubprocessTransport) -> None:
        super().__init__(process, transport)
        self.owner = owner
        self.busy_s = 0.0


class ConfinedWorkers:
    """The production Workers port. `handler` names the function that answers, `module:function`; `unfiltered`
    allows workers whose system calls the kernel cannot filter."""

    def __init__(self, handler: str, *, unfiltered: bool = False) -> None:
        self._handler = handler
        self._unfiltered = unfiltered
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []
        self._waiting = 0
        self._free = asyncio.Semaphore(WORKERS_MAX)

    async def evaluate(self, owner: str, question: bytes, timeout_ms: int) -> bytes:
        """See ports.Workers."""
        if self._waiting >= WORKER_QUEUE_MAX or len(question) > WORKER_MESSAGE_BYTES_MAX:
            raise BlockingIOError("too much is asked of the workers of user functions")
        self._waiting += 1
        try:
            async with self._free:
                return await self._evaluate(owner, question, timeout_ms / 1000)
        finally:
            self._waiting -= 1

    async def _evaluate(self, owner: str, question: bytes, timeout_s: float) -> bytes:
        worker = await self._taken(owner)
        kept = False
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await worker.answer(question)
            worker.busy_s += asyncio.get_running_loop().time() - began_s
            kept = worker.busy_s < WORKER_BUSY_S_MAX
            return answer
        finally:
            if kept:
                self._idle.append(worker)
            else:
                await self._ended(worker)

    async def _taken(self, owner: str) -> _Worker:
        """An idle worker of the owner, or a new one in the place of another owner's."""
        for worker in reversed(self._idle):
            if worker.owner == owner and worker.runs:
                self._idle.remove(worker)
                return worker
        while self._idle and len(self._all) >= WORKERS_MAX:
            await self._ended(self._idle.pop(0))
        return await self._started(owner)

    async def _started(self, owner: str) -> _Worker:
        program = _PROGRAM.format(
            paths=_paths(), handler=self._handler, memory=WORKER_MEMORY_BYTES, cpu_s=WORKER_CPU_S_MAX
        )
        started = await start(program, errors=DEVNULL, environment={}, directory="/", apart=True)
        worker = _Worker(owner, *started)
        self._all.append(worker)
        try:
            async with asyncio.timeout(WORKER_START_S_MAX):
                refused = await worker.read()
        except BaseException:
            await self._ended(worker)
            raise
        if refused and not self._unfiltered:
            await self._ended(worker)
            raise WorkersRefused(refused.decode())
        return worker

    async def _ended(self, worker: _Worker) -> None:
        self._all.remove(worker)
        await worker.end()

    async def stop(self) -> None:
        """End all; nothing may be evaluated any more."""
        for worker in list(self._all):
            await worker.end()


def _paths() -> list[str]:
    """Where a worker finds this package and what it imports; it looks nowhere else."""
    return paths_of("lockstep", "msgspec", "rpds")
