"""Canonical binary codec: msgspec's MessagePack of array-like structs, and CRC framing of records.

Invariant: equal values encode to equal bytes on every node (fields in declared order; maps are
encoded as sorted pairs by their owners), so hashes over the bytes compare across nodes.
Fields are only ever appended to a struct, never reordered: old bytes stay readable.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from lockstep.values.errors import CorruptFile

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
_HEADER = struct.Struct(">II")
RECORD_HEADER_BYTES = _HEADER.size


#: MessagePack bytes of a struct or plain value. The bound method itself: requests encode several times.
encode: Callable[[Any], bytes] = _ENCODER.encode


#: What a decoder raises for bytes that are not what it expects: text that is no UTF-8 is an error of its own.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


def decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """A reusable decoder for `kind`; build once at module level (it holds no mutable state).

    `decode` raises one of UNREADABLE for foreign bytes.
    """
    return msgspec.msgpack.Decoder(kind)


def frame_record(body: bytes) -> bytes:
    """One file record: length, CRC-32 of the body, body."""
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def scan_records(path: str, data: bytes, *, record_bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield (end offset, body) of each whole record.

    The writer appends exactly one record per sync, so a crash damages at most the last record: a
    damaged record with no whole one after it is a torn tail and ends the scan; one that is followed
    by a whole record is lost data and raises CorruptFile.
    """
    offset, size = 0, len(data)
    while offset + RECORD_HEADER_BYTES <= size:
        body = _record_at(data, offset, record_bytes_max)
        if body is None:
            if _whole_record_after(data, offset + 1, record_bytes_max):
                raise CorruptFile(path, offset, "a damaged record is followed by a whole one")
            return
        offset += RECORD_HEADER_BYTES + len(body)
        yield offset, body


def _record_at(data: bytes, offset: int, record_bytes_max: int) -> bytes | None:
    length, crc = _HEADER.unpack_from(data, offset)
    start = offset + RECORD_HEADER_BYTES
    if length == 0 or length > record_bytes_max or start + length > len(data):
        return None
    body = data[start : start + length]
    return body if zlib.crc32(body) == crc else None


def _whole_record_after(data: bytes, offset: int, record_bytes_max: int) -> bool:
    limit = len(data) - RECORD_HEADER_BYTES
    return any(_record_at(data, position, record_bytes_max) is not None for position in range(offset, limit))
