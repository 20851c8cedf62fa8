"""Raw bytes behind a reply's frame: content of files, which no message wraps and no loop copies.

Invariants: while raw bytes go out on a connection nothing else does, and while they come in nothing behind
them is read. A connection on which they end too early is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from lockstep.internode.waiters import RawWaiter
from lockstep.runtime.ports import FileReader, Runtime
from lockstep.values.errors import LockstepError, PeerTimeout

if TYPE_CHECKING:
    from lockstep.internode.connection import Connection


class FileReply:
    """A reply whose raw bytes are a part of a file; closes the file."""

    __slots__ = ("file", "offset", "reply", "size")

    def __init__(self, reply: Any, file: FileReader, offset: int, size: int) -> None:
        self.reply = reply
        self.file = file
        self.offset = offset
        self.size = size


class RawSender:
    """What goes out on one connection, one part after the other."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._waiting: deque[tuple[bytes, FileReply]] = deque()
        self._task: asyncio.Task[None] | None = None
        #: The connection may not write.
        self.busy = False

    def send(self, frame: bytes, content: FileReply) -> None:
        self._waiting.append((frame, content))
        if self._task is None:
            self._task = self._runtime.tasks.spawn(self._send_all(), "internode-raw-out")

    async def _send_all(self) -> None:
        connection = self._connection
        try:
            while self._waiting and not connection.closed:
                frame, content = self._waiting.popleft()
                try:
                    await self._send_one(frame, content)
                finally:
                    self.busy = False
                    content.file.close()
                connection.flush()
        except (OSError, LockstepError) as error:
            connection.close(f"raw bytes were not sent: {error}", abort=True)
        finally:
            self._task = None
            self._drop()

    async def _send_one(self, frame: bytes, content: FileReply) -> None:
        connection = self._connection
        connection.flush()
        self.busy = True
        transport = await connection.drained()
        await self._runtime.network.send_file(transport, frame, content.file, content.offset, content.size)

    def stop(self) -> None:
        """The connection is closed."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._drop()

    def _drop(self) -> None:
        while self._waiting:
            self._waiting.popleft()[1].file.close()


class RawReceiver:
    """What comes in on one connection, with reading paused."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None

    def receive(
        self, transport: asyncio.Transport, first: memoryview, size: int, waiter: RawWaiter | None
    ) -> None:
        """`first` is what was read already, perhaps with frames behind. Without a waiter they are dropped."""
        self._task = self._runtime.tasks.spawn(
            self._receive(transport, first, size, waiter), "internode-raw-in"
        )

    async def _receive(
        self, transport: asyncio.Transport, first: memoryview, size: int, waiter: RawWaiter | None
    ) -> None:
        connection = self._connection
        behind = b""
        error: Exception | None = PeerTimeout("the connection broke within raw bytes")
        take = waiter.take if waiter is not None else _drop
        try:
            behind = await self._runtime.network.receive(transport, first, size, take)
            error = None
        except OSError as reason:
            connection.close(f"raw bytes did not arrive: {reason}", abort=True)
        except LockstepError as reason:
            error = reason
            connection.close(f"raw bytes were not taken: {reason.message}", abort=True)
        finally:
            self._task = None
            if waiter is not None:
                waiter.ended(error)
        if error is None:
            connection.read_on(behind)

    def stop(self) -> None:
        """The connection is closed."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def _drop(data: memoryview) -> None:
    return
