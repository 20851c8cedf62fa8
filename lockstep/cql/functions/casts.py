"""CAST: between numbers, to text, and between points in time.

Invariant: as in Java: numbers with a point that are too large become the largest int or bigint, whole ones
lose their high bits; what becomes a varint passes through a bigint.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.native import date_bytes, long_bytes, through_ms
from lockstep.cql.functions.signatures import Arguments, Run
from lockstep.cql.functions.value_text import float_digits, float_text, inet_text
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "varint": 64}
_NUMBERS: Final = frozenset((*_BITS, "counter", "float", "double", "decimal"))
_TEXTS: Final = ("text", "ascii")
#: What text is made of besides numbers.
_TOLD: Final = frozenset(("inet", "boolean", "timeuuid", "timestamp", "date", "time", "uuid"))
_TIMES: Final = {"timeuuid": ("timestamp", "date"), "timestamp": ("date",), "date": ("timestamp",)}
#: Digits of a decimal that becomes a whole number: its exponent alone could ask for gigabytes.
_CAST_DIGITS_MAX: Final = 10_000


def cast_function(source: CqlType, target: CqlType, shown: str) -> Run:
    """InvalidRequest, naming what is `shown`, for types that are not cast to each other."""
    if source == target:
        return lambda arguments, context: arguments[0]
    if source.name in _NUMBERS and target.name in _NUMBERS and target.name != "counter":
        return _to_number(source, target)
    if target.name in _TEXTS and (source.name in _NUMBERS or source.name in _TOLD or source.name == "ascii"):
        return lambda arguments, context: _told(source, arguments[0]).encode()
    if target.name in _TIMES.get(source.name, ()):
        return through_ms(source.name, long_bytes if target.name == "timestamp" else date_bytes)
    raise InvalidRequest(f"{shown} cannot be cast to {target.text}")


def _to_number(source: CqlType, target: CqlType) -> Run:
    def run(arguments: Arguments, context: Context) -> bytes | None:
        value = source.deserialize(arguments[0])
        if not isinstance(value, int | float | Decimal):
            return None
        if target.name in _BITS:
            return target.serialize(_whole(value, target.name))
        if target.name == "decimal":
            shown = float_digits(value, source.name) if isinstance(value, float) else str(value)
            return target.serialize(Decimal(shown))
        return target.serialize(_with_point(value))

    return run


def _whole(value: float | Decimal, target: str) -> int:
    bits = _BITS[target]
    if isinstance(value, float):
        # What is smaller than an int is cut from one.
        most = 1 << max(bits, 32) - 1
        whole = 0 if math.isnan(value) else int(max(min(value, most), -most))
        value = min(whole, most - 1)
    elif isinstance(value, Decimal) and value.adjusted() > _CAST_DIGITS_MAX:
        raise InvalidRequest(f"A decimal of more than {_CAST_DIGITS_MAX} digits cannot be cast")
    return (int(value) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def _with_point(value: float | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


# ---- as text


def _told(source: CqlType, data: bytes) -> str:
    value = source.deserialize(data)
    if isinstance(value, float) and math.isfinite(value):
        return float_text(value, source.name)
    if source.name == "inet" and data:
        return inet_text(data)
    text = source.format(value)
    return text[1:-1].replace("''", "'") if text.startswith("'") else text
