"""Sets of offsets against Python's own sets, which are slow and obvious."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lockstep.tracking.held import NOTHING, Held, MutationId, all_of, held_of
from lockstep.tracking.intervals import EMPTY, of
from lockstep.values.codec import decoder, encode

#: Most logs are one run.
RUNS = st.builds(
    lambda first, count: set(range(first, first + count)), st.integers(0, 12), st.integers(0, 12)
)
OFFSETS = st.sets(st.integers(0, 40), max_size=30) | RUNS
LOGS = st.dictionaries(st.tuples(st.integers(1, 3), st.integers(1, 2)), OFFSETS, max_size=4)


def held(found: dict[tuple[int, int], set[int]]) -> Held:
    return held_of({log: of(offsets) for log, offsets in found.items()})


def plain(found: Held) -> set[tuple[int, int, int]]:
    return {(*log, offset) for log, offsets in found.items() for offset in offsets.offsets(1000)}


@given(OFFSETS, OFFSETS, st.integers(0, 41))
def test_sets_of_offsets_do_what_sets_do(left: set[int], right: set[int], one: int) -> None:
    mine, theirs = of(left), of(right)
    pairs = (
        (mine.union(theirs), left | right),
        (mine.intersection(theirs), left & right),
        (mine.difference(theirs), left - right),
        (mine.add(one), left | {one}),
        (mine.first(one), set(sorted(left)[:one])),
    )
    for found, expected in pairs:
        ends = list(found.pairs())
        assert all(first <= last for first, last in ends)
        assert all(one[1] + 1 < other[0] for one, other in pairwise(ends))
        assert found == of(expected)
        assert found.offsets(1000) == sorted(expected)
        assert found.count == len(expected)
        assert bool(found) == bool(expected)
    assert mine.covers(theirs) == (right <= left)
    assert mine.contains(one) == (one in left)
    assert mine.end == max(left, default=-1) + 1
    assert mine.offsets(3) == sorted(left)[:3]
    parts = list(mine.parts(one + 1))
    assert [offset for part in parts for offset in part.offsets(1000)] == sorted(left)
    assert all(0 < part.count <= one + 1 for part in parts)


@given(LOGS, LOGS)
def test_holdings_do_what_sets_do(
    left: dict[tuple[int, int], set[int]], right: dict[tuple[int, int], set[int]]
) -> None:
    mine, theirs = held(left), held(right)
    assert plain(mine.union(theirs)) == plain(mine) | plain(theirs)
    assert plain(mine.intersection(theirs)) == plain(mine) & plain(theirs)
    assert plain(mine.difference(theirs)) == plain(mine) - plain(theirs)
    assert mine.covers(theirs) == (plain(theirs) <= plain(mine))
    assert mine.count == len(plain(mine))
    assert mine.union(theirs) == theirs.union(mine) == all_of((mine, theirs, NOTHING))
    for found in (mine.union(theirs), mine.intersection(theirs), mine.difference(theirs)):
        assert all(runs for _, _, runs in found.logs)
        assert decoder(Held).decode(encode(found)) == found


def test_an_id_is_its_log_and_offset() -> None:
    found = held({(1, 7): {0, 1, 5}})
    assert found.contains(MutationId(1, 7, 5, 12))
    assert not found.contains(MutationId(1, 7, 4))
    assert not found.contains(MutationId(1, 8, 5))
    assert of(()) == EMPTY


def test_a_clean_log_is_told_in_a_few_bytes() -> None:
    assert len(encode(held_of({(65_535, 1000): of(range(10_000_000 - 5, 10_000_000))}))) <= 64
