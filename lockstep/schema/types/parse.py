"""CQL type texts to types, also those named by a class in quotes: the built-in types' classes, and composites
of them.

Owns: what class means which type.

Invariant: one text always gives the same type; the canonical text of a type parses to an equal type.
Everything inside a frozen type, a tuple or a vector is frozen. `text` is the class with full names, in
quotes. A composite is a sequence of components, each with two bytes of length and a closing byte; it may end
early. Composites are compared as bytes, so keys have none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from lockstep.schema.types.base import CqlType, mismatch
from lockstep.schema.types.compound import (
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    UserFields,
    VectorType,
)
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
from lockstep.values.errors import InvalidRequest

PACKAGE: Final = "org.apache.cassandra.db.marshal."
#: Built-in type -> its class.
CLASSES: Final = {
    "ascii": "AsciiType",
    "bigint": "LongType",
    "blob": "BytesType",
    "boolean": "BooleanType",
    "counter": "CounterColumnType",
    "date": "SimpleDateType",
    "decimal": "DecimalType",
    "double": "DoubleType",
    "duration": "DurationType",
    "float": "FloatType",
    "inet": "InetAddressType",
    "int": "Int32Type",
    "smallint": "ShortType",
    "text": "UTF8Type",
    "time": "TimeType",
    "timestamp": "TimestampType",
    "timeuuid": "TimeUUIDType",
    "tinyint": "ByteType",
    "uuid": "UUIDType",
    "varint": "IntegerType",
}
_NAMES: Final = {class_: name for name, class_ in CLASSES.items()}
_CALL: Final = re.compile(r"\s*([\w.]+)\s*(?:\((.*)\))?\s*\Z", re.DOTALL)
_ALIASED: Final = re.compile(r"\s*([A-Za-z0-9])\s*=>\s*([\w.]+)\s*\Z")
_PARTS: Final = re.compile(r"(?<!\\):")
#: The first bit of a component's header: an alias follows, not the length of a class name.
_ALIAS: Final = 0x8000


class CustomType(CqlType):
    """A composite; values are its bytes."""

    name = "custom"

    def __init__(self, class_: str) -> None:
        super().__init__(f"'{PACKAGE}{class_}'")

    @property
    def class_name(self) -> str:
        return self.text[1:-1]

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, bytes):
            raise mismatch(self, value)
        self.validate(value)
        return value

    def deserialize(self, data: bytes) -> bytes:
        return data

    def validate(self, data: bytes) -> None:
        self.split(data)

    def format(self, value: object) -> str:
        return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)

    def from_text(self, text: str, read: Callable[[str, CqlType], bytes]) -> bytes:
        """The bytes of `a:b:c`, where `\\:` is a colon in a component; `read` makes those of a component."""
        texts = [part.replace("\\:", ":") for part in _PARTS.split(text)] if text else []
        return b"".join([self._component(at, part, read) for at, part in enumerate(texts)])

    def _component(self, at: int, text: str, read: Callable[[str, CqlType], bytes]) -> bytes:
        raise AssertionError(f"{self.text} does not define its components")

    def split(self, data: bytes) -> list[tuple[CqlType, bytes]]:
        """Type and bytes of each component. InvalidRequest when `data` is damaged."""
        found: list[tuple[CqlType, bytes]] = []
        at = 0
        while at < len(data):
            kind, at = self._kind(len(found), data, at)
            size = int.from_bytes(data[at : at + 2], "big")
            end = at + 2 + size
            if end >= len(data):
                raise InvalidRequest("Not enough bytes to read value of a component")
            kind.validate(data[at + 2 : end])
            found.append((kind, data[at + 2 : end]))
            at = end + 1
        return found

    def _kind(self, number: int, data: bytes, at: int) -> tuple[CqlType, int]:
        """Type of a component, and where its length stands."""
        raise AssertionError(f"{self.text} does not define its components")


class CompositeType(CustomType):
    """Components of types that are given in order."""

    def __init__(self, kinds: Sequence[CqlType]) -> None:
        inner = ",".join(PACKAGE + CLASSES[kind.name] for kind in kinds)
        super().__init__(f"CompositeType({inner})")
        self._kinds = tuple(kinds)

    def _component(self, at: int, text: str, read: Callable[[str, CqlType], bytes]) -> bytes:
        if at >= len(self._kinds):
            raise InvalidRequest(f"A value of {self.text} has at most {len(self._kinds)} components")
        return _framed(read(text, self._kinds[at]))

    def _kind(self, number: int, data: bytes, at: int) -> tuple[CqlType, int]:
        if number >= len(self._kinds):
            raise InvalidRequest(f"A value of {self.text} has at most {len(self._kinds)} components")
        return self._kinds[number], at


class DynamicCompositeType(CustomType):
    """Components that name their type, each by a letter. In texts, `letter@` is in front."""

    def __init__(self, kinds: Mapping[str, CqlType]) -> None:
        inner = ",".join(f"{letter}=>{PACKAGE}{CLASSES[kind.name]}" for letter, kind in sorted(kinds.items()))
        super().__init__(f"DynamicCompositeType({inner})")
        self._kinds = dict(kinds)

    def _component(self, at: int, text: str, read: Callable[[str, CqlType], bytes]) -> bytes:
        letter, mark, rest = text.partition("@")
        if not mark or letter not in self._kinds:
            raise InvalidRequest(f"A component of {self.text} begins with one of its letters and @")
        return (_ALIAS | ord(letter)).to_bytes(2, "big") + _framed(read(rest, self._kinds[letter]))

    def _kind(self, number: int, data: bytes, at: int) -> tuple[CqlType, int]:
        header = int.from_bytes(data[at : at + 2], "big")
        if header & _ALIAS:
            found = self._kinds.get(chr(header & 0xFF))
            at += 2
        else:
            name = data[at + 2 : at + 2 + header].decode(errors="replace")
            found = next((kind for kind in self._kinds.values() if name.endswith(CLASSES[kind.name])), None)
            at += 2 + header
        if found is None:
            raise InvalidRequest(f"Cannot find comparator of a component of {self.text}")
        return found, at


def custom_type(class_: str, native: Mapping[str, CqlType]) -> CqlType:
    """The type that a class in quotes means; `native` has the built-in ones by name."""
    called = _CALL.match(class_)
    if called is None:
        raise InvalidRequest(f"Unable to parse type '{class_}'")
    name, inner = called[1].removeprefix(PACKAGE), called[2]
    if inner is None and name in _NAMES:
        return native[_NAMES[name]]
    parts = (inner or "").split(",")
    if name == "CompositeType":
        return CompositeType([_part(part, native) for part in parts])
    if name == "DynamicCompositeType":
        aliases = [_ALIASED.match(part) for part in parts]
        return DynamicCompositeType(
            {alias[1]: _part(alias[2], native) for alias in aliases if alias is not None}
            if all(aliases)
            else _refuse(class_)
        )
    raise InvalidRequest(f"Unable to find abstract-type class '{called[1]}'")


def _part(class_: str, native: Mapping[str, CqlType]) -> CqlType:
    name = class_.strip().removeprefix(PACKAGE)
    if name not in _NAMES or name == CLASSES["counter"]:
        raise InvalidRequest(f"Unable to find abstract-type class '{class_.strip()}'")
    return native[_NAMES[name]]


def _refuse(class_: str) -> Mapping[str, CqlType]:
    raise InvalidRequest(f"Unable to parse type '{class_}'")


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data + b"\0"


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
        # As in Cassandra, whose name of the type says how it was spelled: the vector is one value either way.
        element = self._type(depth, frozen=False)
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
