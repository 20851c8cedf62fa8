"""Digests of fragments as they are stored: equal where replicas store the same, without looking into them.

Invariant: a key and a value tell themselves where they end, so fragments that are joined to the same bytes
are the same fragments. Digests that differ say little: content may be equal and lie in other fragments.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import xxhash

from lockstep.scans.row_keys import RowKeys
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair

_KEY: Final = operator.itemgetter(0)


class StoredDigests:
    """Of pairs in key order, part after part."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._held: list[Pair] = []

    def take(self, pairs: Sequence[Pair]) -> None:
        """They are of the present part."""
        if pairs:
            self._hash.update(b"".join(itertools.chain.from_iterable(pairs)))

    def take_before(self, key: bytes, pairs: Sequence[Pair]) -> None:
        """Those from the key on are held back: they are of a later part."""
        held = [*self._held, *pairs] if self._held else pairs
        at = bisect.bisect_left(held, key, key=_KEY)
        self.take(held[:at])
        self._held = list(held[at:])

    def told(self) -> bytes:
        """The digest of the part, which is over."""
        found = self._hash.digest()
        self._hash.reset()
        return found

    def rest(self) -> bytes:
        """That of the last part, with what was held back."""
        held, self._held = self._held, []
        self.take(held)
        return self.told()


class _RowCount:
    """Of portions of pairs, how many rows begin before each pair of the last one."""

    def __init__(self) -> None:
        self._last_place = b""
        self._before: Any = None

    def take(self, pairs: Sequence[Pair]) -> None:
        row_keys = RowKeys(pairs)
        is_new = row_keys.are_rows & ~row_keys.joined.repeats()[:-1]
        if pairs[0][0][: -keys.WRITE_BYTES] == self._last_place:
            is_new[0] = False
        self._last_place = pairs[-1][0][: -keys.WRITE_BYTES]
        self._before = np.concatenate(([0], np.cumsum(is_new)))

    def between(self, at: int, end: int) -> int:
        return int(self._before[end] - self._before[at])


def parted(
    portions: Iterable[Sequence[Pair]], cuts: Sequence[bytes], *, counts_rows: bool = False
) -> Iterator[tuple[bytes, int] | None]:
    """(digest, rows) of what lies before each of the keys `cuts`, which ascend, and of what is behind the
    last; None where a portion ends. `counts_rows`: else there are 0; with what may be purged."""
    stored, count = StoredDigests(), _RowCount() if counts_rows else None
    number = rows = 0
    for pairs in portions:
        if count is not None:
            count.take(pairs)
        at = 0
        while number < len(cuts) and pairs[-1][0] >= cuts[number]:
            end = bisect.bisect_left(pairs, cuts[number], lo=at, key=_KEY)
            stored.take(pairs[at:end])
            rows += 0 if count is None else count.between(at, end)
            yield stored.told(), rows
            at, number, rows = end, number + 1, 0
        stored.take(pairs[at:])
        rows += 0 if count is None else count.between(at, len(pairs))
        yield None
    for _ in range(number, len(cuts) + 1):
        yield stored.told(), rows
        rows = 0
