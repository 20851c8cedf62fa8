"""Cutting, changing and merging rings never lose a token."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.placement import deltas
from lockstep.placement.circle import Circle
from lockstep.placement.deltas import (
    GroupChange,
    changes,
    computed_ring,
    cut,
    differences,
    merged,
    same_placement,
    with_groups,
)
from lockstep.placement.placements import (
    PlacedRange,
    Placements,
    ReplicaGroup,
    RingPlacement,
    ring_of_ranges,
)
from lockstep.placement.strategies import Owner, compute
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
        ring = computed_ring(1, replication, owners, 7)
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
        ring = computed_ring(1, replication, before, 1)
        changed = with_groups(ring, [GroupChange(d.range, d.new, d.new) for d in deltas], 2)
        changed.validate()
        assert same_placement(changed, computed_ring(1, replication, after, 2))
        for delta in deltas:
            assert delta.old != delta.new
            assert all(p.group.reads == delta.old for p in ring.overlapping(delta.range))
            assert all(p.group.epoch == 2 for p in changed.overlapping(delta.range))
        untouched = [p for p in changed.ranges if not any(d.range.intersects(p.range) for d in deltas)]
        assert all(placed.group.epoch == 1 for placed in untouched)


def rights(ring: RingPlacement) -> list[int]:
    return [placed.range.right for placed in ring.ranges]


@pytest.mark.parametrize("seed", range(20))
def test_cutting_and_merging_change_nobody(seed: int) -> None:
    rng = random.Random(seed)
    owners = random_owners(rng, 1, 2)
    ring = computed_ring(1, replications(rng)[0], owners, 1)
    tokens = [rng.randint(-300, 300) for _ in range(9)]
    pieces = cut(ring, tokens)
    pieces.validate()
    assert set(tokens) <= set(rights(pieces))
    assert merged(pieces) == ring
    assert set(tokens) <= set(rights(merged(pieces, tokens)))
    assert merged(ring) is ring and cut(ring, []) is ring


def test_a_joined_group_takes_the_later_epoch() -> None:
    replication = Replication("SimpleStrategy", (("", 1),))
    one = (NodeId(1),)
    ring = ring_of_ranges(
        1,
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
        ring_of_ranges(1, Replication("SimpleStrategy", (("", 1),)), placed).validate()


def test_rings_that_do_not_change_keep_their_identity() -> None:
    owners = random_owners(random.Random(3), 1, 1)
    one, two = (computed_ring(rf, Replication("SimpleStrategy", (("", rf),)), owners, 1) for rf in (1, 2))
    placements = Placements().with_rings((one, two))
    placements.validate()
    changed = placements.with_rings((computed_ring(2, two.replication, owners, 2),))
    assert changed.ring(1) is one
    assert placements.with_rings(()) is placements


def neighbours(rng: random.Random, owners: list[Owner]) -> dict[NodeId, Owner | None]:
    """Some of the owners gone, some moved, some new, some replaced at their tokens."""
    free = sorted(set(range(-200, 200)) - {token for owner in owners for token in owner.tokens})
    rng.shuffle(free)
    changed: dict[NodeId, Owner | None] = {}
    for number in range(rng.randint(1, 3)):
        chosen, what = rng.choice(owners), rng.randrange(4)
        tokens = tuple(sorted(free.pop() for _ in range(rng.randint(1, 3))))
        new = NodeId(100 + number)
        if what == 0:
            changed[new] = Owner(new, f"dc{rng.randint(1, 2)}", f"r{rng.randint(1, 3)}", tokens)
        elif what == 1:
            changed[chosen.node] = None
        elif what == 2:
            changed[chosen.node] = Owner(chosen.node, chosen.dc, chosen.rack, tokens)
        elif chosen.node not in changed:
            changed[chosen.node] = None
            changed[new] = Owner(new, chosen.dc, chosen.rack, chosen.tokens)
    return changed


@pytest.mark.parametrize("seed", range(150))
def test_incremental_changes_are_the_differences_of_two_whole_rings(seed: int) -> None:
    rng = random.Random(seed)
    owners = random_owners(rng, 2, rng.randint(1, 5))
    changed = neighbours(rng, owners)
    after = {owner.node: owner for owner in owners} | changed
    circle = Circle.of(owners)
    other = circle.changed(changed)
    left = [owner for owner in after.values() if owner is not None]
    assert (other.tokens, other.nodes, other.racks) == (
        Circle.of(left).tokens,
        Circle.of(left).nodes,
        Circle.of(left).racks,
    )
    for replication in settings_and_more(rng):
        whole = differences(compute(replication, owners), compute(replication, left))
        assert changes(replication, circle, other) == whole
        assert changes(replication, circle, circle) == ()


def settings_and_more(rng: random.Random) -> list[Replication]:
    return [*replications(rng), Replication("NetworkTopologyStrategy", (("dc1", 1), ("dc2", 2)))]


def recorded(pairs: list[deltas._Pair]) -> Callable[..., deltas._Pair]:
    made = deltas._Pair

    def make(*given: Any) -> deltas._Pair:
        pairs.append(made(*given))
        return pairs[-1]

    return make


def test_a_join_looks_only_at_ranges_near_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    replication = Replication("NetworkTopologyStrategy", (("dc0", 3), ("dc1", 3)))
    steps = {}
    for count in (60, 600):
        tokens = rng.sample(range(-(10**12), 10**12), 16 * count + 8)
        owners = [
            Owner(NodeId(n), f"dc{n % 2}", f"r{n // 2 % 3}", tuple(sorted(tokens[n * 16 : n * 16 + 16])))
            for n in range(1, count)
        ]
        circle = Circle.of(owners)
        joined = circle.changed({NodeId(count): Owner(NodeId(count), "dc0", "r1", tuple(tokens[-8:]))})
        pairs: list[deltas._Pair] = []
        monkeypatch.setattr(deltas, "_Pair", recorded(pairs))
        assert changes(replication, circle, joined)
        monkeypatch.undo()
        steps[count] = sum(pair.steps for pair in pairs)
    assert steps[600] < 2 * steps[60]
    assert steps[600] < 8 * 40


@pytest.mark.parametrize("seed", range(40))
def test_merging_where_something_changed_is_merging_everywhere(seed: int) -> None:
    rng = random.Random(seed)
    before, after = random_owners(rng, 2, 3), random_owners(rng, 2, 3)
    for replication in replications(rng):
        found = differences(compute(replication, before), compute(replication, after))
        ring = with_groups(
            computed_ring(1, replication, before, 1), [GroupChange(d.range, d.new, d.new) for d in found], 2
        )
        bounds = [bound for delta in found for bound in (delta.range.left, delta.range.right)]
        inside = [right for delta in found for right in rights(ring) if delta.range.contains(right)]
        assert merged(ring, (), [*bounds, *inside]) == merged(ring)
        keep = rng.sample(rights(ring), ring.count // 2)
        assert merged(ring, keep, [*bounds, *inside]) == merged(ring, keep)
        assert set(keep) <= set(rights(merged(ring, keep)))


def test_a_ring_whose_last_token_is_owned_changes_no_range_above_it() -> None:
    one, two = NodeId(1), NodeId(2)
    before = Circle.of([Owner(one, "dc1", "r1", (0, TOKEN_MAX))])
    after = before.changed({two: Owner(two, "dc1", "r1", (-5,))})
    setting = Replication("SimpleStrategy", (("", 2),))
    found = changes(setting, before, after)
    assert found == differences(deltas.plan_of(setting, before), deltas.plan_of(setting, after))
    assert found[-1].range.right == TOKEN_MAX


def test_nothing_is_joined_at_a_token_inside_a_range() -> None:
    ring = ring_of_ranges(
        1,
        Replication("SimpleStrategy", (("", 1),)),
        tuple(
            PlacedRange(Range(left, right), ReplicaGroup((NodeId(1),), (NodeId(1),), 1))
            for left, right in ((TOKEN_MIN, 10), (10, TOKEN_MAX))
        ),
    )
    assert merged(ring, within=(7, TOKEN_MIN, TOKEN_MAX)) is ring
    assert len(merged(ring, within=(7, 10)).ranges) == 1
