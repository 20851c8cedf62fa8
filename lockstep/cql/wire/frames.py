"""Envelopes: the 9-byte header and the body behind it.

Owns: building envelopes and cutting a byte stream into them. Invariant: the reader buffers at most one
envelope (bounded by its limit) beyond what one feed brought; after it raised, the stream has lost its
place and the connection must be closed.
"""

from __future__ import annotations

import struct

import msgspec

from lockstep.cql.wire.compression import LZ4, compress_body, decompress_body
from lockstep.cql.wire.constants import (
    FLAG_BETA,
    FLAG_COMPRESSED,
    HEADER_BYTES,
    VERSION_4,
    VERSION_6_BETA,
    VERSION_NAMES,
    VERSIONS,
    uses_segments,
)
from lockstep.values.errors import ProtocolViolation
from lockstep.values.limits import CQL_FRAME_BYTES_MAX

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
) -> bytes:
    """A response envelope; `compress` is for connections before version 5 that agreed on `algorithm`."""
    if compress and body:
        body = compress_body(body, algorithm)
        flags |= FLAG_COMPRESSED
    return _HEADER.pack(version | _RESPONSE, flags, stream, opcode, len(body)) + body


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
    if compress and body:
        body = compress_body(body, algorithm)
        flags |= FLAG_COMPRESSED
    return _HEADER.pack(version, flags, stream, opcode, len(body)) + body


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
        if uses_segments(version):
            raise EnvelopeRefused(f"Compressed envelopes end with version {VERSION_4}", stream)
        return decompress_body(body, self.bytes_max, self.algorithm)
