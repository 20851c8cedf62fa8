"""Clients that write rows which move between keys of materialized views, in a table of their own.

Invariant: values of the column that the views are keyed by are few, and timestamps are drawn out of order, so
that rows come back to keys they had and writes overtake each other. One view is there before the rows, others
are built from rows that are written meanwhile. At the end each view has to equal its definition.
"""

from __future__ import annotations

import asyncio

from lockstep.cql.wire import client as wire
from lockstep.metadata.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.view_changes import CreateView
from lockstep.sim.checkers.views import Rows, difference
from lockstep.sim.cql_client import CqlClient
from lockstep.sim.door import KEYSPACE
from lockstep.sim.history import Outcome
from lockstep.sim.operators import Operators
from lockstep.sim.side_load import SideClient, SideLoad, int_bytes
from lockstep.values.ids import Consistency

TABLE = "viewed"
#: Name, key, and when it is made, in virtual seconds from the first on.
_VIEWS = (
    ("viewed_by_v", ("v", "pk", "ck"), 0.0),
    ("viewed_by_ck", ("ck", "pk"), 2.0),
    ("viewed_later", ("pk", "v", "ck"), 4.0),
)
_KEYS = 3
_ROWS = 3
_VALUES = 4
_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ONE)
#: Timestamps of writes lie up to this much apart from the clock.
_APART_US = 300_000
#: How long views may differ from their definitions when all has settled: the batch log replays, hints arrive.
_BEHIND_S = 15.0
#: What is done at the end, and at what level.
_LAST = (
    ("read", Consistency.ONE),
    ("write", Consistency.QUORUM),
    ("read", Consistency.ONE),
    ("read", Consistency.ALL),
)
_COLUMNS = (
    NewColumn("pk", "int", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "int"),
    NewColumn("w", "int"),
)
_BASE = f"{KEYSPACE}.{TABLE}"
_WRITES = (
    (5, f"INSERT INTO {_BASE} (pk, ck, v, w) VALUES (:pk, :ck, :v, :w) USING TIMESTAMP :at", "pk ck v w at"),
    (5, f"UPDATE {_BASE} USING TIMESTAMP :at SET v = :v WHERE pk = :pk AND ck = :ck", "at v pk ck"),
    (3, f"UPDATE {_BASE} USING TIMESTAMP :at SET w = :w WHERE pk = :pk AND ck = :ck", "at w pk ck"),
    (1, f"DELETE v FROM {_BASE} USING TIMESTAMP :at WHERE pk = :pk AND ck = :ck", "at pk ck"),
    (1, f"DELETE FROM {_BASE} USING TIMESTAMP :at WHERE pk = :pk AND ck = :ck", "at pk ck"),
    (1, f"DELETE FROM {_BASE} USING TIMESTAMP :at WHERE pk = :pk", "at pk"),
)


class ViewingLoad(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "view", clients, 6)
        self._submits = operators
        self.compared = 0
        self.settled_s = 0.0
        self.last, self.level = _LAST[0]
        operators.when_ready.append(self._make_views)

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Client(self, name, dc)

    def _make_views(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._created(runtime), "viewed.views")

    async def _created(self, runtime: Runtime) -> None:
        begun_s: float | None = None
        for name, key, at_s in _VIEWS:
            while self.cluster.newest.schema.table(KEYSPACE, name) is None:
                if self._submits.stopped:
                    return
                if not self.has_table():
                    await asyncio.sleep(0.05)
                    continue
                begun_s = self.cluster.world.now_s() if begun_s is None else begun_s
                await asyncio.sleep(max(0.0, begun_s + at_s - self.cluster.world.now_s()))
                change = CreateView(
                    *(KEYSPACE, name, runtime.random.uuid(), KEYSPACE, TABLE, (), key[:1], key[1:], (), key),
                    where=" AND ".join(f"{column} IS NOT NULL" for column in key),
                )
                await self._submits.submit(runtime, EntryKind.SCHEMA_CHANGE, ChangeSchema(change))

    def read_all(self, names: list[str]) -> None:
        """What each node has is looked at before reads of all replicas repair anything, and again when rows
        were written in peace: view updates that are replayed after faults go to all replicas."""
        for self.last, self.level in _LAST:
            self.settled_s = self.cluster.world.now_s()
            super().read_all(names)

    def judge(self) -> int:
        probes = self.cluster.world.probes.counts
        for label in ("views.derived", "views.delivered", "views.built"):
            if probes.get(label):
                self.cluster.fact(label)
        return self.compared


class _Client(SideClient):
    def __init__(self, load: ViewingLoad, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._viewing = load

    async def ask(self, session: CqlClient) -> None:
        draw = self.draw
        chosen = draw.choice([at for at, one in enumerate(_WRITES) for _ in range(one[0])])
        await self._write(session, chosen, None, (draw.randrange(_KEYS), draw.randrange(_ROWS)))

    async def _write(
        self, session: CqlClient, chosen: int, level: Consistency | None, row: tuple[int, int]
    ) -> None:
        draw = self.draw
        _, text, names = _WRITES[chosen]
        now_us = int(self.cluster.world.now_s() * 1_000_000)
        values = {
            "pk": int_bytes(row[0]),
            "ck": int_bytes(row[1]),
            "v": int_bytes(draw.randrange(_VALUES)),
            "w": int_bytes(draw.randrange(1000)),
            "at": (now_us + draw.randrange(-_APART_US, _APART_US)).to_bytes(8, "big", signed=True),
        }
        given = [values[name] for name in names.split()]
        outcome, _, error = await self.execute(session, text, given, level or draw.choice(_LEVELS))
        self.cluster.tell(
            self.name, f"{text.split()[0]} {[part.hex() for part in given]} -> {outcome} {error}"
        )

    async def last_asks(self, session: CqlClient) -> bool:
        """Compare each view with its definition over the base table; the first looks may come too early."""
        level = self._viewing.level
        if self._viewing.last == "write":
            for row in range(_KEYS * _ROWS):
                await self._write(session, 0, level, (row // _ROWS, row % _ROWS))
            return True
        base = await self._rows(session, f"SELECT pk, ck, v, w FROM {_BASE}", level)
        if base is None:
            return False
        for name, key, _ in _VIEWS:
            if self.cluster.newest.schema.table(KEYSPACE, name) is None:
                continue
            seen = await self._rows(session, f"SELECT pk, ck, v, w FROM {KEYSPACE}.{name}", level)
            if seen is None:
                return False
            late = self.cluster.world.now_s() > self._viewing.settled_s + _BEHIND_S
            if not difference(name, "v" in key, base, seen, raises=late):
                return False
            self._viewing.compared += 1
        return True

    async def _rows(self, session: CqlClient, text: str, level: Consistency) -> Rows | None:
        outcome, found, error = await self.execute(session, text, [], level)
        self.cluster.tell(self.name, f"{text} at {level.name} -> {outcome} {error}")
        if outcome is not Outcome.OK:
            return None
        assert isinstance(found, wire.RowsResult)
        return sorted(tuple(row) for row in found.rows if row[0] is not None)
