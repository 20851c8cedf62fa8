"""Clients that ask for far more than the nodes can do, until a while after all faults have ended.

Each writes rows of its own with marks that no other write has, and reads some that were written. One more
asks each node as normal clients do once the load has ended. Invariant: a refusal as overloaded is recorded as
such, and nothing is asked again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lockstep.cql.wire import client as wire
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.overload import (
    NORMAL_MS,
    RECOVERY_S,
    Probe,
    Sent,
    check_goodput,
    check_marks,
    check_recovered,
)
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient, CqlError
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad, int_bytes
from lockstep.sim.working_nodes import REPLICA_US, REQUEST_US, WorkingNodes
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation

TABLE = "loaded"
#: Requests of one client in flight: with six of them some hundred for each node, which can do some fifteen in
#: the time that requests may take.
IN_FLIGHT: Final = 60
#: Until a worker of a client asks again.
_THINK_MS: Final = 20.0
#: Longer than any request may wait and then take.
_PATIENCE_S: Final = 6.0
_CONNECT_MS: Final = 2000
_RECONNECT_S: Final = 0.1
#: How long the load goes on without faults: until the slowest sync that had begun has ended, a second more,
#: and for as long as is looked at.
AFTER_S: Final = 9.0
#: How much of its end is looked at for how much is done.
GOODPUT_S: Final = 2.0
#: Normal requests through each node after the load.
_PROBES: Final = 4
_OVERLOADED: Final = "0x1001"
_UNPREPARED: Final = 0x2500
_KEYS: Final = 16
_READS: Final = 0.3
#: Reads ask for one of so many marks that were written last.
_RECENT: Final = 200
_T = f"{KEYSPACE}.{TABLE}"
_INSERT: Final = f"INSERT INTO {_T} (pk, ck, mark) VALUES (?, ?, ?)"
_SELECT: Final = f"SELECT mark FROM {_T} WHERE pk = ? AND ck = ?"
_ALL: Final = f"SELECT mark FROM {_T} WHERE pk = ?"
_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("mark", "blob"),
)


class OverloadWorkload(SideLoad):
    """`clients` of them, and the one that asks afterwards."""

    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "o", clients + 1, 10)
        self._last_name = f"o{clients + 1}"
        self.nodes = WorkingNodes(self.cluster, self._mark_of)
        self.writes: dict[bytes, Sent] = {}
        #: (key, clustering) of each write, in their order.
        self.places: list[tuple[bytes, int]] = []
        #: Marks that reads returned, and those that are there in the end.
        self.seen: dict[bytes, None] = {}
        self.last: dict[bytes, None] = {}
        self.probes: list[Probe] = []
        self._ends_ns = 0

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Prober(self, name, dc) if name == self._last_name else _Client(self, name, dc)

    def _mark_of(self, node: Node, mutation: Mutation) -> bytes:
        table = node.log.cluster.table(mutation.table_id)
        if table is None or table.name != TABLE or not mutation.rows:
            return b""
        column = table.by_name["mark"].id
        return next((cell.value or b"" for cell in mutation.rows[0].cells if cell.column == column), b"")

    @property
    def ended(self) -> bool:
        """Whether nobody asks for too much any more."""
        now_ns = self.cluster.world.now_ns
        if self.stopped and not self._ends_ns:
            self._ends_ns = now_ns + int(AFTER_S * 1e9)
        return self.stopped and now_ns >= self._ends_ns

    def next_write(self, client: str) -> tuple[Sent, bytes, int]:
        """(what is sent, its key and clustering)."""
        number = len(self.places)
        place = (b"k%d" % (number % _KEYS), number)
        self.places.append(place)
        sent = self.writes[b"%d" % number] = Sent(mark=b"%d" % number, client=client)
        return sent, *place

    def read_all(self, names: list[str]) -> None:
        """All replicas are asked, so one coordinator is enough."""
        super().read_all(names[:1])

    def judge(self) -> int:
        for write in self.writes.values():
            if write.refused:
                self.cluster.fact("a request was refused as overloaded")
            elif write.outcome is Outcome.OK:
                self.cluster.fact("a request was served under overload")
        self._judge_goodput()
        return check_marks(self.writes, self.seen, self.last) + check_recovered(self.probes)

    def _judge_goodput(self) -> None:
        """Of the last seconds under load, of which all faults were over for a while."""
        if not self._ends_ns:
            return
        good = range(self._ends_ns - int(GOODPUT_S * 1e9), self._ends_ns)
        succeeded = sum(1 for one in self.writes.values() if one.outcome is Outcome.OK and one.end_ns in good)
        nodes = len(self.cluster.in_service())
        cost_us = REQUEST_US + self.cluster.shape.factor * REPLICA_US
        check_goodput(succeeded, (1 - _READS) * GOODPUT_S * nodes * 1e6 / cost_us)


class _Client(SideClient):
    """IN_FLIGHT workers on one connection."""

    timeout_s = _PATIENCE_S

    def __init__(self, load: OverloadWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._overload = load
        self._session: CqlClient | None = None

    async def run(self, runtime: Runtime) -> None:
        workers = [runtime.tasks.spawn(self._ask_on(), "load") for _ in range(IN_FLIGHT)]
        while not self._overload.ended:
            if self._session is None or self._session.closed:
                self._session = await self._ready_session(runtime)
            await asyncio.sleep(_RECONNECT_S)
        await asyncio.wait(workers)
        if self._session is not None:
            self._session.close()

    async def _ready_session(self, runtime: Runtime) -> CqlClient | None:
        """A connection to some node, with both statements prepared."""
        names = [name for name in self.cluster.in_service() if self.cluster.dc_of(name) == self._dc]
        session = await self._open(runtime, self.draw.choice(names)) if names else None
        if session is None:
            return None
        try:
            async with asyncio.timeout(_CONNECT_MS / 1000):
                for text in (_INSERT, _SELECT):
                    self._prepared[text] = await session.prepare(text)
        except (TimeoutError, ConnectionError, CqlError):
            session.close()
        return session

    def failed(self, error: CqlError) -> None:
        if error.code == _UNPREPARED:
            self._prepared.clear()

    async def _ask_on(self) -> None:
        while not self._overload.ended:
            await asyncio.sleep(self.draw.expovariate(1000 / _THINK_MS))
            if self._session is not None and not self._session.closed:
                await self.ask(self._session)

    async def ask(self, session: CqlClient) -> None:
        load = self._overload
        if load.places and self.draw.random() < _READS:
            recent = load.places[-_RECENT:]
            key, clustering = self.draw.choice(recent)
            _, found, _ = await self.execute(
                session, _SELECT, [key, int_bytes(clustering)], Consistency.QUORUM
            )
            load.seen.update(_marks(found))
            return
        sent, key, clustering = load.next_write(self.name)
        values = [key, int_bytes(clustering), sent.mark]
        sent.outcome, _, error = await self.execute(session, _INSERT, values, Consistency.QUORUM)
        sent.end_ns = self.cluster.world.now_ns
        sent.refused = error.startswith(_OVERLOADED)

    async def last_asks(self, session: CqlClient) -> bool:
        for key in [b"k%d" % number for number in range(_KEYS)]:
            outcome, found, _ = await self.execute(session, _ALL, [key], Consistency.ALL)
            if outcome is not Outcome.OK:
                return False
            self._overload.last.update(_marks(found))
        return True


class _Prober(_Client):
    """Asks nothing until RECOVERY_S after the load, and then each node, one request after the other."""

    async def run(self, runtime: Runtime) -> None:
        while True:
            await asyncio.sleep(_RECONNECT_S)
            if self._overload.ended:
                break
        names = [name for name in self.cluster.in_service() if self.cluster.ready(name)]
        await asyncio.sleep(RECOVERY_S)
        for name in names:
            if self.cluster.ready(name):
                await self._probe(runtime, name)

    async def _probe(self, runtime: Runtime, name: str) -> None:
        session = await self._open(runtime, name)
        if session is None:
            self._overload.probes.append(Probe(name, NORMAL_MS, "it accepts no connection"))
            return
        world = self.cluster.world
        for text in (_INSERT, _SELECT):
            self._prepared[text] = await session.prepare(text)
        for _ in range(_PROBES):
            began_ns = world.now_ns
            sent, key, clustering = self._overload.next_write(self.name)
            values = [key, int_bytes(clustering), sent.mark]
            sent.outcome, _, error = await self.execute(session, _INSERT, values, Consistency.QUORUM)
            if sent.outcome is Outcome.OK:
                _, found, error = await self.execute(session, _SELECT, values[:2], Consistency.QUORUM)
                self._overload.seen.update(_marks(found))
            self._overload.probes.append(Probe(name, (world.now_ns - began_ns) / 1e6, error))
        session.close()


def _marks(found: wire.Body | None) -> dict[bytes, None]:
    if not isinstance(found, wire.RowsResult):
        return {}
    return {row[0]: None for row in found.rows if row[0] is not None}
