"""CQL type texts to types.

Invariant: one text always gives the same type; the canonical text of a type parses to an equal type.
Everything inside a frozen type, a tuple or a vector is frozen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from lockstep.schema.types.base import CqlType
from lockstep.schema.types.compound import ListType, MapType, SetType, TupleType, VectorType
from lockstep.schema.types.custom import custom_type
from lockstep.schema.types.numbers import (
    BigIntType,
    BooleanType,
    CounterType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    TinyIntType,
    VarintType,
)
from lockstep.schema.types.scalars import (
    AsciiType,
    BlobType,
    DateType,
    DurationType,
    InetType,
    TextType,
    TimestampType,
    TimeType,
    TimeUuidType,
    UuidType,
)
from lockstep.schema.types.user import UserDefinedType, UserFields
from lockstep.values.errors import InvalidRequest

#: (keyspace that the text names or None, type name) to the fields of a user-defined type; None when there
#: is none.
Resolver = Callable[[str | None, str], UserFields | None]

_NATIVE: dict[str, CqlType] = {
    kind.text: kind
    for kind in (
        AsciiType("ascii"),
        BigIntType("bigint", ">q", "Expected 8 or 0 byte long"),
        BlobType("blob"),
        BooleanType("boolean"),
        CounterType("counter", ">q", "Expected 8 or 0 byte long"),
        DateType("date"),
        DecimalType("decimal"),
        DoubleType("double"),
        DurationType("duration"),
        FloatType("float"),
        InetType("inet"),
        IntType("int", ">i", "Expected 4 or 0 byte int"),
        SmallIntType("smallint", ">h", "Expected 2 bytes for a smallint"),
        TextType("text"),
        TimeType("time"),
        TimestampType("timestamp", ">q", "Expected 8 or 0 byte long for date"),
        TimeUuidType("timeuuid"),
        TinyIntType("tinyint", ">b", "Expected 1 byte for a tinyint"),
        UuidType("uuid"),
        VarintType("varint"),
    )
}
_NATIVE["varchar"] = _NATIVE["text"]

#: Names of the types without parameters, sorted; `varchar` is an alias of text.
NATIVE_NAMES = tuple(sorted(_NATIVE))

_TOKEN = re.compile(r'\s*(?:("(?:[^"]|"")*")|([A-Za-z0-9_]+)|([<>,.]))')
#: A type nested deeper than this is refused; it bounds recursion on foreign input.
TYPE_DEPTH_MAX = 64
VECTOR_DIMENSIONS_MAX = 8192


@lru_cache(maxsize=4096)
def parse_type(text: str) -> CqlType:
    """The type that `text` names; raises InvalidRequest for an unknown or impossible type."""
    return parse_type_with(text, lambda keyspace, name: None)


def parse_type_with(text: str, resolver: Resolver) -> CqlType:
    """As parse_type, with `resolver` asked for every name that is not a built-in type."""
    native = _NATIVE.get(text)
    if native is not None:
        return native
    if len(text) > 1 and text[0] == text[-1] == "'":
        return custom_type(text[1:-1], _NATIVE)
    return _Parser(text, resolver).whole()


class _Parser:
    """Recursive descent over one type text."""

    def __init__(self, text: str, resolver: Resolver) -> None:
        self._text = text
        self._resolver = resolver
        self._tokens = self._tokenise(text)
        self._at = 0

    def _tokenise(self, text: str) -> list[str]:
        tokens, at, end = [], 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise InvalidRequest(f"Unable to parse type '{text}'")
            tokens.append(match.group(match.lastindex or 0))
            at = match.end()
        return tokens

    def whole(self) -> CqlType:
        kind = self._type(0, frozen=False)
        if self._at != len(self._tokens):
            raise InvalidRequest(f"Unable to parse type '{self._text}'")
        return kind

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise InvalidRequest(f"Unable to parse type '{self._text}'")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise InvalidRequest(f"Unable to parse type '{self._text}'")

    def _type(self, depth: int, *, frozen: bool) -> CqlType:
        if depth > TYPE_DEPTH_MAX:
            raise InvalidRequest(f"Type '{self._text[:40]}...' is nested too deeply")
        token = self._next()
        name = token.lower()
        native = _NATIVE.get(name)
        if native is not None:
            return native
        if self._at < len(self._tokens) and self._tokens[self._at] == "<":
            self._at += 1
            kind = self._parametric(name, depth + 1, frozen)
            self._expect(">")
            return kind
        return self._user(token, frozen)

    def _user(self, token: str, frozen: bool) -> CqlType:
        """A user-defined type; its text leaves the keyspace out, because it can only be the table's own."""
        keyspace = None
        if self._at < len(self._tokens) and self._tokens[self._at] == ".":
            self._at += 1
            keyspace, token = _unquoted(token), self._next()
        name = _unquoted(token)
        found = self._resolver(keyspace, name)
        if found is None:
            raise InvalidRequest(f"Unknown type {name if keyspace is None else f'{keyspace}.{name}'}")
        spelled = token if token.startswith('"') else name
        return UserDefinedType(found, name, spelled, frozen=frozen)

    def _parametric(self, name: str, depth: int, frozen: bool) -> CqlType:
        if name == "frozen":
            kind = self._type(depth, frozen=True)
            if not kind.is_frozen:
                raise InvalidRequest(
                    "frozen<> is only allowed on collections, tuples, and user-defined types "
                    f"(got {kind.text})"
                )
            return kind
        if name == "list":
            return ListType(self._member(depth, frozen, "list"), frozen=frozen)
        if name == "set":
            element = self._member(depth, frozen, "set")
            if element.name == "duration":
                raise InvalidRequest("Durations are not allowed inside sets: set<duration>")
            return SetType(element, frozen=frozen)
        if name == "map":
            return self._map(depth, frozen)
        if name == "tuple":
            return self._tuple(depth)
        if name == "vector":
            return self._vector(depth)
        raise InvalidRequest(f"Unknown type {name}")

    def _member(self, depth: int, frozen: bool, outer: str) -> CqlType:
        member = self._type(depth, frozen=frozen)
        if member.is_multicell:
            what = "UDTs" if isinstance(member, UserDefinedType) else "collections"
            raise InvalidRequest(
                f"Non-frozen {what} are not allowed inside collections: {self._text.strip()}"
            )
        if member.name == "counter":
            raise InvalidRequest(f"Counters are not allowed inside collections: {self._text.strip()}")
        return member

    def _map(self, depth: int, frozen: bool) -> CqlType:
        key = self._member(depth, frozen, "map")
        self._expect(",")
        value = self._member(depth, frozen, "map")
        if key.name == "duration":
            raise InvalidRequest(f"Durations are not allowed as map keys: map<{key.text}, {value.text}>")
        return MapType(key, value, frozen=frozen)

    def _tuple(self, depth: int) -> CqlType:
        elements = [self._type(depth, frozen=True)]
        while self._at < len(self._tokens) and self._tokens[self._at] == ",":
            self._at += 1
            elements.append(self._type(depth, frozen=True))
        if any(element.name == "counter" for element in elements):
            raise InvalidRequest("Counters are not allowed inside tuples")
        return TupleType(tuple(elements))

    def _vector(self, depth: int) -> CqlType:
        element = self._type(depth, frozen=True)
        if element.name == "counter":
            raise InvalidRequest("Counters are not allowed inside vectors")
        self._expect(",")
        dimensions = self._next()
        if not (dimensions.isascii() and dimensions.isdigit()) or len(dimensions) > 9 or int(dimensions) == 0:
            raise InvalidRequest(f"Vectors may only have positive dimensions; given {dimensions}")
        if int(dimensions) > VECTOR_DIMENSIONS_MAX:
            raise InvalidRequest(
                f"vector dimension {dimensions} exceeds the limit of {VECTOR_DIMENSIONS_MAX}"
            )
        return VectorType(element, int(dimensions))


def _unquoted(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token.lower()
