"""The protocol's notations ([string], [bytes], [inet], ...) as plain functions over bytes.

Writers return bytes. Readers take (body, offset) and return (value, offset behind it); they may move the
offset past the end on truncated input, where the next fixed-size read fails with struct.error; whoever
calls them turns that into ProtocolViolation and ends with a look at where it came to (`too_short`).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lockstep.values.errors import ProtocolViolation

SHORT = struct.Struct(">H")
INT = struct.Struct(">i")
UINT = struct.Struct(">I")
LONG = struct.Struct(">q")
pack_short = SHORT.pack
pack_int = INT.pack
pack_long = LONG.pack
unpack_short = SHORT.unpack_from
unpack_int = INT.unpack_from
unpack_uint = UINT.unpack_from
unpack_long = LONG.unpack_from

NULL: Final = pack_int(-1)
UNSET_MARK: Final = pack_int(-2)
STRING_BYTES_MAX: Final = 0xFFFF


def too_short(body: bytes, what: str) -> ProtocolViolation:
    """What to raise when reading went past the end of the body."""
    return ProtocolViolation(f"Malformed {what}: body of {len(body)} bytes is too short")


def string(text: str) -> bytes:
    """[string]; the caller keeps it within 65,535 bytes."""
    data = text.encode()
    return pack_short(len(data)) + data


def clipped_string(text: str) -> bytes:
    """[string], cut at a character where it would be too long."""
    data = text.encode(errors="replace")
    if len(data) > STRING_BYTES_MAX:
        data = data[:STRING_BYTES_MAX].decode(errors="ignore").encode()
    return pack_short(len(data)) + data


def long_string(text: str) -> bytes:
    """[long string]."""
    data = text.encode()
    return pack_int(len(data)) + data


def string_list(texts: Sequence[str]) -> bytes:
    """[string list]."""
    return pack_short(len(texts)) + b"".join([string(text) for text in texts])


def string_map(pairs: Mapping[str, str]) -> bytes:
    """[string map]."""
    return pack_short(len(pairs)) + b"".join([string(k) + string(v) for k, v in pairs.items()])


def string_multimap(pairs: Mapping[str, Sequence[str]]) -> bytes:
    """[string multimap]."""
    return pack_short(len(pairs)) + b"".join([string(k) + string_list(v) for k, v in pairs.items()])


def bytes_map(pairs: Mapping[str, bytes | None]) -> bytes:
    """[bytes map]."""
    return pack_short(len(pairs)) + b"".join([string(k) + long_bytes(v) for k, v in pairs.items()])


def short_bytes(data: bytes) -> bytes:
    """[short bytes]."""
    return pack_short(len(data)) + data


def long_bytes(data: bytes | None) -> bytes:
    """[bytes]; None is null."""
    return NULL if data is None else pack_int(len(data)) + data


def inet_address(address: str) -> bytes:
    """[inetaddr]: length and address bytes."""
    packed = ipaddress.ip_address(address).packed
    return bytes((len(packed),)) + packed


def inet(address: str, port: int) -> bytes:
    """[inet]: address and 32-bit port."""
    return inet_address(address) + pack_int(port)


def read_string(body: bytes, at: int) -> tuple[str, int]:
    """[string]."""
    end = at + 2 + unpack_short(body, at)[0]
    return body[at + 2 : end].decode(), end


def read_long_string(body: bytes, at: int) -> tuple[str, int]:
    """[long string]."""
    length = unpack_int(body, at)[0]
    if length < 0:
        raise ProtocolViolation(f"Invalid string length {length}")
    end = at + 4 + length
    return body[at + 4 : end].decode(), end


def read_short_bytes(body: bytes, at: int) -> tuple[bytes, int]:
    """[short bytes]."""
    end = at + 2 + unpack_short(body, at)[0]
    return body[at + 2 : end], end


def read_bytes(body: bytes, at: int) -> tuple[bytes | None, int]:
    """[bytes]; any negative length is null."""
    length = unpack_int(body, at)[0]
    if length < 0:
        return None, at + 4
    end = at + 4 + length
    return body[at + 4 : end], end


def read_string_list(body: bytes, at: int) -> tuple[list[str], int]:
    """[string list]."""
    count, at = unpack_short(body, at)[0], at + 2
    texts = []
    for _ in range(count):
        text, at = read_string(body, at)
        texts.append(text)
    return texts, at


def read_string_map(body: bytes, at: int) -> tuple[dict[str, str], int]:
    """[string map]."""
    count, at = unpack_short(body, at)[0], at + 2
    pairs = {}
    for _ in range(count):
        key, at = read_string(body, at)
        pairs[key], at = read_string(body, at)
    return pairs, at


def read_string_multimap(body: bytes, at: int) -> tuple[dict[str, list[str]], int]:
    """[string multimap]."""
    count, at = unpack_short(body, at)[0], at + 2
    pairs = {}
    for _ in range(count):
        key, at = read_string(body, at)
        pairs[key], at = read_string_list(body, at)
    return pairs, at


def read_bytes_map(body: bytes, at: int) -> tuple[dict[str, bytes | None], int]:
    """[bytes map]."""
    count, at = unpack_short(body, at)[0], at + 2
    pairs = {}
    for _ in range(count):
        key, at = read_string(body, at)
        pairs[key], at = read_bytes(body, at)
    return pairs, at


def read_inet_address(body: bytes, at: int) -> tuple[str, int]:
    """[inetaddr]."""
    size = body[at]
    if size not in (4, 16):
        raise ProtocolViolation(f"Invalid address length {size}")
    end = at + 1 + size
    return str(ipaddress.ip_address(body[at + 1 : end])), end


def read_inet(body: bytes, at: int) -> tuple[tuple[str, int], int]:
    """[inet]: (address, port)."""
    address, at = read_inet_address(body, at)
    return (address, unpack_int(body, at)[0]), at + 4


_LENGTHS_KEPT = 1024
_LENGTHS = tuple(pack_int(length) for length in range(_LENGTHS_KEPT))


def pack_row(out: list[bytes], row: Iterable[bytes | None]) -> None:
    """Append the cells of one result row: length and bytes each, -1 for null."""
    append = out.append
    for cell in row:
        if cell is None:
            append(NULL)
        else:
            length = len(cell)
            append(_LENGTHS[length] if length < _LENGTHS_KEPT else pack_int(length))
            append(cell)
