"""Types named by a class in quotes: those of the built-in types, and composites of them.

Owns: what class means which type. Invariant: `text` is the class with full names, in quotes. A composite is
a sequence of components, each with two bytes of length and a closing byte; it may end early. Composites are
compared as bytes, so keys have none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.schema.types.base import CqlType, mismatch
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
