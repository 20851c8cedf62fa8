"""Numeric types and boolean: their bytes, checks and order; and variable-length integers as the protocol
writes them.

Invariant: integers sort by value, floats as Java's Double.compare does (-0.0 before 0.0, NaN last), varint
and decimal by exact value; equal decimals of different scale are neighbours, told apart by bytes. The first
byte's leading one bits count the bytes that follow; signed values are zigzagged into unsigned ones first.
Values are 64 bits wide.
"""

from __future__ import annotations

import decimal
import struct
from typing import ClassVar

from lockstep.schema.types.base import EMPTY_MARK, CqlType, mismatch
from lockstep.values.errors import InvalidRequest
from lockstep.values.node_limits import NUMBER_BYTES_MAX

_FLIPPED = tuple(bytes([first ^ 0x80]) for first in range(256))
_FLIPPED_COMPONENT = tuple(b"\x02" + flipped for flipped in _FLIPPED)


class FixedInteger(CqlType):
    """A signed big-endian integer of `fixed_bytes` bytes; values are int."""

    def __init__(self, text: str, layout: str, complaint: str) -> None:
        super().__init__(text)
        self._struct = struct.Struct(layout)
        self._size = self._struct.size
        self._complaint = complaint

    def serialize(self, value: object) -> bytes:
        try:
            return self._struct.pack(value)
        except struct.error:
            raise mismatch(self, value) from None

    def deserialize(self, data: bytes) -> int | None:
        if not data and self.empty_allowed:
            return None
        if len(data) != self._size:
            self.validate(data)
        number: int = self._struct.unpack(data)[0]
        return number

    def validate(self, data: bytes) -> None:
        if len(data) != self._size and (data or not self.empty_allowed):
            raise InvalidRequest(f"{self._complaint} ({len(data)})")

    def sort_key(self, data: bytes) -> bytes:
        return _FLIPPED[data[0]] + data[1:] if data else b""

    def from_sort_key(self, key: bytes) -> bytes:
        return _FLIPPED[key[0]] + key[1:] if key else b""

    def component(self, data: bytes) -> bytes:
        return _FLIPPED_COMPONENT[data[0]] + data[1:] if data else EMPTY_MARK


class TinyIntType(FixedInteger):
    name = "tinyint"
    fixed_bytes = 1
    empty_allowed = False


class SmallIntType(FixedInteger):
    name = "smallint"
    fixed_bytes = 2
    empty_allowed = False


class IntType(FixedInteger):
    name = "int"
    fixed_bytes = 4


class BigIntType(FixedInteger):
    name = "bigint"
    fixed_bytes = 8


class CounterType(FixedInteger):
    name = "counter"
    fixed_bytes = 8


class FloatingType(CqlType):
    """float (4 bytes) or double (8 bytes); values are Python floats."""

    layout: ClassVar[str]
    complaint: ClassVar[str]

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._struct = struct.Struct(self.layout)
        size = self._struct.size
        self._size = size
        self._mask = (1 << (8 * size)) - 1
        self._sign = 1 << (8 * size - 1)
        #: Bit patterns of negative NaNs: they are moved from below -infinity to the top.
        self._nans = (1 << (52 if size == 8 else 23)) - 1

    def serialize(self, value: object) -> bytes:
        try:
            return self._struct.pack(value)
        except (struct.error, OverflowError):
            if isinstance(value, float | int):
                return self._struct.pack(float("inf") if value > 0 else float("-inf"))
            raise mismatch(self, value) from None

    def deserialize(self, data: bytes) -> float | None:
        if not data:
            return None
        if len(data) != self._size:
            self.validate(data)
        number: float = self._struct.unpack(data)[0]
        return number

    def validate(self, data: bytes) -> None:
        if data and len(data) != self._size:
            raise InvalidRequest(f"{self.complaint} ({len(data)})")

    def format(self, value: object) -> str:
        if not isinstance(value, float):
            return str(value)
        if value != value:
            return "NaN"
        if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        return repr(value)

    def sort_key(self, data: bytes) -> bytes:
        if not data:
            return b""
        bits = int.from_bytes(data, "big")
        ordered = bits ^ self._mask if bits & self._sign else bits | self._sign
        return ((ordered - self._nans) & self._mask).to_bytes(self._size, "big")

    def from_sort_key(self, key: bytes) -> bytes:
        if not key:
            return b""
        ordered = (int.from_bytes(key, "big") + self._nans) & self._mask
        bits = ordered ^ self._sign if ordered & self._sign else ordered ^ self._mask
        return bits.to_bytes(self._size, "big")


class FloatType(FloatingType):
    name = "float"
    fixed_bytes = 4
    layout = ">f"
    complaint = "Expected 4 or 0 byte value for a float"


class DoubleType(FloatingType):
    name = "double"
    fixed_bytes = 8
    layout = ">d"
    complaint = "Expected 8 or 0 byte value for a double"


class BooleanType(CqlType):
    """One byte, 0 for false; values are bool."""

    name = "boolean"
    fixed_bytes = 1

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, bool):
            raise mismatch(self, value)
        return b"\x01" if value else b"\x00"

    def deserialize(self, data: bytes) -> bool | None:
        self.validate(data)
        return data != b"\x00" if data else None

    def validate(self, data: bytes) -> None:
        if len(data) > 1:
            raise InvalidRequest(f"Expected 1 or 0 byte value ({len(data)})")

    def format(self, value: object) -> str:
        return "true" if value else "false"


def int_bytes(number: int) -> bytes:
    """Shortest big-endian two's complement."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _too_long(kind: CqlType, size: int) -> InvalidRequest:
    return InvalidRequest(f"A {kind.name} of {size} bytes: it has at most {NUMBER_BYTES_MAX} bytes of digits")


#: Lengths below this are part of the head byte of a varint's sort key; longer ones follow as 4 bytes.
_LONG_VARINT_BYTES = 121


class VarintType(CqlType):
    """An integer of up to NUMBER_BYTES_MAX bytes; values are int."""

    name = "varint"

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, int):
            raise mismatch(self, value)
        return int_bytes(value)

    def deserialize(self, data: bytes) -> int | None:
        self.validate(data)
        return int.from_bytes(data, "big", signed=True) if data else None

    def validate(self, data: bytes) -> None:
        if len(data) > NUMBER_BYTES_MAX:
            raise _too_long(self, len(data))

    def format(self, value: object) -> str:
        return digits_of(value) if isinstance(value, int) else str(value)

    def sort_key(self, data: bytes) -> bytes:
        """Sign and length, shortest two's complement, then the count of redundant leading bytes if any."""
        if not data:
            return b""
        negative = data[0] >= 0x80
        shortest = int_bytes(int.from_bytes(data, "big", signed=True))
        size = len(shortest)
        short = min(size, _LONG_VARINT_BYTES)
        head = bytes([0x80 - short if negative else 0x80 + short])
        if size >= _LONG_VARINT_BYTES:
            head += (0xFFFFFFFF - size if negative else size).to_bytes(4, "big")
        padding = len(data) - size
        return head + shortest + (padding.to_bytes(4, "big") if padding else b"")

    def from_sort_key(self, key: bytes) -> bytes:
        if not key:
            return b""
        negative = key[0] < 0x80
        size, at = abs(key[0] - 0x80), 1
        if size == _LONG_VARINT_BYTES:
            size, at = int.from_bytes(key[1:5], "big"), 5
            size = 0xFFFFFFFF - size if negative else size
        padding = int.from_bytes(key[at + size :], "big")
        return (b"\xff" if negative else b"\x00") * padding + key[at : at + size]


def digits_of(number: int) -> str:
    """Decimal digits of any int (Decimal has no limit on the number of digits, str(int) has)."""
    return str(decimal.Decimal(number))


#: Added to a decimal's exponent so that it is positive: scales are 32 bits, digit counts fewer.
_EXPONENT_BIAS = 1 << 36
_INVERT = bytes(range(255, -1, -1))


class DecimalType(CqlType):
    """4 bytes of scale and a varint; values are decimal.Decimal (finite)."""

    name = "decimal"

    def serialize(self, value: object) -> bytes:
        if isinstance(value, int):
            value = decimal.Decimal(value)
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            raise mismatch(self, value)
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        if not -(1 << 31) <= -exponent < 1 << 31:
            raise mismatch(self, value)
        unscaled = int(decimal.Decimal((sign, digits, 0)))
        return (-exponent).to_bytes(4, "big", signed=True) + int_bytes(unscaled)

    def deserialize(self, data: bytes) -> decimal.Decimal | None:
        if not data:
            return None
        self.validate(data)
        scale, unscaled = self._parts(data)
        if -(1 << 63) <= unscaled < 1 << 63:
            return decimal.Decimal(f"{unscaled}E{-scale}")
        sign, digits, _ = decimal.Decimal(unscaled).as_tuple()
        return decimal.Decimal((sign, digits, -scale))

    def validate(self, data: bytes) -> None:
        if data and len(data) < 4:
            raise InvalidRequest(f"Expected 0 or at least 4 bytes ({len(data)})")
        if len(data) > 4 + NUMBER_BYTES_MAX:
            raise _too_long(self, len(data))

    @staticmethod
    def _parts(data: bytes) -> tuple[int, int]:
        scale = int.from_bytes(data[:4], "big", signed=True)
        return scale, int.from_bytes(data[4:], "big", signed=True)

    def sort_key(self, data: bytes) -> bytes:
        """Sign, exponent of the first digit, digits without trailing zeros, end; then the data itself."""
        if not data:
            return b""
        scale, unscaled = self._parts(data)
        if unscaled == 0:
            return b"\x01" + data
        digits = digits_of(abs(unscaled))
        exponent = len(digits) - scale + _EXPONENT_BIAS
        body = exponent.to_bytes(5, "big") + digits.rstrip("0").encode() + b"\x00"
        return b"\x02" + body + data if unscaled > 0 else b"\x00" + body.translate(_INVERT) + data

    def from_sort_key(self, key: bytes) -> bytes:
        if not key:
            return b""
        if key[0] == 1:
            return key[1:]
        end = key.index(b"\x00" if key[0] == 2 else b"\xff", 6)
        return key[end + 1 :]


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
