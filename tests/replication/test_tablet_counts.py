"""What tablets served, as rates for the balancer."""

from __future__ import annotations

import pytest

from lockstep.placement.tablets.load import TabletLoad
from lockstep.replica import replica as tablet_counts
from lockstep.replica.replica import RATE_AFTER_S, TabletCounts, load_of


def test_rates_are_of_what_came_since_they_were_asked_last() -> None:
    counts = TabletCounts()
    counts.read((1, 10))
    assert counts.rates(100.0) == {}, "since when is not known"
    for _ in range(6):
        counts.read((1, 10))
    counts.wrote((1, 10))
    counts.wrote((2, 10))
    assert counts.rates(102.0) == {(1, 10): (3.0, 0.5), (2, 10): (0.0, 0.5)}
    counts.read((2, 10))
    assert counts.rates(106.0) == {(2, 10): (0.25, 0.0)}
    assert counts.rates(108.0) == {}


def test_who_asks_again_at_once_hears_the_same_and_loses_no_count() -> None:
    counts = TabletCounts()
    counts.rates(0.0)
    counts.wrote((1, 10))
    first = counts.rates(2.0)
    assert first == {(1, 10): (0.0, 0.5)}
    counts.wrote((1, 10))
    assert counts.rates(2.0 + RATE_AFTER_S / 2) == first
    assert counts.rates(2.0 + RATE_AFTER_S) == {(1, 10): (0.0, 1 / RATE_AFTER_S)}


def test_tablets_beyond_the_bound_are_not_counted_and_those_before_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tablet_counts, "COUNTED_MAX", 2)
    counts = TabletCounts()
    counts.rates(0.0)
    for last in (1, 2, 3, 1):
        counts.read((1, last))
    assert counts.rates(1.0) == {(1, 1): (2.0, 0.0), (1, 2): (1.0, 0.0)}


def test_a_load_is_size_reads_and_writes() -> None:
    assert load_of(7, (2.0, 3.0)) == TabletLoad(7, 2.0, 3.0)
