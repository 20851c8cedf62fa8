"""RocksDB's log file format, which its write-ahead logs and its manifest have: whole records, or damage.

A file is blocks of 32 KiB; a block holds fragments (checksum, length, type, payload), and a record is one
fragment or several. Invariant: a file may end inside a fragment, or before sectors that were never written,
as a crash leaves it; anything else that is not a whole fragment is damage, and is never read as an end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import google_crc32c

from lockstep.values.errors import CorruptFile

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
