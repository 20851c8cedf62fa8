"""Internode frames: u32 length, u32 its complement, u32 CRC-32, then a MessagePack array (verb, stream,
epoch, flags, body), of requests with (sent_ms, left_ms) behind it, and of some with a mark behind those.

A reply may announce raw bytes that follow its frame: the first eight bytes of its body tell how many.

Invariant: a frame is handed on whole and checked, or not at all; a damaged one poisons its reader, so
that the connection is closed and no later byte is interpreted. A damaged length shows at once: a reader that
waited for bytes that nobody sends would take the answers that go on coming for them.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec

from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.errors import FrameCorrupt
from lockstep.values.limits import INTERNODE_FRAME_BYTES_MAX

REQUEST: Final = 0
REPLY: Final = 1
ERROR: Final = 2
ONE_WAY: Final = 4
#: With REPLY: one body for several requests; the frame's body is a SharedReply.
SHARED: Final = 8
#: With REPLY: raw bytes follow the frame. Whoever is told of them checks them.
RAW: Final = 16

_HEADER = struct.Struct(">III")
_RAW_SIZE = struct.Struct(">Q")
_ALL_BITS: Final = 0xFFFF_FFFF
#: What a frame says of a request that is waited for even longer.
REQUEST_S_MAX: Final = 86_400.0
HEADER_BYTES: Final = _HEADER.size


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`stream` pairs a reply with its request; `epoch` is the sender's when it sent. `sent_ms` is when a
    request was made, by the monotonic clock of its sender, which waits for `left_ms` from then; 0 where that
    is not said. `mark`: of the ring that the sender has at `epoch`, see `ring_marks`; 0 for none."""

    verb: int
    stream: int
    epoch: int
    flags: int
    body: bytes
    sent_ms: int = 0
    left_ms: int = 0
    mark: int = 0


class SharedReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Equal answers to the requests of these streams, such as acknowledgements of one sync."""

    body: bytes
    streams: list[int]


SHARED_REPLY = decoder(SharedReply)
_ENVELOPE = decoder(Envelope)


def encode_frame(
    verb: int,
    stream: int,
    epoch: int,
    flags: int,
    body: bytes,
    sent_ms: int = 0,
    left_ms: int = 0,
    mark: int = 0,
) -> bytes:
    """One frame, header included. FrameCorrupt when the body is larger than any peer would accept."""
    if mark:
        payload = encode((verb, stream, epoch, flags, body, sent_ms, left_ms, mark))
    elif left_ms:
        payload = encode((verb, stream, epoch, flags, body, sent_ms, left_ms))
    else:
        payload = encode((verb, stream, epoch, flags, body))
    size = len(payload)
    if size > INTERNODE_FRAME_BYTES_MAX:
        raise FrameCorrupt(f"a frame of {size} bytes is above the limit of {INTERNODE_FRAME_BYTES_MAX}")
    return _HEADER.pack(size, size ^ _ALL_BITS, zlib.crc32(payload)) + payload


def encode_request(
    verb: int,
    stream: int,
    epoch: int,
    body: bytes,
    now_s: float,
    deadline_s: float,
    flags: int = REQUEST,
    mark: int = 0,
) -> bytes:
    """The frame of a request whose answer is waited for until the deadline, by the clock of its sender."""
    left_ms = max(1, int(min(deadline_s - now_s, REQUEST_S_MAX) * 1000))
    return encode_frame(verb, stream, epoch, flags, body, int(now_s * 1000), left_ms, mark)


def encode_raw_frame(verb: int, stream: int, epoch: int, body: bytes, size: int) -> bytes:
    """The frame of a reply that `size` raw bytes follow."""
    return encode_frame(verb, stream, epoch, REPLY | RAW, _RAW_SIZE.pack(size) + body)


def raw_body(body: bytes) -> tuple[int, bytes]:
    """How many raw bytes follow such a frame, and its reply. FrameCorrupt when nobody sends so many."""
    if len(body) < _RAW_SIZE.size:
        raise FrameCorrupt("a frame does not tell how many bytes follow it")
    size: int = _RAW_SIZE.unpack_from(body)[0]
    if not 0 < size <= INTERNODE_FRAME_BYTES_MAX:
        raise FrameCorrupt(f"{size} raw bytes behind a frame")
    return size, body[_RAW_SIZE.size :]


class FrameReader:
    """Cuts a byte stream into envelopes; holds at most one unfinished frame.

    It stops behind a frame that raw bytes follow: `rest` is what was read of them, and of what is behind."""

    __slots__ = ("_have", "_need", "_parts", "rest")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = HEADER_BYTES
        self.rest = memoryview(b"")

    def feed(self, data: bytes) -> list[Envelope]:
        """Envelopes completed by `data`. FrameCorrupt: nothing of this read may be used."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._parts)
            self._parts = []
        offset, size = 0, len(data)
        found: list[Envelope] = []
        while size - offset >= HEADER_BYTES:
            length, complement, crc = _HEADER.unpack_from(data, offset)
            if length ^ complement != _ALL_BITS or length > INTERNODE_FRAME_BYTES_MAX or length == 0:
                raise FrameCorrupt(f"frame length {length}")
            start = offset + HEADER_BYTES
            if size - start < length:
                self._keep(data[offset:], HEADER_BYTES + length)
                return found
            payload = data[start : start + length]
            if zlib.crc32(payload) != crc:
                raise FrameCorrupt("frame checksum differs")
            envelope = _decode(payload)
            found.append(envelope)
            offset = start + length
            if envelope.flags & RAW:
                self.rest = memoryview(data)[offset:]
                return found
        if offset < size:
            self._keep(data[offset:], HEADER_BYTES)
        return found

    def _keep(self, rest: bytes, need: int) -> None:
        self._parts = [rest]
        self._have = len(rest)
        self._need = need


def _decode(payload: bytes) -> Envelope:
    try:
        return _ENVELOPE.decode(payload)
    except UNREADABLE as error:
        raise FrameCorrupt(f"frame does not decode: {error}") from error
