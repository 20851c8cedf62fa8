"""Values as JSON, both ways: as SELECT JSON shows them, and as INSERT JSON and fromJson take them.

Invariant: what is accepted is valid for its type; numbers and booleans may also be written as texts, and
nothing but a text or a number becomes a text-like value. The text is valid JSON whatever the value; numbers
and booleans are themselves, collections are arrays and objects, and everything else is a string as in CQL
text without its quotes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from lockstep.cql.compile.prepared import cql_name
from lockstep.cql.functions.value_text import float_text, inet_text
from lockstep.schema.types import (
    CqlType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    VectorType,
    parse_date,
    parse_duration,
    parse_inet,
    parse_time,
    parse_timestamp,
    parse_uuid,
)
from lockstep.values.errors import InvalidRequest

_WHOLES = frozenset(("tinyint", "smallint", "int", "bigint", "counter", "varint"))
_BLOB = re.compile("0x(?:[0-9a-fA-F]{2})*")
#: Python refuses to convert longer texts to int by default, and no CQL number needs them.
_NUMBER_CHARACTERS_MAX = 4000


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _number(text: str) -> Decimal:
    if len(text) > _NUMBER_CHARACTERS_MAX:
        raise ValueError("a number is too long")
    return Decimal(text)


def _whole(text: str) -> int:
    if len(text) > _NUMBER_CHARACTERS_MAX:
        raise ValueError("a number is too long")
    return int(text)


def parse_json(text: str) -> Any:
    """The JSON value of a text, fractions as Decimal; InvalidRequest when it is none."""
    try:
        return json.loads(text, parse_float=_number, parse_int=_whole, parse_constant=_no_constant)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise InvalidRequest(f"{error}" or "it is nested too deeply") from None


def serialized(kind: CqlType, value: Any) -> bytes | None:
    """Canonical bytes of a JSON value as `kind`; InvalidRequest when it does not fit."""
    if value is None:
        return None
    if isinstance(kind, MapType):
        return _map(kind, value)
    if isinstance(kind, ListType | SetType | VectorType):
        return _elements(kind, value)
    if isinstance(kind, UserDefinedType):
        return _user_value(kind, value)
    if isinstance(kind, TupleType):
        return _tuple(kind, value)
    data = kind.serialize(_scalar(kind, value))
    kind.validate(data)
    return data


def _scalar(kind: CqlType, value: Any) -> object:
    name = kind.name
    if name in _WHOLES:
        return _as_whole(kind, value)
    if name in ("float", "double", "decimal"):
        return _as_number(kind, value)
    if name == "boolean":
        return _as_boolean(value)
    if name in ("timestamp", "date", "time") and type(value) is int:
        return _READERS[name](str(value))
    if not isinstance(value, str):
        raise InvalidRequest(
            f"Expected a {_EXPECTED.get(name, name)}, but got a {_named(value)}: {_show(value)}"
        )
    if name == "ascii" and not value.isascii():
        raise InvalidRequest(f"Invalid ASCII character in string literal: {value}")
    return _READERS.get(name, str)(value)


_EXPECTED = {"text": "UTF-8 string", "ascii": "ASCII string", "blob": "blob string"}


def _blob(text: str) -> bytes:
    if not _BLOB.fullmatch(text):
        raise InvalidRequest(f"Value '{text}' is not a valid blob representation: 0x and pairs of hex digits")
    return bytes.fromhex(text[2:])


_READERS: dict[str, Callable[[str], object]] = {
    "text": str,
    "ascii": str,
    "blob": _blob,
    "date": parse_date,
    "duration": parse_duration,
    "inet": parse_inet,
    "time": parse_time,
    "timestamp": parse_timestamp,
    "timeuuid": parse_uuid,
    "uuid": parse_uuid,
}


def _as_whole(kind: CqlType, value: Any) -> int:
    refusal = InvalidRequest(f"Expected {_article(kind)} value, but got a {_named(value)}: {_show(value)}")
    if isinstance(value, str):
        try:
            return _whole(value)
        except ValueError:
            raise InvalidRequest(f"Unable to make {kind.text} from '{value}'") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal
    return value


def _as_number(kind: CqlType, value: Any) -> object:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise InvalidRequest(f"Expected {_article(kind)} value, but got a {_named(value)}: {_show(value)}")
    try:
        number = _number(str(value))
    except (ValueError, InvalidOperation):
        raise InvalidRequest(f"Unable to make {kind.text} from '{value}'") from None
    if kind.name == "decimal":
        if not number.is_finite():
            raise InvalidRequest(f"Unable to make decimal from '{value}'")
        return number
    return float(number)


def _as_boolean(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidRequest(f"Expected a boolean value, but got a {_named(value)}: {_show(value)}")
    return value


def _article(kind: CqlType) -> str:
    return f"an {kind.text}" if kind.text[0] in "aeiou" else f"a {kind.text}"


def _named(value: Any) -> str:
    names: dict[type, str] = {bool: "Boolean", str: "String", list: "List", dict: "Map", int: "Integer"}
    return names.get(type(value), "Double")


def _show(value: Any) -> str:
    return str(value)[:200]


def _listed(kind: CqlType, value: Any) -> list[Any]:
    # Keys of a map are texts that hold JSON.
    found = parse_json(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise InvalidRequest(f"Expected a list, but got a {_named(found)}: {_show(found)}")
    return found


def _elements(kind: ListType | SetType | VectorType, value: Any) -> bytes:
    listed = _listed(kind, value)
    if not isinstance(kind, VectorType):
        kind.check_entries(len(listed))
    parts = [serialized(kind.element, item) for item in listed]
    if None in parts:
        what = "vector" if isinstance(kind, VectorType) else kind.name
        raise InvalidRequest(f"Invalid null element in {what}")
    if isinstance(kind, VectorType) and len(parts) != kind.dimensions:
        raise InvalidRequest(f"Invalid vector: expected {kind.dimensions} elements, but got {len(parts)}")
    return kind.join([part for part in parts if part is not None])


def _map(kind: MapType, value: Any) -> bytes:
    found = parse_json(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise InvalidRequest(f"Expected a map, but got a {_named(found)}: {_show(found)}")
    kind.check_entries(len(found))
    parts: list[bytes] = []
    for name, item in found.items():
        key, data = serialized(kind.key, name), serialized(kind.value, item)
        if key is None or data is None:
            raise InvalidRequest("Invalid null value in map")
        parts += (key, data)
    return kind.join(parts)


def _tuple(kind: TupleType, value: Any) -> bytes:
    listed = _listed(kind, value)
    if len(listed) > len(kind.elements):
        raise InvalidRequest(f"Tuple contains extra items (expected {len(kind.elements)}): {_show(value)}")
    if len(listed) < len(kind.elements):
        raise InvalidRequest(f"Tuple is missing items (expected {len(kind.elements)}): {_show(value)}")
    return kind.join([serialized(part, item) for part, item in zip(kind.elements, listed, strict=True)])


def _user_value(kind: UserDefinedType, value: Any) -> bytes:
    found = parse_json(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise InvalidRequest(f"Expected a map, but got a {_named(found)}: {_show(found)}")
    given = {unquoted_name(name): item for name, item in found.items()}
    for name in given:
        if kind.field(name) is None:
            raise InvalidRequest(f"Unknown field '{name}' in value of user defined type {kind.type_name}")
    pairs = zip(kind.field_names, kind.elements, strict=True)
    return kind.join([serialized(part, given.get(name)) for name, part in pairs])


def unquoted_name(name: str) -> str:
    """A column or field name as JSON spells it: lower case unless it is within quotes."""
    if len(name) > 1 and name.startswith('"') and name.endswith('"'):
        return name[1:-1]
    return name.lower()


_NUMBERS = ("bigint", "counter", "decimal", "double", "float", "int", "smallint", "tinyint", "varint")


def row_text(names: Sequence[str], kinds: Sequence[CqlType], row: Sequence[bytes | None]) -> bytes:
    """One row as a JSON object, UTF-8; names with capital letters, and only those, keep their quotes."""
    pairs = [
        f"{_quoted(_name(name))}: {json_text(kind, data)}"
        for name, kind, data in zip(names, kinds, row, strict=True)
    ]
    return f"{{{', '.join(pairs)}}}".encode()


def _name(name: str) -> str:
    return name if name == name.lower() else cql_name(name)


def json_text(kind: CqlType, data: bytes | None) -> str:
    """A serialised value as JSON."""
    if data is None:
        return "null"
    value = kind.deserialize(data)
    return '""' if value is None else _shown(kind, value)


def _shown(kind: CqlType, value: object) -> str:
    if value is None:
        return "null"
    if kind.name in ("text", "ascii"):
        return _quoted(str(value))
    if kind.name == "boolean":
        return "true" if value else "false"
    if isinstance(value, float):
        # JSON has no NaN and no infinity.
        return float_text(value, kind.name) if math.isfinite(value) else "null"
    if kind.name in _NUMBERS:
        return str(value)
    if kind.name == "inet":
        return _quoted(inet_text(kind.serialize(value)))
    if isinstance(kind, MapType):
        assert isinstance(value, list)
        return f"{{{', '.join(f'{_key(kind.key, key)}: {_shown(kind.value, item)}' for key, item in value)}}}"
    if isinstance(kind, ListType | SetType | VectorType):
        assert isinstance(value, list)
        return f"[{', '.join(_shown(kind.element, item) for item in value)}]"
    if isinstance(kind, UserDefinedType):
        assert isinstance(value, tuple)
        triples = zip(kind.field_names, kind.elements, value, strict=True)
        fields = [f"{_quoted(_name(name))}: {_shown(part, item)}" for name, part, item in triples]
        return f"{{{', '.join(fields)}}}"
    if isinstance(kind, TupleType):
        assert isinstance(value, tuple)
        parts = [_shown(part, item) for part, item in zip(kind.elements, value, strict=False)]
        return f"[{', '.join(parts)}]"
    text = kind.format(value)
    if kind.name == "timestamp":
        text = text.replace("T", " ")
    return _quoted(text.strip("'"))


def _key(kind: CqlType, value: object) -> str:
    shown = _shown(kind, value)
    return shown if shown.startswith('"') else _quoted(shown)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
