"""Arithmetic, which operators fit which types, what they give, and how values are worked out; and CAST,
between numbers, to text, and between points in time.

Invariant: whole numbers of fixed size wrap as two's complement does, divisions of whole numbers go towards
zero, and a remainder has the sign of its dividend. As in Java: numbers with a point that are too large become
the largest int or bigint, whole ones lose their high bits; what becomes a varint passes through a bigint.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.native import date_bytes, long_bytes, through_ms
from lockstep.cql.functions.signatures import Arguments, Function, Known, Run
from lockstep.cql.functions.time_functions import date_plus, timestamp_plus
from lockstep.cql.functions.value_text import as_java, float_digits, float_text, inet_text
from lockstep.schema.types import CqlType, parse_type
from lockstep.values.errors import FunctionFailure, InvalidRequest

WHOLE_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "counter": 64}
NUMBERS = (*WHOLE_BITS, "varint", "float", "double", "decimal")
_TEXTS = ("text", "ascii")
TIMES = ("timestamp", "date")
#: Digits kept by sums and products of decimals, and least and most places of quotients.
_PRECISE = decimal.Context(
    prec=10_000, rounding=decimal.ROUND_HALF_UP, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX
)
_QUOTIENT_DIGITS = 32
_QUOTIENT_PLACES_MAX = 1000

Compute = Callable[[Any, Any], Any]


def result_type(sign: str, left: CqlType, right: CqlType) -> CqlType | None:
    """What `left sign right` is; None when there is no such operation."""
    if left.name in WHOLE_BITS | _OTHER_NUMBERS and right.name in WHOLE_BITS | _OTHER_NUMBERS:
        return parse_type(_common(left.name, right.name))
    if sign in ("+", "-") and left.name in TIMES and right.name == "duration":
        return left
    if sign == "+" and left.name in _TEXTS and right.name in _TEXTS:
        return left if left == right else parse_type("text")
    return None


_OTHER_NUMBERS = {"varint": 0, "float": 0, "double": 0, "decimal": 0}


def _common(left: str, right: str) -> str:
    pair = {left, right}
    if "decimal" in pair:
        return "decimal"
    floats = pair & {"float", "double"}
    if floats:
        if "varint" in pair:
            return "decimal"
        # Neither a whole number of 64 bits nor a double fits into a float.
        return "double" if pair & {"double", "bigint", "counter"} else "float"
    if "varint" in pair:
        return "varint"
    bits = max(WHOLE_BITS[left], WHOLE_BITS[right])
    return {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}[bits]


def operand_types(
    shown: str, known: tuple[Known, Known], loose: tuple[bool, bool], wanted: Known
) -> tuple[CqlType, CqlType]:
    """Types to take the two operands as, where a literal or a bind variable leaves that open.

    `loose`: which take any numeric type. InvalidRequest when nothing tells.
    """
    left, right = known
    if all(loose) and wanted is not None and wanted.name in NUMBERS:
        return wanted, wanted
    if right is not None and right.name == "duration" and (left is None or left.name == "text"):
        # A literal or a bind variable: text has no operation with a duration.
        left = wanted if wanted is not None and wanted.name in TIMES else parse_type("timestamp")
    if left is None and right is not None:
        left = right
    if right is None and left is not None:
        right = parse_type("duration") if left.name in TIMES else left
    if left is None or right is None:
        raise InvalidRequest(f"Cannot infer type for {shown} (try using a cast to force a type)")
    return left, right


def operation(sign: str, left: CqlType, right: CqlType, shown: tuple[str, str]) -> Function:
    """The function of an operator for two types; InvalidRequest, naming `shown`, when there is none."""
    returns = result_type(sign, left, right)
    if returns is None:
        raise InvalidRequest(f"the '{sign}' operation is not supported between {shown[0]} and {shown[1]}")
    if left.name in _TEXTS:
        return Function(sign, (left, right), returns, lambda given, context: given[0] + given[1])
    if left.name in TIMES:
        return Function(sign, (left, right), returns, _moved(left, right, -1 if sign == "-" else 1))
    return Function(sign, (left, right), returns, _numeric(sign, left, right, returns))


def negation(kind: CqlType, shown: str) -> Function:
    """Unary minus; InvalidRequest when the type has none."""
    if kind.name == "duration":

        def turned(given: Sequence[bytes], context: Context) -> bytes:
            value = kind.deserialize(given[0])
            assert isinstance(value, tuple)
            return kind.serialize(tuple(-part for part in value))

        return Function("-", (kind,), kind, turned)
    if kind.name not in NUMBERS:
        raise InvalidRequest(f"the '-' operation is not supported for {shown}")
    returns = parse_type("bigint") if kind.name == "counter" else kind

    def negated(given: Sequence[bytes], context: Context) -> bytes | None:
        value: Any = kind.deserialize(given[0])
        if isinstance(value, Decimal):
            # Minus rounds to the digits of a context.
            return kind.serialize(value.copy_negate())
        return None if value is None else fitted(returns, -value)

    return Function("-", (kind,), returns, negated)


def fitted(kind: CqlType, number: Any) -> bytes:
    """Bytes of a computed number: a whole one wraps into its type."""
    bits = WHOLE_BITS.get(kind.name)
    if bits is not None:
        half = 1 << bits - 1
        number = (number + half) % (1 << bits) - half
    return kind.serialize(number)


def _moved(kind: CqlType, duration: CqlType, sign: int) -> Callable[[Sequence[bytes], Context], bytes | None]:
    of_date = kind.name == "date"
    plus = date_plus if of_date else timestamp_plus
    unit, precise = ("day", 86_400 * 10**9) if of_date else ("millisecond", 10**6)

    def run(given: Sequence[bytes], context: Context) -> bytes | None:
        start, span = kind.deserialize(given[0]), duration.deserialize(given[1])
        if start is None:
            return None
        assert isinstance(start, int) and isinstance(span, tuple)
        if span[2] % precise:
            why = f"The duration must have a {unit} precision. Was: {duration.format(span)}"
            raise _failed("-" if sign < 0 else "+", (kind, duration), why)
        months, days, ns = (sign * part for part in span)
        return kind.serialize(plus(start, months, days, ns))

    return run


def _numeric(
    sign: str, left: CqlType, right: CqlType, returns: CqlType
) -> Callable[[Sequence[bytes], Context], bytes | None]:
    convert = [_conversion(kind, returns) for kind in (left, right)]
    floats = returns.name in ("float", "double")
    compute = (_FLOATS if floats else _DECIMALS if returns.name == "decimal" else _WHOLES)[sign]
    by_zero = "/ by zero" if returns.name in WHOLE_BITS else "BigInteger divide by zero"

    def run(given: Sequence[bytes], context: Context) -> bytes | None:
        a, b = left.deserialize(given[0]), right.deserialize(given[1])
        if a is None or b is None:
            return None
        try:
            return fitted(returns, compute(convert[0](a), convert[1](b)))
        except (ZeroDivisionError, decimal.DecimalException, OverflowError, _NoDecimal) as error:
            why = by_zero if isinstance(error, ZeroDivisionError) else "the result is out of range"
            if isinstance(error, _NoDecimal):
                why = str(error)
            raise _failed(sign, (left, right), why) from None

    return run


def _failed(sign: str, kinds: tuple[CqlType, CqlType], why: str) -> FunctionFailure:
    left, right = (kind.text for kind in kinds)
    named = {"+": "_add", "-": "_substract", "*": "_multiply", "/": "_divide", "%": "_modulo"}[sign]
    return FunctionFailure(
        f"the operation '{left} {sign} {right}' failed: {why}", "system", named, (left, right)
    )


class _NoDecimal(ValueError):
    """A number that no decimal is equal to."""


def _conversion(kind: CqlType, returns: CqlType) -> Callable[[Any], Any]:
    """Of an operand into the type that is computed in."""
    if returns.name != "decimal":
        return float if returns.name in ("float", "double") else int
    return Decimal if kind.name in ("varint", "decimal") else _through_double


def _through_double(value: float) -> Decimal:
    """As in Java a number of fixed size becomes a double first, with a digit behind the point at least."""
    double = float(value)
    if double != double:
        raise _NoDecimal("A NaN cannot be converted into a decimal")
    if math.isinf(double):
        raise _NoDecimal("An infinite number cannot be converted into a decimal")
    return Decimal(as_java(Decimal(repr(double))))


def _whole_quotient(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _float_quotient(a: float, b: float) -> float:
    if b:
        return a / b
    if a != a or a == 0:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _float_remainder(a: float, b: float) -> float:
    if not b or math.isinf(a) or a != a or b != b:
        return math.nan
    return math.fmod(a, b)


def divided(a: Decimal, b: Decimal) -> Decimal:
    """A quotient of decimals: 32 significant digits and places at least, without zeros at its end."""
    if not b:
        raise ZeroDivisionError
    if not a:
        return Decimal(0)
    first = (a.adjusted() + 1) - (b.adjusted() + 1)
    places = max(_QUOTIENT_DIGITS - first, -int(a.as_tuple().exponent), -int(b.as_tuple().exponent))
    places = min(max(places, _QUOTIENT_DIGITS), _QUOTIENT_PLACES_MAX)
    digits = max(first + places + 2, 1)
    if digits > _PRECISE.prec:
        raise decimal.Overflow
    # Rounding twice could move the last place: the first rounding only cuts.
    cut = decimal.Context(
        prec=digits + 5, rounding=decimal.ROUND_DOWN, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX
    )
    quotient = cut.divide(a, b).quantize(Decimal(1).scaleb(-places, _PRECISE), context=_PRECISE)
    return quotient.normalize(_PRECISE) if quotient else Decimal(0)


def _decimal_remainder(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise ZeroDivisionError
    return _PRECISE.remainder(a, b)


_WHOLES: dict[str, Compute] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _whole_quotient,
    "%": lambda a, b: a - b * _whole_quotient(a, b),
}
_FLOATS: dict[str, Compute] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _float_quotient,
    "%": _float_remainder,
}
_DECIMALS: dict[str, Compute] = {
    "+": _PRECISE.add,
    "-": _PRECISE.subtract,
    "*": _PRECISE.multiply,
    "/": divided,
    "%": _decimal_remainder,
}


_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "varint": 64}
_NUMBERS: Final = frozenset((*_BITS, "counter", "float", "double", "decimal"))
_CAST_TEXTS: Final = ("text", "ascii")
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
    if target.name in _CAST_TEXTS and (
        source.name in _NUMBERS or source.name in _TOLD or source.name == "ascii"
    ):
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
