"""Clients that write tables of which something follows, views or indexes, made one after the other.

Invariant: values that are indexed, or that views are keyed by, are few and timestamps are drawn out of order,
so that writes overtake each other and rows come back to values they had; some expire. Some of what follows is
there before the rows, the rest is built from rows that are written meanwhile. At the end each index answers
what a scan finds, asked first, while replicas may differ yet, and each view equals its definition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import eq, le
from typing import Any, Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import CreateIndex, IndexedPart
from lockstep.schema.view_changes import CreateView
from lockstep.sim.checkers.settled import IndexRow, Rows, check_answer, check_index, difference
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad, int_bytes
from lockstep.values.ids import Consistency

_LEVELS: Final = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ONE)
#: Timestamps of writes lie up to this much apart from the clock.
_APART_US = 300_000


class Later(msgspec.Struct, frozen=True):
    """Something that is made `at_s` virtual seconds after the first of its kind could be."""

    at_s: float
    is_there: Callable[[], bool]
    change: Callable[[Runtime], ChangeSchema]


class DerivedLoad(SideLoad):
    """`labels`: places that runs have to reach now and then."""

    def __init__(
        self,
        operators: Operators,
        columns: tuple[NewColumn, ...],
        *,
        table: str,
        prefix: str,
        clients: int,
        host: int,
        labels: Sequence[str],
    ) -> None:
        super().__init__(operators, table, columns, prefix, clients, host)
        self._labels = labels
        self.compared = 0
        self.settled_s = 0.0
        #: Since when the first of what is made could be; 0 before.
        self.begun_s = 0.0
        operators.when_ready.append(self._make_later)

    def later(self) -> Sequence[Later]:
        """What is made, in this order."""
        raise AssertionError("abstract")

    def _make_later(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._made(runtime), f"{self.table}.later")

    async def _made(self, runtime: Runtime) -> None:
        world = self.cluster.world
        for one in self.later():
            while not one.is_there():
                if self._operators.stopped:
                    return
                if not self.has_table():
                    await asyncio.sleep(0.05)
                    continue
                self.begun_s = self.begun_s or world.now_s()
                await asyncio.sleep(max(0.0, self.begun_s + one.at_s - world.now_s()))
                await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, one.change(runtime))

    def read_all(self, names: list[str]) -> None:
        self.settled_s = self.cluster.world.now_s()
        super().read_all(names)

    def judge(self) -> int:
        for label in self._labels:
            if self.cluster.world.probes.counts.get(label):
                self.cluster.fact(label)
        return self.compared


class DerivedClient(SideClient):
    async def write(
        self,
        session: CqlClient,
        text: str,
        names: str,
        values: Mapping[str, bytes],
        level: Consistency | None = None,
    ) -> None:
        """Send a statement; `names` are its markers, `at` among them is a timestamp. A level is drawn if none
        is given."""
        now_us = int(self.cluster.world.now_s() * 1_000_000)
        at_us = now_us + self.draw.randrange(-_APART_US, _APART_US)
        stamped = {**values, "at": at_us.to_bytes(8, "big", signed=True)}
        given = [stamped[name] for name in names.split()]
        outcome, _, error = await self.execute(session, text, given, level or self.draw_level())
        self.cluster.tell(
            self.name, f"{text.split()[0]} {[part.hex() for part in given]} -> {outcome} {error}"
        )

    def draw_level(self) -> Consistency:
        return self.draw.choice(_LEVELS)

    async def rows(
        self, session: CqlClient, text: str, values: list[bytes], level: Consistency
    ) -> list[tuple[Any, ...]] | None:
        """None when there was no answer."""
        outcome, found, error = await self.execute(session, text, values, level)
        self.cluster.tell(self.name, f"{text} {values} at {level.name} -> {outcome} {error}")
        if outcome is not Outcome.OK:
            return None
        assert isinstance(found, wire.RowsResult)
        return [tuple(row) for row in found.rows]


INDEX_TABLE: Final = "indexed"
#: Column, class, and when it is made, in virtual seconds from the first on.
_INDEXES = (("v", "", 0.0), ("s", "", 3.0), ("w", "StorageAttachedIndex", 8.0))
_INDEX_KEYS = 4
_INDEX_ROWS = 20
#: From then on half of the keys are left alone: only a build makes entries of the last index for them.
_QUIET_S = 7.0
_INDEX_VALUES = 3
_TTL_MAX_S = 3
#: What expires has done so by then, by the clock of every node.
_EXPIRED_S = 2 * _TTL_MAX_S
_INDEX_COLUMNS = (
    NewColumn("pk", "int", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("s", "int", ColumnKind.STATIC),
    NewColumn("v", "int"),
    NewColumn("w", "int"),
)
_NAMES = [column.name for column in _INDEX_COLUMNS]
_PATH = f"{KEYSPACE}.{INDEX_TABLE}"
_SCAN = f"SELECT {', '.join(_NAMES)} FROM {_PATH}"
_ROW = "WHERE pk = :pk AND ck = :ck"
_INDEX_WRITES = (
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
#: How often each replica's own entries are looked at, and the pause between two looks.
_LOOKS_MAX = 5
_LOOK_S = 1.0
#: Column, value, and what its index answered.
_Answered = tuple[str, int, list[IndexRow]]
#: How each index is asked.
_COMPARED = {"v": ("=", eq), "w": (">=", le), "s": ("=", eq)}


class IndexWorkload(DerivedLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(
            operators,
            _INDEX_COLUMNS,
            table=INDEX_TABLE,
            prefix="index",
            clients=clients,
            host=7,
            labels=("index.built", "index.stale_removed", "index.confirmed"),
        )

    def make_client(self, name: str, dc: str) -> SideClient:
        return _IndexClient(self, name, dc)

    def has_index(self, column: str) -> bool:
        table = self.cluster.newest.schema.table(KEYSPACE, INDEX_TABLE)
        return table is not None and any(index.name == f"{INDEX_TABLE}_{column}" for index in table.indexes)

    def later(self) -> list[Later]:
        return [
            Later(at_s, partial(self.has_index, column), partial(_index_create, column, class_))
            for column, class_, at_s in _INDEXES
        ]


def _index_create(column: str, class_: str, _runtime: Runtime) -> ChangeSchema:
    name, parts = f"{INDEX_TABLE}_{column}", (IndexedPart(column),)
    return ChangeSchema(CreateIndex(KEYSPACE, INDEX_TABLE, name, parts, class_, custom=bool(class_)))


class _IndexClient(DerivedClient):
    def __init__(self, load: IndexWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._indexing = load

    async def ask(self, session: CqlClient) -> None:
        draw = self.draw
        if draw.random() < 0.2:
            column = draw.choice(_INDEXES)[0]
            if self._indexing.has_index(column):
                await self._by_index(session, column, draw.randrange(_INDEX_VALUES), self.draw_level())
            return
        _, text, names = draw.choice([one for one in _INDEX_WRITES for _ in range(one[0])])
        begun_s = self._indexing.begun_s
        is_quiet = begun_s and self.cluster.world.now_s() > begun_s + _QUIET_S
        values = {
            "pk": int_bytes(draw.randrange(_INDEX_KEYS // 2 if is_quiet else _INDEX_KEYS)),
            "ck": int_bytes(draw.randrange(_INDEX_ROWS)),
            "s": int_bytes(draw.randrange(_INDEX_VALUES)),
            "v": int_bytes(draw.randrange(_INDEX_VALUES)),
            "w": int_bytes(draw.randrange(_INDEX_VALUES)),
            "ttl": int_bytes(draw.randint(1, _TTL_MAX_S)),
        }
        await self.write(session, text, names, values)

    async def last_asks(self, session: CqlClient) -> bool:
        """By each index, and by a scan after that, which may mend what replicas lack; then by each index at
        one replica, whose own entries have to name all that it holds by now."""
        if self.cluster.world.now_s() < self._indexing.settled_s + _EXPIRED_S:
            return False
        answers = await self._by_each(session, Consistency.ALL)
        scanned = await self.rows(session, _SCAN, [], Consistency.ALL)
        if answers is None or scanned is None:
            return False
        self._compare(answers, scanned)
        return await self._compared_alone(session)

    async def _compared_alone(self, session: CqlClient) -> bool:
        """What a scan mended reaches the last replica a moment later."""
        for looks_left in reversed(range(_LOOKS_MAX)):
            scanned = await self.rows(session, _SCAN, [], Consistency.ALL)
            answers = await self._by_each(session, Consistency.ONE)
            if answers is None or scanned is None:
                return False
            try:
                self._compare(answers, scanned)
                return True
            except Violation:
                if not looks_left:
                    raise
            await asyncio.sleep(_LOOK_S)
        raise AssertionError("the last look ends it")

    async def _by_each(self, session: CqlClient, level: Consistency) -> list[_Answered] | None:
        """None when one of them was not answered."""
        answers = []
        for column, _, _ in _INDEXES:
            for value in range(_INDEX_VALUES) if self._indexing.has_index(column) else ():
                found = await self._by_index(session, column, value, level)
                if found is None:
                    return None
                answers.append((column, value, found))
        return answers

    def _compare(self, answers: list[_Answered], scanned: list[IndexRow]) -> None:
        for column, value, found in answers:
            check_index(f"{column} of {value}", _NAMES.index(column), _wanted(column, value), scanned, found)
            self._indexing.compared += 1

    async def _by_index(
        self, session: CqlClient, column: str, value: int, level: Consistency
    ) -> list[IndexRow] | None:
        text = f"{_SCAN} WHERE {column} {_COMPARED[column][0]} :value"
        found = await self.rows(session, text, [int_bytes(value)], level)
        if found is not None:
            check_answer(f"{column} of {value}", _NAMES.index(column), _wanted(column, value), found)
        return found


def _wanted(column: str, value: int) -> Any:
    return partial(_COMPARED[column][1], int_bytes(value))


VIEW_TABLE = "viewed"
#: Name, key, and when it is made, in virtual seconds from the first on.
_VIEWS = (
    ("viewed_by_v", ("v", "pk", "ck"), 0.0),
    ("viewed_by_ck", ("ck", "pk"), 2.0),
    ("viewed_later", ("pk", "v", "ck"), 4.0),
)
_VIEW_KEYS = 3
_VIEW_ROWS = 3
#: An empty one is a key of a view like any other.
_VIEW_VALUES = (b"", b"a", b"b", b"c")
#: How long views may differ from their definitions when all has settled: the batch log replays, hints arrive.
_BEHIND_S = 15.0
#: What is done at the end, and at what level.
_LAST = (
    ("read", Consistency.ONE),
    ("write", Consistency.QUORUM),
    ("read", Consistency.ONE),
    ("read", Consistency.ALL),
)
_VIEW_COLUMNS = (
    NewColumn("pk", "int", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "blob"),
    NewColumn("w", "int"),
)
_BASE = f"{KEYSPACE}.{VIEW_TABLE}"
_VIEW_WRITES = (
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
            _VIEW_COLUMNS,
            table=VIEW_TABLE,
            prefix="view",
            clients=clients,
            host=6,
            labels=("views.derived", "views.delivered", "views.built"),
        )
        self.last, self.level = _LAST[0]

    def make_client(self, name: str, dc: str) -> SideClient:
        return _ViewClient(self, name, dc)

    def has_view(self, name: str) -> bool:
        return self.cluster.newest.schema.table(KEYSPACE, name) is not None

    def is_kept_true(self) -> bool:
        """Whether every node that runs knows of a view. A write of before that reaches one replica alone, and
        whose coordinator dies, is brought to the others by nobody but a repair, as that of any table."""
        view = self.cluster.newest.schema.table(KEYSPACE, _VIEWS[0][0])
        running = [node for node in self.cluster.nodes.values() if node.is_loaded]
        return view is not None and all(node.log.state.epoch >= view.epoch for node in running)

    def later(self) -> list[Later]:
        return [
            Later(at_s, partial(self.has_view, name), partial(_view_create, name, key))
            for name, key, at_s in _VIEWS
        ]

    def read_all(self, names: list[str]) -> None:
        """What each node has is looked at before reads of all replicas repair anything, and again when rows
        were written in peace: view updates that are replayed after faults go to all replicas."""
        for self.last, self.level in _LAST:
            super().read_all(names)


def _view_create(name: str, key: tuple[str, ...], runtime: Runtime) -> ChangeSchema:
    return ChangeSchema(
        CreateView(
            *(KEYSPACE, name, runtime.random.uuid(), KEYSPACE, VIEW_TABLE, (), key[:1], key[1:], (), key),
            where=" AND ".join(f"{column} IS NOT NULL" for column in key),
        )
    )


class _ViewClient(DerivedClient):
    def __init__(self, load: ViewWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._viewing = load

    async def ask(self, session: CqlClient) -> None:
        if not self._viewing.is_kept_true():
            return
        draw = self.draw
        chosen = draw.choice([at for at, one in enumerate(_VIEW_WRITES) for _ in range(one[0])])
        await self._write(session, chosen, None, (draw.randrange(_VIEW_KEYS), draw.randrange(_VIEW_ROWS)))

    async def _write(
        self, session: CqlClient, chosen: int, level: Consistency | None, row: tuple[int, int]
    ) -> None:
        draw = self.draw
        _, text, names = _VIEW_WRITES[chosen]
        values = {
            "pk": int_bytes(row[0]),
            "ck": int_bytes(row[1]),
            "v": _VIEW_VALUES[draw.randrange(len(_VIEW_VALUES))],
            "w": int_bytes(draw.randrange(1000)),
        }
        await self.write(session, text, names, values, level)

    async def last_asks(self, session: CqlClient) -> bool:
        """Compare each view with its definition over the base table; the first looks may come too early."""
        level = self._viewing.level
        if self._viewing.last == "write":
            for row in range(_VIEW_KEYS * _VIEW_ROWS):
                await self._write(session, 0, level, (row // _VIEW_ROWS, row % _VIEW_ROWS))
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
