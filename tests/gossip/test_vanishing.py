"""When nodes vanish suddenly, and when that is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.gossip.vanishing import NOTHING_WATCHED, VanishPolicy, Watched, accepted, look

ALL = frozenset(range(2, 6))
HALF = VanishPolicy(50, 10_000)


def after(
    steps: Sequence[tuple[int, Sequence[int]]], policy: VanishPolicy = HALF, present: frozenset[int] = ALL
) -> Watched:
    """Node 1 of five looks at these times, and sees those alive."""
    watched = NOTHING_WATCHED
    for now_ms, alive in steps:
        watched = look(watched, frozenset(alive), present, now_ms, policy)
    return watched


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([(0, [2, 3, 4, 5])], ()),
        ([(0, [2, 3, 4, 5]), (500, [2, 3])], ()),
        ([(0, [2, 3, 4, 5]), (500, [2])], (3, 4, 5)),
        ([(0, [2, 3, 4, 5]), (500, [2, 3]), (9_000, [2])], (3, 4, 5)),
        # Each is convicted at a time of its own.
        ([(0, [2, 3, 4, 5]), (500, [2]), (900, [])], (2, 3, 4, 5)),
        # One after the other is no sudden drop.
        ([(0, [2, 3, 4, 5]), (500, [2, 3]), (11_000, [2])], ()),
        # Who was never seen did not vanish.
        ([(0, [2]), (500, [2])], ()),
        ([(0, [2]), (500, [])], (2,)),
        # It lasts until all are back, however late.
        ([(0, [2, 3, 4, 5]), (500, [2]), (90_000, [2, 3, 4])], (5,)),
        ([(0, [2, 3, 4, 5]), (500, [2]), (90_000, [2, 3, 4, 5])], ()),
    ],
)
def test_a_sudden_drop_counts(steps: list[tuple[int, list[int]]], missing: tuple[int, ...]) -> None:
    assert after(steps).missing == missing


def test_it_can_be_turned_off() -> None:
    assert after([(0, [2, 3, 4, 5]), (500, [])], VanishPolicy(0, 10_000)).missing == ()


def test_who_has_left_is_not_missing() -> None:
    watched = after([(0, [2, 3, 4, 5]), (500, [2])])
    watched = look(watched, frozenset({2}), frozenset({2, 5}), 600, HALF)
    assert watched.missing == (5,)
    assert look(watched, frozenset({2}), frozenset({2}), 700, HALF).missing == ()


def test_who_is_given_up_counts_again_once_it_was_seen() -> None:
    watched = accepted(after([(0, [2, 3, 4, 5]), (500, [2])]))
    assert watched.missing == ()
    watched = look(watched, frozenset({2}), ALL, 1_000, HALF)
    assert watched.missing == ()
    watched = look(watched, frozenset({2, 3, 4, 5}), ALL, 2_000, HALF)
    assert look(watched, frozenset({2}), ALL, 3_000, HALF).missing == (3, 4, 5)


@given(st.lists(st.tuples(st.integers(1, 20_000), st.sets(st.sampled_from(sorted(ALL)))), max_size=12))
@settings(max_examples=100, deadline=None)
def test_only_the_dead_are_missing_and_only_when_enough_went(steps: list[tuple[int, set[int]]]) -> None:
    watched, now_ms = NOTHING_WATCHED, 0
    for step_ms, alive in steps:
        now_ms += step_ms
        before, watched = watched, look(watched, frozenset(alive), ALL, now_ms, HALF)
        assert {*watched.missing}.isdisjoint(alive)
        if watched.missing and not before.missing:
            assert 100 * len(watched.missing) >= 50 * (len(watched.seen) + 1)
        if before.missing and not watched.missing:
            assert {*before.missing} <= alive
        assert {*before.missing} - alive <= {*watched.missing}, "nobody is forgotten"
