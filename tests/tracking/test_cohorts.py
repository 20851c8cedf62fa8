"""Cohorts over random outages against a slow twin: who holds an id, id by id.

No id is lost and none is missed: what a returning replica lacks is in cohorts that it is told to take. How
many cohorts there are depends on who was away, never on how long.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.tracking.cohorts import Cohorts, are_enough
from lockstep.tracking.held import NOTHING, Held, held_of
from lockstep.tracking.intervals import IntervalSet, of
from lockstep.tracking.limits import COHORTS_MAX

NODES = (1, 2, 3, 4)
STEP = st.tuples(st.sets(st.sampled_from(NODES), min_size=1), st.integers(0, 9), st.booleans())
Ids = dict[int, set[int]]


def held(node_ids: set[int]) -> Held:
    return held_of({(1, 1): of(node_ids)})


class World:
    """The twin: what each node holds as a plain set, and which ids went to cohorts."""

    def __init__(self) -> None:
        self.holds: Ids = {node: set() for node in NODES}
        self.cohorts = Cohorts(NODES)
        self.reconciled: set[int] = set()
        self.next = 0

    def told(self) -> dict[int, Held]:
        return {node: held(ids - self.reconciled) for node, ids in self.holds.items()}

    def write(self, live: set[int], count: int, draw: random.Random) -> None:
        for _ in range(count):
            for node in live:
                if draw.random() < 0.7:
                    self.holds[node].add(self.next)
            self.holds[min(live)].add(self.next)
            self.next += 1

    def collapse(self, live: set[int]) -> None:
        common = set.intersection(*(self.holds[node] for node in live))
        for node in live:
            self.holds[node] |= common
        self.cohorts, whole = self.cohorts.collapse(live, self.told())
        self.reconciled |= plain(whole)
        self.check()

    def back(self, node: int) -> None:
        """Takes the data of every cohort that it lacks, one after another, and tells so after each."""
        for group in self.cohorts.lacking(held(self.holds[node])):
            self.holds[node] |= plain(group.ids)
            self.cohorts, whole = self.cohorts.taken(node, held(self.holds[node]))
            self.reconciled |= plain(whole)
            self.check()

    def check(self) -> None:
        self.cohorts.validate()
        everywhere = set.intersection(*self.holds.values())
        assert self.reconciled <= everywhere, "reconciled, and somebody lacks it"
        for group in self.cohorts.groups:
            for one in plain(group.ids):
                assert {node for node in NODES if one in self.holds[node]} >= set(group.holders)
        for node in NODES:
            in_cohorts = {one for group in self.cohorts.groups for one in plain(group.ids)}
            offered = {
                one for group in self.cohorts.lacking(held(self.holds[node])) for one in plain(group.ids)
            }
            assert in_cohorts - self.holds[node] <= offered, "an absent one is not told what it lacks"


def plain(ids: Held) -> set[int]:
    return {one for _, offsets in ids.items() for one in offsets.offsets(100_000)}


@settings(max_examples=200)
@given(st.lists(STEP, max_size=12), st.integers(0, 1000))
def test_absences_in_any_order_lose_nothing(steps: list[tuple[set[int], int, bool]], seed: int) -> None:
    world, draw = World(), random.Random(seed)
    for live, count, returns in steps:
        world.write(live, count, draw)
        world.collapse(live)
        if returns:
            world.back(draw.choice(NODES))
    for node in NODES:
        world.back(node)
    everything = set.union(*world.holds.values())
    in_cohorts = {one for group in world.cohorts.groups for one in plain(group.ids)}
    assert not in_cohorts, "all came back, and a cohort stays"
    assert world.reconciled <= set.intersection(*world.holds.values()) <= everything


@given(st.lists(STEP, max_size=6), st.lists(STEP, max_size=6), st.integers(0, 1000))
def test_what_two_replicas_know_of_cohorts_adds_up(
    first: list[tuple[set[int], int, bool]], second: list[tuple[set[int], int, bool]], seed: int
) -> None:
    world, draw = World(), random.Random(seed)
    views = []
    for steps in (first, second):
        world.cohorts = Cohorts(NODES)
        for live, count, _ in steps:
            world.write(live, count, draw)
            world.collapse(live)
        views.append(world.cohorts)
    one, other = views
    merged, whole = one.merged(other)
    merged.validate()
    assert plain(merged.ids) | plain(whole) == plain(one.ids) | plain(other.ids)
    for view in views:
        for group in view.groups:
            for found in plain(group.ids) - plain(whole):
                [holders] = [set(known.holders) for known in merged.groups if found in plain(known.ids)]
                assert holders >= set(group.holders)
    assert other.merged(one) == (merged, whole)


def test_an_outage_costs_its_cohorts_and_not_its_length() -> None:
    sizes = []
    for rounds in (10, 1000):
        cohorts, told = Cohorts((1, 2, 3)), NOTHING
        for number in range(rounds):
            told = held_of({(1, 1): IntervalSet((0, 1000 * number + 999))})
            cohorts, whole = cohorts.collapse({1, 2}, {1: told, 2: told})
            assert not whole
        sizes.append((len(cohorts.groups), sum(len(runs) for _, _, runs in cohorts.ids.logs)))
        assert cohorts.ids == told
    assert sizes == [(1, 2), (1, 2)]


def test_overlapping_absences_end_with_nothing_left() -> None:
    """3 is away, then 2 is away and 3 is back, then all are."""
    world = World()
    world.cohorts = Cohorts((1, 2, 3))
    world.holds.pop(4)
    first = set(range(10))
    world.holds[1] |= first
    world.holds[2] |= first
    world.cohorts, _ = world.cohorts.collapse({1, 2}, world.told())
    assert [group.holders for group in world.cohorts.groups] == [(1, 2)]
    second = set(range(10, 15))
    world.holds[1] |= second
    world.holds[3] |= second
    world.cohorts, _ = world.cohorts.collapse({1, 3}, world.told())
    assert [group.holders for group in world.cohorts.groups] == [(1, 2), (1, 3)]
    [lacking] = world.cohorts.lacking(held(world.holds[3]))
    assert plain(lacking.ids) == first
    world.holds[3] |= first
    world.cohorts, whole = world.cohorts.taken(3, held(world.holds[3]))
    assert plain(whole) == first and [group.holders for group in world.cohorts.groups] == [(1, 3)]
    world.holds[2] |= second
    world.cohorts, whole = world.cohorts.taken(2, held(world.holds[2]))
    assert plain(whole) == second and not world.cohorts.groups


def test_who_is_away_is_not_sent_what_it_has() -> None:
    told = {1: held({1, 2, 3}), 2: held({1, 2, 3}), 3: held({2}), 4: NOTHING}
    cohorts, whole = Cohorts(NODES).collapse({1, 2}, told)
    assert not whole
    assert [(group.holders, plain(group.ids)) for group in cohorts.groups] == [
        ((1, 2), {1, 3}),
        ((1, 2, 3), {2}),
    ]
    assert [plain(group.ids) for group in cohorts.lacking(held({2}))] == [{1, 3}]
    assert len(cohorts.groups) <= COHORTS_MAX


def test_enough_are_there_when_each_majority_has_one_of_them() -> None:
    all_of_two_dcs, near = frozenset(range(1, 7)), frozenset((1, 2, 3))
    assert are_enough(frozenset((1, 2)), frozenset((1, 2, 3)), frozenset((1, 2, 3)))
    assert not are_enough(frozenset((1,)), frozenset((1, 2, 3)), frozenset((1, 2, 3)))
    assert are_enough(frozenset((1, 2)), all_of_two_dcs, near), "a majority of the own data centre"
    assert are_enough(frozenset((1, 4, 5, 6)), all_of_two_dcs, near)
    assert not are_enough(frozenset((1, 4, 5)), all_of_two_dcs, near)
    assert not are_enough(frozenset((1,)), frozenset((1, 2)), frozenset((1, 2)))
