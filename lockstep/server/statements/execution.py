"""Executes requests of one node: statements to mutations, reads and schema changes, and their answers.

Invariants: one request has one Context, so a re-plan repeats it exactly; timestamps that this node gives
never repeat and never go back; what was sent to any replica is never answered as a definite failure.

The statements of one request, planned: by text or id, long ones beside the loop.

Invariant: what a request began is ended under the statement that it has: its client is not sent away to
prepare it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from lockstep.coordination.capturing import Capturing
from lockstep.coordination.writes import Begun
from lockstep.cql.bind.modify import plan_batch, plan_modification
from lockstep.cql.compile.conditional import is_conditional
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.modification import BatchPlan, check_batch
from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.compile.select import SelectPrepared
from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import BATCH_LOGGED, BATCH_NAMES
from lockstep.cql.wire.messages import (
    Batch,
    BatchStatement,
    Execute,
    Prepare,
    Query,
    QueryParameters,
    Request,
    Value,
)
from lockstep.node.services import NodeServices
from lockstep.quorum.request_trace import REQUEST_TRACE
from lockstep.server.auth.permits import Permits, Session
from lockstep.server.auth.role_statements import RoleStatements
from lockstep.server.log import Audit
from lockstep.server.metrics.latencies import BATCHES, CONDITIONAL_BATCHES, COUNTER_BATCHES, OPERATION
from lockstep.server.statements.batch_writes import (
    WRITE_LEVELS_REFUSED,
    BatchWrites,
    at_server_time,
    change_counters,
    counts,
    run_conditional,
    serial_write,
    tables_of,
)
from lockstep.server.statements.loads import LoadDoor
from lockstep.server.statements.read_session import read_session
from lockstep.server.statements.schema_statements import SchemaStatements
from lockstep.server.statements.selects import Selects
from lockstep.server.statements.statements import Catalogs, Statement, Statements
from lockstep.server.statements.tablet_routing import TabletRouting
from lockstep.server.statements.tracing import PayloadNotes, Trace, Tracer, texts_of
from lockstep.server.statements.user_functions import (
    LongStatements,
    UserFunctions,
    are_long,
    called_by,
    is_long,
)
from lockstep.server.views.virtual import VirtualTables
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    ProtocolViolation,
    RequestError,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import REQUEST_PLANS_MAX, TRACE_PARAMETER_CHARACTERS_MAX
from lockstep.values.node_limits import (
    BATCH_STATEMENTS_A_TURN,
    BATCH_TEXT_CHARACTERS_MAX,
    STATEMENT_INLINE_CHARACTERS,
    VALUES_INLINE_BYTES,
)
from lockstep.values.rows import Mutation


def is_long_batch(parts: Sequence[Statement], batch: Batch) -> bool:
    """Whether the statements of a batch and their values are too much for the loop."""
    if len(parts) > BATCH_STATEMENTS_A_TURN:
        return True
    return any(is_long(part.text, entry.values) for part, entry in zip(parts, batch.statements, strict=True))


class RequestStatements:
    """Of one node."""

    def __init__(self, statements: Statements, aside: LongStatements) -> None:
        self._statements = statements
        self._aside = aside

    async def of_query(self, request: Query, keyspace: str | None) -> Statement:
        if is_long(request.text):
            return await self._statements.by_long_text(request.text, keyspace, self._aside)
        return self._statements.by_text(request.text, keyspace)

    async def prepared(self, text: str, keyspace: str | None) -> Statement:
        """Of a text that is too long for the loop."""
        return await self._statements.prepare_long(text, keyspace, self._aside)

    def executed(self, statement_id: bytes, begun: bool) -> Statement:
        """`begun`: an earlier attempt may have written something."""
        statements = self._statements
        return statements.planned_anew(statement_id) if begun else statements.by_id(statement_id)

    async def of_batch(self, batch: Batch, keyspace: str | None, begun: bool) -> list[Statement]:
        """With turns for others between them."""
        found: list[Statement] = []
        characters = 0
        for at, entry in enumerate(batch.statements):
            text = entry.statement
            if at and not at % BATCH_STATEMENTS_A_TURN:
                await asyncio.sleep(0)
            if isinstance(text, str):
                characters += len(text)
                if is_long(text):
                    found.append(await self._statements.by_long_text(text, keyspace, self._aside))
                    continue
                if characters > STATEMENT_INLINE_CHARACTERS:
                    characters = 0
                    await asyncio.sleep(0)
            found.append(self._one(entry, keyspace, begun))
        return found

    def _one(self, entry: BatchStatement, keyspace: str | None, begun: bool) -> Statement:
        if isinstance(entry.statement, str):
            return self._statements.by_text(entry.statement, keyspace)
        return self.executed(entry.statement, begun)


class Answer(msgspec.Struct, frozen=True):
    """Body of a RESULT, and warnings for the client."""

    body: bytes
    warnings: tuple[str, ...] = ()


_VOID = Answer(responses.VOID)


class Executor:
    """`virtual` answers for the system tables; `permits` is None where clients do not log in."""

    def __init__(
        self,
        node: NodeServices,
        virtual: VirtualTables,
        schema_statements: SchemaStatements,
        roles: RoleStatements,
        permits: Permits | None,
        audit: Audit,
    ) -> None:
        self._node = node
        self._runtime = node.context.runtime
        self._write_ms = node.context.configuration.timeouts.write_ms
        self._writes = BatchWrites(node)
        newest = node.log.state.newest
        self.catalogs = Catalogs(lambda: newest.cluster.schema, virtual.schema)
        self.statements = Statements(self.catalogs.current)
        self._functions = UserFunctions(node)
        self._requested = RequestStatements(self.statements, self._functions.aside)
        self.selects = Selects(node, virtual, self._functions)
        self._capturing = Capturing(
            lambda: newest.cluster,
            node.data.coordinator.read,
            self._runtime.clock.wall_us,
            node.context.configuration.timeouts.read_ms,
        )
        self._schema = schema_statements
        self._roles = roles
        self._permits = permits
        self.loads = LoadDoor(node, permits, audit)
        self.tracer = Tracer(node, self.statements, self.context)

    # -- time and identity ------------------------------------------------------------------------

    def context(self, parameters: QueryParameters) -> Context:
        now_us, stamp = self._runtime.clock.wall_us(), self._node.log.stamps.next_us()
        given = parameters.timestamp_us
        now_s = parameters.now_s
        return Context(
            now_us,
            now_us // 1_000_000 if now_s is None else now_s,
            stamp,
            stamp if given is None else given,
            self._node.data.new_mutation_id(),
            self._uuid_source,
        )

    def _uuid_source(self) -> bytes:
        return self._runtime.random.bytes(16)

    # -- requests ---------------------------------------------------------------------------------

    def prepare(self, session: Session, request: Prepare) -> Answer:
        if self._permits is not None:
            self._permits.admit(session)
        statement = self.statements.prepare(request.text, request.keyspace or session.keyspace)
        return _prepared(session, statement)

    async def prepare_long(self, session: Session, request: Prepare) -> Answer:
        """As `prepare`, of a text that is not read on the loop."""
        if self._permits is not None:
            self._permits.admit(session)
        keyspace = request.keyspace or session.keyspace
        return _prepared(session, await self._requested.prepared(request.text, keyspace))

    def plan_write(self, session: Session, request: Execute, size: int) -> Mutation | None:
        """Bind a prepared write of one partition, of `size` bytes; None when the request needs `run`. Raises
        what is known before anything is sent."""
        statement = self.statements.by_id(request.statement_id)
        parameters = request.parameters
        if not statement.is_direct or parameters.names is not None or self._clock_warnings(parameters):
            return None
        if size > VALUES_INLINE_BYTES or len(statement.text) > STATEMENT_INLINE_CHARACTERS:
            return None  # it is planned beside the loop
        if self._permits is not None:
            self._permits.require(session, statement.needs)
        if parameters.consistency in WRITE_LEVELS_REFUSED:
            raise serial_write(parameters.consistency)
        context = self.context(parameters)
        if parameters.timestamp_us is None and context.timestamp_us < context.now_us:
            return None  # it waits for a timestamp of now
        mutations = plan_modification(statement.prepared, parameters.values, context)
        return mutations[0] if mutations else None

    def tablet_routing(self) -> TabletRouting:
        """For one connection."""
        node = self._node
        return TabletRouting(lambda: node.log.cluster, node.context.own_id, self.statements.known)

    def begin_writes(self, writes: Sequence[Begun]) -> None:
        """Start what `plan_write` made; each hears once of its end, perhaps before this returns."""
        self._node.data.coordinator.submit_batch(writes, self._write_ms)

    async def run_traced(self, session: Session, request: Request, trace: Trace) -> Answer:
        """`run`, telling the trace what was done."""
        outcome = "Ended with an unexpected error"
        try:
            for text in texts_of(request, self.statements):
                self.tracer.step(trace, f"Planned: {text[:TRACE_PARAMETER_CHARACTERS_MAX]}")
            answer = await self.run(session, request)
            outcome = f"Answered with {len(answer.body)} bytes"
            return answer
        except LockstepError as error:
            outcome = f"Ended with {error.code}: {error.message}"
            raise
        finally:
            self.tracer.end(trace, outcome)

    async def run(self, session: Session, request: Request, *, begun: bool = False) -> Answer:
        """Answer QUERY, EXECUTE, BATCH or a long PREPARE. RequestError, or a MetadataError of a schema
        change.

        `begun`: an earlier attempt at the request may have written something.
        """
        for attempt in range(1, REQUEST_PLANS_MAX + 1):
            schema = self._node.log.cluster.schema
            try:
                return await self._run_once(session, request, begun)
            except ColumnsGone as error:
                begun = begun or error.begun
                if attempt == REQUEST_PLANS_MAX:
                    raise _unknown(request, error) from error
            except InvalidRequest as error:
                # TRUNCATE gives a table a new id. What was planned against the old one has no effect that
                # can be seen, so it is run under the new one; a batch may have had effects elsewhere.
                moved = self._node.log.cluster.schema is not schema
                if not moved or isinstance(request, Batch) or attempt == REQUEST_PLANS_MAX:
                    if begun:
                        raise _unknown(request, error) from error
                    raise
            except RequestError as error:
                if begun and error.outcome_known:
                    raise _unknown(request, error) from error
                raise
        raise AssertionError("the last attempt has ended")

    async def _run_once(self, session: Session, request: Request, begun: bool) -> Answer:
        if isinstance(request, Query):
            keyspace = request.parameters.keyspace or session.keyspace
            statement = await self._requested.of_query(request, keyspace)
            return await self._run(session, statement, request.parameters, None)
        if isinstance(request, Execute):
            statement = self._requested.executed(request.statement_id, begun)
            return await self._run(session, statement, request.parameters, request)
        if isinstance(request, Batch):
            return await self._run_batch(session, request, begun)
        if isinstance(request, Prepare):
            return await self.prepare_long(session, request)
        raise ProtocolViolation(f"Unexpected message {type(request).__name__.upper()}")

    async def _run(
        self, session: Session, statement: Statement, parameters: QueryParameters, execute: Execute | None
    ) -> Answer:
        prepared = statement.prepared
        OPERATION.set(statement.operation)
        if self._permits is not None:
            self._permits.require(session, statement.needs)
        notes = REQUEST_TRACE.get()
        if isinstance(notes, PayloadNotes) and notes.session is not None:
            await read_session(self._node, prepared, notes)
            return _VOID
        values = _positional(prepared, parameters)
        kind = prepared.kind
        if kind == "SELECT":
            return await self._select(session, statement, values, parameters, execute)
        if kind in ("MODIFY", "BATCH"):
            return await self._modify(session, statement, values, parameters)
        prepared.check_values(values)
        if kind == "USE":
            session.keyspace = prepared.keyspace
            return Answer(responses.set_keyspace(prepared.keyspace))
        if kind in ("DDL", "TRUNCATE"):
            creator = self._permits.creator(session) if self._permits is not None else ""
            return Answer(*await self._schema.run(prepared, self.context(parameters), creator))
        if kind == "ROLE":
            return Answer(*await self._roles.run(session, prepared))
        assert kind == "DESCRIBE", f"a statement of kind {kind}"
        return Answer(self._schema.describe(session.version, prepared, self.catalogs.current()))

    async def _select(
        self,
        session: Session,
        statement: Statement,
        values: Sequence[Value],
        parameters: QueryParameters,
        execute: Execute | None,
    ) -> Answer:
        """Its context is made once there is room for the answer, so that it shows what was written then."""
        plan, owed = statement.prepared.plan, session.responses
        assert isinstance(plan, SelectPrepared) and owed is not None, "the session is a client's"
        kind = (plan.shape.table.id, plan.is_point)
        reserved = await owed.begin(kind)
        try:
            context = self.context(parameters)
            answer = Answer(
                *await self.selects.run(session.version, statement, values, context, parameters, execute)
            )
            owed.learn(kind, len(answer.body))
            owed.require_taken()
            return answer
        finally:
            owed.end(reserved)

    async def change_schema(self, text: str) -> None:
        """Run a statement that changes the schema or empties a table, for an operator. RequestError, or a
        MetadataError."""
        prepared = self.statements.by_text(text, None).prepared
        if prepared.kind not in ("DDL", "TRUNCATE"):
            raise InvalidRequest("Not a statement that changes the schema")
        await self._schema.run(prepared, self.context(QueryParameters(Consistency.QUORUM)), "")

    # -- writes -----------------------------------------------------------------------------------

    async def _modify(
        self,
        session: Session,
        statement: Statement,
        values: Sequence[Value],
        parameters: QueryParameters,
    ) -> Answer:
        prepared = statement.prepared
        if parameters.timestamp_us is None or is_conditional(prepared) or counts(prepared):
            await self._node.log.stamps.present()
        context = self.context(parameters)
        if is_conditional(prepared):
            return await self._decide(session, ((statement, values),), context, parameters)
        if counts(prepared):
            changes = await self._functions.settled(
                at_server_time(context),
                prepared.called,
                lambda moment: plan_modification(prepared, values, moment),
                is_long=is_long(statement.text, values),
            )
            return await self._count(changes, parameters.consistency)
        lists = await self.selects.lists([(prepared, values)], context, parameters.consistency)
        mutations = await self._functions.settled(
            context,
            prepared.called,
            lambda moment: plan_modification(prepared, values, moment, lists),
            is_long=is_long(statement.text, values) or are_long(lists),
        )
        mutations = await self._capturing.attached(mutations)
        plan = statement.prepared.plan
        if isinstance(plan, BatchPlan):
            logged = plan.kind == "LOGGED"
            once = lists is not None
            warnings = await self._writes.batch(mutations, parameters.consistency, logged=logged, once=once)
            return self._written(parameters, warnings)
        await self._writes.all(mutations, parameters.consistency, "SIMPLE", once=lists is not None)
        return self._written(parameters)

    def _written(self, parameters: QueryParameters, warnings: tuple[str, ...] = ()) -> Answer:
        warnings = (*warnings, *self._clock_warnings(parameters))
        return Answer(responses.VOID, warnings) if warnings else _VOID

    def _clock_warnings(self, parameters: QueryParameters) -> tuple[str, ...]:
        """For a write that leaves its timestamp to this node, when its clock is far off."""
        warning = self._node.log.clocks.warning
        return (warning,) if warning and parameters.timestamp_us is None else ()

    async def _decide(
        self,
        session: Session,
        parts: Sequence[tuple[Statement, Sequence[Value]]],
        context: Context,
        parameters: QueryParameters,
        *,
        is_batch: bool = False,
    ) -> Answer:
        """A conditional statement, or the statements of a batch of the protocol."""
        found = await run_conditional(
            self._node,
            session.version,
            parts,
            context,
            parameters,
            self._functions,
            self._capturing,
            is_batch=is_batch,
        )
        return Answer(found)

    async def _count(self, changes: Sequence[Mutation], consistency: Consistency) -> Answer:
        if consistency in WRITE_LEVELS_REFUSED:
            raise serial_write(consistency)
        warnings = self._writes.limits.judge(changes, kind="COUNTER")
        await change_counters(self._node, changes, consistency, self._write_ms)
        return Answer(responses.VOID, warnings) if warnings else _VOID

    async def _run_batch(self, session: Session, batch: Batch, begun: bool) -> Answer:
        if sum(map(len, {one.statement for one in batch.statements})) > BATCH_TEXT_CHARACTERS_MAX:
            raise InvalidRequest("Batch too large")
        keyspace = batch.parameters.keyspace or session.keyspace
        parts = await self._requested.of_batch(batch, keyspace, begun)
        different = list(dict.fromkeys(parts))
        if self._permits is not None:
            self._permits.require_all(session, [part.needs for part in different])
        entries = [(part.prepared, entry.values) for part, entry in zip(parts, batch.statements, strict=True)]
        await self._node.log.stamps.present()
        context = self.context(batch.parameters)
        OPERATION.set(BATCHES)
        called = called_by(part.prepared for part in different)
        check_batch(BATCH_NAMES[batch.kind], tables_of(different))
        if any(is_conditional(part.prepared) for part in different):
            OPERATION.set(CONDITIONAL_BATCHES)
            pairs = [(part, entry.values) for part, entry in zip(parts, batch.statements, strict=True)]
            return await self._decide(session, pairs, context, batch.parameters, is_batch=True)
        long = is_long_batch(parts, batch)
        if any(counts(part.prepared) for part in different):
            OPERATION.set(COUNTER_BATCHES)
            changes = await self._functions.settled(
                at_server_time(context), called, lambda moment: plan_batch(entries, moment), is_long=long
            )
            return await self._count(changes, batch.parameters.consistency)
        lists = await self.selects.lists(entries, context, batch.parameters.consistency)
        mutations = await self._functions.settled(
            context,
            called,
            lambda moment: plan_batch(entries, moment, lists),
            is_long=long or are_long(lists),
        )
        mutations = await self._capturing.attached(mutations)
        logged = batch.kind == BATCH_LOGGED
        once = lists is not None
        warnings = await self._writes.batch(mutations, batch.parameters.consistency, logged=logged, once=once)
        return self._written(batch.parameters, warnings)


def _prepared(session: Session, statement: Statement) -> Answer:
    prepared = statement.prepared
    body = responses.prepared(
        session.version,
        statement.id,
        prepared.bind_columns,
        prepared.partition_key_indexes,
        prepared.result_columns,
        statement.result_id,
    )
    return Answer(body)


def _unknown(request: Request, error: LockstepError) -> WriteTimeout:
    """Instead of a definite error of a request of which something may have been written."""
    assert isinstance(request, Query | Execute | Batch), "only these write"
    failure = WriteTimeout(request.parameters.consistency, 0, 1, "SIMPLE")
    failure.message = f"{failure.message} (the table changed: {error.message})"
    return failure


def _positional(prepared: Prepared, parameters: QueryParameters) -> Sequence[Value]:
    if parameters.names is None:
        return parameters.values
    named = dict(zip(parameters.names, parameters.values, strict=True))
    return prepared.positional(named)
