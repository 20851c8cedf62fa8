"""A Python process that answers questions over its standard streams, seen from the one that started it.

Invariant: it finds the packages it was given, and nothing else that its surroundings offer. A message is its
length in four bytes, then its bytes, in both directions.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping
from importlib.util import find_spec

from lockstep.values.process_limits import WORKER_MESSAGE_BYTES_MAX

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
