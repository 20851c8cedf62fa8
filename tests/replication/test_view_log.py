"""Which rows a write may change: slices in order that hold all of them and do not overlap."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from lockstep.storage.rows.fragments import touched
from lockstep.values.rows import ALL_ROWS, Deletion, Mutation, RangeDeletion, Row, Slice

GONE = Deletion(5, 1)


def mutation(
    rows: list[bytes], gone: list[tuple[bytes, bytes]], deletion: Deletion | None = None
) -> Mutation:
    deleted = tuple(RangeDeletion(start, end, GONE) for start, end in gone)
    return Mutation(1, 5, b"k", b"id", 9, deletion, deleted, None, tuple(Row(row) for row in rows))


@pytest.mark.parametrize(
    ("rows", "gone", "slices"),
    [
        ([], [], []),
        ([b"b"], [], [(b"b", b"b\0")]),
        ([b"c", b"a"], [], [(b"a", b"a\0"), (b"c", b"c\0")]),
        ([b"a", b"a"], [], [(b"a", b"a\0")]),
        ([b"a", b"a\0"], [], [(b"a", b"a\0\0")]),
        ([b"b"], [(b"a", b"c")], [(b"a", b"c")]),
        ([b"c"], [(b"a", b"c")], [(b"a", b"c\0")]),
        ([b"d"], [(b"a", b"c")], [(b"a", b"c"), (b"d", b"d\0")]),
        ([b"d"], [(b"b", b"")], [(b"b", b"")]),
        ([b"a"], [(b"b", b"")], [(b"a", b"a\0"), (b"b", b"")]),
        ([], [(b"b", b""), (b"a", b"c")], [(b"a", b"")]),
        ([], [(b"a", b"c"), (b"b", b"e")], [(b"a", b"e")]),
        ([], [(b"a", b"e"), (b"b", b"c")], [(b"a", b"e")]),
        ([], [(b"", b"")], [(b"", b"")]),
    ],
)
def test_rows_and_ranges_become_slices(
    rows: list[bytes], gone: list[tuple[bytes, bytes]], slices: list[tuple[bytes, bytes]]
) -> None:
    assert touched(mutation(rows, gone)) == tuple(Slice(*bounds) for bounds in slices)


def test_whoever_deletes_the_partition_may_change_all() -> None:
    assert touched(mutation([b"a"], [], GONE)) == ALL_ROWS


@pytest.mark.parametrize("seed", range(20))
def test_slices_hold_what_is_touched_and_nothing_else(seed: int) -> None:
    dice = Random(seed)
    places = [bytes((n,)) for n in range(1, 12)]
    rows = dice.sample(places, dice.randint(0, 3))
    gone = [tuple(sorted(dice.sample(places, 2))) for _ in range(dice.randint(0, 3))]
    if dice.random() < 0.3:
        gone.append((dice.choice(places), b""))
    found = touched(mutation(rows, gone))
    for place in places:
        is_touched = place in rows or any(start <= place and (not end or place < end) for start, end in gone)
        assert sum(one.contains(place) for one in found) == is_touched
    for one, other in itertools.pairwise(found):
        assert one.end and one.end < other.start
