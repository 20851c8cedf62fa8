"""Changes of views that follow from changes of their base tables: kept with them, then brought to replicas.

Invariants. What a replica derives for views from a write is in the same atomic batch as the write, as a
record of the batch log, and is sent only once that is durable: a write that is acknowledged has its view
updates durable here, and nothing is in a view that its base table lost again. A record is forgotten when each
of its mutations is on every replica or has a durable hint; until then the batch log replays it, planned anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replication.batch_records import ForgetBatch, KeepBatch, batch_key
from lockstep.replication.batch_store import BatchStore
from lockstep.replication.hints import Hints
from lockstep.replication.owed import Owed, begin_owed
from lockstep.replication.view_updates import ViewOf
from lockstep.replication.writes import Writes
from lockstep.runtime.ports import Runtime
from lockstep.schema.model import Table
from lockstep.schema.views import views_of
from lockstep.storage.reconcile import merge_partitions
from lockstep.storage.store import Batch, Put
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.limits import VIEW_RECORD_MUTATIONS, VIEW_RECORDS_IN_FLIGHT_MAX, VIEWS_CACHED_MAX
from lockstep.values.rows import ALL_ROWS, Mutation, Partition, ReadCommand, ReadResult, Slice

BATCH_ID_BYTES = 16


class Store(Protocol):
    """What view updates need of one node's storage."""

    def peek(self, command: ReadCommand) -> ReadResult: ...

    async def synced(self, sequence: int) -> None: ...


class Updates:
    """What one write means for views: a batch to be written with it."""

    def __init__(self, owner: ViewLog, records: Sequence[KeepBatch]) -> None:
        self._owner = owner
        self.records = records
        self.batch: Batch = [_put(record) for record in records]

    def written(self, sequence: int) -> None:
        """The batch is in the store, together with the write."""
        self._owner.written(sequence, self)


class ViewLog:
    """`timeout_ms`: for how long replicas are waited for before a record is left to the batch log."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        writes: Writes,
        batch_store: BatchStore,
        hints: Hints,
        cluster: Callable[[], ClusterMetadata],
        timeout_ms: float,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._writes = writes
        self._batch_store = batch_store
        self._hints = hints
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._views: dict[int, tuple[Table, tuple[Table, ...], tuple[ViewOf, ...]]] = {}
        #: Written and not known to be durable: (sequence, records).
        self._waiting: list[tuple[int, Updates]] = []
        self._sending = False
        self.in_flight = 0
        self.derived = 0
        self.left_to_replay = 0

    def views(self, base: Table) -> tuple[ViewOf, ...]:
        """The views of a table as of now, ready to derive rows."""
        schema = self._cluster().schema
        tables = views_of(schema, base)
        known = self._views.get(base.id)
        if known is not None and known[0] is base and known[1] == tables:
            return known[2]
        space = schema.by_name[base.keyspace]
        made = tuple(ViewOf(view, base, space) for view in tables)
        if len(self._views) >= VIEWS_CACHED_MAX:
            self._views.clear()
        self._views[base.id] = (base, tables, made)
        return made

    def derive(self, mutation: Mutation) -> Updates | None:
        """What must be written with a write; None when its table has no views. Overloaded when too many view
        updates wait here for replicas."""
        base = self._cluster().schema.tables_by_id.get(mutation.table_id)
        if base is None or not base.views:
            return None
        now_us = self._runtime.clock.wall_us()
        before = self._before(mutation, now_us // 1_000_000)
        derived: list[Mutation] = []
        for view in self.views(base):
            derived += view.derived(before, mutation, now_us // 1_000_000)
        if not derived:
            return None
        updates = Updates(self, [self._record(part, now_us) for part in _chunks(derived)])
        self._batch_store.require_room(updates.batch)
        return updates

    def _record(self, mutations: Sequence[Mutation], now_us: int) -> KeepBatch:
        return KeepBatch(self._runtime.random.bytes(BATCH_ID_BYTES), now_us, tuple(mutations))

    def _before(self, mutation: Mutation, now_s: int) -> Partition:
        """What the store has of the rows that a write touches, canonical, with what deletes them."""
        parts = [Partition(mutation.token, mutation.key)]
        command: ReadCommand | None = ReadCommand(
            mutation.table_id,
            mutation.token - 1,
            mutation.token,
            mutation.key,
            touched(mutation),
            (),
            reads_static=False,
            reverse=False,
            row_limit=0,
            partition_row_limit=0,
            now_s=now_s,
        )
        while command is not None and command.slices:
            result = self._store.peek(command)
            parts.extend(result.partitions)
            goes_on = result.more and result.end is not None and result.end.clustering is not None
            command = msgspec.structs.replace(command, after=result.end) if goes_on else None
        return merge_partitions(parts)

    # -- sending ----------------------------------------------------------------------------------

    def written(self, sequence: int, updates: Updates) -> None:
        """Records are in the store: send them once they are durable."""
        self.derived += 1
        for operation in updates.batch:
            self._batch_store.adopt(operation)
        self._runtime.probes.reach("views.derived")
        self._waiting.append((sequence, updates))
        if not self._sending:
            self._sending = True
            self._runtime.tasks.spawn(self._send(), "views.send")

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._store.synced(batch[-1][0])
            except LockstepError:
                break  # The store died, and says so itself; whatever is there after a start is replayed.
            self._runtime.probes.reach("views.durable")
            for _, updates in batch:
                for record in updates.records:
                    self._begin(record)
        self._sending = False

    def _begin(self, record: KeepBatch) -> None:
        if self.in_flight >= VIEW_RECORDS_IN_FLIGHT_MAX:
            self.left_to_replay += 1
            return
        self.in_flight += 1
        ends = self.begin(record.mutations)
        self._runtime.tasks.spawn(self._finish(record, ends), "views.finish")

    def begin(self, mutations: Sequence[Mutation]) -> list[asyncio.Future[Owed]]:
        """Write to every replica of views now, or leave hints."""
        return [begin_owed(self._writes, mutation, self._timeout_ms) for mutation in mutations]

    async def done(self, ends: Sequence[asyncio.Future[Owed]]) -> bool:
        """Whether each write is on all its replicas or has a durable hint for the others."""
        for whole, sequence in await asyncio.gather(*ends):
            if not whole:
                return False
            await self._hints.store.synced(sequence)
        return True

    async def _finish(self, record: KeepBatch, ends: Sequence[asyncio.Future[Owed]]) -> None:
        try:
            if await self.done(ends):
                self._batch_store.forget(ForgetBatch(record.batch_id, record.created_us))
                self._runtime.probes.reach("views.delivered")
            else:
                self.left_to_replay += 1
        except LockstepError:
            self.left_to_replay += 1  # a store that is busy, or that says itself that it died
        finally:
            self.in_flight -= 1


def _put(record: KeepBatch) -> Put:
    return ("put", batch_key(record.created_us, record.batch_id), encode(record))


def _chunks(mutations: Sequence[Mutation]) -> Iterator[Sequence[Mutation]]:
    for at in range(0, len(mutations), VIEW_RECORD_MUTATIONS):
        yield mutations[at : at + VIEW_RECORD_MUTATIONS]


def touched(mutation: Mutation) -> tuple[Slice, ...]:
    """The rows that a write may change, as slices in order that do not overlap."""
    if mutation.deletion is not None:
        return ALL_ROWS
    bounds = [(row.clustering, row.clustering + b"\0") for row in mutation.rows]
    bounds += [(gone.start, gone.end) for gone in mutation.range_deletions]
    joined: list[tuple[bytes, bytes]] = []
    for start, end in sorted(bounds):
        if joined and (not joined[-1][1] or start <= joined[-1][1]):
            last = joined[-1][1]
            joined[-1] = (joined[-1][0], max(last, end) if last and end else b"")
        else:
            joined.append((start, end))
    return tuple(Slice(start, end) for start, end in joined)
