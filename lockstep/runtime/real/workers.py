"""Python processes beside the node that answer questions over their standard streams: confined ones that
evaluate what nobody trusts, and helpers that do the node's long work at low priority; and the end of those
that do not answer.

Invariant: a process serves one owner from its start to its end, so that code of one owner never meets values
of another's; one that failed to answer in time, or at all, never answers again; at most WORKERS_MAX run. It
finds the packages it was given, and nothing else that its surroundings offer. A message is its length in four
bytes, then its bytes, in both directions. A process works on one order at a time, and on none that nobody
waits for; at most HELPERS_MAX run, and none for much longer than HELPER_IDLE_MS without an order.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from lockstep.runtime.ports import WorkersRefused
from lockstep.values.node_limits import (
    HELPER_IDLE_MS,
    HELPER_NICENESS,
    HELPERS_MAX,
    WORKER_BUSY_S_MAX,
    WORKER_CPU_S_MAX,
    WORKER_MEMORY_BYTES,
    WORKER_MESSAGE_BYTES_MAX,
    WORKER_QUEUE_MAX,
    WORKER_START_S_MAX,
    WORKERS_MAX,
)

_LENGTH = struct.Struct(">I")
#: Read ahead of an answer that is taken in; as asyncio's own.
_BUFFER_BYTES = 64 * 1024


class PipedProcess:
    """`transport` is that of the process and its pipes."""

    def __init__(self, process: Process, transport: asyncio.SubprocessTransport) -> None:
        self.process = process
        self._transport = transport

    @property
    def runs(self) -> bool:
        return self.process.returncode is None

    async def answer(self, question: bytes) -> bytes:
        """ConnectionError when the process ends, or answers what it cannot."""
        assert self.process.stdin is not None, "a pipe"
        self.process.stdin.write(_LENGTH.pack(len(question)) + question)
        await self.process.stdin.drain()
        return await self.read()

    async def read(self) -> bytes:
        assert self.process.stdout is not None, "a pipe"
        try:
            size = _LENGTH.unpack(await self.process.stdout.readexactly(_LENGTH.size))[0]
            if size > WORKER_MESSAGE_BYTES_MAX:
                raise ConnectionResetError(f"an answer of {size} bytes")
            return await self.process.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the process ended") from None

    def kill(self) -> None:
        if self.runs:
            self.process.kill()

    async def end(self) -> None:
        self.kill()
        try:
            await self.process.wait()
        finally:
            self._transport.close()


async def start(
    program: str, *, errors: int | None, environment: Mapping[str, str], directory: str | None, apart: bool
) -> tuple[Process, asyncio.SubprocessTransport]:
    """Run a program text in a process of this interpreter, for a PipedProcess. `errors`: where its standard
    error goes, None: to that of this process. `apart`: in a session of its own."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=_BUFFER_BYTES, loop=loop),
        *(sys.executable, "-I", "-S", "-X", "utf8", "-c", program),
        stdin=PIPE,
        stdout=PIPE,
        stderr=errors,
        env=environment,
        cwd=directory,
        start_new_session=apart,
    )
    return Process(transport, protocol, loop), transport


def paths_of(*packages: str) -> list[str]:
    """Where packages that are installed lie."""
    found = []
    for name in packages:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None, f"{name} is installed"
        found.append(os.path.dirname(os.path.dirname(spec.origin)))
    return list(dict.fromkeys(found))


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
        self._starting = 0
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
        while self._idle and len(self._all) + self._starting >= WORKERS_MAX:
            await self._ended(self._idle.pop(0))
        return await self._started(owner)

    async def _started(self, owner: str) -> _Worker:
        program = _PROGRAM.format(
            paths=_paths(), handler=self._handler, memory=WORKER_MEMORY_BYTES, cpu_s=WORKER_CPU_S_MAX
        )
        self._starting += 1
        try:
            started = await start(program, errors=DEVNULL, environment={}, directory="/", apart=True)
            worker = _Worker(owner, *started)
            self._all.append(worker)
        finally:
            self._starting -= 1
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
        """It counts until it is gone."""
        try:
            await worker.end()
        finally:
            self._all.remove(worker)

    async def stop(self) -> None:
        """End all; nothing may be evaluated any more."""
        for worker in list(self._all):
            await worker.end()


def _paths() -> list[str]:
    """Where a worker finds this package and what it imports; it looks nowhere else."""
    return paths_of("lockstep", "msgspec", "rpds")


_HELPER_PROGRAM: Final = (
    "import sys; sys.path[:0] = {paths!r}; from lockstep.runtime.real.worker_process import help_out; "
    "help_out({handler!r}, {niceness})"
)


class HelperProcesses:
    """The production Helpers port. `handler` names the function that works, `module:function`, and
    `packages` what it imports beside this package. Standard error of helpers is that of this process."""

    def __init__(self, handler: str, *packages: str) -> None:
        self._handler = handler
        self._packages = packages
        self._all: list[PipedProcess] = []
        self._idle: list[PipedProcess] = []
        self._free = asyncio.Semaphore(HELPERS_MAX)
        self._stopped = False

    async def do(self, order: bytes, timeout_ms: int) -> bytes:
        """See ports.Helpers."""
        async with self._free:
            helper = await self._taken()
            answered = False
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    answer = await helper.answer(order)
                answered = True
                return answer
            finally:
                if answered:
                    self._idle.append(helper)
                    asyncio.get_running_loop().call_later(HELPER_IDLE_MS / 1000, self._rest)
                else:
                    self._all.remove(helper)
                    await helper.end()

    async def _taken(self) -> PipedProcess:
        """The one that was used last, or a new one."""
        while self._idle:
            helper = self._idle.pop()
            if helper.runs:
                return helper
            self._all.remove(helper)
        if self._stopped:
            raise ConnectionRefusedError("the helpers were stopped")
        paths = paths_of("lockstep", "msgspec", *self._packages)
        program = _HELPER_PROGRAM.format(paths=paths, handler=self._handler, niceness=HELPER_NICENESS)
        try:
            # Not apart: kernels that share the processor out by sessions compare priorities within one only.
            helper = PipedProcess(
                *await start(program, errors=None, environment={}, directory=None, apart=False)
            )
        except OSError as error:
            raise ConnectionRefusedError(f"no process could be started: {error}") from error
        self._all.append(helper)
        return helper

    def _rest(self) -> None:
        """End those that have nothing to do, once nobody has."""
        if len(self._idle) == len(self._all):
            for helper in self._idle:
                self._all.remove(helper)
                helper.kill()
            self._idle = []

    async def stop(self) -> None:
        """End all; what they work on fails."""
        self._stopped = True
        for helper in list(self._all):
            await helper.end()
