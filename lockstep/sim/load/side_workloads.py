"""Clients beside the workload with tables of their own: batches, counters, and timestamps left to the
servers.

Invariant: a batch, logged or not, inserts rows that nothing else writes, and nobody reads them before the
end, so nothing but the batch, its log and hints brings them to replicas. Every change of a counter has an
amount of its own sign and size drawn for it; keys are few, so that replicas count the same counters by turns.
Every write without USING TIMESTAMP puts a mark that no other has, so what a coordinator plans for it is known
by it, also when its client is never answered; clocks are off, differ and jump meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.coordination.writes import Begun
from lockstep.cql.wire import client as wire
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.registers import Count, check_counts
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.settled import Batched, Row, check_batches
from lockstep.sim.checkers.stamps import Stamped, StampedRow, check_stamps
from lockstep.sim.checkers.tracked import has_open_ids
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE, clustering_bytes
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Change, Event, History, Look, Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import TIMEOUT_S, SideClient, SideLoad, int_bytes
from lockstep.topology.roles import readers
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.rows import Mutation
from lockstep.values.tokens import token_of

TABLES = ("batched", "batched_too")
_PLACES = tuple((table, b"b%d" % number) for table in TABLES for number in range(4))
_PARTS = (2, 3, 4)
_LOGGED = 0.7
_BATCH_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ONE, Consistency.ALL, Consistency.ANY)
#: Virtual seconds in which everything that is owed reaches its replicas on a healed cluster.
_OWED_S = 60.0
_BATCH_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "blob"),
)


class BatchWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLES[0], _BATCH_COLUMNS, "batch", clients, 6)
        self.batches: list[Batched] = []
        #: Number of a batch -> the incarnation that coordinated it.
        self.coordinators: dict[int, str] = {}
        #: Whether a range with this token was ever recorded as lacking writes.
        self.is_recorded: Callable[[int], bool] = lambda token: False
        self._contents: dict[NodeId, DurableContent] = {}
        self._judged = 0
        self._numbers = 0

    def make_client(self, name: str, dc: str) -> SideClient:
        return _BatchClient(self, name, dc)

    async def _start(self, runtime: Runtime) -> None:
        other = ChangeSchema(CreateTable(KEYSPACE, TABLES[1], runtime.random.uuid(), _BATCH_COLUMNS))
        while self._table_id(TABLES[1]) is None and not self._operators.stopped:
            await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, other)
        await super()._start(runtime)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def read_all(self, names: list[str]) -> None:
        """Wait until nothing is owed, and look at the disks: a read would repair what it finds."""
        if not self.has_table():
            return
        world = self.cluster.world
        world.run_for(_OWED_S, done=lambda: not self._owed())
        world.check()
        if owed := self._owed():
            raise Violation("LIVENESS", f"{_OWED_S:.0f} s after settling {owed[0]}")
        for name in self.cluster.in_service():
            content = DurableContent(self.cluster.processes[name].disk)
            content.refresh()
            self._contents[NodeId(self.cluster.node_id(name))] = content
        alive = {process.label for process in self.cluster.processes.values() if process.alive}
        self._judged = check_batches(
            [
                msgspec.structs.replace(
                    batch,
                    survived=self.coordinators[batch.number] in alive,
                    needs=0 if self._is_recorded(batch) else batch.needs,
                )
                for batch in self.batches
            ],
            self._held,
        )

    def _is_recorded(self, batch: Batched) -> bool:
        """Whether a node left with hints of a range of it: it may have had the only copy."""
        return any(self.is_recorded(token_of(key)) for _, key, _ in batch.rows)

    def judge(self) -> int:
        for batch in self.batches:
            if batch.logged and batch.outcome is not Outcome.FAILED:
                is_known = batch.outcome is Outcome.OK
                self.cluster.fact("a batch was written" if is_known else "a batch with an unknown outcome")
        return self._judged

    def _owed(self) -> list[str]:
        """What nodes in service still keep for others, as sentences."""
        found = []
        for name in self.cluster.in_service():
            node = self.cluster.nodes[name]
            if count := node.data.hints.store.count():
                found.append(f"{name} keeps {count} hints for {sorted(node.data.hints.store.pending)}")
            if count := len(node.data.batch_store):
                found.append(f"{name} keeps {count} batches")
        if self.cluster.shape.tracked and has_open_ids(self.cluster):
            found.append("some ids are not held by all")
        return found

    def _table_id(self, name: str) -> int | None:
        table = self.cluster.newest.schema.table(KEYSPACE, name)
        return None if table is None else table.id

    def _held(self, batch: Batched, row: Row) -> tuple[list[NodeId], list[NodeId]]:
        table, key, number = row
        table_id, cluster = self._table_id(table), self.cluster.newest
        assert table_id is not None, "nobody drops these tables"
        placed = next(one for one in cluster.schema.by_name[KEYSPACE].tables if one.id == table_id)
        ring = cluster.placements.ring(cluster.schema.group_of(placed))
        keeping = readers(cluster, ring, ring.range_at(token_of(key)))
        clustering = clustering_bytes(number)
        holders = [n for n, held in self._contents.items() if held.state(table_id, key, clustering)[1]]
        return list(keeping), holders


class _BatchClient(SideClient):
    def __init__(self, load: BatchWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._batching = load
        self._coordinator = ""

    async def _open(self, runtime: Runtime, name: str) -> CqlClient | None:
        self._coordinator = name
        return await super()._open(runtime, name)

    async def ask(self, session: CqlClient) -> None:
        draw, load, number = self.draw, self._batching, self._batching.next_number()
        logged, level = draw.random() < _LOGGED, draw.choice(_BATCH_LEVELS)
        places = list(_PLACES)
        draw.shuffle(places)
        rows = [(table, key, number) for table, key in sorted(places[: draw.choice(_PARTS)])]
        parts = [f"INSERT INTO {KEYSPACE}.{table} (pk, ck, v) VALUES (?, ?, ?)" for table, _, _ in rows]
        text = "; ".join(
            [f"BEGIN {'' if logged else 'UNLOGGED '}BATCH {parts[0]}", *parts[1:], "APPLY BATCH"]
        )
        value = f"{number}/{self.name}".encode()
        values = [part for _, key, _ in rows for part in (key, int_bytes(number), value)]
        load.coordinators[number] = self.cluster.processes[self._coordinator].label
        outcome, _, error = await self.execute(session, text, values, level)
        load.batches.append(
            Batched(number, self.name, tuple(rows), logged, outcome, self._needs(level), False)
        )
        kind = "logged" if logged else "unlogged"
        self.cluster.tell(self.name, f"{kind} batch {number} {level.name} -> {outcome} {error}")

    def _needs(self, level: Consistency) -> int:
        replicas = self.cluster.shape.factor * self.cluster.shape.dcs
        if level is Consistency.ALL:
            return replicas
        return replicas // 2 + 1 if level is Consistency.QUORUM else 1

    async def last_asks(self, session: CqlClient) -> bool:
        return True


COUNTER_TABLE = "counting"
_KEYS = tuple(b"n%d" % number for number in range(3))
_COUNTER_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ALL)
_CHANGE = f"UPDATE {KEYSPACE}.{COUNTER_TABLE} SET n = n + ? WHERE pk = ?"
_SELECT = f"SELECT n FROM {KEYSPACE}.{COUNTER_TABLE} WHERE pk = ?"
_COUNTER_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("n", "counter"),
)


class CounterWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, COUNTER_TABLE, _COUNTER_COLUMNS, "count", clients, 4)
        self.events: list[Count] = []

    def make_client(self, name: str, dc: str) -> SideClient:
        return _CounterClient(self, name, dc)

    def judge(self) -> int:
        judged = check_counts(self.events)
        changed = [event for event in self.events if event.seen is None]
        if any(event.outcome is Outcome.UNKNOWN for event in changed):
            self.cluster.fact("a counter changed with an unknown outcome")
        if any(event.outcome is Outcome.OK for event in changed):
            self.cluster.fact("a counter changed")
        return judged


class _CounterClient(SideClient):
    def __init__(self, load: CounterWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._events = load.events

    async def ask(self, session: CqlClient) -> None:
        key, level = self.draw.choice(_KEYS), self.draw.choice(_COUNTER_LEVELS)
        if self.draw.random() < 0.4:
            await self._read(session, key, level, settled=False)
            return
        amount = self.draw.choice((1, 3, 10, -2))
        start_ns = self.cluster.world.now_ns
        outcome, _, error = await self.execute(
            session, _CHANGE, [amount.to_bytes(8, "big", signed=True), key], level
        )
        end_ns = self.cluster.world.now_ns
        self._events.append(Count(self.name, key, start_ns, end_ns, outcome, amount))
        self.cluster.tell(self.name, f"counts {key.decode()} {amount:+d} {level.name} -> {outcome} {error}")

    async def last_asks(self, session: CqlClient) -> bool:
        for key in _KEYS:
            if not await self._read(session, key, Consistency.ALL, settled=True):
                return False
        return True

    async def _read(self, session: CqlClient, key: bytes, level: Consistency, *, settled: bool) -> bool:
        start_ns = self.cluster.world.now_ns
        outcome, found, error = await self.execute(session, _SELECT, [key], level)
        end_ns = self.cluster.world.now_ns
        seen = None
        if outcome is Outcome.OK:
            assert isinstance(found, wire.RowsResult)
            seen = int.from_bytes(found.rows[0][0] or b"", "big", signed=True) if found.rows else 0
            self._events.append(Count(self.name, key, start_ns, end_ns, outcome, seen=seen, settled=settled))
        self.cluster.tell(self.name, f"reads {key.decode()} {level.name} -> {outcome} {seen} {error}")
        return outcome is Outcome.OK


TIMESTAMP_TABLE = "stamped"
_TIMESTAMP_KEYS = 3
_ROWS = 2
_TIMESTAMP_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.LOCAL_QUORUM)
_DELETE = 0.25
#: Clocks of hosts are off by up to this much from the beginning.
_OFF_S = 0.2
_TIMESTAMP_SELECT = (
    f"SELECT v, mark, WRITETIME(mark) FROM {KEYSPACE}.{TIMESTAMP_TABLE} WHERE pk = ? AND ck = ?"
)
_INSERT = f"INSERT INTO {KEYSPACE}.{TIMESTAMP_TABLE} (pk, ck, v, mark) VALUES (?, ?, ?, ?)"
_UPDATE = f"UPDATE {KEYSPACE}.{TIMESTAMP_TABLE} SET v = null, mark = ? WHERE pk = ? AND ck = ?"


_TIMESTAMP_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "blob"),
    NewColumn("mark", "blob"),
)


class TimestampWorkload(SideLoad):
    """`clients` of them; their history is apart from that of other clients."""

    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TIMESTAMP_TABLE, _TIMESTAMP_COLUMNS, "s", clients, 3)
        self.history = History()
        self.stamps: dict[bytes, int] = {}
        self.deleting: dict[bytes, None] = {}
        self.seen: dict[int, StampedRow] = {}
        self._last = 0
        self._written = 0
        draw = self.cluster.world.stream("stamped/clocks")
        for process in self.cluster.processes.values():
            process.clock.jump_wall((draw.random() * 2 - 1) * _OFF_S)
        self.cluster.on_serve = self._observe

    def make_client(self, name: str, dc: str) -> SideClient:
        return _TimestampClient(self, name, dc)

    def _observe(self, node: Node) -> None:
        """Learn the timestamps that this node's coordinator gives."""
        coordinator = node.data.coordinator
        for name in ("write", "begin_write"):
            setattr(coordinator, name, self._observed(node, getattr(coordinator, name)))
        submit_batch = coordinator.submit_batch

        def observed(writes: Sequence[Begun], timeout_ms: float) -> None:
            for write in writes:
                self._note(node, write.mutation)
            submit_batch(writes, timeout_ms)

        coordinator.submit_batch = observed

    def _observed(self, node: Node, write: Callable[..., Any]) -> Callable[..., Any]:
        def planned(mutation: Mutation, *others: Any, **named: Any) -> Any:
            self._note(node, mutation)
            return write(mutation, *others, **named)

        return planned

    def _note(self, node: Node, mutation: Mutation) -> None:
        table = node.log.cluster.table(mutation.table_id)
        if table is not None and table.name == TIMESTAMP_TABLE:
            column = table.by_name["mark"].id
            for row in mutation.rows:
                self.stamps.update(
                    {c.value: c.timestamp_us for c in row.cells if c.column == column and c.value}
                )

    def next_mark(self, name: str, deletes: bool) -> bytes:
        self._written += 1
        mark = f"{self._written}/{name}".encode()
        if deletes:
            self.deleting[mark] = None
        return mark

    def read_all(self, names: list[str]) -> None:
        self._last = len(self.history.events)
        super().read_all(names)

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
        if len(set(self.stamps.values())) < len(self.stamps):
            self.cluster.fact("two writes have one timestamp")
        return judged


class _TimestampClient(SideClient):
    def __init__(self, load: TimestampWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._stamped = load

    async def last_asks(self, session: CqlClient) -> bool:
        for key, row in [(b"p%d" % key, row) for key in range(_TIMESTAMP_KEYS) for row in range(_ROWS)]:
            look = Look(TIMESTAMP_TABLE, key, row, Consistency.ALL, int(TIMEOUT_S * 1000))
            if (await self._look(session, look)).outcome is not Outcome.OK:
                return False
        return True

    async def ask(self, session: CqlClient) -> None:
        draw, level = self.draw, self.draw.choice(_TIMESTAMP_LEVELS)
        key, row = b"p%d" % draw.randrange(_TIMESTAMP_KEYS), draw.randrange(_ROWS)
        if draw.random() < 0.5:
            await self._look(session, Look(TIMESTAMP_TABLE, key, row, level, int(TIMEOUT_S * 1000)))
            return
        deletes = draw.random() < _DELETE
        mark = self._stamped.next_mark(self.name, deletes)
        change = Change(TIMESTAMP_TABLE, key, 0, level, int(TIMEOUT_S * 1000), ((row, mark),))
        event = self._began(change)
        if deletes:
            await self._execute(session, event, _UPDATE, [mark, key, int_bytes(row)])
        else:
            await self._execute(session, event, _INSERT, [key, int_bytes(row), mark, mark])

    async def _look(self, session: CqlClient, look: Look) -> Event:
        assert look.key is not None and look.clustering is not None
        event, at = self._began(look), len(self._stamped.history.events) - 1
        found = await self._execute(session, event, _TIMESTAMP_SELECT, [look.key, int_bytes(look.clustering)])
        if event.rows:
            assert isinstance(found, wire.RowsResult)
            value, mark, stamp = found.rows[0]
            assert mark is not None and stamp is not None
            self._stamped.seen[at] = (mark, value is not None, int.from_bytes(stamp, "big", signed=True))
        return event

    def _began(self, request: Change | Look) -> Event:
        return self._stamped.history.began(self.name, request, self.cluster.world.now_ns, self.scope)

    async def _execute(
        self, session: CqlClient, event: Event, text: str, values: list[bytes]
    ) -> wire.Body | None:
        """Send, wait, record."""
        outcome, found, error = await self.execute(session, text, values, event.request.consistency)
        rows = _rows(event.request, found) if outcome is Outcome.OK else ()
        self._stamped.history.ended(event, self.cluster.world.now_ns, outcome, rows, error)
        return found


def _rows(request: Change | Look, found: wire.Body | None) -> tuple[tuple[bytes, int, bytes], ...]:
    if isinstance(request, Change):
        return ()
    assert isinstance(found, wire.RowsResult) and request.key is not None and request.clustering is not None
    return tuple((request.key, request.clustering, row[1] or b"") for row in found.rows)
