"""Pages of a SELECT that calls user functions.

Invariant: a page is worked out from one set of readings: what was read is kept until every result that the
page depends on is known, and read again only where a result leads to other reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from lockstep.cql.context import Context
from lockstep.cql.results import Page, PageBuilder
from lockstep.cql.select import SelectPlan
from lockstep.cql.user_calls import UserCalls
from lockstep.replication.page import bytes_of
from lockstep.server.user_functions import UserFunctions, too_deep
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.limits import USER_CALL_ROUNDS_MAX, USER_CALL_ROWS_MAX
from lockstep.values.request_limits import UNPAGED_BYTES_MAX
from lockstep.values.rows import ReadCommand, ReadResult

Plan = Callable[[Context], SelectPlan]
Read = Callable[[Sequence[ReadCommand]], Awaitable[Sequence[ReadResult]]]


async def page_with_calls(functions: UserFunctions, context: Context, plan: Plan, read: Read) -> Page:
    """The page that `plan` begins. The errors of `plan` and `read`, FunctionFailure, Overloaded, and
    InvalidRequest when more rows would have to be kept than USER_CALL_ROWS_MAX."""
    calls, kept = UserCalls(), _Kept(read)
    for _ in range(USER_CALL_ROUNDS_MAX):
        # The plan first: while it waits for results, what it would read is not known.
        await functions.settled_with(calls, context, plan)
        builder = PageBuilder(plan(calls.context(context)))
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
