"""Reads of which replicas tell in place of rows.

Invariant: what is told is what the replicas' content merged would tell. It is taken over only when all
replicas of the quorum tell the same, which they do where they hold the same; where they do not, the rows are
read, merged and repaired as those of any read, and told here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from lockstep.coordination.page import bytes_of
from lockstep.scans.telling import Telling, joined, joined_given
from lockstep.storage.rows.visible import counts_static
from lockstep.values.limits import PAGE_ROWS_DEFAULT
from lockstep.values.node_limits import PAGE_BYTES_MAX
from lockstep.values.outlines import Outline, Told
from lockstep.values.rows import Partition, Position, ReadCommand, ReadResult

#: Rows that replicas are asked to sum up at once: the more the longer they have agreed, for where they do
#: not, the whole piece is read again.
_FIRST: Final = PAGE_ROWS_DEFAULT
_FEWEST: Final = 256
_WIDER: Final = 4

#: (what all replicas tell of a piece, or its rows where these are few, or None where they differ; the
#: piece that they were asked).
Ask = Callable[[ReadCommand], Awaitable[tuple[ReadResult | None, ReadCommand]]]
Rows = Callable[[ReadCommand], Awaitable[ReadResult]]


async def told_of(command: ReadCommand, ask: Ask, rows_of: Rows) -> ReadResult:
    """Up to `row_limit` rows, and where to go on: told of, or given where all are few. `rows_of` reads rows
    as reads without outline do."""
    outline = command.outline
    assert outline is not None and command.row_limit, "the rows that are told of in one answer have a limit"
    parts: list[Told] = []
    given: list[Partition] = []
    left, after, width, count, groups = command.left, command.after, _FIRST, 0, 0
    size = 0
    while True:
        if after is not None and command.key is None:
            left = max(left, after.token - 1)
        room = min(command.row_limit - count, width)
        piece = replace(command, left=left, after=after, row_limit=room, outline=_left_of(outline, groups))
        found, asked = await ask(piece)
        if found is None:
            width = max(_FEWEST, width // _WIDER)
            room = min(room, PAGE_ROWS_DEFAULT)
            found = await rows_of(replace(asked, outline=None, row_limit=room))
        elif found.told is not None:
            width *= _WIDER
        end = found.end
        if found.told is None and not parts and (end is not None or asked.right >= command.right):
            return found
        told, partitions = found.told, found.partitions
        if told is None:
            told, partitions = _of_rows(outline, asked, found)
        if found.told is None and end is None and command.key is None and told.rows >= room:
            end = Position(found.partitions[-1].token, found.partitions[-1].key)
        parts.append(told)
        given += partitions
        count += told.rows
        groups += len(told.groups)
        if end is None and asked.right >= command.right:
            return ReadResult(joined_given(given), False, None, joined(outline, parts))
        size += len(told.packed) + sum(map(bytes_of, partitions)) + sum(len(one.first) for one in told.groups)
        is_full = count >= command.row_limit or size >= PAGE_BYTES_MAX
        if end is not None and (is_full or told.closed or told.rows < room):
            return ReadResult(joined_given(given), True, end, joined(outline, parts))
        left, after = (asked.right, None) if end is None else (left, end)


def _left_of(outline: Outline, groups: int) -> Outline:
    """What is asked of the next piece when so many groups are known: one more, to see where the last one
    ends, when there is no room for others."""
    if outline.grouping is None or not groups:
        return outline
    most = max(1, outline.grouping.most - groups)
    return replace(outline, grouping=replace(outline.grouping, most=most))


def _of_rows(outline: Outline, command: ReadCommand, read: ReadResult) -> tuple[Told, tuple[Partition, ...]]:
    telling = Telling(outline)
    for partition in read.partitions:
        telling.live(partition, static_counts=counts_static(command, partition.key))
    return telling.told(), telling.given()
