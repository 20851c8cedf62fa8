"""What is told of a table's size: exact while it is small, near the truth when it is not, never much work."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

import pytest

from lockstep.storage.rows import keys
from lockstep.storage.sampling import Sample, Sampling
from lockstep.storage.store import Pair
from lockstep.values.limits import SAMPLE_SEEKS_MAX, SAMPLE_STEP_PAIRS
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range, token_of

PAIRS_MAX = 8192
QUARTERS = tuple(
    Range(left, right) for left, right in itertools.pairwise([TOKEN_MIN, -(1 << 62), 0, 1 << 62, TOKEN_MAX])
)


class Counting:
    """A store of one table whose partitions have so many rows, and how much of it was looked at."""

    def __init__(self, partitions: int, rows: int = 1, value: bytes = b"v" * 60) -> None:
        self.pairs = self.scans = 0
        found: list[Pair] = []
        for number in range(partitions):
            key = number.to_bytes(4, "big")
            prefix = keys.partition_prefix(3, token_of(key), key)
            for row in range(rows):
                found.append((keys.row_key(prefix, row.to_bytes(4, "big"), 1, b"i" * 14), value))
        self._found = sorted(found)
        self._keys = [key for key, _ in self._found]
        self.bytes = sum(len(key) + len(value) for key, value in self._found)

    def scan(self, lower: bytes, upper: bytes) -> Iterator[Pair]:
        self.scans += 1
        for at in range(bisect.bisect_left(self._keys, lower), len(self._keys)):
            if self._keys[at] >= upper:
                return
            self.pairs += 1
            yield self._found[at]


def sampled(store: Counting, table_id: int, ranges: tuple[Range, ...]) -> Sample:
    steps = Sampling(store, table_id, ranges, PAIRS_MAX).steps()  # type: ignore[arg-type]
    while True:
        before = store.pairs
        try:
            next(steps)
        except StopIteration as ended:
            found: Sample = ended.value
            return found
        finally:
            assert store.pairs - before <= 2 * SAMPLE_STEP_PAIRS


def told(store: Counting, ranges: tuple[Range, ...] = QUARTERS) -> tuple[int, int]:
    """(partitions in all, mean size of one)."""
    found = sampled(store, 3, ranges)
    assert len(found.partitions) == len(ranges)
    return sum(found.partitions), found.mean_bytes


@pytest.mark.parametrize("ranges", [QUARTERS, (FULL_RING,)])
@pytest.mark.parametrize(("partitions", "rows"), [(1, 1), (100, 1), (30, 9)])
def test_a_small_table_is_told_exactly(ranges: tuple[Range, ...], partitions: int, rows: int) -> None:
    store = Counting(partitions, rows)
    assert told(store, ranges) == (partitions, store.bytes // partitions)


@pytest.mark.parametrize("ranges", [QUARTERS, (FULL_RING,)])
@pytest.mark.parametrize(("partitions", "rows"), [(20_000, 1), (2000, 30), (400, 300)])
def test_a_larger_one_is_told_nearly(ranges: tuple[Range, ...], partitions: int, rows: int) -> None:
    store = Counting(partitions, rows)
    count, mean = told(store, ranges)
    assert count == pytest.approx(partitions, rel=0.25)
    assert mean == pytest.approx(store.bytes / partitions, rel=0.02)


def test_a_partition_that_is_too_large_counts_with_what_was_read_of_it() -> None:
    store = Counting(20, 6000)
    count, mean = told(store)
    assert count == 20
    assert store.bytes / 20 / 10 < mean < store.bytes / 20


@pytest.mark.parametrize("contents", [(20_000,), (20, 6000), (300, 20, b"v" * 100_000)])
def test_the_work_is_bounded(contents: tuple[int, int, bytes]) -> None:
    store = Counting(*contents)
    told(store)
    assert store.scans <= 2 * len(QUARTERS) + PAIRS_MAX // SAMPLE_STEP_PAIRS + SAMPLE_SEEKS_MAX
    assert store.pairs <= PAIRS_MAX + SAMPLE_SEEKS_MAX + len(QUARTERS)


def test_large_values_are_read_by_their_bytes() -> None:
    store = Counting(300, 20, b"v" * 100_000)
    told(store)
    assert store.pairs * 100_000 < 2 * PAIRS_MAX * 1024 + SAMPLE_SEEKS_MAX * 100_000


def test_nothing_is_told_of_nothing() -> None:
    store = Counting(20)
    assert told(Counting(0)) == (0, 0) and told(store, ()) == (0, 0)
    assert sampled(store, 4, QUARTERS).partitions == (0, 0, 0, 0)
