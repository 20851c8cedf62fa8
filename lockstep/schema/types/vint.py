"""Variable-length integers as the native protocol writes them.

Invariant: the first byte's leading one bits count the bytes that follow; signed values are zigzagged
into unsigned ones first. Values are 64 bits wide.
"""

from __future__ import annotations

from lockstep.values.errors import InvalidRequest

_MASK = (1 << 64) - 1


def write_unsigned(value: int) -> bytes:
    """1 to 9 bytes of an unsigned 64-bit value."""
    assert 0 <= value <= _MASK
    extra = max(0, (value.bit_length() - 1) // 7)
    if extra >= 8:
        return b"\xff" + value.to_bytes(8, "big")
    body = bytearray(value.to_bytes(extra + 1, "big"))
    body[0] |= 0xFF & ~(0xFF >> extra)
    return bytes(body)


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """(value, offset behind it); raises InvalidRequest when the bytes end early."""
    if at >= len(data):
        raise InvalidRequest("Not enough bytes to read a variable-length integer")
    first = data[at]
    extra = 8 if first == 0xFF else 8 - (first ^ 0xFF).bit_length()
    end = at + 1 + extra
    if end > len(data):
        raise InvalidRequest("Not enough bytes to read a variable-length integer")
    head = first & (0xFF >> extra)
    return (head << (8 * extra)) | int.from_bytes(data[at + 1 : end], "big"), end


def write_signed(value: int) -> bytes:
    """1 to 9 bytes of a signed 64-bit value."""
    return write_unsigned(((value << 1) ^ (value >> 63)) & _MASK)


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    """(value, offset behind it); raises InvalidRequest when the bytes end early."""
    raw, end = read_unsigned(data, at)
    return (raw >> 1) ^ -(raw & 1), end
