"""Clients that load rows in bulk, and write and read some of them as well.

Invariant: each load has rows of its own, and one in each partition that is written live too, with a newer
time; every load has one outcome, or none that its client knows of.
"""

from __future__ import annotations

import asyncio

import xxhash

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.metadata.loads import LoadState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.replica.load_messages import LoadFile
from lockstep.replica.load_requests import (
    ANSWER,
    COMMIT_ANSWER,
    PUT_ANSWER,
    AbortRequest,
    BeginRequest,
    CommitRequest,
    LoadAnswer,
    LoadRequest,
    PutRequest,
)
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import CreateIndex, IndexedPart
from lockstep.sim.checkers.loads import Live, Loading, Seen, check_loads
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE, clustering_bytes
from lockstep.sim.load.cql_client import CqlClient, CqlError
from lockstep.sim.load.history import Outcome
from lockstep.sim.load.operators import Operators
from lockstep.sim.load.side_load import TIMEOUT_S, SideClient, SideLoad, int_bytes
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.streaming.load_files import LoadFiles
from lockstep.values.codec import encode, frame_record
from lockstep.values.ids import Consistency
from lockstep.values.rows import Cell, Liveness, Mutation, Row
from lockstep.values.tokens import Range, token_of

TABLE = "loaded"
_KEYS = tuple(b"l%d" % number for number in range(4))
#: Rows of a load in each of its partitions, beside the contested one.
_ROWS = 3
_CONTESTED = -1
_LIVE = b"live"
_LEASE_MS = 4000
_LOADS, _ABORTED, _LEFT, _AGAIN = 0.3, 0.1, 0.1, 0.3
_ASKED_BY_INDEX = 0.1
#: Between two looks for the table.
_TABLE_S = 0.05
#: Virtual seconds in which leases end on a healed cluster, and what was staged is gone.
_GONE_S = 60.0
_COMMIT_S = 4 * TIMEOUT_S
_COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "blob"),
)
_INSERT = f"INSERT INTO {KEYSPACE}.{TABLE} (pk, ck, v) VALUES (?, ?, ?)"
_SELECT = f"SELECT ck, v FROM {KEYSPACE}.{TABLE} WHERE pk = ?"
_INDEX = "loaded_by_v"
_BY_INDEX = f"SELECT pk, ck FROM {KEYSPACE}.{TABLE} WHERE v = ?"


class LoadWorkload(SideLoad):
    def __init__(self, operators: Operators, clients: int) -> None:
        super().__init__(operators, TABLE, _COLUMNS, "load", clients, 9)
        operators.when_ready.append(self._index_soon)
        self.loads: list[Loading] = []
        self.writes: list[Live] = []
        self.seen: list[Seen] = []

    def make_client(self, name: str, dc: str) -> SideClient:
        return _LoadClient(self, name, dc)

    def _index_soon(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._indexed(runtime), f"{TABLE}.index")

    async def _indexed(self, runtime: Runtime) -> None:
        """Loads that began before the index are refused."""
        wanted = ChangeSchema(CreateIndex(KEYSPACE, TABLE, _INDEX, (IndexedPart("v"),)))
        while not self.has_index():
            if self._operators.stopped:
                return
            if not self.has_table():
                await asyncio.sleep(_TABLE_S)
                continue
            await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, wanted)

    def has_index(self) -> bool:
        table = self.cluster.newest.schema.table(KEYSPACE, TABLE)
        return table is not None and bool(table.indexes)

    def read_all(self, names: list[str]) -> None:
        """Wait until every load has ended and nothing is staged any more, then read."""
        if not self.has_table():
            return
        world = self.cluster.world
        world.run_for(_GONE_S, done=lambda: not self._left())
        world.check()
        if left := self._left():
            raise Violation("LIVENESS", f"{_GONE_S:.0f} s after settling {left[0]}")
        super().read_all(names)

    def _left(self) -> list[str]:
        found = [f"load {load.job} runs" for load in self.cluster.newest.loads.running]
        for name in self.cluster.in_service():
            if LoadFiles(self.cluster.nodes[name].runtime.disk).keys():
                found.append(f"{name} has files of a load")
        return found

    def judge(self) -> int:
        known = self.cluster.newest.loads.by_job
        committed = {job: load.state is LoadState.COMMITTED for job, load in known.items()}
        for load in self.loads:
            if load.outcome is Outcome.OK:
                self.cluster.fact("a load was done")
            elif committed.get(load.job):
                self.cluster.fact("a load was committed with an unknown outcome")
            else:
                self.cluster.fact("a load left nothing")
        return check_loads(self.loads, self.writes, self.seen, committed)


class _LoadClient(SideClient):
    def __init__(self, load: LoadWorkload, name: str, dc: str) -> None:
        super().__init__(load, name, dc)
        self._loading = load

    async def ask(self, session: CqlClient) -> None:
        draw = self.draw.random()
        if draw < _LOADS:
            await self._load_rows(session)
        elif draw < _LOADS + _ASKED_BY_INDEX and self._loading.loads and self._loading.has_index():
            await self._by_index(session, self.draw.choice(self._loading.loads))
        elif draw < 0.6:
            await self._read(session, self.draw.choice(_KEYS))
        else:
            await self._write(session, self.draw.choice(_KEYS))

    async def last_asks(self, session: CqlClient) -> bool:
        # First by the index: reads of partitions mend what replicas lack.
        for load in self._loading.loads if self._loading.has_index() else ():
            if not await self._by_index(session, load, is_last=True):
                return False
        for key in _KEYS:
            if not await self._read(session, key, is_last=True):
                return False
        return True

    # -- live ---------------------------------------------------------------------------------------

    async def _write(self, session: CqlClient, key: bytes) -> None:
        values = [key, int_bytes(_CONTESTED), _LIVE]
        outcome, _, error = await self.execute(session, _INSERT, values, Consistency.QUORUM)
        self._loading.writes.append(Live(key, outcome, self.cluster.world.now_ns))
        self.cluster.tell(self.name, f"writes {key.decode()} -> {outcome} {error}")

    async def _read(self, session: CqlClient, key: bytes, *, is_last: bool = False) -> bool:
        start_ns = self.cluster.world.now_ns
        outcome, found, error = await self.execute(session, _SELECT, [key], Consistency.QUORUM)
        if outcome is not Outcome.OK:
            return False
        assert isinstance(found, wire.RowsResult)
        rows: dict[int, int] = {}
        live: bool | None = None
        for clustering, value in found.rows:
            assert clustering is not None and value is not None, "every row has both"
            number = int.from_bytes(clustering, "big", signed=True)
            if number == _CONTESTED:
                live = value == _LIVE
            else:
                rows[number // _ROWS] = rows.get(number // _ROWS, 0) + 1
        self._loading.seen.append(Seen(key, start_ns, rows, live, is_last))
        self.cluster.tell(self.name, f"reads {key.decode()} -> {len(rows)} loads {error}")
        return True

    async def _by_index(self, session: CqlClient, load: Loading, *, is_last: bool = False) -> bool:
        """What the index finds of one load."""
        start_ns = self.cluster.world.now_ns
        outcome, found, error = await self.execute(
            session, _BY_INDEX, [_value_of(load.number)], Consistency.QUORUM
        )
        if outcome is not Outcome.OK:
            return False
        assert isinstance(found, wire.RowsResult)
        counts = dict.fromkeys(load.keys, 0)
        for key, clustering in found.rows:
            assert key is not None and clustering is not None, "every row has both"
            if int.from_bytes(clustering, "big", signed=True) != _CONTESTED:
                counts[key] = counts.get(key, 0) + 1
        for key, count in counts.items():
            rows = {load.number: count} if count else {}
            self._loading.seen.append(Seen(key, start_ns, rows, None, is_last, load.number))
        self.cluster.tell(self.name, f"finds {sum(counts.values())} rows of load {load.number} {error}")
        if any(counts.values()):
            self.cluster.fact("an index found rows of a load")
        return True

    # -- loads --------------------------------------------------------------------------------------

    async def _load_rows(self, session: CqlClient) -> None:
        number = len(self._loading.loads)
        partitions = list(_KEYS)
        self.draw.shuffle(partitions)
        chosen = tuple(sorted(partitions[: self.draw.choice((1, 2, 4))]))
        load = Loading(number, f"{self.name}-{number}", chosen, _ROWS)
        self._loading.loads.append(load)
        try:
            await self._run(session, load)
        except (TimeoutError, ConnectionError) as error:
            session.close()
            self.cluster.tell(self.name, f"load {number} lost its node: {type(error).__name__}")
        except CqlError as error:
            self.cluster.tell(self.name, f"load {number} -> {error}")
        load.told_ns = self.cluster.world.now_ns

    async def _run(self, session: CqlClient, load: Loading) -> None:
        # Older than all that is written live.
        begin = BeginRequest(load.job, KEYSPACE, TABLE, _LEASE_MS, False, 1000 + load.number)
        answer = ANSWER.decode(await self._ask(session, begin))
        if answer.table is None:
            # Its lease ran out before a node that was cut off heard that it began.
            assert answer.state != LoadState.COMMITTED.value, "nobody else commits it"
            self.cluster.tell(self.name, f"load {load.number} has ended -> {answer.state}")
            load.outcome = Outcome.FAILED
            return
        files: list[LoadFile] = []
        holders: dict[int, None] = {}
        attempts = 2 if self.draw.random() < _AGAIN else 1
        for attempt in range(attempts):
            files = []
            for file, content in files_of(load, answer, attempt):
                told = PUT_ANSWER.decode(await self._ask(session, PutRequest(load.job, file, 0, content)))
                holders.update(dict.fromkeys(told.holders))
                files.append(file)
        draw = self.draw.random()
        if draw < _LEFT:
            self.cluster.tell(self.name, f"load {load.number} is left")
            load.outcome = Outcome.FAILED
            return
        if draw < _LEFT + _ABORTED:
            await self._abort(session, load)
            return
        commit = CommitRequest(
            load.job, tuple(files), tuple(holders), int(Consistency.QUORUM), len(load.keys) * _ROWS
        )
        try:
            done = COMMIT_ANSWER.decode(await self._ask(session, commit))
        except CqlError as error:
            self.cluster.tell(self.name, f"load {load.number} is not committed: {error}")
            await self._abort(session, load)
            return
        if done.cut:
            await self._abort(session, load)
        elif done.done:
            load.outcome = Outcome.OK
        self.cluster.tell(self.name, f"load {load.number} of {load.keys} -> {done}")

    async def _abort(self, session: CqlClient, load: Loading) -> None:
        answer = ANSWER.decode(await self._ask(session, AbortRequest(load.job, "as drawn")))
        if answer.state != LoadState.COMMITTED.value:
            load.outcome = Outcome.FAILED
        self.cluster.tell(self.name, f"load {load.number} is given up -> {answer.state}")

    async def _ask(self, session: CqlClient, request: LoadRequest) -> bytes:
        async with asyncio.timeout(_COMMIT_S):
            answer = await session.request(Opcode.LOAD, encode(request))
        assert isinstance(answer, wire.Loaded), answer
        return answer.body


def files_of(load: Loading, answer: LoadAnswer, attempt: int) -> list[tuple[LoadFile, bytes]]:
    """Sorted files as simulated stores take them in, one a range."""
    assert answer.table is not None, "the load runs"
    found: list[tuple[LoadFile, bytes]] = []
    column = answer.table.by_name["v"].id
    for number, (left, right) in enumerate(answer.ranges):
        pairs: list[tuple[bytes, bytes]] = []
        for key in load.keys:
            if Range(left, right).contains(token_of(key)):
                pairs += _pairs(load, answer, column, key)
        if not pairs:
            continue
        pairs.sort()
        content = frame_record(encode(pairs))
        digest = xxhash.xxh3_128_digest(content)
        first, last = pairs[0][0], pairs[-1][0]
        size = len(content)
        file = LoadFile(0, attempt, number, left, right, len(pairs), size, first, last, digest)
        found.append((file, content))
    return found


def _value_of(number: int) -> bytes:
    return f"{number}/load".encode()


def _pairs(load: Loading, answer: LoadAnswer, column: int, key: bytes) -> list[tuple[bytes, bytes]]:
    value, time_us = _value_of(load.number), answer.timestamp_us
    numbers = [_CONTESTED, *range(load.number * _ROWS, (load.number + 1) * _ROWS)]
    rows = tuple(
        Row(clustering_bytes(number), Liveness(time_us), None, (Cell(column, value, time_us),))
        for number in numbers
    )
    mutation = Mutation(
        answer.stored_id, token_of(key), key, load.number.to_bytes(14, "big"), time_us, rows=rows
    )
    prefix = keys.partition_prefix(answer.stored_id, mutation.token, key)
    return [(store_key, data) for _, store_key, data in fragments_of(mutation, prefix)]
