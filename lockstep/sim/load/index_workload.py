"""Clients that write rows which secondary indexes find, in a table of their own.

Invariant: indexed values are few and timestamps are drawn out of order, so that rows come back to values they
had; some expire. One index is there before most rows, others are built from rows that are written meanwhile.
At the end each index has to answer what a scan finds, asked first, while replicas may differ yet.
"""

from __future__ import annotations

from functools import partial
from operator import eq, le
from typing import Any, Final

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import NewColumn
from lockstep.schema.index_changes import CreateIndex, IndexedPart
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.indexes import Row, check_answer, check_index
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.derived_load import DerivedClient, DerivedLoad, Later
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, int_bytes
from lockstep.values.ids import Consistency

TABLE: Final = "indexed"
#: Column, class, and when it is made, in virtual seconds from the first on.
_INDEXES = (("v", "", 0.0), ("s", "", 3.0), ("w", "StorageAttachedIndex", 8.0))
_KEYS = 4
#: So many that some are not written any more after the last index is made.
_ROWS = 20
_VALUES = 3
_TTL_MAX_S = 3
#: What expires has done so by then, by the clock of every node.
_EXPIRED_S = 2 * _TTL_MAX_S
_COLUMNS = (
    NewColumn("pk", "int", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("s", "int", ColumnKind.STATIC),
    NewColumn("v", "int"),
    NewColumn("w", "int"),
)
_NAMES = [column.name for column in _COLUMNS]
_PATH = f"{KEYSPACE}.{TABLE}"
_SCAN = f"SELECT {', '.join(_NAMES)} FROM {_PATH}"
_ROW = "WHERE pk = :pk AND ck = :ck"
_WRITES = (
    (5, f"INSERT INTO {_PATH} (pk, ck, v, w) VALUES (:pk, :ck, :v, :w) USING TIMESTAMP :at", "pk ck v w at"),
    (2, f"UPDATE {_PATH} USING TIMESTAMP :at AND TTL :ttl SET v = :v, w = :w {_ROW}", "at ttl v w pk ck"),
    (5, f"UPDATE {_PATH} USING TIMESTAMP :at SET v = :v {_ROW}", "at v pk ck"),
    (3, f"UPDATE {_PATH} USING TIMESTAMP :at SET w = :w {_ROW}", "at w pk ck"),
    (2, f"UPDATE {_PATH} USING TIMESTAMP :at SET s = :s WHERE pk = :pk", "at s pk"),
    (1, f"DELETE v FROM {_PATH} USING TIMESTAMP :at {_ROW}", "at pk ck"),
    (1, f"DELETE FROM {_PATH} USING TIMESTAMP :at {_ROW}", "at pk ck"),
    (1, f"DELETE FROM {_PATH} USING TIMESTAMP :at WHERE pk = :pk AND ck > :ck", "at pk ck"),
    (1, f"DELETE FROM {_PATH} USING TIMESTAMP :at WHERE pk = :pk", "at pk"),
)
#: How each index is asked.
_COMPARED = {"v": ("=", eq), "w": (">=", le), "s": ("=", eq)}


class IndexWorkload(DerivedLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(
            operators,
            _COLUMNS,
            table=TABLE,
            prefix="index",
            clients=clients,
            host=7,
            labels=("index.built", "index.stale_removed", "index.confirmed"),
        )

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Client(self, name, dc)

    def has_index(self, column: str) -> bool:
        table = self.cluster.newest.schema.table(KEYSPACE, TABLE)
        return table is not None and any(index.name == f"{TABLE}_{column}" for index in table.indexes)

    def later(self) -> list[Later]:
        return [
            Later(at_s, partial(self.has_index, column), partial(_create, column, class_))
            for column, class_, at_s in _INDEXES
        ]


def _create(column: str, class_: str, _runtime: Runtime) -> ChangeSchema:
    name, parts = f"{TABLE}_{column}", (IndexedPart(column),)
    return ChangeSchema(CreateIndex(KEYSPACE, TABLE, name, parts, class_, custom=bool(class_)))


class _Client(DerivedClient):
    def __init__(self, load: IndexWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._indexing = load

    async def ask(self, session: CqlClient) -> None:
        draw = self.draw
        if draw.random() < 0.2:
            column = draw.choice(_INDEXES)[0]
            if self._indexing.has_index(column):
                await self._by_index(session, column, draw.randrange(_VALUES), self.draw_level())
            return
        _, text, names = draw.choice([one for one in _WRITES for _ in range(one[0])])
        values = {
            "pk": int_bytes(draw.randrange(_KEYS)),
            "ck": int_bytes(draw.randrange(_ROWS)),
            "s": int_bytes(draw.randrange(_VALUES)),
            "v": int_bytes(draw.randrange(_VALUES)),
            "w": int_bytes(draw.randrange(_VALUES)),
            "ttl": int_bytes(draw.randint(1, _TTL_MAX_S)),
        }
        await self.write(session, text, names, values)

    async def last_asks(self, session: CqlClient) -> bool:
        """By each index, and by a scan after that, which may mend what replicas lack."""
        if self.cluster.world.now_s() < self._indexing.settled_s + _EXPIRED_S:
            return False
        answers = []
        for column, _, _ in _INDEXES:
            for value in range(_VALUES) if self._indexing.has_index(column) else ():
                found = await self._by_index(session, column, value, Consistency.ALL)
                if found is None:
                    return False
                answers.append((column, value, found))
        scanned = await self.rows(session, _SCAN, [], Consistency.ALL)
        if scanned is None:
            return False
        for column, value, found in answers:
            check_index(f"{column} of {value}", _NAMES.index(column), _wanted(column, value), scanned, found)
            self._indexing.compared += 1
        return True

    async def _by_index(
        self, session: CqlClient, column: str, value: int, level: Consistency
    ) -> list[Row] | None:
        text = f"{_SCAN} WHERE {column} {_COMPARED[column][0]} :value"
        found = await self.rows(session, text, [int_bytes(value)], level)
        if found is not None:
            check_answer(f"{column} of {value}", _NAMES.index(column), _wanted(column, value), found)
        return found


def _wanted(column: str, value: int) -> Any:
    return partial(_COMPARED[column][1], int_bytes(value))
