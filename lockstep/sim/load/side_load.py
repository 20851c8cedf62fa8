"""Clients beside the workload: a table of their own, CQL through the door of drivers, a record of their own.

Invariant: what such clients ask is recorded before it is sent, and has one outcome; at the end, when all has
settled, everything is read through every node until it is answered.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from lockstep.cql.wire import client as wire
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeCaptured, ChangeSchema, may_open_streams
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import CreateTable, NewColumn, Options
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CQL_PORT, KNOWN_CODES, CqlClient, CqlError
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.values.ids import Consistency

THINK_MS: Final = 30.0
TIMEOUT_S: Final = 2.5
_CONNECT_MS = 300
#: How long one question of the last ones may go unanswered.
_FINAL_S = 20.0

#: What became of a statement, the answer if there is one, and the error if not.
Ended = tuple[Outcome, wire.Body | None, str]


class Side(Protocol):
    """What a run does with such clients."""

    stopped: bool

    @property
    def idle(self) -> bool: ...

    def read_all(self, names: list[str]) -> None:
        """When all has settled: everything through each of these nodes."""
        ...

    def judge(self) -> int:
        """How many answers were judged. Raises Violation."""
        ...


class SideLoad:
    """Makes the table when there is a keyspace, then starts `clients` of them, by turns in the data centres.

    `make_client(name, dc)` gives what a client does: its `run`, and `read_all` for the end.
    """

    def __init__(
        self,
        operators: Operators,
        table: str,
        columns: tuple[NewColumn, ...],
        prefix: str,
        clients: int,
        host: int,
        options: Options = (),
    ) -> None:
        self.cluster: SimCluster = operators.cluster
        self.table = table
        self.stopped = False
        self._operators = operators
        self._columns = columns
        self._options = options
        self._host = host
        self._prefix = prefix
        self._names = [f"{prefix}{number}" for number in range(1, clients + 1)]
        operators.when_ready.append(self._begin)

    def make_client(self, name: str, dc: str) -> SideClient:
        raise AssertionError("abstract")

    def _begin(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._start(runtime), self.table)

    async def _start(self, runtime: Runtime) -> None:
        made = CreateTable(KEYSPACE, self.table, runtime.random.uuid(), self._columns, self._options)
        while not self.has_table():
            if self._operators.stopped:
                return
            if may_open_streams(self.cluster.newest.schema, made):
                captured = ChangeCaptured(ChangeSchema(made), runtime.clock.wall_us() // 1000)
                await self._operators.submit(runtime, EntryKind.CHANGE_CAPTURED, captured)
            else:
                await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, ChangeSchema(made))
        world, dcs = self.cluster.world, self.cluster.dcs()
        for number, name in enumerate(self._names, start=1):
            client = self.make_client(name, dcs[(number - 1) % len(dcs)])
            world.process(name, f"127.0.{self._host}.{number}").start(client.run)

    def has_table(self) -> bool:
        return self.cluster.newest.schema.table(KEYSPACE, self.table) is not None

    @property
    def idle(self) -> bool:
        processes = self.cluster.world.processes
        return not any(name in processes and processes[name].alive for name in self._names)

    def read_all(self, names: list[str]) -> None:
        if not self.has_table():
            return
        for name in names:
            reader = f"final-{self._prefix}-{name}"
            client = self.make_client(reader, self.cluster.dc_of(name))
            self.cluster.world.call(
                lambda runtime, client=client, name=name: client.read_all(runtime, name),  # type: ignore[misc]
                name=reader,
                limit_s=1000.0,
            )


class SideClient:
    """One client: connects to nodes of its data centre, asks, and says what became of it."""

    #: How long it waits for an answer.
    timeout_s = TIMEOUT_S

    def __init__(self, load: SideLoad, name: str, dc: str) -> None:
        self.cluster = load.cluster
        self.name = name
        #: Its data centre where there are several, else "".
        self.scope = dc if load.cluster.shape.dcs > 1 else ""
        self.draw = load.cluster.world.stream(f"{load.table}/{name}")
        self._load = load
        self._dc = dc
        self._prepared: dict[str, bytes] = {}

    async def ask(self, session: CqlClient) -> None:
        """One request of the run, recorded."""
        raise AssertionError("abstract")

    async def last_asks(self, session: CqlClient) -> bool:
        """Ask everything that is asked at the end; False when something was not answered."""
        raise AssertionError("abstract")

    async def run(self, runtime: Runtime) -> None:
        session: CqlClient | None = None
        while not self._load.stopped:
            await asyncio.sleep(self.draw.expovariate(1000 / THINK_MS))
            if session is None or session.closed or self.draw.random() < 0.2:
                session = await self._connect(runtime, session)
            if session is not None:
                await self.ask(session)
        if session is not None:
            session.close()

    async def read_all(self, runtime: Runtime, name: str) -> None:
        world = self.cluster.world
        deadline_s = world.now_s() + _FINAL_S
        session: CqlClient | None = None
        while True:
            if session is None or session.closed:
                session = await self._open(runtime, name)
            if session is not None and await self.last_asks(session):
                session.close()
                return
            if world.now_s() > deadline_s:
                raise Violation("LIVENESS", f"{self._load.table} cannot be read through {name}")
            await asyncio.sleep(0.5)

    async def execute(
        self,
        session: CqlClient,
        text: str,
        values: list[bytes],
        level: Consistency,
        serial: Consistency | None = None,
    ) -> Ended:
        """Send and wait."""
        try:
            async with asyncio.timeout(self.timeout_s):
                if text not in self._prepared:
                    self._prepared[text] = await session.prepare(text)
                answer = await session.execute(self._prepared[text], values, level, serial=serial)
                return Outcome.OK, answer, ""
        except (TimeoutError, ConnectionError) as error:
            session.close()
            return Outcome.UNKNOWN, None, type(error).__name__
        except CqlError as error:
            self.failed(error)
            outcome = Outcome.FAILED if error.code in KNOWN_CODES else Outcome.UNKNOWN
            return outcome, None, str(error)

    def failed(self, error: CqlError) -> None:
        """A statement was answered with an error: perhaps the node does not know it any more."""
        self._prepared.clear()

    async def _connect(self, runtime: Runtime, former: CqlClient | None) -> CqlClient | None:
        if former is not None:
            former.close()
        names = [name for name in self.cluster.in_service() if self.cluster.dc_of(name) == self._dc]
        return await self._open(runtime, self.draw.choice(names)) if names else None

    async def _open(self, runtime: Runtime, name: str) -> CqlClient | None:
        host = self.cluster.processes[name].host
        self._prepared = {}
        try:
            return await CqlClient.connect(runtime, host, CQL_PORT, _CONNECT_MS)
        except (OSError, TimeoutError, CqlError):
            return None


def int_bytes(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)
