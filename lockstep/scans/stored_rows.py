"""Many stored rows looked at together, as they are stored: which of them need no merging, and whose bytes lie
where, by ranges of tokens.

Invariant: a row that is not told to be merged alone is one fragment without deletions and expiries, which
holds what merging it alone gives.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lockstep.scans.gather import Joined
from lockstep.scans.row_keys import RowKeys
from lockstep.scans.row_shapes import ShapeRules, Shapes
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair


class StoredRows:
    """Of one table. `rights`: ends of adjacent ranges of tokens, in order."""

    def __init__(self, rights: Sequence[int], widths: dict[int, int]) -> None:
        self._rights = rights
        self._shapes = Shapes(ShapeRules(widths, frozenset(), frozenset()))

    def portion(self, pairs: Sequence[Pair]) -> Portion:
        """As many of the pairs as are rows before there is one that is none."""
        row_keys = RowKeys(pairs)
        if not row_keys.are_rows.all():
            # The partition of what is no row begins with it.
            pairs = pairs[: int(row_keys.are_rows.argmin())]
            row_keys = RowKeys(pairs) if pairs else row_keys
        return Portion(pairs, row_keys, self._shapes, self._rights)


class Portion:
    def __init__(
        self, pairs: Sequence[Pair], row_keys: RowKeys, shapes: Shapes, rights: Sequence[int]
    ) -> None:
        self.pairs = pairs
        self.count = len(pairs)
        self._places = row_keys.joined
        self._rights = rights
        self._is_plain = np.zeros(self.count, dtype=bool)
        #: Of rows that were merged alone, by their first fragments; None: nothing is left.
        self._merged: dict[int, bytes | None] = {}
        if not self.count:
            return
        self._same = same = row_keys.joined.repeats()
        self._values = Joined([value for _, value in pairs])
        for alike in shapes.sorted_out(self._values, np.flatnonzero(~(same[:-1] | same[1:]))):
            if not alike.shape.dead:
                self._is_plain[alike.rows] = True
        self._all_plain = bool(self._is_plain.all())

    def rows_alone(self) -> Iterator[tuple[int, int]]:
        """(first fragment, behind the last) of each row that is to be merged alone."""
        left = np.flatnonzero(~self._is_plain)
        at = 0
        while at < len(left):
            first = int(left[at])
            end = first + 1
            while self._same[end]:
                end += 1
            at += end - first
            yield first, end

    def put(self, first: int, end: int, content: bytes | None) -> None:
        """What is left of the row of these fragments."""
        self._merged[first] = content
        for other in range(first + 1, end):
            self._merged[other] = None

    def by_bucket(self) -> Iterator[tuple[int, Any, Any, Any, int]]:
        """(number of the range, places, their lengths, what is there, rows) of each range that has some."""
        first = 0
        while first < self.count:
            number = bisect.bisect_left(self._rights, keys.token_of(self.pairs[first][0]))
            right = self._rights[number]
            end = self.count
            if keys.token_of(self.pairs[-1][0]) > right:
                end = bisect.bisect_right(self.pairs, right, lo=first, key=_token)
            yield (number, *self._between(first, end))
            first = end

    def _between(self, first: int, end: int) -> tuple[Any, Any, Any, int]:
        places, values = self._places, self._values
        if self._all_plain or self._is_plain[first:end].all():
            return (
                places.content[int(places.starts[first]) : int(places.ends[end - 1])],
                (places.ends[first:end] - places.starts[first:end]).astype("<u4").tobytes(),
                values.content[int(values.starts[first]) : int(values.ends[end - 1])],
                end - first,
            )
        kept = []
        for at in range(first, end):
            content = self._merged[at] if at in self._merged else self.pairs[at][1]
            if content is not None:
                kept.append((places.value(at), content))
        lengths = np.array([len(place) for place, _ in kept], dtype="<u4").tobytes()
        return b"".join([one for one, _ in kept]), lengths, b"".join([one for _, one in kept]), len(kept)


def _token(pair: Pair) -> int:
    return keys.token_of(pair[0])
