"""Simulated nodes that run statements, and the client that sends them and reads what is answered.

Invariant: a statement begins well within a second of the nodes' clocks, so that what expires when is known.
Of each node and version one connection is kept, and what was prepared there; rows are read as a driver reads
them: what an answer leaves out of its columns was told when the statement was prepared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import BATCH_COUNTER, BATCH_LOGGED, BATCH_UNLOGGED, Opcode
from lockstep.cql.wire.messages import BatchStatement, QueryParameters
from lockstep.node.configuration import Configuration, FunctionsSection, TabletsSection
from lockstep.runtime.ports import Runtime
from lockstep.schema.types import CqlType, ListType
from lockstep.sim.cluster import Shape, SimCluster
from lockstep.sim.fuzz.kinds import Said
from lockstep.sim.fuzz.queries import FUNCTIONS
from lockstep.sim.fuzz.tables import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient, CqlError
from lockstep.sim.runtime.world import World
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency

_CQL_PORT: Final = 9042
_CONNECT_MS: Final = 5000
_UNPREPARED: Final = 0x2500
_KINDS: Final = {"": BATCH_LOGGED, "UNLOGGED": BATCH_UNLOGGED, "COUNTER": BATCH_COUNTER}


class Told(msgspec.Struct, frozen=True):
    """An answer: `error` is its code, or -1 when there was none; rows as shapes of their types."""

    error: int = 0
    message: str = ""
    names: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] | None = None
    pages: int = 1


class Asking:
    """`host_of` gives a node's address by its name."""

    def __init__(self, host_of: Callable[[str], str]) -> None:
        self._host_of = host_of
        self._clients: dict[tuple[str, int], CqlClient] = {}
        #: By node, version and text: they outlive changes of their tables.
        self._prepared: dict[tuple[str, int, str], wire.PreparedResult] = {}

    async def told(self, runtime: Runtime, said: Said, page_rows: int, nodes: Sequence[str]) -> Told:
        """All pages: from the first of the nodes, or from each in turn, of growing sizes."""
        try:
            rows: list[tuple[Any, ...]] = []
            state: bytes | None = None
            names: tuple[str, ...] = ()
            pages = 0
            while not pages or state is not None:
                size = page_rows + pages % 3 if said.wanders else page_rows
                turn = pages % len(nodes) if said.wanders else 0
                client = await self._client(runtime, nodes[turn], said.version)
                answer = await self._answer(client, nodes[turn], said, _parameters(said, size, state))
                if not isinstance(answer, wire.RowsResult):
                    return Told()
                pages += 1
                columns = answer.metadata.columns
                for cells in answer.rows:
                    shapes = zip(columns, cells, strict=True)
                    rows.append(tuple(None if c is None else shape_of(one.type, c) for one, c in shapes))
                state = answer.metadata.paging_state
                names = tuple(column.name for column in columns)
            return Told(names=names, rows=tuple(rows), pages=pages)
        except CqlError as error:
            return Told(error.code, error.body.message)
        except (OSError, TimeoutError) as error:
            return Told(-1, str(error))

    async def _client(self, runtime: Runtime, node: str, version: int) -> CqlClient:
        client = self._clients.get((node, version))
        if client is None or client.closed:
            client = await CqlClient.connect(runtime, self._host_of(node), _CQL_PORT, _CONNECT_MS, version)
            self._clients[node, version] = client
        return client

    async def _answer(
        self, client: CqlClient, node: str, said: Said, parameters: QueryParameters
    ) -> wire.Body:
        try:
            return await self._once(client, node, said, parameters)
        except CqlError as error:
            if error.code != _UNPREPARED:
                raise
        for one in (said, *said.batched):
            self._prepared.pop((node, said.version, one.text), None)
        return await self._once(client, node, said, parameters)

    async def _once(self, client: CqlClient, node: str, said: Said, parameters: QueryParameters) -> wire.Body:
        if said.batched:
            entries = []
            for one in said.batched:
                known = await self._known(client, node, one.text) if one.prepared else None
                entries.append(BatchStatement(known.statement_id if known else one.text, one.values))
            body = wire.batch(client.version, _KINDS[said.text], entries, parameters)
            return await client.request(Opcode.BATCH, body)
        if not said.prepared:
            return await client.request(Opcode.QUERY, wire.query(client.version, said.text, parameters))
        known = await self._known(client, node, said.text)
        parameters = msgspec.structs.replace(parameters, skip_metadata=said.version > 4)
        body = wire.execute(client.version, known.statement_id, known.result_metadata_id, parameters)
        answer = await client.request(Opcode.EXECUTE, body)
        return self._complete(answer, known, (node, client.version, said.text))

    async def _known(self, client: CqlClient, node: str, text: str) -> wire.PreparedResult:
        known = self._prepared.get((node, client.version, text))
        if known is None:
            known = self._prepared[node, client.version, text] = await client.prepared(text)
        return known

    def _complete(
        self, answer: wire.Body, known: wire.PreparedResult, place: tuple[str, int, str]
    ) -> wire.Body:
        """The answer with its columns."""
        if not isinstance(answer, wire.RowsResult):
            return answer
        metadata = answer.metadata
        if metadata.new_metadata_id is not None:
            self._prepared[place] = msgspec.structs.replace(
                known, result_metadata_id=metadata.new_metadata_id, result=metadata
            )
        if metadata.columns:
            return answer
        told = msgspec.structs.replace(metadata, columns=known.result.columns)
        return msgspec.structs.replace(answer, metadata=told)


def shape_of(kind: CqlType, data: bytes) -> Any:
    """The value; a list of times of cells may hold nulls."""
    if not isinstance(kind, ListType) or b"\xff\xff\xff\xff" not in data:
        return kind.deserialize(data)
    count, at, found = int.from_bytes(data[:4], "big"), 4, []
    for _ in range(count):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        found.append(None if size < 0 else kind.element.deserialize(data[at + 4 : at + 4 + size]))
        at += 4 + max(size, 0)
    return tuple(found)


def _parameters(said: Said, page_rows: int, state: bytes | None) -> QueryParameters:
    values, names = said.values, None
    if said.named:
        # They need no order.
        values, names = values[::-1], tuple(f"n{turn}" for turn in range(len(values)))[::-1]
    return QueryParameters(
        consistency=Consistency.QUORUM,
        page_size=page_rows or None,
        paging_state=state,
        values=values,
        names=names,
        timestamp_us=said.stamp,
        now_s=said.now_s,
    )


_START_S: Final = 60.0
_REQUEST_S: Final = 30.0
#: How long drivers wait until nodes agree about the schema.
_AGREEMENT_S: Final = 10.0
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
#: Refused before anything was done.
NOT_DONE: Final = (0x1000, 0x1001)


class _Cluster(SimCluster):
    tablets = TabletsSection()

    def configuration(self, name: str) -> Configuration:
        enabled = FunctionsSection(user_defined_functions_enabled=True)
        return msgspec.structs.replace(super().configuration(name), functions=enabled, tablets=self.tablets)


class _TabletCluster(_Cluster):
    tablets = TabletsSection("enabled")


class Door:
    """`nodes` simulated nodes, all of them replicas of everything; with `tablets` each table has its own."""

    def __init__(self, seed: int, nodes: int = 1, *, tablets: bool = False) -> None:
        self.world = World(seed)
        made = _TabletCluster if tablets else _Cluster
        self.cluster = made(self.world, Shape(founders=nodes, spares=0, tokens=4))
        self.names = list(self.cluster.processes)
        self.client = self.world.process("client")
        self._asking = Asking(lambda name: self.cluster.processes[name].host)
        self._struck = ""
        self.client.start(_wait_for_ever)
        self.cluster.start()
        self.until(lambda: all(self.cluster.ready(name) for name in self.names), _START_S)
        strategy = "NetworkTopologyStrategy" if tablets else "SimpleStrategy"
        for statement in (
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = "
            f"{{'class': '{strategy}', 'replication_factor': {nodes}}}",
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
        self.until(self._know_the_same, _START_S)
        self._struck = "" if what == "mend" else self.names[node - 1]
        victim = self.cluster.processes[self.names[node - 1]]
        if what == "kill":
            victim.crash()
        elif what == "pause":
            victim.pause()
        elif what == "cut":
            others = [self.cluster.processes[name].host for name in self.names if name != victim.name]
            self.world.network.partition([victim.host], others)

    def _know_the_same(self) -> bool:
        """Whether all nodes serve, and none is behind: a node that was cut off a moment ago may not have
        heard yet of the table that is asked for."""
        if not all(self.cluster.ready(name) for name in self.names):
            return False
        return len({self.cluster.nodes[name].log.state.epoch for name in self.names}) == 1

    def _wall_us(self) -> int:
        return self.client.clock.wall_us()

    # ---- statements

    def run(self, text: str, page_rows: int = 0, node: str = "") -> Told:
        return self.ask(Said(text), page_rows, node)

    def ask(self, said: Said, page_rows: int = 0, node: str = "") -> Told:
        able = [name for name in self.names if name != self._struck]
        self.until(lambda: self._agree(able), _AGREEMENT_S)
        able = [node] if node else able
        task = self.client.submit(lambda runtime: self._asking.told(runtime, said, page_rows, able))
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

    def _agree(self, names: Sequence[str]) -> bool:
        """Whether these nodes know of the same changes of the schema: drivers wait for that, too."""
        return len({self.cluster.nodes[name].log.cluster.epoch: None for name in names}) == 1

    def until(self, done: Any, limit_s: float) -> None:
        self.world.run_for(limit_s, done)
        if self.world.errors:
            first = self.world.errors[0]
            raise LockstepError(f"the simulated cluster failed: {first}") from first.error


async def _wait_for_ever(runtime: Runtime) -> None:
    await asyncio.Event().wait()
