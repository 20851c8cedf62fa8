"""Values as JSON text, as SELECT JSON shows them.

Invariant: the text is valid JSON whatever the value; numbers and booleans are themselves, collections are
arrays and objects, and everything else is a string as in CQL text without its quotes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from lockstep.cql.compile.catalog import cql_name
from lockstep.cql.functions.value_text import float_text, inet_text
from lockstep.schema.types import CqlType, ListType, MapType, SetType, TupleType, UserDefinedType, VectorType

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
