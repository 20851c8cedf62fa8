"""Queries by index over many data ranges: several ranges are asked at once, the more the less is found.

Invariant: the answer is that of asking one range after the other: results are taken in token order, and what
lies behind the place where the answer is full is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from lockstep.coordination.page import Page
from lockstep.runtime.ports import Tasks
from lockstep.values.errors import LockstepError
from lockstep.values.limits import INDEX_RANGES_AT_ONCE_MAX
from lockstep.values.rows import ReadCommand, ReadResult

Read = Callable[[ReadCommand], Awaitable[ReadResult]]


async def scan(
    command: ReadCommand, read: Read, end_of_range: Callable[[int], int], tasks: Tasks
) -> ReadResult:
    """`read` answers a command within one range; `end_of_range(token)` is the last token of its range."""
    page = Page(command)
    left, at_once = command.left, 1
    if command.after is not None:
        left = max(left, command.after.token - 1)
    while True:
        parts, held = _parts(command, left, end_of_range, at_once), page.count()
        results = await _together([read(part) for part in parts], tasks)
        for result in results:
            page.add(result.partitions, result.end)
            if result.more or page.full():
                return page.result(result.end or page.behind_last())
        left = parts[-1].right
        if left >= command.right:
            return page.result(None)
        at_once = _next_width(page, command, at_once, page.count() - held)


def _parts(
    command: ReadCommand, left: int, end_of_range: Callable[[int], int], count: int
) -> list[ReadCommand]:
    """The next ranges, each as a command of its own."""
    found: list[ReadCommand] = []
    while left < command.right and len(found) < count:
        right = min(command.right, end_of_range(left + 1))
        after = command.after if _is_in(command, left, right) else None
        found.append(replace(command, left=left, right=right, after=after))
        left = right
    return found


def _is_in(command: ReadCommand, left: int, right: int) -> bool:
    return command.after is not None and left < command.after.token <= right


def _next_width(page: Page, command: ReadCommand, at_once: int, found: int) -> int:
    """As many ranges as may fill the rest; twice as many as before at most."""
    widest = min(2 * at_once, INDEX_RANGES_AT_ONCE_MAX)
    if not found or not command.row_limit:
        return widest
    return max(1, min(widest, page.room() * at_once // found))


async def _together(works: list[Awaitable[ReadResult]], tasks: Tasks) -> list[ReadResult]:
    """Results in order; the first error, once all have ended."""
    if len(works) == 1:
        return [await works[0]]

    async def safe(work: Awaitable[ReadResult]) -> ReadResult | LockstepError:
        try:
            return await work
        except LockstepError as error:
            return error

    outcomes = await asyncio.gather(*(tasks.spawn(safe(work), "read-by-index") for work in works))
    found: list[ReadResult] = []
    for outcome in outcomes:
        if isinstance(outcome, LockstepError):
            raise outcome
        found.append(outcome)
    return found
