"""The native aggregates: count, min, max, sum, avg.

Invariant: states are plain values folded row by row; nulls do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import msgspec

from lockstep.schema.types import CqlType, parse_type
from lockstep.values.errors import InvalidRequest

_NUMBERS = frozenset(
    ("tinyint", "smallint", "int", "bigint", "counter", "varint", "float", "double", "decimal")
)
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "counter": 64}
#: Sums of decimals keep every digit that a value can have.
_PRECISE = Context(prec=10_000, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX)
NAMES = frozenset(("count", "min", "max", "sum", "avg"))


class Aggregate(msgspec.Struct, frozen=True):
    """`start` is the state before any row, `step(state, data)` folds one non-null value in. `join(state,
    count, data)` folds many in of which it is told how many count and, but for `count`, their exact sum or
    the extreme one; None where the order of values matters."""

    returns: CqlType
    start: Any
    step: Callable[[Any, bytes], Any]
    finish: Callable[[Any], bytes | None]
    join: Callable[[Any, int, bytes | None], Any] | None = None


def aggregate(name: str, kind: CqlType | None) -> Aggregate:
    """The aggregate of a name over values of `kind` (None: `count(*)`); InvalidRequest when it has none."""
    assert name in NAMES, f"{name} is no aggregate"
    if name == "count":
        bigint = parse_type("bigint")
        return Aggregate(
            bigint,
            0,
            lambda state, data: state + 1,
            bigint.serialize,
            lambda state, count, data: state + count,
        )
    assert kind is not None
    if name in ("min", "max"):
        return _extreme(kind, largest=name == "max")
    if kind.name not in _NUMBERS:
        raise InvalidRequest(
            f"Invalid call to function {name}, none of its type signatures match (known type "
            f"signatures: numeric types; given {kind.text})"
        )
    return _sum(kind) if name == "sum" else _average(kind)


class FloatSum(msgspec.Struct, frozen=True):
    """A sum by Kahan's algorithm, which loses less than additions in turn. `exact` is the sum once it is too
    large for a double, while its average may be none."""

    sum: float = 0.0
    compensation: float = 0.0
    simple: float = 0.0
    count: int = 0
    exact: Decimal | None = None

    def plus(self, value: float) -> FloatSum:
        corrected = value - self.compensation
        rounded = self.sum + corrected
        exact = self.exact
        if exact is not None:
            exact = _PRECISE.add(exact, Decimal(repr(value))) if math.isfinite(value) else None
        elif math.isinf(rounded) and math.isfinite(value) and math.isfinite(self.sum):
            exact = _PRECISE.add(Decimal(repr(self.sum)), Decimal(repr(value)))
        lost = (rounded - self.sum) - corrected
        return FloatSum(rounded, lost, self.simple + value, self.count + 1, exact)

    @property
    def total(self) -> float:
        total = self.sum + self.compensation
        # Infinities leave nothing to correct.
        return self.simple if math.isnan(total) and math.isinf(self.simple) else total

    @property
    def average(self) -> float:
        if self.exact is not None:
            return float(_PRECISE.divide(self.exact, self.count))
        return self.total / self.count if self.count else 0.0


def _floats_step(kind: CqlType) -> Callable[[FloatSum, bytes], FloatSum]:
    def step(state: FloatSum, data: bytes) -> FloatSum:
        value = kind.deserialize(data)
        return state.plus(value) if isinstance(value, float) else state

    return step


def _extreme(kind: CqlType, *, largest: bool) -> Aggregate:
    sort_key = kind.sort_key

    def step(state: bytes | None, data: bytes) -> bytes:
        if state is None:
            return data
        return data if (sort_key(data) > sort_key(state)) is largest and data != state else state

    def join(state: bytes | None, count: int, data: bytes | None) -> bytes | None:
        return state if data is None else step(state, data)

    return Aggregate(kind, None, step, lambda state: state, join)


def _sum(kind: CqlType) -> Aggregate:
    if kind.name in ("float", "double"):
        return Aggregate(kind, FloatSum(), _floats_step(kind), lambda state: kind.serialize(state.total))
    bits = _BITS.get(kind.name)

    def step(state: Any, data: bytes) -> Any:
        value = kind.deserialize(data)
        if value is None:
            return state
        total: Any = _PRECISE.add(state, value) if isinstance(value, Decimal) else state + value
        return _wrapped(total, bits) if bits is not None else total

    def join(state: int, count: int, data: bytes | None) -> int:
        total = state + _whole(data)
        return _wrapped(total, bits) if bits is not None else total

    return Aggregate(kind, _zero(kind), step, kind.serialize, None if kind.name == "decimal" else join)


def _average(kind: CqlType) -> Aggregate:
    if kind.name in ("float", "double"):
        return Aggregate(kind, FloatSum(), _floats_step(kind), lambda state: kind.serialize(state.average))

    def step(state: tuple[Any, int], data: bytes) -> tuple[Any, int]:
        value = kind.deserialize(data)
        if value is None:
            return state
        total = _PRECISE.add(state[0], value) if isinstance(value, Decimal) else state[0] + value
        return total, state[1] + 1

    def finish(state: tuple[Any, int]) -> bytes:
        total, count = state
        if count == 0:
            return kind.serialize(_zero(kind))
        if isinstance(total, int):
            # Whole numbers divide towards zero, as in the JVM.
            quotient = abs(total) // count
            return kind.serialize(-quotient if total < 0 else quotient)
        # As many places as the sum has.
        places = Decimal(1).scaleb(int(total.as_tuple().exponent), _PRECISE)
        return kind.serialize(_PRECISE.divide(total, count).quantize(places, context=_PRECISE))

    def join(state: tuple[int, int], count: int, data: bytes | None) -> tuple[int, int]:
        return state[0] + _whole(data), state[1] + count

    return Aggregate(kind, (_zero(kind), 0), step, finish, None if kind.name == "decimal" else join)


def _whole(data: bytes | None) -> int:
    return int.from_bytes(data or b"", "big", signed=True)


def _zero(kind: CqlType) -> Any:
    return Decimal(0) if kind.name == "decimal" else 0


def _wrapped(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (1 << bits) - half
