"""Nodes with their CQL doors in this process, on loopback addresses, run by a loop in a thread."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lockstep.local.admin_client import AdminClient, Credential, of_node
from lockstep.node.configuration import parse
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real import ConfinedWorkers, real_runtime
from lockstep.server.cql.cql_server import CqlServer, serve
from lockstep.server.statements.user_functions import WORKERS_HANDLER
from lockstep.storage.model import open_model_store
from lockstep.storage.store import Store
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId

T = TypeVar("T")

CQL_PORT = 19042
INTERNODE_PORT = 17000
ADMIN_PORT = 17080
#: Nodes whose clients log in need one.
JOIN_SECRET = "the-join-secret-of-these-tests"
#: Blocks of eight addresses with one third octet; the first one is left out.
_BLOCKS = 30
_blocks = itertools.count()


def addresses() -> Iterator[str]:
    """Loopback addresses that no other cluster of this process uses, nor (most likely) another test run."""
    turn, block = divmod(next(_blocks), _BLOCKS)
    # Processes of one run have neighbouring numbers: a process goes on far from them.
    run = os.getpid() + 7919 * turn
    return (f"127.{1 + run // 250 % 250}.{run % 250}.{8 + block * 8 + index}" for index in range(8))


def as_services(one: Any) -> Any:
    """A stand-in that is every service of a node at once."""
    for name in ("context", "log", "membership", "data", "work"):
        setattr(one, name, one)
    return one


class Member:
    """One running node."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.node: Node = None  # type: ignore[assignment]
        self.server: CqlServer = None  # type: ignore[assignment]
        self.log: list[tuple[str, dict[str, Any]]] = []


class Nodes:
    """A cluster of nodes in one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._escaped)
        self.escaped: list[dict[str, Any]] = []
        # A test run ends whatever hangs in it.
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.members: list[Member] = []
        self.founders: list[str] = []

    def _escaped(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.escaped.append(context)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 20) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def found(self, count: int, **settings: str) -> None:
        self._thread.start()
        self._addresses = addresses()
        self.founders = [next(self._addresses) for _ in range(count)]
        self.members = [Member(address) for address in self.founders]
        self.call(self._start_all(self.members, self.founders, settings))

    async def _start_all(self, members: list[Member], founders: list[str], settings: dict[str, str]) -> None:
        async with asyncio.TaskGroup() as group:
            for member in members:
                group.create_task(self._start(member, founders, settings))

    def add(self, **settings: str) -> Member:
        member = Member(next(self._addresses))
        self.members.append(member)
        self.call(self._start(member, self.founders, settings))
        return member

    async def _start(self, member: Member, founders: list[str], settings: dict[str, str]) -> None:
        listed = [f"{address}:{INTERNODE_PORT}" for address in founders]
        role = "founders" if member.address in founders else "seeds"
        text = f"""
[node]
data_directory = "{self._directory / member.address}"
[cluster]
{role} = {listed}
join_secret = "{JOIN_SECRET}"
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
        enabled = configuration.functions.user_defined_functions_enabled
        workers = ConfinedWorkers(WORKERS_HANDLER) if enabled else None
        runtime = real_runtime(configuration.node.data_directory, workers=workers)

        async def open_store(runtime: Runtime) -> Store:
            return await open_model_store(runtime.disk, "store")

        def log(event: str, **facts: Any) -> None:
            member.log.append((event, facts))

        member.node = Node(runtime, configuration, open_store, log)
        await member.node.start()
        member.server = await serve(member.node.services, runtime)

    def restart(self, member: Member) -> None:
        """Start a stopped node again on its directory."""
        self.members.append(member)
        self.call(self._start(member, self.founders, {}))

    def admin(self, member: Member) -> AdminClient:
        """Of a node whose admin port is open."""
        return AdminClient(member.address, ADMIN_PORT, credential=self.credential(member))

    def credential(self, member: Member) -> Credential:
        return of_node(self._directory / member.address)

    def decommission(self, member: Member) -> None:
        """Begin to take a node out; another one coordinates it."""
        wanted = PrepareOperation(Decommission(NodeId(member.node.context.own_id())))
        self.call(self.members[0].node.log.submit(wanted))

    def stop(self, member: Member) -> None:
        self.members.remove(member)
        self.call(self._stop(member))

    async def _stop(self, member: Member) -> None:
        if member.server is not None:
            member.server.stop()
            member.server.clients.abort()
        if member.node is None:
            return
        await member.node.stop()
        if member.node.runtime.workers is not None:
            await member.node.runtime.workers.stop()

    def close(self) -> None:
        """Stop all nodes, also when some never started or do not stop; an ExceptionGroup tells of those."""
        failures: list[Exception] = []
        for member in list(self.members):
            try:
                self.stop(member)
            except Exception as error:
                failures.append(error)
        self.call(self._cancel_rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
        if failures:
            raise ExceptionGroup("nodes did not stop", failures)

    async def _cancel_rest(self) -> None:
        """What a node that failed has left behind."""
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=5)


@contextmanager
def nodes(directory: Path, count: int, **settings: str) -> Iterator[Nodes]:
    cluster = Nodes(directory)
    try:
        cluster.found(count, **settings)
        yield cluster
    finally:
        cluster.close()
