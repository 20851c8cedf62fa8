"""Clients that write a table whose changes are captured, and read its log at the end.

Invariant: a write has a number of its own, which is its value; write times are the clients', unique and
within the leeway of every coordinator's clock, but for conditional writes, whose rows nothing else writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.cql.wire import client as wire
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.schema.changes import NewColumn
from lockstep.schema.log_tables import log_of
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.captured import INSERT, ROW_DELETE, UPDATE, Logged, Place, Wrote, check_log
from lockstep.sim.checkers.logged import bounds_of, check_alike
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.streams import (
    GenerationsWatch,
    StreamsWatch,
    changes_on_disks,
    check_held_changes,
    check_streams,
    open_streams,
)
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad, int_bytes
from lockstep.sim.runtime.streams import WALL_START_US
from lockstep.sim.watch import Watch
from lockstep.topology import roles
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.tokens import token_of

TABLE: Final = "captured"
_T: Final = f"{KEYSPACE}.{TABLE}"
_KEYS: Final = 6
_ROWS: Final = 4
#: Clusterings of rows that conditional writes make, one each, begin here.
_DECIDED: Final = 1000
#: Disks are looked at once in so many writes, where the table is tracked.
_WRITES_A_LOOK: Final = 5
_LEVELS: Final = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ONE, Consistency.LOCAL_QUORUM)
#: 100 ns ticks of UUIDs of version 1 at the beginning of 1970.
_UUID_BEGINS: Final = 0x01B21DD213814000
_COLUMNS: Final = (
    NewColumn("pk", "int", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "int"),
)
_INSERT: Final = f"INSERT INTO {_T} (pk, ck, v) VALUES (?, ?, ?) USING TIMESTAMP ?"
_UPDATE: Final = f"UPDATE {_T} USING TIMESTAMP ? SET v = ? WHERE pk = ? AND ck = ?"
_DELETE: Final = f"DELETE FROM {_T} USING TIMESTAMP ? WHERE pk = ? AND ck = ?"
_DECIDE: Final = f"INSERT INTO {_T} (pk, ck, v) VALUES (?, ?, ?) IF NOT EXISTS"
_LOG: Final = f'SELECT pk, ck, v, "cdc$operation", "cdc$time", "cdc$stream_id" FROM {_T}_scylla_cdc_log'


class CaptureWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "cdc", clients, 12, (("cdc", (("enabled", "true"),)),))
        self.written: list[Wrote] = []
        #: Where there are tablets, or the table is tracked: what disks hold for certain.
        self.disks: Callable[[ClusterMetadata], Mapping[NodeId, DurableContent]] | None = None
        self.is_tracked = self.cluster.shape.tracked
        #: Where ranges ended when the table was first written.
        self._bounds: list[int] = []
        self._numbers = 0
        self._clocks_step = True
        self._judged = self._judged_alike = 0

    def make_client(self, name: str, dc: str) -> SideClient:
        return _CaptureClient(self, name, dc)

    def watch(self, watch: Watch, has_tablets: bool, clocks_step: bool) -> None:
        """Judge what disks hold, and the streams of the table at each epoch. Which stream counts is told by
        clocks: where they step, changes stand in any."""
        self._clocks_step = clocks_step
        made = StreamsWatch(self.cluster.fact) if has_tablets else GenerationsWatch(self.cluster.fact)
        watch.appliers.append(made.applied)
        if has_tablets or self.is_tracked:
            self.disks = watch.disks

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def next_time_us(self) -> int:
        """A write time of now that no other write has."""
        now_us = WALL_START_US + self.cluster.world.now_ns // 1000
        return now_us // 1000 * 1000 + self.next_number() % 1000

    def read_all(self, names: list[str]) -> None:
        """What is read may be repaired by it, so disks are looked at before."""
        self.look_at_disks(is_settled=True)
        super().read_all(names)

    def look_at_disks(self, *, is_settled: bool) -> None:
        """Raises Violation. While all goes on: only as long as all log rows lie in the ranges of their rows,
        and on replicas that have all that they hold by ids."""
        newest = self.cluster.newest
        table = newest.schema.table(KEYSPACE, TABLE)
        if self.disks is None or table is None:
            return
        log, group = log_of(newest.schema, table), newest.schema.group_of(table)
        assert log is not None and newest.schema.group_of(log) == group, "a log lies with its table"

        ring = newest.placements.ring(group)

        def readers(token: int) -> Sequence[NodeId]:
            return roles.readers(newest, ring, ring.range_at(token))

        disks = self.disks(newest)
        bounds = bounds_of(newest, group)
        self._bounds = self._bounds or bounds
        if not is_settled:
            if bounds != self._bounds:
                return
            disks = {node: content for node, content in disks.items() if not self._is_taking(node)}
        held = changes_on_disks(log, disks, _number)
        if is_settled:
            check_held_changes(self.written, held, readers)
        if self.is_tracked:
            self._judged_alike += check_alike(table, held, disks, readers, _number)

    def _is_taking(self, node: NodeId) -> bool:
        """Whether a node is getting rows of a cohort, table by table, or may be: it is not there to say."""
        found = next((one for one in self.cluster.nodes.values() if one.context.own_id() == node), None)
        if found is None or not found.ready:
            return True
        return any(logs.taking is not None for logs in found.data.reconciler.journal.shards.values())

    def judge(self) -> int:
        for label in ("capture.write.without_log", "conditional.log_beside"):
            if self.cluster.world.probes.counts.get(label):
                self.cluster.fact(label)
        return self._judged + self._judged_alike

    def compare(self, logged: list[Logged], rows: dict[Place, int | None]) -> None:
        self._judged = check_log(self.written, logged, rows)
        newest = self.cluster.newest
        table = newest.schema.table(KEYSPACE, TABLE)
        assert table is not None, "nobody drops it"
        sets = open_streams(newest, table)
        if not self._clocks_step and check_streams(logged, sets, lambda key: token_of(int_bytes(key))):
            self.cluster.fact("changes in later streams")


class _CaptureClient(SideClient):
    def __init__(self, load: CaptureWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._captures = load

    async def ask(self, session: CqlClient) -> None:
        draw = self.draw
        if self._captures.is_tracked and len(self._captures.written) % _WRITES_A_LOOK == 0:
            self._captures.look_at_disks(is_settled=False)
        place, level = (draw.randrange(_KEYS), draw.randrange(_ROWS)), draw.choice(_LEVELS)
        chosen = draw.random()
        if chosen < 0.15:
            await self._decided(session, place[0], level)
        elif chosen < 0.3:
            await self._batch(session, place, level)
        else:
            operation = INSERT if chosen < 0.6 else UPDATE if chosen < 0.85 else ROW_DELETE
            await self._one(session, operation, place, level)

    async def _one(self, session: CqlClient, operation: int, place: Place, level: Consistency) -> None:
        load, number = self._captures, self._captures.next_number()
        at_us = load.next_time_us()
        at, key = at_us.to_bytes(8, "big"), [int_bytes(part) for part in place]
        text, values, value = _DELETE, [at, *key], None
        if operation == INSERT:
            text, values, value = _INSERT, [*key, int_bytes(number), at], number
        elif operation == UPDATE:
            text, values, value = _UPDATE, [at, int_bytes(number), *key], number
        outcome, _, error = await self.execute(session, text, values, level)
        load.written.append(Wrote(self.name, at_us, place, operation, value, outcome, _is_quorum(level)))
        self.cluster.tell(self.name, f"{load.written[-1].named()} {level.name} {error}")

    async def _batch(self, session: CqlClient, place: Place, level: Consistency) -> None:
        """One row each of two partitions."""
        load, number = self._captures, self._captures.next_number()
        at_us, places = load.next_time_us(), (place, ((place[0] + 1) % _KEYS, place[1]))
        text = f"BEGIN BATCH {_INSERT}; {_INSERT}; APPLY BATCH"
        at, value = at_us.to_bytes(8, "big"), int_bytes(number)
        values = [part for pk, ck in places for part in (int_bytes(pk), int_bytes(ck), value, at)]
        outcome, _, error = await self.execute(session, text, values, level)
        sure = _is_quorum(level)
        load.written += [Wrote(self.name, at_us, one, INSERT, number, outcome, sure) for one in places]
        self.cluster.tell(self.name, f"batch of {places}: {load.written[-1].named()} {level.name} {error}")

    async def _decided(self, session: CqlClient, key: int, level: Consistency) -> None:
        load, number = self._captures, self._captures.next_number()
        values = [int_bytes(part) for part in (key, _DECIDED + number, number)]
        outcome, found, error = await self.execute(session, _DECIDE, values, level, serial=Consistency.SERIAL)
        if outcome is Outcome.OK:
            assert isinstance(found, wire.RowsResult) and found.rows[0][0] == b"\x01", (
                "nobody else made the row"
            )
        load.written.append(
            Wrote(self.name, 0, (key, _DECIDED + number), INSERT, number, outcome, _is_quorum(level))
        )
        self.cluster.tell(self.name, f"decided: {load.written[-1].named()} {level.name} {error}")

    async def last_asks(self, session: CqlClient) -> bool:
        log = await self._read(session, _LOG)
        rows = await self._read(session, f"SELECT pk, ck, v FROM {_T}")
        if log is None or rows is None:
            return False
        logged = []
        for pk, ck, value, operation, time, stream in log:
            assert time and operation and stream, "every change has a time, an operation and a stream"
            ticks = int.from_bytes(time[6:8], "big") & 0x0FFF
            ticks = ticks << 48 | int.from_bytes(time[4:6], "big") << 32 | int.from_bytes(time[:4], "big")
            place = (_number(pk) or 0, _number(ck) or 0)
            logged.append(Logged((ticks - _UUID_BEGINS) // 10, place, operation[0], _number(value), stream))
        there = {(_number(pk) or 0, _number(ck) or 0): _number(value) for pk, ck, value in rows}
        self._captures.compare(logged, there)
        return True

    async def _read(self, session: CqlClient, text: str) -> list[tuple[bytes | None, ...]] | None:
        outcome, found, error = await self.execute(session, text, [], Consistency.ALL)
        self.cluster.tell(self.name, f"{text} -> {outcome} {error}")
        if outcome is not Outcome.OK:
            return None
        assert isinstance(found, wire.RowsResult)
        assert found.metadata.paging_state is None, "all of it is one page"
        return [tuple(row) for row in found.rows]


def _is_quorum(level: Consistency) -> bool:
    return level is not Consistency.ONE


def _number(data: bytes | None) -> int | None:
    return None if data is None else int.from_bytes(data, "big", signed=True)
