"""A blocking CQL client for data jobs: one socket, many requests in flight, both protocol versions.

Owns: connections, and the idle ones a process keeps for its next task. Invariant: an envelope is handed
out with the stream its request got; a connection that failed, or was left with requests in flight, is
closed and never used again. Connections are not shared between threads.
"""

from __future__ import annotations

import functools
import select
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import (
    BATCH_UNLOGGED,
    ERROR_PROTOCOL,
    ERROR_READ_FAILURE,
    ERROR_READ_TIMEOUT,
    ERROR_UNAVAILABLE,
    ERROR_UNPREPARED,
    ERROR_WRITE_FAILURE,
    ERROR_WRITE_TIMEOUT,
    FLAG_PAYLOAD,
    USES_SEGMENTS,
    VERSION_4,
    VERSION_5,
    Opcode,
)
from lockstep.cql.wire.frames import Envelope, EnvelopeReader, SegmentReader, encode_request, encode_segments
from lockstep.cql.wire.messages import BatchStatement, QueryParameters, Value
from lockstep.cql.wire.primitives import bytes_map
from lockstep.values.errors import (
    BadCredentials,
    ConfigurationInvalid,
    InvalidRequest,
    LockstepError,
    Overloaded,
    PeerError,
    PeerTimeout,
    PeerUnreachable,
    ProtocolViolation,
    ReadFailure,
    ReadTimeout,
    RequestError,
    ServerFault,
    SyntaxError_,
    Unauthorized,
    Unavailable,
    Unprepared,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import SPARK_CONNECTIONS_IDLE_MAX, SPARK_REQUESTS_IN_FLIGHT_MAX

_RECEIVE_BYTES: Final = 256 * 1024
_BOOTSTRAPPING: Final = 0x1002
_PLAIN_ERRORS: Final = {
    0x0100: BadCredentials,
    0x1001: Overloaded,
    _BOOTSTRAPPING: Overloaded,
    0x2000: SyntaxError_,
    0x2100: Unauthorized,
    0x2200: InvalidRequest,
    0x2300: ConfigurationInvalid,
    ERROR_PROTOCOL: ProtocolViolation,
}


class Login(msgspec.Struct, frozen=True, order=True):
    """Who to be, if the server asks; `ca`: the PEM file of who signed the server's certificate, for TLS."""

    user: str = ""
    password: str = ""
    ca: str = ""

    def __repr__(self) -> str:
        return f"Login({self.user!r})"


class Endpoint(msgspec.Struct, frozen=True, order=True):
    host: str
    port: int
    login: Login = Login()


class Statement(msgspec.Struct, frozen=True):
    """A prepared statement of one connection; `bind` and `columns` name its markers and its results."""

    text: str
    id: bytes
    metadata_id: bytes | None
    bind: tuple[wire.ColumnSpec, ...]
    columns: tuple[wire.ColumnSpec, ...]


class CqlConnection:
    """One connection. `request`, `query` and `prepare` wait for their answer; `send` and `receive` do not.

    Every call raises PeerError when the connection fails or an answer is late; it is then closed.
    """

    def __init__(self, endpoint: Endpoint, version: int, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.version = version
        self.closed = False
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._envelopes = EnvelopeReader(responses=True)
        self._segments: SegmentReader | None = None
        self._received: deque[Envelope] = deque()
        self._free = list(range(SPARK_REQUESTS_IN_FLIGHT_MAX))
        self._statements: dict[str, Statement] = {}

    @classmethod
    def open(cls, endpoint: Endpoint, timeout_s: float) -> CqlConnection:
        """Connect and start up with version 5, or 4 where the server knows no newer one."""
        for version in (VERSION_5, VERSION_4):
            connection = cls(endpoint, version, timeout_s)
            connection._connect()
            body = connection.request(Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.4.7"}))
            if isinstance(body, wire.ErrorResponse):
                connection.close()
                if body.code == ERROR_PROTOCOL and version != VERSION_4:
                    continue
                raise error_of(body)
            if not isinstance(body, wire.Ready | wire.Authenticate):
                connection.close()
                raise ServerFault(f"{endpoint.host} answered STARTUP with {type(body).__name__}")
            if version in USES_SEGMENTS:
                connection._segments = SegmentReader()
            if isinstance(body, wire.Authenticate):
                connection._log_in()
            return connection
        raise AssertionError("version 4 either works or raises")

    def _log_in(self) -> None:
        """BadCredentials when the server does not let the user in."""
        login = self.endpoint.login
        token = f"\x00{login.user}\x00{login.password}".encode()
        body = self.request(Opcode.AUTH_RESPONSE, wire.auth_response(token))
        if not isinstance(body, wire.AuthSuccess):
            self.close()
            if isinstance(body, wire.ErrorResponse):
                raise error_of(body)
            raise ServerFault(f"{self.endpoint.host} answered a login with {type(body).__name__}")

    @property
    def in_flight(self) -> int:
        """Requests sent whose answers were not received."""
        return SPARK_REQUESTS_IN_FLIGHT_MAX - len(self._free)

    def send(self, opcode: int, body: bytes, flags: int = 0) -> int:
        """Send one request; returns its stream. At most SPARK_REQUESTS_IN_FLIGHT_MAX may be open."""
        assert self._free, "too many requests in flight"
        if self._socket is None:
            raise PeerUnreachable(f"the connection to {self.endpoint.host} is closed")
        stream = self._free.pop()
        data = encode_request(self.version, opcode, stream, body, flags)
        if self._segments is not None:
            data = encode_segments([data])
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._failed(error) from error
        return stream

    def receive(self) -> Envelope:
        """The next answer, of whichever request."""
        while not self._received:
            self._fill()
        envelope = self._received.popleft()
        self._free.append(envelope.stream)
        return envelope

    def request(self, opcode: int, body: bytes) -> wire.Body:
        """One request and its answer, an ErrorResponse included; nothing else may be in flight."""
        assert self.in_flight == 0, "answers of other requests would be mixed up"
        self.send(opcode, body)
        envelope = self.receive()
        return wire.decode_response(envelope.version, envelope.opcode, envelope.flags, envelope.body).body

    def query(
        self, text: str, values: Sequence[Value] = (), consistency: Consistency = Consistency.ONE
    ) -> list[dict[str, object]]:
        """All rows as column -> value (see schema.types for the shapes), for results of one page."""
        parameters = QueryParameters(consistency=consistency, values=tuple(values))
        answer = self.request(Opcode.QUERY, wire.query(self.version, text, parameters))
        if isinstance(answer, wire.ErrorResponse):
            raise error_of(answer)
        if not isinstance(answer, wire.RowsResult):
            return []
        columns = answer.metadata.columns
        return [
            {
                column.name: None if cell is None else column.type.deserialize(cell)
                for column, cell in zip(columns, row, strict=True)
            }
            for row in answer.rows
        ]

    def asked(self, text: str, payload: Mapping[str, bytes | None]) -> Mapping[str, bytes | None]:
        """The custom payload of the answer to a statement that brings one."""
        assert self.in_flight == 0, "answers of other requests would be mixed up"
        query = wire.query(self.version, text, QueryParameters(Consistency.ONE))
        self.send(Opcode.QUERY, bytes_map(payload) + query, FLAG_PAYLOAD)
        envelope = self.receive()
        answer = wire.decode_response(envelope.version, envelope.opcode, envelope.flags, envelope.body)
        if isinstance(answer.body, wire.ErrorResponse):
            raise error_of(answer.body)
        return answer.payload or {}

    def knows(self, text: str) -> bool:
        """Whether a statement is prepared here."""
        return text in self._statements

    def prepare(self, text: str) -> Statement:
        """The statement, prepared once a connection."""
        known = self._statements.get(text)
        if known is not None:
            return known
        answer = self.request(Opcode.PREPARE, wire.prepare(self.version, text))
        if isinstance(answer, wire.ErrorResponse):
            raise error_of(answer)
        if not isinstance(answer, wire.PreparedResult):
            raise ServerFault(f"{self.endpoint.host} answered PREPARE with {type(answer).__name__}")
        statement = Statement(
            text, answer.statement_id, answer.result_metadata_id, answer.bind, answer.result.columns
        )
        self._statements[text] = statement
        return statement

    def execute(self, statement: Statement, parameters: QueryParameters) -> int:
        """Send EXECUTE; returns its stream."""
        body = wire.execute(self.version, statement.id, statement.metadata_id, parameters)
        return self.send(Opcode.EXECUTE, body)

    def execute_batch(
        self, statement: Statement, rows: Sequence[tuple[Value, ...]], parameters: QueryParameters
    ) -> int:
        """Send an unlogged BATCH of the statement with each of these values; returns its stream."""
        entries = [BatchStatement(statement.id, values) for values in rows]
        return self.send(Opcode.BATCH, wire.batch(self.version, BATCH_UNLOGGED, entries, parameters))

    @property
    def has_answer(self) -> bool:
        """Whether `receive` returns without waiting for the network."""
        return bool(self._received)

    def close(self) -> None:
        self.closed = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def transport(self) -> socket.socket:
        """PeerUnreachable when it is closed."""
        if self._socket is None:
            raise PeerUnreachable(f"the connection to {self.endpoint.host} is closed")
        return self._socket

    def is_quiet(self) -> bool:
        """Whether the connection is open, idle and has nothing to read (not even its end)."""
        if self._socket is None or self.in_flight or self._received:
            return False
        readable, _, _ = select.select([self._socket], [], [], 0)
        return not readable

    def _connect(self) -> None:
        try:
            self._socket = socket.create_connection(
                (self.endpoint.host, self.endpoint.port), timeout=self._timeout_s
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.endpoint.login.ca:
                self._socket = encrypted(self._socket, self.endpoint.login.ca)
        except OSError as error:
            self.close()
            raise PeerUnreachable(
                f"{self.endpoint.host}:{self.endpoint.port} cannot be reached: {error}"
            ) from error

    def _fill(self) -> None:
        if self._socket is None:
            raise PeerUnreachable(f"the connection to {self.endpoint.host} is closed")
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise self._failed(error) from error
        if not data:
            raise self._failed(ConnectionResetError("the other side closed the connection"))
        try:
            if self._segments is not None:
                data = self._segments.feed(data)
            if data:
                self._received.extend(self._envelopes.feed(data))
        except ProtocolViolation as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> PeerError:
        self.close()
        if isinstance(error, TimeoutError):
            return PeerTimeout(f"{self.endpoint.host} did not answer within {self._timeout_s:g} s")
        return PeerUnreachable(f"the connection to {self.endpoint.host}:{self.endpoint.port} failed: {error}")


def encrypted(plain: socket.socket, ca: str) -> socket.socket:
    """OSError when the certificate is not one that `ca` signed; which node it names is not looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ca)
    return context.wrap_socket(plain)


def first_to_answer(connections: Sequence[CqlConnection], timeout_s: float) -> CqlConnection:
    """One of these, each with requests in flight, that has an answer, or whose end has come; after the time
    the first of them, whose `receive` then says what is late."""
    for connection in connections:
        if connection.has_answer or connection.closed:
            return connection
    sockets = {connection.transport: connection for connection in connections}
    for socket_ in sockets:
        if isinstance(socket_, ssl.SSLSocket) and socket_.pending():
            return sockets[socket_]
    readable, _, _ = select.select(list(sockets), [], [], timeout_s)
    return sockets[readable[0]] if readable else connections[0]


class ConnectionPool:
    """Idle connections of one process, by endpoint: a task takes one and gives it back."""

    def __init__(self) -> None:
        self._idle: dict[Endpoint, list[CqlConnection]] = {}

    def take(self, endpoint: Endpoint, timeout_s: float) -> CqlConnection:
        """An idle connection, or a new one. Raises PeerError."""
        idle = self._idle.get(endpoint, [])
        while idle:
            connection = idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()
        return CqlConnection.open(endpoint, timeout_s)

    def give_back(self, connection: CqlConnection) -> None:
        """Keep a connection for the next task; one with requests in flight is closed."""
        idle = self._idle.setdefault(connection.endpoint, [])
        if connection.closed or connection.in_flight or len(idle) >= SPARK_CONNECTIONS_IDLE_MAX:
            connection.close()
        else:
            idle.append(connection)

    def close(self) -> None:
        """Close every idle connection; the pool may be used again."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()


@functools.cache
def pool_of(process_id: int) -> ConnectionPool:
    """The pool of this process. Spark forks its workers, and a forked socket must not be used twice."""
    return ConnectionPool()


def error_of(body: wire.ErrorResponse) -> RequestError:
    """The error that an ERROR response stands for."""
    details = msgspec.convert(body.details, _Details, strict=False)
    plain = _PLAIN_ERRORS.get(body.code)
    if plain is not None:
        return plain(body.message)
    if body.code == ERROR_UNPREPARED:
        return Unprepared(details.statement_id)
    if body.code == ERROR_UNAVAILABLE:
        return Unavailable(details.consistency, details.required, details.alive)
    if body.code == ERROR_READ_TIMEOUT:
        return ReadTimeout(details.consistency, details.received, details.required, details.data_present)
    if body.code == ERROR_WRITE_TIMEOUT:
        return WriteTimeout(details.consistency, details.received, details.required, details.write_type)
    counts = (details.consistency, details.received, details.required, details.failures)
    if body.code == ERROR_READ_FAILURE:
        return ReadFailure(*counts, details.data_present, details.reasons)
    if body.code == ERROR_WRITE_FAILURE:
        return WriteFailure(*counts, details.write_type, details.reasons)
    return ServerFault(f"{body.code:#06x}: {body.message}")


class _Details(msgspec.Struct, frozen=True):
    """What the protocol's errors add, all together."""

    consistency: int = 0
    required: int = 0
    alive: int = 0
    received: int = 0
    failures: int = 0
    data_present: bool = False
    write_type: str = ""
    reasons: tuple[tuple[str, int], ...] = ()
    statement_id: bytes = b""


def may_retry(error: LockstepError) -> bool:
    """Whether another host, or the same one a little later, may answer an idempotent request."""
    return error.retriable or isinstance(error, ServerFault | ReadFailure | WriteFailure)
