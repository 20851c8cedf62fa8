"""Response bodies (the server's side): values to bytes.

Invariant: every function returns a complete body for the opcode named in its docstring; nothing here
keeps state. RowsMetadata is encoded once per statement and version and reused for every answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.cql.wire import primitives as wire
from lockstep.cql.wire.constants import (
    ERROR_ALREADY_EXISTS,
    ERROR_FUNCTION_FAILURE,
    ERROR_INVALID,
    ERROR_READ_FAILURE,
    ERROR_SERVER,
    ERROR_UNPREPARED,
    ERROR_WRITE_FAILURE,
    EVENT_SCHEMA,
    EVENT_STATUS,
    EVENT_TOPOLOGY,
    FLAG_PAYLOAD,
    FLAG_TRACING,
    FLAG_WARNINGS,
    HAS_CONDITIONAL_ERRORS,
    HAS_FAILURES,
    HAS_KEY_INDEXES,
    HAS_METADATA_ID,
    HAS_REASON_MAP,
    METADATA_CHANGED,
    METADATA_GLOBAL_TABLE,
    METADATA_MORE_PAGES,
    METADATA_NONE,
    RESULT_PREPARED,
    RESULT_ROWS,
    RESULT_SCHEMA_CHANGE,
    RESULT_SET_KEYSPACE,
    RESULT_VOID,
    WRITE_TYPE_CAS,
)
from lockstep.cql.wire.primitives import pack_int, pack_short
from lockstep.cql.wire.type_options import type_option
from lockstep.schema.types import CqlType
from lockstep.values.errors import (
    AlreadyExists,
    ConditionalUnknown,
    FunctionFailure,
    LockstepError,
    ReadFailure,
    ReadTimeout,
    Rejected,
    RequestError,
    Unavailable,
    Unprepared,
    WriteFailure,
    WriteTimeout,
)


class ColumnSpec(msgspec.Struct, frozen=True, gc=False):
    """One column of a result or one bind marker."""

    keyspace: str
    table: str
    name: str
    type: CqlType


class RowsMetadata(msgspec.Struct, frozen=True, gc=False):
    """Encoded column specs. `columns` follows the flags and count in a body; the heads are whole ones.

    `head` begins a rows result with metadata and without paging state, `bare_head` one without both.
    """

    count: int
    flags: int
    columns: bytes
    head: bytes
    bare_head: bytes


#: READY and the body of a RESULT without rows.
READY: Final = b""
VOID: Final = pack_int(RESULT_VOID)

_ROWS = pack_int(RESULT_ROWS)


def supported(options: Mapping[str, Sequence[str]]) -> bytes:
    """SUPPORTED."""
    return wire.string_multimap(options)


def authenticate(authenticator: str) -> bytes:
    """AUTHENTICATE."""
    return wire.string(authenticator)


def auth_success(token: bytes | None = None) -> bytes:
    """AUTH_SUCCESS."""
    return wire.long_bytes(token)


def encode_rows_metadata(version: int, specs: Sequence[ColumnSpec]) -> RowsMetadata:
    """The specs' encoding, with the table named once where all columns share it."""
    flags, columns = _columns(version, specs)
    count = pack_int(len(specs))
    return RowsMetadata(
        len(specs),
        flags,
        columns,
        _ROWS + pack_int(flags) + count + columns,
        _ROWS + pack_int(METADATA_NONE) + count,
    )


def _columns(version: int, specs: Sequence[ColumnSpec]) -> tuple[int, bytes]:
    tables = dict.fromkeys((spec.keyspace, spec.table) for spec in specs)
    if len(tables) == 1:
        flags = METADATA_GLOBAL_TABLE
        out = [wire.string(specs[0].keyspace), wire.string(specs[0].table)]
    else:
        flags, out = 0, []
    for spec in specs:
        if not flags:
            out += (wire.string(spec.keyspace), wire.string(spec.table))
        out += (wire.string(spec.name), type_option(version, spec.type))
    return flags, b"".join(out)


def rows(
    metadata: RowsMetadata,
    listed: Iterable[Iterable[bytes | None]],
    *,
    paging_state: bytes | None = None,
    skip_metadata: bool = False,
    new_metadata_id: bytes | None = None,
) -> bytes:
    """RESULT of rows. `new_metadata_id` (v5) tells the client its metadata changed, and sends the new one."""
    rows = list(listed)
    return rows_encoded(
        metadata,
        [encode_rows(rows)],
        len(rows),
        paging_state=paging_state,
        skip_metadata=skip_metadata,
        new_metadata_id=new_metadata_id,
    )


def encode_rows(listed: Iterable[Iterable[bytes | None]]) -> bytes:
    """Some rows of a RESULT, for `rows_encoded`."""
    out: list[bytes] = []
    for row in listed:
        wire.pack_row(out, row)
    return b"".join(out)


def rows_encoded(
    metadata: RowsMetadata,
    encoded: Sequence[bytes],
    count: int,
    *,
    paging_state: bytes | None = None,
    skip_metadata: bool = False,
    new_metadata_id: bytes | None = None,
) -> bytes:
    """As `rows`, of `count` rows that were encoded in parts."""
    if new_metadata_id is None and paging_state is None:
        head = metadata.bare_head if skip_metadata else metadata.head
    else:
        head = _rows_head(metadata, paging_state, skip_metadata, new_metadata_id)
    return b"".join((head, pack_int(count), *encoded))


def _rows_head(
    metadata: RowsMetadata, paging_state: bytes | None, skip_metadata: bool, new_metadata_id: bytes | None
) -> bytes:
    bare = skip_metadata and new_metadata_id is None
    flags = METADATA_NONE if bare else metadata.flags
    parts = [_ROWS, b"", pack_int(metadata.count)]
    if paging_state is not None:
        flags |= METADATA_MORE_PAGES
        parts.append(wire.long_bytes(paging_state))
    if new_metadata_id is not None:
        flags |= METADATA_CHANGED
        parts.append(wire.short_bytes(new_metadata_id))
    if not bare:
        parts.append(metadata.columns)
    parts[1] = pack_int(flags)
    return b"".join(parts)


def set_keyspace(keyspace: str) -> bytes:
    """RESULT of USE."""
    return pack_int(RESULT_SET_KEYSPACE) + wire.string(keyspace)


def prepared(
    version: int,
    statement_id: bytes,
    bind: Sequence[ColumnSpec],
    partition_key_indexes: Sequence[int],
    result: Sequence[ColumnSpec],
    result_metadata_id: bytes,
) -> bytes:
    """RESULT of PREPARE. The indexes name the bind markers that make the partition key, or are empty."""
    flags, columns = _columns(version, bind)
    parts = [pack_int(RESULT_PREPARED), wire.short_bytes(statement_id)]
    if version in HAS_METADATA_ID:
        parts.append(wire.short_bytes(result_metadata_id))
    parts += (pack_int(flags), pack_int(len(bind)))
    if version in HAS_KEY_INDEXES:
        parts.append(pack_int(len(partition_key_indexes)))
        parts += [pack_short(index) for index in partition_key_indexes]
    parts.append(columns)
    if result:
        flags, columns = _columns(version, result)
        parts += (pack_int(flags), pack_int(len(result)), columns)
    else:
        parts += (pack_int(METADATA_NONE), pack_int(0))
    return b"".join(parts)


def _schema_change(
    change: str, target: str, keyspace: str, name: str, argument_types: Sequence[str]
) -> bytes:
    body = wire.string(change) + wire.string(target) + wire.string(keyspace)
    if target == "KEYSPACE":
        return body
    body += wire.string(name)
    return body + wire.string_list(argument_types) if target in ("FUNCTION", "AGGREGATE") else body


def schema_change(
    change: str, target: str, keyspace: str, name: str = "", argument_types: Sequence[str] = ()
) -> bytes:
    """RESULT of a schema statement.

    `change` is CREATED, UPDATED or DROPPED; `target` KEYSPACE, TABLE, TYPE, FUNCTION or AGGREGATE.
    """
    return pack_int(RESULT_SCHEMA_CHANGE) + _schema_change(change, target, keyspace, name, argument_types)


def event_topology_change(change: str, address: str, port: int) -> bytes:
    """EVENT: NEW_NODE, REMOVED_NODE or MOVED_NODE."""
    return wire.string(EVENT_TOPOLOGY) + wire.string(change) + wire.inet(address, port)


def event_status_change(change: str, address: str, port: int) -> bytes:
    """EVENT: UP or DOWN."""
    return wire.string(EVENT_STATUS) + wire.string(change) + wire.inet(address, port)


def event_schema_change(
    change: str, target: str, keyspace: str, name: str = "", argument_types: Sequence[str] = ()
) -> bytes:
    """EVENT with the arguments of schema_change."""
    return wire.string(EVENT_SCHEMA) + _schema_change(change, target, keyspace, name, argument_types)


def error(version: int, problem: LockstepError) -> bytes:
    """ERROR: code, message and what the code adds.

    Errors without a protocol code of their own are sent as server errors, whose outcome a client must
    take as unknown. Versions without failures are told of a timeout, whose outcome is as unknown.
    """
    if isinstance(problem, ReadFailure | WriteFailure) and version not in HAS_FAILURES:
        problem = _as_timeout(problem)
    if isinstance(problem, ConditionalUnknown) and version not in HAS_CONDITIONAL_ERRORS:
        counts = (problem.consistency, problem.received, problem.required)
        problem = WriteTimeout(*counts, WRITE_TYPE_CAS)
    code = problem.cql_code if isinstance(problem, RequestError | Rejected) else ERROR_SERVER
    if code == ERROR_FUNCTION_FAILURE and version not in HAS_FAILURES:
        code = ERROR_INVALID
    head = pack_int(code) + wire.clipped_string(problem.message)
    return head + _error_details(version, code, problem)


def _as_timeout(problem: ReadFailure | WriteFailure) -> ReadTimeout | WriteTimeout:
    if isinstance(problem, ReadFailure):
        return ReadTimeout(problem.consistency, problem.received, problem.required, problem.data_present)
    return WriteTimeout(problem.consistency, problem.received, problem.required, problem.write_type)


def _error_details(version: int, code: int, problem: LockstepError) -> bytes:
    if isinstance(problem, Unavailable):
        levels = pack_int(problem.required) + pack_int(problem.alive)
        return pack_short(problem.consistency) + levels
    if isinstance(problem, WriteTimeout):
        told = _counts(problem) + wire.string(problem.write_type)
        conditional = problem.write_type == WRITE_TYPE_CAS and version in HAS_CONDITIONAL_ERRORS
        return told + pack_short(min(problem.contentions, 0xFFFF)) if conditional else told
    if isinstance(problem, ConditionalUnknown):
        return _counts(problem)
    if isinstance(problem, ReadTimeout):
        return _counts(problem) + (b"\x01" if problem.data_present else b"\x00")
    if isinstance(problem, ReadFailure):
        assert code == ERROR_READ_FAILURE
        return _counts(problem) + _reasons(version, problem) + (b"\x01" if problem.data_present else b"\x00")
    if isinstance(problem, WriteFailure):
        assert code == ERROR_WRITE_FAILURE
        return _counts(problem) + _reasons(version, problem) + wire.string(problem.write_type)
    if code == ERROR_ALREADY_EXISTS and isinstance(problem, AlreadyExists | Rejected):
        return wire.string(problem.keyspace) + wire.string(problem.table)
    if isinstance(problem, FunctionFailure):
        if code != ERROR_FUNCTION_FAILURE:
            return b""
        named = wire.string(problem.keyspace) + wire.string(problem.function)
        return named + wire.string_list(problem.arguments)
    if isinstance(problem, Unprepared):
        assert code == ERROR_UNPREPARED
        return wire.short_bytes(problem.statement_id)
    return b""


def _counts(
    problem: WriteTimeout | ConditionalUnknown | ReadTimeout | ReadFailure | WriteFailure,
) -> bytes:
    return pack_short(problem.consistency) + pack_int(problem.received) + pack_int(problem.required)


def _reasons(version: int, problem: ReadFailure | WriteFailure) -> bytes:
    if version not in HAS_REASON_MAP:
        return pack_int(problem.failures)
    # Clients count failures by the map's size, so failures without a known replica get addresses of
    # the unspecified network and the code for an unknown reason.
    missing = range(1, problem.failures - len(problem.reasons) + 1)
    pairs = (*problem.reasons, *((f"0.0.{n >> 8 & 255}.{n & 255}", 0) for n in missing))
    entries = [wire.inet_address(address) + pack_short(reason) for address, reason in pairs]
    return pack_int(len(entries)) + b"".join(entries)


def with_prefix(
    body: bytes,
    *,
    trace_id: bytes | None = None,
    warnings: Sequence[str] = (),
    payload: Mapping[str, bytes | None] | None = None,
) -> tuple[int, bytes]:
    """(envelope flags, body) of a response that also carries a trace id, warnings or a custom payload."""
    flags, parts = 0, []
    if trace_id is not None:
        assert len(trace_id) == 16
        flags |= FLAG_TRACING
        parts.append(trace_id)
    if warnings:
        flags |= FLAG_WARNINGS
        listed = [wire.clipped_string(warning) for warning in warnings]
        parts.append(pack_short(len(listed)) + b"".join(listed))
    if payload:
        flags |= FLAG_PAYLOAD
        parts.append(wire.bytes_map(payload))
    return flags, b"".join((*parts, body))
