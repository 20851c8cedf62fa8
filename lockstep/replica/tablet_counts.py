"""How many requests each tablet of this node served: for the balancer, never for decisions of who owns what.

Invariant: counting changes nothing else, and costs one look-up a request, of tables with tablets alone.
"""

from __future__ import annotations

from typing import Final

from lockstep.placement.tablets.load import TabletLoad

#: Tablets that are counted between two readings: more than a node is to hold, so that what nobody reads, as
#: without a leader, ends somewhere.
COUNTED_MAX: Final = 100_000
#: A rate over less time says nothing: what was said last is said again.
RATE_AFTER_S: Final = 1.0

Key = tuple[int, int]


class TabletCounts:
    """By group and last token."""

    def __init__(self) -> None:
        self._reads: dict[Key, int] = {}
        self._writes: dict[Key, int] = {}
        self._since_s: float | None = None
        self._rates: dict[Key, tuple[float, float]] = {}

    def read(self, key: Key) -> None:
        _count(self._reads, key)

    def wrote(self, key: Key) -> None:
        _count(self._writes, key)

    def rates(self, now_s: float) -> dict[Key, tuple[float, float]]:
        """Reads and writes a second since this was asked last, or as it was said then a moment ago."""
        since_s = self._since_s
        if since_s is not None and now_s - since_s < RATE_AFTER_S:
            return self._rates
        reads, writes = self._reads, self._writes
        self._reads, self._writes, self._since_s = {}, {}, now_s
        if since_s is not None:
            spent_s = now_s - since_s
            keys = dict.fromkeys((*reads, *writes))
            self._rates = {key: (reads.get(key, 0) / spent_s, writes.get(key, 0) / spent_s) for key in keys}
        return self._rates


def _count(counts: dict[Key, int], key: Key) -> None:
    known = counts.get(key, 0)
    if known or len(counts) < COUNTED_MAX:
        counts[key] = known + 1


def load_of(size_bytes: int, rate: tuple[float, float]) -> TabletLoad:
    return TabletLoad(size_bytes, *rate)
