"""Segments: the checksummed frames that carry envelopes on a v5 connection after its handshake.

Owns: building segments and checking and unwrapping them. Layout: 17-bit payload length (with
compression also the 17-bit uncompressed length, 0 = stored raw) and the self-contained bit, little
endian in 3 (5) bytes; CRC-24 of them; payload; CRC-32 of the payload. Invariant: no payload byte leaves
the reader before both checksums held; after it raised, the connection must be closed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from lockstep.cql.wire.compression import compress_block, decompress_block
from lockstep.values.errors import ProtocolViolation

PAYLOAD_BYTES_MAX: Final = (1 << 17) - 1
_LENGTH_MASK = PAYLOAD_BYTES_MAX
_CRC24_INIT = 0x875060
_CRC24_POLYNOMIAL = 0x1974F0B
#: The payload's CRC-32 continues from these four bytes.
_CRC32_SEED = zlib.crc32(b"\xfa\x2d\x55\xca")
_CRC24_BYTES = 3
_CRC32_BYTES = 4


def _crc24_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= _CRC24_POLYNOMIAL
        table.append(crc)
    return tuple(table)


_CRC24 = _crc24_table()


def crc24(data: bytes | bytearray) -> int:
    """CRC-24 of header bytes."""
    crc = _CRC24_INIT
    for byte in data:
        crc = ((crc << 8) & 0xFFFFFF) ^ _CRC24[(crc >> 16) ^ byte]
    return crc


def _segment(payload: bytes, self_contained: bool, compress: bool) -> bytes:
    size = len(payload)
    if compress:
        block = compress_block(payload)
        if len(block) < size:
            payload, header = block, len(block) | size << 17
        else:
            header = size
        head = (header | self_contained << 34).to_bytes(5, "little")
    else:
        head = (size | self_contained << 17).to_bytes(3, "little")
    return b"".join(
        (
            head,
            crc24(head).to_bytes(_CRC24_BYTES, "little"),
            payload,
            zlib.crc32(payload, _CRC32_SEED).to_bytes(_CRC32_BYTES, "little"),
        )
    )


def encode_segments(envelopes: Iterable[bytes], *, compress: bool = False) -> bytes:
    """Segments with these envelopes: small ones share segments, a large one spans several of its own."""
    out: list[bytes] = []
    group: list[bytes] = []
    size = 0
    for envelope in envelopes:
        if size + len(envelope) > PAYLOAD_BYTES_MAX and group:
            out.append(_segment(b"".join(group), True, compress))
            group, size = [], 0
        if len(envelope) > PAYLOAD_BYTES_MAX:
            for at in range(0, len(envelope), PAYLOAD_BYTES_MAX):
                out.append(_segment(envelope[at : at + PAYLOAD_BYTES_MAX], False, compress))
        else:
            group.append(envelope)
            size += len(envelope)
    if group:
        out.append(_segment(b"".join(group), True, compress))
    return b"".join(out)


class SegmentReader:
    """Unwraps fed bytes; feed its output to an EnvelopeReader, which joins envelopes over segments."""

    def __init__(self, *, compressed: bool = False) -> None:
        self._compressed = compressed
        self._head_bytes = 5 if compressed else 3
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a segment that is not yet whole."""
        return len(self._pending)

    def feed(self, data: bytes) -> bytes:
        """Payload bytes of the segments that are whole now; raises ProtocolViolation on damage."""
        if self._pending:
            self._pending += data
            source: bytes | bytearray = self._pending
        else:
            source = data
        head_bytes = self._head_bytes
        payloads: list[bytes] = []
        at, size = 0, len(source)
        while size - at >= head_bytes + _CRC24_BYTES:
            start = at + head_bytes + _CRC24_BYTES
            head = source[at : at + head_bytes]
            if crc24(head) != int.from_bytes(source[at + head_bytes : start], "little"):
                raise ProtocolViolation("Checksum mismatch in a segment header")
            header = int.from_bytes(head, "little")
            end = start + (header & _LENGTH_MASK)
            if end + _CRC32_BYTES > size:
                break
            payloads.append(self._payload(header, bytes(source[start:end]), source[end : end + _CRC32_BYTES]))
            at = end + _CRC32_BYTES
        if source is self._pending:
            del self._pending[:at]
        elif at < size:
            self._pending += source[at:]
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)

    def _payload(self, header: int, payload: bytes, crc: bytes | bytearray) -> bytes:
        if zlib.crc32(payload, _CRC32_SEED) != int.from_bytes(crc, "little"):
            raise ProtocolViolation("Checksum mismatch in a segment payload")
        if not self._compressed:
            return payload
        size = header >> 17 & _LENGTH_MASK
        return decompress_block(payload, size) if size else payload
