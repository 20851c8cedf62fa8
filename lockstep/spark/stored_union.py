"""What several replicas store of one range, taken together.

Invariant: fragments come in key order, each once, as if one store had all of them, and no further than all
sources have told.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from lockstep.scans.content_reading import pairs_of
from lockstep.storage.store import Pair
from lockstep.values.errors import LockstepError


class SourceFailed(Exception):
    def __init__(self, node: int, error: LockstepError) -> None:
        super().__init__(error.message)
        self.node = node
        self.error = error


class Source:
    """What one replica stores, batch by batch."""

    def __init__(self, node: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._node = node
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        #: What is left of the batch; None while nothing was taken of it.
        self._left: list[Pair] | None = None
        self.ended = False

    def fill(self) -> None:
        """Have a batch, unless it has ended."""
        try:
            while self.batch is None and not self.ended:
                batch = next(self._batches, None)
                self.ended = batch is None
                self.batch = batch if batch is not None and batch.num_rows else None
        except LockstepError as error:
            raise SourceFailed(self._node, error) from error

    @property
    def is_whole(self) -> bool:
        return self.batch is not None and self._left is None

    @property
    def pairs(self) -> list[Pair]:
        if self._left is None:
            self._left = [] if self.batch is None else pairs_of(self.batch)
        return self._left

    def take(self, last: bytes) -> list[Pair]:
        """Those up to a key, which is in the batch or behind it."""
        pairs = self.pairs
        at = bisect.bisect_right(pairs, last, key=itemgetter(0))
        self._left = pairs[at:]
        if at == len(pairs):
            self.taken()
        return pairs[:at]

    def taken(self) -> None:
        self.batch = self._left = None

    def close(self) -> None:
        close: Any = getattr(self._batches, "close", None)
        if close is not None:
            close()


def union(sources: Sequence[Source]) -> Iterator[tuple[list[Pair], bytes]]:
    """(what any of the sources has, in key order, the key up to which it is known)."""
    while True:
        for source in sources:
            source.fill()
        full = [source for source in sources if source.batch is not None]
        if not full:
            return
        first = full[0]
        alike = len(full) == len(sources) and all(source.is_whole for source in full)
        if alike and all(source.batch.equals(first.batch) for source in full[1:] if source.batch is not None):
            pairs = first.pairs
            for source in full:
                source.taken()
            yield pairs, pairs[-1][0]
            continue
        last = min(source.pairs[-1][0] for source in full)
        portions = [source.take(last) for source in full]
        # Fragments of one write are the same everywhere.
        yield sorted(set().union(*portions)), last
