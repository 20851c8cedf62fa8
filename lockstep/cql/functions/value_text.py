"""Numbers with a point and addresses as text, as Java writes them.

Invariant: the text of a number has the fewest digits that give the number again.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Final

#: Numbers from the first to below the second are written without an exponent.
_PLAIN: Final = (Decimal("1E-3"), Decimal("1E+7"))


def float_text(value: float, kind: str) -> str:
    """A finite float or double."""
    return as_java(Decimal(float_digits(value, kind)))


def inet_text(data: bytes) -> str:
    """An address of version 6 has all its eight groups."""
    if len(data) == 4:
        return ".".join(map(str, data))
    return ":".join(f"{int.from_bytes(data[at : at + 2], 'big'):x}" for at in range(0, len(data), 2))


def float_digits(value: float, kind: str) -> str:
    """The shortest digits that give the number again."""
    if kind == "double" or not math.isfinite(value):
        return repr(value)
    packed = struct.pack(">f", value)
    found = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in found if struct.pack(">f", float(text)) == packed)


def as_java(number: Decimal) -> str:
    """With a point and at least one digit after it; large and small ones with an exponent."""
    sign, digits, exponent = number.as_tuple()
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    assert isinstance(exponent, int)
    power = len(digits) + exponent - 1
    minus = "-" if sign else ""
    if not number:
        return f"{minus}0.0"
    if not _PLAIN[0] <= abs(number) < _PLAIN[1]:
        return f"{minus}{shown[0]}.{shown[1:] or '0'}E{power}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{shown}"
    shown = shown.ljust(power + 1, "0")
    return f"{minus}{shown[: power + 1]}.{shown[power + 1 :] or '0'}"
