"""A small CQL client on the runtime's network, and a workload's requests through it, the door that drivers
use.

The client speaks protocol v4 over one connection, or v5 if asked to. Invariant: an answer is matched to its
request by stream id; when the connection ends, every open request ends with ConnectionError (outcome
unknown). Every statement is prepared on its connection and carries the request's timestamp; an answer means
the same as one from the simulator's own door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import USES_SEGMENTS, Opcode
from lockstep.cql.wire.frames import EnvelopeReader, SegmentReader, encode_request, encode_segments
from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.runtime.ports import Runtime
from lockstep.sim.door import KEYSPACE, Answer
from lockstep.sim.load.history import Change, Look, SeenRow
from lockstep.values.ids import Consistency

_VERSION = 4
_STREAMS_MAX = 1024


class CqlError(Exception):
    """An ERROR response: `code` is the protocol's."""

    def __init__(self, body: wire.ErrorResponse) -> None:
        super().__init__(f"{body.code:#06x}: {body.message}")
        self.body = body
        self.code = body.code
        self.details = body.details


class CqlClient(asyncio.Protocol):
    """`await CqlClient.connect(...)`; afterwards `query` and `execute`."""

    def __init__(self, version: int = _VERSION) -> None:
        self.version = version
        self._reader = EnvelopeReader(responses=True)
        self._segments: SegmentReader | None = None
        self._transport: asyncio.Transport | None = None
        self._open: dict[int, asyncio.Future[wire.Body]] = {}
        self._next_stream = 0
        self.closed = False

    @classmethod
    async def connect(
        cls, runtime: Runtime, host: str, port: int, timeout_ms: int, version: int = _VERSION
    ) -> CqlClient:
        """Connect and start up. OSError or TimeoutError when that fails."""
        async with asyncio.timeout(timeout_ms / 1000):
            _, protocol = await runtime.network.connect(host, port, lambda: cls(version))
            assert isinstance(protocol, cls)
            await protocol.request(Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.4.7"}))
            if version in USES_SEGMENTS:
                protocol._segments = SegmentReader()
        return protocol

    async def request(self, opcode: int, body: bytes) -> wire.Body:
        """The response's body; CqlError for an ERROR, ConnectionError when the connection ended."""
        if self.closed or self._transport is None:
            raise ConnectionError("the connection is closed")
        while self._next_stream in self._open:
            self._next_stream = (self._next_stream + 1) % _STREAMS_MAX
        stream = self._next_stream
        future: asyncio.Future[wire.Body] = asyncio.get_running_loop().create_future()
        self._open[stream] = future
        self._next_stream = (stream + 1) % _STREAMS_MAX
        data = encode_request(self.version, opcode, stream, body)
        self._transport.write(data if self._segments is None else encode_segments([data]))
        answer = await future
        if isinstance(answer, wire.ErrorResponse):
            raise CqlError(answer)
        return answer

    async def query(
        self, text: str, values: Sequence[Value] = (), consistency: Consistency = Consistency.QUORUM
    ) -> wire.Body:
        parameters = QueryParameters(consistency=consistency, values=tuple(values))
        return await self.request(Opcode.QUERY, wire.query(self.version, text, parameters))

    async def prepare(self, text: str) -> bytes:
        """The statement's id."""
        return (await self.prepared(text)).statement_id

    async def prepared(self, text: str) -> wire.PreparedResult:
        """All that is told of it."""
        answer = await self.request(Opcode.PREPARE, wire.prepare(self.version, text))
        assert isinstance(answer, wire.PreparedResult)
        return answer

    async def execute(
        self,
        statement_id: bytes,
        values: Sequence[Value],
        consistency: Consistency = Consistency.QUORUM,
        timestamp_us: int | None = None,
        serial: Consistency | None = None,
    ) -> wire.Body:
        parameters = QueryParameters(
            consistency=consistency,
            values=tuple(values),
            serial_consistency=serial,
            timestamp_us=timestamp_us,
        )
        return await self.request(Opcode.EXECUTE, wire.execute(self.version, statement_id, None, parameters))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = data if self._segments is None else self._segments.feed(data)
        for envelope in self._reader.feed(data):
            response = wire.decode_response(envelope.version, envelope.opcode, envelope.flags, envelope.body)
            future = self._open.pop(envelope.stream, None)
            if future is not None and not future.done():
                future.set_result(response.body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self.closed = True
        waiting, self._open = self._open, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection ended"))


CQL_PORT = 9042
#: Errors after which a request certainly has no effect: refused before anything was sent.
KNOWN_CODES = (0x1000, 0x1001, 0x1002, 0x2000, 0x2200, 0x2400, 0x2500)

Statement = tuple[str, list[Value]]


class CqlSession:
    """`ask` answers as DoorClient.ask does."""

    def __init__(self, client: CqlClient) -> None:
        self._client = client
        self._prepared: dict[str, bytes] = {}

    @classmethod
    async def connect(cls, runtime: Runtime, host: str, timeout_ms: int) -> CqlSession:
        """OSError or TimeoutError when the node does not answer."""
        try:
            return cls(await CqlClient.connect(runtime, host, CQL_PORT, timeout_ms))
        except CqlError as error:
            raise ConnectionError(str(error)) from error

    @property
    def closed(self) -> bool:
        return self._client.closed

    def close(self) -> None:
        self._client.close()

    async def ask(self, request: Change | Look) -> Answer:
        """ConnectionError when the connection ended: the outcome is unknown."""
        try:
            if isinstance(request, Change):
                text, values = change_statement(request)
                await self._execute(text, request, values, None)
                return Answer(0)
            return Answer(0, rows=await self._rows(request))
        except CqlError as error:
            if error.code == 0x2500:
                self._prepared.clear()
            return Answer(0, f"CQL_{error.code:#06x}", str(error), error.code in KNOWN_CODES)

    async def _rows(self, look: Look) -> tuple[SeenRow, ...]:
        text, values = look_statement(look)
        rows: list[SeenRow] = []
        state: bytes | None = None
        while True:
            answer = await self._execute(text, look, values, state)
            assert isinstance(answer, wire.RowsResult), answer
            for key, clustering, value in answer.rows:
                if key is not None and clustering is not None and value is not None:
                    rows.append((key, int.from_bytes(clustering, "big", signed=True), value))
            state = answer.metadata.paging_state
            if state is None:
                return tuple(rows)

    async def _execute(
        self, text: str, request: Change | Look, values: list[Value], state: bytes | None
    ) -> wire.Body:
        statement = self._prepared.get(text)
        if statement is None:
            statement = self._prepared[text] = await self._client.prepare(text)
        parameters = QueryParameters(
            consistency=request.consistency,
            values=tuple(values),
            page_size=request.page_rows if isinstance(request, Look) else None,
            paging_state=state,
        )
        return await self._client.request(Opcode.EXECUTE, wire.execute(_VERSION, statement, None, parameters))


def change_statement(change: Change) -> Statement:
    table = f"{KEYSPACE}.{change.table}"
    at = change.timestamp_us.to_bytes(8, "big", signed=True)
    if change.puts:
        insert = f"INSERT INTO {table} (pk, ck, v) VALUES (?, ?, ?)"
        if len(change.puts) == 1:
            clustering, value = change.puts[0]
            return f"{insert} USING TIMESTAMP ?", [change.key, _int(clustering), value, at]
        values: list[Value] = [at]
        for clustering, value in change.puts:
            values += [change.key, _int(clustering), value]
        inserts = "; ".join([insert] * len(change.puts))
        return f"BEGIN UNLOGGED BATCH USING TIMESTAMP ? {inserts}; APPLY BATCH", values
    delete = f"DELETE FROM {table} USING TIMESTAMP ? WHERE pk = ?"
    if change.delete_row is not None:
        return f"{delete} AND ck = ?", [at, change.key, _int(change.delete_row)]
    if change.delete_rows is not None:
        first, last = change.delete_rows
        return f"{delete} AND ck >= ? AND ck < ?", [at, change.key, _int(first), _int(last)]
    return delete, [at, change.key]


def look_statement(look: Look) -> Statement:
    select = f"SELECT pk, ck, v FROM {KEYSPACE}.{look.table}"
    if look.key is None:
        return select, []
    if look.clustering is None:
        return f"{select} WHERE pk = ?", [look.key]
    return f"{select} WHERE pk = ? AND ck = ?", [look.key, _int(look.clustering)]


def _int(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)
