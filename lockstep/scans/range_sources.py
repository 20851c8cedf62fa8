"""Where the pairs that a read command asks for come from, many at a time and as of one instant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from lockstep.storage.reading import normal_slices, pieces_of
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair, RangeCursor, StoreSnapshot
from lockstep.values.rows import ALL_ROWS, ReadCommand
from lockstep.values.tokens import Range

#: Ranges that are opened at once: each is two iterators of the library.
_OPENED_MAX: Final = 3

Piece: TypeAlias = tuple[bytes, bytes]
OpenRange: TypeAlias = Callable[[bytes, bytes], RangeCursor]


def source_of(view: StoreSnapshot, command: ReadCommand, open_range: OpenRange | None) -> RangeCursor:
    """All that is asked for. `open_range` takes pairs quicker than scans of the view do; it is called in this
    step, so with a view of this step all is of one instant."""
    pieces, rest = _pieces(command)
    whole = rest is None or command.slices == ALL_ROWS
    if rest is not None and whole:
        pieces.append(rest)
    if open_range is None or not whole or len(pieces) > _OPENED_MAX:
        return _Scans(_pairs(view, command, pieces, None if whole else rest))
    return _OpenRanges([open_range(*piece) for piece in pieces])


def _pieces(command: ReadCommand) -> tuple[list[Piece], Piece | None]:
    """What is read of the partition that is asked for, or in which it begins, and what is behind it."""
    after, slices = command.after, normal_slices(command.slices)
    if command.key is not None:
        if after is not None and after.clustering is None:
            return [], None
        prefix = keys.partition_prefix(command.table_id, command.right, command.key)
        return [piece[:2] for piece in pieces_of(command, slices, command.key, prefix)], None
    lower, upper = keys.token_bounds(command.table_id, Range(command.left, command.right))
    if after is None:
        return [], (lower, upper)
    prefix = keys.partition_prefix(command.table_id, after.token, after.key)
    rest = max(lower, keys.partition_end(prefix)), upper
    if after.clustering is None:
        return [], rest
    return [piece[:2] for piece in pieces_of(command, slices, after.key, prefix)], rest


def _pairs(
    view: StoreSnapshot, command: ReadCommand, pieces: Sequence[Piece], rest: Piece | None
) -> Iterator[Pair]:
    """`rest`: partitions of which some rows are asked for."""
    for piece in pieces:
        yield from view.scan(*piece)
    if rest is None:
        return
    slices, (lower, upper) = normal_slices(command.slices), rest
    while (found := next(view.scan(lower, upper), None)) is not None:
        _, key, prefix = keys.split_partition(found[0])
        for first, last, _ in pieces_of(command, slices, key, prefix):
            yield from view.scan(first, last)
        lower = keys.partition_end(prefix)


class _Scans:
    """Pairs of one scan after the other."""

    def __init__(self, pairs: Iterator[Pair]) -> None:
        self._pairs = pairs

    def take(self, count: int) -> list[Pair]:
        return list(itertools.islice(self._pairs, count))

    def close(self) -> None: ...


class _OpenRanges:
    """Ranges that were opened together, one after the other."""

    def __init__(self, cursors: Sequence[RangeCursor]) -> None:
        self._cursors = list(cursors)

    def take(self, count: int) -> list[Pair]:
        found: list[Pair] = []
        while self._cursors and len(found) < count:
            some = self._cursors[0].take(count - len(found))
            found = [*found, *some] if found else some
            if len(found) < count:
                self._cursors.pop(0).close()
        return found

    def close(self) -> None:
        for cursor in self._cursors:
            cursor.close()
        self._cursors = []
