"""This node's current ClusterMetadata, fed with committed entries from Raft or from peers.

Invariant: entries are applied in epoch order without a gap, each is durable here before the value that
contains it can be seen by anyone, and two sources can never make it apply different entries at one epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from lockstep.metadata.apply import apply_entry
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.digest import state_digest
from lockstep.metadata.entries import LogEntry
from lockstep.metadata.registry import Registry
from lockstep.node.journal import Journal
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import CannotApply, LockstepError
from lockstep.values.limits import LOG_FETCH_BYTES_MAX, LOG_FETCH_ENTRIES_MAX

#: Told (before, after, entry) after each applied entry, in order.
Listener = Callable[[ClusterMetadata, ClusterMetadata, LogEntry], None]

_DECODER: msgspec.msgpack.Decoder[list[LogEntry]] = decoder(list[LogEntry])


class MetadataState:
    """`on_broken(reason)` is called once when an entry cannot be applied: the node must stop serving."""

    def __init__(
        self, runtime: Runtime, registry: Registry, on_broken: Callable[[LockstepError], None]
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._on_broken = on_broken
        self._journal = Journal(runtime.disk, "metadata/log")
        self._pending: list[LogEntry] = []
        self._work = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._listeners: list[Listener] = []
        self.entries: list[LogEntry] = []
        self.current = empty_cluster()
        self.broken: LockstepError | None = None

    @property
    def epoch(self) -> int:
        return self.current.epoch

    def load(self) -> None:
        """Replay the durable log; CorruptFile or CannotApply when it is not a whole chain."""
        for record in self._journal.load_as(_DECODER):
            for entry in record:
                self.current = apply_entry(self.current, entry, self._registry)
                self.entries.append(entry)
        self._observe()

    def start(self) -> None:
        self._runtime.tasks.spawn(self._apply_loop(), "metadata.apply")

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def offer(self, entries: Sequence[LogEntry]) -> int:
        """Queue committed entries; known ones are compared and skipped, what follows a gap is ignored.

        The newest epoch that is applied or will be, once the queue has been worked off.
        """
        for entry in entries:
            queued = len(self.entries) + len(self._pending)
            if entry.epoch <= queued:
                self._check_same(entry)
            elif entry.epoch == queued + 1:
                self._pending.append(entry)
            else:
                break
        if self._pending:
            self._work.set()
        return len(self.entries) + len(self._pending)

    def entries_after(self, epoch: int) -> tuple[LogEntry, ...]:
        """Applied entries following `epoch`, as many as one batch may hold."""
        return tuple(_batch(self.entries[max(epoch, 0) : max(epoch, 0) + LOG_FETCH_ENTRIES_MAX]))

    def hash_at(self, epoch: int) -> bytes | None:
        """The hash of an applied epoch; None when it is not known here (any more)."""
        if epoch == self.current.epoch:
            return self.current.hash
        return self.entries[epoch - 1].hash if 0 < epoch <= len(self.entries) else None

    @property
    def tail(self) -> tuple[int, bytes]:
        """(epoch, hash) of the newest entry that is applied or waits to be."""
        last = self._pending[-1] if self._pending else self.current
        return last.epoch, last.hash

    def give_up(self, error: LockstepError) -> None:
        """This node's history turned out to be wrong: it applies no more and stops serving."""
        self._break(error)

    async def wait_for(self, epoch: int) -> None:
        """Return when `epoch` is applied; raises the reason when this node can apply no more."""
        if self.current.epoch >= epoch:
            return
        if self.broken is not None:
            raise self.broken
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (epoch, future)
        self._waiters.append(waiter)
        try:
            await future
        finally:
            if future.cancelled():
                self._waiters = [other for other in self._waiters if other is not waiter]

    def _check_same(self, entry: LogEntry) -> None:
        known = (
            self.entries[entry.epoch - 1]
            if entry.epoch <= len(self.entries)
            else self._pending[entry.epoch - 1 - len(self.entries)]
        )
        if known.hash != entry.hash:
            self._break(CannotApply(f"two different entries claim epoch {entry.epoch}: the log has forked"))

    async def _apply_loop(self) -> None:
        while self.broken is None:
            await self._work.wait()
            self._work.clear()
            while self._pending and self.broken is None:
                try:
                    await self._apply_batch(_batch(self._pending))
                except LockstepError as error:
                    self._break(error)
                except Exception as defect:
                    self._break(CannotApply(f"applying epoch {self.epoch + 1} failed: {defect!r}"))
                    raise

    async def _apply_batch(self, batch: list[LogEntry]) -> None:
        value = self.current
        values: list[ClusterMetadata] = []
        for entry in batch:
            value = apply_entry(value, entry, self._registry)
            values.append(value)
        await self._runtime.probes.linger("metadata.apply.before_sync")
        await self._journal.append(encode(batch))
        self._runtime.probes.reach("metadata.apply.after_sync")
        for entry, after in zip(batch, values, strict=True):
            before, self.current = self.current, after
            self.entries.append(entry)
            del self._pending[0]
            self._observe()
            for listener in self._listeners:
                listener(before, after, entry)
        self._wake()

    def _observe(self) -> None:
        cluster = self.current
        self._runtime.probes.observe("metadata.applied", cluster=cluster, digest=state_digest(cluster))

    def _wake(self) -> None:
        epoch = self.current.epoch
        waiting = self._waiters
        self._waiters = [pair for pair in waiting if pair[0] > epoch and not pair[1].done()]
        for wanted, future in waiting:
            if wanted <= epoch and not future.done():
                future.set_result(None)

    def _break(self, error: LockstepError) -> None:
        if self.broken is None:
            self.broken = error
            self._on_broken(error)
            for _, future in self._waiters:
                if not future.done():
                    future.set_exception(error)
            self._waiters = []


def _batch(entries: Sequence[LogEntry]) -> list[LogEntry]:
    """The first entries that one message and one journal record may hold; never none of some."""
    size = 0
    for count, entry in enumerate(entries[:LOG_FETCH_ENTRIES_MAX]):
        size += len(entry.body)
        if count and size > LOG_FETCH_BYTES_MAX:
            return list(entries[:count])
    return list(entries[:LOG_FETCH_ENTRIES_MAX])
