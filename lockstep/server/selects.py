"""SELECT: rounds of reads until a page is full, from replicas or from the system tables.

Invariant: a page is complete or its paging state continues exactly behind its last row, on any node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lockstep.cql import list_reads, paging
from lockstep.cql.catalog import TableShape
from lockstep.cql.context import Context, Lists
from lockstep.cql.grouping import ResultRow
from lockstep.cql.list_reads import reads_lists
from lockstep.cql.prepared import Prepared
from lockstep.cql.results import PageBuilder
from lockstep.cql.select import SelectPlan, SelectPrepared, plan_select
from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import has_metadata_id
from lockstep.cql.wire.messages import Execute, QueryParameters, Value
from lockstep.replication.notes import NOTES, Notes
from lockstep.schema.user_types import types_of_table
from lockstep.server.planning_aside import is_long
from lockstep.server.read_warnings import size_warning, tombstone_warning, worded
from lockstep.server.serial_levels import SERIAL_LEVELS, check_one_partition, read_at, serial_write
from lockstep.server.statements import Statement
from lockstep.server.user_functions import UserFunctions, called_by
from lockstep.server.user_pages import page_with_calls
from lockstep.server.view_build_rows import build_warning
from lockstep.server.virtual import VirtualTables
from lockstep.values.errors import ColumnsGone, InvalidRequest, LockstepError, ReadFailure
from lockstep.values.ids import Consistency
from lockstep.values.limits import PARTITION_READS_AT_ONCE_MAX
from lockstep.values.request_limits import ROWS_A_TURN
from lockstep.values.rows import ReadCommand, ReadResult, has_large_row

if TYPE_CHECKING:
    from lockstep.node.node import Node


class Selects:
    def __init__(self, node: Node, virtual: VirtualTables, functions: UserFunctions) -> None:
        self._node = node
        self._virtual = virtual
        self._timeouts = node.configuration.timeouts
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
        notes = NOTES.get()
        if notes is not None:
            return await self._noted(notes, version, statement, values, context, parameters, execute)
        notes = Notes()
        taken = NOTES.set(notes)
        try:
            found = await self._noted(notes, version, statement, values, context, parameters, execute)
        except Exception:
            NOTES.reset(taken)
            raise
        # Not when the task is thrown away: that happens in a context of someone else.
        NOTES.reset(taken)
        return found

    async def _noted(
        self,
        notes: Notes,
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
        configuration = self._node.configuration
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
            page = paging.decode(parameters.paging_state, select.shape.table.uuid)
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
            builder = PageBuilder(chosen)
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
        if execute is not None and has_metadata_id(version):
            new_id = statement.result_id if execute.result_metadata_id != statement.result_id else None
        return responses.rows_encoded(
            statement.metadata(version),
            await _encoded(found.rows),
            len(found.rows),
            paging_state=found.paging_state,
            skip_metadata=parameters.skip_metadata
            and execute is not None
            and (has_metadata_id(version) or not statement.shape_changed),
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
            context, called, lambda moment: list_reads.commands(entries, moment)
        )
        results: list[ReadResult] = []
        for at in range(0, len(commands), PARTITION_READS_AT_ONCE_MAX):
            some = commands[at : at + PARTITION_READS_AT_ONCE_MAX]
            results += await self._read_all(some, consistency, self._timeouts.read_ms)
        if has_large_row(results):
            return await self._functions.aside.run(partial(list_reads.lists, commands, results))
        return list_reads.lists(commands, results)

    def _check_columns(self, shape: TableShape) -> None:
        """ColumnsGone when the table lost columns since: an answer in them could show what was dropped. Also
        when a type in them has changed: values may have fields that the answer's description lacks."""
        schema, planned = self._node.cluster.schema, shape.table
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
        spawn = self._node.runtime.tasks.spawn
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
