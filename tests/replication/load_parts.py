"""A disk, a store and other nodes, as far as a replica's side of bulk loads needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.replica.load_messages import LoadFetch, LoadPart
from lockstep.values.errors import DiskRefused
from lockstep.values.tokens import Range


class OpenFile:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read_into(self, offset: int, buffer: memoryview) -> int:
        part = self._content[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass


class Disk:
    """Files by path, and what was made durable of them, in order."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.durable: list[str] = []
        self.on_sync: Callable[[str], None] = lambda path: None
        self.on_reader: Callable[[str], None] = lambda path: None

    def names(self, directory: str) -> list[str]:
        return sorted(path.split("/")[1] for path in self.files if path.startswith(f"{directory}/"))

    def exists(self, path: str) -> bool:
        return path in self.files

    def _found(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def read(self, path: str) -> bytes:
        return self._found(path)

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        return self._found(path)[offset : offset + size]

    def size(self, path: str) -> int:
        return len(self._found(path))

    def reader(self, path: str) -> OpenFile:
        self.on_reader(path)
        return OpenFile(self._found(path))

    def append(self, path: str, data: bytes) -> None:
        self.files[path] = self.files.get(path, b"") + data

    def rename(self, source: str, target: str) -> None:
        self.files[target] = self._found(source)
        del self.files[source]

    def remove(self, path: str) -> None:
        self._found(path)
        del self.files[path]

    async def sync(self, path: str) -> None:
        self.on_sync(path)
        self._found(path)
        self.durable.append(path)

    async def append_synced(self, path: str, data: bytes) -> None:
        self.append(path, data)
        await self.sync(path)

    async def sync_names(self, directory: str) -> None:
        self.durable.append(directory)


class Engine:
    def __init__(self) -> None:
        self.facts: dict[bytes, bytes] = {}
        self.runs: list[tuple[int, Range, str, int, bytes, bytes]] = []
        self.taken: list[tuple[int, Range, str, int, bytes, bytes]] = []
        self.refuse: Exception | None = None
        self.synced_to: list[int] = []
        self.gate = asyncio.Event()
        self.sync_error: DiskRefused | None = None

    def run_at(
        self, table_id: int, tokens: Range, path: str, count: int, first_key: bytes, last_key: bytes
    ) -> Any:
        return table_id, tokens, path, count, first_key, last_key

    def take_in(self, run: Any, *, is_indexed: bool) -> int:
        if self.refuse is not None:
            raise self.refuse
        self.taken.append(run)
        return 10 + len(self.taken)

    def came_in(self, table_id: int, tokens: Any, *, is_indexed: bool) -> int:
        return 0

    async def synced(self, sequence: int) -> None:
        await self.gate.wait()
        if self.sync_error is not None:
            raise self.sync_error
        self.synced_to.append(sequence)

    def local_fact(self, name: bytes) -> bytes | None:
        return self.facts.get(name)

    def keep_local_fact(self, name: bytes, value: bytes) -> int:
        self.facts[name] = value
        return 99


class Wire:
    """What other nodes say of files, by address: an answer, or what goes wrong."""

    def __init__(self) -> None:
        self.answers: dict[Address, Callable[[LoadFetch], LoadPart]] = {}
        self.asked: list[tuple[Address, int]] = []
        self.services: list[tuple[int, Any]] = []

    def register(self, verb: int, ask: type, answer: type, service: Any) -> None:
        assert ask is not answer
        self.services.append((verb, service))

    async def request(self, to: Address, verb: int, body: LoadFetch, timeout_ms: int) -> LoadPart:
        assert verb == verbs.LOAD_FETCH and timeout_ms > 0
        self.asked.append((to, body.offset))
        return self.answers[to](body)
