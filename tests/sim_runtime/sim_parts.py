"""Small protocols and mains that the tests of the simulated runtime share."""

from __future__ import annotations

import asyncio
from typing import Any

from lockstep.runtime.ports import Runtime

SERVER = "10.0.0.1"
PORT = 7000


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Sink(asyncio.Protocol):
    """Remembers everything that happens to it."""

    def __init__(self) -> None:
        self.received = b""
        self.pieces: list[bytes] = []
        self.ended = False
        self.lost: list[Exception | None] = []
        self.pressed = 0
        self.released = 0
        self.arrival = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces.append(data)
        self.arrival.set()

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)
        self.arrival.set()

    def pause_writing(self) -> None:
        self.pressed += 1

    def resume_writing(self) -> None:
        self.released += 1

    async def wait_for_bytes(self, count: int) -> None:
        while len(self.received) < count and not self.lost:
            self.arrival.clear()
            await self.arrival.wait()


async def echo_server(runtime: Runtime) -> None:
    await runtime.network.listen(SERVER, PORT, Echo)
    await asyncio.Event().wait()


async def dial(runtime: Runtime, host: str = SERVER, port: int = PORT) -> Sink:
    _, protocol = await runtime.network.connect(host, port, Sink)
    assert isinstance(protocol, Sink)
    return protocol
