"""Clients that leave timestamps to the servers, whose clocks are off, differ and jump.

Invariant: every write puts a mark that no other has, so what a coordinator plans for it is known by it, also
when its client is never answered. All of it is CQL without USING TIMESTAMP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.coordination.writes import Begun
from lockstep.cql.wire import client as wire
from lockstep.node.node import Node
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.stamps import Stamped, StampedRow, check_stamps
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Change, Event, History, Look, Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import TIMEOUT_S, SideClient, SideLoad, int_bytes
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation

TABLE = "stamped"
_KEYS = 3
_ROWS = 2
_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.LOCAL_QUORUM)
_DELETE = 0.25
#: Clocks of hosts are off by up to this much from the beginning.
_OFF_S = 0.2
_SELECT = f"SELECT v, mark, WRITETIME(mark) FROM {KEYSPACE}.{TABLE} WHERE pk = ? AND ck = ?"
_INSERT = f"INSERT INTO {KEYSPACE}.{TABLE} (pk, ck, v, mark) VALUES (?, ?, ?, ?)"
_UPDATE = f"UPDATE {KEYSPACE}.{TABLE} SET v = null, mark = ? WHERE pk = ? AND ck = ?"


_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "blob"),
    NewColumn("mark", "blob"),
)


class TimestampWorkload(SideLoad):
    """`clients` of them; their history is apart from that of other clients."""

    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "s", clients, 3)
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
        return _Client(self, name, dc)

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
        if table is not None and table.name == TABLE:
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


class _Client(SideClient):
    def __init__(self, load: TimestampWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._stamped = load

    async def last_asks(self, session: CqlClient) -> bool:
        for key, row in [(b"p%d" % key, row) for key in range(_KEYS) for row in range(_ROWS)]:
            look = Look(TABLE, key, row, Consistency.ALL, int(TIMEOUT_S * 1000))
            if (await self._look(session, look)).outcome is not Outcome.OK:
                return False
        return True

    async def ask(self, session: CqlClient) -> None:
        draw, level = self.draw, self.draw.choice(_LEVELS)
        key, row = b"p%d" % draw.randrange(_KEYS), draw.randrange(_ROWS)
        if draw.random() < 0.5:
            await self._look(session, Look(TABLE, key, row, level, int(TIMEOUT_S * 1000)))
            return
        deletes = draw.random() < _DELETE
        mark = self._stamped.next_mark(self.name, deletes)
        change = Change(TABLE, key, 0, level, int(TIMEOUT_S * 1000), ((row, mark),))
        event = self._began(change)
        if deletes:
            await self._execute(session, event, _UPDATE, [mark, key, int_bytes(row)])
        else:
            await self._execute(session, event, _INSERT, [key, int_bytes(row), mark, mark])

    async def _look(self, session: CqlClient, look: Look) -> Event:
        assert look.key is not None and look.clustering is not None
        event, at = self._began(look), len(self._stamped.history.events) - 1
        found = await self._execute(session, event, _SELECT, [look.key, int_bytes(look.clustering)])
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
