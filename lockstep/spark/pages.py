"""Pages of rows as they come from the wire to Arrow record batches.

Invariant: a batch has the given schema and as many rows as the page says; bytes that do not add up
raise ProtocolViolation. When all columns are of fixed size and no cell is missing, which the lengths
show, a page is one table of equal rows and is decoded without touching single cells.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lockstep.cql.wire import primitives as wire
from lockstep.cql.wire.client import ErrorResponse, decode_response
from lockstep.cql.wire.constants import (
    FLAG_PAYLOAD,
    FLAG_TRACING,
    FLAG_WARNINGS,
    METADATA_CHANGED,
    METADATA_GLOBAL_TABLE,
    METADATA_MORE_PAGES,
    METADATA_NONE,
    RESULT_ROWS,
    Opcode,
)
from lockstep.cql.wire.frames import Envelope
from lockstep.cql.wire.primitives import unpack_int
from lockstep.cql.wire.type_options import read_type
from lockstep.schema.types import CqlType
from lockstep.spark.columns import arrow_type, decode_cells, decode_fixed, wire_layout
from lockstep.spark.cql_client import error_of
from lockstep.values.errors import ProtocolViolation


class RawPage(msgspec.Struct, frozen=True, gc=False):
    """`count` rows in `body` from offset `at`; `paging_state` is None at the end of the result."""

    body: bytes
    at: int
    count: int
    paging_state: bytes | None


def raw_page(envelope: Envelope, columns: int) -> RawPage:
    """The rows of an answer to EXECUTE. Raises the RequestError of an ERROR answer."""
    body = envelope.body
    if envelope.opcode != Opcode.RESULT:
        answer = decode_response(envelope.version, envelope.opcode, envelope.flags, body).body
        if isinstance(answer, ErrorResponse):
            raise error_of(answer)
        raise ProtocolViolation(f"an answer of kind {type(answer).__name__} instead of rows")
    try:
        at = _past_extras(envelope)
        kind = unpack_int(body, at)[0]
        if kind != RESULT_ROWS:
            raise ProtocolViolation(f"a result of kind {kind} instead of rows")
        flags, count = unpack_int(body, at + 4)[0], unpack_int(body, at + 8)[0]
        at += 12
        state = None
        if flags & METADATA_MORE_PAGES:
            state, at = wire.read_bytes(body, at)
        if flags & METADATA_CHANGED:
            at = wire.read_short_bytes(body, at)[1]
        if not flags & METADATA_NONE:
            at = _past_specs(body, at, flags, count)
        rows = unpack_int(body, at)[0]
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolViolation(f"Malformed rows: {error}") from None
    if count != columns:
        raise ProtocolViolation(f"rows of {count} columns where {columns} were selected")
    return RawPage(body, at + 4, rows, state)


def _past_extras(envelope: Envelope) -> int:
    at = 16 if envelope.flags & FLAG_TRACING else 0
    if envelope.flags & FLAG_WARNINGS:
        at = wire.read_string_list(envelope.body, at)[1]
    if envelope.flags & FLAG_PAYLOAD:
        at = wire.read_bytes_map(envelope.body, at)[1]
    return at


def _past_specs(body: bytes, at: int, flags: int, count: int) -> int:
    shared = bool(flags & METADATA_GLOBAL_TABLE)
    for _ in range(2 if shared else 0):
        at = wire.read_string(body, at)[1]
    for _ in range(count):
        for _ in range(1 if shared else 3):
            at = wire.read_string(body, at)[1]
        at = read_type(body, at)[1]
    return at


class PageDecoder:
    """Decodes pages of one projection; made once a task."""

    def __init__(self, columns: Sequence[tuple[str, CqlType]], decimal_scale: int) -> None:
        self._kinds = [kind for _, kind in columns]
        self._scale = decimal_scale
        self.schema = pa.schema([pa.field(name, arrow_type(kind, decimal_scale)) for name, kind in columns])
        self._row_layout, self._widths = _row_layout(self._kinds)

    def decode(self, page: RawPage) -> pa.RecordBatch:
        """One record batch with all rows of the page."""
        arrays = self._as_table(page)
        if arrays is None:
            cells = _cells(page, len(self._kinds))
            width = len(self._kinds)
            arrays = [
                decode_cells(kind, cells[index::width], self._scale) for index, kind in enumerate(self._kinds)
            ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _as_table(self, page: RawPage) -> list[pa.Array] | None:
        layout = self._row_layout
        if layout is None or page.count * layout.itemsize != len(page.body) - page.at:
            return None
        rows = np.frombuffer(page.body, dtype=layout, count=page.count, offset=page.at)
        for index, width in enumerate(self._widths):
            if not (rows[f"length{index}"] == width).all():
                return None
        return [decode_fixed(kind, rows[f"value{index}"]) for index, kind in enumerate(self._kinds)]


def _row_layout(kinds: Sequence[CqlType]) -> tuple[Any, list[int]]:
    """The numpy type of a row without nulls, or None when some column's size varies; and the sizes."""
    fields: list[tuple[str, str]] = []
    widths: list[int] = []
    for index, kind in enumerate(kinds):
        layout = wire_layout(kind)
        if layout is None:
            return None, []
        fields += [(f"length{index}", ">i4"), (f"value{index}", layout)]
        widths.append(np.dtype(layout).itemsize)
    return np.dtype(fields), widths


def _cells(page: RawPage, columns: int) -> list[bytes | None]:
    """All cells of the page, row by row."""
    body, at = page.body, page.at
    cells: list[bytes | None] = []
    append = cells.append
    try:
        for _ in range(page.count * columns):
            length = unpack_int(body, at)[0]
            at += 4
            if length < 0:
                append(None)
            else:
                append(body[at : at + length])
                at += length
    except struct.error as error:
        raise ProtocolViolation(f"Malformed rows: {error}") from None
    if at != len(body):
        raise ProtocolViolation(f"{len(body) - at} bytes behind the last row")
    return cells
