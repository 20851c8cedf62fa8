"""Envelopes, the 9-byte header and the body behind it; segments, the checksummed frames that carry them on a
v5 connection after its handshake; and their compression: LZ4 blocks, and snappy before version 5.

Owns: building envelopes and cutting a byte stream into them.

Owns: building segments and checking and unwrapping them. Layout: 17-bit payload length (with compression also
the 17-bit uncompressed length, 0 = stored raw) and the self-contained bit, little endian in 3 (5) bytes;
CRC-24 of them; payload; CRC-32 of the payload.

Invariant: the reader buffers at most one envelope (bounded by its limit) beyond what one feed brought; after
it raised, the stream has lost its place and the connection must be closed. Decompression never allocates more
than the stated size, which is checked against a limit first, and the result has exactly the stated size. No
payload byte leaves the reader before both checksums held; after it raised, the connection must be closed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

import lz4.block
import msgspec

from lockstep.cql.wire.constants import (
    FLAG_BETA,
    FLAG_COMPRESSED,
    HEADER_BYTES,
    USES_SEGMENTS,
    VERSION_4,
    VERSION_6_BETA,
    VERSION_NAMES,
    VERSIONS,
)
from lockstep.cql.wire.primitives import UINT, unpack_uint
from lockstep.values.errors import ProtocolViolation
from lockstep.values.limits import CQL_FRAME_BYTES_MAX

LZ4: Final = "lz4"
SNAPPY: Final = "snappy"
#: Algorithms offered in SUPPORTED: snappy where its library is installed.
ALGORITHMS: Final = (SNAPPY, LZ4) if find_spec("cramjam") is not None else (LZ4,)
#: Longest prefix of a snappy block: its size in seven bits a byte.
_SNAPPY_SIZE_BYTES_MAX: Final = 5


def compress_block(data: bytes) -> bytes:
    """A raw block, as in v5 segments (the header holds the size)."""
    block: bytes = lz4.block.compress(data, store_size=False)
    return block


def decompress_block(block: bytes, size: int) -> bytes:
    """The `size` bytes of a raw block; raises ProtocolViolation when it holds anything else."""
    try:
        data: bytes = lz4.block.decompress(block, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        raise ProtocolViolation("Damaged LZ4 block") from None
    if len(data) != size:
        raise ProtocolViolation(f"LZ4 block holds {len(data)} bytes instead of {size}")
    return data


def compress_body(body: bytes, algorithm: str = LZ4) -> bytes:
    """A whole body before version 5: a snappy block, or 4 bytes of uncompressed size and the LZ4 block."""
    if algorithm == SNAPPY:
        # Few clients ask for it: only they pay for the library.
        import cramjam

        return bytes(cramjam.snappy.compress_raw(body))
    return UINT.pack(len(body)) + compress_block(body)


def decompress_body(body: bytes, bytes_max: int, algorithm: str = LZ4) -> bytes:
    """The body behind a compressed one; raises ProtocolViolation above `bytes_max`."""
    if algorithm == SNAPPY:
        size = _snappy_size(body)
    elif len(body) < 4:
        raise ProtocolViolation("Compressed body without its size")
    else:
        size = unpack_uint(body, 0)[0]
    if size > bytes_max:
        raise ProtocolViolation(
            f"Request is too big: length {size} exceeds maximum allowed length {bytes_max}"
        )
    if algorithm == SNAPPY:
        return _decompress_snappy(body, size)
    return decompress_block(body[4:], size) if size else b""


def _snappy_size(block: bytes) -> int:
    size = 0
    for at, byte in enumerate(block[:_SNAPPY_SIZE_BYTES_MAX]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return size
    raise ProtocolViolation("Compressed body without its size")


def _decompress_snappy(block: bytes, size: int) -> bytes:
    import cramjam

    try:
        data = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError:
        raise ProtocolViolation("Damaged snappy block") from None
    if len(data) != size:
        raise ProtocolViolation(f"Snappy block holds {len(data)} bytes instead of {size}")
    return data


_HEADER = struct.Struct(">BBhBI")
_RESPONSE = 0x80


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """One message; `body` is decompressed. `flags` are the header's."""

    version: int
    flags: int
    stream: int
    opcode: int
    body: bytes


class EnvelopeRefused(ProtocolViolation):
    """A header that cannot be accepted; answer on `stream` in the highest version, then close."""

    def __init__(self, message: str, stream: int) -> None:
        super().__init__(message)
        self.stream = stream


def encode_envelope(
    version: int,
    opcode: int,
    stream: int,
    body: bytes,
    flags: int = 0,
    *,
    compress: bool = False,
    algorithm: str = LZ4,
    side: int = _RESPONSE,
) -> bytes:
    """A response envelope; `compress` is for connections before version 5 that agreed on `algorithm`. `side`
    is the bit of the first byte that tells responses from requests."""
    if compress and body:
        body = compress_body(body, algorithm)
        flags |= FLAG_COMPRESSED
    return _HEADER.pack(version | side, flags, stream, opcode, len(body)) + body


def encode_request(
    version: int,
    opcode: int,
    stream: int,
    body: bytes,
    flags: int = 0,
    *,
    compress: bool = False,
    algorithm: str = LZ4,
) -> bytes:
    """A request envelope, as a client sends it."""
    return encode_envelope(
        version, opcode, stream, body, flags, compress=compress, algorithm=algorithm, side=0
    )


class EnvelopeReader:
    """Cuts fed bytes into envelopes.

    `responses` is the direction expected. `version` may be set once it is agreed: envelopes of another
    version are then refused. `algorithm` is what compressed bodies are compressed with; `bytes_max` bounds
    bodies.
    """

    def __init__(self, *, responses: bool = False, bytes_max: int = CQL_FRAME_BYTES_MAX) -> None:
        self.version: int | None = None
        self.algorithm = LZ4
        self._direction = _RESPONSE if responses else 0
        self.bytes_max = bytes_max
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of an envelope that is not yet whole."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[Envelope]:
        """Envelopes that are whole now; raises ProtocolViolation on bytes that are none."""
        if self._pending:
            self._pending += data
            source: bytes | bytearray = self._pending
        else:
            source = data
        envelopes: list[Envelope] = []
        at, size = 0, len(source)
        while size - at >= HEADER_BYTES:
            version, flags, stream, opcode, length = _HEADER.unpack_from(source, at)
            self._check(version, flags, stream, length)
            end = at + HEADER_BYTES + length
            if end > size:
                break
            body = bytes(source[at + HEADER_BYTES : end])
            version &= 0x7F
            if flags & FLAG_COMPRESSED:
                body = self._decompressed(version, stream, body)
            envelopes.append(Envelope(version, flags, stream, opcode, body))
            at = end
        if source is self._pending:
            del self._pending[:at]
        elif at < size:
            self._check_first(source[at])
            self._pending += source[at:]
        return envelopes

    def _check_first(self, version: int) -> None:
        # Versions 1 and 2 have a shorter header, so nothing behind their first byte may be waited for.
        if version & 0x7F not in VERSIONS:
            raise self._unsupported(version, 0)

    def _check(self, version: int, flags: int, stream: int, length: int) -> None:
        number = version & 0x7F
        if number not in VERSIONS:
            raise self._unsupported(version, stream if number > 2 else 0)
        if version & _RESPONSE != self._direction:
            raise EnvelopeRefused("Wrong protocol direction for an envelope", stream)
        if number == VERSION_6_BETA and not flags & FLAG_BETA and not self._direction:
            raise EnvelopeRefused(
                f"Beta version of the protocol used ({number}/v{number}-beta), but USE_BETA flag is unset",
                stream,
            )
        if self.version is not None and number != self.version:
            raise EnvelopeRefused(
                f"Invalid message version. Got {number}/v{number} but previous messages on this connection "
                f"had version {self.version}/v{self.version}",
                stream,
            )
        if length > self.bytes_max:
            raise EnvelopeRefused(
                f"Request is too big: length {length} exceeds maximum allowed length {self.bytes_max}.",
                stream,
            )

    @staticmethod
    def _unsupported(version: int, stream: int) -> EnvelopeRefused:
        return EnvelopeRefused(
            f"Invalid or unsupported protocol version ({version & 0x7F}); "
            f"supported versions are ({', '.join(VERSION_NAMES)})",
            stream,
        )

    def _decompressed(self, version: int, stream: int, body: bytes) -> bytes:
        if version in USES_SEGMENTS:
            raise EnvelopeRefused(f"Compressed envelopes end with version {VERSION_4}", stream)
        return decompress_body(body, self.bytes_max, self.algorithm)


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
