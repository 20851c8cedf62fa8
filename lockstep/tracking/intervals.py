"""Sets of offsets as runs of them: what a dense log is held of, most of it one run.

Invariant: the runs are sorted, apart from each other by one offset at least and never empty, so equal sets
are equal values. What a set operation costs is the number of runs, never of offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

#: First and last offset of each run in turn.
Runs = tuple[int, ...]


class IntervalSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    runs: Runs = ()

    def __bool__(self) -> bool:
        return bool(self.runs)

    @property
    def count(self) -> int:
        runs = self.runs
        return sum(runs[1::2]) - sum(runs[::2]) + len(runs) // 2

    @property
    def is_sound(self) -> bool:
        """Whether its runs are in the one form that a set has."""
        runs = self.runs
        if len(runs) % 2 or (runs and runs[0] < 0):
            return False
        return all(first <= last for first, last in self.pairs()) and all(
            last + 1 < first for last, first in zip(runs[1::2], runs[2::2], strict=False)
        )

    def contains(self, offset: int) -> bool:
        runs = self.runs
        if not runs or offset > runs[-1]:
            return False
        at = bisect_right(runs, offset)
        # Behind a first offset, or on a last one.
        return at % 2 == 1 or (at > 0 and runs[at - 1] == offset)

    def add(self, offset: int) -> IntervalSet:
        assert offset >= 0, "offsets count from 0"
        runs = self.runs
        if runs and runs[-1] + 1 == offset:
            return IntervalSet((*runs[:-1], offset))
        return self if self.contains(offset) else self.union(IntervalSet((offset, offset)))

    def union(self, other: IntervalSet) -> IntervalSet:
        if not other.runs or self.runs == other.runs:
            return self
        if not self.runs:
            return other
        if len(self.runs) == len(other.runs) == 2:
            (first, last), (start, end) = self.runs, other.runs
            if first <= start and end <= last:
                return self
            if start <= last + 1 and first <= end + 1:
                return IntervalSet((min(first, start), max(last, end)))
        merged: list[int] = []
        for first, last in sorted((*self.pairs(), *other.pairs())):
            if merged and first <= merged[-1] + 1:
                merged[-1] = max(merged[-1], last)
            else:
                merged += (first, last)
        return IntervalSet(tuple(merged))

    def intersection(self, other: IntervalSet) -> IntervalSet:
        return self if self.runs == other.runs else IntervalSet(common(self.runs, other.runs))

    def difference(self, other: IntervalSet) -> IntervalSet:
        if not self.runs or self.runs == other.runs:
            return EMPTY
        return IntervalSet(without(self.runs, other.runs))

    def covers(self, other: IntervalSet) -> bool:
        return not other.difference(self).runs

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(first, last) of each run, ascending."""
        return zip(self.runs[::2], self.runs[1::2], strict=True)

    def first(self, count: int) -> IntervalSet:
        """The set of the first `count` offsets."""
        assert count >= 0, "a set has no fewer than none"
        found: list[int] = []
        for first, last in self.pairs():
            if count <= 0:
                break
            found += (first, min(last, first + count - 1))
            count -= last - first + 1
        some = IntervalSet(tuple(found))
        assert some.is_sound, "a beginning of a set is one"
        return some

    def parts(self, count: int) -> Iterator[IntervalSet]:
        """The set in parts of at most `count` offsets, ascending."""
        assert count > 0, "a part has offsets"
        left = self
        while left.count > count:
            some = left.first(count)
            yield some
            left = left.difference(some)
        if left:
            yield left

    def offsets(self, count: int) -> list[int]:
        """The first `count` offsets."""
        found: list[int] = []
        for first, last in self.pairs():
            found.extend(range(first, min(last + 1, first + count - len(found))))
            if len(found) >= count:
                break
        return found

    @property
    def end(self) -> int:
        """The smallest offset behind all of them."""
        return self.runs[-1] + 1 if self.runs else 0


EMPTY: Final = IntervalSet()


def common(mine: Runs, theirs: Runs) -> Runs:
    """Runs of what is in both."""
    if mine == theirs:
        return mine
    if len(mine) == len(theirs) == 2 and mine[0] == theirs[0]:
        return mine if mine[1] <= theirs[1] else theirs
    assert len(mine) % 2 == len(theirs) % 2 == 0, "a run has a first and a last offset"
    found: list[int] = []
    here = there = 0
    while here < len(mine) and there < len(theirs):
        first, last = max(mine[here], theirs[there]), min(mine[here + 1], theirs[there + 1])
        if first <= last:
            found += (first, last)
        if mine[here + 1] < theirs[there + 1]:
            here += 2
        else:
            there += 2
    return tuple(found)


def without(mine: Runs, theirs: Runs) -> Runs:
    """Runs of what is in `mine` alone."""
    if not theirs or mine == theirs:
        return () if theirs else mine
    if len(mine) == len(theirs) == 2 and theirs[0] <= mine[0] <= theirs[1]:
        # Of logs without gaps, the end of one and the beginning of the other are what there is to compare.
        return (theirs[1] + 1, mine[1]) if theirs[1] < mine[1] else ()
    assert len(mine) % 2 == len(theirs) % 2 == 0, "a run has a first and a last offset"
    found: list[int] = []
    there = 0
    for first, last in zip(mine[::2], mine[1::2], strict=True):
        while there < len(theirs) and theirs[there + 1] < first:
            there += 2
        at, look = first, there
        while look < len(theirs) and theirs[look] <= last:
            if at < theirs[look]:
                found += (at, theirs[look] - 1)
            at = theirs[look + 1] + 1
            look += 2
        if at <= last:
            found += (at, last)
    return tuple(found)


def of(offsets: Iterable[int]) -> IntervalSet:
    """The set of these offsets."""
    runs: list[int] = []
    for offset in sorted(set(offsets)):
        if runs and runs[-1] + 1 == offset:
            runs[-1] = offset
        else:
            runs += (offset, offset)
    return IntervalSet(tuple(runs))
