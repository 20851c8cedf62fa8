"""Types and values of random schemas: drawn, ordered, encoded, and written into statements.

Invariant: a value is hashable and canonical: tuples for collections, sets and maps sorted and unique by
`order`; two values of one type are the same exactly if `wire` is. What a statement says does not depend on
which of its values are literals and which are bound to markers.
"""

from __future__ import annotations

import ipaddress
import json
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import UNSET, Value
from lockstep.schema.types import parse_type
from lockstep.sim.runtime.streams import Stream

SCALARS: Final = (
    *("int", "text", "int", "text", "bigint", "ascii", "blob", "boolean", "date", "decimal", "double"),
    *("duration", "float", "inet", "smallint", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint"),
)
#: Types whose JSON is compared.
JSON_SCALARS: Final = frozenset(
    ("int", "text", "bigint", "ascii", "blob", "boolean", "smallint", "tinyint", "uuid", "timeuuid", "varint")
)
WHOLE: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "counter": 64}


#: Types whose elements are no cells of their own, frozen or not.
_ONE_CELL: Final = ("tuple", "vector")
#: Types of elements of vectors: of fixed sizes.
_FIXED: Final = ("int", "float", "bigint", "double", "boolean", "uuid", "timestamp")


class Kind(msgspec.Struct, frozen=True):
    """A native type by its name, or list, set, map, tuple and udt with their parts."""

    name: str
    parts: tuple[Kind, ...] = ()
    frozen: bool = False
    fields: tuple[str, ...] = ()
    user: str = ""
    #: Of a vector.
    dimension: int = 0

    @property
    def is_cells(self) -> bool:
        """Whether a column of it is many cells."""
        return bool(self.parts) and not self.frozen and self.name not in _ONE_CELL


def text(kind: Kind) -> str:
    if not kind.parts:
        return kind.name
    if kind.name == "vector":
        return f"vector<{text(kind.parts[0])}, {kind.dimension}>"
    inner = (
        kind.user if kind.name == "udt" else f"{kind.name}<{', '.join(text(part) for part in kind.parts)}>"
    )
    return f"frozen<{inner}>" if kind.frozen else inner


def frozen(kind: Kind) -> Kind:
    plain = not kind.parts or kind.name in _ONE_CELL
    return kind if plain else msgspec.structs.replace(kind, frozen=True)


def has_duration(kind: Kind) -> bool:
    return kind.name == "duration" or any(has_duration(part) for part in kind.parts)


def has_user(kind: Kind, user: str) -> bool:
    return kind.user == user or any(has_user(part, user) for part in kind.parts)


def jsonable(kind: Kind) -> bool:
    if kind.name == "map" and kind.parts[0].name not in ("int", "text", "ascii", "bigint"):
        return False
    return all(jsonable(part) for part in kind.parts) if kind.parts else kind.name in JSON_SCALARS


# ---- drawing


def draw_scalar(draw: Stream, *, key: bool = False) -> Kind:
    while True:
        name = draw.choice(SCALARS)
        if not (key and name == "duration"):
            return Kind(name)


def draw_kind(draw: Stream, users: tuple[Kind, ...], *, key: bool = False, depth: int = 0) -> Kind:
    """`key`: fit for keys, elements of sets and keys of maps."""
    if depth > 1 or draw.random() < (0.8 if key else 0.55):
        return draw_scalar(draw, key=key)
    name = draw.choice(("list", "set", "map", "set", "map", "tuple", "udt", "vector"))
    if name == "vector":
        return Kind(name, (Kind(draw.choice(_FIXED)),), dimension=draw.randint(1, 3))
    if name == "udt":
        fit = [user for user in users if not (key and has_duration(user))]
        if not fit:
            return draw_scalar(draw, key=key)
        kind = draw.choice(fit)
    else:
        count = {"list": 1, "set": 1, "map": 2, "tuple": draw.randint(1, 3)}[name]
        parts = []
        for place in range(count):
            strict = key or name == "set" or (name == "map" and place == 0)
            parts.append(frozen(draw_kind(draw, users, key=strict, depth=depth + 1)))
        kind = Kind(name, tuple(parts))
    return frozen(kind) if key or depth or draw.random() < 0.3 else kind


def draw_value(draw: Stream, kind: Kind) -> Any:
    if kind.name == "vector":
        return tuple(draw_value(draw, kind.parts[0]) for _ in range(kind.dimension))
    if kind.name in ("list", "set"):
        elements = [draw_value(draw, kind.parts[0]) for _ in range(draw.choice((1, 1, 2, 3)))]
        return canonical(kind, elements)
    if kind.name == "map":
        return canonical(
            kind, [tuple(draw_value(draw, part) for part in kind.parts) for _ in range(draw.randint(1, 3))]
        )
    if kind.name in ("tuple", "udt"):
        return tuple(None if draw.random() < 0.1 else draw_value(draw, part) for part in kind.parts)
    return _SCALAR_VALUES[kind.name](draw)


def canonical(kind: Kind, value: Any) -> Any:
    """Lists as tuples, sets and maps sorted and unique; the last of equal keys stays."""
    if value is None:
        return None
    if kind.name in ("list", "vector"):
        return tuple(canonical(kind.parts[0], element) for element in value)
    if kind.name == "set":
        found = {wire(kind.parts[0], e): e for e in (canonical(kind.parts[0], e) for e in value)}
        return tuple(sorted(found.values(), key=lambda e: order(kind.parts[0], e)))
    if kind.name == "map":
        pairs = [(canonical(kind.parts[0], k), canonical(kind.parts[1], v)) for k, v in value]
        held = {wire(kind.parts[0], k): (k, v) for k, v in pairs}
        return tuple(sorted(held.values(), key=lambda pair: order(kind.parts[0], pair[0])))
    if kind.name in ("tuple", "udt"):
        padded = [*value, *[None] * (len(kind.parts) - len(value))]
        return tuple(canonical(part, held) for part, held in zip(kind.parts, padded, strict=True))
    return value


def _whole(draw: Stream, bits: int) -> int:
    bound = 1 << (bits - 1)
    return draw.choice((0, 1, 2, 3, 5, -1, -2, 7, 100, bound - 1, -bound))


def _uuid(draw: Stream, version: int) -> bytes:
    data = bytearray(bytes(draw.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in range(16)))
    data[6] = data[6] & 0x0F | version << 4
    data[8] = data[8] & 0x3F | 0x80
    return bytes(data)


_WORDS: Final = ("a", "b", "ab", "", "B", "\u00e9", "zz", "it's", "10", "\u6f22", "a b", "\U0001f600")
_ADDRESSES: Final = {
    text: ipaddress.ip_address(text).packed for text in ("1.2.3.4", "255.0.0.1", "::1", "fe80::2", "10.0.0.1")
}
_SCALAR_VALUES: Final[dict[str, Callable[[Stream], Any]]] = {
    **{name: lambda draw, bits=bits: _whole(draw, bits) for name, bits in WHOLE.items()},  # type: ignore[misc]
    "varint": lambda draw: draw.choice((0, 1, -1, 127, 128, -128, -129, 1 << 70, -(1 << 70), 255)),
    "text": lambda draw: draw.choice(_WORDS),
    "ascii": lambda draw: draw.choice([word for word in _WORDS if word.isascii()]),
    "blob": lambda draw: draw.choice((b"", b"\0", b"\xff", b"\x00\x01", b"\x7f", b"\x80\x00", b"a")),
    "boolean": lambda draw: draw.random() < 0.5,
    "date": lambda draw: draw.choice((0, 1, -1, 20000, -20000, 5)),
    "decimal": lambda draw: Decimal(
        draw.choice(("0", "1", "-1", "1.5", "1.25", "-0.01", "1E+3", "99999999999999999.5"))
    ),
    "double": lambda draw: draw.choice((0.0, 1.0, -1.0, 1.5, 1e300, -2.25, 0.1)),
    "float": lambda draw: draw.choice((0.0, 1.0, -1.0, 1.5, 2.0**60, -2.25)),
    "duration": lambda draw: draw.choice(((0, 0, 1), (1, 2, 3), (-1, -2, -3), (12, 0, 0), (0, 30, 10**9))),
    "inet": lambda draw: draw.choice(tuple(_ADDRESSES)),
    "time": lambda draw: draw.choice((0, 1, 10**9, 86_399_999_999_999)),
    "timestamp": lambda draw: draw.choice((0, 1, -1, 1_700_000_000_123, -5_000_000_000, 10**12)),
    "timeuuid": lambda draw: _uuid(draw, 1),
    "uuid": lambda draw: _uuid(draw, draw.choice((1, 4, 4))),
}

# ---- as CQL


def literal(kind: Kind, value: Any) -> str:
    if value is None:
        return "null"
    if kind.name == "udt":
        given = zip(kind.fields, kind.parts, value, strict=True)
        return "{" + ", ".join(f"{name}: {literal(part, held)}" for name, part, held in given) + "}"
    if kind.name == "map":
        key, held = kind.parts
        return "{" + ", ".join(f"{literal(key, k)}: {literal(held, v)}" for k, v in value) + "}"
    if kind.name == "tuple":
        return "(" + ", ".join(literal(p, v) for p, v in zip(kind.parts, value, strict=True)) + ")"
    if kind.parts:
        inner = ", ".join(literal(kind.parts[0], element) for element in value)
        return f"[{inner}]" if kind.name in ("list", "vector") else f"{{{inner}}}"
    return _LITERALS.get(kind.name, str)(value)


def quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def uuid_text(data: bytes) -> str:
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _duration(value: tuple[int, int, int]) -> str:
    sign = "-" if min(value) < 0 else ""
    months, days, ns = (abs(part) for part in value)
    return f"{sign}{months}mo{days}d{ns}ns"


def _time(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return f"'{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:09}'"


_LITERALS: Final[dict[str, Callable[[Any], str]]] = {
    "text": quoted,
    "ascii": quoted,
    "inet": quoted,
    "blob": lambda value: f"0x{value.hex()}",
    "boolean": lambda value: "true" if value else "false",
    "date": lambda value: str(value + (1 << 31)),
    "duration": _duration,
    "time": _time,
    "uuid": uuid_text,
    "timeuuid": uuid_text,
    "double": repr,
    "float": repr,
}


def plain_json(kind: Kind, value: Any) -> Any:
    """What JSON of the value parses to."""
    if value is None:
        return None
    if kind.name == "udt":
        given = zip(kind.fields, kind.parts, value, strict=True)
        return {name: plain_json(part, held) for name, part, held in given}
    if kind.name == "map":
        return {str(k): plain_json(kind.parts[1], v) for k, v in value}
    if kind.name == "tuple":
        return [plain_json(part, held) for part, held in zip(kind.parts, value, strict=True)]
    if kind.parts:
        return [plain_json(kind.parts[0], element) for element in value]
    if kind.name == "blob":
        return f"0x{value.hex()}"
    return uuid_text(value) if kind.name in ("uuid", "timeuuid") else value


# ---- order and bytes


def order(kind: Kind, value: Any) -> Any:
    """Sorts values as the type does; null before all."""
    if value is None:
        return (0,)
    if kind.name == "map":
        key, held = kind.parts
        return (1, tuple((order(key, k), order(held, v)) for k, v in value))
    if kind.name in ("tuple", "udt"):
        return (1, tuple(order(part, held) for part, held in zip(kind.parts, value, strict=True)))
    if kind.parts:
        return (1, tuple(order(kind.parts[0], element) for element in value))
    return (1, _ORDERS[kind.name](value) if kind.name in _ORDERS else value)


def _time_of(data: bytes) -> int:
    return (
        (data[6] & 0x0F) << 56
        | data[7] << 48
        | data[4] << 40
        | data[5] << 32
        | int.from_bytes(data[:4], "big")
    )


def _uuid_order(data: bytes) -> tuple[Any, ...]:
    version = data[6] >> 4
    return (version, _time_of(data) if version == 1 else 0, data[8:] if version == 1 else data)


def _signed_bytes(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(data)}b", data)


_ORDERS: Final[dict[str, Callable[[Any], Any]]] = {
    "text": lambda value: value.encode(),
    "inet": _ADDRESSES.__getitem__,
    "uuid": _uuid_order,
    "timeuuid": lambda value: (_time_of(value), _signed_bytes(value[8:])),
}


def wire(kind: Kind, value: Any, *, whole: bool = False) -> bytes:
    """The bytes of a value; `whole`: with all nulls that end a user's type, which clients send and nodes
    leave out but for the first, for the type may get more fields."""
    if kind.name == "map":
        pairs = [zip(kind.parts, pair, strict=True) for pair in value]
        parts = [_sized(part, held, whole) for pair in pairs for part, held in pair]
        return struct.pack(">i", len(value)) + b"".join(parts)
    if kind.name in ("tuple", "udt"):
        fields = list(zip(kind.parts, value, strict=True))
        while kind.name == "udt" and not whole and len(fields) > 1 and fields[-1][1] is None:
            del fields[-1]
        return b"".join(_sized(part, held, whole) for part, held in fields)
    if kind.name == "vector":
        return b"".join(wire(kind.parts[0], element) for element in value)
    if kind.parts:
        elements = [_sized(kind.parts[0], element, whole) for element in value]
        return struct.pack(">i", len(value)) + b"".join(elements)
    return parse_type(kind.name).serialize(value)


def _sized(kind: Kind, value: Any, whole: bool) -> bytes:
    if value is None:
        return struct.pack(">i", -1)
    data = wire(kind, value, whole=whole)
    return struct.pack(">i", len(data)) + data


#: Gives the text of a value, wherever a statement has one.
Say = Callable[[Kind, Any], str]

#: Bits of `way`: which values are bound, in turns, and whether the statement is prepared.
_TURNS: Final = 16
EVERY: Final = (1 << _TURNS) - 1
PREPARED: Final = 1 << _TURNS
#: The timestamp is no part of the text.
BESIDE: Final = 2 << _TURNS
#: Protocol version 5.
NEWER: Final = 4 << _TURNS
#: Markers have names, and values come with them.
NAMED: Final = 8 << _TURNS
#: A batch is a message of its own, and no text.
MESSAGE: Final = 16 << _TURNS
#: Each page comes from another node.
WANDERS: Final = 32 << _TURNS
#: Values that are not bound are made by functions, where they may be.
CALLS: Final = 64 << _TURNS
#: From here on: how far the second that a client gives is from that of the nodes.
_CLOCK: Final = 128 << _TURNS
#: Without that.
KEEPS_TIME: Final = _CLOCK - 1
#: What says which values are bound.
BOUND: Final = EVERY | PREPARED
_AHEAD_S: Final = (0, -2, -1, 1, 2, 4, 7, 12)

INT: Final = Kind("int")
BIGINT: Final = Kind("bigint")
TEXT: Final = Kind("text")
#: Where only literals and markers stand: these very kinds are asked for there.
_BARE: Final = (INT, BIGINT, TEXT)


class Said(msgspec.Struct, frozen=True):
    """A statement as it is sent; `stamp` and `now_s` go beside it. Of `batched` statements `text` is the sort
    of the batch."""

    text: str
    values: tuple[Value, ...] = ()
    prepared: bool = False
    stamp: int | None = None
    now_s: int | None = None
    version: int = 4
    named: bool = False
    wanders: bool = False
    batched: tuple[Said, ...] = ()


def way_of(draw: Stream) -> int:
    """How a statement is sent, by the way."""
    bits = sum(bit for bit, part in _PARTS if draw.random() < part)
    if bits & NEWER and draw.random() < 0.5:
        bits |= _CLOCK * draw.randrange(len(_AHEAD_S))
    return bits


_PARTS: Final = ((BESIDE, 0.3), (NEWER, 0.4), (NAMED, 0.25), (MESSAGE, 0.5), (WANDERS, 0.5), (CALLS, 0.15))


def ahead_s(way: int) -> int:
    """How far from the nodes' second a statement is in time."""
    return _AHEAD_S[way // _CLOCK] if way & NEWER else 0


class Binder:
    """Says values as `way` has it; what is unset is always bound."""

    def __init__(self, way: int) -> None:
        self.way = way
        self.values: list[Value] = []
        self._turn = 0

    def __call__(self, kind: Kind, value: Any) -> str:
        bound = self.binds_next
        self._turn += 1
        if value is UNSET:
            self.values.append(UNSET)
        elif bound:
            self.values.append(None if value is None else wire(kind, value, whole=True))
        elif self.way & CALLS and value is not None and not any(kind is one for one in _BARE):
            return self._called(kind, value)
        else:
            return literal(kind, value)
        return f":n{len(self.values) - 1}" if self.way & NAMED else "?"

    def _called(self, kind: Kind, value: Any) -> str:
        if self._turn % 2 and jsonable(kind):
            return f"from_json({quoted(json.dumps(plain_json(kind, value)))})"
        if kind.parts or kind.name in ("blob", "counter"):
            return literal(kind, value)
        return f"blob_as_{kind.name}(0x{wire(kind, value).hex()})"

    @property
    def binds_next(self) -> bool:
        return bool(self.way >> self._turn % _TURNS & 1)

    def said(self, text: str, stamp: int | None, now_s: int | None = None) -> Said:
        """`now_s` is the second that is given, where one is."""
        way = self.way
        return Said(
            text,
            tuple(self.values),
            bool(way & PREPARED),
            stamp,
            now_s if ahead_s(way) else None,
            5 if way & NEWER else 4,
            bool(way & NAMED and self.values),
            bool(way & WANDERS),
        )


def listed(say: Say, kind: Kind, values: Sequence[Any]) -> str:
    """The values of IN, of which each may be bound, or all of them as a list."""
    if isinstance(say, Binder) and say.binds_next and say.way & PREPARED:
        return say(Kind("list", (kind,)), tuple(values))
    return f"({', '.join(say(kind, value) for value in values)})"


def shown(kind: Kind, value: Any) -> str:
    """For those who read it."""
    return "<unset>" if value is UNSET else literal(kind, value)
