"""The self-describing file of a metadata value, what snapshots, transfers of them and dumps are, and entries
that follow it in a dump.

Records with length and CRC: a header, the value's stream in pieces, any number of records of entries that
follow the value, a trailer that counts all of them. A snapshot is the value of epoch E - 1 with its snapshot
entry of epoch E; since everything in it comes from the log, the file of a snapshot is the same, byte for
byte, on every node, and a transfer may go on at another peer.

A dump of one epoch alone holds that value; one with entries begins at an older snapshot (or at nothing) and
holds every entry since, so it can be proved to its end and can seed a directory.

Invariant: a file without its trailer, or with anything behind it, is not whole and is never used. What
`load_file` returns was verified: every record, the value's digest, the hash chain, and that each entry
applies.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import apply_entry, state_digest
from lockstep.metadata.log.entries import LogEntry, verify_chain
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.part import Registered
from lockstep.values import codec
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import LOG_FETCH_BYTES_MAX, LOG_FETCH_ENTRIES_MAX, SNAPSHOT_RECORD_BYTES_MAX

FORMAT = "lockstep-metadata"
FORMAT_VERSION = 4
_FRAME = struct.Struct(">II")


class RecordKind(enum.IntEnum):
    HEADER = 1
    PIECE = 2
    ENTRIES = 3
    TRAILER = 4


class Header(msgspec.Struct, frozen=True, array_like=True):
    """`epoch`, `hash` and `digest` are those of the value; `entry` is a snapshot's entry, else None."""

    format: str
    version: int
    epoch: int
    hash: bytes
    digest: bytes
    entry: LogEntry | None = None


class SnapshotContent(msgspec.Struct, frozen=True):
    """What a whole file holds; `entries` follow the value and are a chain."""

    header: Header
    value: ClusterMetadata
    entries: tuple[LogEntry, ...]


class SnapshotInfo(msgspec.Struct, frozen=True, array_like=True):
    """What tells one snapshot from another: the epoch of its entry, the entry, the digest of the value
    before the entry, and the size of its file."""

    epoch: int
    entry: LogEntry
    digest: bytes
    size_bytes: int


_HEADERS = codec.decoder(Header)
_ENTRIES = codec.decoder(tuple[LogEntry, ...])
_COUNTS = codec.decoder(int)


def header_of(value: ClusterMetadata, entry: LogEntry | None = None) -> Header:
    return Header(FORMAT, FORMAT_VERSION, value.epoch, value.hash, state_digest(value), entry)


def file_records(
    value: ClusterMetadata, entries: Sequence[LogEntry] = (), *, header: Header
) -> Iterator[bytes]:
    """The file in framed records of bounded size, in order; equal arguments give equal bytes."""
    yield _framed(RecordKind.HEADER, codec.encode(header))
    count = 1
    for piece in pieces(value):
        yield _framed(RecordKind.PIECE, piece)
        count += 1
    for batch in entry_batches(entries):
        yield _framed(RecordKind.ENTRIES, codec.encode(batch))
        count += 1
    yield _framed(RecordKind.TRAILER, codec.encode(count))


def entry_batches(entries: Sequence[LogEntry]) -> Iterator[tuple[LogEntry, ...]]:
    """The entries in groups that one record, or one message, may hold; each has at least one."""
    first = 0
    while first < len(entries):
        last, size = first, 0
        while last < len(entries) and last - first < LOG_FETCH_ENTRIES_MAX:
            size += len(entries[last].body)
            if last > first and size > LOG_FETCH_BYTES_MAX:
                break
            last += 1
        assert last > first, "each batch has an entry, so that it ends"
        yield tuple(entries[first:last])
        first = last


def _framed(kind: RecordKind, data: bytes) -> bytes:
    return codec.frame_record(bytes((kind,)) + data)


class SnapshotFileReader:
    """Takes the bytes of a file in parts of any size, in order; `path` names it in errors.

    `bytes_read` is the offset that is wanted next. A refusal leaves the reader unusable.
    """

    def __init__(self, registered: Registered, path: str = "snapshot") -> None:
        self._path = path
        self._buffer = bytearray()
        self._value = SnapshotDecoder(registered, path)
        self._entries: list[LogEntry] = []
        self._count = 0
        self._last = 0
        self.header: Header | None = None
        self.bytes_read = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes; CorruptFile when they are damaged or belong to no such file."""
        self._buffer += data
        self.bytes_read += len(data)
        at, size = 0, len(self._buffer)
        while at + _FRAME.size <= size:
            length, crc = _FRAME.unpack_from(self._buffer, at)
            if not 1 <= length <= SNAPSHOT_RECORD_BYTES_MAX:
                raise self._damaged("this is no record")
            start = at + _FRAME.size
            if start + length > size:
                break
            body = bytes(self._buffer[start : start + length])
            if zlib.crc32(body) != crc:
                raise self._damaged("a record is damaged")
            self._take(body[0], body[1:])
            at = start + length
        del self._buffer[:at]

    def finish(self) -> SnapshotContent:
        """What the file holds; CorruptFile when it is not whole or contradicts itself."""
        if self.header is None or self._last != RecordKind.TRAILER or self._buffer:
            raise self._damaged("the file is not whole")
        value = self._value.finish()
        header = self.header
        if (value.epoch, value.hash) != (header.epoch, header.hash):
            raise self._damaged("the value is not the one that the header names")
        if state_digest(value) != header.digest:
            raise self._damaged("the value does not have the digest that the header states")
        following = self._entries if header.entry is None else [header.entry, *self._entries]
        problem = verify_chain(following, epoch=value.epoch, previous_hash=value.hash)
        if problem is not None:
            raise self._damaged(problem)
        return SnapshotContent(header, value, tuple(self._entries))

    def _take(self, kind: int, data: bytes) -> None:
        if (kind == RecordKind.HEADER) != (self.header is None) or kind < self._last:
            raise self._damaged(f"a record of kind {kind} follows one of kind {self._last}")
        if self._last == RecordKind.TRAILER:
            raise self._damaged("something follows the trailer")
        try:
            if kind == RecordKind.HEADER:
                self.header = self._checked(_HEADERS.decode(data))
            elif kind == RecordKind.PIECE:
                self._value.feed(data)
            elif kind == RecordKind.ENTRIES:
                self._entries.extend(_ENTRIES.decode(data))
            elif kind != RecordKind.TRAILER or _COUNTS.decode(data) != self._count:
                raise self._damaged(f"{self._count} records are there, not what the trailer says")
        except codec.UNREADABLE as problem:
            raise self._damaged(f"a record of kind {kind} cannot be read: {problem}") from problem
        self._last = kind
        self._count += 1

    def _checked(self, header: Header) -> Header:
        if header.format != FORMAT or header.version != FORMAT_VERSION:
            raise self._damaged(
                f"its format is {header.format} {header.version}, not {FORMAT} {FORMAT_VERSION}"
            )
        return header

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(self._path, self.bytes_read, why)


def read_file(pieces_: Iterable[bytes], registered: Registered, path: str = "snapshot") -> SnapshotContent:
    """`SnapshotFileReader` over all pieces of a file."""
    reader = SnapshotFileReader(registered, path)
    for piece in pieces_:
        reader.feed(piece)
    return reader.finish()


class Dump(msgspec.Struct, frozen=True):
    """`base` is the value that the file holds, `value` the one after all `entries`. `snapshot` is the newest
    snapshot entry in it with the value before that; None when there is none."""

    base: ClusterMetadata
    entries: tuple[LogEntry, ...]
    value: ClusterMetadata
    snapshot: tuple[ClusterMetadata, LogEntry] | None


def dump_file(value: ClusterMetadata, entries: Sequence[LogEntry] = ()) -> Iterator[bytes]:
    """The parts of the file, in order; `entries` follow the value without a gap."""
    return file_records(value, entries, header=header_of(value))


def load_file(pieces: Iterable[bytes], registry: Registry, path: str = "dump") -> Dump:
    """Also reads the file of a snapshot. CorruptFile when it is damaged, not whole or contradicts itself;
    CannotApply when an entry in it cannot be applied by this version."""
    return proved(read_file(pieces, registry.parts, path), registry)


def proved(content: SnapshotContent, registry: Registry) -> Dump:
    """Apply the entries of a file; CannotApply when that is not possible."""
    entries = content.entries
    if content.header.entry is not None:
        entries = (content.header.entry, *entries)
    value, snapshot = content.value, None
    for entry in entries:
        if entry.kind == EntryKind.SNAPSHOT:
            snapshot = (value, entry)
        value = apply_entry(value, entry, registry)
    assert value.epoch == content.value.epoch + len(entries), "each entry makes one epoch"
    return Dump(content.value, entries, value, snapshot)
