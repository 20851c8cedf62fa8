"""Types on the wire: [option] ids, and the marshal class names of types that have none.

Invariant: `read_type` of `type_option(version, t)` is t, except that outer frozenness is not on the wire:
a collection read back is not frozen at the top and frozen inside, which does not change its bytes.
"""

from __future__ import annotations

import re

from lockstep.cql.wire.constants import HAS_DURATION, HAS_SMALL_TYPES
from lockstep.cql.wire.primitives import pack_short, read_string, string, unpack_short
from lockstep.schema.types import (
    TYPE_DEPTH_MAX,
    CqlType,
    CustomType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    UserFields,
    VectorType,
    parse_type,
)
from lockstep.schema.types.parse import CLASSES, PACKAGE
from lockstep.values.errors import ProtocolViolation

_IDS = {
    "ascii": 0x01,
    "bigint": 0x02,
    "blob": 0x03,
    "boolean": 0x04,
    "counter": 0x05,
    "decimal": 0x06,
    "double": 0x07,
    "float": 0x08,
    "int": 0x09,
    "timestamp": 0x0B,
    "uuid": 0x0C,
    "text": 0x0D,
    "varint": 0x0E,
    "timeuuid": 0x0F,
    "inet": 0x10,
    "date": 0x11,
    "time": 0x12,
    "smallint": 0x13,
    "tinyint": 0x14,
    "duration": 0x15,
}
_NATIVE = {number: parse_type(name) for name, number in _IDS.items()} | {0x0A: parse_type("text")}
_CUSTOM, _LIST, _MAP, _SET, _USER, _TUPLE = 0x00, 0x20, 0x21, 0x22, 0x30, 0x31
_SMALL = ("date", "time", "smallint", "tinyint")
#: Bounds recursion on foreign bytes.
_DEPTH_MAX = TYPE_DEPTH_MAX

_BY_CLASS = {name: parse_type(text) for text, name in CLASSES.items()}
_CLASS_TOKEN = re.compile(r"\s*([\w.]+|[(),:])")


def type_option(version: int, kind: CqlType) -> bytes:
    """The [option] that describes `kind` to a client of this version."""
    number = _IDS.get(kind.name)
    if number is not None and _has_number(version, kind.name):
        return pack_short(number)
    if isinstance(kind, ListType):
        return pack_short(_LIST) + type_option(version, kind.element)
    if isinstance(kind, SetType):
        return pack_short(_SET) + type_option(version, kind.element)
    if isinstance(kind, MapType):
        return pack_short(_MAP) + type_option(version, kind.key) + type_option(version, kind.value)
    if isinstance(kind, UserDefinedType):
        named = zip(kind.field_names, kind.elements, strict=True)
        fields = b"".join([string(name) + type_option(version, field) for name, field in named])
        named_type = string(kind.keyspace) + string(kind.type_name)
        return pack_short(_USER) + named_type + pack_short(len(kind.elements)) + fields
    if isinstance(kind, TupleType):
        fields = b"".join([type_option(version, field) for field in kind.elements])
        return pack_short(_TUPLE) + pack_short(len(kind.elements)) + fields
    return pack_short(_CUSTOM) + string(class_name(kind))


def _has_number(version: int, name: str) -> bool:
    if name == "duration":
        return version in HAS_DURATION
    return name not in _SMALL or version in HAS_SMALL_TYPES


def read_type(body: bytes, at: int, depth: int = 0) -> tuple[CqlType, int]:
    """(type, offset behind it) of an [option]; inner types are frozen."""
    if depth > _DEPTH_MAX:
        raise ProtocolViolation("Type nested too deeply")
    number, at = unpack_short(body, at)[0], at + 2
    native = _NATIVE.get(number)
    if native is not None:
        return native, at
    frozen = depth > 0
    if number in (_LIST, _SET):
        element, at = read_type(body, at, depth + 1)
        return (ListType if number == _LIST else SetType)(element, frozen=frozen), at
    if number == _MAP:
        key, at = read_type(body, at, depth + 1)
        value, at = read_type(body, at, depth + 1)
        return MapType(key, value, frozen=frozen), at
    if number == _TUPLE:
        count, at = unpack_short(body, at)[0], at + 2
        fields = []
        for _ in range(count):
            field, at = read_type(body, at, depth + 1)
            fields.append(field)
        return TupleType(tuple(fields)), at
    if number == _USER:
        return _read_user(body, at, depth)
    if number == _CUSTOM:
        name, at = read_string(body, at)
        return type_of_class(name), at
    raise ProtocolViolation(f"Unknown type option 0x{number:04x}")


def _read_user(body: bytes, at: int, depth: int) -> tuple[CqlType, int]:
    keyspace, at = read_string(body, at)
    type_name, at = read_string(body, at)
    count, at = unpack_short(body, at)[0], at + 2
    names, fields = [], []
    for _ in range(count):
        name, at = read_string(body, at)
        field, at = read_type(body, at, depth + 1)
        names.append(name)
        fields.append(field)
    return _user(keyspace, type_name, names, fields, frozen=depth > 0), at


def _user(
    keyspace: str, type_name: str, names: list[str], fields: list[CqlType], *, frozen: bool
) -> UserDefinedType:
    quoted = type_name.replace('"', '""')
    plain = type_name.isascii() and type_name.islower() and type_name.isidentifier()
    spelled = type_name if plain else f'"{quoted}"'
    return UserDefinedType(
        UserFields(keyspace, tuple(names), tuple(fields)), type_name, spelled, frozen=frozen
    )


def class_name(kind: CqlType, *, within_frozen: bool = False) -> str:
    """The marshal class that names `kind` where no option id does.

    What is frozen says so, but not `within_frozen`: in a tuple, or a collection or user-defined type that is.
    """
    simple = CLASSES.get(kind.name)
    if simple is not None:
        return PACKAGE + simple
    if isinstance(kind, CustomType):
        return kind.class_name
    if isinstance(kind, VectorType):
        element = class_name(kind.element, within_frozen=within_frozen)
        return f"{PACKAGE}VectorType({element} , {kind.dimensions})"
    if isinstance(kind, TupleType) and not isinstance(kind, UserDefinedType):
        fields = (class_name(field, within_frozen=True) for field in kind.elements)
        return f"{PACKAGE}TupleType({','.join(fields)})"
    inner = _class_of_parts(kind, within_frozen or kind.is_frozen)
    return f"{PACKAGE}FrozenType({inner})" if kind.is_frozen and not within_frozen else inner


def _class_of_parts(kind: CqlType, within_frozen: bool) -> str:
    """The class of a collection or a user-defined type, whose parts are `within_frozen` or not."""
    if isinstance(kind, UserDefinedType):
        named = zip(kind.field_names, kind.elements, strict=True)
        fields = [f"{_hex(name)}:{class_name(field, within_frozen=within_frozen)}" for name, field in named]
        return f"{PACKAGE}UserType({','.join([kind.keyspace, _hex(kind.type_name), *fields])})"
    if isinstance(kind, MapType):
        key, value = (class_name(part, within_frozen=within_frozen) for part in (kind.key, kind.value))
        return f"{PACKAGE}MapType({key},{value})"
    assert isinstance(kind, ListType | SetType), f"no marshal class for {kind.text}"
    outer = "ListType" if isinstance(kind, ListType) else "SetType"
    return f"{PACKAGE}{outer}({class_name(kind.element, within_frozen=within_frozen)})"


def _hex(name: str) -> str:
    return name.encode().hex()


def type_of_class(name: str) -> CqlType:
    """The inverse of class_name; raises ProtocolViolation for a class that is not known."""
    tokens: list[str] = []
    at, end = 0, len(name.rstrip())
    while at < end:
        match = _CLASS_TOKEN.match(name, at)
        if match is None:
            raise ProtocolViolation(f"Unknown type class {name}")
        tokens.append(match.group(1))
        at = match.end()
    kind, used = _class(tokens, 0, 0, name, frozen=False)
    if used != len(tokens):
        raise ProtocolViolation(f"Unknown type class {name}")
    return kind


def _class(tokens: list[str], at: int, depth: int, whole: str, *, frozen: bool) -> tuple[CqlType, int]:
    """The type whose class begins at `at`, and where it ends; `frozen`: by what it stands in."""
    unknown = ProtocolViolation(f"Unknown type class {whole[:200]}")
    if at >= len(tokens) or depth > _DEPTH_MAX:
        raise unknown
    name = tokens[at].removeprefix(PACKAGE)
    at += 1
    native = _BY_CLASS.get(name)
    if native is not None:
        return native, at
    if at >= len(tokens) or tokens[at] != "(":
        raise unknown
    if name == "UserType":
        return _user_class(tokens, at + 1, depth, unknown, frozen=frozen)
    inner: list[CqlType] = []
    number = 0
    while tokens[at] != ")":
        at += 1
        if at < len(tokens) and tokens[at].isascii() and tokens[at].isdigit():
            number, at = int(tokens[at][:9]), at + 1
        else:
            # The elements of a vector alone need not be frozen, and say so where they are.
            kind, at = _class(tokens, at, depth + 1, whole, frozen=name != "VectorType")
            inner.append(kind)
        if at >= len(tokens) or tokens[at] not in (",", ")"):
            raise unknown
    built = _parametric(name, inner, number, frozen=frozen)
    if built is None:
        raise unknown
    return built, at + 1


def _user_class(
    tokens: list[str], at: int, depth: int, unknown: ProtocolViolation, *, frozen: bool
) -> tuple[CqlType, int]:
    """`keyspace,hex(name),hex(field):class,...)`, from the keyspace on."""
    names, fields = [], []
    try:
        keyspace, type_name = tokens[at], bytes.fromhex(tokens[at + 2]).decode()
        at += 3
        while tokens[at] == ",":
            if tokens[at + 2] != ":":
                raise unknown
            names.append(bytes.fromhex(tokens[at + 1]).decode())
            field, at = _class(tokens, at + 3, depth + 1, "", frozen=frozen)
            fields.append(field)
        if tokens[at] != ")":
            raise unknown
    except (IndexError, ValueError):
        raise unknown from None
    return _user(keyspace, type_name, names, fields, frozen=frozen), at + 1


def _parametric(name: str, inner: list[CqlType], number: int, *, frozen: bool) -> CqlType | None:
    if name == "FrozenType" and len(inner) == 1:
        return inner[0]
    if name == "ListType" and len(inner) == 1:
        return ListType(inner[0], frozen=frozen)
    if name == "SetType" and len(inner) == 1:
        return SetType(inner[0], frozen=frozen)
    if name == "MapType" and len(inner) == 2:
        return MapType(inner[0], inner[1], frozen=frozen)
    if name == "TupleType" and inner:
        return TupleType(tuple(inner))
    if name == "VectorType" and len(inner) == 1 and number > 0:
        return VectorType(inner[0], number)
    return None
