"""Clients that compare and set registers, by conditional writes and serial reads.

Where there are several data centres, some registers are decided on by one of them alone, at LOCAL_SERIAL.
Invariant: a value is written by one request only, so whoever sees it knows which took effect; a register is
asked for at one serial level only.
"""

from __future__ import annotations

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.types import ListType, SetType, parse_type
from lockstep.sim.checkers.registers import Decided, check_decisions
from lockstep.sim.door import KEYSPACE
from lockstep.sim.faults.data_centres import is_cut_off
from lockstep.sim.faults.halfway import lacks_decision
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad
from lockstep.values.ids import Consistency

TABLE = "decided"
#: A fact: a serial read was answered that began when a replica lacked what was told to have been applied.
LACKED = "a serial read while a replica lacked the decision"
_KEYS = tuple(b"d%d" % number for number in range(3))
_LOCAL_KEYS = 2
_COMMIT_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ONE, Consistency.ANY)
_LOCAL_QUORUM = Consistency.LOCAL_QUORUM
_LOCAL_COMMIT_LEVELS = (_LOCAL_QUORUM, _LOCAL_QUORUM, Consistency.LOCAL_ONE, Consistency.ANY)
_INSERT = (
    f"INSERT INTO {KEYSPACE}.{TABLE} (pk, v, held, appended, prepended) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS"
)
_UPDATE = (
    f"UPDATE {KEYSPACE}.{TABLE} SET v = ?, held = held + ?, appended = appended + ?, "
    "prepended = ? + prepended WHERE pk = ? IF v = ?"
)
_SELECT = f"SELECT v, held, appended, prepended FROM {KEYSPACE}.{TABLE} WHERE pk = ?"
_SET = SetType(parse_type("blob"), frozen=False)
_LIST = ListType(parse_type("blob"), frozen=False)
_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("v", "blob"),
    NewColumn("held", "set<blob>"),
    NewColumn("appended", "list<blob>"),
    NewColumn("prepended", "list<blob>"),
)


class ConditionalWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "decide", clients, 5)
        self.events: list[Decided] = []
        #: What each key held when it was last heard of.
        self.known: dict[bytes, bytes | None] = {}
        #: What was last told to have been applied to each key.
        self.applied: dict[bytes, bytes] = {}
        self._written = 0

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Client(self, name, dc)

    def next_value(self, name: str) -> bytes:
        self._written += 1
        return f"{self._written}/{name}".encode()

    def judge(self) -> int:
        judged = check_decisions(self.events)
        for event in self.events:
            if event.wrote is not None and event.outcome is Outcome.OK:
                self.cluster.fact("a decision applied" if event.applied else "a decision refused")
            elif event.outcome is Outcome.UNKNOWN:
                self.cluster.fact("a decision with an unknown outcome")
        return judged


class _Client(SideClient):
    def __init__(self, load: ConditionalWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._deciding = load

        #: Registers with the level at which they are decided on.
        self._serial = dict.fromkeys(_KEYS, Consistency.SERIAL)
        if self.scope:
            local = (f"{self.scope}/d{number}".encode() for number in range(_LOCAL_KEYS))
            self._serial = {_KEYS[0]: Consistency.SERIAL, **dict.fromkeys(local, Consistency.LOCAL_SERIAL)}

    async def ask(self, session: CqlClient) -> None:
        key, draw = self.draw.choice(tuple(self._serial)), self.draw
        if draw.random() < 0.35:
            await self._read(session, key)
            return
        known = self._deciding.known.get(key)
        value = self._deciding.next_value(self.name)
        is_local = self._serial[key] is Consistency.LOCAL_SERIAL
        level = draw.choice(_LOCAL_COMMIT_LEVELS if is_local else _COMMIT_LEVELS)
        if known is None:
            await self._write(
                session, key, _INSERT, [key, value, *_as_collections(value)], level, None, value
            )
        else:
            values = [value, *_as_collections(value), key, known]
            await self._write(session, key, _UPDATE, values, level, known, value)

    async def last_asks(self, session: CqlClient) -> bool:
        for key in self._serial:
            if not await self._read(session, key):
                return False
        return True

    async def _write(
        self,
        session: CqlClient,
        key: bytes,
        text: str,
        values: list[bytes],
        level: Consistency,
        expected: bytes | None,
        wrote: bytes,
    ) -> None:
        start_ns, serial = self.cluster.world.now_ns, self._serial[key]
        outcome, found, error = await self.execute(session, text, values, level, serial)
        applied, seen = False, None
        if outcome is Outcome.OK:
            assert isinstance(found, wire.RowsResult)
            applied = found.rows[0][0] == b"\x01"
            seen = _value(found)
            self._deciding.known[key] = wrote if applied else seen
            if applied:
                self._deciding.applied[key] = wrote
            if applied and serial is Consistency.LOCAL_SERIAL:
                self._applied_locally()
        event = Decided(
            self.name, key, start_ns, self.cluster.world.now_ns, outcome, expected, wrote, applied, seen
        )
        self._deciding.events.append(event)
        self.cluster.tell(self.name, f"{event.text()} {level.name} {error}")

    def _applied_locally(self) -> None:
        self.cluster.fact("a local decision applied")
        if is_cut_off(self.cluster, self.scope):
            self.cluster.fact("a local decision applied in a cut-off data centre")

    async def _read(self, session: CqlClient, key: bytes) -> bool:
        start_ns, last = self.cluster.world.now_ns, self._deciding.applied.get(key)
        lacks = last is not None and lacks_decision(self.cluster, TABLE, key, last)
        outcome, found, error = await self.execute(session, _SELECT, [key], self._serial[key])
        event = Decided(self.name, key, start_ns, self.cluster.world.now_ns, outcome)
        if outcome is Outcome.OK:
            assert isinstance(found, wire.RowsResult)
            seen, *packed = found.rows[0] if found.rows else (None, None, None, None)
            held, appended, prepended = (
                () if data is None else kind.split(data)
                for kind, data in zip((_SET, _LIST, _LIST), packed, strict=True)
            )
            self._deciding.known[key] = seen
            if lacks:
                self.cluster.fact(LACKED)
            event = msgspec.structs.replace(
                event, seen=seen, held=frozenset(held), appended=tuple(appended), prepended=tuple(prepended)
            )
        self._deciding.events.append(event)
        self.cluster.tell(self.name, f"{event.text()} {error}")
        return outcome is Outcome.OK


def _as_collections(value: bytes) -> tuple[bytes, bytes, bytes]:
    """A value alone in a set, and in each of the lists."""
    return _SET.join([value]), _LIST.join([value]), _LIST.join([value])


def _value(found: wire.RowsResult) -> bytes | None:
    """The register, where a refusal shows it: a row that is not there is told without columns."""
    names = [column.name for column in found.metadata.columns or ()]
    return found.rows[0][names.index("v")] if "v" in names else None
