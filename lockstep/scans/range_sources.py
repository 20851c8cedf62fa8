"""Where pairs of several ranges of one instant come from, many at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from lockstep.storage.store import Pair, RangeCursor


class Scans:
    """Pairs of one scan after the other."""

    def __init__(self, pairs: Iterator[Pair]) -> None:
        self._pairs = pairs

    def take(self, count: int) -> list[Pair]:
        return list(itertools.islice(self._pairs, count))

    def close(self) -> None: ...


class OpenRanges:
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
