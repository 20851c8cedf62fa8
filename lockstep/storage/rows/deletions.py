"""Deletions as values: which is stronger, and lists of range deletions in their one normal form.

Invariant of the normal form: ranges are sorted by start, do not overlap, touching ranges with the same
deletion are one range, and none is weaker than the partition deletion. Two lists that delete the same
rows are equal, which makes merging idempotent, commutative and associative.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Sequence

from lockstep.values.rows import Deletion, RangeDeletion


def stronger(left: Deletion | None, right: Deletion | None) -> Deletion | None:
    """The one with the higher timestamp; on a tie the one made later, so that the order is total."""
    if left is None or right is None:
        return right if left is None else left
    if left.timestamp_us != right.timestamp_us:
        return left if left.timestamp_us > right.timestamp_us else right
    return left if left.deleted_at_s >= right.deleted_at_s else right


def normal_ranges(ranges: Sequence[RangeDeletion], floor: Deletion | None) -> tuple[RangeDeletion, ...]:
    """The normal form of any list of range deletions under a partition deletion."""
    live = [r for r in ranges if not r.end or r.start < r.end]
    if floor is not None:
        live = [r for r in live if r.deletion.timestamp_us > floor.timestamp_us]
    if len(live) < 2:
        return tuple(live)
    live.sort(key=lambda r: r.start)
    if all(a.end and a.end <= b.start for a, b in itertools.pairwise(live)):
        return tuple(_joined(live))
    return tuple(_joined(_flattened(live)))


def _flattened(ranges: Sequence[RangeDeletion]) -> list[RangeDeletion]:
    """Cut ranges sorted by start at every bound; in each piece the strongest one rules."""
    bounds = dict.fromkeys(r.start for r in ranges) | dict.fromkeys(r.end for r in ranges if r.end)
    cuts = sorted(bounds)
    pieces: list[RangeDeletion] = []
    ruling: list[tuple[int, int, int]] = []
    entered = 0
    for at, cut in enumerate(cuts):
        while entered < len(ranges) and ranges[entered].start <= cut:
            deletion = ranges[entered].deletion
            heapq.heappush(ruling, (-deletion.timestamp_us, -deletion.deleted_at_s, entered))
            entered += 1
        while ruling and ranges[ruling[0][2]].end and ranges[ruling[0][2]].end <= cut:
            heapq.heappop(ruling)
        if ruling:
            end = cuts[at + 1] if at + 1 < len(cuts) else b""
            pieces.append(RangeDeletion(cut, end, ranges[ruling[0][2]].deletion))
    return pieces


def _joined(ranges: Sequence[RangeDeletion]) -> list[RangeDeletion]:
    joined = [ranges[0]]
    for piece in ranges[1:]:
        last = joined[-1]
        if last.end and last.end == piece.start and last.deletion == piece.deletion:
            joined[-1] = RangeDeletion(last.start, piece.end, last.deletion)
        else:
            joined.append(piece)
    return joined


class Shadow:
    """What a partition's deletions say about each of its rows; ranges must be in normal form."""

    __slots__ = ("_floor", "_ranges", "_starts")

    def __init__(self, floor: Deletion | None, ranges: Sequence[RangeDeletion]) -> None:
        self._floor = floor
        self._ranges = ranges
        self._starts = [r.start for r in ranges]

    @property
    def floor(self) -> Deletion | None:
        """What covers the whole partition."""
        return self._floor

    def over(self, clustering: bytes) -> Deletion | None:
        """The strongest deletion that covers the row, not counting the row's own."""
        covering = range_over(self._starts, self._ranges, clustering)
        return self._floor if covering is None else covering.deletion


def range_over(
    starts: Sequence[bytes], ranges: Sequence[RangeDeletion], clustering: bytes
) -> RangeDeletion | None:
    """The range of a normal list that contains the clustering bytes; `starts` are its starts."""
    at = bisect.bisect_right(starts, clustering) - 1
    if at < 0 or (ranges[at].end and clustering >= ranges[at].end):
        return None
    return ranges[at]
