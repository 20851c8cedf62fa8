"""Moments up to which everything is reconciled."""

from __future__ import annotations

from lockstep.tracking.held import NOTHING, Held, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.moments import Moments

SHARD, OTHER = (3, 10), (3, 20)


def held(*offsets: int) -> Held:
    return held_of({(7, 1): of(offsets)})


def test_a_moment_is_complete_once_all_that_was_held_then_is_reconciled() -> None:
    moments = Moments()
    assert moments.is_due(SHARD, NOTHING) and not moments.complete_us
    moments.watch(SHARD, 100, held(0, 1))
    assert not moments.is_due(SHARD, held(0)) and not moments.complete_us
    assert moments.is_due(SHARD, held(0, 1, 2)) and moments.complete_us == {SHARD: 100}
    moments.watch(SHARD, 200, held(0, 1, 2, 3))
    assert not moments.is_due(SHARD, held(0, 1, 2)) and moments.complete_us == {SHARD: 100}


def test_what_was_told_of_others_counts_for_nothing() -> None:
    moments = Moments()
    for shard in (SHARD, OTHER):
        moments.watch(shard, 100, held(0))
        assert moments.is_due(shard, held(0))
        moments.watch(shard, 200, held(1))
    moments.void(SHARD)
    moments.forget(OTHER)
    assert moments.is_due(SHARD, NOTHING) and moments.is_due(OTHER, NOTHING)
    assert moments.complete_us == {SHARD: 100}, "a moment stays complete while the replicas do"


def test_who_looks_follows_for_a_while() -> None:
    moments = Moments()
    moments.follow(3, 60.0)
    moments.follow(4, 50.0)
    assert moments.followed(49.0) == [3, 4] and moments.followed(59.0) == [3] and moments.followed(60.0) == []
