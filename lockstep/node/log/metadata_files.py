"""Names and reading of the files below `metadata/`: log segments, snapshots, and the same in an archive.

A segment `log-<first epoch>` holds the entries from one snapshot to the next; `snapshot-<epoch>` the value
before that snapshot entry, and the entry. Invariant: a file under its final name is whole, but for the newest
segment's torn tail and for what a disk has damaged since.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.snapshot_file import SnapshotContent, SnapshotFileReader, SnapshotInfo, read_file
from lockstep.metadata.part import Registered
from lockstep.node.log.journal import Journal
from lockstep.runtime.ports import Disk
from lockstep.values.codec import decoder
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import SNAPSHOT_PIECE_BYTES_MAX

DIRECTORY = "metadata"
CHECKPOINTS = f"{DIRECTORY}/checkpoints"
#: A file that is being written.
PARTIAL = ".part"
_SEGMENT = "log-"
_SNAPSHOT = "snapshot-"

_ENTRIES: msgspec.msgpack.Decoder[list[LogEntry]] = decoder(list[LogEntry])


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


def file_parts(disk: Disk, path: str) -> Iterator[bytes]:
    """The file's bytes in pieces that one turn of the loop may handle."""
    offset = 0
    while part := disk.read_at(path, offset, SNAPSHOT_PIECE_BYTES_MAX):
        yield part
        offset += len(part)


def read_snapshot(disk: Disk, epoch: int, registered: Registered) -> SnapshotContent:
    """CorruptFile when it is not whole, or is of another epoch."""
    path = snapshot_path(epoch)
    return checked(read_file(file_parts(disk, path), path, registered), path, epoch)


def checked(content: SnapshotContent, path: str, epoch: int) -> SnapshotContent:
    entry = content.header.entry
    if entry is None or entry.epoch != epoch:
        raise CorruptFile(path, 0, "it is the snapshot of another epoch")
    return content


def snapshot_info(disk: Disk, epoch: int, registered: Registered) -> SnapshotInfo:
    """From the header alone; CorruptFile when that cannot be read."""
    path = snapshot_path(epoch)
    reader = SnapshotFileReader(path, registered)
    reader.feed(disk.read_at(path, 0, SNAPSHOT_PIECE_BYTES_MAX))
    header = reader.header
    if header is None or header.entry is None or header.entry.epoch != epoch:
        raise CorruptFile(path, 0, "it has no header of this snapshot")
    return SnapshotInfo(epoch, header.entry, header.digest, disk.size(path))
