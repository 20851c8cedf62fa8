"""Tokens that founders and newcomers get: distinct, in range, and fair to everyone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.circle import even_tokens, splitting_tokens
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

RING = 1 << 64


def shares(owned: list[tuple[int, ...]]) -> list[Fraction]:
    """Each node's part of the ring, walked token by token."""
    owner = {token: node for node, tokens in enumerate(owned) for token in tokens}
    ends = sorted(owner)
    parts = [Fraction(0)] * len(owned)
    for index, end in enumerate(ends):
        left = ends[index - 1] if index else ends[-1] - RING
        parts[owner[end]] += Fraction(end - left, RING)
    assert sum(parts) == 1
    return parts


def grown(founders: int, tokens: int, newcomers: int) -> list[tuple[int, ...]]:
    owned = list(even_tokens([tokens] * founders))
    for _ in range(newcomers):
        owned.append(splitting_tokens(owned, tokens))
    return owned


def test_a_fourth_node_takes_its_quarter_from_all_three() -> None:
    before, after = shares(grown(3, 16, 0)), shares(grown(3, 16, 1))
    assert all(share < before[0] for share in after[:3])
    assert all(abs(share - Fraction(1, 4)) < Fraction(1, 50) for share in after)


def test_shares_stay_fair_as_the_cluster_grows() -> None:
    for newcomers in range(1, 10):
        parts = shares(grown(3, 16, newcomers))
        assert max(parts) < Fraction(3, 2) * min(parts), newcomers


def stored(owned: list[tuple[int, ...]], factor: int) -> list[Fraction]:
    """The part of the ring that each node has replicas of, when all are in one rack."""
    owner = {token: node for node, tokens in enumerate(owned) for token in tokens}
    ends = sorted(owner)
    parts = [Fraction(0)] * len(owned)
    for index, end in enumerate(ends):
        left = ends[index - 1] if index else ends[-1] - RING
        behind = [owner[ends[(index + step) % len(ends)]] for step in range(len(ends))]
        for node in list(dict.fromkeys(behind))[:factor]:
            parts[node] += Fraction(end - left, RING)
    assert sum(parts) == factor
    return parts


@pytest.mark.parametrize("tokens", [4, 16, 64])
def test_a_newcomer_stores_about_as_much_as_the_others(tokens: int) -> None:
    """Tokens side by side would make the fourth node a replica of 39 % of the ring, not of 75 %."""
    parts = stored(grown(3, tokens, 1), 3)
    assert parts[3] > Fraction(2, 3), float(parts[3])
    for newcomers in range(1, 6):
        parts = stored(grown(3, 16, newcomers), 3)
        assert max(parts) < Fraction(4, 3) * min(parts), (newcomers, list(map(float, parts)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=5), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_tokens_are_new_distinct_and_inside_the_ring(founders: list[int], newcomers: list[int]) -> None:
    owned = list(even_tokens(founders)) if founders else []
    for count in newcomers:
        made = splitting_tokens(owned, count)
        assert len(made) == count
        owned.append(made)
    everyone = [token for tokens in owned for token in tokens]
    assert len(set(everyone)) == len(everyone)
    assert all(TOKEN_MIN < token < TOKEN_MAX for token in everyone)


@given(st.sets(st.integers(TOKEN_MIN + 1, TOKEN_MAX - 1), min_size=1, max_size=12), st.integers(1, 8))
def test_any_ring_can_be_joined(tokens: set[int], count: int) -> None:
    owned = [tuple(sorted(tokens))]
    made = splitting_tokens(owned, count)
    assert len({*tokens, *made}) == len(tokens) + count


def test_the_ends_of_the_ring_are_never_chosen() -> None:
    # Three quarters of the widest range would end exactly at the ring's end.
    for width in range(8, 64):
        for beyond in range(1, width):
            owned = [(TOKEN_MAX - width, TOKEN_MIN + beyond, 0)]
            made = splitting_tokens(owned, 5)
            assert TOKEN_MIN not in made
            assert TOKEN_MAX not in made


def test_members_without_tokens_give_nothing_and_do_not_count() -> None:
    founders = list(even_tokens([4, 4]))
    assert splitting_tokens([*founders, ()], 4) == splitting_tokens(founders, 4)
