"""RocksDB's log file format, which its write-ahead logs and its manifest have: whole records, or damage.

A file is blocks of 32 KiB; a block holds fragments (checksum, length, type, payload), and a record is one
fragment or several. Invariant: a file may end inside a fragment, or in bytes that were never written, as a
crash leaves it; anything else that is not a whole fragment is damage, and damage is never read as an end.
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
    """What shows that bytes which are no whole fragment were one; empty when a crash may have left them."""
    rest = content[offset:]
    if not rest.strip(b"\0"):
        return ""
    if _whole_after(content, offset):
        return "a damaged record is followed by a whole one"
    if len(rest) < _HEADER.size:
        return ""
    checksum, length, _kind = _HEADER.unpack_from(rest)
    if _HEADER.size + length > len(rest):
        # A crash cuts the last fragment short, and a length that was changed looks like that.
        whole = checksum == _checksum(rest[_HEADER.size - 1 :])
        return "the length of a whole record is not its own" if whole else ""
    data_end = max(offset + 1, len(content.rstrip(b"\0")))
    # A power loss leaves whole sectors unwritten, up to the end.
    if -(-data_end // _SECTOR_BYTES) * _SECTOR_BYTES < len(content):
        return ""
    return "a record is not what its checksum says"


def _whole_after(content: bytes, offset: int) -> bool:
    """Whether a whole fragment begins behind `offset` in its block, or where a later block does."""
    block_end = offset - offset % BLOCK_BYTES + BLOCK_BYTES
    tried = (*range(offset + 1, min(block_end, len(content))), *range(block_end, len(content), BLOCK_BYTES))
    return any(_fragment_at(content, position)[0] for position in tried)
