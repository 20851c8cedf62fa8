"""Clients that count, in a table of counters.

Invariant: every change has an amount of its own sign and size drawn for it; keys are few, so that replicas
count the same counters by turns.
"""

from __future__ import annotations

from lockstep.cql.wire import client as wire
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.counters import Count, check_counts
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad
from lockstep.values.ids import Consistency

TABLE = "counting"
_KEYS = tuple(b"n%d" % number for number in range(3))
_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ALL)
_CHANGE = f"UPDATE {KEYSPACE}.{TABLE} SET n = n + ? WHERE pk = ?"
_SELECT = f"SELECT n FROM {KEYSPACE}.{TABLE} WHERE pk = ?"
_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("n", "counter"),
)


class CounterWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "count", clients, 4)
        self.events: list[Count] = []

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Client(self, name, dc)

    def judge(self) -> int:
        judged = check_counts(self.events)
        changed = [event for event in self.events if event.seen is None]
        if any(event.outcome is Outcome.UNKNOWN for event in changed):
            self.cluster.fact("a counter changed with an unknown outcome")
        if any(event.outcome is Outcome.OK for event in changed):
            self.cluster.fact("a counter changed")
        return judged


class _Client(SideClient):
    def __init__(self, load: CounterWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._events = load.events

    async def ask(self, session: CqlClient) -> None:
        key, level = self.draw.choice(_KEYS), self.draw.choice(_LEVELS)
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
