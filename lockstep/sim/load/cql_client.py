"""A small CQL client on the runtime's network, for workloads inside a simulation.

Speaks protocol v4 over one connection, or v5 if asked to. Invariant: an answer is matched to its request by
stream id; when the connection ends, every open request ends with ConnectionError (outcome unknown).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode, uses_segments
from lockstep.cql.wire.frames import EnvelopeReader, encode_request
from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.cql.wire.segments import SegmentReader, encode_segments
from lockstep.runtime.ports import Runtime
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
            if uses_segments(version):
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
