"""Processes beside the node that answer clients at a port of their own, without a step of the node's loop.

Invariant: while doors are open as many processes as were asked for take connections from one listening
socket; one that ends by itself is started again. None outlives the node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from typing import Final

from lockstep.runtime.ports import Tls
from lockstep.runtime.real.workers import PipedProcess, paths_of
from lockstep.values.errors import ConfigurationError
from lockstep.values.node_limits import (
    SESSION_READER_NICENESS,
    SESSION_READER_PAUSE_MS,
    SESSION_READERS_MAX,
    SESSION_READERS_WAITING_MAX,
)

_PROGRAM: Final = (
    "import sys; sys.path[:0] = {paths!r}; from lockstep.runtime.ports import Tls; "
    "from {main.__module__} import {main.__name__}; "
    "{main.__name__}({handler!r}, {niceness}, {descriptor}, {order!r}, {tls!r}, {count})"
)


class DoorProcesses:
    """The production Doors port. `handler` names what answers, see `door_process.keep_doors`, and `packages`
    what it imports beside this package."""

    def __init__(self, handler: str, *packages: str) -> None:
        self._handler = handler
        self._packages = packages
        self._listener: socket.socket | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int, order: bytes, tls: Tls | None) -> int:
        """See ports.Doors."""
        if self._listener is None:
            self._listener = _listening(host, port)
            self._keeper = asyncio.create_task(self._keep(order, tls))
        number: int = self._listener.getsockname()[1]
        return number

    async def _keep(self, order: bytes, tls: Tls | None) -> None:
        """The first process, and the next one when it ends."""
        while self._listener is not None:
            try:
                one = await self._started(self._listener.fileno(), order, tls)
            except OSError:
                # The machine has no room for it now: readers wait, and say so when they have waited too long.
                await asyncio.sleep(SESSION_READER_PAUSE_MS / 1000)
                continue
            try:
                await one.process.wait()
                await asyncio.sleep(SESSION_READER_PAUSE_MS / 1000)
            finally:
                await one.end()

    async def _started(self, descriptor: int, order: bytes, tls: Tls | None) -> PipedProcess:
        # Imported here: a node that opens no door holds nothing of what is behind it.
        from lockstep.runtime.real.door_process import keep_doors

        loop = asyncio.get_running_loop()
        program = _PROGRAM.format(
            main=keep_doors,
            paths=paths_of("lockstep", "msgspec", *self._packages),
            handler=self._handler,
            niceness=SESSION_READER_NICENESS,
            descriptor=descriptor,
            order=order,
            tls=tls,
            count=min(len(os.sched_getaffinity(0)), SESSION_READERS_MAX),
        )
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=1, loop=loop),
            *(sys.executable, "-I", "-S", "-X", "utf8", "-c", program),
            stdin=PIPE,
            stdout=None,
            stderr=None,
            env={},
            pass_fds=(descriptor,),
        )
        return PipedProcess(Process(transport, protocol, loop), transport)

    async def close(self) -> None:
        """See ports.Doors."""
        listener, self._listener = self._listener, None
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if listener is not None:
            listener.close()


def _listening(host: str, port: int) -> socket.socket:
    """ConfigurationError when the address is in use."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(SESSION_READERS_WAITING_MAX)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"{host}:{port} cannot be listened at for read sessions: {error}",
            hint="set read_sessions.port to a port that is free, or to 0 for any",
        ) from error
    return listener
