"""Processes beside the node that do its long work at low priority, and their end when nobody needs them.

Invariant: a process works on one order at a time, and on none that nobody waits for; at most HELPERS_MAX run,
and none for much longer than HELPER_IDLE_MS without an order.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lockstep.runtime.real.piped_process import PipedProcess, paths_of, start
from lockstep.values.process_limits import HELPER_IDLE_MS, HELPER_NICENESS, HELPERS_MAX

_PROGRAM: Final = (
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
        program = _PROGRAM.format(paths=paths, handler=self._handler, niceness=HELPER_NICENESS)
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
