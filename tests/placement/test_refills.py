"""Filling of replicas that stay: no acknowledged write gets lost on any walk, whoever acknowledged it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from lockstep.placement.deltas import Passage, refilled
from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import Passing, majority, required_while_filling, sure_copies
from lockstep.schema.model import Replication
from lockstep.values.ids import Consistency, NodeId

DC1, DC2 = [NodeId(n) for n in (11, 12, 13, 14, 15)], [NodeId(n) for n in (21, 22, 23)]


def dc_of(node: NodeId) -> str:
    return f"dc{node // 10}"


def simple(factor: int) -> Replication:
    return Replication("SimpleStrategy", (("", factor),))


def network(one: int, two: int) -> Replication:
    factors = (("dc1", one), ("dc2", two))
    return Replication("NetworkTopologyStrategy", tuple((dc, factor) for dc, factor in factors if factor))


def group(replication: Replication) -> list[NodeId]:
    factors = dict(replication.factors)
    return DC1[: factors.get("", 0) or factors.get("dc1", 0)] + DC2[: factors.get("dc2", 0)]


def quorums(nodes: list[NodeId], count: int) -> Iterator[frozenset[NodeId]]:
    return (frozenset(chosen) for chosen in itertools.combinations(nodes, count))


def acknowledged(replication: Replication) -> list[frozenset[NodeId]]:
    """Every least set of replicas that acknowledges a write at QUORUM or a LOCAL_QUORUM."""
    members = group(replication)
    found = [*quorums(members, majority(replication.total))]
    for dc, factor in replication.factors:
        if dc:
            found += quorums([node for node in members if dc_of(node) == dc], majority(factor))
    return found


def stepped(
    held: frozenset[NodeId], before: Replication, after: Replication, *, giver_dead: bool
) -> frozenset[NodeId]:
    """Who of the new group holds a write that `held` held, by the rules for sources."""
    old, new = group(before), group(after)
    gained, lost = [n for n in new if n not in old], [n for n in old if n not in new]
    filled = [*gained, *refilled(Passage(old, new, before, after), dc_of)]
    if len(lost) == 1 and not gained and not giver_dead and lost[0] not in held:
        filled = []
    return (held | frozenset(filled)) & frozenset(new)


@pytest.mark.parametrize("giver_dead", [False, True])
def test_no_walk_of_one_data_centre_loses_a_write(giver_dead: bool) -> None:
    for walk in itertools.product((1, 2, 3, 4, 5), repeat=1):
        for start in walk:
            for moves in itertools.product((1, -1), repeat=4):
                factors = [start]
                for move in moves:
                    factors.append(min(5, max(1, factors[-1] + move)))
                for held in acknowledged(simple(start)):
                    at = held
                    for one, other in itertools.pairwise(factors):
                        at = stepped(at, simple(one), simple(other), giver_dead=giver_dead)
                        assert len(at) >= majority(other), (factors, sorted(held), sorted(at))


@pytest.mark.parametrize("seed", range(40))
def test_no_walk_of_two_data_centres_loses_a_write(seed: int) -> None:
    """QUORUM finds what QUORUM wrote and LOCAL_QUORUM what was written so, also where a data centre goes."""
    rng = random.Random(seed)
    factors = [rng.randint(0, 3), rng.randint(1, 3)]
    at = network(*factors)
    tracked = [(write, write) for write in acknowledged(at)]
    for _ in range(8):
        moved = list(factors)
        which = rng.randrange(2)
        moved[which] = min(3, max(0, moved[which] + rng.choice((1, -1))))
        if moved == factors or not sum(moved):
            continue
        after = network(*moved)
        tracked = [(stepped(held, at, after, giver_dead=False), origin) for held, origin in tracked]
        gone = [dc for dc, _ in at.factors if dc not in dict(after.factors)]
        at, factors = after, moved
        everyone = frozenset(group(at))
        for held, origin in tracked:
            homes = {dc_of(node) for node in origin}
            written_globally = len(origin) >= majority(at.total) and len(homes) > 1
            if gone or written_globally:
                assert not any(
                    held.isdisjoint(read) for read in quorums(sorted(everyone), majority(at.total))
                ), (sorted(origin), sorted(held), at)
            for dc, factor in at.factors:
                local = [node for node in everyone if dc_of(node) == dc]
                if homes == {dc} and not gone:
                    reads = quorums(sorted(local), majority(factor))
                    assert not any(held.isdisjoint(read) for read in reads), (
                        sorted(origin),
                        sorted(held),
                        at,
                    )
        tracked = [(write, write) for write in acknowledged(at)]


def test_what_a_replica_takes_with_it_is_filled_where_the_quorum_does_not_shrink() -> None:
    def filled(before: Replication, after: Replication) -> list[NodeId]:
        return list(refilled(Passage(group(before), group(after), before, after), dc_of))

    assert filled(simple(3), simple(2)) == DC1[:2]
    assert filled(simple(4), simple(3)) == filled(simple(2), simple(1)) == []
    assert filled(simple(1), simple(2)) == filled(simple(2), simple(3)) == []
    assert filled(network(2, 1), network(2, 0)) == DC1[:2]
    # Three nodes, and a quorum of three after one of two.
    three = DC1[:3]
    assert list(refilled(Passage(three, three, simple(3), simple(4)), dc_of)) == three
    assert list(refilled(Passage(three, three, simple(4), simple(3)), dc_of)) == []


@pytest.mark.parametrize("level", [Consistency.QUORUM, Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM])
def test_what_is_written_while_replicas_are_filled_is_on_a_quorum_of_the_new_ones(level: Consistency) -> None:
    """Nobody copies it, so whoever acknowledges it must suffice."""
    shapes = [network(one, two) for one in range(4) for two in range(4) if one + two]
    steps = [(simple(one), simple(one + by)) for one in range(1, 5) for by in (-1, 1) if one + by]
    for one, two in itertools.permutations(shapes, 2):
        factors, others = dict(one.factors), dict(two.factors)
        if sum(abs(factors.get(dc, 0) - others.get(dc, 0)) for dc in ("dc1", "dc2")) == 1:
            steps.append((one, two))
    for (before, after), local_dc in itertools.product(steps, ("dc1", "dc2")):
        old, new = group(before), group(after)
        union = [*old, *(node for node in new if node not in old)]
        needs = required_while_filling(
            level, before, local_dc, ReplicaGroup(tuple(old), tuple(union), 0), dc_of, Passing(new, after)
        )
        acknowledging = [
            chosen
            for count in range(len(union) + 1)
            for chosen in quorums(union, count)
            if all(sum(need.dc in ("", dc_of(n)) for n in chosen) >= need.count for need in needs)
        ]
        kept = [len(chosen & frozenset(new)) for chosen in acknowledging]
        where = (before, after, local_dc)
        dropped = before.strategy.startswith("N") and not dict(after.factors).get(local_dc)
        if level is Consistency.QUORUM or (level is Consistency.LOCAL_QUORUM and dropped):
            assert all(count >= sure_copies(len(new), after.total) for count in kept), where
        local = [node for node in new if dc_of(node) == local_dc]
        if level is not Consistency.QUORUM and before.strategy.startswith("N") and not dropped:
            enough = sure_copies(len(local), dict(after.factors)[local_dc])
            assert all(len(chosen & frozenset(local)) >= enough for chosen in acknowledging), where
        if level is Consistency.QUORUM:
            assert acknowledging, f"nothing could be written meanwhile: {where}"
