"""The client's side of the protocol: request bodies, and (re-exported) response decoding.

Owns: what a small CQL client (tools, simulation, data jobs) needs besides frames and segments.
Invariant: every body built here decodes, in `messages`, to the values it was built from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.cql.wire import primitives as wire
from lockstep.cql.wire.client_results import (
    AuthChallenge,
    Authenticate,
    AuthSuccess,
    Body,
    ErrorResponse,
    Metadata,
    NodeEvent,
    PreparedResult,
    Ready,
    Response,
    Row,
    RowsResult,
    SchemaChange,
    SetKeyspaceResult,
    Supported,
    VoidResult,
    decode_response,
)
from lockstep.cql.wire.constants import (
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
    has_metadata_id,
    has_wide_flags,
)
from lockstep.cql.wire.messages import BatchStatement, QueryParameters, Unset, Value
from lockstep.cql.wire.primitives import NULL, UNSET_MARK, pack_int, pack_long, pack_short
from lockstep.cql.wire.responses import ColumnSpec

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
    if not has_wide_flags(version):
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
    if has_metadata_id(version):
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
    return pack_int(flags) if has_wide_flags(version) else bytes((flags,))


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
    assert has_wide_flags(version) or not wide, "keyspace and now need version 5"
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
