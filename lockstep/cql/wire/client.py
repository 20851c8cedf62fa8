"""The client's side of the protocol: request bodies, and response bodies as values.

Owns: what a small CQL client (tools, simulation, data jobs) needs besides frames and segments.

Owns: the response structs and their decoding by version.

Invariant: every body built here decodes, in `messages`, to the values it was built from. `decode_response`
gives a struct or raises ProtocolViolation; row cells stay serialised bytes, to be read with their column's
type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from lockstep.cql.wire import primitives as wire
from lockstep.cql.wire.constants import (
    ERROR_ALREADY_EXISTS,
    ERROR_READ_FAILURE,
    ERROR_READ_TIMEOUT,
    ERROR_UNAVAILABLE,
    ERROR_UNPREPARED,
    ERROR_WRITE_FAILURE,
    ERROR_WRITE_TIMEOUT,
    EVENT_SCHEMA,
    EVENT_STATUS,
    EVENT_TOPOLOGY,
    FLAG_PAYLOAD,
    FLAG_TRACING,
    FLAG_WARNINGS,
    HAS_KEY_INDEXES,
    HAS_METADATA_ID,
    HAS_REASON_MAP,
    HAS_WIDE_FLAGS,
    METADATA_CHANGED,
    METADATA_GLOBAL_TABLE,
    METADATA_MORE_PAGES,
    METADATA_NONE,
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
    RESULT_PREPARED,
    RESULT_ROWS,
    RESULT_SCHEMA_CHANGE,
    RESULT_SET_KEYSPACE,
    RESULT_VOID,
    Opcode,
)
from lockstep.cql.wire.messages import BatchStatement, QueryParameters, Unset, Value
from lockstep.cql.wire.primitives import (
    NULL,
    UNSET_MARK,
    pack_int,
    pack_long,
    pack_short,
    unpack_int,
    unpack_short,
)
from lockstep.cql.wire.responses import ColumnSpec
from lockstep.cql.wire.type_options import read_type
from lockstep.values.errors import ProtocolViolation

Row: TypeAlias = tuple[bytes | None, ...]


class Ready(msgspec.Struct, frozen=True, gc=False):
    """The connection is open."""


class Authenticate(msgspec.Struct, frozen=True, gc=False):
    authenticator: str


class AuthChallenge(msgspec.Struct, frozen=True, gc=False):
    token: bytes | None


class AuthSuccess(msgspec.Struct, frozen=True, gc=False):
    token: bytes | None


class Supported(msgspec.Struct, frozen=True):
    options: dict[str, list[str]]


class ErrorResponse(msgspec.Struct, frozen=True):
    """`details` holds what the code adds, by name (consistency, received, required, ...)."""

    code: int
    message: str
    details: dict[str, object]


class VoidResult(msgspec.Struct, frozen=True, gc=False):
    """A request without rows succeeded."""


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """`columns` is empty when the server left the specs out; `count` is then still known."""

    columns: tuple[ColumnSpec, ...]
    count: int
    paging_state: bytes | None = None
    new_metadata_id: bytes | None = None


class RowsResult(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    rows: tuple[Row, ...]


class SetKeyspaceResult(msgspec.Struct, frozen=True, gc=False):
    keyspace: str


class PreparedResult(msgspec.Struct, frozen=True, gc=False):
    statement_id: bytes
    result_metadata_id: bytes | None
    bind: tuple[ColumnSpec, ...]
    partition_key_indexes: tuple[int, ...]
    result: Metadata


class SchemaChange(msgspec.Struct, frozen=True, gc=False):
    """Both a result and an event."""

    change: str
    target: str
    keyspace: str
    name: str = ""
    argument_types: tuple[str, ...] = ()


class NodeEvent(msgspec.Struct, frozen=True, gc=False):
    """`kind` is TOPOLOGY_CHANGE or STATUS_CHANGE."""

    kind: str
    change: str
    address: str
    port: int


class Loaded(msgspec.Struct, frozen=True):
    """The answer to a request of a bulk load, as its own messages encode it."""

    body: bytes


Body: TypeAlias = (
    Ready
    | Authenticate
    | AuthChallenge
    | AuthSuccess
    | Supported
    | ErrorResponse
    | VoidResult
    | RowsResult
    | SetKeyspaceResult
    | PreparedResult
    | SchemaChange
    | NodeEvent
    | Loaded
)


class Response(msgspec.Struct, frozen=True):
    """A response with what stood in front of its body."""

    body: Body
    warnings: tuple[str, ...] = ()
    payload: dict[str, bytes | None] | None = None
    trace_id: bytes | None = None


def decode_response(version: int, opcode: int, flags: int, body: bytes) -> Response:
    """The response in an envelope's body; raises ProtocolViolation when it is none."""
    decode = _DECODERS.get(opcode)
    if decode is None:
        raise ProtocolViolation(f"Unknown or unexpected opcode {opcode}")
    try:
        at = 0
        trace_id: bytes | None = None
        warnings: tuple[str, ...] = ()
        payload: dict[str, bytes | None] | None = None
        if flags & FLAG_TRACING:
            trace_id, at = body[:16], 16
        if flags & FLAG_WARNINGS:
            listed, at = wire.read_string_list(body, at)
            warnings = tuple(listed)
        if flags & FLAG_PAYLOAD:
            payload, at = wire.read_bytes_map(body, at)
        value, at = decode(version, body, at)
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise ProtocolViolation(f"Malformed {Opcode(opcode).name}: {error}") from None
    if at > len(body):
        raise wire.too_short(body, Opcode(opcode).name)
    return Response(value, warnings, payload, trace_id)


def _decode_loaded(version: int, body: bytes, at: int) -> tuple[Body, int]:
    return Loaded(body[at:]), len(body)


def _decode_ready(version: int, body: bytes, at: int) -> tuple[Body, int]:
    return Ready(), at


def _decode_authenticate(version: int, body: bytes, at: int) -> tuple[Body, int]:
    name, at = wire.read_string(body, at)
    return Authenticate(name), at


def _decode_challenge(version: int, body: bytes, at: int) -> tuple[Body, int]:
    token, at = wire.read_bytes(body, at)
    return AuthChallenge(token), at


def _decode_success(version: int, body: bytes, at: int) -> tuple[Body, int]:
    token, at = wire.read_bytes(body, at)
    return AuthSuccess(token), at


def _decode_supported(version: int, body: bytes, at: int) -> tuple[Body, int]:
    pairs, at = wire.read_string_multimap(body, at)
    return Supported(pairs), at


def _decode_error(version: int, body: bytes, at: int) -> tuple[Body, int]:
    code = unpack_int(body, at)[0]
    message, at = wire.read_string(body, at + 4)
    details: dict[str, object] = {}
    if code == ERROR_UNAVAILABLE:
        details["consistency"] = unpack_short(body, at)[0]
        details["required"], details["alive"] = unpack_int(body, at + 2)[0], unpack_int(body, at + 6)[0]
        at += 10
    elif code in (ERROR_WRITE_TIMEOUT, ERROR_READ_TIMEOUT, ERROR_READ_FAILURE, ERROR_WRITE_FAILURE):
        details["consistency"] = unpack_short(body, at)[0]
        details["received"], details["required"] = unpack_int(body, at + 2)[0], unpack_int(body, at + 6)[0]
        at += 10
        if code in (ERROR_READ_FAILURE, ERROR_WRITE_FAILURE):
            at = _read_reasons(version, body, at, details)
        if code in (ERROR_WRITE_TIMEOUT, ERROR_WRITE_FAILURE):
            details["write_type"], at = wire.read_string(body, at)
        else:
            details["data_present"], at = body[at] != 0, at + 1
    elif code == ERROR_ALREADY_EXISTS:
        details["keyspace"], at = wire.read_string(body, at)
        details["table"], at = wire.read_string(body, at)
    elif code == ERROR_UNPREPARED:
        details["statement_id"], at = wire.read_short_bytes(body, at)
    return ErrorResponse(code, message, details), at


def _read_reasons(version: int, body: bytes, at: int, details: dict[str, object]) -> int:
    count, at = unpack_int(body, at)[0], at + 4
    details["failures"] = count
    if version in HAS_REASON_MAP:
        reasons = []
        for _ in range(count):
            address, at = wire.read_inet_address(body, at)
            reasons.append((address, unpack_short(body, at)[0]))
            at += 2
        details["reasons"] = tuple(reasons)
    return at


def _decode_result(version: int, body: bytes, at: int) -> tuple[Body, int]:
    kind, at = unpack_int(body, at)[0], at + 4
    if kind == RESULT_VOID:
        return VoidResult(), at
    if kind == RESULT_ROWS:
        return _read_rows(body, at)
    if kind == RESULT_SET_KEYSPACE:
        keyspace, at = wire.read_string(body, at)
        return SetKeyspaceResult(keyspace), at
    if kind == RESULT_PREPARED:
        return _read_prepared(version, body, at)
    if kind == RESULT_SCHEMA_CHANGE:
        return _read_schema_change(body, at)
    raise ProtocolViolation(f"Unknown RESULT kind {kind}")


def _read_columns(body: bytes, at: int, flags: int, count: int) -> tuple[tuple[ColumnSpec, ...], int]:
    shared = bool(flags & METADATA_GLOBAL_TABLE)
    keyspace = table = ""
    if shared:
        keyspace, at = wire.read_string(body, at)
        table, at = wire.read_string(body, at)
    columns = []
    for _ in range(count):
        if not shared:
            keyspace, at = wire.read_string(body, at)
            table, at = wire.read_string(body, at)
        name, at = wire.read_string(body, at)
        kind, at = read_type(body, at)
        columns.append(ColumnSpec(keyspace, table, name, kind))
    return tuple(columns), at


def _read_metadata(body: bytes, at: int) -> tuple[Metadata, int]:
    flags, count = unpack_int(body, at)[0], unpack_int(body, at + 4)[0]
    at += 8
    paging_state = metadata_id = None
    columns: tuple[ColumnSpec, ...] = ()
    if flags & METADATA_MORE_PAGES:
        paging_state, at = wire.read_bytes(body, at)
    if flags & METADATA_CHANGED:
        metadata_id, at = wire.read_short_bytes(body, at)
    if not flags & METADATA_NONE:
        columns, at = _read_columns(body, at, flags, count)
    return Metadata(columns, count, paging_state, metadata_id), at


def _read_rows(body: bytes, at: int) -> tuple[Body, int]:
    metadata, at = _read_metadata(body, at)
    count, at = unpack_int(body, at)[0], at + 4
    if metadata.count <= 0 or count < 0 or count * metadata.count * 4 > len(body):
        if count:
            raise ProtocolViolation(f"{count} rows of {metadata.count} columns do not fit the body")
        return RowsResult(metadata, ()), at
    rows: list[Row] = []
    columns = range(metadata.count)
    for _ in range(count):
        row: list[bytes | None] = []
        for _column in columns:
            length = unpack_int(body, at)[0]
            at += 4
            if length < 0:
                row.append(None)
            else:
                row.append(body[at : at + length])
                at += length
        rows.append(tuple(row))
    return RowsResult(metadata, tuple(rows)), at


def _read_prepared(version: int, body: bytes, at: int) -> tuple[Body, int]:
    statement_id, at = wire.read_short_bytes(body, at)
    metadata_id = None
    if version in HAS_METADATA_ID:
        metadata_id, at = wire.read_short_bytes(body, at)
    flags, count = unpack_int(body, at)[0], unpack_int(body, at + 4)[0]
    at += 8
    keys = 0
    if version in HAS_KEY_INDEXES:
        keys, at = unpack_int(body, at)[0], at + 4
    indexes = []
    for _ in range(keys):
        indexes.append(unpack_short(body, at)[0])
        at += 2
    bind, at = _read_columns(body, at, flags, count)
    result, at = _read_metadata(body, at)
    return PreparedResult(statement_id, metadata_id, bind, tuple(indexes), result), at


def _read_schema_change(body: bytes, at: int) -> tuple[SchemaChange, int]:
    change, at = wire.read_string(body, at)
    target, at = wire.read_string(body, at)
    keyspace, at = wire.read_string(body, at)
    if target == "KEYSPACE":
        return SchemaChange(change, target, keyspace), at
    name, at = wire.read_string(body, at)
    arguments: list[str] = []
    if target in ("FUNCTION", "AGGREGATE"):
        arguments, at = wire.read_string_list(body, at)
    return SchemaChange(change, target, keyspace, name, tuple(arguments)), at


def _decode_event(version: int, body: bytes, at: int) -> tuple[Body, int]:
    kind, at = wire.read_string(body, at)
    if kind == EVENT_SCHEMA:
        return _read_schema_change(body, at)
    if kind in (EVENT_TOPOLOGY, EVENT_STATUS):
        change, at = wire.read_string(body, at)
        (address, port), at = wire.read_inet(body, at)
        return NodeEvent(kind, change, address, port), at
    raise ProtocolViolation(f"Unknown event type {kind}")


_DECODERS: dict[int, Callable[[int, bytes, int], tuple[Body, int]]] = {
    int(Opcode.READY): _decode_ready,
    int(Opcode.AUTHENTICATE): _decode_authenticate,
    int(Opcode.AUTH_CHALLENGE): _decode_challenge,
    int(Opcode.AUTH_SUCCESS): _decode_success,
    int(Opcode.SUPPORTED): _decode_supported,
    int(Opcode.ERROR): _decode_error,
    int(Opcode.RESULT): _decode_result,
    int(Opcode.EVENT): _decode_event,
    int(Opcode.LOADED): _decode_loaded,
}


__all__ = [
    "AuthChallenge",
    "AuthSuccess",
    "Authenticate",
    "Body",
    "ColumnSpec",
    "ErrorResponse",
    "Metadata",
    "NodeEvent",
    "PreparedResult",
    "Ready",
    "Response",
    "Row",
    "RowsResult",
    "SchemaChange",
    "SetKeyspaceResult",
    "Supported",
    "VoidResult",
    "auth_response",
    "batch",
    "decode_response",
    "execute",
    "options",
    "prepare",
    "query",
    "register",
    "startup",
]


def options() -> bytes:
    """Body of OPTIONS."""
    return b""


def startup(pairs: Mapping[str, str]) -> bytes:
    """Body of STARTUP; `pairs` must hold CQL_VERSION."""
    return wire.string_map(pairs)


def register(event_types: Sequence[str]) -> bytes:
    """Body of REGISTER."""
    return wire.string_list(event_types)


def auth_response(token: bytes | None) -> bytes:
    """Body of AUTH_RESPONSE."""
    return wire.long_bytes(token)


def query(version: int, text: str, parameters: QueryParameters) -> bytes:
    """Body of QUERY."""
    return wire.long_string(text) + _parameters(version, parameters)


def prepare(version: int, text: str, keyspace: str | None = None) -> bytes:
    """Body of PREPARE."""
    body = wire.long_string(text)
    if version not in HAS_WIDE_FLAGS:
        assert keyspace is None, "PREPARE with a keyspace needs version 5"
        return body
    if keyspace is None:
        return body + pack_int(0)
    return body + pack_int(PREPARE_KEYSPACE) + wire.string(keyspace)


def execute(
    version: int, statement_id: bytes, result_metadata_id: bytes | None, parameters: QueryParameters
) -> bytes:
    """Body of EXECUTE."""
    head = wire.short_bytes(statement_id)
    if version in HAS_METADATA_ID:
        head += wire.short_bytes(result_metadata_id or b"")
    return head + _parameters(version, parameters)


def batch(
    version: int, kind: int, statements: Sequence[BatchStatement], parameters: QueryParameters
) -> bytes:
    """Body of BATCH; values and paging in the parameters are not sent."""
    parts = [bytes((kind,)), pack_short(len(statements))]
    for entry in statements:
        if isinstance(entry.statement, str):
            parts += (b"\x00", wire.long_string(entry.statement))
        else:
            parts += (b"\x01", wire.short_bytes(entry.statement))
        parts.append(pack_short(len(entry.values)))
        parts += map(_value, entry.values)
    flags, tail = _rare(version, parameters)
    parts += (pack_short(parameters.consistency), _flags(version, flags), *tail)
    return b"".join(parts)


def _value(value: Value) -> bytes:
    if value is None:
        return NULL
    return UNSET_MARK if isinstance(value, Unset) else pack_int(len(value)) + value


def _flags(version: int, flags: int) -> bytes:
    return pack_int(flags) if version in HAS_WIDE_FLAGS else bytes((flags,))


def _rare(version: int, parameters: QueryParameters) -> tuple[int, list[bytes]]:
    flags, parts = 0, []
    if parameters.serial_consistency is not None:
        flags |= QUERY_SERIAL_CONSISTENCY
        parts.append(pack_short(parameters.serial_consistency))
    if parameters.timestamp_us is not None:
        flags |= QUERY_TIMESTAMP
        parts.append(pack_long(parameters.timestamp_us))
    if parameters.keyspace is not None:
        flags |= QUERY_KEYSPACE
        parts.append(wire.string(parameters.keyspace))
    if parameters.now_s is not None:
        flags |= QUERY_NOW
        parts.append(pack_int(parameters.now_s))
    wide = flags & (QUERY_KEYSPACE | QUERY_NOW)
    assert version in HAS_WIDE_FLAGS or not wide, "keyspace and now need version 5"
    return flags, parts


def _parameters(version: int, parameters: QueryParameters) -> bytes:
    flags, tail = _rare(version, parameters)
    parts: list[bytes] = []
    if parameters.values:
        flags |= QUERY_VALUES
        parts.append(pack_short(len(parameters.values)))
        if parameters.names is None:
            parts += map(_value, parameters.values)
        else:
            flags |= QUERY_NAMES
            for name, value in zip(parameters.names, parameters.values, strict=True):
                parts += (wire.string(name), _value(value))
    if parameters.skip_metadata:
        flags |= QUERY_SKIP_METADATA
    if parameters.page_size is not None:
        flags |= QUERY_PAGE_SIZE
        parts.append(pack_int(parameters.page_size))
    if parameters.paging_state is not None:
        flags |= QUERY_PAGING_STATE
        parts.append(wire.long_bytes(parameters.paging_state))
    return b"".join((pack_short(parameters.consistency), _flags(version, flags), *parts, *tail))
