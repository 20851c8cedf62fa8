"""Nodes with their CQL doors in this process, on loopback addresses of their own, run by a loop in a thread."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lockstep.node.configuration import parse
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real import real_runtime
from lockstep.server.cql_server import CqlServer, serve
from lockstep.storage.model import open_model_store
from lockstep.storage.store import Store

T = TypeVar("T")

CQL_PORT = 19042
INTERNODE_PORT = 17000
ADMIN_PORT = 17080
_hosts = itertools.count(10)


class Member:
    """One running node."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.node: Node
        self.server: CqlServer = None  # type: ignore[assignment]
        self.log: list[tuple[str, dict[str, Any]]] = []


class Nodes:
    """A cluster of nodes in one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._escaped)
        self.escaped: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self.loop.run_forever)
        self.members: list[Member] = []

    def _escaped(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.escaped.append(context)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 20) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def found(self, count: int, **settings: str) -> None:
        self._thread.start()
        first = next(_hosts) * 4
        addresses = [f"127.0.1.{first + index}" for index in range(count)]
        self.members = [Member(address) for address in addresses]
        self.call(self._start_all(self.members, addresses, settings))

    async def _start_all(self, members: list[Member], founders: list[str], settings: dict[str, str]) -> None:
        async with asyncio.TaskGroup() as group:
            for member in members:
                group.create_task(self._start(member, founders, settings))

    def add(self, **settings: str) -> Member:
        founders = [member.address for member in self.members]
        host = int(founders[-1].rpartition(".")[2]) + 1
        member = Member(f"127.0.1.{host}")
        self.members.append(member)
        self.call(self._start(member, founders, settings))
        return member

    async def _start(self, member: Member, founders: list[str], settings: dict[str, str]) -> None:
        listed = [f"{address}:{INTERNODE_PORT}" for address in founders]
        role = "founders" if member.address in founders else "seeds"
        text = f"""
[node]
data_directory = "{self._directory / member.address}"
[cluster]
{role} = {listed}
[network]
address = "{member.address}"
internode_port = {INTERNODE_PORT}
cql_port = {CQL_PORT}
admin_port = {ADMIN_PORT}
[raft]
tick_ms = 20
"""
        environment = {f"LOCKSTEP_{name.upper()}": value for name, value in settings.items()}
        configuration = parse(text, environment)
        runtime = real_runtime(configuration.node.data_directory)

        async def open_store(runtime: Runtime) -> Store:
            return await open_model_store(runtime.disk, "store")

        def log(event: str, **facts: Any) -> None:
            member.log.append((event, facts))

        member.node = Node(runtime, configuration, open_store, log)
        await member.node.start()
        member.server = await serve(member.node, runtime)

    def stop(self, member: Member) -> None:
        self.members.remove(member)
        self.call(self._stop(member))

    async def _stop(self, member: Member) -> None:
        if member.server is not None:
            member.server.stop()
            member.server.abort()
        await member.node.stop()

    def close(self) -> None:
        for member in list(self.members):
            self.stop(member)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@contextmanager
def nodes(directory: Path, count: int, **settings: str) -> Iterator[Nodes]:
    cluster = Nodes(directory)
    try:
        cluster.found(count, **settings)
        yield cluster
    finally:
        cluster.close()
