"""What a client says and hears to run one statement, without a connection, with Python values as tests write
them.

Owns: preparing, binding, paging and decoding for the small sessions of the kit.

Owns: which Python type stands for which CQL type.

Invariant: `conversation` does no I/O: it yields (opcode, body) and is sent the answer's body, so that a
socket and a simulation hold it alike. What `plain` returns, `shaped` accepts for the same type, and both
stand for one CQL value. Types follow what Python's drivers return: datetime for timestamp (naive, UTC), date,
time, UUID, Decimal, set, dict, tuple; texts for inet.
"""

from __future__ import annotations

import datetime
import ipaddress
import uuid
from collections import namedtuple
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import UNSET, QueryParameters, Value
from lockstep.schema.types import CqlType, ListType, MapType, SetType, TupleType, UserDefinedType, VectorType
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001
_DAY = datetime.date(1970, 1, 1)
_MS = datetime.timedelta(milliseconds=1)


def serialized(kind: CqlType, value: Any) -> bytes | None:
    """Bytes of a Python value as `kind`; None is null. InvalidRequest when it does not fit."""
    return None if value is None else kind.serialize(shaped(kind, value))


def deserialized(kind: CqlType, data: bytes | None) -> Any:
    """The Python value of what a node sent."""
    return None if data is None else plain(kind, kind.deserialize(data))


def shaped(kind: CqlType, value: Any) -> Any:
    """`value` in the shape that `kind.serialize` takes; values already in that shape pass through."""
    if value is None:
        return None
    if isinstance(kind, MapType):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(shaped(kind.key, key), shaped(kind.value, held)) for key, held in pairs]
    if isinstance(kind, ListType | SetType | VectorType):
        return [shaped(kind.element, element) for element in value]
    if isinstance(kind, UserDefinedType) and isinstance(value, Mapping):
        fields = dict(zip(kind.field_names, kind.elements, strict=True))
        return {name: shaped(fields[name], held) if name in fields else held for name, held in value.items()}
    if isinstance(kind, TupleType):
        return tuple(shaped(part, held) for part, held in zip(kind.elements, value, strict=False))
    make = _SHAPERS.get(kind.name)
    return make(value) if make else value


def plain(kind: CqlType, value: Any) -> Any:
    """What `kind.deserialize` returned, as Python's own types."""
    if value is None:
        return None
    if isinstance(kind, MapType):
        return {_key(plain(kind.key, key)): plain(kind.value, held) for key, held in value}
    if isinstance(kind, SetType):
        return {_key(plain(kind.element, element)) for element in value}
    if isinstance(kind, ListType | VectorType):
        return [plain(kind.element, element) for element in value]
    if isinstance(kind, UserDefinedType):
        parts = zip(kind.field_names, kind.elements, value, strict=False)
        return {name: plain(part, held) for name, part, held in parts}
    if isinstance(kind, TupleType):
        return tuple(plain(part, held) for part, held in zip(kind.elements, value, strict=False))
    make = _PLAINERS.get(kind.name)
    return make(value) if make else value


def _key(value: Any) -> Any:
    """A collection as an element of a set or a key of a map."""
    if isinstance(value, list):
        return tuple(_key(element) for element in value)
    if isinstance(value, set):
        return frozenset(value)
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _timestamp_ms(value: Any) -> Any:
    if not isinstance(value, datetime.datetime):
        return value
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return (value - _EPOCH) // _MS


def _date_days(value: Any) -> Any:
    return (value - _DAY).days if type(value) is datetime.date else value


def _time_ns(value: Any) -> Any:
    if not isinstance(value, datetime.time):
        return value
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000


def _uuid_bytes(value: Any) -> Any:
    if isinstance(value, str):
        value = uuid.UUID(value)
    return value.bytes if isinstance(value, uuid.UUID) else value


def _address(value: Any) -> Any:
    return str(value) if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address) else value


def _plain_time(ns: int) -> datetime.time:
    return (_EPOCH + datetime.timedelta(microseconds=ns // 1000)).time()


def _plain_timestamp(ms: int) -> datetime.datetime | int:
    try:
        return _EPOCH + ms * _MS
    except OverflowError:
        return ms  # CQL's timestamps reach further than Python's.


def _plain_date(days: int) -> datetime.date | int:
    try:
        return _DAY + datetime.timedelta(days=days)
    except OverflowError:
        return days


_SHAPERS: dict[str, Callable[[Any], Any]] = {
    "timestamp": _timestamp_ms,
    "date": _date_days,
    "time": _time_ns,
    "uuid": _uuid_bytes,
    "timeuuid": _uuid_bytes,
    "inet": _address,
}
_PLAINERS: dict[str, Callable[[Any], Any]] = {
    "timestamp": _plain_timestamp,
    "date": _plain_date,
    "time": _plain_time,
    "uuid": lambda data: uuid.UUID(bytes=data),
    "timeuuid": lambda data: uuid.UUID(bytes=data),
}


#: What the kit's own sessions speak: one envelope a message, no segments.
VERSION = 4
#: Rows a page; a session asks for all pages.
PAGE_ROWS = 5000
_UNPREPARED = 0x2500

Conversation: TypeAlias = Generator[tuple[int, bytes], wire.Body, list[Any]]
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class CqlError(Exception):
    """The node refused or could not answer. `code` is the protocol's number, `details` what it adds
    (consistency, required, received, ...)."""

    def __init__(self, body: wire.ErrorResponse) -> None:
        super().__init__(f"{body.code:#06x}: {body.message}")
        self.code = body.code
        self.message = body.message
        self.details = body.details


def startup() -> tuple[int, bytes]:
    """The first thing that a client says."""
    return Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.4.7"})


def credentials(user: str, password: str) -> tuple[int, bytes]:
    """The answer to a node that asks who is there."""
    return Opcode.AUTH_RESPONSE, wire.auth_response(b"\0" + user.encode() + b"\0" + password.encode())


def level(name: str | Consistency) -> Consistency:
    """ConfigurationError when there is no such level."""
    if isinstance(name, Consistency):
        return name
    try:
        return Consistency[name.upper()]
    except KeyError:
        known = ", ".join(one.name for one in Consistency)
        raise ConfigurationError(f"there is no consistency level {name}", hint=f"one of {known}") from None


def conversation(
    prepared: dict[str, wire.PreparedResult], text: str, values: Values, consistency: str | Consistency
) -> Conversation:
    """Run one statement; returns its rows, as named tuples. CqlError when the node answers an error.

    With values the statement is prepared, and remembered in `prepared`, as only then their types are known.
    """
    asked = level(consistency)
    if not values:
        return (yield from _pages(Opcode.QUERY, text, None, (), asked))
    for attempt in (1, 2):
        statement = prepared.get(text)
        if statement is None:
            answer = _good((yield Opcode.PREPARE, wire.prepare(VERSION, text)))
            assert isinstance(answer, wire.PreparedResult)
            statement = prepared[text] = answer
        try:
            return (yield from _pages(Opcode.EXECUTE, text, statement, bound(statement, values), asked))
        except CqlError as error:
            del prepared[text]
            if error.code != _UNPREPARED or attempt == 2:
                raise
    raise AssertionError("the loop returns or raises")


def bound(statement: wire.PreparedResult, values: Values) -> tuple[Value, ...]:
    """Serialised values in the order of the markers. ConfigurationError when they are not as many."""
    specs = statement.bind
    if isinstance(values, Mapping):
        unknown = sorted(set(values) - {spec.name for spec in specs})
        if unknown:
            raise ConfigurationError(f"the statement has no marker :{unknown[0]}")
        return tuple(
            serialized(spec.type, values[spec.name]) if spec.name in values else UNSET for spec in specs
        )
    if len(values) != len(specs):
        raise ConfigurationError(f"the statement has {len(specs)} markers, and {len(values)} values came")
    return tuple(serialized(spec.type, value) for spec, value in zip(specs, values, strict=True))


def _pages(
    opcode: int,
    text: str,
    statement: wire.PreparedResult | None,
    values: tuple[Value, ...],
    consistency: Consistency,
) -> Conversation:
    rows: list[Any] = []
    state: bytes | None = None
    while True:
        parameters = QueryParameters(
            consistency=consistency, values=values, page_size=PAGE_ROWS, paging_state=state
        )
        if statement is None:
            body = wire.query(VERSION, text, parameters)
        else:
            body = wire.execute(VERSION, statement.statement_id, None, parameters)
        answer = _good((yield opcode, body))
        if not isinstance(answer, wire.RowsResult):
            return rows
        columns = answer.metadata.columns
        row = namedtuple("Row", [column.name for column in columns], rename=True)  # type: ignore[misc]
        types = [column.type for column in columns]
        for cells in answer.rows:
            decoded = [deserialized(kind, data) for kind, data in zip(types, cells, strict=True)]
            rows.append(row(*decoded))
        state = answer.metadata.paging_state
        if state is None:
            return rows


def _good(answer: wire.Body) -> wire.Body:
    if isinstance(answer, wire.ErrorResponse):
        raise CqlError(answer)
    return answer
