"""Rings in sectors against a plain list of ranges."""

from __future__ import annotations

import random

import pytest

from lockstep.placement import placements
from lockstep.placement.placements import SECTORS, PlacedRange, ReplicaGroup, RingPlacement, ring_of_ranges
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

SETTING = Replication("SimpleStrategy", (("", 1),))


def group(rng: random.Random) -> ReplicaGroup:
    node = NodeId(rng.randrange(1, 9))
    return ReplicaGroup((node,), (node,), rng.randrange(100))


def listed(bounds: list[int], rng: random.Random) -> list[PlacedRange]:
    ends = [*sorted(set(bounds)), TOKEN_MAX]
    return [PlacedRange(Range(a, b), group(rng)) for a, b in zip([TOKEN_MIN, *ends], ends, strict=False)]


def bounds_of(rng: random.Random, count: int) -> list[int]:
    """Even, crowded into one place, or random."""
    shape = rng.randrange(3)
    if shape == 0:
        return [TOKEN_MIN + (1 << 64) // count * at for at in range(1, count)]
    if shape == 1:
        first = rng.randrange(TOKEN_MIN, TOKEN_MAX - 10 * count)
        return [first + rng.randrange(10 * count) for _ in range(count - 1)]
    return [rng.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(count - 1)]


def replaced_in_list(ranges: list[PlacedRange], new: list[PlacedRange]) -> list[PlacedRange]:
    kept = [one for one in ranges if not any(n.range.left < one.range.right <= n.range.right for n in new)]
    return sorted([*kept, *new], key=lambda one: one.range.right)


def some_changes(ranges: list[PlacedRange], rng: random.Random) -> list[PlacedRange]:
    """Regrouped, split and joined ranges, disjoint and in ring order."""
    new: list[PlacedRange] = []
    at = 0
    while at < len(ranges):
        what, one = rng.randrange(8), ranges[at].range
        if what == 0:
            new.append(PlacedRange(one, group(rng)))
        elif what == 1 and one.right - one.left > 2:
            middle = rng.randrange(one.left + 1, one.right)
            pieces = (Range(one.left, middle), Range(middle, one.right))
            new += [PlacedRange(piece, group(rng)) for piece in pieces]
        elif what == 2:
            behind = min(at + rng.randrange(1, 5), len(ranges) - 1)
            new.append(PlacedRange(Range(one.left, ranges[behind].range.right), group(rng)))
            at = behind
        at += 1 + rng.randrange(4)
    return new


def assert_same(ring: RingPlacement, ranges: list[PlacedRange], rng: random.Random) -> None:
    assert list(ring.ranges) == ranges and ring.count == len(ranges)
    ring.validate()
    fresh = ring_of_ranges(1, SETTING, ranges)
    assert ring == fresh and ring.digest == fresh.digest
    assert len(ring.sectors) == (1 if len(ranges) <= placements._LARGE else SECTORS)
    ends = [one.range.right for one in ranges]
    for token in [
        *rng.sample(ends, min(9, len(ends))),
        *(rng.randrange(TOKEN_MIN, TOKEN_MAX) for _ in range(9)),
    ]:
        for near in {max(token - 1, TOKEN_MIN + 1), token, min(token + 1, TOKEN_MAX)}:
            found = ring.range_at(near)
            assert found.range.left < near <= found.range.right or near == TOKEN_MIN
    left, right = sorted(rng.randrange(TOKEN_MIN, TOKEN_MAX) for _ in range(2))
    wanted = Range(left, right)
    assert list(ring.overlapping(wanted)) == [one for one in ranges if one.range.intersects(wanted)]


@pytest.mark.parametrize("seed", range(60))
def test_a_ring_changes_as_a_list_of_ranges_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "_LARGE", 12)
    rng = random.Random(seed)
    ranges = listed(bounds_of(rng, rng.choice((1, 5, 11, 13, 40))), rng)
    ring = ring_of_ranges(1, SETTING, ranges)
    for _ in range(12):
        assert_same(ring, ranges, rng)
        new = some_changes(ranges, rng)
        ring, ranges = ring.replaced(new), replaced_in_list(ranges, new)


def test_a_change_of_a_large_ring_keeps_the_sectors_that_it_does_not_touch() -> None:
    rng = random.Random(1)
    ring = ring_of_ranges(1, SETTING, listed(bounds_of(random.Random(5), 9_000), rng))
    changed = ring.replaced([PlacedRange(ring.range_at(12_345).range, ReplicaGroup((), (), 1_000))])
    same = [one is other for one, other in zip(ring.sectors, changed.sectors, strict=True)]
    assert 1 <= same.count(False) <= 2 and ring.digest != changed.digest
    assert ring.replaced([]) is ring


def test_the_ranges_that_make_up_a_range_are_cut_at_its_bounds() -> None:
    ranges = listed([-100, 0, 100], random.Random(1))
    ring = ring_of_ranges(1, SETTING, ranges)
    assert ring.inside(Range(-100, 100)) == tuple(ranges[1:3])
    for left, right in ((-99, 100), (-100, 99)):
        with pytest.raises(AssertionError, match="no cut at"):
            ring.inside(Range(left, right))
