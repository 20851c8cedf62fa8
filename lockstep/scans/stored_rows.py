"""Many stored rows looked at together, as they are stored: which of them need no merging, and whose bytes lie
where, by ranges of tokens.

Invariant: a row that is not told to be merged alone is one fragment without deletions and expiries, which
holds what merging it alone gives.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from lockstep.scans.gather import Joined
from lockstep.scans.row_keys import RowKeys, bodies
from lockstep.scans.row_shapes import ShapeRules, Shapes
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair

#: Of a key: where its token is.
_TOKEN: Final = slice(keys.PLACE_BYTES - 8, keys.PLACE_BYTES)
_BIAS: Final = 1 << 63


class StoredRows:
    """Of one table. `rights`: ends of adjacent ranges of tokens, in order."""

    def __init__(self, rights: Sequence[int], widths: dict[int, int]) -> None:
        self._rights = np.array([right + _BIAS for right in rights], dtype="u8")
        self._shapes = Shapes(ShapeRules(widths, frozenset(), frozenset()))

    def portion(self, pairs: Sequence[Pair]) -> Portion:
        """As many of the pairs as are rows before there is one that is none."""
        found = bodies(pairs)
        row_keys = RowKeys(found)
        if not row_keys.are_rows.all():
            count = int(row_keys.are_rows.argmin())
            # The partition of what is no row begins with it.
            pairs, found = pairs[:count], found[:count]
            row_keys = RowKeys(found) if found else row_keys
        return Portion(pairs, found, row_keys, self._shapes, self._rights)


class Portion:
    def __init__(
        self, pairs: Sequence[Pair], found: list[bytes], row_keys: RowKeys, shapes: Shapes, rights: Any
    ) -> None:
        self.pairs = pairs
        self.count = len(pairs)
        self._bodies = found
        self._places = row_keys.joined
        self._rights = rights
        self._is_plain = np.zeros(self.count, dtype=bool)
        self._same = np.zeros(self.count + 1, dtype=bool)
        #: Of rows that were merged alone, by their first fragments; None: nothing is left.
        self._merged: dict[int, bytes | None] = {}
        if not self.count:
            return
        self._same[1:-1] = np.fromiter(map(operator.eq, found, found[1:]), dtype=bool, count=self.count - 1)
        alone = np.flatnonzero(~(self._same[:-1] | self._same[1:]))
        self._values = Joined([value for _, value in pairs])
        for alike in shapes.sorted_out(self._values, alone):
            if not alike.shape.dead:
                self._is_plain[alike.rows] = True

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
        if not self.count:
            return
        tokens = np.frombuffer(b"".join([key[_TOKEN] for key, _ in self.pairs]), dtype=">u8")
        numbers = np.searchsorted(self._rights, tokens)
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), self.count]
        for first, end in itertools.pairwise(cuts):
            yield (int(numbers[first]), *self._between(first, end))

    def _between(self, first: int, end: int) -> tuple[Any, Any, Any, int]:
        if self._is_plain[first:end].all():
            places, values = self._places, self._values
            return (
                places.content[int(places.starts[first]) : int(places.ends[end - 1])],
                places.lengths[first:end].astype("<u4").tobytes(),
                values.content[int(values.starts[first]) : int(values.ends[end - 1])],
                end - first,
            )
        kept = []
        for at in range(first, end):
            content = self._merged[at] if at in self._merged else self.pairs[at][1]
            if content is not None:
                kept.append((self._bodies[at], content))
        lengths = np.array([len(place) for place, _ in kept], dtype="<u4").tobytes()
        return b"".join([one for one, _ in kept]), lengths, b"".join([one for _, one in kept]), len(kept)
