"""Simulated nodes that run statements.

Invariant: a statement begins well within a second of the nodes' clocks, so that what expires when is known.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import QueryParameters
from lockstep.node.configuration import Configuration, FunctionsSection
from lockstep.runtime.ports import Runtime
from lockstep.sim.cluster import Shape, SimCluster
from lockstep.sim.cql_client import CqlClient, CqlError
from lockstep.sim.fuzz.looks import FUNCTIONS
from lockstep.sim.fuzz.saying import Said
from lockstep.sim.fuzz.tables import KEYSPACE
from lockstep.sim.world import World
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency

_CQL_PORT: Final = 9042
_CONNECT_MS: Final = 5000
_START_S: Final = 60.0
_REQUEST_S: Final = 30.0
_REST_S: Final = 2.0
#: How long nodes need when one of them was away: hints arrive, the batch log is replayed.
_LONG_REST_S: Final = 15.0
#: A statement begins in the first part of a second.
_EARLY_US: Final = 500_000
_SECOND_US: Final = 1_000_000
#: Errors that leave open what happened; -1 is no answer at all.
UNKNOWN: Final = (0x1003, 0x1100, 0x1200, 0x1300, 0x1500, 0x1700, -1)
#: A node reported a defect of its own, and cannot be used any more.
BROKEN: Final = -2
_UNPREPARED: Final = 0x2500
#: Refused before anything was done.
NOT_DONE: Final = (0x1000, 0x1001)


class Told(msgspec.Struct, frozen=True):
    """An answer: `error` is its code, or -1 when there was none; rows as shapes of their types."""

    error: int = 0
    message: str = ""
    names: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] | None = None
    pages: int = 1


class _Cluster(SimCluster):
    def configuration(self, name: str) -> Configuration:
        enabled = FunctionsSection(user_defined_functions_enabled=True)
        return msgspec.structs.replace(super().configuration(name), functions=enabled)


class Door:
    """`nodes` simulated nodes, all of them replicas of everything."""

    def __init__(self, seed: int, nodes: int = 1) -> None:
        self.world = World(seed)
        self.cluster = _Cluster(self.world, Shape(founders=nodes, spares=0, tokens=4))
        self.names = list(self.cluster.processes)
        self.client = self.world.process("client")
        self._clients: dict[str, CqlClient] = {}
        #: Ids of statements by node and text: they outlive changes of their tables.
        self._prepared: dict[tuple[str, str], bytes] = {}
        self.client.start(_wait_for_ever)
        self.cluster.start()
        self.until(lambda: all(self.cluster.ready(name) for name in self.names), _START_S)
        for statement in (
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = "
            f"{{'class': 'SimpleStrategy', 'replication_factor': {nodes}}}",
            *FUNCTIONS,
        ):
            told = self.run(statement)
            assert not told.error, told.message

    def close(self) -> None:
        self.world.close()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # ---- time

    def now_s(self) -> int:
        """The nodes' second."""
        return self._wall_us() // _SECOND_US

    def settle(self) -> None:
        """Wait for the beginning of a second unless this one is young."""
        part_us = self._wall_us() % _SECOND_US
        if part_us > _EARLY_US:
            self.world.run_for((_SECOND_US - part_us) / _SECOND_US + 0.001)

    def rest(self) -> None:
        """Let the nodes finish what they do by themselves."""
        self.world.run_for(_REST_S if len(self.names) == 1 else _LONG_REST_S)

    def wait(self, seconds: int) -> None:
        """Move the clocks of all nodes."""
        for process in self.world.processes.values():
            process.jump_wall(seconds)

    # ---- faults

    def strike(self, what: str, node: int) -> None:
        """One node at most is struck, and never the first, which coordinates."""
        for name in self.names:
            self.cluster.processes[name].resume()
            if not self.cluster.processes[name].alive:
                self.cluster.start_node(name)
        self.world.network.heal()
        self.until(lambda: all(self.cluster.ready(name) for name in self.names), _START_S)
        victim = self.cluster.processes[self.names[node - 1]]
        if what == "kill":
            victim.crash()
        elif what == "pause":
            victim.pause()
        elif what == "cut":
            others = [self.cluster.processes[name].host for name in self.names if name != victim.name]
            self.world.network.partition([victim.host], others)

    def _wall_us(self) -> int:
        return self.client.clock.wall_us()

    # ---- statements

    def run(self, text: str, page_rows: int = 0, node: str = "") -> Told:
        return self.ask(Said(text), page_rows, node)

    def ask(self, said: Said, page_rows: int = 0, node: str = "") -> Told:
        task = self.client.submit(lambda runtime: self._ask(runtime, said, page_rows, node or self.names[0]))
        try:
            self.until(task.done, _REQUEST_S)
        except LockstepError as error:
            return Told(BROKEN, str(error))
        if not task.done():
            task.cancel()
            self.world.run_for(1.0)
            return Told(-1, "no answer")
        told: Told = task.result()
        return told

    async def _ask(self, runtime: Runtime, said: Said, page_rows: int, node: str) -> Told:
        try:
            client = self._clients.get(node)
            if client is None or client.closed:
                host = self.cluster.processes[node].host
                client = await CqlClient.connect(runtime, host, _CQL_PORT, _CONNECT_MS)
                self._clients[node] = client
            return await self._answered(client, said, page_rows, node)
        except CqlError as error:
            return Told(error.code, error.body.message)
        except (OSError, TimeoutError) as error:
            return Told(-1, str(error))

    async def _answered(self, client: CqlClient, said: Said, page_rows: int, node: str) -> Told:
        if not said.prepared:
            return await _pages(client, said, page_rows, None)
        known = self._prepared.get((node, said.text))
        if known is not None:
            try:
                return await _pages(client, said, page_rows, known)
            except CqlError as error:
                if error.code != _UNPREPARED:
                    raise
        prepared = self._prepared[node, said.text] = await client.prepare(said.text)
        return await _pages(client, said, page_rows, prepared)

    def until(self, done: Any, limit_s: float) -> None:
        self.world.run_for(limit_s, done)
        if self.world.errors:
            first = self.world.errors[0]
            raise LockstepError(f"the simulated cluster failed: {first}") from first.error


async def _pages(client: CqlClient, said: Said, page_rows: int, prepared: bytes | None) -> Told:
    rows: list[tuple[Any, ...]] = []
    state: bytes | None = None
    pages = 0
    while True:
        parameters = QueryParameters(
            consistency=Consistency.QUORUM,
            page_size=page_rows or None,
            paging_state=state,
            values=said.values,
            timestamp_us=said.stamp,
        )
        if prepared is None:
            answer = await client.request(Opcode.QUERY, wire.query(4, said.text, parameters))
        else:
            answer = await client.request(Opcode.EXECUTE, wire.execute(4, prepared, None, parameters))
        if not isinstance(answer, wire.RowsResult):
            return Told()
        pages += 1
        columns = answer.metadata.columns
        for cells in answer.rows:
            shapes = zip(columns, cells, strict=True)
            rows.append(tuple(None if c is None else column.type.deserialize(c) for column, c in shapes))
        state = answer.metadata.paging_state
        if state is None:
            return Told(names=tuple(column.name for column in columns), rows=tuple(rows), pages=pages)


async def _wait_for_ever(runtime: Runtime) -> None:
    await asyncio.Event().wait()
