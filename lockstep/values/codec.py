"""Canonical binary codec: msgspec's MessagePack of array-like structs, and CRC framing of records.

Invariant: equal values encode to equal bytes on every node (fields in declared order; maps are
encoded as sorted pairs by their owners), so hashes over the bytes compare across nodes.
Fields are only ever appended to a struct, never reordered: old bytes stay readable.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from lockstep.values.errors import CorruptFile

T = TypeVar("T")
_Bytes: TypeAlias = bytes | bytearray | memoryview

_ENCODER = msgspec.msgpack.Encoder()
_HEADER = struct.Struct(">II")
RECORD_HEADER_BYTES = _HEADER.size
#: CRC-32 as zlib computes it, and what the bit that it reads last changes in it.
_POLYNOMIAL = 0xEDB88320
_LAST_BIT_CHANGES = _POLYNOMIAL
#: Larger last records are not searched: a second of work at a start.
_BIT_SEARCH_BYTES_MAX = 1024 * 1024


#: MessagePack bytes of a struct or plain value. The bound method itself: requests encode several times.
encode: Callable[[Any], bytes] = _ENCODER.encode


#: What a decoder raises for bytes that are not what it expects: text that is no UTF-8 is an error of its own.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


class Decoder(Generic[T]):
    """Made by `decoder`. What msgspec works out about a kind takes time and memory for each struct in it, and
    most kinds are never read by most nodes: it is worked out with the first bytes."""

    __slots__ = ("_kind", "_made", "_unions", "decode")

    def __init__(self, kind: type[T], unions: Mapping[Any, Any]) -> None:
        self._kind = kind
        self._unions = unions
        self._made: Callable[[_Bytes], T] | None = None
        #: Raises one of UNREADABLE for foreign bytes. From the first call on it is msgspec's own.
        self.decode: Callable[[_Bytes], T] = self._first

    def _first(self, data: _Bytes) -> T:
        if self._made is None:
            self._made = self.decode = self.made()
        assert self.decode is self._made, "what was made is what decodes from now on"
        return self._made(data)

    def made(self) -> Callable[[_Bytes], T]:
        """What decodes; TypeError when msgspec cannot read the kind."""
        return msgspec.msgpack.Decoder(self._kind, dec_hook=self._of_union).decode

    def _of_union(self, protocol: Any, told: Any) -> Any:
        if protocol not in self._unions:
            raise ValueError(f"no {protocol.__name__} is known here")
        return msgspec.convert(told, self._unions[protocol])


def decoder(kind: type[T], unions: Mapping[Any, Any] = MappingProxyType({})) -> Decoder[T]:
    """A reusable decoder for `kind`; build once at module level.

    `unions` says of protocols, which rooms below name as types of fields, the structs that there are.
    `decode` raises one of UNREADABLE for foreign bytes.
    """
    assert all(isinstance(protocol, type) for protocol in unions), "structs are found by their protocol"
    return Decoder(kind, unions)


def frame_record(body: bytes) -> bytes:
    """One file record: length, CRC-32 of the body, body."""
    assert body, "a record of nothing is read as a torn tail"
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def scan_records(path: str, data: bytes, *, record_bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield (end offset, body) of each whole record.

    The writer appends exactly one record per sync, so a crash damages at most the last record: a
    damaged record with no whole one after it is a torn tail and ends the scan; one that is followed
    by a whole record is lost data and raises CorruptFile, and so does one that is whole but for one bit:
    a crash leaves bytes away, it changes none.
    """
    assert record_bytes_max > 0, "every record would be read as a torn tail"
    offset, size = 0, len(data)
    while offset + RECORD_HEADER_BYTES <= size:
        body = _record_at(data, offset, record_bytes_max)
        if body is None:
            if _whole_record_after(data, offset + 1, record_bytes_max):
                raise CorruptFile(path, offset, "a damaged record is followed by a whole one")
            if _is_one_bit_off(data, offset, record_bytes_max):
                raise CorruptFile(path, offset, "one bit of the last record is not what was written")
            return
        offset += RECORD_HEADER_BYTES + len(body)
        yield offset, body


def _header_at(data: bytes, offset: int) -> tuple[int, int]:
    """(length, CRC-32) of the record that begins there."""
    length, crc = _HEADER.unpack_from(data, offset)
    return length, crc


def _record_at(data: bytes, offset: int, record_bytes_max: int) -> bytes | None:
    length, crc = _header_at(data, offset)
    start = offset + RECORD_HEADER_BYTES
    if length == 0 or length > record_bytes_max or start + length > len(data):
        return None
    body = data[start : start + length]
    return body if zlib.crc32(body) == crc else None


def _is_one_bit_off(data: bytes, offset: int, record_bytes_max: int) -> bool:
    """Whether the bytes up to the end are a record of which one bit has changed."""
    length, crc = _header_at(data, offset)
    body = data[offset + RECORD_HEADER_BYTES :]
    if not 0 < len(body) <= min(record_bytes_max, _BIT_SEARCH_BYTES_MAX):
        return False
    difference = zlib.crc32(body) ^ crc
    if length != len(body):
        return difference == 0 and (length ^ len(body)).bit_count() == 1
    return difference.bit_count() == 1 or _is_of_one_bit(difference, len(body))


def _is_of_one_bit(difference: int, size: int) -> bool:
    """Whether changing one bit of `size` bytes changes their CRC-32 so: each bit before the last one changes
    it as the one behind it does, shifted once more."""
    assert size > 0, "a record has a body"
    shifted = _LAST_BIT_CHANGES
    for _ in range(8 * size):
        if shifted == difference:
            return True
        shifted = shifted >> 1 ^ (_POLYNOMIAL if shifted & 1 else 0)
    return False


def _whole_record_after(data: bytes, offset: int, record_bytes_max: int) -> bool:
    limit = len(data) - RECORD_HEADER_BYTES
    return any(_record_at(data, position, record_bytes_max) is not None for position in range(offset, limit))
