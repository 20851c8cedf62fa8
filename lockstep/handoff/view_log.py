"""Changes of views that follow from changes of their base tables, kept with them, then brought to the views'
replicas; and telling replicas that a write has settled: each of them has it, or a hint is kept.

Invariant: What a replica derives for views from a write is in the same atomic batch as the write, as a record
of the batch log, and is sent only once that is durable: a write that is acknowledged has its view updates
durable here, and nothing is in a view that its base table lost again. An update goes to the replica of the
view that this one is paired with, if all replicas of the base pair alike for the write, and otherwise to all.
A record of a client's write holds the write too, for pairs are right only when every replica of the base gets
it. It is forgotten when the updates are where they go, or have durable hints, and the coordinator says that
the write has settled; until then the batch log replays all of it, planned anew, to all replicas. A replica is
told only when every replica of the write's plan accepted it, or when what the others are owed is durable
here, as a hint or as a mark. Who is not told brings the write to the others itself.

A tracked table has no pairs: its replicas bring each other what they lack, and each derives from that as it
comes, so what one of them derives goes to all replicas of the view. Its writes settle once a quorum has them,
for what a quorum has cannot be lost with a replica that goes, and leave a row in a view that is in no table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec

from lockstep.coordination.guaranteed_delivery import Owed, begin_guaranteed
from lockstep.coordination.hinting import Settled
from lockstep.coordination.writes import Settling, Writes
from lockstep.handoff.batch_store import BatchStore, ForgetBatch, KeepBatch, batch_key
from lockstep.handoff.hints import Hints
from lockstep.handoff.view_updates import ViewOf, ViewPairs, for_all
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.serving import Respond
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.runtime.ports import Runtime
from lockstep.schema.model import Table
from lockstep.schema.view_changes import views_of
from lockstep.storage.rows.fragments import touched
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.storage.store import Batch, Put
from lockstep.values.codec import encode
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.limits import (
    BASE_SETTLED_MAX,
    BASE_SETTLED_MS,
    BASE_WRITES_OPEN_MAX,
    VIEW_RECORD_MUTATIONS,
    VIEW_RECORDS_IN_FLIGHT_MAX,
    VIEWS_CACHED_MAX,
)
from lockstep.values.rows import Mutation, Partition, ReadCommand, ReadResult

BATCH_ID_BYTES = 16


class Store(Protocol):
    """What view updates need of one node's storage."""

    def peek(self, command: ReadCommand) -> ReadResult: ...

    async def synced(self, sequence: int) -> None: ...


class Updates:
    """What one write means for views: a batch to be written with it. `first_epoch`: see WriteRequest; unless
    it is 0, the first record begins with the write, and waits for its coordinator."""

    def __init__(
        self, owner: ViewLog, base: Mutation, first_epoch: int, records: Sequence[KeepBatch]
    ) -> None:
        self._owner = owner
        self.base = base
        self.first_epoch = first_epoch
        self.records = records
        self.batch: Batch = [_put(record) for record in records]

    def written(self, sequence: int) -> None:
        """The batch is in the store, together with the write."""
        self._owner.written(sequence, self)


class _Open:
    """A client's write whose coordinator has not said yet that it settled."""

    __slots__ = ("delivered", "due_s", "record", "settled")

    def __init__(self, record: KeepBatch, due_s: float) -> None:
        self.record = record
        self.due_s = due_s
        self.delivered = False
        self.settled = False


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
        pairs: ViewPairs,
        timeout_ms: float,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._writes = writes
        self._batch_store = batch_store
        self._hints = hints
        self._cluster = cluster
        self._pairs = pairs
        self._timeout_ms = timeout_ms
        #: Id of a client's write -> what it waits for, oldest first.
        self._open: dict[bytes, _Open] = {}
        self._views: dict[int, tuple[Table, tuple[Table, ...], tuple[ViewOf, ...]]] = {}
        #: Written and not known to be durable: (sequence, records).
        self._waiting: list[tuple[int, Updates]] = []
        self._sending = False
        self.in_flight = 0
        self.derived = 0
        #: View updates sent to one replica, and to all.
        self.paired = 0
        self.spread = 0
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

    def derive(self, mutation: Mutation, first_epoch: int = 0) -> Updates | None:
        """What must be written with a write; None when its table has no views or they need nothing.
        Overloaded when too many view updates wait here for replicas."""
        base = self._cluster().schema.tables_by_id.get(mutation.table_id)
        if base is None or not base.views:
            return None
        now_us = self._runtime.clock.wall_us()
        before = self._before(mutation, now_us // 1_000_000)
        derived: list[Mutation] = []
        for view in self.views(base):
            derived += view.derived(before, mutation, now_us // 1_000_000)
        if mutation.mutation_id in self._open:
            first_epoch = 0  # It came before, and is kept.
        if first_epoch:
            derived.insert(0, mutation)
        if not derived:
            return None
        records = [self._record(part, now_us) for part in _chunks(derived)]
        updates = Updates(self, mutation, first_epoch, records)
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
        if updates.first_epoch:
            self._expect(updates.base.mutation_id, updates.records[0])
        self._waiting.append((sequence, updates))
        if not self._sending:
            self._sending = True
            self._runtime.tasks.spawn(self._send(), "views.send")

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await self._store.synced(batch[-1][0])
                except LockstepError:
                    break  # The store died, and says so itself; whatever is there after a start is replayed.
                self._runtime.probes.reach("views.durable")
                for _, updates in batch:
                    self._begin_all(updates)
        finally:
            self._sending = False

    def _begin_all(self, updates: Updates) -> None:
        for at, record in enumerate(updates.records):
            try:
                self._begin(record, updates, waits=at == 0 and updates.first_epoch > 0)
            except LockstepError:
                self.left_to_replay += 1  # a store that is busy

    def _begin(self, record: KeepBatch, updates: Updates, *, waits: bool) -> None:
        """`waits`: the record begins with the write itself, and waits for its coordinator."""
        if self.in_flight >= VIEW_RECORDS_IN_FLIGHT_MAX:
            self.left_to_replay += 1
            return
        ends = [self._begin_one(mutation, updates) for mutation in record.mutations[waits:]]
        if not ends:
            self._delivered(record, updates, waits=waits)
            return
        self.in_flight += 1
        self._runtime.tasks.spawn(self._finish(record, updates, ends, waits=waits), "views.finish")

    def _begin_one(self, mutation: Mutation, updates: Updates) -> asyncio.Future[Owed]:
        pair = None
        if updates.first_epoch and not for_all(mutation):
            try:
                pair = self._pairs.plan(updates.base, mutation, updates.first_epoch)
            except InvalidRequest:
                pair = None  # A table is gone, which the write finds too.
        if pair is None:
            self.spread += 1
        else:
            self.paired += 1
            self._runtime.probes.reach("views.paired")
        return begin_guaranteed(self._writes, mutation, self._timeout_ms, pair)

    def begin(self, mutations: Sequence[Mutation]) -> list[asyncio.Future[Owed]]:
        """Write to every replica of views now, or leave hints."""
        return [begin_guaranteed(self._writes, mutation, self._timeout_ms) for mutation in mutations]

    async def done(self, ends: Sequence[asyncio.Future[Owed]]) -> bool:
        """Whether each write is on all its replicas or has a durable hint for the others."""
        for whole, sequence in await asyncio.gather(*ends):
            if not whole:
                return False
            await self._hints.store.synced(sequence)
        return True

    async def _finish(
        self, record: KeepBatch, updates: Updates, ends: Sequence[asyncio.Future[Owed]], *, waits: bool
    ) -> None:
        try:
            if await self.done(ends):
                self._delivered(record, updates, waits=waits)
                self._runtime.probes.reach("views.delivered")
            else:
                self.left_to_replay += 1
        except LockstepError:
            self.left_to_replay += 1  # a store that is busy, or that says itself that it died
        finally:
            self.in_flight -= 1

    # -- what coordinators say --------------------------------------------------------------------

    def _expect(self, mutation_id: bytes, record: KeepBatch) -> None:
        """A client's write is in the store; what is too old by now is replayed, whatever is said of it."""
        now_s = self._runtime.clock.monotonic_s()
        while self._open:
            oldest = next(iter(self._open))
            if len(self._open) < BASE_WRITES_OPEN_MAX and self._open[oldest].due_s > now_s:
                break
            del self._open[oldest]
        self._open[mutation_id] = _Open(record, now_s + 4 * self._timeout_ms / 1000)

    def _delivered(self, record: KeepBatch, updates: Updates, *, waits: bool) -> None:
        """The view updates of a record are where they go, or owed there."""
        if waits:
            open_ = self._open.get(updates.base.mutation_id)
            if open_ is None:
                return  # The batch log has it.
            if not open_.settled:
                open_.delivered = True
                return
            del self._open[updates.base.mutation_id]
        self._batch_store.forget(ForgetBatch(record.batch_id, record.created_us))

    def settled(self, ids: Sequence[bytes]) -> None:
        """Every replica of the base has these writes, or is owed them."""
        for mutation_id in ids:
            open_ = self._open.get(mutation_id)
            if open_ is None:
                continue
            if not open_.delivered:
                open_.settled = True
                continue
            del self._open[mutation_id]
            try:
                self._batch_store.forget(ForgetBatch(open_.record.batch_id, open_.record.created_us))
            except LockstepError:
                self.left_to_replay += 1  # a store that is busy, or that says itself that it died


def _put(record: KeepBatch) -> Put:
    return ("put", batch_key(record.created_us, record.batch_id), encode(record))


def _chunks(mutations: Sequence[Mutation]) -> Iterator[Sequence[Mutation]]:
    for at in range(0, len(mutations), VIEW_RECORD_MUTATIONS):
        yield mutations[at : at + VIEW_RECORD_MUTATIONS]


class BaseSettled(msgspec.Struct, frozen=True, array_like=True):
    """Ids of mutations."""

    ids: tuple[bytes, ...]


class BaseWrites:
    """Whoever listens is told the ids of settled writes that this node has as a replica."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        hints: Hints,
        own_address: Address,
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._hints = hints
        self._own_address = own_address
        self._listeners: list[Callable[[Sequence[bytes]], None]] = []
        self._gathered: dict[Address, list[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None
        internode.register_fast(verbs.BASE_SETTLED, BaseSettled, BaseSettled, self._receive)

    def listen(self, settled: Callable[[Sequence[bytes]], None]) -> None:
        self._listeners.append(settled)

    def _settled_here(self, ids: Sequence[bytes]) -> None:
        for settled in self._listeners:
            settled(ids)

    def watch(self, write: Settling) -> Settled:
        """What a write is to call when nothing more is heard of it."""
        return partial(self._settled, write)

    def _settled(self, write: Settling, _whole: bool, sequence: int) -> None:
        if not write.reached():
            self._runtime.probes.reach("base_writes.not_reached")
        elif sequence:
            self._runtime.tasks.spawn(self._tell_later(write, sequence), "base-writes.hinted")
        else:
            self._tell(write)

    async def _tell_later(self, write: Settling, sequence: int) -> None:
        try:
            await self._hints.store.synced(sequence)
        except LockstepError:
            self._runtime.probes.reach("base_writes.not_kept")  # the store died, and says so itself
        else:
            self._tell(write)

    def _tell(self, write: Settling) -> None:
        mutation_id, targets = write.settled_for()
        for target in targets:
            ids = self._gathered.setdefault(target.address, [])
            ids.append(mutation_id)
            if len(ids) >= BASE_SETTLED_MAX:
                self._send(target.address)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(BASE_SETTLED_MS / 1000, self._send_all)

    def _send_all(self) -> None:
        self._timer = None
        for address in list(self._gathered):
            self._send(address)

    def _send(self, address: Address) -> None:
        ids = self._gathered.pop(address)
        if address == self._own_address:
            self._settled_here(ids)
        else:
            self._internode.send(address, verbs.BASE_SETTLED, BaseSettled(tuple(ids)))
        self._runtime.probes.reach("base_writes.told")

    def _receive(self, _peer: PeerInfo, told: BaseSettled, _respond: Respond) -> None:
        self._settled_here(told.ids)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
