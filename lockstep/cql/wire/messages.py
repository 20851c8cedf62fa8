"""Request bodies as values (the server's side).

Owns: the request structs and their decoding by version. Invariant: any body decodes to a struct or
raises ProtocolViolation, or InvalidRequest where a batch holds more than is decoded in one go; null (None)
and unset (UNSET) stay distinct. Bytes behind the last field are ignored, as clients may append what
extensions define.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from lockstep.cql.wire import primitives as wire
from lockstep.cql.wire.constants import (
    BATCH_COUNTER,
    EVENT_TYPES,
    FLAG_PAYLOAD,
    HAS_METADATA_ID,
    HAS_WIDE_FLAGS,
    PREPARE_KEYSPACE,
    QUERY_KEYSPACE,
    QUERY_NAMES,
    QUERY_NOW,
    QUERY_PAGE_SIZE,
    QUERY_PAGING_STATE,
    QUERY_SERIAL_CONSISTENCY,
    QUERY_SKIP_METADATA,
    QUERY_TIMESTAMP,
    QUERY_VALUES,
    Opcode,
)
from lockstep.cql.wire.primitives import unpack_int, unpack_long, unpack_short, unpack_uint
from lockstep.values.errors import InvalidRequest, ProtocolViolation
from lockstep.values.ids import Consistency
from lockstep.values.limits import BATCH_STATEMENTS_MAX
from lockstep.values.node_limits import BATCH_VALUES_MAX


class Unset(enum.Enum):
    """The type of UNSET: a bound value that leaves its column as it is."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
#: A bound value as sent: serialised bytes, null or unset.
Value: TypeAlias = bytes | Unset | None


class Options(msgspec.Struct, frozen=True, gc=False):
    """Ask what the server supports."""


class Startup(msgspec.Struct, frozen=True):
    """Open the connection; keys as sent, unknown ones included."""

    options: dict[str, str]


class AuthResponse(msgspec.Struct, frozen=True, gc=False):
    """One SASL token."""

    token: bytes | None


class Register(msgspec.Struct, frozen=True, gc=False):
    """Ask for events of these types."""

    event_types: tuple[str, ...]


class QueryParameters(msgspec.Struct, frozen=True, gc=False):
    """What QUERY and EXECUTE carry besides the statement.

    `names` is None for positional values. `page_size` is in rows and may be <= 0 as sent (no paging).
    """

    consistency: Consistency
    values: tuple[Value, ...] = ()
    names: tuple[str, ...] | None = None
    skip_metadata: bool = False
    page_size: int | None = None
    paging_state: bytes | None = None
    serial_consistency: Consistency | None = None
    timestamp_us: int | None = None
    keyspace: str | None = None
    now_s: int | None = None


class Query(msgspec.Struct, frozen=True, gc=False):
    text: str
    parameters: QueryParameters


class Prepare(msgspec.Struct, frozen=True, gc=False):
    text: str
    keyspace: str | None = None


class Execute(msgspec.Struct, frozen=True, gc=False):
    """`result_metadata_id` is what the client holds (v5), None in v4."""

    statement_id: bytes
    result_metadata_id: bytes | None
    parameters: QueryParameters


class Load(msgspec.Struct, frozen=True, gc=False):
    """A request of a bulk load, as its own messages encode it."""

    body: bytes


class BatchStatement(msgspec.Struct, frozen=True, gc=False):
    """`statement` is CQL text, or the bytes of a prepared id."""

    statement: str | bytes
    values: tuple[Value, ...]


class Batch(msgspec.Struct, frozen=True, gc=False):
    """`kind` is BATCH_LOGGED, BATCH_UNLOGGED or BATCH_COUNTER; the parameters hold no values or paging."""

    kind: int
    statements: tuple[BatchStatement, ...]
    parameters: QueryParameters


Request: TypeAlias = Options | Startup | AuthResponse | Register | Query | Prepare | Execute | Batch | Load

_LEVELS = tuple(Consistency)
#: Kind, and length of the id of a prepared one.
_unpack_statement: Final = struct.Struct(">BH").unpack_from
_HEAD_4 = struct.Struct(">HB")
_HEAD_5 = struct.Struct(">HI")
_TIMESTAMP_FORBIDDEN = -(1 << 63)


def decode_request(version: int, opcode: int, flags: int, body: bytes) -> Request:
    """The request in an envelope's body; a custom payload in front is skipped."""
    decode = _DECODERS.get(opcode)
    if decode is None:
        raise ProtocolViolation(f"Unknown or unexpected opcode {opcode}")
    try:
        at = wire.read_bytes_map(body, 0)[1] if flags & FLAG_PAYLOAD else 0
        return decode(version, body, at)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolViolation(f"Malformed {Opcode(opcode).name}: {error}") from None


def custom_payload(flags: int, body: bytes) -> dict[str, bytes | None]:
    """What a client sent in front of a request whose body has decoded."""
    return wire.read_bytes_map(body, 0)[0] if flags & FLAG_PAYLOAD else {}


def _level(number: int) -> Consistency:
    if number >= len(_LEVELS):
        raise ProtocolViolation(f"Unknown code {number} for a consistency level")
    return _LEVELS[number]


def _read_values(body: bytes, at: int, count: int) -> tuple[tuple[Value, ...], int]:
    values: list[Value] = []
    append = values.append
    for _ in range(count):
        (length,) = unpack_int(body, at)
        at += 4
        if length >= 0:
            end = at + length
            append(body[at:end])
            at = end
        elif length == -1:
            append(None)
        elif length == -2:
            append(UNSET)
        else:
            raise ProtocolViolation(f"Invalid value length {length}")
    return tuple(values), at


def _read_named_values(body: bytes, at: int, count: int) -> tuple[tuple[str, ...], tuple[Value, ...], int]:
    names: list[str] = []
    values: list[Value] = []
    for _ in range(count):
        name, at = wire.read_string(body, at)
        value, at = _read_values(body, at, 1)
        names.append(name)
        values.append(value[0])
    return tuple(names), tuple(values), at


def _read_parameters(version: int, body: bytes, at: int) -> QueryParameters:
    head = _HEAD_5 if version in HAS_WIDE_FLAGS else _HEAD_4
    number, flags = head.unpack_from(body, at)
    at += head.size
    values: tuple[Value, ...] = ()
    names: tuple[str, ...] | None = None
    if flags & QUERY_VALUES:
        count, at = unpack_short(body, at)[0], at + 2
        if flags & QUERY_NAMES:
            names, values, at = _read_named_values(body, at, count)
        else:
            values, at = _read_values(body, at, count)
    page_size = paging_state = None
    if flags & QUERY_PAGE_SIZE:
        page_size, at = unpack_int(body, at)[0], at + 4
    if flags & QUERY_PAGING_STATE:
        paging_state, at = wire.read_bytes(body, at)
    skip = bool(flags & QUERY_SKIP_METADATA)
    if not flags & _RARE_FLAGS:
        if at > len(body):
            raise wire.too_short(body, "query parameters")
        return QueryParameters(_level(number), values, names, skip, page_size, paging_state)
    serial, timestamp_us, keyspace, now_s = _read_rare(version, flags, body, at)
    return QueryParameters(
        _level(number), values, names, skip, page_size, paging_state, serial, timestamp_us, keyspace, now_s
    )


_RARE_FLAGS = QUERY_SERIAL_CONSISTENCY | QUERY_TIMESTAMP | QUERY_KEYSPACE | QUERY_NOW


def _read_rare(
    version: int, flags: int, body: bytes, at: int
) -> tuple[Consistency | None, int | None, str | None, int | None]:
    """Serial consistency, timestamp, keyspace and now: the last fields of query and batch parameters."""
    serial = timestamp_us = keyspace = now_s = None
    if flags & QUERY_SERIAL_CONSISTENCY:
        serial, at = _level(unpack_short(body, at)[0]), at + 2
    if flags & QUERY_TIMESTAMP:
        timestamp_us, at = unpack_long(body, at)[0], at + 8
        if timestamp_us == _TIMESTAMP_FORBIDDEN:
            raise ProtocolViolation("Out of bound timestamp, must be in [-2^63 + 1, 2^63 - 1]")
    if version in HAS_WIDE_FLAGS:
        if flags & QUERY_KEYSPACE:
            keyspace, at = wire.read_string(body, at)
        if flags & QUERY_NOW:
            now_s, at = unpack_int(body, at)[0], at + 4
    if at > len(body):
        raise wire.too_short(body, "query parameters")
    return serial, timestamp_us, keyspace, now_s


def _decode_options(version: int, body: bytes, at: int) -> Options:
    return Options()


def _decode_load(version: int, body: bytes, at: int) -> Load:
    return Load(body[at:])


def _decode_startup(version: int, body: bytes, at: int) -> Startup:
    options, at = wire.read_string_map(body, at)
    if at > len(body):
        raise wire.too_short(body, "STARTUP")
    return Startup(options)


def _decode_auth_response(version: int, body: bytes, at: int) -> AuthResponse:
    token, at = wire.read_bytes(body, at)
    if at > len(body):
        raise wire.too_short(body, "AUTH_RESPONSE")
    return AuthResponse(token)


def _decode_register(version: int, body: bytes, at: int) -> Register:
    listed, at = wire.read_string_list(body, at)
    if at > len(body):
        raise wire.too_short(body, "REGISTER")
    event_types = tuple(name.upper() for name in listed)
    for name in event_types:
        if name not in EVENT_TYPES:
            raise ProtocolViolation(f"Invalid value '{name}' for Type")
    return Register(event_types)


def _decode_query(version: int, body: bytes, at: int) -> Query:
    text, at = wire.read_long_string(body, at)
    return Query(text, _read_parameters(version, body, at))


def _decode_prepare(version: int, body: bytes, at: int) -> Prepare:
    text, at = wire.read_long_string(body, at)
    keyspace = None
    if version in HAS_WIDE_FLAGS:
        flags, at = unpack_uint(body, at)[0], at + 4
        if flags & PREPARE_KEYSPACE:
            keyspace, at = wire.read_string(body, at)
    if at > len(body):
        raise wire.too_short(body, "PREPARE")
    return Prepare(text, keyspace)


def _decode_execute(version: int, body: bytes, at: int) -> Execute:
    start = at + 2
    at = start + unpack_short(body, at)[0]
    statement_id = body[start:at]
    metadata_id = None
    if version in HAS_METADATA_ID:
        metadata_id, at = wire.read_short_bytes(body, at)
    return Execute(statement_id, metadata_id, _read_parameters(version, body, at))


def _decode_batch(version: int, body: bytes, at: int) -> Batch:
    kind = body[at]
    if kind > BATCH_COUNTER:
        raise ProtocolViolation(f"Invalid batch type {kind}")
    count, at = unpack_short(body, at + 1)[0], at + 3
    if count > BATCH_STATEMENTS_MAX:
        raise InvalidRequest(f"A batch holds at most {BATCH_STATEMENTS_MAX} statements")
    statements = []
    room = BATCH_VALUES_MAX
    for _ in range(count):
        prepared, length = _unpack_statement(body, at)
        statement: str | bytes
        if prepared == 1:
            at += 3 + length
            statement = body[at - length : at]
        elif prepared == 0:
            statement, at = wire.read_long_string(body, at + 1)
        else:
            raise ProtocolViolation("Invalid query kind in BATCH messages. Must be 0 or 1")
        width = unpack_short(body, at)[0]
        room -= width
        if room < 0:
            raise InvalidRequest(f"The statements of a batch have at most {BATCH_VALUES_MAX} values")
        values, at = _read_values(body, at + 2, width)
        statements.append(BatchStatement(statement, values))
    head = _HEAD_5 if version in HAS_WIDE_FLAGS else _HEAD_4
    number, flags = head.unpack_from(body, at)
    serial, timestamp_us, keyspace, now_s = _read_rare(version, flags, body, at + head.size)
    parameters = QueryParameters(
        _level(number),
        serial_consistency=serial,
        timestamp_us=timestamp_us,
        keyspace=keyspace,
        now_s=now_s,
    )
    return Batch(kind, tuple(statements), parameters)


_DECODERS: dict[int, Callable[[int, bytes, int], Request]] = {
    int(Opcode.OPTIONS): _decode_options,
    int(Opcode.STARTUP): _decode_startup,
    int(Opcode.AUTH_RESPONSE): _decode_auth_response,
    int(Opcode.REGISTER): _decode_register,
    int(Opcode.QUERY): _decode_query,
    int(Opcode.PREPARE): _decode_prepare,
    int(Opcode.EXECUTE): _decode_execute,
    int(Opcode.BATCH): _decode_batch,
    int(Opcode.LOAD): _decode_load,
}
