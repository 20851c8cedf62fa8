"""SELECT: rounds of reads until a page is full, from replicas or from the system tables.

Invariant: a page is complete or its paging state continues exactly behind its last row, on any node.

What clients are told of reads that scanned or returned much: warnings, and failures in their words.

Invariant: a request has at most one warning of each kind, whatever the number of its replicas and rounds.

Pages of a SELECT that calls user functions.

Invariant: a page is worked out from one set of readings: what was read is kept until every result that the
page depends on is known, and read again only where a result leads to other reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from lockstep.coordination.page import bytes_of
from lockstep.cql.bind import page_positions
from lockstep.cql.bind.records import ResultRow
from lockstep.cql.bind.results import Page, PageBuilder
from lockstep.cql.compile import modification
from lockstep.cql.compile.context import Context, Lists
from lockstep.cql.compile.modification import reads_lists
from lockstep.cql.compile.prepared import Prepared, TableShape
from lockstep.cql.compile.select import SelectPlan, SelectPrepared, plan_select
from lockstep.cql.functions.user_calls import UserCalls
from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import HAS_METADATA_ID
from lockstep.cql.wire.messages import Execute, QueryParameters, Value
from lockstep.node.configuration import ReadsSection
from lockstep.node.services import NodeServices
from lockstep.quorum.failure_codes import is_inet
from lockstep.quorum.request_trace import REQUEST_TRACE, RequestTrace
from lockstep.schema.user_types import types_of_table
from lockstep.server.metrics.latencies import SERIAL_LEVELS, check_one_partition, read_at, serial_write
from lockstep.server.statements.statements import Statement
from lockstep.server.statements.user_functions import UserFunctions, called_by, is_long, too_deep
from lockstep.server.views.virtual import VirtualTables
from lockstep.server.views.work_views import build_warning
from lockstep.values.errors import ColumnsGone, InvalidRequest, LockstepError, ReadFailure
from lockstep.values.ids import READ_SIZE, Consistency
from lockstep.values.limits import (
    PARTITION_READS_AT_ONCE_MAX,
    USER_CALL_ROUNDS_MAX,
    USER_CALL_ROWS_MAX,
    WARNED_QUERY_CHARACTERS_MAX,
)
from lockstep.values.node_limits import ROWS_A_TURN, UNPAGED_BYTES_MAX
from lockstep.values.rows import ReadCommand, ReadResult, has_large_row

Plan = Callable[[Context], SelectPlan]
Read = Callable[[Sequence[ReadCommand]], Awaitable[Sequence[ReadResult]]]


async def page_with_calls(functions: UserFunctions, context: Context, plan: Plan, read: Read) -> Page:
    """The page that `plan` begins. The errors of `plan` and `read`, FunctionFailure, Overloaded, and
    InvalidRequest when more rows would have to be kept than USER_CALL_ROWS_MAX."""
    calls, kept = UserCalls(), _Kept(read)
    for _ in range(USER_CALL_ROUNDS_MAX):
        # The plan first: while it waits for results, what it would read is not known.
        await functions.settled_with(calls, context, plan)
        builder = PageBuilder(plan(context.calling(calls)))
        try:
            at = 0
            while commands := builder.commands():
                for _ in builder.adding(await kept.result(at, commands)):
                    await asyncio.sleep(0)
                at += 1
            found = builder.page()
        except LockstepError:
            if not calls.waits:
                raise
        else:
            if not calls.waits:
                return found
        await functions.answer(calls)
    raise too_deep()


class _Kept:
    """The reads of a page in their order, and what they gave."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._found: list[tuple[tuple[ReadCommand, ...], Sequence[ReadResult]]] = []
        self._rows = self._bytes = 0

    async def result(self, at: int, commands: tuple[ReadCommand, ...]) -> Sequence[ReadResult]:
        if at < len(self._found) and self._found[at][0] == commands:
            return self._found[at][1]
        if at < len(self._found):
            del self._found[at:]
            self._rows = sum(_rows(some) for _, some in self._found)
            self._bytes = sum(_bytes(some) for _, some in self._found)
        results = await self._read(commands)
        self._found.append((commands, results))
        self._rows += _rows(results)
        self._bytes += _bytes(results)
        if self._rows > USER_CALL_ROWS_MAX or self._bytes > UNPAGED_BYTES_MAX:
            raise InvalidRequest(
                "A SELECT with user-defined functions can look at no more than "
                f"{USER_CALL_ROWS_MAX} rows or {UNPAGED_BYTES_MAX} bytes a page"
            )
        return results


def _rows(results: Sequence[ReadResult]) -> int:
    return sum(max(1, len(partition.rows)) for result in results for partition in result.partitions)


def _bytes(results: Sequence[ReadResult]) -> int:
    return sum(bytes_of(partition) for result in results for partition in result.partitions)


def tombstone_warning(notes: RequestTrace, query: str) -> str:
    """Empty when no replica is to be warned of."""
    scanned = notes.dead_by_node
    if not scanned:
        return ""
    return (
        f"{len(scanned)} nodes scanned up to {max(scanned.values())} tombstones and issued "
        f"tombstone warnings for query {_shown(query)}  (see tombstone_warn_threshold)"
    )


def worded(failure: ReadFailure, notes: RequestTrace, query: str) -> ReadFailure:
    """The failure in words that name the query, when it is one of too many tombstones."""
    scanned = notes.overwhelmed
    if scanned:
        failure.message = (
            f"{len(scanned)} nodes scanned over {max(scanned.values())} tombstones and aborted the query "
            f"{_shown(query)} (see tombstone_failure_threshold)"
        )
    return failure


def size_warning(
    settings: ReadsSection, table: str, size_bytes: int, consistency: Consistency, address: str
) -> str:
    """Empty when a page is small enough. ReadFailure when it is larger than the node sends."""
    fail_bytes, warn_bytes = (
        settings.coordinator_read_size_fail_bytes,
        settings.coordinator_read_size_warn_bytes,
    )
    said = f"Read on table {table} has exceeded the size"
    if size_bytes > fail_bytes > 0:
        reasons = ((address, READ_SIZE),) if is_inet(address) else ()
        failure = ReadFailure(consistency, 0, 0, 1, True, reasons)
        failure.message = f"{said} failure threshold of {fail_bytes:,} bytes"
        raise failure
    if size_bytes > warn_bytes > 0:
        return f"{said} warning threshold of {warn_bytes:,} bytes"
    return ""


def _shown(query: str) -> str:
    return query[:WARNED_QUERY_CHARACTERS_MAX]


class Selects:
    def __init__(self, node: NodeServices, virtual: VirtualTables, functions: UserFunctions) -> None:
        self._node = node
        self._virtual = virtual
        self._timeouts = node.context.configuration.timeouts
        self._functions = functions

    async def run(
        self,
        version: int,
        statement: Statement,
        values: Sequence[Value],
        context: Context,
        parameters: QueryParameters,
        execute: Execute | None,
    ) -> tuple[bytes, tuple[str, ...]]:
        """(body of the rows result, warnings). `execute` is None for a statement sent as text."""
        if statement.prepared.is_virtual:
            return await self._run(version, statement, values, context, parameters, execute), ()
        notes = REQUEST_TRACE.get()
        if notes is not None:
            return await self._noted(notes, version, statement, values, context, parameters, execute)
        notes = RequestTrace()
        taken = REQUEST_TRACE.set(notes)
        try:
            found = await self._noted(notes, version, statement, values, context, parameters, execute)
        except Exception:
            REQUEST_TRACE.reset(taken)
            raise
        # Not when the task is thrown away: that happens in a context of someone else.
        REQUEST_TRACE.reset(taken)
        return found

    async def _noted(
        self,
        notes: RequestTrace,
        version: int,
        statement: Statement,
        values: Sequence[Value],
        context: Context,
        parameters: QueryParameters,
        execute: Execute | None,
    ) -> tuple[bytes, tuple[str, ...]]:
        """As `run`, of a table that replicas keep."""
        try:
            body = await self._run(version, statement, values, context, parameters, execute)
        except ReadFailure as failure:
            raise worded(failure, notes, statement.text) from None
        table = f"{statement.prepared.keyspace}.{statement.prepared.table}"
        configuration = self._node.context.configuration
        level, address = parameters.consistency, configuration.network.address
        large = size_warning(configuration.reads, table, len(body), level, address)
        assert isinstance(statement.prepared.plan, SelectPrepared)
        unbuilt = build_warning(self._node, statement.prepared.plan.shape.table)
        found = (tombstone_warning(notes, statement.text), large, unbuilt)
        return body, tuple(warning for warning in found if warning)

    async def _run(
        self,
        version: int,
        statement: Statement,
        values: Sequence[Value],
        context: Context,
        parameters: QueryParameters,
        execute: Execute | None,
    ) -> bytes:
        prepared = statement.prepared
        select = prepared.plan
        assert isinstance(select, SelectPrepared)
        if not prepared.is_virtual:
            _check_level(parameters.consistency)
        page = None
        if parameters.paging_state:
            page = page_positions.decode(parameters.paging_state, select.shape.table.uuid)
        page_size = parameters.page_size or -1

        heavy = is_long(statement.text, values)

        def plan(moment: Context) -> SelectPlan:
            found = plan_select(prepared, values, moment, page, page_size)
            if parameters.consistency in SERIAL_LEVELS and not prepared.is_virtual:
                check_one_partition(found)
            return found

        async def read(commands: Sequence[ReadCommand]) -> Sequence[ReadResult]:
            if not prepared.is_virtual:
                return await self._read_all(commands, parameters.consistency, timeout_ms)
            # Making rows takes time: other requests come in between two rounds.
            await asyncio.sleep(0)
            results = []
            for command in commands:
                await self._virtual.prepare(command)
                results.append(self._virtual.read(command))
            return results

        timeout_ms = self._timeouts.read_ms if select.is_point else self._timeouts.range_read_ms
        if prepared.called:
            found = await page_with_calls(self._functions, context, plan, read)
        else:
            chosen = await self._functions.settled(context, (), plan, is_long=heavy)
            builder = PageBuilder(chosen, packs=True)
            while commands := builder.commands():
                results = await read(commands)
                if has_large_row(results):
                    await self._functions.aside.run(partial(builder.add, results))
                    continue
                for _ in builder.adding(results):
                    await asyncio.sleep(0)
            found = builder.page()
        if not prepared.is_virtual:
            self._check_columns(select.shape)
        new_id = None
        if execute is not None and version in HAS_METADATA_ID:
            new_id = statement.result_id if execute.result_metadata_id != statement.result_id else None
        return responses.rows_encoded(
            statement.metadata(version),
            [*found.packed, *await _encoded(found.rows)],
            found.packed_rows + len(found.rows),
            paging_state=found.paging_state,
            skip_metadata=parameters.skip_metadata
            and execute is not None
            and (version in HAS_METADATA_ID or not statement.shape_changed),
            new_metadata_id=new_id,
        )

    async def lists(
        self, entries: Sequence[tuple[Prepared, Sequence[Value]]], context: Context, consistency: Consistency
    ) -> Lists | None:
        """The lists that modifications change by index or element; None when they change none so."""
        if not any(reads_lists(prepared) for prepared, _ in entries):
            return None
        if consistency is Consistency.ANY:
            raise InvalidRequest(
                "Write operation require a read but consistency ANY is not supported on reads"
            )
        _check_level(consistency)
        if consistency in SERIAL_LEVELS:
            raise serial_write(consistency)
        called = called_by(prepared for prepared, _ in entries)
        commands = await self._functions.settled(
            context, called, lambda moment: modification.commands(entries, moment)
        )
        results: list[ReadResult] = []
        for at in range(0, len(commands), PARTITION_READS_AT_ONCE_MAX):
            some = commands[at : at + PARTITION_READS_AT_ONCE_MAX]
            results += await self._read_all(some, consistency, self._timeouts.read_ms)
        if has_large_row(results):
            return await self._functions.aside.run(partial(modification.lists, commands, results))
        return modification.lists(commands, results)

    def _check_columns(self, shape: TableShape) -> None:
        """ColumnsGone when the table lost columns since: an answer in them could show what was dropped. Also
        when a type in them has changed: values may have fields that the answer's description lacks."""
        schema, planned = self._node.log.cluster.schema, shape.table
        table = schema.tables_by_id.get(planned.id)
        if table is None or table is planned:
            return
        if not table.by_id.keys() >= planned.by_id.keys():
            raise ColumnsGone(planned.name, begun=False)
        if types_of_table(shape.space, planned) != types_of_table(schema.by_name[table.keyspace], table):
            raise ColumnsGone(planned.name, begun=False)

    async def _read_all(
        self, commands: Sequence[ReadCommand], consistency: Consistency, timeout_ms: int
    ) -> list[ReadResult]:
        """Results in the order of the commands; the first command's error when any failed."""
        if len(commands) == 1:
            return [await read_at(self._node, commands[0], consistency, timeout_ms)]
        spawn = self._node.context.runtime.tasks.spawn
        tasks = [
            spawn(self._read(command, consistency, timeout_ms), "cql.partition-read") for command in commands
        ]
        found: list[ReadResult] = []
        for outcome in await asyncio.gather(*tasks):
            if isinstance(outcome, LockstepError):
                raise outcome
            found.append(outcome)
        return found

    async def _read(
        self, command: ReadCommand, consistency: Consistency, timeout_ms: int
    ) -> ReadResult | LockstepError:
        try:
            return await read_at(self._node, command, consistency, timeout_ms)
        except LockstepError as error:
            return error


async def _encoded(rows: Sequence[ResultRow]) -> list[bytes]:
    """In parts, with turns for others between them."""
    parts: list[bytes] = []
    for at in range(0, len(rows), ROWS_A_TURN):
        if at:
            await asyncio.sleep(0)
        parts.append(responses.encode_rows(rows[at : at + ROWS_A_TURN]))
    return parts


def _check_level(consistency: Consistency) -> None:
    if consistency is Consistency.ANY:
        raise InvalidRequest("ANY ConsistencyLevel is only supported for writes")
