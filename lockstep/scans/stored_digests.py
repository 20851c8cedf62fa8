"""Digests of fragments as they are stored: equal where replicas store the same, without looking into them.

Invariant: a key and a value tell themselves where they end, so fragments that are joined to the same bytes
are the same fragments. Digests that differ say little: content may be equal and lie in other fragments.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import xxhash

from lockstep.scans.row_keys import RowKeys
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair

_KEY: Final = operator.itemgetter(0)


class StoredDigests:
    """Of pairs in key order, part after part. `counts_rows`: these too, with what may be purged."""

    def __init__(self, *, counts_rows: bool = False) -> None:
        self._counts_rows = counts_rows
        self._hash = xxhash.xxh3_128()
        self._held: list[Pair] = []
        self._rows = 0
        self._last_place = b""

    def take(self, pairs: Sequence[Pair]) -> None:
        """They are of the present part."""
        if not pairs:
            return
        self._hash.update(b"".join(itertools.chain.from_iterable(pairs)))
        if self._counts_rows:
            self._count(pairs)

    def take_before(self, key: bytes, pairs: Sequence[Pair]) -> None:
        """Those from the key on are held back: they are of a later part."""
        held = [*self._held, *pairs] if self._held else pairs
        at = bisect.bisect_left(held, key, key=_KEY)
        self.take(held[:at])
        self._held = list(held[at:])

    def told(self) -> tuple[bytes, int]:
        """Digest and rows of the part, which is over."""
        found = self._hash.digest(), self._rows
        self._hash.reset()
        self._rows = 0
        return found

    def rest(self) -> bytes:
        """The digest of the last part, with what was held back."""
        held, self._held = self._held, []
        self.take(held)
        return self.told()[0]

    def _count(self, pairs: Sequence[Pair]) -> None:
        row_keys = RowKeys(pairs)
        first = pairs[0][0][: -keys.WRITE_BYTES]
        is_new = row_keys.are_rows & ~row_keys.joined.repeats()[:-1]
        self._rows += int(np.count_nonzero(is_new)) - bool(is_new[0] and first == self._last_place)
        self._last_place = pairs[-1][0][: -keys.WRITE_BYTES]


def parted(
    portions: Iterable[Sequence[Pair]], cuts: Sequence[bytes], *, counts_rows: bool = False
) -> Iterator[tuple[bytes, int] | None]:
    """(digest, rows) of what lies before each of the keys `cuts`, which ascend, and of what is behind the
    last; None where a portion ends."""
    stored, number = StoredDigests(counts_rows=counts_rows), 0
    for pairs in portions:
        at = 0
        while number < len(cuts) and pairs[-1][0] >= cuts[number]:
            end = bisect.bisect_left(pairs, cuts[number], lo=at, key=_KEY)
            stored.take(pairs[at:end])
            yield stored.told()
            at, number = end, number + 1
        stored.take(pairs[at:])
        yield None
    for _ in range(number, len(cuts) + 1):
        yield stored.told()
