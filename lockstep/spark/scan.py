"""Reads pages of rows from the nodes that hold them, and turns them into Arrow batches.

Owns: the choice of hosts, retries, and continuing where a page ended.

Invariant: each page is given out once: a page counts when it has arrived whole, and any host continues behind
it, because a paging state means the same everywhere. While a page is decoded the next one is already asked
for. A batch has the given schema and as many rows as the page says; bytes that do not add up raise
ProtocolViolation. Cells of fixed-size columns are not touched one by one unless some are missing.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

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
from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.cql.wire.primitives import unpack_int
from lockstep.cql.wire.type_options import read_type
from lockstep.scans.arrow_columns import arrow_type, decode_cells, decode_fixed, wire_layout
from lockstep.schema.types import CqlType
from lockstep.spark.cql_client import ConnectionPool, CqlConnection, Endpoint, Statement, error_of
from lockstep.spark.options import Options
from lockstep.spark.retrying import Retry
from lockstep.spark.ring import Ring, ask_any, read_ring
from lockstep.values.errors import LockstepError, PeerError, ProtocolViolation, Unprepared


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
    """Decodes pages of one projection; made once a task.

    A row is runs of fixed-size columns, each run ended by one column of varying size (or by the row's
    end). Runs are taken as tables, on the assumption that none of their cells is missing; their lengths
    prove it or the page is decoded cell by cell.
    """

    def __init__(self, columns: Sequence[tuple[str, CqlType]], decimal_scale: int) -> None:
        self._kinds = [kind for _, kind in columns]
        self._scale = decimal_scale
        self.schema = pa.schema([pa.field(name, arrow_type(kind, decimal_scale)) for name, kind in columns])
        self._varying = [index for index, kind in enumerate(self._kinds) if wire_layout(kind) is None]
        bounds = [-1, *self._varying, len(self._kinds)]
        self._runs = [_Run(self._kinds, range(before + 1, end)) for before, end in itertools.pairwise(bounds)]

    def decode(self, page: RawPage) -> pa.RecordBatch:
        """One record batch with all rows of the page."""
        arrays = self._by_runs(page)
        if arrays is None:
            width = len(self._kinds)
            cells = _cells(page, width)
            arrays = [
                decode_cells(kind, cells[index::width], self._scale) for index, kind in enumerate(self._kinds)
            ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _by_runs(self, page: RawPage) -> list[pa.Array] | None:
        """The columns, or None when a cell of a fixed-size column is missing."""
        walked = self._walk(page)
        if walked is None:
            return None
        starts, cells = walked
        arrays: dict[int, pa.Array] = {}
        octets = np.frombuffer(page.body, dtype="u1")
        for number, run in enumerate(self._runs):
            if not run.taken(octets, starts[:, number], arrays):
                return None
        varying = self._varying
        for number, index in enumerate(varying):
            arrays[index] = decode_cells(self._kinds[index], cells[number :: len(varying)], self._scale)
        return [arrays[index] for index in range(len(self._kinds))]

    def _walk(self, page: RawPage) -> tuple[Any, list[bytes | None]] | None:
        """Offsets of every row's runs, and the cells of varying size row by row."""
        body, at = page.body, page.at
        *skips, tail = [run.bytes for run in self._runs]
        if not skips:
            starts = at + np.arange(page.count, dtype="i8") * tail
            return (starts.reshape(-1, 1), []) if at + page.count * tail == len(body) else None
        marks: list[int] = []
        cells: list[bytes | None] = []
        try:
            for _ in range(page.count):
                for skip in skips:
                    marks.append(at)
                    at += skip
                    length = unpack_int(body, at)[0]
                    at += 4
                    if length < 0:
                        cells.append(None)
                    else:
                        cells.append(body[at : at + length])
                        at += length
                marks.append(at)
                at += tail
        except struct.error:
            return None
        if at != len(body):
            return None
        return np.array(marks, dtype="i8").reshape(-1, len(self._runs)), cells


class _Run:
    """Neighbouring columns of fixed size; `bytes` with their lengths, when none is missing."""

    def __init__(self, kinds: Sequence[CqlType], columns: range) -> None:
        fields: list[tuple[str, str]] = []
        self._columns = []
        for index in columns:
            layout = wire_layout(kinds[index])
            assert layout is not None, "a run holds columns of fixed size"
            fields += [(f"length{index}", ">i4"), (f"value{index}", layout)]
            self._columns.append((index, kinds[index], np.dtype(layout).itemsize))
        self._layout = np.dtype(fields)
        self.bytes = self._layout.itemsize

    def taken(self, octets: Any, starts: Any, arrays: dict[int, pa.Array]) -> bool:
        """Put the run's columns into `arrays`; False when a cell is missing."""
        if not self._columns:
            return True
        gathered = octets[starts[:, None] + np.arange(self.bytes)]
        rows = gathered.view(self._layout).reshape(len(starts))
        for index, kind, width in self._columns:
            if not (rows[f"length{index}"] == width).all():
                return False
            arrays[index] = decode_fixed(kind, rows[f"value{index}"])
        return True


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


Answer = TypeVar("Answer")


class Hosts:
    """The hosts of a cluster as one task sees them: who to ask for a token, and who failed just now."""

    def __init__(self, options: Options, pool: ConnectionPool) -> None:
        self.pool = pool
        self._options = options
        self._failed: dict[str, None] = {}
        self._ring: Ring = self._read(options.endpoints)

    @property
    def ring(self) -> Ring:
        return self._ring

    def order(self, token: int, turn: int) -> list[Endpoint]:
        """All hosts: replicas of the token first (rotated by `turn`), those that failed last."""
        replicas = self._ring.replicas(token)
        first = replicas[turn % len(replicas) :] + replicas[: turn % len(replicas)] if replicas else ()
        others = (host.address for host in self._ring.hosts)
        known = dict.fromkeys((*first, *others, *self._options.hosts))
        calm = [host for host in known if host not in self._failed]
        return [self._options.endpoint(host) for host in (*calm, *self._failed)]

    def failed(self, host: str) -> None:
        """Ask that host last from now on, and look at the ring again: it may have changed."""
        self._failed.pop(host, None)
        self._failed[host] = None
        if len(self._failed) >= len(self._ring.hosts):
            self._failed = {host: None}
        with contextlib.suppress(PeerError):
            self._ring = self._read([endpoint for endpoint in self.order(0, 0) if endpoint.host != host])

    def _read(self, endpoints: Sequence[Endpoint]) -> Ring:
        return ask_any(
            self.pool,
            endpoints,
            self._options.timeout_s,
            lambda connection: read_ring(connection, self._options.keyspace),
        )


class StatementReader:
    """Reads one SELECT for many sets of bound values (token ranges, or keys)."""

    def __init__(self, text: str, columns: int, options: Options, hosts: Hosts, turn: int) -> None:
        self._text = text
        self._columns = columns
        self._options = options
        self._hosts = hosts
        self._turn = turn
        self._connection: CqlConnection | None = None

    def pages(self, values: tuple[Value, ...], token: int) -> Iterator[RawPage]:
        """Pages of the rows that `values` select; `token` says whose replicas to prefer.

        Raises the last RequestError or PeerError when attempts run out.
        """
        state: bytes | None = None
        more = True
        retry = Retry()
        try:
            while more:
                host = ""
                try:
                    endpoint = self._hosts.order(token, self._turn)[0]
                    host = endpoint.host
                    connection = self._connected(endpoint)
                    statement = connection.prepare(self._text)
                    self._ask(connection, statement, values, state)
                    while more:
                        page = raw_page(connection.receive(), self._columns)
                        state, more = page.paging_state, page.paging_state is not None
                        if more:
                            self._ask(connection, statement, values, state)
                        retry.succeeded()
                        yield page
                except LockstepError as error:
                    # A new connection also prepares the statement anew.
                    self._drop()
                    retry.failed(error)
                    if not isinstance(error, Unprepared):
                        self._hosts.failed(host)
        finally:
            self._release()

    def _connected(self, endpoint: Endpoint) -> CqlConnection:
        if self._connection is None or self._connection.endpoint != endpoint:
            self._release()
            self._connection = self._hosts.pool.take(endpoint, self._options.timeout_s)
        return self._connection

    def _ask(
        self, connection: CqlConnection, statement: Statement, values: tuple[Value, ...], state: bytes | None
    ) -> None:
        parameters = QueryParameters(
            consistency=self._options.consistency,
            values=values,
            skip_metadata=True,
            page_size=self._options.page_rows,
            paging_state=state,
        )
        connection.execute(statement, parameters)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _release(self) -> None:
        if self._connection is not None:
            self._hosts.pool.give_back(self._connection)
            self._connection = None
