"""Clients that write batches over partitions of two tables, logged and unlogged.

Invariant: a batch inserts rows that nothing else writes, and nobody reads them before the end, so nothing but
the batch, its log and hints brings them to replicas.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.batches import Batched, Row, check_batches
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE, clustering_bytes
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import SideClient, SideLoad, int_bytes
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.tokens import token_of

TABLES = ("batched", "batched_too")
_PLACES = tuple((table, b"b%d" % number) for table in TABLES for number in range(4))
_PARTS = (2, 3, 4)
_LOGGED = 0.7
_LEVELS = (Consistency.QUORUM, Consistency.QUORUM, Consistency.ONE, Consistency.ALL, Consistency.ANY)
#: Virtual seconds in which everything that is owed reaches its replicas on a healed cluster.
_OWED_S = 60.0
_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "blob"),
)


class BatchWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLES[0], _COLUMNS, "batch", clients, 6)
        self.batches: list[Batched] = []
        #: Number of a batch -> the incarnation that coordinated it.
        self.coordinators: dict[int, str] = {}
        #: Whether a range with this token was ever recorded as lacking writes.
        self.is_recorded: Callable[[int], bool] = lambda token: False
        self._contents: dict[NodeId, DurableContent] = {}
        self._judged = 0
        self._numbers = 0

    def make_client(self, name: str, dc: str) -> SideClient:
        return _Client(self, name, dc)

    async def _start(self, runtime: Runtime) -> None:
        other = ChangeSchema(CreateTable(KEYSPACE, TABLES[1], runtime.random.uuid(), _COLUMNS))
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
        return found

    def _table_id(self, name: str) -> int | None:
        table = self.cluster.newest.schema.table(KEYSPACE, name)
        return None if table is None else table.id

    def _held(self, batch: Batched, row: Row) -> tuple[list[NodeId], list[NodeId]]:
        table, key, number = row
        table_id, cluster = self._table_id(table), self.cluster.newest
        assert table_id is not None, "nobody drops these tables"
        replication = cluster.schema.by_name[KEYSPACE].replication
        group, clustering = cluster.group_for(replication, token_of(key)), clustering_bytes(number)
        holders = [n for n, held in self._contents.items() if held.state(table_id, key, clustering)[1]]
        return list(group.reads), holders


class _Client(SideClient):
    def __init__(self, load: BatchWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._batching = load
        self._coordinator = ""

    async def _open(self, runtime: Runtime, name: str) -> CqlClient | None:
        self._coordinator = name
        return await super()._open(runtime, name)

    async def ask(self, session: CqlClient) -> None:
        draw, load, number = self.draw, self._batching, self._batching.next_number()
        logged, level = draw.random() < _LOGGED, draw.choice(_LEVELS)
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
