"""Literals: which types each kind of literal fits, the type it has by itself, and its bytes; and terms as
text, in the names of result columns and in messages.

Invariant: the bytes of a literal are valid for the type they were made for. A column without an alias has the
name that clients of Cassandra expect.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterable

from lockstep.cql.compile.prepared import cql_name
from lockstep.cql.parse import tree
from lockstep.schema.types import (
    CqlType,
    CustomType,
    TupleType,
    UserDefinedType,
    parse_date,
    parse_duration,
    parse_inet,
    parse_time,
    parse_timestamp,
    parse_type,
    parse_uuid,
)
from lockstep.values.errors import InvalidRequest

_INTEGERS = frozenset(("tinyint", "smallint", "int", "bigint", "counter", "varint"))
_FLOATS = frozenset(("float", "double"))
FITTING: dict[str, frozenset[str]] = {
    "string": frozenset(("ascii", "text", "inet", "timestamp", "date", "time", "custom")),
    "integer": _INTEGERS | _FLOATS | {"decimal", "date", "time", "timestamp"},
    "float": _FLOATS | {"decimal"},
    "boolean": frozenset(("boolean",)),
    "hex": frozenset(("blob", "custom")),
    "uuid": frozenset(("uuid", "timeuuid")),
    "duration": frozenset(("duration",)),
}
_PARSERS: dict[str, Callable[[str], object]] = {
    "ascii": str,
    "text": str,
    "inet": parse_inet,
    "timestamp": parse_timestamp,
    "date": parse_date,
    "time": parse_time,
    "uuid": parse_uuid,
    "timeuuid": parse_uuid,
    "duration": parse_duration,
    "float": float,
    "double": float,
    "decimal": decimal.Decimal,
    "boolean": lambda text: text == "true",
    **dict.fromkeys(sorted(_INTEGERS), int),
}
#: Python refuses to convert longer texts to int by default, and no CQL number needs them.
_NUMBER_CHARACTERS_MAX = 4000


def literal_bytes(term: tree.Literal, kind: CqlType, receiver: str) -> bytes | None:
    """Serialised bytes of a scalar literal as `kind`."""
    if term.kind == "null":
        return None
    if isinstance(kind, TupleType) and not isinstance(kind, UserDefinedType) and term.kind == "string":
        return _tuple_of(term.text, kind)
    if kind.name not in FITTING[term.kind]:
        raise InvalidRequest(
            f'Invalid {term.kind.upper()} constant ({term.text}) for "{receiver}" of type {kind.text}'
        )
    if isinstance(kind, CustomType) and term.kind == "string":
        return kind.from_text(term.text, _component_bytes)
    if kind.name in ("blob", "custom"):
        digits = term.text[2:]
        if len(digits) % 2:
            raise InvalidRequest(f"Unable to make blob from '{term.text}': an odd number of digits")
        data = bytes.fromhex(digits)
        kind.validate(data)
        return data
    if term.kind in ("integer", "float") and len(term.text) > _NUMBER_CHARACTERS_MAX:
        raise InvalidRequest(f"Unable to make {kind.text} from a number of {len(term.text)} characters")
    try:
        value = _PARSERS[kind.name](term.text)
    except (ValueError, OverflowError, decimal.InvalidOperation):
        raise _refusal(term.text, kind) from None
    try:
        data = kind.serialize(value)
    except InvalidRequest:
        raise _refusal(term.text, kind) from None
    kind.validate(data)
    return data


def _refusal(text: str, kind: CqlType) -> InvalidRequest:
    return InvalidRequest(f"Unable to make {kind.text} from '{text}'")


def _component_bytes(text: str, kind: CqlType) -> bytes:
    """A component of a composite, which its text has without quotes."""
    try:
        if len(text) > _NUMBER_CHARACTERS_MAX and kind.name in _INTEGERS:
            raise ValueError
        if kind.name not in _PARSERS and kind.name != "blob":
            raise ValueError
        data = kind.serialize(bytes.fromhex(text) if kind.name == "blob" else _PARSERS[kind.name](text))
    except (ValueError, OverflowError, decimal.InvalidOperation):
        raise _refusal(text, kind) from None
    kind.validate(data)
    return data


def _tuple_of(text: str, kind: TupleType) -> bytes:
    """A tuple from its text form: a colon between values, an @ for null, both escaped by a backslash."""
    fields = _UNESCAPED_COLON.split(text)
    if len(fields) > len(kind.elements):
        raise InvalidRequest(
            f"Invalid tuple literal: too many elements. Type {kind.text} expects {len(kind.elements)} "
            f"but got {len(fields)}"
        )
    parts: list[bytes | None] = [None] * len(kind.elements)
    for index, (field, element) in enumerate(zip(fields, kind.elements, strict=False)):
        if field != "@":
            plain = field.replace("\\:", ":").replace("\\@", "@")
            if isinstance(element, TupleType) and not isinstance(element, UserDefinedType):
                parts[index] = _tuple_of(plain, element)
            else:
                parts[index] = _component_bytes(plain, element)
    return kind.join(parts)


_UNESCAPED_COLON = re.compile(r"(?<!\\):")
_NATURAL = {"string": "text", "hex": "blob"}


def natural_type(term: tree.Literal) -> CqlType | None:
    """The type of a literal where none is expected; None for null."""
    if term.kind == "null":
        return None
    if term.kind == "integer":
        number = int(term.text[:40])
        if -(1 << 31) <= number < 1 << 31:
            return parse_type("int")
        return parse_type("bigint" if -(1 << 63) <= number < 1 << 63 else "varint")
    if term.kind == "float":
        try:
            exact = decimal.Decimal(term.text) == decimal.Decimal(repr(float(term.text)))
        except (ValueError, decimal.DecimalException):
            return parse_type("decimal")
        return parse_type("double" if exact or term.text.lstrip("-")[:1].isalpha() else "decimal")
    return parse_type(_NATURAL.get(term.kind, term.kind))


_CELL_FACTS = ("ttl", "writetime", "maxwritetime")


def shown(term: tree.Term) -> str:
    """The name of a result column without an alias."""
    if isinstance(term, tree.ColumnName):
        return term.name
    if isinstance(term, tree.Literal):
        return f"'{term.text}'" if term.kind == "string" else term.text
    if isinstance(term, tree.Cast):
        return f"cast({shown(term.term)} as {term.type})"
    if isinstance(term, tree.TypeHint):
        return f"({term.type}){shown(term.term)}"
    if isinstance(term, tree.Bind):
        return "?"
    if isinstance(term, tree.Arithmetic):
        return f"{shown(term.left)} {term.operator} {shown(term.right)}"
    if isinstance(term, tree.Negation):
        return f"-{shown(term.term)}"
    if isinstance(term, tree.Call):
        return _call(term)
    return _compound(term)


def _compound(term: tree.Term) -> str:
    if isinstance(term, tree.Element):
        return f"{_base(term.term)}[{shown(term.key)}]"
    if isinstance(term, tree.Span):
        low, high = ("" if end is None else shown(end) for end in (term.low, term.high))
        return f"{_base(term.term)}[{low}..{high}]"
    if isinstance(term, tree.Field):
        return f"{shown(term.term)}.{term.field}"
    if isinstance(term, tree.ListLiteral):
        return f"[{_listed(term.items)}]"
    if isinstance(term, tree.SetLiteral):
        return f"{{{_listed(term.items)}}}"
    if isinstance(term, tree.TupleLiteral):
        return f"({_listed(term.items)})"
    if isinstance(term, tree.MapLiteral):
        return "{" + ", ".join(f"{shown(key)}: {shown(value)}" for key, value in term.entries) + "}"
    assert isinstance(term, tree.UserLiteral)
    return "{" + ", ".join(f"{name}: {shown(value)}" for name, value in term.entries) + "}"


def _listed(terms: Iterable[tree.Term]) -> str:
    return ", ".join(_base(term) for term in terms)


def _base(term: tree.Term) -> str:
    return cql_name(term.name) if isinstance(term, tree.ColumnName) else shown(term)


def counts_rows(term: tree.Call) -> bool:
    """count(*), or count of a literal, which is the same."""
    if term.counts_rows:
        return True
    return term.name == "count" and len(term.arguments) == 1 and isinstance(term.arguments[0], tree.Literal)


def _call(term: tree.Call) -> str:
    if counts_rows(term):
        return "count"
    if term.name in _CELL_FACTS and term.keyspace is None:
        return f"{term.name}({_listed(term.arguments)})"
    return f"{term.keyspace or 'system'}.{term.name}({_listed(term.arguments)})"
