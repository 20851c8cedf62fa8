"""The batches that this node keeps for coordinators, as they are stored, and their replay when nobody says
that they are done.

Invariant: A batch is acknowledged when it is durable, and forgotten when its coordinator says so, or when
each of its writes is on every replica or has a durable hint. It is replayed with the timestamps and ids that
its coordinator gave, planned anew and judged by replicas like any write. What is older than its table's
gc_grace_seconds is not written any more: its range is marked as one that needs a repair. A key is (when the
batch was made, its id), so old batches come first; the mutations in a record are those that the coordinator
sends, to the byte.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence

import msgspec

from lockstep.coordination.guaranteed_delivery import begin_guaranteed
from lockstep.coordination.writes import Writes
from lockstep.handoff.hint_store import RecordStore
from lockstep.handoff.hints import EXPIRED, OUTLIVED, Hints
from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.serving import Respond
from lockstep.metadata.directory import NodeState
from lockstep.runtime.ports import Runtime
from lockstep.storage.store import Batch, Family, Operation
from lockstep.values import codec
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile, LockstepError, Overloaded
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import BATCH_LOG_BYTES_MAX, BATCH_LOG_PAGE, BATCH_REPLAY_ROUND_MS
from lockstep.values.rows import Mutation

_PLACE = struct.Struct(">cQ")
_FAMILY = Family.BATCH_LOG.value


class KeepBatch(msgspec.Struct, frozen=True, array_like=True):
    """Keep a batch until its coordinator says that it is done, or write it after a while."""

    batch_id: bytes
    created_us: int
    mutations: tuple[Mutation, ...]


class BatchKept(msgspec.Struct, frozen=True, array_like=True):
    """The batch is durable here."""

    batch_id: bytes


class ForgetBatch(msgspec.Struct, frozen=True, array_like=True):
    batch_id: bytes
    created_us: int


_DECODER = codec.decoder(KeepBatch)


def batch_key(created_us: int, batch_id: bytes) -> bytes:
    return _PLACE.pack(_FAMILY, created_us) + batch_id


def all_batches() -> tuple[bytes, bytes]:
    return _FAMILY, bytes((_FAMILY[0] + 1,))


def decode_batch(key: bytes, value: bytes) -> KeepBatch:
    try:
        return _DECODER.decode(value)
    except codec.UNREADABLE as error:
        raise CorruptFile(key.hex(), 0, f"not a logged batch: {error}") from error


class BatchStore:
    """`replay_after_ms`: for how long a coordinator may take; twice the write timeout."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        store: RecordStore,
        writes: Writes,
        hints: Hints,
        own_id: Callable[[], int],
        replay_after_ms: int,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._writes = writes
        self._hints = hints
        self._own_id = own_id
        self._replay_after_ms = replay_after_ms
        #: Key -> (instant of the monotonic clock from which on it is replayed, bytes), oldest first, and then
        #: those that could not be written.
        self._kept: dict[bytes, tuple[float, int]] = {}
        self._wake = asyncio.Event()
        self.bytes = 0
        self.replayed = 0
        self.replay_failures = 0
        internode.register(verbs.BATCH_KEEP, KeepBatch, BatchKept, self._keep)
        internode.register_fast(verbs.BATCH_FORGET, ForgetBatch, BatchKept, self._forget)

    async def load(self) -> None:
        """Find what was kept before the start; their coordinators had their time."""
        lower, upper = all_batches()
        now_s = self._runtime.clock.monotonic_s()
        while pairs := self._store.records(lower, upper, BATCH_LOG_PAGE):
            for key, value in pairs:
                self._count(key, now_s, len(key) + len(value))
            lower = pairs[-1][0] + b"\0"
            await asyncio.sleep(0)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "batches.replay")

    def __len__(self) -> int:
        return len(self._kept)

    def oldest_us(self) -> int | None:
        """When the oldest batch was made; None when none is kept."""
        oldest = min(self._kept, default=None)
        return int.from_bytes(oldest[1:9], "big") if oldest is not None else None

    # -- for coordinators -------------------------------------------------------------------------

    async def _keep(self, _peer: PeerInfo, batch: KeepBatch) -> BatchKept:
        await self.keep(batch)
        return BatchKept(batch.batch_id)

    async def keep(self, batch: KeepBatch) -> None:
        """Return when the batch is durable here. Overloaded when too much is kept."""
        key, value = batch_key(batch.created_us, batch.batch_id), encode(batch)
        size = len(key) + len(value)
        if self.bytes + size > BATCH_LOG_BYTES_MAX:
            raise Overloaded("too many logged batches are kept here")
        operation: Operation = ("put", key, value)
        sequence = self._store.write_records(Family.BATCH_LOG, [operation])
        self.adopt(operation)
        await self._store.synced(sequence)
        self._runtime.probes.reach("batches.kept")

    def require_room(self, batch: Batch) -> None:
        """Overloaded when there is none for these records."""
        size = sum(len(part) for operation in batch for part in operation[1:])
        if self.bytes + size > BATCH_LOG_BYTES_MAX:
            raise Overloaded("too many view updates wait here for replicas")

    def adopt(self, operation: Operation) -> None:
        """A record was put into the store: it is replayed unless somebody says that it is done."""
        due_s = self._runtime.clock.monotonic_s() + self._replay_after_ms / 1000
        self._count(operation[1], due_s, sum(len(part) for part in operation[1:]))
        self._wake.set()

    def _forget(self, _peer: PeerInfo, batch: ForgetBatch, respond: Respond) -> None:
        self.forget(batch)
        respond(BatchKept(batch.batch_id))

    def forget(self, batch: ForgetBatch) -> None:
        """The batch is done. After a crash it may be there again: writing it once more changes nothing."""
        key = batch_key(batch.created_us, batch.batch_id)
        if key in self._kept:
            self._delete(key)

    def _count(self, key: bytes, due_s: float, size: int) -> None:
        if key not in self._kept:
            self.bytes += size
        self._kept[key] = (due_s, size)

    def _delete(self, key: bytes) -> None:
        self._store.write_records(Family.BATCH_LOG, [("delete", key)])
        self.bytes -= self._kept.pop(key)[1]

    def validate(self) -> None:
        assert self.bytes == sum(size for _, size in self._kept.values()), "bytes are miscounted"

    # -- replay -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self._kept:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(BATCH_REPLAY_ROUND_MS / 1000)
            try:
                while await self.replay_due():
                    pass
            except LockstepError:
                self.replay_failures += 1  # a store that is busy, or that says itself that it died

    async def replay_due(self, everything: bool = False) -> bool:
        """Write a page of what nobody says to be done; whether all of it was written, and more is due.

        `everything`: also what is not due, for this node leaves.
        """
        now_s = self._runtime.clock.monotonic_s()
        everything = everything or self._is_leaving()
        due = [key for key, (due_s, _) in self._kept.items() if everything or due_s <= now_s]
        page = due[:BATCH_LOG_PAGE]
        for key in page:
            await self._replay(key)
        return len(due) > len(page) and not any(key in self._kept for key in page)

    def _is_leaving(self) -> bool:
        info = self._hints.plans.cluster.directory.by_id.get(NodeId(self._own_id()))
        return info is not None and info.state in (NodeState.DECOMMISSIONING, NodeState.LEFT)

    async def _replay(self, key: bytes) -> None:
        found = self._store.records(key, key + b"\0", 1)
        if not found or key not in self._kept:
            return
        batch = decode_batch(*found[0])
        mutations = self._owed(batch)
        self._runtime.probes.reach("batches.replayed")
        self.replayed += 1
        if mutations and not await self._write(mutations, batch.created_us):
            self.replay_failures += 1
            if key in self._kept:
                # Behind the others, which may go to replicas that have room for hints.
                self._kept[key] = self._kept.pop(key)
            return
        if key in self._kept:
            self._delete(key)

    def _owed(self, batch: KeepBatch) -> list[Mutation]:
        """The writes of a batch whose tables are there and that are not too old; others are marked."""
        owed: list[Mutation] = []
        for mutation in batch.mutations:
            gc_grace_s = self._hints.gc_grace_s(mutation.table_id)
            if gc_grace_s is None:
                continue
            is_past = self._hints.outlived(mutation, batch.created_us)
            if not is_past and not self._hints.is_late(gc_grace_s, batch.created_us):
                owed.append(mutation)
                continue
            reason = OUTLIVED if is_past else EXPIRED
            self._hints.dropped[reason] += 1
            plan = self._hints.plans.plan_of(mutation, Consistency.ONE)
            marks = [
                mark
                for target in plan.targets
                for mark in self._hints.marks_of(reason, target.node, mutation, batch.created_us)
            ]
            self._hints.store.mark(marks)
        return owed

    async def _write(self, mutations: Sequence[Mutation], made_us: int) -> bool:
        """Whether every write is on all its replicas, or has durable hints for the others.

        The batch is admitted once, as its coordinator did: it may have more writes than may be in flight.
        """
        timeout_ms = self._replay_after_ms / 2
        try:
            self._writes.admit()
        except Overloaded:
            return False
        ends = [
            begin_guaranteed(self._writes, mutation, timeout_ms, made_us=made_us, is_admitted=True)
            for mutation in mutations
        ]
        told = await asyncio.gather(*ends)
        for whole, sequence in told:
            if not whole:
                return False
            await self._hints.store.synced(sequence)
        return True
