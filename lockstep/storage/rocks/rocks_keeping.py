"""What a RocksDB database is known to have held: checked before it is opened, and noted while it is open.

Invariant: what is noted is durable by then, whoever made it so: a log's bytes were there before a sync that
has ended, a manifest's stood unchanged since the note before (the library syncs them as it writes them).

Whether the files of a RocksDB database hold everything that they are known to have held.

The library itself takes damage in its newest log as the place where a crash stopped it, and begins anew where
there is nothing. Invariant: this is found before the library has opened the files and changed them, and
nothing is changed here.

RocksDB's log file format, which its write-ahead logs and its manifest have: whole records, or damage.

A file is blocks of 32 KiB; a block holds fragments (checksum, length, type, payload), and a record is one
fragment or several. Invariant: a file may end inside a fragment, or before sectors that were never written,
as a crash leaves it; anything else that is not a whole fragment is damage, and is never read as an end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import google_crc32c
import msgspec

from lockstep.runtime.ports import Disk
from lockstep.storage.store_position import PositionFile, StorePosition, lost
from lockstep.values.errors import CorruptFile, DiskRefused

BLOCK_BYTES: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: Types above these are of files that are written again or compressed, which this store's are not.
_TYPES: Final = (_FULL, _FIRST, _MIDDLE, _LAST)
#: What the checksum is rotated and moved by, so that one of data that holds checksums is a good one.
_MASK_DELTA: Final = 0xA282EAD8
#: The smallest piece of a file that a power loss leaves written or not.
_SECTOR_BYTES: Final = 512


def whole_records(path: str, content: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset behind it, record) of each whole record in order, up to a torn end. CorruptFile for damage."""
    offset, parts = 0, list[bytes]()
    while True:
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < _HEADER.size:
            offset += left
            continue
        if offset >= len(content):
            return
        kind, payload = _fragment_at(content, offset)
        if kind == 0:
            why = _damage_at(content, offset)
            if why:
                raise CorruptFile(path, offset, why)
            return
        if (kind in (_MIDDLE, _LAST)) != bool(parts):
            raise CorruptFile(path, offset, "a record has no beginning or no end")
        offset += _HEADER.size + len(payload)
        parts.append(payload)
        if kind in (_FULL, _LAST):
            yield offset, parts[0] if len(parts) == 1 else b"".join(parts)
            parts = []


def _fragment_at(content: bytes, offset: int) -> tuple[int, bytes]:
    """(type, payload) of the whole fragment at `offset`; type 0 when there is none."""
    start = offset + _HEADER.size
    if start > len(content):
        return 0, b""
    checksum, length, kind = _HEADER.unpack_from(content, offset)
    end = start + length
    block_end = offset - offset % BLOCK_BYTES + BLOCK_BYTES
    if kind not in _TYPES or end > min(block_end, len(content)):
        return 0, b""
    if checksum != _checksum(content[start - 1 : end]):
        return 0, b""
    return kind, content[start:end]


def _checksum(typed: bytes) -> int:
    found = int(google_crc32c.value(typed))
    return ((found >> 15 | found << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _damage_at(content: bytes, offset: int) -> str:
    """What shows that bytes which are no whole fragment were one; empty when a crash may have left them.

    A power loss leaves sectors of a file's unsynced end unwritten, not only the last ones: what stands behind
    such a hole was never synced. How far the file was synced is not known here; who knows it compares.
    """
    rest = content[offset:]
    if not rest.strip(b"\0"):
        return ""
    next_whole = _next_whole(content, offset)
    if _has_hole(content, offset, next_whole or len(content)):
        return ""
    if next_whole:
        return "a damaged record is followed by a whole one"
    if len(rest) < _HEADER.size:
        return ""
    checksum, length, _kind = _HEADER.unpack_from(rest)
    if _HEADER.size + length > len(rest):
        # A crash cuts the last fragment short, and a length that was changed looks like that.
        whole = checksum == _checksum(rest[_HEADER.size - 1 :])
        return "the length of a whole record is not its own" if whole else ""
    return "a record is not what its checksum says"


def _has_hole(content: bytes, offset: int, end: int) -> bool:
    """Whether a sector between the two holds zeroes alone; the file may end inside the last one."""
    first = -(-offset // _SECTOR_BYTES) * _SECTOR_BYTES
    last = end if end == len(content) else end - _SECTOR_BYTES + 1
    sectors = (content[at : at + _SECTOR_BYTES] for at in range(first, last, _SECTOR_BYTES))
    return any(not sector.strip(b"\0") for sector in sectors)


def _next_whole(content: bytes, offset: int) -> int:
    """Where the next whole fragment behind `offset` begins, in its block or at a later one; 0: none."""
    block_end = offset - offset % BLOCK_BYTES + BLOCK_BYTES
    tried = (*range(offset + 1, min(block_end, len(content))), *range(block_end, len(content), BLOCK_BYTES))
    return next((position for position in tried if _fragment_at(content, position)[0]), 0)


CURRENT: Final = "CURRENT"
_LOG_SUFFIX: Final = ".log"
_TABLE_SUFFIX: Final = ".sst"
MANIFEST_PREFIX: Final = "MANIFEST-"
#: Of a batch in a log: the sequence of its first operation, and how many it has.
_BATCH_HEAD: Final = struct.Struct("<QI")

#: Fields of an edit in the manifest, by tag, as they are skipped. `n`: a number, `s`: bytes and their length.
_FIELDS: Final = {
    1: "s",
    2: "n",
    3: "n",
    4: "n",
    5: "ns",
    6: "nn",
    9: "n",
    10: "n",
    200: "n",
    201: "s",
    202: "",
    203: "n",
    300: "n",
}
_LOG_NUMBER: Final = 2
_LAST_SEQUENCE: Final = 4
_NEW_FILE: Final = 103
#: Level, number, size, smallest key, largest key, smallest sequence, largest sequence; then tagged fields.
_NEW_FILE_FIELDS: Final = "nnnssnn"
_NEW_FILE_END: Final = 1
#: Tags with this bit are followed by bytes after their length, and may be skipped.
_SKIPPED_BIT: Final = 1 << 13


class Manifest(msgspec.Struct, frozen=True):
    """`end_byte`: of its last whole record. `log_number`: logs below it are needed no more. `last_sequence`:
    what is in table files does not go further."""

    name: str
    end_byte: int
    log_number: int
    last_sequence: int


def check_database(disk: Disk, directory: str, position: StorePosition | None) -> None:
    """CorruptFile, naming file and offset, when the database lacks something that it had at `position`, or
    when one of its logs was damaged."""
    names = disk.names(directory)
    if CURRENT not in names:
        # The first position is noted when the database is there.
        if position is not None or any(name.endswith(_TABLE_SUFFIX) for name in names):
            what = f"{directory}/{CURRENT}" if names else directory
            raise lost(what, 0, "it is missing, and there was a database")
        # The first start ended before there was a database.
        return
    sequence, had = (position.sequence, dict(position.files)) if position is not None else (0, {})
    manifest = _manifest(disk, directory, had)
    last_sequence, last_end = manifest.last_sequence, (manifest.name, manifest.end_byte)
    needed = {number: name for name in names if (number := _log_number(name)) >= manifest.log_number}
    for name in had:
        if _log_number(name) >= manifest.log_number and name not in names:
            raise lost(f"{directory}/{name}", 0, f"it is missing, and had {had[name]} bytes")
    for number in sorted(needed):
        name = needed[number]
        end, last = _scan(disk, f"{directory}/{name}")
        _refuse_shorter(f"{directory}/{name}", end, had.get(name, 0))
        last_sequence, last_end = max(last_sequence, last), (name, end)
    if last_sequence < sequence:
        name, end = last_end
        why = f"{sequence - last_sequence} operations that had been stored are in no file of the database"
        raise lost(f"{directory}/{name}", end, why)


def log_files(disk: Disk, directory: str) -> tuple[tuple[str, int], ...]:
    """(name, bytes) of the database's logs and manifests as they are now."""
    found = []
    for name in disk.names(directory):
        if name.endswith(_LOG_SUFFIX) or name.startswith(MANIFEST_PREFIX):
            try:
                found.append((name, disk.size(f"{directory}/{name}")))
            except FileNotFoundError:
                # The library removed it meanwhile: it is needed no more.
                continue
    return tuple(found)


def _refuse_shorter(path: str, end: int, had: int) -> None:
    if end < had:
        raise lost(path, end, f"it ends here, and {had} bytes of it had been stored")


def _log_number(name: str) -> int:
    """The number of a write-ahead log; -1 for another file."""
    stem, dot, suffix = name.rpartition(".")
    return int(stem) if dot + suffix == _LOG_SUFFIX and stem.isdecimal() else -1


def _manifest(disk: Disk, directory: str, had: dict[str, int]) -> Manifest:
    path = f"{directory}/{CURRENT}"
    content = disk.read(path)
    name = content[:-1].decode("ascii", "replace")
    number = name.removeprefix(MANIFEST_PREFIX)
    if content[-1:] != b"\n" or number == name or not number.isdecimal():
        raise lost(path, 0, "it does not name a manifest")
    newer = [other for other in had if other.startswith(MANIFEST_PREFIX) and other > name]
    if newer and len(newer[-1]) == len(name):
        raise lost(path, 0, f"it names {name}, and {newer[-1]} had taken its place")
    path = f"{directory}/{name}"
    if not disk.exists(path):
        raise lost(path, 0, "it is missing")
    end = log_number = last_sequence = 0
    try:
        for end, record in whole_records(path, disk.read(path)):
            edit = _edit(path, end, record)
            log_number = max(log_number, edit.get(_LOG_NUMBER, 0))
            last_sequence = max(last_sequence, edit.get(_LAST_SEQUENCE, 0))
    except CorruptFile as error:
        raise lost(error.path, error.offset, error.why) from error
    if end == 0:
        raise lost(path, 0, "it is empty")
    _refuse_shorter(path, end, had.get(name, 0))
    return Manifest(name, end, log_number, last_sequence)


def _scan(disk: Disk, path: str) -> tuple[int, int]:
    """(end of the last whole record, sequence of the last operation) of a write-ahead log."""
    end = last = 0
    try:
        for end, record in whole_records(path, disk.read(path)):
            if len(record) < _BATCH_HEAD.size:
                raise CorruptFile(path, end, "a record is too short for a batch")
            sequence, count = _BATCH_HEAD.unpack_from(record)
            last = max(last, sequence + count - 1)
    except CorruptFile as error:
        raise lost(error.path, error.offset, error.why) from error
    return end, last


def _edit(path: str, end: int, record: bytes) -> dict[int, int]:
    """The numbers of an edit, by tag, of fields that have one."""
    found: dict[int, int] = {}
    at = 0
    try:
        while at < len(record):
            tag, at = _number(record, at)
            if tag == _NEW_FILE:
                at = _past_new_file(record, at)
            elif tag & _SKIPPED_BIT:
                at = _past(record, at, "s")
            else:
                if _FIELDS[tag] == "n":
                    found[tag] = _number(record, at)[0]
                at = _past(record, at, _FIELDS[tag])
    except (KeyError, IndexError) as error:
        raise CorruptFile(path, end, "an edit of the manifest cannot be read") from error
    return found


def _past_new_file(record: bytes, at: int) -> int:
    at = _past(record, at, _NEW_FILE_FIELDS)
    while True:
        tag, at = _number(record, at)
        if tag == _NEW_FILE_END:
            return at
        at = _past(record, at, "s")


def _past(record: bytes, at: int, fields: str) -> int:
    for field in fields:
        number, at = _number(record, at)
        if field == "s":
            at += number
    return at


def _number(record: bytes, at: int) -> tuple[int, int]:
    """(a number of seven bits a byte, lowest first; the offset behind it)."""
    value = shift = 0
    while True:
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class KeptFiles:
    """The files of the database in `directory`, which is relative to the node's."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._file = PositionFile(disk, directory)
        self._noted: StorePosition | None = None
        self._seen: dict[str, int] = {}

    def check(self) -> None:
        """CorruptFile when the database lacks something that it had. Changes nothing; for any thread."""
        check_database(self._disk, self._directory, self._file.load())

    def names(self) -> list[str]:
        """The files of the database, sorted."""
        return self._disk.names(self._directory)

    async def begin(self, sequence: int) -> None:
        """The database is open, and holds everything up to `sequence`."""
        position = self.position(sequence)
        await self._file.begin(position)
        self._noted = position

    def position(self, sequence: int) -> StorePosition:
        """Where the database is now, to be noted when what is written by now is durable."""
        seen, self._seen = self._seen, dict(log_files(self._disk, self._directory))
        files = tuple(
            (name, min(size, seen.get(name, 0)) if name.startswith(MANIFEST_PREFIX) else size)
            for name, size in self._seen.items()
        )
        return StorePosition(sequence, files)

    def note(self, position: StorePosition) -> bool:
        """Note what is durable now; False when nothing has changed. DiskRefused."""
        if position == self._noted:
            return False
        self._file.note(position)
        self._noted = position
        return True

    async def settle(self) -> None:
        """Nothing has changed since the last note: have it survive a loss of power too. DiskRefused."""
        assert self._noted is not None, "a database that is open has a position"
        await self._file.settle(self._noted)

    def closed(self, sequence: int) -> None:
        """The database is closed, and everything up to `sequence` is in its files."""
        try:
            self.note(StorePosition(sequence, log_files(self._disk, self._directory)))
        except DiskRefused:
            # A full disk: what was noted last stays, and is true.
            return
