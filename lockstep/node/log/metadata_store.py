"""The durable half of the metadata: log segments, snapshots, checkpoints of what was dropped; the names of
their files, and an empty data directory that begins with a dump.

A segment `log-<first epoch>` holds the entries from one snapshot to the next; `snapshot-<epoch>` the value
before that snapshot entry, and the entry.

Only the metadata is written, no identity: the node that starts there is new, joins through its seeds like any
other, and follows the log from the dump's last epoch on. Peers prove the rest: if the dump is of another
history than theirs, its hashes contradict theirs and the node stops. Bringing a dump into a cluster that runs
is recovery and is not done here.

Invariant: a snapshot gets its name only when it is whole and synced, and what it stands for is dropped only
after its name is durable, so a crash at any point leaves a directory that loads; entries are dropped in whole
segments from the oldest on, each after its checkpoints (and, with an archive, its copy) are durable. A file
under its final name is whole, but for the newest segment's torn tail and for what a disk has damaged since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lockstep.consensus.messages import EntryKind as RaftEntryKind
from lockstep.metadata.cluster import GENESIS_HASH, ClusterMetadata
from lockstep.metadata.log.entries import ENTRY_DECODER, LogEntry, verify_chain
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot_file import (
    Dump,
    SnapshotContent,
    SnapshotFileReader,
    SnapshotInfo,
    entry_batches,
    file_records,
    header_of,
    read_file,
)
from lockstep.metadata.part import Registered
from lockstep.node.kinds import every_kind
from lockstep.node.log.journal import METADATA_GROUP, Journal, RaftJournal, settle
from lockstep.runtime.ports import Disk, Runtime
from lockstep.values.codec import Decoder, decoder, encode
from lockstep.values.errors import ConfigurationError, CorruptFile, LockstepError
from lockstep.values.limits import (
    LOG_CHECKPOINT_EPOCHS,
    SNAPSHOT_PIECE_BYTES_MAX,
)
from lockstep.values.node_limits import LOG_DEFERRED_BYTES_MAX, LOG_DEFERRED_ENTRIES_MAX

DIRECTORY = "metadata"
CHECKPOINTS = f"{DIRECTORY}/checkpoints"
#: A file that is being written.
PARTIAL = ".part"
_SEGMENT = "log-"
_SNAPSHOT = "snapshot-"
#: What an entry has beside its body: two hashes, its id, who made it and when.
_ENVELOPE_BYTES = 128

_ENTRIES: Decoder[list[LogEntry]] = decoder(list[LogEntry])


def segment_path(first_epoch: int) -> str:
    return f"{DIRECTORY}/{_SEGMENT}{first_epoch:012d}"


def snapshot_path(epoch: int) -> str:
    return f"{DIRECTORY}/{_SNAPSHOT}{epoch:012d}"


def segments(disk: Disk) -> list[int]:
    """First epochs of all segments, ascending."""
    return _numbers(disk, _SEGMENT)


def snapshots(disk: Disk) -> list[int]:
    """Epochs of all snapshot files, ascending; whether they can be read is another matter."""
    return _numbers(disk, _SNAPSHOT)


def dump_path(epoch: int, entries: bool) -> str:
    """A dump being fetched: like every partial file it is gone after the next start."""
    return f"{DIRECTORY}/dump-{epoch}-{'log' if entries else 'value'}{PARTIAL}"


def dumps(disk: Disk) -> list[str]:
    return [path for path in partial_files(disk) if path.startswith(f"{DIRECTORY}/dump")]


def partial_files(disk: Disk) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.names(DIRECTORY) if name.endswith(PARTIAL)]


def _numbers(disk: Disk, prefix: str) -> list[int]:
    names = [name.removeprefix(prefix) for name in disk.names(DIRECTORY) if name.startswith(prefix)]
    return sorted(int(name) for name in names if name.isdecimal())


def read_segment(disk: Disk, first_epoch: int) -> list[LogEntry]:
    """Its entries, a torn tail cut off; CorruptFile when it is damaged otherwise or begins elsewhere."""
    path = segment_path(first_epoch)
    entries = [entry for record in Journal(disk, path).load_as(_ENTRIES) for entry in record]
    for at, entry in enumerate(entries):
        if entry.epoch != first_epoch + at:
            raise CorruptFile(path, 0, f"entry {entry.epoch} is where entry {first_epoch + at} belongs")
    return entries


def committed_after(disk: Disk, epoch: int) -> list[LogEntry]:
    """Metadata entries after `epoch` that the journal of this node's member of the group knows to be
    committed."""
    found: list[LogEntry] = []
    for logged in reversed(RaftJournal(disk, METADATA_GROUP).load().committed):
        if logged.kind is RaftEntryKind.NORMAL:
            entry = ENTRY_DECODER.decode(logged.data)
            if entry.epoch <= epoch:
                break
            found.append(entry)
    return found[::-1]


def _size_of(batch: Sequence[LogEntry]) -> int:
    """About what they take in a file."""
    return sum([len(entry.body) for entry in batch]) + _ENVELOPE_BYTES * len(batch)


def up_to_snapshot(batch: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """The batch up to its first snapshot entry: with it ends a segment."""
    for at, entry in enumerate(batch):
        if entry.kind == EntryKind.SNAPSHOT:
            return batch[: at + 1]
    return batch


def file_parts(disk: Disk, path: str) -> Iterator[bytes]:
    """The file's bytes in pieces that one turn of the loop may handle."""
    offset = 0
    while part := disk.read_at(path, offset, SNAPSHOT_PIECE_BYTES_MAX):
        yield part
        offset += len(part)


def read_snapshot(disk: Disk, epoch: int, registered: Registered) -> SnapshotContent:
    """CorruptFile when it is not whole, or is of another epoch."""
    path = snapshot_path(epoch)
    return checked(read_file(file_parts(disk, path), registered, path), path, epoch)


def checked(content: SnapshotContent, path: str, epoch: int) -> SnapshotContent:
    entry = content.header.entry
    if entry is None or entry.epoch != epoch:
        raise CorruptFile(path, 0, "it is the snapshot of another epoch")
    return content


def snapshot_info(disk: Disk, epoch: int, registered: Registered) -> SnapshotInfo:
    """From the header alone; CorruptFile when that cannot be read."""
    path = snapshot_path(epoch)
    reader = SnapshotFileReader(registered, path)
    reader.feed(disk.read_at(path, 0, SNAPSHOT_PIECE_BYTES_MAX))
    header = reader.header
    if header is None or header.entry is None or header.entry.epoch != epoch:
        raise CorruptFile(path, 0, "it has no header of this snapshot")
    return SnapshotInfo(epoch, header.entry, header.digest, disk.size(path))


_CHECKPOINTS: Decoder[list[tuple[int, bytes]]] = decoder(list[tuple[int, bytes]])


class Retention(msgspec.Struct, frozen=True):
    """What a node keeps: see node.configuration.MetadataSection."""

    entries: int = 10_000
    snapshots: int = 2


DEFAULT_RETENTION = Retention()


class Loaded(msgspec.Struct, frozen=True):
    """`base` is the newest whole snapshot; `entries` are all that are kept, also those before the base."""

    base: SnapshotContent | None
    entries: list[LogEntry]


class MetadataStore:
    """`infos` are the snapshots under their final names, by epoch ascending. Errors of the disk are raised;
    what concerns only the bounding of the log is told to `log` and tried again at the next snapshot."""

    def __init__(
        self,
        runtime: Runtime,
        retention: Retention,
        log: Callable[..., None],
        registered: Registered,
    ) -> None:
        self._runtime = runtime
        self._registered = registered
        self._disk: Disk = runtime.disk
        self._retention = retention
        self._log = log
        self._segments: list[int] = []
        #: Segments before a gap that a snapshot has closed: nothing is read from them any more.
        self._stale: list[int] = []
        #: Snapshots that cannot be read, by epoch.
        self._unreadable: list[int] = []
        #: The segment that takes the next entry; None: it begins with that entry.
        self._active: Journal | None = None
        self._last_epoch = 0
        #: Entries that the segments lack: another file holds them durably.
        self._deferred: list[LogEntry] = []
        self._deferred_bytes = 0
        self._appending = asyncio.Lock()
        self._checkpoint_file = Journal(self._disk, CHECKPOINTS)
        self.checkpoints: dict[int, bytes] = {}
        self.infos: dict[int, SnapshotInfo] = {}
        self._checkpoints_failed: LockstepError | OSError | None = None
        #: One at a time: a snapshot being written, entries being dropped, a snapshot being installed.
        self.changing = asyncio.Lock()
        #: Bytes of the entries after the latest snapshot entry.
        self.log_bytes = 0
        #: Up to here all that a truncation allows to drop is dropped, since this start.
        self.truncated_to = 0

    @property
    def first_segment(self) -> int:
        """First epoch of the oldest segment; the next epoch when there is none."""
        return self._segments[0] if self._segments else self._last_epoch + 1

    def latest(self) -> SnapshotInfo | None:
        return self.infos[next(reversed(self.infos))] if self.infos else None

    def hash_at(self, epoch: int) -> bytes | None:
        """The hash at an epoch, from snapshots or checkpoints; None when neither tells."""
        if (info := self.infos.get(epoch)) is not None:
            return info.entry.hash
        if (info := self.infos.get(epoch + 1)) is not None:
            return info.entry.previous_hash
        return self.checkpoints.get(epoch)

    # -- loading ------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Make durable what a killed predecessor left behind, and forget what it had not finished."""
        for path in partial_files(self._disk):
            self._disk.remove(path)
        await settle(self._disk, [CHECKPOINTS, *map(segment_path, segments(self._disk)[-1:])])
        if self._disk.names(DIRECTORY):
            await self._disk.sync_names(DIRECTORY)

    def load(self) -> Loaded:
        """CorruptFile when what is there does not make one whole history."""
        for record in self._checkpoint_file.load_as(_CHECKPOINTS):
            self.checkpoints.update(record)
        base = self._load_base()
        epoch = base.header.entry.epoch if base is not None and base.header.entry is not None else 0
        entries = self._load_segments(epoch)
        if base is not None and base.header.entry is not None:
            entries = self._joined(base.header.entry, entries)
        elif entries and entries[0].epoch != 1:
            raise CorruptFile(
                DIRECTORY, 0, f"no snapshot can be read, and the log begins at {entries[0].epoch}"
            )
        if entries and epoch:
            # What follows the base is verified when it is applied.
            before = entries[: epoch - entries[0].epoch + 1]
            previous = entries[0].previous_hash if entries[0].epoch > 1 else GENESIS_HASH
            problem = verify_chain(before, epoch=entries[0].epoch - 1, previous_hash=previous)
            if problem is not None:
                raise CorruptFile(DIRECTORY, 0, problem)
        self._last_epoch = entries[-1].epoch if entries else epoch
        lost = max(self._unreadable, default=0)
        if lost > self._last_epoch:
            path = snapshot_path(lost)
            raise CorruptFile(
                path, 0, f"it cannot be read, and all else here ends at epoch {self._last_epoch}"
            )
        self._open_last(entries)
        return Loaded(base, entries)

    def _load_base(self) -> SnapshotContent | None:
        """The newest snapshot that can be read whole; those that cannot are told of and not counted."""
        base: SnapshotContent | None = None
        for epoch in reversed(snapshots(self._disk)):
            try:
                if base is None:
                    base = read_snapshot(self._disk, epoch, self._registered)
                self.infos[epoch] = snapshot_info(self._disk, epoch, self._registered)
            except CorruptFile as damage:
                self._unreadable.append(epoch)
                self._log("metadata.snapshot_unreadable", epoch=epoch, error=str(damage))
        self.infos = dict(sorted(self.infos.items()))
        return base

    def _load_segments(self, base: int) -> list[LogEntry]:
        """Entries of the newest unbroken run of segments; older ones are what a crash while dropping left."""
        run: list[LogEntry] = []
        kept: list[int] = []
        for first in segments(self._disk):
            if kept and first != (run[-1].epoch + 1 if run else kept[-1]):
                if base < first - 1:
                    raise CorruptFile(segment_path(first), 0, f"entries before epoch {first} are missing")
                run, kept = [], []
            kept.append(first)
            run.extend(read_segment(self._disk, first))
        if kept and (run[-1].epoch if run else kept[-1] - 1) < base:
            # A snapshot was installed; the log before it ends earlier.
            run, kept = [], []
        if base and kept and kept[0] > base + 1:
            raise CorruptFile(DIRECTORY, 0, f"entries {base + 1} to {kept[0] - 1} are missing")
        self._stale = [first for first in segments(self._disk) if first not in kept]
        self._segments = kept
        return run

    def _joined(self, entry: LogEntry, run: list[LogEntry]) -> list[LogEntry]:
        """The run with the entry of the snapshot it begins after; the base's own entry is in it."""
        if not run:
            return [entry]
        before = self.infos.get(run[0].epoch - 1)
        if before is not None:
            run = [before.entry, *run]
        if run[entry.epoch - run[0].epoch].hash != entry.hash:
            raise CorruptFile(DIRECTORY, 0, f"log and snapshot differ at epoch {entry.epoch}")
        return run

    def _open_last(self, entries: Sequence[LogEntry]) -> None:
        if self._segments and entries and entries[-1].kind != EntryKind.SNAPSHOT:
            path = segment_path(self._segments[-1])
            self._active = Journal(self._disk, path)
            self.log_bytes = self._disk.size(path)
        elif self._segments and self._segments[-1] == self._last_epoch + 1:
            # An empty file whose first record was torn: it is written under the same name again.
            self._segments.pop()

    # -- writing ------------------------------------------------------------------------------------

    async def append(self, batch: Sequence[LogEntry]) -> None:
        """Return when the entries are durable, and those before them."""
        self.keep(batch)
        await self.flush()

    async def defer(self, batch: Sequence[LogEntry]) -> None:
        """Take entries that are durable in the journal of their group, which keeps them until the next flush.

        They are written when they are many, and when a snapshot entry ends their segment.
        """
        self.keep(batch)
        if (
            batch[-1].kind == EntryKind.SNAPSHOT
            or len(self._deferred) >= LOG_DEFERRED_ENTRIES_MAX
            or self._deferred_bytes >= LOG_DEFERRED_BYTES_MAX
        ):
            await self.flush()

    def keep(self, batch: Sequence[LogEntry]) -> None:
        """Take entries that are durable elsewhere; the next flush writes them."""
        self._deferred.extend(batch)
        size = _size_of(batch)
        self._deferred_bytes += size
        self.log_bytes += size

    async def flush(self) -> None:
        """Return when every entry that was taken is durable in its segment."""
        async with self._appending:
            while self._deferred:
                await self._write_entries(up_to_snapshot(next(entry_batches(self._deferred))))

    async def _write_entries(self, batch: Sequence[LogEntry]) -> None:
        if self._active is None:
            first = batch[0].epoch
            self._active = Journal(self._disk, segment_path(first))
            self._segments.append(first)
            self.log_bytes = self._deferred_bytes
        body = encode(batch)
        await self._active.append(body)
        del self._deferred[: len(batch)]
        self._last_epoch = batch[-1].epoch
        size = _size_of(batch)
        self._deferred_bytes -= size
        self.log_bytes += len(body) - size
        if batch[-1].kind == EntryKind.SNAPSHOT:
            self._active = None

    async def write_snapshot(self, value: ClusterMetadata, entry: LogEntry) -> SnapshotInfo:
        """Write the value before `entry` and the entry; return when the file is durable under its name."""
        path = snapshot_path(entry.epoch)
        partial = path + PARTIAL
        header = header_of(value, entry)
        await self._write(self._disk, partial, file_records(value, header=header))
        self._runtime.probes.reach("metadata.snapshot.before_rename")
        size = self._disk.size(partial)
        self._disk.rename(partial, path)
        await self._disk.sync_names(DIRECTORY)
        info = SnapshotInfo(entry.epoch, entry, header.digest, size)
        self.infos[entry.epoch] = info
        self.infos = dict(sorted(self.infos.items()))
        self._runtime.probes.reach("metadata.snapshot.durable")
        return info

    async def _write(self, disk: Disk, path: str, parts: Iterator[bytes]) -> None:
        """A new file of these parts, synced; others get a turn of the loop after each part."""
        if disk.exists(path):
            disk.remove(path)
        try:
            for part in parts:
                disk.append(path, part)
                await asyncio.sleep(0)
            await disk.sync(path)
        except (LockstepError, OSError):
            if disk.exists(path):
                disk.remove(path)
            raise

    # -- bounding -----------------------------------------------------------------------------------

    async def retain(self, truncated_epoch: int, entries: Sequence[LogEntry]) -> int:
        """Drop what need not be kept; the first epoch whose entry is. `entries` are those in memory.

        Retention by count never drops what stepping back from an unreadable snapshot needs; what a
        truncation entry allows goes as soon as the newest snapshot holds it.
        """
        await self._drop_stale()
        known = list(self.infos)
        held = known[-self._retention.snapshots] if len(known) >= self._retention.snapshots else 0
        floor = min(self._last_epoch - self._retention.entries, held)
        if known:
            floor = max(floor, min(truncated_epoch, known[-1]))
        while self._segments and self._end_of(0) <= floor:
            await self._drop_segment(self._segments[0], self._end_of(0), entries)
        await self._drop_snapshots()
        self.truncated_to = min(truncated_epoch, known[-1]) if known else 0
        before = self.first_segment - 1
        return before if before in self.infos else self.first_segment

    def _end_of(self, position: int) -> int:
        """The last epoch of a segment, never reached by the floor while it takes entries."""
        if position + 1 < len(self._segments):
            return self._segments[position + 1] - 1
        return self._last_epoch if self._active is None else self._last_epoch + 1

    async def _drop_segment(self, first: int, last: int, entries: Sequence[LogEntry]) -> None:
        await self._checkpoint(first, last, entries)
        await self._archived(segment_path(first))
        self._runtime.probes.reach("metadata.drop_segment")
        self._segments.remove(first)
        self._disk.remove(segment_path(first))

    async def _checkpoint(self, first: int, last: int, entries: Sequence[LogEntry]) -> None:
        base = entries[0].epoch if entries else 0
        start = -(-first // LOG_CHECKPOINT_EPOCHS) * LOG_CHECKPOINT_EPOCHS
        found = [
            (epoch, entries[epoch - base].hash)
            for epoch in range(start, last + 1, LOG_CHECKPOINT_EPOCHS)
            if epoch not in self.checkpoints and 0 <= epoch - base < len(entries)
        ]
        if self._checkpoints_failed is not None:
            raise self._checkpoints_failed
        if found:
            try:
                await self._checkpoint_file.append(encode(found))
            except (LockstepError, OSError) as failed:
                # The file's end is unknown until the next start; until then nothing more is dropped.
                self._checkpoints_failed = failed
                raise
            self.checkpoints.update(found)

    async def _drop_snapshots(self) -> None:
        """Keep the newest, and the one from which the oldest kept entry can be applied again."""
        known = list(self.infos)
        needed = [epoch for epoch in known if epoch < self.first_segment][-1:]
        kept = [*known[-self._retention.snapshots :], *needed]
        for epoch in known:
            if epoch not in kept:
                await self._archived(snapshot_path(epoch))
                del self.infos[epoch]
                self._disk.remove(snapshot_path(epoch))
        for epoch in snapshots(self._disk):
            if epoch < next(iter(self.infos), 0):
                # It cannot be read, lies before a gap, or came back after a power cut.
                await self._archived(snapshot_path(epoch))
                self._disk.remove(snapshot_path(epoch))

    async def _drop_stale(self) -> None:
        while self._stale:
            path = segment_path(self._stale[0])
            await self._archived(path)
            self._disk.remove(path)
            del self._stale[0]

    async def pass_over(self, epoch: int, entries: Sequence[LogEntry]) -> None:
        """A snapshot of `epoch` was installed over a gap: what lies before the gap goes with the next
        `retain`. `entries` are those in memory."""
        self._stale += self._segments
        self._segments, self._active = [], None
        self._last_epoch = epoch
        self.log_bytes = 0
        self.infos = {known: info for known, info in self.infos.items() if known >= epoch}
        if entries:
            try:
                await self._checkpoint(entries[0].epoch, entries[-1].epoch, entries)
            except (LockstepError, OSError) as failed:
                # Only proofs of the past are missing then.
                self._log("metadata.checkpoints_failed", error=str(failed))

    async def _archived(self, path: str) -> None:
        """Return when the archive, if there is one, holds the file."""
        archive = self._runtime.archive
        if archive is None:
            return
        if not archive.exists(path):
            await self._write(archive, path + PARTIAL, file_parts(self._disk, path))
            archive.rename(path + PARTIAL, path)
        # Also of one that is there: a killed predecessor may have given it this name a moment ago.
        await archive.sync_names(DIRECTORY)


async def seed_directory(runtime: Runtime, dump: Dump) -> int:
    """The epoch that a node will start at. ConfigurationError when the directory is not empty, or when the
    dump has no snapshot entry and does not begin at epoch 0: a log cannot begin in the middle."""
    if runtime.disk.names(""):
        raise ConfigurationError("the data directory is not empty", hint="name a new one")
    if dump.snapshot is None and dump.base.epoch > 0:
        raise ConfigurationError(
            f"this dump begins at epoch {dump.base.epoch} and has no snapshot entry to begin a log with",
            hint="make one without --value-only: lockstep cms dump FILE",
        )
    store = MetadataStore(runtime, DEFAULT_RETENTION, lambda *_, **__: None, every_kind().parts)
    store.load()
    entries = list(dump.entries)
    if dump.snapshot is not None:
        value, entry = dump.snapshot
        await store.write_snapshot(value, entry)
        entries = [one for one in entries if one.epoch > entry.epoch]
    for batch in entry_batches(entries):
        await store.append(batch)
    return dump.value.epoch
