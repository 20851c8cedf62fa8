"""This node's current ClusterMetadata, fed with committed entries from Raft or from peers.

Invariant: entries are applied in epoch order without a gap, each is durable here before the value that
contains it can be seen by anyone, and two sources can never make it apply different entries at one epoch. A
gap is only ever crossed by installing a snapshot, which is durable before its value is seen.

Who is told of each applied entry.

Invariant: listeners are told in the order in which they came, of every entry in order; those that look at
parts of the cluster are not told of an entry that changed none, such as one that sets an extension.

Who waits for an epoch to be applied here.

Invariant: everyone who waits is told: that the epoch is there, or why it never will be.

Writes the snapshots that the log orders, beside everything else the node does.

Invariant: of several that are due only the newest is written; a failure is told and leaves a longer log, and
the next snapshot tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from lockstep.metadata.access.roles import ACCESS
from lockstep.metadata.cluster import ClusterMetadata, Newest, empty_cluster
from lockstep.metadata.directory import DIRECTORY, EXCLUDED
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.loads import LOADS
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.log.snapshot_file import SnapshotInfo
from lockstep.metadata.operations import OPERATIONS
from lockstep.metadata.repairs import REPAIRS
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.transitions import TRANSITIONS
from lockstep.node.log import metadata_store
from lockstep.node.log.metadata_store import (
    DEFAULT_RETENTION,
    MetadataStore,
    Retention,
    committed_after,
    up_to_snapshot,
)
from lockstep.runtime.ports import Disk, Runtime
from lockstep.values.errors import CannotApply, CorruptFile, LockstepError, LogTruncated
from lockstep.values.limits import LOG_FETCH_BYTES_MAX, LOG_FETCH_ENTRIES_MAX
from lockstep.values.node_limits import LOG_DEFERRED_MS

#: Told of each snapshot that is durable here.
SnapshotListener = Callable[[SnapshotInfo], None]


class SnapshotSaver:
    """`bound()` drops what need not be kept any more; called after each snapshot and when `wake` says so."""

    def __init__(
        self, store: MetadataStore, bound: Callable[[], Awaitable[None]], log: Callable[..., None]
    ) -> None:
        self._store = store
        self._bound = bound
        self._log = log
        self._due: tuple[ClusterMetadata, LogEntry] | None = None
        self._wanted = asyncio.Event()
        self.listeners: list[SnapshotListener] = []

    def due(self, value: ClusterMetadata, entry: LogEntry) -> None:
        """A snapshot entry follows `value`: both are to be stored."""
        self._due = (value, entry)
        self._wanted.set()

    def wake(self) -> None:
        """Something may be dropped."""
        self._wanted.set()

    def saved(self, info: SnapshotInfo) -> None:
        """A snapshot is durable, by whomever."""
        self._log("metadata.snapshot", epoch=info.epoch, size_bytes=info.size_bytes)
        for listener in self.listeners:
            listener(info)

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            due, self._due = self._due, None
            try:
                async with self._store.changing:
                    if due is not None and due[1].epoch not in self._store.infos:
                        self.saved(await self._store.write_snapshot(*due))
                    await self._bound()
            except (LockstepError, OSError) as error:
                self._log("metadata.snapshot_failed", error=str(error))


class EpochWaiters:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def wait(self, epoch: int) -> None:
        """Return once `reached` was called with this epoch or a later one; raises what `fail` was given."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (epoch, future)
        self._waiting.append(waiter)
        try:
            await future
        finally:
            if future.cancelled():
                self._waiting = [other for other in self._waiting if other is not waiter]

    def reached(self, epoch: int) -> None:
        if not self._waiting:
            return
        waiting = self._waiting
        self._waiting = [pair for pair in waiting if pair[0] > epoch and not pair[1].done()]
        for wanted, future in waiting:
            if wanted <= epoch and not future.done():
                future.set_result(None)

    def fail(self, error: LockstepError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)


#: Told (before, after, entry) after each applied entry, in order. After an installed snapshot `before` may be
#: many epochs older, and `entry` is the snapshot's.
Listener = Callable[[ClusterMetadata, ClusterMetadata, LogEntry], None]


class EpochListeners:
    def __init__(self) -> None:
        self._all: list[Listener] = []
        self._of_every_entry: list[Listener] = []

    def add(self, listener: Listener, *, parts_only: bool) -> None:
        self._all.append(listener)
        if not parts_only:
            self._of_every_entry.append(listener)

    def remove(self, listener: Listener) -> None:
        self._all = [other for other in self._all if other != listener]
        self._of_every_entry = [other for other in self._of_every_entry if other != listener]

    def tell(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        for listener in self._of_every_entry if _same_parts(before, after) else self._all:
            listener(before, after, entry)


def _same_parts(before: ClusterMetadata, after: ClusterMetadata) -> bool:
    return _TOLD_OF.isdisjoint(after.parts.differing(before.parts))


#: The parts that `parts_only` listeners follow.
_TOLD_OF: Final = frozenset(
    part.number
    for part in (
        DIRECTORY,
        SCHEMA,
        SERVICE,
        OPERATIONS,
        TRANSITIONS,
        PLACEMENTS,
        EXCLUDED,
        REPAIRS,
        ACCESS,
        LOADS,
    )
)


#: What applying an entry to a value makes, where somebody has found out before; else None.
KnownValue = Callable[[LogEntry, ClusterMetadata], ClusterMetadata | None]


class GroupJournal(Protocol):
    """The journal of the group whose log the metadata is, as far as this node's member writes one."""

    def covers(self, epoch: int) -> bool:
        """Whether it holds what is to be applied up to this epoch durably, as entries of the group."""
        ...

    async def mark(self, epoch: int) -> bool:
        """Return once it also says durably that they are committed; False when it never will."""
        ...


class _Install(msgspec.Struct):
    value: ClusterMetadata
    entry: LogEntry
    done: asyncio.Future[None]


class MetadataState:
    """`on_broken(reason)` is called once when an entry cannot be applied: the node must stop serving."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        on_broken: Callable[[LockstepError], None],
        log: Callable[..., None] = lambda *_, **__: None,
        retention: Retention = DEFAULT_RETENTION,
        known_value: KnownValue = lambda *_: None,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._on_broken = on_broken
        self._log = log
        self.store = MetadataStore(runtime, retention, log, registry.parts)
        self._pending: list[LogEntry] = []
        self._install: _Install | None = None
        self._work = asyncio.Event()
        self._waiters = EpochWaiters()
        self._listeners = EpochListeners()
        self._saver = SnapshotSaver(self.store, self._retain, log)
        #: Applied entries from `first_epoch` on, those that are retained.
        self.entries: list[LogEntry] = []
        self.newest = Newest(empty_cluster(registry.parts))
        self.broken: LockstepError | None = None
        #: Nothing above this epoch is applied, for a test; None for no such limit.
        self._held_at: int | None = None
        self._known_value = known_value
        #: Of this node's member of the group, whether or not it has one now.
        self.journal: GroupJournal | None = None
        self._flush_wanted = asyncio.Event()

    @property
    def current(self) -> ClusterMetadata:
        return self.newest.cluster

    @property
    def epoch(self) -> int:
        return self.newest.epoch

    @property
    def first_epoch(self) -> int:
        """The oldest epoch whose entry is kept; the next epoch when none is."""
        return self.entries[0].epoch if self.entries else self.epoch + 1

    @property
    def registry(self) -> Registry:
        return self._registry

    @property
    def disks(self) -> tuple[Disk, ...]:
        """Where segments and snapshots are: this node's directory, and the archive when there is one."""
        archive = self._runtime.archive
        return (self._runtime.disk,) if archive is None else (self._runtime.disk, archive)

    # -- life ---------------------------------------------------------------------------------------

    def load(self, *, quiet: bool = False, up_to: int = -1) -> None:
        """Start from the newest whole snapshot and apply what follows; CorruptFile or CannotApply when the
        directory holds no whole chain. `quiet`: it is only looked at, by a node that does not live
        yet. `up_to`: take nothing from the journal of the group above this epoch."""
        loaded = self.store.load()
        value = empty_cluster(self._registry.parts)
        if loaded.base is not None and loaded.base.header.entry is not None:
            value = apply_entry(loaded.base.value, loaded.base.header.entry, self._registry)
        applied = value.epoch - loaded.entries[0].epoch + 1 if loaded.entries else 0
        for entry in loaded.entries[applied:]:
            if entry.kind == EntryKind.SNAPSHOT:
                self._saver.due(value, entry)
            value = apply_entry(value, entry, self._registry)
        self.entries = loaded.entries
        self.newest.show(value)
        self._take_from_journal(up_to, quiet=quiet)
        if not quiet:
            self._observe(installed=False)

    def _take_from_journal(self, up_to: int, *, quiet: bool) -> None:
        """Apply what the journal of the group knows to be committed and the metadata's own files lack. A node
        that lives comes up broken where it cannot, with all that is before."""
        value = self.current
        missing = committed_after(self._runtime.disk, value.epoch)
        if up_to >= 0:
            missing = [entry for entry in missing if entry.epoch <= up_to]
        if missing and missing[0].epoch > value.epoch + 1:
            lost = f"entries {value.epoch + 1} to {missing[0].epoch - 1} were applied here and are missing"
            raise CorruptFile(metadata_store.DIRECTORY, 0, lost)
        for at, entry in enumerate(missing):
            try:
                after = apply_entry(value, entry, self._registry)
            except CannotApply as error:
                if quiet:
                    raise
                missing, self.broken = missing[:at], error
                break
            if entry.kind == EntryKind.SNAPSHOT:
                self._saver.due(value, entry)
            value = after
        self.store.keep(missing)
        self._flush_wanted.set()
        self.entries.extend(missing)
        self.newest.show(value)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._apply_loop(), "metadata.apply")
        self._runtime.tasks.spawn(self._flush_loop(), "metadata.flush")
        self._runtime.tasks.spawn(self._saver.run(), "metadata.snapshots")
        self._saver.wake()

    def listen(self, listener: Listener, *, parts_only: bool = False) -> None:
        """`parts_only`: leave out entries that changed no part but extensions."""
        self._listeners.add(listener, parts_only=parts_only)

    def unlisten(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def listen_snapshots(self, listener: SnapshotListener) -> None:
        """Be told when a snapshot is durable here, also one that was installed."""
        self._saver.listeners.append(listener)

    # -- entries ------------------------------------------------------------------------------------

    def offer(self, entries: Sequence[LogEntry]) -> int:
        """Queue committed entries; known ones are compared and skipped, what follows a gap is ignored.

        The newest epoch that is applied or will be, once the queue has been worked off.
        """
        queued = self._queued
        for entry in entries:
            if entry.epoch <= queued:
                self._check_same(entry)
            elif entry.epoch == queued + 1:
                self._pending.append(entry)
                queued += 1
            else:
                break
        if self._pending:
            self._work.set()
        return queued

    @property
    def _queued(self) -> int:
        """The newest epoch applied, being applied or waiting for it."""
        return (self.entries[-1].epoch if self.entries else self.epoch) + len(self._pending)

    @property
    def tail(self) -> tuple[int, bytes]:
        """(epoch, hash) of the newest entry that is applied here or waits for it."""
        if self._pending:
            return self._pending[-1].epoch, self._pending[-1].hash
        if self.entries:
            return self.entries[-1].epoch, self.entries[-1].hash
        return self.epoch, self.current.hash

    def entries_after(self, epoch: int) -> tuple[LogEntry, ...]:
        """Applied entries following `epoch`, as many as one batch may hold; LogTruncated when the first of
        them is kept no more: a snapshot is needed."""
        first = max(epoch, 0) + 1
        if first < self.first_epoch and first <= self.epoch:
            raise LogTruncated(
                f"the log is kept here from epoch {self.first_epoch} on, and epoch {first} is wanted",
                self.first_epoch,
            )
        return tuple(_batch(self.retained(first, first + LOG_FETCH_ENTRIES_MAX - 1)))

    def retained(self, first: int, last: int) -> list[LogEntry]:
        """Entries of these epochs (both included) that are applied and kept here."""
        base = self.first_epoch
        return self.entries[max(first - base, 0) : max(last - base + 1, 0)]

    def hash_at(self, epoch: int) -> bytes | None:
        """The hash at an epoch, from retained entries, snapshots or checkpoints; None when not known."""
        around = self.retained(epoch, epoch + 1)
        if around:
            return around[0].hash if around[0].epoch == epoch else around[0].previous_hash
        return self.current.hash if epoch == self.epoch else self.store.hash_at(epoch)

    async def wait_for(self, epoch: int) -> None:
        """Return when `epoch` is applied; raises the reason when this node can apply no more."""
        if self.current.epoch >= epoch:
            return
        if self.broken is not None:
            raise self.broken
        await self._waiters.wait(epoch)

    def give_up(self, error: LockstepError) -> None:
        """Apply nothing more: this node's history has proved to be wrong."""
        self._break(error)

    # -- snapshots ----------------------------------------------------------------------------------

    def latest_snapshot(self) -> SnapshotInfo | None:
        """The newest snapshot that is durable here."""
        return self.store.latest()

    def read_snapshot_chunk(self, epoch: int, offset: int, size: int) -> bytes | None:
        """Bytes of the file of the snapshot entry at `epoch` (see metadata.snapshot_file), empty at its end;
        None when that snapshot is kept no more. All nodes' files of one epoch are equal."""
        if epoch not in self.store.infos:
            return None
        return self._runtime.disk.read_at(metadata_store.snapshot_path(epoch), offset, size)

    async def install(
        self, value: ClusterMetadata, entry: LogEntry, following: Sequence[LogEntry] = ()
    ) -> None:
        """Jump to the snapshot `entry` whose value before it is `value`, then apply what follows.

        Returns when the snapshot's epoch is applied (at once when it was). The caller vouches that the entry
        is committed; CannotApply when value and entry contradict each other, and nothing has happened then.
        Entries before the snapshot are dropped unless they lead up to it without a gap.
        """
        if entry.kind != EntryKind.SNAPSHOT:
            raise CannotApply(f"entry {entry.epoch} is no snapshot")
        apply_entry(value, entry, self._registry)
        while self._install is not None:
            await asyncio.shield(self._install.done)
        if self.broken is not None:
            raise self.broken
        if entry.epoch > self._queued:
            install = _Install(value, entry, asyncio.get_running_loop().create_future())
            self._install = install
            self._work.set()
            await asyncio.shield(install.done)
        self.offer(following)
        await self.wait_for(entry.epoch)

    # -- applying -----------------------------------------------------------------------------------

    def _check_same(self, entry: LogEntry) -> None:
        waiting = entry.epoch - (self._queued - len(self._pending)) - 1
        known = self._pending[waiting].hash if waiting >= 0 else self.hash_at(entry.epoch)
        if known is not None and known != entry.hash:
            self._break(CannotApply(f"two different entries claim epoch {entry.epoch}: the log has forked"))

    async def _apply_loop(self) -> None:
        while self.broken is None:
            await self._work.wait()
            self._work.clear()
            while self._next_batch() and self.broken is None:
                try:
                    if self._install is not None:
                        await self._apply_install(self._install)
                    else:
                        await self._apply_batch(self._next_batch())
                except LockstepError as error:
                    self._break(error)
                except Exception as defect:
                    self._break(CannotApply(f"applying epoch {self.epoch + 1} failed: {defect!r}"))
                    raise

    def hold_at(self, epoch: int | None) -> None:
        """Apply nothing above `epoch` until it is raised or None, as before the node goes on elsewhere."""
        self._held_at = epoch
        self._work.set()

    def _next_batch(self) -> list[LogEntry]:
        """What may be applied now; the entry of a snapshot that is to be installed stands for that."""
        limit = self._held_at
        if self._install is not None:
            entry = self._install.entry
            return [entry] if limit is None or entry.epoch <= limit else []
        batch = list(up_to_snapshot(_batch(self._pending)))
        return batch if limit is None else [entry for entry in batch if entry.epoch <= limit]

    async def _apply_batch(self, batch: list[LogEntry]) -> None:
        value = self.current
        values: list[ClusterMetadata] = []
        known_value, registry = self._known_value, self._registry
        for entry in batch:
            try:
                value = known_value(entry, value) or apply_entry(value, entry, registry)
            except Exception:
                if not values:
                    raise
                break  # What comes before it is applied; then it is the first of a batch.
            values.append(value)
        batch = batch[: len(values)]
        await self._runtime.probes.linger("metadata.apply.before_sync")
        await self._make_durable(batch)
        self._runtime.probes.reach("metadata.apply.after_sync")
        self.entries.extend(batch)
        del self._pending[: len(batch)]
        for entry, after in zip(batch, values, strict=True):
            self._show(after, entry)
        self._waiters.reached(self.epoch)

    async def _make_durable(self, batch: list[LogEntry]) -> None:
        """Return when a start would come to the end of the batch, from this node's own files."""
        journal, last = self.journal, batch[-1].epoch
        if journal is not None and journal.covers(last) and await journal.mark(last):
            self._runtime.probes.reach("metadata.deferred")
            await self.store.defer(batch)
            self._flush_wanted.set()
        else:
            await self.store.append(batch)

    async def _flush_loop(self) -> None:
        """Bring what only the group's journal holds to the metadata's own files, some time later."""
        try:
            while self.broken is None:
                await self._flush_wanted.wait()
                self._flush_wanted.clear()
                await asyncio.sleep(LOG_DEFERRED_MS / 1000)
                await self.store.flush()
        except LockstepError as error:
            self._break(error)

    async def _apply_install(self, install: _Install) -> None:
        """Make the snapshot durable, then show its value. Entries that wait stay when they follow it."""
        entry = install.entry
        try:
            if entry.epoch > self.epoch:
                after = apply_entry(install.value, entry, self._registry)
                async with self.store.changing:
                    await self.store.flush()
                    info = await self.store.write_snapshot(install.value, entry)
                    await self.store.pass_over(entry.epoch, self.entries)
                self._pending = [one for one in self._pending if one.epoch > entry.epoch]
                self.entries = [entry]
                self._show(after, entry, installed=True)
                self._waiters.reached(self.epoch)
                self._saver.saved(info)
                self._saver.wake()
        finally:
            self._install = None
            if not install.done.done():
                install.done.set_result(None)

    def _show(self, after: ClusterMetadata, entry: LogEntry, *, installed: bool = False) -> None:
        before = self.current
        self.newest.show(after)
        if entry.kind == EntryKind.SNAPSHOT and not installed:
            self._saver.due(before, entry)
        elif entry.kind == EntryKind.TRUNCATE_LOG:
            self._saver.wake()
        self._observe(installed=installed)
        self._listeners.tell(before, after, entry)

    def validate(self) -> None:
        for entries in (self.entries, self._pending):
            assert not entries or entries[-1].epoch - entries[0].epoch == len(entries) - 1, "a gap in the log"
        if self.entries:
            assert self.entries[-1].epoch >= self.epoch, "what is applied is kept"
            if self._pending:
                assert self._pending[0].previous_hash == self.entries[-1].hash, "what waits follows"

    # -- saving -------------------------------------------------------------------------------------

    async def _retain(self) -> None:
        first = await self.store.retain(self.current.service.truncated_epoch, self.entries)
        dropped = first - self.first_epoch
        if dropped > 0:
            del self.entries[:dropped]
            self._log("metadata.log_dropped", entries=dropped, first_epoch=self.first_epoch)

    def _observe(self, *, installed: bool) -> None:
        self._runtime.probes.observe("metadata.applied", cluster=self.current, installed=installed)

    def _break(self, error: LockstepError) -> None:
        if self.broken is None:
            self.broken = error
            self._on_broken(error)
            self._waiters.fail(error)
            if self._install is not None and not self._install.done.done():
                self._install.done.set_result(None)


def _batch(entries: Sequence[LogEntry]) -> list[LogEntry]:
    """The first entries that one message and one journal record may hold; never none of some."""
    size = 0
    for count, entry in enumerate(entries[:LOG_FETCH_ENTRIES_MAX]):
        size += len(entry.body)
        if count and size > LOG_FETCH_BYTES_MAX:
            return list(entries[:count])
    return list(entries[:LOG_FETCH_ENTRIES_MAX])
