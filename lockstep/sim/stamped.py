"""Clients that leave timestamps to the servers, whose clocks are off, differ and jump.

Invariant: every write puts a mark that no other has, so what a coordinator plans for it is known by it, also
when its client is never answered. All of it is CQL without USING TIMESTAMP.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from lockstep.cql.wire import client as wire
from lockstep.metadata.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.stamps import Stamped, StampedRow, check_stamps
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.cql_client import CqlClient, CqlError
from lockstep.sim.cql_session import CQL_PORT, KNOWN_CODES
from lockstep.sim.door import KEYSPACE
from lockstep.sim.history import Change, Event, History, Look, Outcome
from lockstep.sim.operators import Operators
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation

TABLE = "stamped"
_KEYS = 3
_ROWS = 2
_THINK_MS = 30.0
_TIMEOUT_S = 2.5
_CONNECT_MS = 300
_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.LOCAL_QUORUM)
_DELETE = 0.25
#: Clocks of hosts are off by up to this much from the beginning.
_OFF_S = 0.2
_FINAL_S = 20.0
_SELECT = f"SELECT v, mark, WRITETIME(mark) FROM {KEYSPACE}.{TABLE} WHERE pk = ? AND ck = ?"
_INSERT = f"INSERT INTO {KEYSPACE}.{TABLE} (pk, ck, v, mark) VALUES (?, ?, ?, ?)"
_UPDATE = f"UPDATE {KEYSPACE}.{TABLE} SET v = null, mark = ? WHERE pk = ? AND ck = ?"


class StampedLoad:
    """`clients` of them; their history is apart from that of other clients."""

    def __init__(self, operators: Operators, clients: int) -> None:
        self.cluster: SimCluster = operators.cluster
        self.history = History()
        self.stopped = False
        self.stamps: dict[bytes, int] = {}
        self.deleting: dict[bytes, None] = {}
        self.seen: dict[int, StampedRow] = {}
        self._operators = operators
        self._names = [f"s{number}" for number in range(1, clients + 1)]
        self._last = 0
        self._written = 0
        draw = self.cluster.world.stream("stamped/clocks")
        for process in self.cluster.processes.values():
            process.clock.jump_wall((draw.random() * 2 - 1) * _OFF_S)
        self.cluster.on_serve = self._observe
        operators.when_ready.append(self._begin)

    def _begin(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._start(runtime), "stamped")

    async def _start(self, runtime: Runtime) -> None:
        columns = (
            NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
            NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
            NewColumn("v", "blob"),
            NewColumn("mark", "blob"),
        )
        change = ChangeSchema(CreateTable(KEYSPACE, TABLE, runtime.random.uuid(), columns))
        while self.cluster.newest.schema.table(KEYSPACE, TABLE) is None:
            if self._operators.stopped:
                return
            await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, change)
        world, dcs = self.cluster.world, self.cluster.dcs()
        for number, name in enumerate(self._names, start=1):
            client = _Client(self, name, dcs[(number - 1) % len(dcs)])
            world.process(name, f"127.0.3.{number}").start(client.run)

    def _observe(self, node: Node) -> None:
        """Learn the timestamps that this node's coordinator gives."""
        coordinator = node.coordinator
        for name in ("write", "begin_write", "write_told"):
            setattr(coordinator, name, self._observed(node, getattr(coordinator, name)))

    def _observed(self, node: Node, write: Callable[..., Any]) -> Callable[..., Any]:
        def planned(mutation: Mutation, *others: Any, **named: Any) -> Any:
            table = node.cluster.table(mutation.table_id)
            if table is not None and table.name == TABLE:
                column = table.by_name["mark"].id
                for row in mutation.rows:
                    self.stamps.update(
                        {c.value: c.timestamp_us for c in row.cells if c.column == column and c.value}
                    )
            return write(mutation, *others, **named)

        return planned

    @property
    def idle(self) -> bool:
        processes = self.cluster.world.processes
        return not any(name in processes and processes[name].alive for name in self._names)

    def next_mark(self, name: str, deletes: bool) -> bytes:
        self._written += 1
        mark = f"{self._written}/{name}".encode()
        if deletes:
            self.deleting[mark] = None
        return mark

    def read_all(self, names: list[str]) -> None:
        """When all has settled: every row through each of these nodes, until it is answered."""
        if self.cluster.newest.schema.table(KEYSPACE, TABLE) is None:
            return
        self._last = len(self.history.events)
        for name in names:
            client = _Client(self, f"final-stamped-{name}", self.cluster.dc_of(name))
            self.cluster.world.call(
                lambda runtime, client=client, name=name: client.read_all(runtime, name),  # type: ignore[misc]
                name=f"final-stamped-{name}",
                limit_s=1000.0,
            )

    def judge(self) -> int:
        """How many reads were judged. Raises Violation."""
        events = self.history.events
        history = Stamped(events, self.stamps, self.deleting, self.seen, self._last)
        judged = check_stamps(history, _ROWS)
        written = [
            (event, self.stamps[event.request.puts[0][1]])
            for event in events
            if isinstance(event.request, Change) and event.outcome is Outcome.OK
        ]
        for (one, stamp), (other, later) in itertools.pairwise(written):
            if one.end_ns < other.start_ns and later < stamp:
                self.cluster.fact("a later write has an earlier timestamp")
        return judged


class _Client:
    def __init__(self, load: StampedLoad, name: str, dc: str) -> None:
        self._load = load
        self._cluster = load.cluster
        self._name = name
        self._dc = dc
        self._scope = dc if load.cluster.shape.dcs > 1 else ""
        self._draw = load.cluster.world.stream(f"stamped/{name}")
        self._prepared: dict[str, bytes] = {}

    async def run(self, runtime: Runtime) -> None:
        session: CqlClient | None = None
        while not self._load.stopped:
            await asyncio.sleep(self._draw.expovariate(1000 / _THINK_MS))
            if session is None or session.closed or self._draw.random() < 0.2:
                session = await self._connect(runtime, session)
            if session is not None:
                await self._ask(session, self._draw.choice(_LEVELS))
        if session is not None:
            session.close()

    async def _connect(self, runtime: Runtime, former: CqlClient | None) -> CqlClient | None:
        if former is not None:
            former.close()
        names = [name for name in self._cluster.in_service() if self._cluster.dc_of(name) == self._dc]
        return await self._open(runtime, self._draw.choice(names)) if names else None

    async def _open(self, runtime: Runtime, name: str) -> CqlClient | None:
        host = self._cluster.processes[name].host
        self._prepared = {}
        try:
            return await CqlClient.connect(runtime, host, CQL_PORT, _CONNECT_MS)
        except (OSError, TimeoutError, CqlError):
            return None

    async def read_all(self, runtime: Runtime, name: str) -> None:
        world = self._cluster.world
        deadline_s = world.now_s() + _FINAL_S
        session: CqlClient | None = None
        for key, row in [(b"p%d" % key, row) for key in range(_KEYS) for row in range(_ROWS)]:
            while True:
                if session is None or session.closed:
                    session = await self._open(runtime, name)
                look = Look(TABLE, key, row, Consistency.ALL, int(_TIMEOUT_S * 1000))
                if session is not None and (await self._look(session, look)).outcome is Outcome.OK:
                    break
                if world.now_s() > deadline_s:
                    raise Violation("LIVENESS", f"{look.text()} through {name} does not succeed")
                await asyncio.sleep(0.5)
        if session is not None:
            session.close()

    async def _ask(self, session: CqlClient, level: Consistency) -> None:
        draw = self._draw
        key, row = b"p%d" % draw.randrange(_KEYS), draw.randrange(_ROWS)
        if draw.random() < 0.5:
            await self._look(session, Look(TABLE, key, row, level, int(_TIMEOUT_S * 1000)))
            return
        deletes = draw.random() < _DELETE
        mark = self._load.next_mark(self._name, deletes)
        change = Change(TABLE, key, 0, level, int(_TIMEOUT_S * 1000), ((row, mark),))
        event = self._began(change)
        if deletes:
            await self._execute(session, event, _UPDATE, [mark, key, _int(row)])
        else:
            await self._execute(session, event, _INSERT, [key, _int(row), mark, mark])

    async def _look(self, session: CqlClient, look: Look) -> Event:
        assert look.key is not None and look.clustering is not None
        event, at = self._began(look), len(self._load.history.events) - 1
        found = await self._execute(session, event, _SELECT, [look.key, _int(look.clustering)])
        if event.rows:
            assert isinstance(found, wire.RowsResult)
            value, mark, stamp = found.rows[0]
            assert mark is not None and stamp is not None
            self._load.seen[at] = (mark, value is not None, int.from_bytes(stamp, "big", signed=True))
        return event

    def _began(self, request: Change | Look) -> Event:
        return self._load.history.began(self._name, request, self._cluster.world.now_ns, self._scope)

    async def _execute(
        self, session: CqlClient, event: Event, text: str, values: list[bytes]
    ) -> wire.Body | None:
        """Send, wait, record."""
        history, world = self._load.history, self._cluster.world
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if text not in self._prepared:
                    self._prepared[text] = await session.prepare(text)
                found = await session.execute(self._prepared[text], values, event.request.consistency)
        except (TimeoutError, ConnectionError) as error:
            history.ended(event, world.now_ns, Outcome.UNKNOWN, error=type(error).__name__)
            session.close()
            return None
        except CqlError as error:
            self._prepared.clear()
            outcome = Outcome.FAILED if error.code in KNOWN_CODES else Outcome.UNKNOWN
            history.ended(event, world.now_ns, outcome, error=str(error))
            return None
        history.ended(event, world.now_ns, Outcome.OK, _rows(event.request, found))
        return found


def _rows(request: Change | Look, found: wire.Body) -> tuple[tuple[bytes, int, bytes], ...]:
    if isinstance(request, Change):
        return ()
    assert isinstance(found, wire.RowsResult) and request.key is not None and request.clustering is not None
    return tuple((request.key, request.clustering, row[1] or b"") for row in found.rows)


def _int(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)
