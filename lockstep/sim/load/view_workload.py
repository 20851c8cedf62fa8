"""Clients that write rows which move between keys of materialized views, in a table of their own.

Invariant: values of the column that the views are keyed by are few, and timestamps are drawn out of order, so
that rows come back to keys they had and writes overtake each other. One view is there before the rows, others
are built from rows that are written meanwhile. At the end each view has to equal its definition.
"""

from __future__ import annotations

from functools import partial

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.view_changes import CreateView
from lockstep.sim.checkers.views import Rows, difference
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.derived_load import DerivedClient, DerivedLoad, Later
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, int_bytes
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
#: An empty one is a key of a view like any other.
_VALUES = (b"", b"a", b"b", b"c")
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
    NewColumn("v", "blob"),
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


class ViewWorkload(DerivedLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(
            operators,
            _COLUMNS,
            table=TABLE,
            prefix="view",
            clients=clients,
            host=6,
            labels=("views.derived", "views.delivered", "views.built"),
        )
        self.last, self.level = _LAST[0]

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Client(self, name, dc)

    def has_view(self, name: str) -> bool:
        return self.cluster.newest.schema.table(KEYSPACE, name) is not None

    def later(self) -> list[Later]:
        return [
            Later(at_s, partial(self.has_view, name), partial(_create, name, key))
            for name, key, at_s in _VIEWS
        ]

    def read_all(self, names: list[str]) -> None:
        """What each node has is looked at before reads of all replicas repair anything, and again when rows
        were written in peace: view updates that are replayed after faults go to all replicas."""
        for self.last, self.level in _LAST:
            super().read_all(names)


def _create(name: str, key: tuple[str, ...], runtime: Runtime) -> ChangeSchema:
    return ChangeSchema(
        CreateView(
            *(KEYSPACE, name, runtime.random.uuid(), KEYSPACE, TABLE, (), key[:1], key[1:], (), key),
            where=" AND ".join(f"{column} IS NOT NULL" for column in key),
        )
    )


class _Client(DerivedClient):
    def __init__(self, load: ViewWorkload, name: str, dc: str) -> None:
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
        values = {
            "pk": int_bytes(row[0]),
            "ck": int_bytes(row[1]),
            "v": _VALUES[draw.randrange(len(_VALUES))],
            "w": int_bytes(draw.randrange(1000)),
        }
        await self.write(session, text, names, values, level)

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
            if not self._viewing.has_view(name):
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
        found = await self.rows(session, text, [], level)
        return found and sorted(row for row in found if row[0] is not None)
