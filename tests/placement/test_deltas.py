"""Cutting, changing and merging rings never lose a token."""

from __future__ import annotations

import random

import pytest

from lockstep.placement.deltas import (
    GroupChange,
    computed_ring,
    cut,
    differences,
    merged,
    same_placement,
    with_groups,
)
from lockstep.placement.placements import PlacedRange, Placements, ReplicaGroup, RingPlacement
from lockstep.placement.strategies import compute
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.placement.test_strategies import random_owners, twin_replicas
from tests.placement.test_strategies import settings as replications

PROBES = [TOKEN_MIN + 1, *range(-205, 206, 5), TOKEN_MAX]


@pytest.mark.parametrize("seed", range(40))
def test_lookup_finds_the_replicas_of_every_token(seed: int) -> None:
    rng = random.Random(seed)
    owners = random_owners(rng, 2, 3)
    for replication in replications(rng):
        ring = computed_ring(replication, owners, 7)
        ring.validate()
        for token in PROBES:
            assert list(ring.group_for(token).reads) == twin_replicas(replication, owners, token)
            (placed,) = ring.overlapping(Range(token - 1, token))
            assert placed.group is ring.group_for(token)


@pytest.mark.parametrize("seed", range(40))
def test_differences_put_in_give_the_other_plan(seed: int) -> None:
    rng = random.Random(seed)
    before, after = random_owners(rng, 2, 3), random_owners(rng, 2, 3)
    for replication in replications(rng):
        deltas = differences(compute(replication, before), compute(replication, after))
        ring = computed_ring(replication, before, 1)
        changed = with_groups(ring, [GroupChange(d.range, d.new, d.new) for d in deltas], 2)
        changed.validate()
        assert same_placement(changed, computed_ring(replication, after, 2))
        for delta in deltas:
            assert delta.old != delta.new
            assert all(p.group.reads == delta.old for p in ring.overlapping(delta.range))
            assert all(p.group.epoch == 2 for p in changed.overlapping(delta.range))
        untouched = [p for p in changed.ranges if not any(d.range.intersects(p.range) for d in deltas)]
        assert all(placed.group.epoch == 1 for placed in untouched)


@pytest.mark.parametrize("seed", range(20))
def test_cutting_and_merging_change_nobody(seed: int) -> None:
    rng = random.Random(seed)
    owners = random_owners(rng, 1, 2)
    ring = computed_ring(replications(rng)[0], owners, 1)
    tokens = [rng.randint(-300, 300) for _ in range(9)]
    pieces = cut(ring, tokens)
    pieces.validate()
    assert set(tokens) <= set(pieces.rights)
    assert merged(pieces) == ring
    assert set(tokens) <= set(merged(pieces, tokens).rights)
    assert merged(ring) is ring and cut(ring, []) is ring


def test_a_joined_group_takes_the_later_epoch() -> None:
    replication = Replication("SimpleStrategy", (("", 1),))
    one = (NodeId(1),)
    ring = RingPlacement(
        replication,
        (
            PlacedRange(Range(TOKEN_MIN, 0), ReplicaGroup(one, one, 9)),
            PlacedRange(Range(0, TOKEN_MAX), ReplicaGroup(one, one, 4)),
        ),
    )
    assert merged(ring).ranges == (PlacedRange(Range(TOKEN_MIN, TOKEN_MAX), ReplicaGroup(one, one, 9)),)


@pytest.mark.parametrize(
    "ranges",
    [
        (),
        ((TOKEN_MIN, 0, (1,), (1,)),),
        ((TOKEN_MIN, 0, (1,), (1,)), (5, TOKEN_MAX, (1,), (1,))),
        ((TOKEN_MIN, TOKEN_MAX, (1, 2), (1,)),),
        ((TOKEN_MIN, TOKEN_MAX, (1, 1), (1, 1)),),
    ],
)
def test_a_broken_ring_does_not_validate(ranges: tuple[tuple[int, int, tuple[int], tuple[int]], ...]) -> None:
    placed = tuple(
        PlacedRange(Range(a, b), ReplicaGroup(tuple(map(NodeId, r)), tuple(map(NodeId, w)), 1))
        for a, b, r, w in ranges
    )
    with pytest.raises(AssertionError):
        RingPlacement(Replication("SimpleStrategy", (("", 1),)), placed).validate()


def test_rings_that_do_not_change_keep_their_identity() -> None:
    owners = random_owners(random.Random(3), 1, 1)
    one, two = (computed_ring(Replication("SimpleStrategy", (("", rf),)), owners, 1) for rf in (1, 2))
    placements = Placements().with_rings((two, one))
    placements.validate()
    changed = placements.with_rings((computed_ring(two.replication, owners, 2),))
    assert changed.ring(one.replication) is one
    assert placements.with_rings(()) is placements
