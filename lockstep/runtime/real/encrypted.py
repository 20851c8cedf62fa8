"""Raw bytes over encrypted connections: only their transports can read and write them.

Invariant: the transport's protocol is the one it had, and reading is paused, whenever a call here ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from lockstep.runtime.ports import FileReader
from lockstep.values.limits import RAW_PIECE_BYTES, RAW_SILENT_MS

#: How often a transport is looked at that has yet to write what it was given.
_LOOK_MS = 1


def is_encrypted(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("ssl_object") is not None


async def send_file(
    transport: asyncio.Transport, head: bytes, file: FileReader, offset: int, size: int
) -> None:
    """As the network's `send_file`."""
    transport.write(head)
    end = offset + size
    while offset < end:
        piece = bytearray(min(RAW_PIECE_BYTES, end - offset))
        if file.read_into(offset, memoryview(piece)) < len(piece):
            raise OSError("the file is shorter than what was promised of it")
        transport.write(piece)
        offset += len(piece)
        await _written(transport)


async def _written(transport: asyncio.Transport) -> None:
    await asyncio.sleep(0)
    for _ in range(RAW_SILENT_MS // _LOOK_MS):
        if transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        if not transport.get_write_buffer_size():
            return
        await asyncio.sleep(_LOOK_MS / 1000)
    raise TimeoutError("nothing moved for too long")


class _Puller(asyncio.Protocol):
    """Keeps what arrives until it is asked for."""

    def __init__(self) -> None:
        self.arrived: deque[bytes] = deque()
        self.ended = False
        self.news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.arrived.append(data)
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.news.set()


async def receive(
    transport: asyncio.Transport, first: memoryview, size: int, take: Callable[[memoryview], None]
) -> bytes:
    """As the network's `receive`."""
    loop, puller, protocol = asyncio.get_running_loop(), _Puller(), transport.get_protocol()
    data = first
    transport.set_protocol(puller)
    try:
        while True:
            await loop.run_in_executor(None, take, data[:size])
            size, rest = size - min(size, len(data)), data[size:]
            if not size:
                return b"".join((rest, *puller.arrived))
            if not puller.arrived:
                puller.news.clear()
                transport.resume_reading()
                async with asyncio.timeout(RAW_SILENT_MS / 1000):
                    await puller.news.wait()
                if not puller.ended:
                    transport.pause_reading()
            if not puller.arrived:
                raise ConnectionResetError("the stream ended")
            data = memoryview(puller.arrived.popleft())
    finally:
        transport.set_protocol(protocol)
        if puller.ended:
            protocol.connection_lost(None)
