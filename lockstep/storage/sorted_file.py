"""What a sorted file holds: fragments of one range in key order, cut where a stream can go on.

The bytes are the store's own: another store of its kind takes them in as they are (`Store.run_at`).

Invariants. A file ends with a whole partition unless that one alone is larger than a file may be: then
`next_key` is where the partition begins. Nothing of the range lies between `last_key` and `next_key`, or
`next_key` is at or below `last_key`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Protocol

from lockstep.storage.rows import keys
from lockstep.storage.store import FileSummary, Pair
from lockstep.values.limits import (
    STREAM_BLOCK_BYTES,
    STREAM_BLOCK_PAIRS,
    STREAM_PAIR_BYTES,
    STREAM_PAIRS_TAKEN,
)

#: Of the files' bytes: raised when stores of an earlier version could not take them in.
FORMAT_VERSION = 3


class PairSink(Protocol):
    """The file being made."""

    @property
    def size_bytes(self) -> int: ...

    def add(self, pairs: Sequence[Pair]) -> None: ...


class RangeFiles:
    """Puts the fragments that `take` gives into one file after the other, a block at a time.

    `bytes_max` is where a file ends at the next end of a partition; twice that, where it ends anyway.
    """

    def __init__(self, take: Callable[[int], list[Pair]], bytes_max: int) -> None:
        self._take = take
        self._bytes_max = bytes_max
        #: Small files are for tests and tight disks; they get small steps.
        self._block_bytes = min(STREAM_BLOCK_BYTES, bytes_max // 4)
        self._count = max(1, min(STREAM_PAIRS_TAKEN, self._block_bytes // STREAM_PAIR_BYTES))
        self._left: list[Pair] = []
        #: Nothing is left to make files of, once the present one is complete.
        self.ended = False
        self.begin()

    def begin(self) -> None:
        """Forget the file that is complete."""
        self.entries = 0
        self._first = self._last = self._next = b""
        self._complete = False

    def add_block(self, file: PairSink) -> bool:
        """Add what follows to the file; False when nothing more belongs into it."""
        if self._complete:
            return False
        pairs = self._pairs()
        if not pairs:
            self._complete = True
            return False
        if file.size_bytes >= self._bytes_max:
            pairs = self._cut(pairs, file.size_bytes)
        if pairs:
            self._add(pairs, file)
        return not self._complete

    def _pairs(self) -> list[Pair]:
        """What follows, some ten kilobytes of it."""
        found, self._left = self._left, []
        if not found and not self.ended:
            found = self._take(self._count)
            self.ended = len(found) < self._count
        return found

    def _cut(self, pairs: list[Pair], size_bytes: int) -> list[Pair]:
        """The file is large enough: what of `pairs` still belongs to the partition it ends with."""
        prefix = keys.split_partition(self._last)[2]
        at = bisect.bisect_left(pairs, (keys.partition_end(prefix),))
        if at == len(pairs) and size_bytes < 2 * self._bytes_max:
            return pairs
        self._complete = True
        if at == len(pairs):
            self._next, self._left, at = prefix, pairs, 0
        else:
            self._left = pairs[at:]
        self.ended = False if self._left else self.ended
        return pairs[:at]

    def _add(self, pairs: list[Pair], file: PairSink) -> None:
        file.add(pairs)
        if not self.entries:
            self._first = pairs[0][0]
        self._last = pairs[-1][0]
        self.entries += len(pairs)
        # As many as fit a block by what the file has, but no sudden crowd of what may be larger ones.
        fit = self._block_bytes * self.entries // max(1, file.size_bytes)
        self._count = max(1, min(fit, STREAM_BLOCK_PAIRS, 2 * self._count))

    def summary(self, size_bytes: int, digest: bytes) -> FileSummary:
        """Of the complete file; without entries when there was nothing left."""
        next_key = self._next
        if self.entries and not next_key:
            next_key = keys.partition_end(keys.split_partition(self._last)[2])
        return FileSummary(self.entries, size_bytes, self._first, self._last, next_key, digest)
