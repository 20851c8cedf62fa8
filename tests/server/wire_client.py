"""A blocking socket that speaks the native protocol with this project's own codec, for tests of frames."""

from __future__ import annotations

import socket
from types import TracebackType

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import Envelope, EnvelopeReader, SegmentReader, encode_request, encode_segments
from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.values.ids import Consistency


class WireClient:
    """`version` 4 sends bare envelopes, 5 segments after `startup`."""

    def __init__(self, address: str, port: int, version: int = 4) -> None:
        self.version = version
        self.socket = socket.create_connection((address, port), timeout=10)
        self._reader = EnvelopeReader(responses=True)
        self._segments: SegmentReader | None = None
        self._received: list[Envelope] = []
        self._algorithm = ""

    def compress(self, algorithm: str) -> None:
        """Compress what is sent, before version 5, as was agreed."""
        self._algorithm = self._reader.algorithm = algorithm

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, opcode: int, body: bytes, stream: int = 0, flags: int = 0) -> None:
        envelope = encode_request(
            self.version,
            opcode,
            stream,
            body,
            flags,
            compress=bool(self._algorithm),
            algorithm=self._algorithm,
        )
        self.socket.sendall(encode_segments([envelope]) if self._segments is not None else envelope)

    def envelope(self) -> Envelope:
        """The next envelope; ConnectionError when the server closed instead."""
        while not self._received:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            if self._segments is not None:
                data = self._segments.feed(data)
            self._received += self._reader.feed(data)
        return self._received.pop(0)

    def response(self) -> wire.Response:
        found = self.envelope()
        return wire.decode_response(found.version, found.opcode, found.flags, found.body)

    def ask(self, opcode: int, body: bytes, stream: int = 0, flags: int = 0) -> wire.Body:
        self.send(opcode, body, stream, flags)
        return self.response().body

    def startup(self, **options: str) -> wire.Body:
        answer = self.ask(Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.0.0", **options}))
        if self.version == 5 and isinstance(answer, wire.Ready):
            self._segments = SegmentReader()
        return answer

    def log_in(self, name: str, password: str) -> wire.Body:
        return self.ask(Opcode.AUTH_RESPONSE, wire.auth_response(f"\0{name}\0{password}".encode()))

    def query(self, text: str, *values: Value, consistency: Consistency = Consistency.ONE) -> wire.Body:
        parameters = QueryParameters(consistency, tuple(values))
        return self.ask(Opcode.QUERY, wire.query(self.version, text, parameters))

    def is_closed(self) -> bool:
        """Whether the server ended the connection (waits for it)."""
        try:
            self.envelope()
        except ConnectionError:
            return True
        return False
