"""A small real-asyncio runtime on loopback, and internode instances for tests."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from lockstep.internode.handshake import Hello, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.own_side import LinkSecurity
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real.network import RealNetwork


class MonotonicClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000


class SeededRandom:
    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def real(self) -> float:
        return self._source.random()

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def bytes(self, size: int) -> bytes:
        return self._source.randbytes(size)

    def uuid(self) -> str:
        return f"00000000-0000-4000-8000-{self._source.getrandbits(48):012x}"


class OwnedTasks:
    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}
        self.failures: list[BaseException] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception())  # type: ignore[arg-type]

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        return work()

    async def cancel_all(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class RecordingProbes:
    def __init__(self) -> None:
        self.reached: list[str] = []

    def reach(self, label: str) -> None:
        self.reached.append(label)

    async def linger(self, label: str) -> None:
        self.reached.append(label)

    def observe(self, kind: str, **facts: Any) -> None:
        self.reached.append(kind)


def real_runtime(seed: int = 1) -> Runtime:
    return Runtime(
        clock=MonotonicClock(),
        random=SeededRandom(seed),
        disk=None,  # type: ignore[arg-type]
        network=RealNetwork(),
        tasks=OwnedTasks(),
        probes=RecordingProbes(),
    )


def free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


class TestNode:
    """One Internode with its identity, its epoch and what it was told."""

    __test__ = False

    def __init__(self, index: int, *, cluster_id: str = "c", lineage: tuple[bytes, ...] = (b"l",)) -> None:
        self.runtime = real_runtime(index)
        self.host = f"127.0.1.{index}"
        self.port = free_port(self.host)
        self.address = (self.host, self.port)
        self.epoch = 1
        self.epochs_seen: list[tuple[int, int]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.refuse: str | None = None
        self.greeting = Hello(
            1,
            cluster_id,
            "test",
            lineage,
            f"host-{index}",
            index,
            self.host,
            self.port,
            takes_shared=True,
        )
        self.internode = self.build()

    def build(self, **security: Any) -> Internode:
        """`security`: as LinkSecurity has it."""
        made = Internode(
            self.runtime,
            lambda: self.greeting,
            self,
            lambda hello: self.refuse,
            self._log,
            LinkSecurity(**security),
        )
        made.own.listen(self._told)
        return made

    def _told(self, peer: PeerInfo, epoch: int) -> None:
        self.epochs_seen.append((peer.node_id, epoch))

    def _log(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [facts for name, facts in self.events if name == event]

    async def start(self) -> None:
        await self.internode.start(self.host, self.port)

    async def stop(self) -> None:
        await self.internode.stop()
        await self.runtime.tasks.cancel_all()


@contextlib.asynccontextmanager
async def running(*nodes: TestNode) -> AsyncIterator[None]:
    for node in nodes:
        await node.start()
    try:
        yield
    finally:
        for node in nodes:
            await node.stop()
        await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an async test with a bound on its time."""

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for real sockets to bring something about."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")
