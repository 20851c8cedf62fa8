"""Functions of numbers: abs, exp, log, log10, round.

Invariant: the result has the type of the argument; a whole number of fixed size saturates where the result
does not fit.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.signatures import Family, Function, Known, unfit
from lockstep.schema.types import CqlType, parse_type
from lockstep.values.errors import FunctionFailure

_WHOLE_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "counter": 64}
_NUMBERS = frozenset((*_WHOLE_BITS, "varint", "float", "double", "decimal"))
_DIGITS = decimal.Context(
    prec=34, rounding=decimal.ROUND_HALF_UP, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX
)
#: exp of more has more digits than anything is computed with.
_EXPONENT_MAX = 10_000


def _exp_float(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def _log_float(log: Callable[[float], float]) -> Callable[[float], float]:
    def run(number: float) -> float:
        if number == 0:
            return -math.inf
        return math.nan if number < 0 else log(number)

    return run


def _round_float(number: float) -> float:
    return number if not math.isfinite(number) else float(math.floor(number + 0.5))


_FLOATS: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "exp": _exp_float,
    "log": _log_float(math.log),
    "log10": _log_float(math.log10),
    "round": _round_float,
}


def _on_decimal(name: str, number: Decimal) -> Decimal:
    if name == "abs":
        return number.copy_abs()
    if name == "round":
        return number.to_integral_value(decimal.ROUND_HALF_UP)
    if name == "exp":
        if abs(number) > _EXPONENT_MAX:
            raise decimal.Overflow
        return _DIGITS.exp(number)
    if number <= 0:
        raise decimal.InvalidOperation
    return _DIGITS.ln(number) if name == "log" else _DIGITS.log10(number)


def _build(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind = known[0] or wanted
    if kind is None or kind.name not in _NUMBERS:
        raise unfit(name, kind, "a number")
    returns = parse_type("bigint") if kind.name == "counter" else kind

    def run(given: Sequence[bytes], context: Context) -> bytes | None:
        number: Any = kind.deserialize(given[0])
        if number is None:
            return None
        return returns.serialize(_computed(name, kind, number))

    return Function(name, (kind,), returns, run)


def _computed(name: str, kind: CqlType, number: Any) -> Any:
    if kind.name in ("float", "double"):
        return _FLOATS[name](number)
    if kind.name in ("decimal", "varint") and name not in ("abs", "round"):
        try:
            found = _on_decimal(name, Decimal(number))
        except decimal.DecimalException:
            why = "is undefined for zero and less" if name.startswith("log") else "is out of range"
            raise FunctionFailure(
                f"execution of 'system.{name}[{kind.text}]' failed: {name} of {number} {why}",
                "system",
                name,
                (kind.text,),
            ) from None
        return found if kind.name == "decimal" else int(found)
    if kind.name == "decimal":
        return _on_decimal(name, number)
    if name == "round":
        return number
    bits = _WHOLE_BITS.get(kind.name)
    if name == "abs":
        # The lowest number has no positive counterpart: it stays itself, as in two's complement.
        return number if bits is not None and number == -(1 << bits - 1) else abs(number)
    assert bits is not None
    return _saturated(_FLOATS[name](float(number)), bits)


def _saturated(number: float, bits: int) -> int:
    if number != number:
        return 0
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return low if number <= low else high if number >= high else int(number)


FAMILIES = tuple(Family(name, 1, 1, _build, "(any number) → its type") for name in sorted(_FLOATS))
