"""Every kind of type with a strategy of its values and an obvious ordering key (the slow twin)."""

from __future__ import annotations

import decimal
import ipaddress
import math
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Kind(NamedTuple):
    text: str
    values: st.SearchStrategy[Any]
    key: Callable[[Any], Any]


def integer(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def by_value_and_scale(value: decimal.Decimal) -> tuple[decimal.Decimal, int]:
    """Equal numbers of different scales are different keys; the smaller scale comes first."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "a number"
    return value, -exponent


def same(value: Any) -> Any:
    return value


def float_key(value: float) -> tuple[int, float, float]:
    return (1, 0.0, 0.0) if math.isnan(value) else (0, value, math.copysign(1, value))


def uuid_key(value: bytes) -> tuple[int, int, int]:
    parsed = uuid.UUID(bytes=value)
    version = value[6] >> 4
    high = parsed.time if version == 1 else int.from_bytes(value[:8], "big")
    return version, high, int.from_bytes(value[8:], "big")


def time_uuid_key(value: bytes) -> tuple[int, list[int]]:
    return uuid.UUID(bytes=value).time, [b - 256 if b > 127 else b for b in value[8:]]


def as_version(version: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:6] + bytes((version << 4 | data[6] & 15,)) + data[7:]


SIXTEEN = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.lists(st.sampled_from([0, 1, 127, 128, 255]), min_size=16, max_size=16).map(bytes),
)
DECIMALS = st.builds(
    lambda unscaled, scale: decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=200)),
    st.one_of(st.integers(-1200, 1200), st.integers(-(10**40), 10**40)),
    st.integers(-30, 30),
)
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
BLOBS = st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=5).map(bytes) | st.binary(max_size=4)

SCALARS = (
    Kind("ascii", st.text(st.characters(max_codepoint=127), max_size=5), str.encode),
    Kind("bigint", integer(64), same),
    Kind("blob", BLOBS, same),
    Kind("boolean", st.booleans(), same),
    Kind("date", integer(32), same),
    Kind("decimal", DECIMALS, by_value_and_scale),
    Kind("double", st.floats(), float_key),
    Kind("float", st.floats(width=32), float_key),
    Kind("inet", ADDRESSES, lambda text: ipaddress.ip_address(text).packed),
    Kind("int", integer(32), same),
    Kind("smallint", integer(16), same),
    Kind("text", TEXTS, str.encode),
    Kind("time", st.integers(0, 86_399_999_999_999), same),
    Kind("timestamp", integer(64), same),
    Kind("timeuuid", SIXTEEN.map(as_version(1)), time_uuid_key),
    Kind("tinyint", integer(8), same),
    Kind("uuid", st.one_of(SIXTEEN, SIXTEEN.map(as_version(1)), SIXTEEN.map(as_version(4))), uuid_key),
    Kind("varint", st.one_of(st.integers(-300, 300), st.integers(-(1 << 1100), 1 << 1100)), same),
)


def list_of(kind: Kind) -> Kind:
    return Kind(
        f"frozen<list<{kind.text}>>",
        st.lists(kind.values, max_size=3),
        lambda items: [kind.key(item) for item in items],
    )


def vector_of(kind: Kind) -> Kind:
    return Kind(
        f"vector<{kind.text}, 2>",
        st.lists(kind.values, min_size=2, max_size=2),
        lambda items: [kind.key(item) for item in items],
    )


def tuple_of(kinds: list[Kind]) -> Kind:
    def key(items: Any) -> Any:
        pairs = zip(items, kinds, strict=True)
        return [(0,) if item is None else (1, kind.key(item)) for item, kind in pairs]

    return Kind(
        f"frozen<tuple<{', '.join(kind.text for kind in kinds)}>>",
        st.tuples(*(st.none() | kind.values for kind in kinds)),
        key,
    )


KINDS = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(list_of), inner.map(vector_of), st.lists(inner, min_size=1, max_size=3).map(tuple_of)
    ),
    max_leaves=3,
)
