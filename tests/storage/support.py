"""Real parts and small fakes for the storage tests: a disk that loses power, tasks, both stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from lockstep.runtime.ports import Disk, Runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.model import open_model_store
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.storage.store import Pair, Store
from lockstep.values.errors import DiskRefused
from lockstep.values.tokens import Range

T = TypeVar("T")


class LossyDisk:
    """In memory. `lose_power` keeps what was synced, and of each unsynced tail the first `keep(n)` bytes."""

    def __init__(self) -> None:
        self._seen: dict[str, bytearray] = {}
        self._synced: dict[str, bytes] = {}
        self._durable_names: dict[str, str] = {}
        self._inode: dict[str, str] = {}
        self._next = 0
        self.refuse = False
        self.syncs = 0

    def names(self, directory: str) -> list[str]:
        cut = len(directory) + 1
        return sorted(path[cut:] for path in self._inode if path.startswith(directory + "/"))

    def exists(self, path: str) -> bool:
        return path in self._inode

    def read(self, path: str) -> bytes:
        if path not in self._inode:
            raise FileNotFoundError(path)
        return bytes(self._seen[self._inode[path]])

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        return self.read(path)[offset : offset + size]

    def size(self, path: str) -> int:
        return len(self.read(path))

    def append(self, path: str, data: bytes) -> None:
        if self.refuse:
            raise DiskRefused("the disk is full")
        if path not in self._inode:
            self._next += 1
            self._inode[path] = f"inode-{self._next}"
        self._seen.setdefault(self._inode[path], bytearray()).extend(data)

    def truncate(self, path: str, size: int) -> None:
        del self._seen[self._inode[path]][size:]

    def rename(self, source: str, target: str) -> None:
        self.read(source)  # FileNotFoundError
        self._inode[target] = self._inode.pop(source)

    def remove(self, path: str) -> None:
        self.read(path)  # FileNotFoundError
        del self._inode[path]

    async def sync(self, path: str) -> None:
        inode, content = self._inode[path], bytes(self._seen[self._inode[path]])
        await asyncio.sleep(0)
        if self.refuse:
            raise DiskRefused("the disk failed")
        self.syncs += 1
        self._synced[inode] = content

    def free_bytes(self) -> int:
        return 1 << 50

    async def append_synced(self, path: str, data: bytes) -> None:
        self.append(path, data)
        await self.sync(path)

    def reader(self, path: str) -> MemoryReader:
        return MemoryReader(self.read(path))

    def writer(self, path: str) -> MemoryWriter:
        self.append(path, b"")
        return MemoryWriter(self, self._seen[self._inode[path]])

    async def sync_names(self, directory: str) -> None:
        await asyncio.sleep(0)
        self._durable_names = dict(self._inode)

    def lose_power(self, keep: Callable[[int], int] = lambda size: 0, names: bool = False) -> LossyDisk:
        """The disk as the next incarnation finds it; `names`: changes of names were lucky and survived."""
        after = LossyDisk()
        after._next = self._next
        after._inode = dict(self._inode if names else self._durable_names)
        after._durable_names = dict(after._inode)
        for inode in dict.fromkeys(after._inode.values()):
            synced = self._synced.get(inode, b"")
            seen = bytes(self._seen.get(inode, b""))
            tail = seen[len(synced) :] if seen.startswith(synced) else b""
            after._seen[inode] = bytearray(synced + tail[: keep(len(tail))])
            after._synced[inode] = bytes(after._seen[inode])
        return after


class MemoryReader:
    """What a file held when it was opened, behind a descriptor of the operating system."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._descriptor = os.memfd_create("content")
        os.write(self._descriptor, content)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        found = self._content[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


class MemoryWriter:
    def __init__(self, disk: LossyDisk, content: bytearray) -> None:
        self._disk = disk
        self._content: bytearray | None = content

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        if self._disk.refuse:
            raise DiskRefused("the disk is full")
        if self._content is not None:
            assert offset <= len(self._content), "a file has no holes"
            self._content[offset : offset + len(data)] = data

    def close(self) -> None:
        self._content = None


class LoopTasks:
    def __init__(self) -> None:
        self.running: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.running.append(task)
        return task

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def cancel_all(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until everything spawned so far has ended."""
        while pending := [task for task in self.running if not task.done()]:
            await asyncio.gather(*pending)


class CountingProbes:
    def __init__(self) -> None:
        self.reached: list[str] = []

    def reach(self, label: str) -> None:
        self.reached.append(label)

    async def linger(self, label: str) -> None:
        return None

    def observe(self, kind: str, **facts: Any) -> None:
        return None


def runtime_of(disk: Disk | None = None) -> Runtime:
    """The ports that storage uses; the others are absent so that using them fails."""
    absent: Any = None
    return Runtime(absent, absent, disk or LossyDisk(), absent, LoopTasks(), CountingProbes())


async def open_store(kind: str, directory: Path, runtime: Runtime) -> Store:
    if kind == "rocks":
        return await open_rocks_store(str(directory / "db"), runtime.tasks)
    return await open_model_store(runtime.disk, "store")


def content_of(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan(b"", b"\xff"))


async def ingest(store: Store, pairs: list[Pair]) -> None:
    """Make pairs visible as one run."""
    run = store.new_run("ingested.run")
    run.add(pairs)
    await run.finish()
    await store.before_ingest()
    store.ingest(run)


async def take_in(engine: StorageEngine, table_id: int, tokens: Range, pairs: list[Pair]) -> None:
    """Make fragments of a range visible and durable, as the target of a stream does."""
    run = engine.begin_run(table_id, tokens, "taken.run")
    run.add(pairs)
    await run.finish()
    await engine.before_ingest(table_id, tokens)
    await engine.synced(engine.ingest(run))
