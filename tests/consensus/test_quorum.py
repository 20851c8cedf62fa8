"""Majorities compared with definitions too slow to use."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.consensus.configuration import Configuration, first_step
from lockstep.consensus.quorum import VoteResult, agreed_value, vote_result

IDS = st.sets(st.integers(1, 7), max_size=7).map(lambda ids: tuple(sorted(ids)))
CONFIGURATIONS = st.builds(Configuration, IDS.filter(bool), IDS)


def quorums(configuration: Configuration) -> list[set[int]]:
    """Every set of members that holds more than half of each half."""
    members = configuration.members()
    halves = [set(half) for half in (configuration.voters, configuration.outgoing) if half]
    subsets = [set(c) for size in range(len(members) + 1) for c in combinations(members, size)]
    return [s for s in subsets if all(2 * len(s & half) > len(half) for half in halves)]


@given(CONFIGURATIONS, st.dictionaries(st.integers(1, 7), st.integers(0, 9)))
@settings(max_examples=150, deadline=None)
def test_the_agreed_value_is_the_best_that_some_quorum_has_reached(
    configuration: Configuration, values: dict[int, int]
) -> None:
    best = max(min((values.get(member, 0) for member in q), default=0) for q in quorums(configuration))
    assert agreed_value(configuration, values) == best


@given(CONFIGURATIONS, st.dictionaries(st.integers(1, 7), st.booleans()))
@settings(max_examples=150, deadline=None)
def test_an_election_is_decided_exactly_when_further_votes_cannot_change_it(
    configuration: Configuration, votes: dict[int, bool]
) -> None:
    yes = {member for member, granted in votes.items() if granted}
    possible = yes | {member for member in configuration.members() if member not in votes}
    won = any(q <= yes for q in quorums(configuration))
    open_ = any(q <= possible for q in quorums(configuration))
    expected = VoteResult.WON if won else VoteResult.PENDING if open_ else VoteResult.LOST
    assert vote_result(configuration, votes) is expected


@pytest.mark.slow
@given(IDS.filter(bool), IDS.filter(bool))
@settings(max_examples=100, deadline=None)
def test_quorums_of_adjacent_configurations_of_a_change_intersect(
    old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    start, target = Configuration(old), Configuration(new)
    middle = first_step(start, target)
    for earlier, later in ((start, middle), (middle, target)):
        assert all(a & b for a in quorums(earlier) for b in quorums(later))


def test_a_configuration_without_voters_agrees_on_nothing_and_elects_nobody() -> None:
    nobody = Configuration((), (), (1, 2))
    assert agreed_value(nobody, {1: 5, 2: 5}) == 0
    assert vote_result(nobody, {1: True, 2: True}) is VoteResult.LOST
