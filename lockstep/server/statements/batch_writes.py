"""Writes of one request over several partitions, logged or not, changes of counters, conditional statements
and batches, and what one write may change in a table that has views.

Invariant: what was sent to any replica is never answered as a definite failure. Only batches over several
partitions are judged, by the data of what they write, whether they come as one text or as the protocol's
batch. What a replica works out for views in the step in which it applies a write is bounded before anything
is sent, by what is written; the rows that are there already are not counted. As long as something may have
been counted, the client hears of an unknown outcome and of nothing else, for a change that is sent twice
counts twice. The timestamp of what is written is its ballot's, never the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from lockstep.coordination.ballot_rounds import Patience
from lockstep.coordination.capturing import Capturing, before_in
from lockstep.coordination.conditional import Decision
from lockstep.coordination.page import bytes_of
from lockstep.cql.compile.conditional import ConditionalRequest, Verdict
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.modification import BatchPlan, ModificationPlan
from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.functions.user_calls import UserCalls
from lockstep.cql.wire import responses
from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.handoff.hints import GC_GRACE_S_DEFAULT
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.services import NodeServices
from lockstep.replica.messages import Place
from lockstep.schema.model import Table
from lockstep.server.metrics.latencies import SERIAL_LEVELS
from lockstep.server.statements.statements import Statement
from lockstep.server.statements.user_functions import UserFunctions, called_by, is_long
from lockstep.values.errors import ColumnsGone, InvalidRequest, LockstepError, RequestError, WriteTimeout
from lockstep.values.ids import Consistency
from lockstep.values.limits import UNLOGGED_PARTITIONS_WARNED
from lockstep.values.node_limits import VIEWED_BYTES_MAX, VIEWED_CELLS_MAX, VIEWED_ROWS_MAX, WRITES_A_TURN
from lockstep.values.rows import Mutation, Partition, ReadCommand, ReadResult, Row


def require_derivable(cluster: ClusterMetadata, mutations: Iterable[Mutation]) -> None:
    """InvalidRequest when one of them writes more than its table's views allow."""
    for mutation in mutations:
        table = cluster.table(mutation.table_id)
        if table is None or not table.views:
            continue
        views = len(table.views)
        _require(len(mutation.rows), VIEWED_ROWS_MAX, views, "rows", table.name)
        _require(sum([len(row.cells) for row in mutation.rows]), VIEWED_CELLS_MAX, views, "cells", table.name)
        size = bytes_of(Partition(mutation.token, mutation.key, rows=mutation.rows))
        _require(size, VIEWED_BYTES_MAX, views, "bytes", table.name)


def _require(found: int, most: int, views: int, what: str, table: str) -> None:
    if found * views > most:
        raise InvalidRequest(
            f"A write of one partition of {table}, which has {views} materialized views, has at most "
            f"{most // views} {what}; this one has {found}",
            hint="write it in several requests",
        )


#: Bytes that a cell has beside its value and path (timestamp, lifetime, expiry), a row's marker, and a
#: deletion: as Cassandra counts them, whose users know the thresholds.
_CELL_BYTES: Final = 16
_LIVENESS_BYTES: Final = 8
_DELETION_BYTES: Final = 12


def data_bytes(mutations: Sequence[Mutation]) -> int:
    """The data of what is written, without keys of partitions."""
    total = 0
    for mutation in mutations:
        total += _DELETION_BYTES * (1 + len(mutation.range_deletions))
        for row in mutation.rows:
            total += _row_bytes(row)
        if mutation.static is not None:
            total += _row_bytes(mutation.static)
    return total


def _row_bytes(row: Row) -> int:
    total = len(row.clustering) + _LIVENESS_BYTES + _DELETION_BYTES * (1 + len(row.column_deletions))
    for cell in row.cells:
        total += _CELL_BYTES + len(cell.value or b"") + len(cell.path or b"")
    return total


class BatchLimits:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._settings = node.context.configuration.writes

    def judge(self, mutations: Sequence[Mutation], *, kind: str) -> tuple[str, ...]:
        """Warnings for the client of a batch; `kind`: LOGGED, UNLOGGED or COUNTER. InvalidRequest when it is
        too large."""
        if len(mutations) < 2:
            return ()
        found: list[str] = []
        size, warn, fail = (
            data_bytes(mutations),
            self._settings.batch_size_warn_threshold_bytes,
            self._settings.batch_size_fail_threshold_bytes,
        )
        if size > fail > 0:
            self._note("cql.batch_refused", mutations, size, fail)
            raise InvalidRequest(
                "Batch too large",
                hint=f"it is of size {size}, above writes.batch_size_fail_threshold_bytes = {fail}: send its "
                "partitions one by one",
            )
        if size > warn > 0:
            self._note("cql.batch_warned", mutations, size, warn)
            found.append(
                f"Batch for [{', '.join(self._tables(mutations))}] is of size {size}, exceeding specified "
                f"threshold of {warn} by {size - warn}."
            )
        if kind == "UNLOGGED" and len(mutations) > UNLOGGED_PARTITIONS_WARNED:
            tables = self._tables(mutations)
            plural = "s" if len(tables) > 1 else ""
            found.append(
                f"Unlogged batch covering {len(mutations)} partitions detected against table{plural} "
                f"[{', '.join(tables)}]. You should use a logged batch for atomicity, or asynchronous writes "
                "for performance."
            )
        if kind == "LOGGED":
            found += self._of_grace(mutations)
        return tuple(found)

    def _of_grace(self, mutations: Sequence[Mutation]) -> list[str]:
        brief = [name for name, gc_grace_s in self._tables(mutations).items() if not gc_grace_s]
        if not brief:
            return []
        plural = "s" if len(brief) > 1 else ""
        return [
            f"Executing a LOGGED BATCH on table{plural} [{', '.join(brief)}], configured with a "
            "gc_grace_seconds of 0. The gc_grace_seconds is used to TTL batchlog entries, so setting "
            "gc_grace_seconds too low on tables involved in an atomic batch might cause batchlog entries "
            "to expire before being replayed."
        ]

    def _note(self, event: str, mutations: Sequence[Mutation], size: int, threshold: int) -> None:
        tables = ",".join(self._tables(mutations))
        self._node.context.internode.repeated_log.note(
            event,
            tables,
            facts=lambda: {
                "tables": tables,
                "partitions": len(mutations),
                "size_bytes": size,
                "threshold_bytes": threshold,
            },
        )

    def _tables(self, mutations: Sequence[Mutation]) -> dict[str, int]:
        """Name -> gc_grace_seconds, sorted."""
        found: dict[str, int] = {}
        for table_id in sorted({mutation.table_id for mutation in mutations}):
            table = self._node.log.cluster.table(table_id)
            if table is not None:
                name = f"{table.keyspace}.{table.name}"
                found[name] = int(table.option("gc_grace_seconds", str(GC_GRACE_S_DEFAULT)))
        return dict(sorted(found.items()))


WRITE_LEVELS_REFUSED = (Consistency.SERIAL, Consistency.LOCAL_SERIAL)


class BatchWrites:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._write_ms = node.context.configuration.timeouts.write_ms
        self.limits = BatchLimits(node)

    async def batch(
        self,
        mutations: Sequence[Mutation],
        consistency: Consistency,
        *,
        logged: bool,
        once: bool = False,
    ) -> tuple[str, ...]:
        """Write a batch; warnings for its client. `once`: see `all`."""
        require_derivable(self._node.log.cluster, mutations)
        if len(mutations) < 2:
            await self.all(mutations, consistency, "SIMPLE", once=once)
            return ()
        if consistency in WRITE_LEVELS_REFUSED:
            raise serial_write(consistency)
        warnings = self.limits.judge(mutations, kind="LOGGED" if logged else "UNLOGGED")
        if not logged:
            await self.all(mutations, consistency, "UNLOGGED_BATCH", once=once)
            return warnings
        try:
            await self._node.data.batches.write(mutations, consistency, self._write_ms)
        except ColumnsGone as error:
            if once and error.begun:
                raise of_a_part(error, consistency, "BATCH") from error
            raise
        return warnings

    async def all(
        self, mutations: Sequence[Mutation], consistency: Consistency, write_type: str, *, once: bool = False
    ) -> None:
        """Write every mutation at the level; the first error once all have ended. `once`: what was read for
        them may have changed by their own effect, so what was begun is never planned anew."""
        require_derivable(self._node.log.cluster, mutations)
        try:
            await self._each(mutations, consistency, write_type)
        except ColumnsGone as error:
            if once and error.begun:
                raise of_a_part(error, consistency, write_type) from error
            raise

    async def _each(self, mutations: Sequence[Mutation], consistency: Consistency, write_type: str) -> None:
        if consistency in WRITE_LEVELS_REFUSED:
            raise serial_write(consistency)
        begin = self._node.data.coordinator.begin_write
        begun: list[asyncio.Future[None]] = []
        failure: LockstepError | None = None
        for at, mutation in enumerate(mutations):
            if at and not at % WRITES_A_TURN:
                await asyncio.sleep(0)
            try:
                begun.append(begin(mutation, consistency, self._write_ms, write_type))
            except RequestError as error:
                if not begun:
                    raise
                failure = of_a_part(error, consistency, write_type)
                break
        if len(begun) == 1 and failure is None:
            await begun[0]
            return
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        open_ = any(isinstance(error, LockstepError) and not error.outcome_known for error in errors)
        for outcome in outcomes:
            if isinstance(outcome, ColumnsGone):
                # All parts are written again: with the timestamps of the present plan, over what there is.
                outcome.begun = outcome.begun or len(outcomes) > 1
                raise outcome
        for problem in errors:
            if not isinstance(problem, LockstepError):
                raise problem
            if problem.outcome_known and (open_ or failure is not None or len(errors) < len(outcomes)):
                # Its own part has no effect, such as of a table that was dropped; others have, or may have.
                raise of_a_part(problem, consistency, write_type)
            raise problem
        if failure is not None:
            raise failure


def of_a_part(error: LockstepError, consistency: Consistency, write_type: str) -> WriteTimeout:
    """A definite error of one partition, where others were sent: the outcome of the whole is unknown."""
    failure = WriteTimeout(consistency, 0, 1, write_type)
    failure.message = f"{failure.message} (part of the batch: {error.message})"
    return failure


def serial_write(consistency: Consistency) -> InvalidRequest:
    return InvalidRequest(
        f"You must use conditional updates for serializable writes: {consistency.name} is no level of a write"
    )


def counts(prepared: Prepared) -> bool:
    """Whether a modification or batch changes counters. Deleting them is like deleting anything."""
    return isinstance(prepared.plan, BatchPlan | ModificationPlan) and prepared.plan.counts


def tables_of(parts: Sequence[Statement]) -> list[Table]:
    """The tables that modifications of a batch change; what is no modification is refused later."""
    plans = (part.prepared.plan for part in parts)
    return [plan.shape.table for plan in plans if isinstance(plan, ModificationPlan)]


def at_server_time(context: Context) -> Context:
    """Counters go by the clocks of servers, whatever time the client names."""
    return msgspec.structs.replace(context, timestamp_us=context.stamp_us)


async def change_counters(
    node: NodeServices, mutations: Sequence[Mutation], consistency: Consistency, timeout_ms: float
) -> None:
    """Each mutation is of another partition. RequestError: the first one."""
    if len(mutations) == 1:
        await node.data.counters.change(mutations[0], consistency, timeout_ms)
        return
    tasks = [
        node.context.runtime.tasks.spawn(
            node.data.counters.change(mutation, consistency, timeout_ms), "cql.counter"
        )
        for mutation in mutations
    ]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [outcome for outcome in outcomes if outcome is not None]
    for error in errors:
        if not isinstance(error, LockstepError):
            raise error
    if not errors:
        return
    first = errors[0]
    assert isinstance(first, LockstepError), "others were raised"
    if len(errors) == len(outcomes) and all(isinstance(e, LockstepError) and e.outcome_known for e in errors):
        raise first
    failure = WriteTimeout(consistency, 0, 1, "COUNTER")
    failure.message = f"{failure.message} (part of the batch: {first.message})"
    raise failure


async def run_conditional(
    node: NodeServices,
    version: int,
    parts: Sequence[tuple[Statement, Sequence[Value]]],
    context: Context,
    parameters: QueryParameters,
    functions: UserFunctions,
    capturing: Capturing,
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

    def decide(result: ReadResult, time_us: int) -> Decision:
        verdict = request.decide(result, time_us)
        if verdict.mutation is None:
            return Decision(None, verdict)
        require_derivable(node.log.cluster, (verdict.mutation,))
        return Decision(_captured(capturing, verdict.mutation, request.command, result), verdict)

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


def _captured(capturing: Capturing, mutation: Mutation, command: ReadCommand, result: ReadResult) -> Mutation:
    """What was decided, with what the log of changes is to have of it. InvalidRequest for a state before of
    rows that no condition is of: they were not read."""
    capture = capturing.of(mutation.table_id)
    if capture is None:
        return mutation
    before = None
    if capture.reads_before:
        read = {one.start for one in command.slices if one.end == one.start + b"\0"}
        if (
            mutation.deletion is not None
            or mutation.range_deletions
            or any(row.clustering not in read for row in mutation.rows)
        ):
            raise InvalidRequest(
                "cdc: a conditional request of a table with preimage or postimage changes only rows that it "
                "has conditions of"
            )
        before = before_in(mutation, result)
    return capturing.with_log(capture, mutation, before)


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
    return context.calling(calls)


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
