"""Functions that hide values: mask_null, mask_default, mask_replace, mask_inner, mask_outer, mask_hash.

Invariant: a masked value has the type of the value, except that a hash is a blob.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.signatures import Family, Function, Known, unfit
from lockstep.schema.types import (
    CollectionType,
    CqlType,
    TupleType,
    UserDefinedType,
    VectorType,
    parse_type,
)
from lockstep.values.errors import InvalidRequest

_PLACEHOLDER = "*"
_ALGORITHMS = {
    "SHA-256": "sha256",
    "SHA-512": "sha512",
    "SHA-384": "sha384",
    "SHA-224": "sha224",
    "SHA-1": "sha1",
    "SHA1": "sha1",
    "MD5": "md5",
}
_DEFAULTS: dict[str, object] = {
    "text": "****",
    "ascii": "****",
    "boolean": False,
    "inet": "0.0.0.0",
    "timestamp": 0,
    "date": 0,
    "time": 0,
    "duration": (0, 0, 0),
    "float": 0.0,
    "double": 0.0,
}


def default_of(kind: CqlType) -> bytes:
    """The fixed value that stands for every value of a type."""
    if isinstance(kind, CollectionType):
        return kind.join([])
    if isinstance(kind, VectorType):
        return kind.join([default_of(kind.element)] * kind.dimensions)
    if isinstance(kind, UserDefinedType | TupleType):
        return kind.join([default_of(part) for part in kind.elements])
    if kind.name == "blob":
        return b""
    if kind.name == "uuid":
        return bytes(16)
    if kind.name == "timeuuid":
        # The least one of the first millisecond that Unix knows.
        return bytes.fromhex("138140001dd211b28080808080808080")
    if kind.name == "decimal":
        return kind.serialize(Decimal(0))
    return kind.serialize(_DEFAULTS.get(kind.name, 0))


def _typed(name: str, kind: Known) -> CqlType:
    if kind is None:
        raise unfit(name, kind, "a value")
    return kind


def _null(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind = _typed(name, known[0])
    return Function(name, (kind,), kind, lambda given, context: None)


def _default(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind = _typed(name, known[0])
    masked = default_of(kind)
    return Function(name, (kind,), kind, lambda given, context: masked, takes_null=True)


def _replace(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind = _typed(name, known[0])
    return Function(name, (kind, kind), kind, lambda given, context: given[1], takes_null=True)


def _partial(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind, whole, text = known[0], parse_type("int"), parse_type("text")
    if kind is None or kind.name not in ("text", "ascii"):
        raise unfit(name, kind, "a text")
    arguments = (kind, whole, whole, text)[: len(known)]

    def run(given: Sequence[bytes | None], context: Context) -> bytes | None:
        padding = _PLACEHOLDER
        if len(given) == 4 and given[3] is not None:
            padding = given[3].decode()
            if len(padding) != 1:
                raise InvalidRequest(
                    f"The padding argument for function system.{name} should be single-character, "
                    f"but '{padding}' has {len(padding)} characters."
                )
        if given[0] is None:
            return None
        value = given[0].decode()
        begin, end = (_length(data) for data in given[1:3])
        behind = max(len(value) - end, begin)
        if name == "mask_inner":
            return (value[:begin] + padding * (behind - begin) + value[behind:]).encode()
        begin = min(begin, len(value))
        return (padding * begin + value[begin:behind] + padding * (len(value) - max(behind, begin))).encode()

    return Function(name, arguments, kind, run, takes_null=True)


def _length(data: bytes | None) -> int:
    return max(int.from_bytes(data, "big", signed=True), 0) if data else 0


def _hash(name: str, known: Sequence[Known], wanted: Known) -> Function:
    kind, blob = _typed(name, known[0]), parse_type("blob")
    arguments = (kind, parse_type("text"))[: len(known)]

    def run(given: Sequence[bytes | None], context: Context) -> bytes | None:
        named = given[1] if len(given) == 2 else None
        asked = "SHA-256" if named is None else named.decode()
        algorithm = _ALGORITHMS.get(asked.upper())
        if algorithm is None:
            raise InvalidRequest(f"Hash algorithm not found: {asked}")
        return None if given[0] is None else hashlib.new(algorithm, given[0]).digest()

    return Function(name, arguments, blob, run, takes_null=True)


FAMILIES = (
    Family("mask_null", 1, 1, _null, "(any type) → null of it"),
    Family("mask_default", 1, 1, _default, "(any type) → a fixed value of it"),
    Family("mask_replace", 2, 2, _replace, "(any type, the same type) → it"),
    Family("mask_inner", 3, 4, _partial, "(text, int, int, optionally a character) → text"),
    Family("mask_outer", 3, 4, _partial, "(text, int, int, optionally a character) → text"),
    Family("mask_hash", 1, 2, _hash, "(any type, optionally an algorithm) → blob"),
)
