"""Primary keys as bytes: partition keys as those that drivers hash, clustering tuples as byte strings whose
order is the table's clustering order.

Owns: the encoding of a whole clustering or a prefix of it, its inverse, and the byte ranges of slices.
Invariants: bytes order equals the order of the tuples (each column ascending or descending); the
encoding of a prefix is a byte prefix of exactly the clusterings that extend it; and no encoding consists
only of 0xFF, so a smallest byte string above all extensions always exists. Descending columns are the
ascending component with every bit inverted. `split_key(routing_key(parts), len(parts)) == parts`; one
component of a partition key stands alone, several are each 2 length bytes, the value and a zero byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lockstep.schema.types.base import CqlType
from lockstep.values.errors import InvalidRequest
from lockstep.values.rows import Slice

_INVERT = bytes(range(255, -1, -1))
#: What no clustering is inside: start and end are the same non-empty bytes.
EMPTY_SLICE = Slice(b"\x00", b"\x00")


def encode_prefix(types: Sequence[CqlType], descending: Sequence[bool], values: Sequence[bytes]) -> bytes:
    """Bytes of the first len(values) columns; `values` are serialised, valid and canonical."""
    if len(values) == 1:
        component = types[0].component(values[0])
        return component.translate(_INVERT) if descending[0] else component
    assert len(values) <= len(types) == len(descending), "more clustering values than columns"
    parts = []
    for index, value in enumerate(values):
        component = types[index].component(value)
        parts.append(component.translate(_INVERT) if descending[index] else component)
    return b"".join(parts)


def decode(types: Sequence[CqlType], descending: Sequence[bool], encoded: bytes) -> tuple[bytes, ...]:
    """The serialised values of an encoding; fewer than `types` when it is a prefix."""
    inverted = encoded.translate(_INVERT) if any(descending) else encoded
    at, size = 0, len(encoded)
    values = []
    for index, kind in enumerate(types):
        if at == size:
            break
        value, at = kind.take_component(inverted if descending[index] else encoded, at)
        values.append(value)
    assert at == size, "bytes behind the last clustering column"
    return tuple(values)


def after_prefix(encoded: bytes) -> bytes:
    """Smallest bytes above every clustering that extends the prefix; b"" (no bound) for the empty prefix."""
    if not encoded:
        return b""
    last = encoded[-1]
    if last != 0xFF:
        return encoded[:-1] + bytes((last + 1,))
    kept = encoded.rstrip(b"\xff")
    assert kept, "an encoding of 0xFF only"
    return kept[:-1] + bytes((kept[-1] + 1,))


def slice_for(
    types: Sequence[CqlType],
    descending: Sequence[bool],
    equal_prefix: Sequence[bytes],
    lower: tuple[bytes, bool] | None,
    upper: tuple[bytes, bool] | None,
) -> Slice:
    """Clusterings that begin with `equal_prefix` and whose next column lies between the bounds.

    A bound is (serialised value, inclusive) in the column type's own order, whatever the column's
    direction. Contradicting bounds give a slice that contains nothing.
    """
    prefix = encode_prefix(types, descending, equal_prefix)
    if lower is None and upper is None:
        return Slice(prefix, after_prefix(prefix))
    at = len(equal_prefix)
    assert at < len(types), "a bound behind the last clustering column"
    first, last = (upper, lower) if descending[at] else (lower, upper)
    start, end = prefix, after_prefix(prefix)
    if first is not None:
        bound = prefix + _component(types[at], descending[at], first[0])
        start = bound if first[1] else after_prefix(bound)
    if last is not None:
        bound = prefix + _component(types[at], descending[at], last[0])
        end = after_prefix(bound) if last[1] else bound
    return Slice(start, end) if start < end or not end else EMPTY_SLICE


def _component(kind: CqlType, descending: bool, value: bytes) -> bytes:
    component = kind.component(value)
    return component.translate(_INVERT) if descending else component


#: A component's length is written in 16 bits.
KEY_BYTES_MAX = 65_535


def routing_key(parts: Sequence[bytes]) -> bytes:
    """The serialised key that a request gives; InvalidRequest for an empty or too long one."""
    key = derived_key(parts)
    if not key:
        raise InvalidRequest("Key may not be empty")
    return key


def derived_key(parts: Sequence[bytes]) -> bytes:
    """As `routing_key`, for a key made of stored values: as in Cassandra, a view has rows whose key is one
    empty value, which scans alone find."""
    if len(parts) == 1:
        key = parts[0]
    else:
        if (size := sum(map(len, parts))) > KEY_BYTES_MAX:
            raise _too_long(size)
        key = b"".join([len(part).to_bytes(2, "big") + part + b"\x00" for part in parts])
    if len(key) > KEY_BYTES_MAX:
        raise _too_long(len(key))
    return key


def check_clustering(encoded: bytes, parts: Sequence[bytes]) -> None:
    """InvalidRequest when the values of a row's clustering columns are too long together."""
    # Most are told by their encoding, which is never half as long as the values.
    if len(encoded) > KEY_BYTES_MAX // 2 and (size := sum(map(len, parts))) > KEY_BYTES_MAX:
        raise _too_long(size)


def split_key(key: bytes, count: int) -> tuple[bytes, ...]:
    """The components of a serialised key of a table with `count` of them."""
    if count == 1:
        return (key,)
    parts = []
    at = 0
    for _ in range(count):
        end = at + 2 + int.from_bytes(key[at : at + 2], "big")
        parts.append(key[at + 2 : end])
        at = end + 1
    assert at == len(key), "a partition key with bytes behind its last component"
    return tuple(parts)


def _too_long(size: int) -> InvalidRequest:
    return InvalidRequest(f"Key length of {size} is longer than maximum of {KEY_BYTES_MAX}")


class Bound(NamedTuple):
    """An end of a range of rows: values of the first clustering columns; none: it is not bounded."""

    values: tuple[bytes, ...]
    inclusive: bool


#: Bytes of a value that are all 0xFF in byte order: more than any value of a type with a fixed length has.
_CARRIED_MAX: Final = 64


def slice_bounds(
    types: Sequence[CqlType], descending: Sequence[bool], start: bytes, end: bytes
) -> tuple[Bound, Bound]:
    """The bounds, as values, of the slice start <= c < end that a restriction gave: the inverse of
    `slice_for`, up to bounds that mean the same rows."""
    first = _first(types, descending, start)
    if not end:
        return first, Bound((), True)
    inner = _before(types, descending, end)
    return first, Bound(inner, True) if inner is not None else Bound(_values(types, descending, end), False)


def _first(types: Sequence[CqlType], descending: Sequence[bool], start: bytes) -> Bound:
    values = _decoded(types, descending, start)
    if values is not None:
        return Bound(values, True)
    inner = _before(types, descending, start)
    assert inner is not None, "a slice begins at a prefix or behind one"
    return Bound(inner, False)


def _values(types: Sequence[CqlType], descending: Sequence[bool], encoded: bytes) -> tuple[bytes, ...]:
    values = _decoded(types, descending, encoded)
    assert values is not None, "a slice ends at a prefix or behind one"
    return values


def _before(types: Sequence[CqlType], descending: Sequence[bool], bound: bytes) -> tuple[bytes, ...] | None:
    """The values of the prefix that a bound comes behind; None when it is behind none."""
    if not bound or not bound[-1]:
        return None
    head = bound[:-1] + bytes((bound[-1] - 1,))
    for carried in range(_CARRIED_MAX):
        values = _decoded(types, descending, head + b"\xff" * carried)
        if values is not None:
            return values
    return None


def _decoded(
    types: Sequence[CqlType], descending: Sequence[bool], encoded: bytes
) -> tuple[bytes, ...] | None:
    """The values of a prefix; None for what is none."""
    at = 0
    for kind, inverts in zip(types, descending, strict=True):
        if at == len(encoded):
            break
        end = kind.component_end(encoded.translate(_INVERT) if inverts else encoded, at)
        if end is None:
            return None
        at = end
    if at != len(encoded):
        return None
    values = decode(types, descending, encoded)
    try:
        for kind, value in zip(types, values, strict=False):
            kind.validate(value)
    except InvalidRequest:
        return None  # Bytes between two values.
    return values
