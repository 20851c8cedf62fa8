"""Request tracing: what a coordinator did for one request, kept in `system_traces` for a day; and the custom
payloads of answers: plans of a request whose client asks for them, or what the request brought.

Invariant: the tables exist before a traced request is answered, so a client that looks at once finds them;
the steps of a trace are stored before its session row, whose duration tells clients that the trace is
complete; a trace that cannot be stored never harms the request. A step of a replica stands for an answer of
it that counted, at the time at which the coordinator had enough of them: replicas keep no traces of their
own. Who did not ask is told nothing, and asking changes nothing of how a request is executed but that it
takes the way of requests that run in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.cql.bind.modify import plan_batch
from lockstep.cql.compile.context import Context
from lockstep.cql.functions.native import timeuuid
from lockstep.cql.parse.parser import without_passwords
from lockstep.cql.wire.messages import Batch, Execute, Query, QueryParameters, Request, Value
from lockstep.node.services import NodeServices
from lockstep.quorum.causal import CAUSAL, Causal
from lockstep.quorum.plans import Plan
from lockstep.quorum.request_trace import REQUEST_TRACE, RequestTrace
from lockstep.scans.messages import PAYLOAD_KEY
from lockstep.schema.model import Schema
from lockstep.schema.types import parse_type
from lockstep.server.statements.statements import Statements
from lockstep.server.views.tool_keyspaces import KEYSPACE, changes_that_make_it
from lockstep.tracking import tokens
from lockstep.tracking.tokens import TOKEN_KEY
from lockstep.values.errors import LockstepError, Unavailable
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import (
    TRACE_PARAMETER_CHARACTERS_MAX,
    TRACE_STEPS_MAX,
    TRACED_STATEMENTS_MAX,
    TRACES_IN_FLIGHT_MAX,
)
from lockstep.values.rows import Mutation, ReadCommand

#: (what was done, by which replica; None: here).
ReplicaStep = Callable[[str, NodeId | None], None]


class TraceNotes(RequestTrace):
    """Notes that become steps of a trace too. `asked`: those that the client is told, if it wants any."""

    __slots__ = ("_asked", "_step")

    def __init__(self, step: ReplicaStep, asked: RequestTrace | None) -> None:
        super().__init__()
        self._step = step
        self._asked = asked

    def wrote(
        self,
        kind: str,
        plan: Plan,
        mutation: Mutation,
        accepted: Mapping[NodeId, int],
        error: LockstepError | None,
    ) -> None:
        for node, epoch in sorted(accepted.items()):
            self._step(f"Applied a mutation at epoch {epoch}", node)
        if self._asked is not None:
            self._asked.wrote(kind, plan, mutation, accepted, error)

    def did(self, activity: str, nodes: Iterable[NodeId] = ()) -> None:
        for node in sorted(nodes) or (None,):
            self._step(activity, node)

    def read(
        self, plan: Plan, command: ReadCommand, answers: Iterable[tuple[NodeId, int]], *, repaired: bool
    ) -> None:
        answers = sorted(answers)
        what = "range" if command.key is None else "partition"
        for node, epoch in answers:
            self._step(f"Read a {what} at epoch {epoch}", node)
        if self._asked is not None:
            self._asked.read(plan, command, answers, repaired=repaired)


_KEPT: Final = "USING TTL 86400"
_SESSION: Final = (
    f"INSERT INTO {KEYSPACE}.sessions (session_id, client, command, coordinator, coordinator_port, "
    f"duration, parameters, request, started_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {_KEPT}"
)
_EVENT: Final = (
    f"INSERT INTO {KEYSPACE}.events (session_id, event_id, activity, source, source_port, "
    f"source_elapsed, thread) VALUES (?, ?, ?, ?, ?, ?, ?) {_KEPT}"
)
_TEXT: Final = parse_type("text")
_INT: Final = parse_type("int")
_INET: Final = parse_type("inet")
_TIMESTAMP: Final = parse_type("timestamp")
_PARAMETERS: Final = parse_type("map<text, text>")

ContextOf = Callable[[QueryParameters], Context]


class Trace:
    """One traced request. `steps` are (microseconds since the start, what happened, at which replica)."""

    __slots__ = ("client", "id", "request", "started_s", "started_us", "steps")

    def __init__(
        self, trace_id: bytes, request: Request, client: str, started_us: int, started_s: float
    ) -> None:
        self.id = trace_id
        self.request = request
        self.client = client
        self.started_us = started_us
        self.started_s = started_s
        self.steps: list[tuple[int, str, NodeId | None]] = []


class Tracer:
    """The traces of one node. `context_of` gives write contexts, as the executor makes them."""

    def __init__(self, node: NodeServices, statements: Statements, context_of: ContextOf) -> None:
        self._node = node
        self._clock = node.context.runtime.clock
        self._statements = statements
        self._context_of = context_of
        self._in_flight = 0
        #: The schema in which the tables were found, or made.
        self._looked_at: Schema | None = None

    async def begin(self, request: Request, client: str) -> Trace | None:
        """A new trace, also of what replicas do for the running task from now on.

        None when its tables cannot be made now or too many traces are being stored.
        """
        if self._in_flight >= TRACES_IN_FLIGHT_MAX:
            return None
        try:
            await self._make_tables()
        except LockstepError as error:
            self._node.context.log("trace.unavailable", error=str(error))
            return None
        self._in_flight += 1
        # Sessions keep milliseconds: steps and the start are told against the same one.
        now_us = self._clock.wall_us() // 1000 * 1000
        trace = Trace(self._timeuuid(now_us * 10), request, client, now_us, self._clock.monotonic_s())
        REQUEST_TRACE.set(
            TraceNotes(lambda activity, node: self.step(trace, activity, node), REQUEST_TRACE.get())
        )
        return trace

    def step(self, trace: Trace, activity: str, node: NodeId | None = None) -> None:
        """Something was done for the request just now: here, or by a replica."""
        if len(trace.steps) < TRACE_STEPS_MAX:
            trace.steps.append((self._elapsed_us(trace), activity, node))

    def end(self, trace: Trace, activity: str) -> None:
        """The request is answered: store the trace in the background."""
        self.step(trace, activity)
        self._node.context.runtime.tasks.spawn(self._store(trace, self._elapsed_us(trace)), "trace.store")

    async def _make_tables(self) -> None:
        schema = self._node.log.cluster.schema
        if schema is not self._looked_at:
            for change in changes_that_make_it(schema):
                await self._node.log.submit(change)
            self._looked_at = schema

    def _elapsed_us(self, trace: Trace) -> int:
        return max(0, round((self._clock.monotonic_s() - trace.started_s) * 1_000_000))

    def _timeuuid(self, ticks: int) -> bytes:
        tail = self._node.context.runtime.random.bytes(8)
        return timeuuid(ticks, bytes((tail[0] & 0x3F | 0x80,)) + tail[1:])

    # -- storing ----------------------------------------------------------------------------------

    async def _store(self, trace: Trace, duration_us: int) -> None:
        REQUEST_TRACE.set(None)  # the task's own: what stores a trace is not traced
        try:
            events = [self._event(trace, at, *step) for at, step in enumerate(trace.steps)]
            await self._write(_EVENT, events)
            await self._write(_SESSION, [self._session(trace, duration_us)])
        except LockstepError as error:
            self._node.context.log("trace.not_stored", error=str(error))
        finally:
            self._in_flight -= 1

    async def _write(self, text: str, rows: Sequence[Sequence[Value]]) -> None:
        parameters = QueryParameters(Consistency.QUORUM)
        prepared = self._statements.by_text(text, None).prepared
        mutations = plan_batch([(prepared, tuple(row)) for row in rows], self._context_of(parameters))
        timeout_ms = self._node.context.configuration.timeouts.write_ms
        for mutation in mutations:
            try:
                await self._node.data.coordinator.write(mutation, parameters.consistency, timeout_ms)
            except Unavailable:
                # Rather a trace on one of its replicas than none.
                await self._node.data.coordinator.write(mutation, Consistency.ANY, timeout_ms)

    def _session(self, trace: Trace, duration_us: int) -> tuple[Value, ...]:
        network = self._node.context.configuration.network
        command, request = _names(trace.request)
        return (
            trace.id,
            _INET.serialize(trace.client) if trace.client else None,
            _TEXT.serialize(command),
            _INET.serialize(network.address),
            _INT.serialize(network.cql_port),
            _INT.serialize(duration_us),
            _PARAMETERS.serialize(_described(trace)),
            _TEXT.serialize(request),
            _TIMESTAMP.serialize(trace.started_us // 1000),
        )

    def _event(
        self, trace: Trace, at: int, elapsed_us: int, activity: str, node: NodeId | None
    ) -> tuple[Value, ...]:
        network = self._node.context.configuration.network
        info = self._node.log.cluster.directory.by_id.get(node) if node is not None else None
        # A tick a step keeps steps of the same microsecond in order.
        return (
            trace.id,
            self._timeuuid((trace.started_us + elapsed_us) * 10 + at % 10),
            _TEXT.serialize(activity),
            _INET.serialize(network.address if info is None else info.address),
            _INT.serialize(network.internode_port if info is None else info.internode_port),
            _INT.serialize(elapsed_us),
            _TEXT.serialize("coordinator" if node is None else "replica"),
        )


def texts_of(request: Request, statements: Statements) -> list[str]:
    """The statements of a request, without passwords. Unprepared when one is not known here."""
    found: list[str] = []
    if isinstance(request, Query):
        found = [request.text]
    elif isinstance(request, Execute):
        found = [statements.by_id(request.statement_id).text]
    elif isinstance(request, Batch):
        parts = [part.statement for part in request.statements[:TRACED_STATEMENTS_MAX]]
        found = [part if isinstance(part, str) else statements.by_id(part).text for part in parts]
    return [without_passwords(text) for text in found]


def _names(request: Request) -> tuple[str, str]:
    if isinstance(request, Query):
        return "QUERY", "Execute CQL3 query"
    if isinstance(request, Batch):
        return "QUERY", "Execute batch of CQL3 queries"
    return "QUERY", "Execute CQL3 prepared query"


def _described(trace: Trace) -> dict[object, object]:
    """The session's parameters: what the client asked for."""
    parameters = getattr(trace.request, "parameters", None)
    found: dict[object, object] = {}
    if isinstance(trace.request, Query):
        found["query"] = without_passwords(trace.request.text)[:TRACE_PARAMETER_CHARACTERS_MAX]
    if isinstance(parameters, QueryParameters):
        found["consistency_level"] = parameters.consistency.name
        if parameters.page_size is not None:
            found["page_size"] = str(parameters.page_size)
        if parameters.serial_consistency is not None:
            found["serial_consistency_level"] = parameters.serial_consistency.name
    return found


#: Key of the payload in a request, whose value does not matter, and in its answer: JSON.
PLAN_KEY: Final = "lockstep-plan"

Payload = Mapping[str, bytes | None]


class PayloadNotes(RequestTrace):
    """Notes of a request, what of its payload is answered again, and what it wants of a read session with
    what is answered to that. `token`: what it follows, as it came; None: it is told nothing of that."""

    __slots__ = ("causal", "mirrored", "session", "session_answer", "token")

    def __init__(
        self, *, wants_plans: bool, mirrored: Payload, session: bytes | None, token: bytes | None
    ) -> None:
        super().__init__(wants_plans=wants_plans)
        self.token = token
        self.causal: Causal | None = None
        self.mirrored = mirrored
        self.session = session
        self.session_answer: bytes | None = None


def notes_for(payload: Payload, *, mirror: bool) -> PayloadNotes | None:
    """What its answer has to tell of a request with this payload."""
    wants_plans = PLAN_KEY in payload
    session = payload.get(PAYLOAD_KEY)
    token = payload[TOKEN_KEY] or b"" if TOKEN_KEY in payload else None
    if not wants_plans and session is None and token is None and not (mirror and payload):
        return None
    mirrored = {key: value for key, value in payload.items() if key != PLAN_KEY} if mirror else {}
    return PayloadNotes(wants_plans=wants_plans, mirrored=mirrored, session=session, token=token)


def carry(notes: PayloadNotes | None) -> None:
    """Have the running task, which has a context of its own, take notes. InvalidRequest when the request
    follows what is no token."""
    REQUEST_TRACE.set(notes)
    if notes is not None and notes.token is not None:
        notes.causal = Causal(tokens.decode(notes.token))
        CAUSAL.set(notes.causal)


def answered_payload(notes: PayloadNotes | None) -> Payload | None:
    if notes is None:
        return None
    plans: Payload = {PLAN_KEY: msgspec.json.encode(notes.told())} if notes.wants_plans else {}
    seen: Payload = {TOKEN_KEY: tokens.encode(notes.causal.told())} if notes.causal is not None else {}
    answers = {**notes.mirrored, **plans, **seen}
    return answers if notes.session_answer is None else {**answers, PAYLOAD_KEY: notes.session_answer}
