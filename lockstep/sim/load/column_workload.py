"""Clients that write single columns of rows which have several, with timestamps that meet, and TTLs.

Invariant: values are unique, and so are timestamps of values that expire in one row; timestamps are rounded,
so that writes, deletions of columns, rows, ranges and partitions, and whole maps often have the same one.
Where clocks of all nodes show one time, it is known to the second when a value expires; else none does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.types import MapType, parse_type
from lockstep.sim.checkers.columns import (
    DELETED,
    EXPIRES,
    MARKER,
    STATIC_ROW,
    STAYS,
    Place,
    Read,
    Seen,
    State,
    Wrote,
    check_columns,
)
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad, int_bytes
from lockstep.sim.runtime.streams import WALL_START_US
from lockstep.values.ids import Consistency

TABLE = "columned"
_T = f"{KEYSPACE}.{TABLE}"
_KEYS: Final = tuple(b"k%d" % number for number in range(2))
_ROWS: Final = 3
_NAMES: Final = ("a", "b", "c")
_ELEMENTS: Final = (0, 1)
_CELLS: Final = (*_NAMES, *(f"m[{element}]" for element in _ELEMENTS))
_READ_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.LOCAL_QUORUM, Consistency.ALL)
_WRITE_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.LOCAL_QUORUM, Consistency.ONE)
_TTLS: Final = (1, 1, 2, 3)
#: Share of reads that ask for the row that was written last.
_ECHO: Final = 0.4
#: Timestamps are whole multiples of this, and up to so many of them before or behind now.
_GRID_US: Final = 100_000
_APART: Final = 3
_MAP = MapType(parse_type("int"), parse_type("blob"), frozen=False)
_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("st", "blob", ColumnKind.STATIC),
    *(NewColumn(name, "blob") for name in _NAMES),
    NewColumn("m", "map<int, blob>"),
)
_TOLD = ", ".join(f"{name}, WRITETIME({name}), TTL({name})" for name in _NAMES)
_WHOLE = f"SELECT ck, st, m, {_TOLD} FROM {_T} WHERE pk = ?"
_ONE_ROW = f"{_WHOLE} AND ck = ?"
_AT = "USING TIMESTAMP ?"


class Write(msgspec.Struct, frozen=True):
    """A statement of one row (`clustering`), its values, and what it leaves of each register."""

    text: str
    values: list[bytes]
    effects: dict[Place, State]
    ttl_s: int = 0


class ColumnWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "col", clients, 9)
        self.writes: list[Wrote] = []
        self.reads: list[Read] = []
        #: Called when everything was read at ALL through one node, and so repaired.
        self.when_read: Callable[[], None] = lambda: None
        #: Whether some values expire: clocks that step do not say when.
        self.expires = True
        #: The row that was written last, perhaps still is.
        self.last = (_KEYS[0], 0)
        self._written = 0
        self._expiring: dict[tuple[bytes, int, int], None] = {}

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Client(self, name, dc)

    def wall_s(self, at_ns: int) -> int:
        return (WALL_START_US + at_ns // 1000) // 1_000_000

    def next_value(self, name: str) -> bytes:
        """Of two values the later one is not always the larger one."""
        self._written += 1
        return f"{self._written * 7 % 10}{self._written}/{name}".encode()

    def expiring(self, key: bytes, clustering: int, at_us: int) -> int:
        """A timestamp that nothing else which expires has in the row."""
        while (key, clustering, at_us) in self._expiring:
            at_us += 1
        self._expiring[key, clustering, at_us] = None
        return at_us

    def read_all(self, names: list[str]) -> None:
        super().read_all(names[:1])
        if self.has_table():
            self.when_read()
        super().read_all(names[1:])

    def judge(self) -> int:
        judged = check_columns(self.writes, self.reads, self.wall_s)
        self._tell_ties()
        return judged

    def _tell_ties(self) -> None:
        kinds: dict[tuple[Place, int], set[int]] = {}
        for write in self.writes:
            if write.outcome is Outcome.OK:
                for place, state in write.effects.items():
                    kinds.setdefault((place, state.timestamp_us), set()).add(state.kind)
        if any({DELETED, STAYS} <= found for found in kinds.values()):
            self.cluster.fact("a value and a deletion have one timestamp")
        if any({EXPIRES, STAYS} <= found for found in kinds.values()):
            self.cluster.fact("a value that expires and one that stays have one timestamp")
        for read in self.reads:
            if any(seen.ttl_s is not None for seen in read.cells.values()):
                self.cluster.fact("a value that expires was read")
                return


class _Client(SideClient):
    def __init__(self, load: ColumnWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._columns = load
        self._kinds: tuple[tuple[int, Callable[[bytes, int, int], Write]], ...] = (
            (8, self._one_column),
            (3, self._two_columns),
            (3, self._insert),
            (3, self._no_column),
            (2, self._element),
            (1, self._whole_map),
            (1, self._no_map),
            (2, self._static),
            (1, self._delete_row),
            (1, self._delete_rows),
            (1, self._delete_partition),
            (1, self._delete_and_insert),
        )

    async def ask(self, session: CqlClient) -> None:
        draw = self.draw
        key, clustering = draw.choice(_KEYS), draw.randrange(_ROWS)
        if draw.random() < 0.5:
            if draw.random() < _ECHO:
                key, clustering = self._columns.last
            level, shape = draw.choice(_READ_LEVELS), draw.random()
            if shape < 0.4:
                await self._read_column(session, key, clustering, draw.choice(_NAMES), level)
            else:
                await self._read(session, key, clustering if shape < 0.8 else None, level)
            return
        world = self.cluster.world
        steps = (WALL_START_US + world.now_ns // 1000) // _GRID_US + draw.randrange(-_APART, _APART + 1)
        self._columns.last = (key, clustering)
        kinds = [make for weight, make in self._kinds for _ in range(weight)]
        write = draw.choice(kinds)(key, clustering, steps * _GRID_US)
        await self._write(session, write, draw.choice(_WRITE_LEVELS))

    async def last_asks(self, session: CqlClient) -> bool:
        for key in _KEYS:
            if not await self._read(session, key, None, Consistency.ALL):
                return False
        return True

    # ---- writes

    def _value(self) -> bytes:
        return self._columns.next_value(self.name)

    def _states(
        self, key: bytes, clustering: int, values: Mapping[str, bytes], at_us: int, ttl_s: int
    ) -> dict[Place, State]:
        ends_s = self._columns.wall_s(self.cluster.world.now_ns) + ttl_s if ttl_s else 0
        kind = EXPIRES if ttl_s else STAYS
        return {(key, clustering, name): State(at_us, kind, ends_s, value) for name, value in values.items()}

    def _using(self, key: bytes, clustering: int, at_us: int) -> tuple[str, list[bytes], int, int]:
        """(the clause, its values, the timestamp, the seconds to live: 0 for ever)."""
        if self._columns.expires and self.draw.random() < 0.35:
            ttl_s, at_us = self.draw.choice(_TTLS), self._columns.expiring(key, clustering, at_us)
            return "USING TIMESTAMP ? AND TTL ?", [_long(at_us), int_bytes(ttl_s)], at_us, ttl_s
        return _AT, [_long(at_us)], at_us, 0

    def _update(self, key: bytes, clustering: int, at_us: int, names: tuple[str, ...]) -> Write:
        clause, given, at_us, ttl_s = self._using(key, clustering, at_us)
        values = {name: self._value() for name in names}
        changes = ", ".join(f"{name} = ?" for name in names)
        text = f"UPDATE {_T} {clause} SET {changes} WHERE pk = ? AND ck = ?"
        effects = self._states(key, clustering, values, at_us, ttl_s)
        return Write(text, [*given, *values.values(), key, int_bytes(clustering)], effects, ttl_s)

    def _one_column(self, key: bytes, clustering: int, at_us: int) -> Write:
        return self._update(key, clustering, at_us, (self.draw.choice(_NAMES),))

    def _two_columns(self, key: bytes, clustering: int, at_us: int) -> Write:
        return self._update(key, clustering, at_us, tuple(sorted(self.draw.sample(_NAMES, 2))))

    def _insert(self, key: bytes, clustering: int, at_us: int) -> Write:
        clause, given, at_us, ttl_s = self._using(key, clustering, at_us)
        name, value = self.draw.choice(_NAMES), self._value()
        text = f"INSERT INTO {_T} (pk, ck, {name}) VALUES (?, ?, ?) {clause}"
        effects = self._states(key, clustering, {name: value, MARKER: b""}, at_us, ttl_s)
        return Write(text, [key, int_bytes(clustering), value, *given], effects, ttl_s)

    def _no_column(self, key: bytes, clustering: int, at_us: int) -> Write:
        name, place = self.draw.choice(_NAMES), [key, int_bytes(clustering)]
        effects = _gone(key, (clustering,), (name,), at_us)
        if self.draw.random() < 0.5:
            return Write(
                f"DELETE {name} FROM {_T} {_AT} WHERE pk = ? AND ck = ?", [_long(at_us), *place], effects
            )
        text = f"UPDATE {_T} {_AT} SET {name} = null WHERE pk = ? AND ck = ?"
        return Write(text, [_long(at_us), *place], effects)

    def _element(self, key: bytes, clustering: int, at_us: int) -> Write:
        element, place = self.draw.choice(_ELEMENTS), [key, int_bytes(clustering)]
        name = f"m[{element}]"
        if self.draw.random() < 0.3:
            text = f"DELETE m[{element}] FROM {_T} {_AT} WHERE pk = ? AND ck = ?"
            return Write(text, [_long(at_us), *place], _gone(key, (clustering,), (name,), at_us))
        value = self._value()
        text = f"UPDATE {_T} {_AT} SET m[{element}] = ? WHERE pk = ? AND ck = ?"
        effects = self._states(key, clustering, {name: value}, at_us, 0)
        return Write(text, [_long(at_us), value, *place], effects)

    def _whole_map(self, key: bytes, clustering: int, at_us: int) -> Write:
        """What was there before is deleted a microsecond earlier, so that it hides nothing of this write."""
        element, value = self.draw.choice(_ELEMENTS), self._value()
        text = f"UPDATE {_T} {_AT} SET m = ? WHERE pk = ? AND ck = ?"
        effects = _gone(key, (clustering,), [name for name in _CELLS if name[0] == "m"], at_us - 1)
        effects |= self._states(key, clustering, {f"m[{element}]": value}, at_us, 0)
        packed = _MAP.join([int_bytes(element), value])
        return Write(text, [_long(at_us), packed, key, int_bytes(clustering)], effects)

    def _no_map(self, key: bytes, clustering: int, at_us: int) -> Write:
        text = f"DELETE m FROM {_T} {_AT} WHERE pk = ? AND ck = ?"
        effects = _gone(key, (clustering,), [name for name in _CELLS if name[0] == "m"], at_us)
        return Write(text, [_long(at_us), key, int_bytes(clustering)], effects)

    def _static(self, key: bytes, _clustering: int, at_us: int) -> Write:
        clause, given, at_us, ttl_s = self._using(key, STATIC_ROW, at_us)
        value = self._value()
        effects = self._states(key, STATIC_ROW, {"st": value}, at_us, ttl_s)
        return Write(f"UPDATE {_T} {clause} SET st = ? WHERE pk = ?", [*given, value, key], effects, ttl_s)

    def _delete_row(self, key: bytes, clustering: int, at_us: int) -> Write:
        text = f"DELETE FROM {_T} {_AT} WHERE pk = ? AND ck = ?"
        effects = _gone(key, (clustering,), (*_CELLS, MARKER), at_us)
        return Write(text, [_long(at_us), key, int_bytes(clustering)], effects)

    def _delete_rows(self, key: bytes, clustering: int, at_us: int) -> Write:
        text = f"DELETE FROM {_T} {_AT} WHERE pk = ? AND ck >= ? AND ck < ?"
        last = clustering + 1 + self.draw.randrange(2)
        values = [_long(at_us), key, int_bytes(clustering), int_bytes(last)]
        return Write(text, values, _gone(key, range(clustering, min(last, _ROWS)), (*_CELLS, MARKER), at_us))

    def _delete_partition(self, key: bytes, _clustering: int, at_us: int) -> Write:
        effects = _gone(key, range(_ROWS), (*_CELLS, MARKER), at_us)
        effects |= _gone(key, (STATIC_ROW,), ("st",), at_us)
        return Write(f"DELETE FROM {_T} {_AT} WHERE pk = ?", [_long(at_us), key], effects)

    def _delete_and_insert(self, key: bytes, clustering: int, at_us: int) -> Write:
        """Both at one timestamp: nothing of the row is left."""
        deletion = self._delete_row(key, clustering, at_us)
        insert = f"INSERT INTO {_T} (pk, ck, a) VALUES (?, ?, ?)"
        text = f"BEGIN UNLOGGED BATCH {_AT} DELETE FROM {_T} WHERE pk = ? AND ck = ?; {insert}; APPLY BATCH"
        place = [key, int_bytes(clustering)]
        return Write(text, [_long(at_us), *place, *place, self._value()], deletion.effects)

    async def _write(self, session: CqlClient, write: Write, level: Consistency) -> None:
        world = self.cluster.world
        event = Wrote(
            client=self.name,
            text=write.text,
            start_ns=world.now_ns,
            level=level,
            dc=self.scope,
            effects=write.effects,
            ttl_s=write.ttl_s,
        )
        self._columns.writes.append(event)
        event.outcome, _, error = await self.execute(session, write.text, write.values, level)
        event.end_ns = world.now_ns
        shown = " ".join(
            f"{key.decode()}[{at}].{name}={state.text()}" for (key, at, name), state in write.effects.items()
        )
        self.cluster.tell(self.name, f"{write.text} {level.name}: {shown} -> {event.outcome} {error}")

    # ---- reads

    async def _read(self, session: CqlClient, key: bytes, clustering: int | None, level: Consistency) -> bool:
        """All columns of a row, or of a partition."""
        text = _WHOLE if clustering is None else _ONE_ROW
        values = [key] if clustering is None else [key, int_bytes(clustering)]
        make = partial(_cells_of, key=key, clustering=clustering)
        return await self._look(session, text, values, level, make)

    async def _read_column(
        self, session: CqlClient, key: bytes, clustering: int, name: str, level: Consistency
    ) -> None:
        text = f"SELECT {name}, WRITETIME({name}), TTL({name}) FROM {_T} WHERE pk = ? AND ck = ?"

        def cells(found: list[tuple[bytes | None, ...]]) -> dict[Place, Seen]:
            if not found:
                return dict.fromkeys([(key, clustering, one) for one in (*_CELLS, MARKER)], Seen(None))
            return {(key, clustering, name): _seen(found[0])}

        await self._look(session, text, [key, int_bytes(clustering)], level, cells)

    async def _look(
        self,
        session: CqlClient,
        text: str,
        values: list[bytes],
        level: Consistency,
        make: Callable[[list[tuple[bytes | None, ...]]], dict[Place, Seen]],
    ) -> bool:
        world, start_ns = self.cluster.world, self.cluster.world.now_ns
        outcome, found, error = await self.execute(session, text, values, level)
        shown = ""
        if outcome is Outcome.OK:
            assert isinstance(found, wire.RowsResult)
            cells = make([tuple(row) for row in found.rows])
            read = Read(
                client=self.name,
                text=text,
                start_ns=start_ns,
                end_ns=world.now_ns,
                level=level,
                dc=self.scope,
                cells=cells,
            )
            self._columns.reads.append(read)
            shown = " ".join(
                f"[{at}].{name}={seen.value!r}@{seen.timestamp_us}"
                for (_, at, name), seen in cells.items()
                if seen.value is not None
            )
        self.cluster.tell(self.name, f"{text} {values} {level.name} -> {outcome} {shown} {error}")
        return outcome is Outcome.OK


def _gone(
    key: bytes, clusterings: range | tuple[int, ...], names: tuple[str, ...] | list[str], at_us: int
) -> dict[Place, State]:
    return {(key, clustering, name): State(at_us) for clustering in clusterings for name in names}


def _cells_of(found: list[tuple[bytes | None, ...]], key: bytes, clustering: int | None) -> dict[Place, Seen]:
    """What rows of ck, st, m, and for each plain column its value, timestamp and time to live, tell."""
    asked = range(_ROWS) if clustering is None else (clustering,)
    cells = {(key, row, name): Seen(None) for row in asked for name in (*_CELLS, MARKER)}
    if clustering is None:
        cells[key, STATIC_ROW, "st"] = Seen(None)
    for row in found:
        cells[key, STATIC_ROW, "st"] = Seen(row[1])
        if row[0] is None:
            continue
        at = int.from_bytes(row[0], "big", signed=True)
        assert (key, at, MARKER) in cells, f"row {at} was not asked for"
        told = {name: _seen(row[3 + 3 * number :]) for number, name in enumerate(_NAMES)}
        parts = _MAP.split(row[2]) if row[2] is not None else []
        elements = dict(zip(parts[::2], parts[1::2], strict=True))
        told |= {f"m[{element}]": Seen(elements.get(int_bytes(element))) for element in _ELEMENTS}
        cells |= {(key, at, name): seen for name, seen in told.items()}
        if any(seen.value is not None for seen in told.values()):
            del cells[key, at, MARKER]
        else:
            cells[key, at, MARKER] = Seen(b"")
    return cells


def _seen(row: tuple[bytes | None, ...]) -> Seen:
    value, timestamp, ttl = row[:3]
    return Seen(value, _number(timestamp), _number(ttl))


def _number(packed: bytes | None) -> int | None:
    return None if packed is None else int.from_bytes(packed, "big", signed=True)


def _long(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)
