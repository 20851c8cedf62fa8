"""Conditional statements and batches of one node: to a decision of their partition, and back to a result set.

Invariant: the timestamp of what is written is its ballot's, never the client's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from lockstep.coordination.ballot_rounds import Patience
from lockstep.coordination.conditional import Decision
from lockstep.cql.compile.conditional import ConditionalRequest, Verdict
from lockstep.cql.compile.context import Context
from lockstep.cql.functions.user_calls import UserCalls
from lockstep.cql.wire import responses
from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.node.services import NodeServices
from lockstep.replica.ballot_messages import Place
from lockstep.server.statements.batch_writes import require_derivable
from lockstep.server.statements.serial_levels import SERIAL_LEVELS
from lockstep.server.statements.statements import Statement, refuse_uncapturable
from lockstep.server.statements.user_functions import UserFunctions, called_by, is_long
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import Consistency
from lockstep.values.rows import ReadResult


async def run_conditional(
    node: NodeServices,
    version: int,
    parts: Sequence[tuple[Statement, Sequence[Value]]],
    context: Context,
    parameters: QueryParameters,
    functions: UserFunctions,
    *,
    is_batch: bool,
) -> bytes:
    """The body of the result. `is_batch`: the statements are a batch of the protocol, else there is one.

    InvalidRequest, or the errors of `Conditionals.write`.
    """
    serial = _serial_level(parameters)
    entries = [(statement.prepared, values) for statement, values in parts]

    def asked(moment: Context) -> ConditionalRequest:
        return ConditionalRequest(entries, moment, is_batch=is_batch)

    if called_by(prepared for prepared, _ in entries):
        context = await _with_results(functions, context, asked)
    long = any(is_long(statement.text, values) for statement, values in parts)
    request = await functions.aside.run(lambda: asked(context)) if long else asked(context)
    captured = [statement.captured for statement, _ in parts if statement.captured]

    def decide(result: ReadResult, time_us: int) -> Decision:
        verdict = request.decide(result, time_us)
        if verdict.mutation is not None:
            require_derivable(node.log.cluster, (verdict.mutation,))
        if captured and verdict.mutation is not None:
            of_tables = frozenset[int]().union(*captured)
            refuse_uncapturable(node.log.cluster.generations, of_tables, (verdict.mutation,), context.now_us)
        return Decision(verdict.mutation, verdict)

    timeouts = node.context.configuration.timeouts
    found: Verdict = await node.data.conditionals.write(
        Place(request.shape.table.id, request.token, request.key),
        request.command,
        decide,
        serial,
        parameters.consistency,
        Patience(timeouts.write_ms, timeouts.cas_contention_ms),
        is_long=long,
    )
    return responses.rows(responses.encode_rows_metadata(version, found.columns), found.rows)


async def _with_results(
    functions: UserFunctions,
    context: Context,
    asked: Callable[[Context], ConditionalRequest],
) -> Context:
    """A context that knows the results of all calls: a decision is made at once when the rows are there."""
    calls = UserCalls()

    def work(moment: Context) -> ConditionalRequest:
        request = asked(moment)
        with contextlib.suppress(InvalidRequest):
            # It may lack lists that are read later.
            request.mutations(moment, None)
        return request

    await functions.settled_with(calls, context, work)
    calls.is_final = True
    return calls.context(context)


def _serial_level(parameters: QueryParameters) -> Consistency:
    serial = parameters.serial_consistency or Consistency.SERIAL
    if serial not in SERIAL_LEVELS:
        raise InvalidRequest(
            "Invalid consistency for conditional update. Must be one of SERIAL or LOCAL_SERIAL"
        )
    if parameters.consistency in SERIAL_LEVELS:
        raise InvalidRequest(
            f"{parameters.consistency.name} is not supported as conditional update commit consistency. Use "
            "ANY if you mean \"make sure it is accepted but I don't care how many replicas commit it for "
            'non-SERIAL reads"'
        )
    return serial
