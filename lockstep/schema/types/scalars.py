"""Scalar types that are not numbers: text, bytes, identifiers, addresses and times; and proleptic Gregorian
calendar arithmetic on day numbers; no clock and no zone is ever read.

Invariant: value shapes are plain Python: str, bytes (blob; 16 bytes for uuid and timeuuid), inet as text,
timestamp as int milliseconds, date as int days from 1970, time as int nanoseconds, duration as (months, days,
nanoseconds). Day 0 is 1970-01-01; years may be negative or beyond 9999.
"""

from __future__ import annotations

import ipaddress
import struct

from lockstep.schema.types import numbers
from lockstep.schema.types.base import CqlType, mismatch
from lockstep.schema.types.numbers import FixedInteger
from lockstep.values.errors import InvalidRequest

_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_in_month(year: int, month: int) -> int:
    """28 to 31; `month` is 1 to 12."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and leap else _MONTH_DAYS[month - 1]


def days_of(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to the given date."""
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def date_of(days: int) -> tuple[int, int, int]:
    """(year, month, day) of a day number."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = (shifted_month + 2) % 12 + 1
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    assert 1 <= month <= 12 and 1 <= day <= 31, "a day is one of a month"
    return year_of_era + era * 400 + (month <= 2), month, day


def date_text(days: int) -> str:
    """`yyyy-mm-dd`."""
    year, month, day = date_of(days)
    sign = "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


class TextType(CqlType):
    """UTF-8; values are str."""

    name = "text"

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise mismatch(self, value)
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("String didn't validate.") from None

    def deserialize(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("String didn't validate.") from None

    def validate(self, data: bytes) -> None:
        if not data.isascii():
            self.deserialize(data)

    def format(self, value: object) -> str:
        return "'" + str(value).replace("'", "''") + "'"


class AsciiType(TextType):
    """7-bit text; values are str."""

    name = "ascii"

    def serialize(self, value: object) -> bytes:
        data = super().serialize(value)
        self.validate(data)
        return data

    def deserialize(self, data: bytes) -> str:
        self.validate(data)
        return data.decode("ascii")

    def validate(self, data: bytes) -> None:
        if not data.isascii():
            first = next(byte for byte in data if byte > 0x7F)
            raise InvalidRequest(f"Invalid byte for ascii: {first - 256}")


class BlobType(CqlType):
    """Any bytes."""

    name = "blob"

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise mismatch(self, value)
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def validate(self, data: bytes) -> None:
        return

    def format(self, value: object) -> str:
        return "0x" + value.hex() if isinstance(value, bytes) else str(value)


def uuid_text(data: bytes) -> str:
    """The 36-character form of 16 bytes."""
    digits = data.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class UuidType(CqlType):
    """16 bytes; sorted by version, then by time (version 1) or bytes."""

    name = "uuid"
    fixed_bytes = 16

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, bytes) or len(value) != 16:
            raise mismatch(self, value)
        return value

    def deserialize(self, data: bytes) -> bytes | None:
        self.validate(data)
        return data or None

    def validate(self, data: bytes) -> None:
        if data and len(data) != 16:
            raise InvalidRequest(f"UUID should be 16 or 0 bytes ({len(data)})")

    def format(self, value: object) -> str:
        return uuid_text(value) if isinstance(value, bytes) and len(value) == 16 else str(value)

    def sort_key(self, data: bytes) -> bytes:
        if not data:
            return b""
        if data[6] >> 4 == 1:
            return data[6:8] + data[4:6] + data[:4] + data[8:]
        # The version is the 13th of 32 hex digits; moved to the front it becomes the first criterion.
        digits = data.hex()
        return bytes.fromhex(digits[12] + digits[:12] + digits[13:])

    def from_sort_key(self, key: bytes) -> bytes:
        if not key:
            return b""
        if key[0] >> 4 == 1:
            return key[4:8] + key[2:4] + key[:2] + key[8:]
        digits = key.hex()
        return bytes.fromhex(digits[1:13] + digits[0] + digits[13:])


_FLIP = bytes(byte ^ 0x80 for byte in range(256))


class TimeUuidType(UuidType):
    """A version 1 uuid; sorted by its time, then by its other bytes taken as signed."""

    name = "timeuuid"

    def serialize(self, value: object) -> bytes:
        data = super().serialize(value)
        self.validate(data)
        return data

    def validate(self, data: bytes) -> None:
        super().validate(data)
        if data and data[6] >> 4 != 1:
            raise InvalidRequest("Invalid version for TimeUUID type.")

    def sort_key(self, data: bytes) -> bytes:
        return data[6:8] + data[4:6] + data[:4] + data[8:].translate(_FLIP)

    def from_sort_key(self, key: bytes) -> bytes:
        return key[4:8] + key[2:4] + key[:2] + key[8:].translate(_FLIP)


class InetType(CqlType):
    """4 or 16 address bytes; values are str."""

    name = "inet"

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise mismatch(self, value)
        try:
            return ipaddress.ip_address(value).packed
        except ValueError:
            raise InvalidRequest(f"Unable to make inet address from '{value}'") from None

    def deserialize(self, data: bytes) -> str | None:
        self.validate(data)
        return str(ipaddress.ip_address(data)) if data else None

    def validate(self, data: bytes) -> None:
        if len(data) not in (0, 4, 16):
            raise InvalidRequest(f"Expected 4 or 16 byte inetaddress; got {data.hex()}")

    def format(self, value: object) -> str:
        return f"'{value}'"


class TimestampType(FixedInteger):
    """Milliseconds from 1970-01-01 UTC; values are int."""

    name = "timestamp"
    fixed_bytes = 8

    def format(self, value: object) -> str:
        if not isinstance(value, int):
            return str(value)
        days, rest = divmod(value, 86_400_000)
        minutes, ms = divmod(rest, 60_000)
        hour, minute = divmod(minutes, 60)
        return f"'{date_text(days)}T{hour:02d}:{minute:02d}:{ms // 1000:02d}.{ms % 1000:03d}Z'"


_DATE = struct.Struct(">I")
_DATE_EPOCH = 1 << 31


class DateType(CqlType):
    """Days from 1970-01-01, on the wire with 2^31 added; values are int."""

    name = "date"
    fixed_bytes = 4
    empty_allowed = False

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, int) or not -_DATE_EPOCH <= value < _DATE_EPOCH:
            raise mismatch(self, value)
        return _DATE.pack(value + _DATE_EPOCH)

    def deserialize(self, data: bytes) -> int:
        self.validate(data)
        raw: int = _DATE.unpack(data)[0]
        return raw - _DATE_EPOCH

    def validate(self, data: bytes) -> None:
        if len(data) != 4:
            raise InvalidRequest(f"Expected 4 byte long for date ({len(data)})")

    def format(self, value: object) -> str:
        return f"'{date_text(value)}'" if isinstance(value, int) else str(value)


TIME_NS_MAX = 86_400_000_000_000 - 1
_TIME = struct.Struct(">q")


class TimeType(CqlType):
    """Nanoseconds from midnight; values are int."""

    name = "time"
    fixed_bytes = 8
    empty_allowed = False

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, int) or not 0 <= value <= TIME_NS_MAX:
            raise mismatch(self, value)
        return _TIME.pack(value)

    def deserialize(self, data: bytes) -> int:
        self.validate(data)
        nanoseconds: int = _TIME.unpack(data)[0]
        return nanoseconds

    def validate(self, data: bytes) -> None:
        if len(data) != 8:
            raise InvalidRequest(f"Expected 8 byte long for time ({len(data)})")

    def format(self, value: object) -> str:
        if not isinstance(value, int):
            return str(value)
        seconds, ns = divmod(value, 1_000_000_000)
        return f"'{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ns:09d}'"


class DurationType(CqlType):
    """(months, days, nanoseconds), all of one sign; has no meaningful order."""

    name = "duration"
    empty_allowed = False

    def serialize(self, value: object) -> bytes:
        if not (isinstance(value, tuple) and len(value) == 3 and all(isinstance(p, int) for p in value)):
            raise mismatch(self, value)
        months, days, ns = value
        self._check(months, days, ns)
        return numbers.write_signed(months) + numbers.write_signed(days) + numbers.write_signed(ns)

    def deserialize(self, data: bytes) -> tuple[int, int, int]:
        if len(data) < 3:
            raise InvalidRequest(f"Expected at least 3 bytes for a duration ({len(data)})")
        months, at = numbers.read_signed(data, 0)
        days, at = numbers.read_signed(data, at)
        ns, _ = numbers.read_signed(data, at)
        self._check(months, days, ns)
        return months, days, ns

    @staticmethod
    def _check(months: int, days: int, ns: int) -> None:
        if not -(1 << 31) <= months < 1 << 31:
            raise InvalidRequest(f"The duration months must be a 32 bits integer but was: {months}")
        if not -(1 << 31) <= days < 1 << 31:
            raise InvalidRequest(f"The duration days must be a 32 bits integer but was: {days}")
        if not -(1 << 63) <= ns < 1 << 63:
            raise InvalidRequest("The duration nanoseconds must be a 64 bits integer")
        if min(months, days, ns) < 0 < max(months, days, ns):
            raise InvalidRequest(
                "The duration months, days and nanoseconds must be all of the same sign "
                f"({months}, {days}, {ns})"
            )

    def validate(self, data: bytes) -> None:
        self.deserialize(data)

    def format(self, value: object) -> str:
        if not isinstance(value, tuple):
            return str(value)
        months, days, ns = value
        sign = "-" if min(months, days, ns) < 0 else ""
        months, days, ns = abs(months), abs(days), abs(ns)
        units = (
            (months // 12, "y"), (months % 12, "mo"), (days, "d"),
            (ns // 3_600_000_000_000, "h"), (ns // 60_000_000_000 % 60, "m"),
            (ns // 1_000_000_000 % 60, "s"), (ns // 1_000_000 % 1000, "ms"),
            (ns // 1000 % 1000, "us"), (ns % 1000, "ns"),
        )  # fmt: skip
        return sign + ("".join(f"{count}{unit}" for count, unit in units if count) or "0s")
