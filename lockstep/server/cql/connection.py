"""One CQL connection: who the client is, bytes to requests, answers to bytes, and the hot path of prepared
writes of one partition, which need neither a task nor a future.

Invariant: answers of one loop turn leave in one write; reading stops while too much is in flight or the
client does not read; a damaged stream closes this connection and no other; whatever a handler raises is
answered on its stream, and the connection stays usable. Each write that was taken is answered once. Writes
that one read brought are all bound before the first of them begins, and all sent before the first is applied
here: an interpreter that does the same for many in a row is several times as fast as one that takes each
through everything. Until a client is logged in nothing else is answered.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Final, cast

import msgspec

from lockstep.coordination.writes import Begun
from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import (
    EVENT_STREAM,
    FLAG_PAYLOAD,
    FLAG_TRACING,
    HAS_WARNINGS,
    USES_SEGMENTS,
    VERSION_4,
    VERSION_MAX,
    Opcode,
)
from lockstep.cql.wire.frames import (
    LZ4,
    Envelope,
    EnvelopeReader,
    EnvelopeRefused,
    SegmentReader,
)
from lockstep.cql.wire.messages import (
    AuthResponse,
    Batch,
    Execute,
    Load,
    Options,
    Prepare,
    Query,
    Register,
    Request,
    Startup,
    custom_payload,
    decode_request,
)
from lockstep.runtime.ports import Runtime
from lockstep.server.auth.authentication import AUTHENTICATOR, Authentication, Login
from lockstep.server.auth.permits import Session
from lockstep.server.cql.backpressure import Backpressure, NodeLoad, NodeResponses, Responses
from lockstep.server.cql.buffers import ReadBuffer, WriteBuffer
from lockstep.server.cql.handshake import SUPPORTED, endpoint_of, startup_options
from lockstep.server.cql.loop_budget import LoopBudget, work_of_texts
from lockstep.server.log import Audit
from lockstep.server.metrics.latencies import WRITE, Latencies, Latency
from lockstep.server.statements.execution import Answer, Executor
from lockstep.server.statements.tablet_routing import TABLETS_ROUTING, TabletRouting
from lockstep.server.statements.tracing import PayloadNotes, Trace, answered_payload, carry, notes_for
from lockstep.server.statements.user_functions import is_long
from lockstep.values.errors import ColumnsGone, InvalidRequest, LockstepError, ProtocolViolation, ServerFault
from lockstep.values.limits import (
    CQL_BYTES_A_STATEMENT,
    CQL_CONNECTIONS_MAX,
    CQL_FRAME_BYTES_MAX,
    CQL_GOODBYE_MS,
)
from lockstep.values.node_limits import HANDSHAKE_FRAME_BYTES_MAX, LOGIN_MS_MAX


class DirectWrites:
    """Of one connection. Inside `with` writes are gathered; they begin at its end."""

    def __init__(
        self, connection: CqlConnection, flow: Backpressure, executor: Executor, latencies: Latencies
    ) -> None:
        self._connection = connection
        self._flow = flow
        self._executor = executor
        self._latencies = latencies
        self._gathers = False
        self._gathered: list[Begun] = []

    def __enter__(self) -> None:
        self._gathers = True

    def __exit__(self, *_: object) -> None:
        self._gathers = False
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._executor.begin_writes(gathered)

    def take(self, session: Session, stream: int, request: Execute, size: int) -> bool:
        """False when the request is no such write; it is counted as in flight then, too.

        Raises what is known before anything was sent; it is not counted then."""
        self._flow.begin(size)
        try:
            mutation = self._executor.plan_write(session, request, size)
        except BaseException:
            self._flow.end(size)
            raise
        if mutation is None:
            return False
        level, latencies = request.parameters.consistency, self._latencies
        told = _Written(
            self._connection, stream, request, size, latencies, latencies.of_write(level), latencies.now_s()
        )
        write = Begun(mutation, level, told)
        if self._gathers:
            self._gathered.append(write)
        else:
            self._executor.begin_writes((write,))
        return True


class _Written(msgspec.Struct, eq=False):
    """Answers one write when it has ended."""

    _connection: CqlConnection
    _stream: int
    _request: Execute
    _size: int
    _latencies: Latencies
    _latency: Latency
    _began_s: float

    def __call__(self, error: LockstepError | None) -> None:
        connection = self._connection
        try:
            if isinstance(error, InvalidRequest):
                begun = isinstance(error, ColumnsGone) and error.begun
                connection.again(self._stream, self._request, self._size, begun, self._began_s)
                return
            self._latency.note(self._latencies.now_s() - self._began_s)
            if error is not None:
                self._latencies.failed(WRITE, error)
            connection.written(self._stream, self._request, error)
            connection.ended(self._size)
        except Exception as defect:
            # Whoever calls this has other writes to tell.
            connection.broken(defect)


_RESULT: Final = int(Opcode.RESULT)
_ERROR: Final = int(Opcode.ERROR)
_EXECUTE: Final = int(Opcode.EXECUTE)
_TRACING_WARNING: Final = "Tracing is not possible now: the request was executed without it"


class _Given(msgspec.Struct, eq=False):
    """A request that is run; `began_s`: when it was read. See `CqlConnection._spawn` for the others."""

    session: Session
    stream: int
    request: Request
    size: int
    traced: bool
    begun: bool
    notes: PayloadNotes | None
    began_s: float


class CqlConnection(asyncio.Protocol):
    """A connection of the server's CQL port. `session` is None until STARTUP was answered and the client has
    logged in where it must; `_login` is there while it must."""

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._reader = EnvelopeReader(bytes_max=HANDSHAKE_FRAME_BYTES_MAX)
        self._segments: SegmentReader | None = None
        self._transport: asyncio.Transport | None = None
        self._version = VERSION_4
        self._outbox = WriteBuffer()
        self._send, self._flush = self._outbox.send, self._outbox.flush
        self._flow = Backpressure(server.load)
        self._turns = server.turns
        self.responses = Responses(server.responses, self._outbox, lambda why: server.close_unread(self, why))
        shed, ended = self._outbox.refuse_late, self._end_if_answered
        self._intake = ReadBuffer(server.turns, self._flow, self.responses, self._received, shed, ended)
        self._writes = DirectWrites(self, self._flow, server.executor, server.latencies)
        self._finishing = self._ended = False  # Ended: what is read is dropped.
        self.session: Session | None = None
        self._login: Login | None = None
        #: None unless the client asks to be told of tablets.
        self._routing: TabletRouting | None = None
        self.events: frozenset[str] = frozenset()
        self.peer = ("", 0)
        self.options: dict[str, str] = {}
        self.requests_served = 0

    @property
    def version(self) -> int:
        """The protocol version that the client speaks."""
        return self._version

    # -- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio's without deriving from it.
        self._transport = self._outbox.transport = cast(asyncio.Transport, transport)
        self._flow.transport = self._transport
        self.peer = endpoint_of(transport.get_extra_info("peername"))
        if not self._server.opened(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._outbox.lost()
        self._intake.lost()
        self._flow.lost()
        self.responses.lost()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self.responses.pause()
        self._flow.client_reads(False)

    def resume_writing(self) -> None:
        self.responses.resume()
        self._intake.resume()
        self._flow.client_reads(True)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._ended:
            return
        try:
            if self._segments is not None:
                data = self._segments.feed(data)
                if not data:
                    return
            envelopes = self._reader.feed(data)
            with self._writes:
                self._intake.take(envelopes)
        except EnvelopeRefused as refused:
            version = self._version if self.session is not None else VERSION_MAX
            self._outbox.error(refused.stream, refused, version)
            self._close()
        except ProtocolViolation as damage:
            # A damaged segment says nothing that can be trusted, not even a stream to answer on.
            if self._segments is None:
                self._outbox.error(0, damage)
            self._close()
        self._flow.regulate()

    # -- requests ---------------------------------------------------------------------------------

    def _received(self, envelope: Envelope) -> None:
        stream = envelope.stream
        try:
            if stream < 0:
                raise ProtocolViolation(f"Stream {stream} is the server's")
            request = decode_request(
                envelope.version, envelope.opcode, envelope.flags & ~FLAG_TRACING, envelope.body
            )
            self._turns.begun(1 + len(envelope.body) // CQL_BYTES_A_STATEMENT)
            if self.session is None:
                self._handshake(envelope.version, stream, request)
            elif envelope.opcode == _EXECUTE and not envelope.flags & (FLAG_TRACING | FLAG_PAYLOAD):
                assert isinstance(request, Execute)
                if not self._writes.take(self.session, stream, request, len(envelope.body)):
                    self._spawn(self.session, stream, request, len(envelope.body))
            else:
                self._dispatch(self.session, envelope, request)
        except LockstepError as error:
            self._outbox.error(stream, error, envelope.version)
        except Exception as error:
            self._fault(stream, error, version=envelope.version)

    def _handshake(self, version: int, stream: int, request: Request) -> None:
        if isinstance(request, Options):
            self._send(int(Opcode.SUPPORTED), stream, SUPPORTED, version=version)
            return
        if self._login is not None:
            self._login.take(stream, request)
            return
        self.options = startup_options(version, request)
        self._version = self._reader.version = self._outbox.version = version
        authentication = self._server.authentication
        if authentication is None:
            self._send(int(Opcode.READY), stream, responses.READY)
            self._begin_session(Session(version))
        else:
            self._send(int(Opcode.AUTHENTICATE), stream, responses.authenticate(AUTHENTICATOR))
            self._login = Login(authentication, self.peer[0], self._server.runtime.tasks, self._logged_in)
        self._flush()
        algorithm = self.options.get("COMPRESSION", "").lower()
        self._reader.algorithm = self._outbox.algorithm = algorithm or LZ4
        compressed = self._outbox.compressed = bool(algorithm)
        if TABLETS_ROUTING in self.options:
            self._routing = self._server.executor.tablet_routing()
        self._flow.throws = self.options.get("THROW_ON_OVERLOAD") == "1"
        if version in USES_SEGMENTS:
            if self._reader.pending_bytes:
                raise ProtocolViolation("Bytes behind STARTUP before it was answered")
            self._segments = SegmentReader(compressed=compressed)
            self._outbox.segmented = True

    def _begin_session(self, session: Session) -> None:
        self.session = session
        session.responses = self.responses
        self._reader.bytes_max = CQL_FRAME_BYTES_MAX

    def _logged_in(self, stream: int, role: str, error: Exception | None) -> None:
        self._login = None
        if error is None:
            self._begin_session(Session(self._version, user=role))
            self._send(int(Opcode.AUTH_SUCCESS), stream, responses.auth_success())
            self._end_if_answered()
            return
        if isinstance(error, LockstepError):
            self._server.audit.login_failed(role, self.peer[0], error.code, error.message)
            self._outbox.error(stream, error)
        else:
            self._fault(stream, error)
        self._close()

    def _dispatch(self, session: Session, envelope: Envelope, request: Request) -> None:
        stream = envelope.stream
        self._turns.begun(work_of_texts(request))
        if isinstance(request, Options):
            self._send(int(Opcode.SUPPORTED), stream, SUPPORTED)
        elif isinstance(request, Register):
            self.events |= frozenset(request.event_types)
            self._send(int(Opcode.READY), stream, responses.READY)
        elif isinstance(request, Startup):
            raise ProtocolViolation("Unexpected message STARTUP: this connection has started already")
        elif isinstance(request, AuthResponse):
            raise ProtocolViolation("Unexpected message AUTH_RESPONSE: no authentication was asked for")
        elif isinstance(request, Load):
            self._flow.begin(len(envelope.body))
            self._server.runtime.tasks.spawn(
                self._load(session, stream, request, len(envelope.body)), "cql.load"
            )
        elif isinstance(request, Prepare) and not is_long(request.text):
            self._answer(stream, self._server.executor.prepare(session, request))
        else:
            self._flow.begin(len(envelope.body))
            traced = bool(envelope.flags & FLAG_TRACING) and not isinstance(request, Prepare)
            payload = custom_payload(envelope.flags, envelope.body)
            mirror = self._server.mirrors_payloads
            notes = notes_for(payload, mirror=mirror) if self._version in HAS_WARNINGS else None
            if isinstance(request, Batch):
                self._turns.batch_begun(len(request.statements))
            self._spawn(session, stream, request, len(envelope.body), traced, notes=notes)

    def again(self, stream: int, request: Execute, size: int, begun: bool, began_s: float) -> None:
        """Run a request whose table was emptied, dropped or lost columns meanwhile: under the present schema
        it reaches the table, or is refused for what it is. `begun`: as in `Executor.run`; `began_s`: when it
        was read."""
        assert self.session is not None
        self._spawn(self.session, stream, request, size, begun=begun, began_s=began_s)

    def _spawn(
        self,
        session: Session,
        stream: int,
        request: Request,
        size: int,
        traced: bool = False,
        begun: bool = False,
        notes: PayloadNotes | None = None,
        began_s: float = 0.0,
    ) -> None:
        """Run a request that is counted as in flight. With `notes` its answer has a payload."""
        began_s = began_s or self._server.latencies.now_s()
        given = _Given(session, stream, request, size, traced, begun, notes, began_s)
        self._server.runtime.tasks.spawn(self._run(given), "cql.request")

    async def _run(self, given: _Given) -> None:
        executor, stream, request, notes = self._server.executor, given.stream, given.request, given.notes
        trace: Trace | None = None
        failure: Exception | None = None
        try:
            carry(notes)
            if given.traced:
                trace = await executor.tracer.begin(request, self.peer[0])
            if trace is not None:
                answer = await executor.run_traced(given.session, request, trace)
                self._answer(stream, answer, trace.id, notes, request)
                return
            answer = await executor.run(given.session, request, begun=given.begun)
            warned = Answer(answer.body, (*answer.warnings, _TRACING_WARNING)) if given.traced else answer
            self._answer(stream, warned, None, notes, request)
        except LockstepError as error:
            failure = error
            body = responses.error(self._version, error)
            trace_id = trace.id if trace is not None else None
            flags, body = responses.with_prefix(body, trace_id=trace_id, payload=answered_payload(notes))
            self._send(_ERROR, stream, body, flags)
        except Exception as error:
            failure = error
            self._fault(stream, error)
        finally:
            assert isinstance(request, Query | Execute | Batch), "the others are answered at once"
            self._server.latencies.ended(request.parameters.consistency, given.began_s, failure)
            if isinstance(request, Batch):
                self._turns.batch_ended(len(request.statements))
            self.ended(given.size)

    async def _load(self, session: Session, stream: int, request: Load, size: int) -> None:
        try:
            body = await self._server.executor.loads.answer(session, request.body, self.peer[0])
            self._send(int(Opcode.LOADED), stream, body)
        except LockstepError as error:
            self._outbox.error(stream, error)
        except Exception as error:
            self._fault(stream, error)
        finally:
            self.ended(size)

    def ended(self, size: int) -> None:
        """A request of `size` bytes has its answer."""
        self._flow.end(size)
        self.requests_served += 1
        if self._finishing:
            self._end_if_answered()

    def written(self, stream: int, request: Execute, error: LockstepError | None) -> None:
        """A write that ran without a task ended."""
        if error is not None:
            self._outbox.error(stream, error)
        elif self._routing is None:
            self._send(_RESULT, stream, responses.VOID)
        else:
            self._outbox.result(stream, responses.VOID, (), None, self._routing.payload(request))

    def broken(self, defect: Exception) -> None:
        """An answer could not be given: report it, and let the client see a lost connection."""
        self._server.fault(defect)
        self.abort()

    def _fault(self, stream: int, error: BaseException, version: int = 0) -> None:
        self._outbox.error(stream, self._server.fault(error), version)

    # -- answers ----------------------------------------------------------------------------------

    def _answer(
        self,
        stream: int,
        answer: Answer,
        trace_id: bytes | None = None,
        notes: PayloadNotes | None = None,
        request: Request | None = None,
    ) -> None:
        payload = answered_payload(notes)
        if self._routing is not None and isinstance(request, Execute):
            routed = self._routing.payload(request)
            payload = {**(payload or {}), **routed} if routed is not None else payload
        self._outbox.result(stream, answer.body, answer.warnings, trace_id, payload)

    def send_event(self, body: bytes) -> None:
        """An EVENT; the caller has looked at `events`."""
        self._send(int(Opcode.EVENT), EVENT_STREAM, body)

    # -- the end ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begin nothing that is read from now on."""
        self._intake.refuse(self._outbox.refuse_drained)

    def finish(self) -> None:
        """End, after `drain`, as soon as everything that was begun is answered."""
        self._finishing = True
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if not self._finishing or self._ended or self._flow.requests or self._intake:
            return
        if self._login is not None and self._login.busy:
            return
        if self._outbox.half_close():
            self._ended = True
            asyncio.get_running_loop().call_later(CQL_GOODBYE_MS / 1000, self.abort)
        else:
            self._close()

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        self._flush()
        self._ended = True
        if self._transport is not None:
            self._transport.close()


class Connections:
    """All connections of one server, and what they share."""

    def __init__(
        self,
        runtime: Runtime,
        log: Callable[..., None],
        executor: Executor,
        authentication: Authentication | None,
        audit: Audit,
        mirrors_payloads: bool,
    ) -> None:
        self.runtime = runtime
        self._log = log
        self.executor = executor
        self.authentication = authentication
        self.audit = audit
        self.mirrors_payloads = mirrors_payloads
        self.connections: dict[CqlConnection, None] = {}
        #: When a connection must have logged in.
        self._login_due: dict[CqlConnection, asyncio.TimerHandle] = {}
        self.load = NodeLoad()
        self.responses = NodeResponses(runtime.clock)
        self.turns = LoopBudget(self.load, runtime.clock)
        self.latencies = Latencies(runtime.clock.monotonic_s)
        #: No other connection is taken.
        self.full = False
        self.connections_refused = 0
        self.faults = 0
        self.requests_served = 0
        self._finishing: dict[CqlConnection, None] = {}
        #: Set when all have ended that `finish` has told to.
        self.finished = asyncio.Event()

    def opened(self, connection: CqlConnection) -> bool:
        """False when there is no room for another connection."""
        if self.full or len(self.connections) >= CQL_CONNECTIONS_MAX:
            self.connections_refused += 1
            return False
        self.connections[connection] = None
        if self.authentication is not None:
            loop = asyncio.get_running_loop()
            due = loop.call_later(LOGIN_MS_MAX / 1000, self._end_unless_logged_in, connection)
            self._login_due[connection] = due
        return True

    def _end_unless_logged_in(self, connection: CqlConnection) -> None:
        del self._login_due[connection]
        if connection.session is None:
            connection.abort()

    def closed(self, connection: CqlConnection) -> None:
        due = self._login_due.pop(connection, None)
        if due is not None:
            due.cancel()
        if connection in self.connections:
            del self.connections[connection]
            self.requests_served += connection.requests_served
        self._finishing.pop(connection, None)
        if not self._finishing:
            self.finished.set()

    def close_unread(self, connection: CqlConnection, why: str) -> None:
        """The client does not take its responses."""
        peer, owed = f"{connection.peer[0]}:{connection.peer[1]}", connection.responses.owed
        self._log("cql.client_closed", peer=peer, why=why, owed=owed)
        connection.abort()

    def fault(self, error: BaseException) -> ServerFault:
        """Log a defect and name it for the client, who cannot know what it did."""
        self.faults += 1
        trace = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
        self._log("cql.fault", error=f"{type(error).__name__}: {error}", trace=trace)
        return ServerFault(f"Unexpected error in the server: {type(error).__name__}: {error}")

    def broadcast(self, kind: str, body: bytes) -> None:
        for connection in list(self.connections):
            if kind in connection.events:
                connection.send_event(body)

    def refuse(self) -> None:
        """Begin nothing more on any connection."""
        for connection in list(self.connections):
            connection.drain()

    def finish(self, *, also_listeners: bool) -> None:
        """Let each connection end when what is in flight on it is answered, or those that listen for no
        events."""
        chosen = [one for one in self.connections if also_listeners or not one.events]
        self._finishing = dict.fromkeys(chosen)
        if chosen:
            self.finished.clear()
        else:
            self.finished.set()
        for connection in chosen:
            connection.finish()

    def abort(self) -> None:
        """Close what has not finished."""
        for connection in list(self.connections):
            connection.abort()
