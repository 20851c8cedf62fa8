from __future__ import annotations

import math
import random
from statistics import fmean, pstdev
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.gossip.failure_detector import (
    EXPECTED_S,
    PHI_MAX,
    SILENCE_INTERVALS_MAX,
    SILENCE_INTERVALS_MIN,
    SPREAD_MIN,
    WINDOW,
    FailureDetector,
    Opinions,
)

SILENCE_S_MIN = EXPECTED_S * SILENCE_INTERVALS_MIN
SILENCE_S_MAX = EXPECTED_S * SILENCE_INTERVALS_MAX


def heard_every(interval_s: float, count: int) -> tuple[FailureDetector, float]:
    detector = FailureDetector()
    now_s = 100.0
    for _ in range(count):
        detector.heard(1, now_s)
        now_s += interval_s
    return detector, now_s - interval_s


def test_a_node_never_heard_is_not_alive() -> None:
    detector = FailureDetector()
    assert not detector.alive(1, 0.0)


def test_three_lost_heartbeats_are_forgiven_and_then_it_is_suspected() -> None:
    detector, last_s = heard_every(0.5, 50)
    assert detector.alive(1, last_s + 1.9)
    assert not detector.alive(1, last_s + 2.1)


def test_a_slower_rhythm_is_given_more_time() -> None:
    detector, last_s = heard_every(1.5, 100)
    assert detector.alive(1, last_s + 5.0)
    assert not detector.alive(1, last_s + SILENCE_S_MAX + 0.1)


def test_one_message_brings_it_back_and_the_absence_is_no_rhythm() -> None:
    detector, last_s = heard_every(0.5, 50)
    detector.heard(1, last_s + 600)
    assert detector.alive(1, last_s + 600)
    assert not detector.alive(1, last_s + 603)


def test_a_burst_does_not_shorten_the_patience() -> None:
    detector, last_s = heard_every(0.001, 5000)
    assert detector.alive(1, last_s + SILENCE_S_MIN - 0.01)


def test_a_forgotten_node_must_be_heard_again() -> None:
    detector, last_s = heard_every(0.5, 3)
    detector.forget(1)
    assert not detector.alive(1, last_s)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 30), max_size=60))
def test_whatever_the_rhythm_the_allowed_silence_is_bounded(intervals_s: list[float]) -> None:
    detector = FailureDetector()
    now_s = 0.0
    detector.heard(7, now_s)
    for interval_s in intervals_s:
        now_s += interval_s
        detector.heard(7, now_s)
        detector.validate()
        assert detector.alive(7, now_s + SILENCE_S_MIN - 0.001)
        assert not detector.alive(7, now_s + SILENCE_S_MAX + 0.01)


def test_where_nodes_are_asked_less_often_silence_means_less() -> None:
    detector, last_s = heard_every(0.5, 50)
    detector.expect(8.0)
    assert detector.alive(1, last_s + 4 * 8.0 - 0.1) and not detector.alive(1, last_s + 4 * 8.0 + 0.1)
    detector.heard(2, last_s)
    assert detector.alive(2, last_s + 4 * 8.0 - 0.1)
    detector.validate()
    detector.expect(0.5)
    assert detector.alive(1, last_s + 1.9) and not detector.alive(1, last_s + 2.1)
    detector.validate()


class SlowTwin:
    """All intervals ever heard, and the definition of phi from the textbook for each question."""

    def __init__(self, expected_s: float, threshold_phi: float) -> None:
        self.expected_s, self.threshold_phi = expected_s, threshold_phi
        self.times_s: list[float] = []

    def heard(self, now_s: float) -> None:
        self.times_s.append(now_s)

    def phi(self, now_s: float) -> float:
        intervals_us, measured_s = [], self.times_s[0]
        for time_s in self.times_s[1:]:
            gap_s = time_s - measured_s
            if gap_s >= 0.1:
                measured_s = time_s
                if gap_s <= SILENCE_INTERVALS_MAX * self.expected_s:
                    intervals_us.append(round(gap_s * 1e6))
        window_us = intervals_us[-WINDOW:]
        mean_s = max(self.expected_s, fmean(window_us) / 1e6 if window_us else 0.0)
        spread_s = max(SPREAD_MIN * mean_s, pstdev(window_us) / 1e6 if window_us else 0.0)
        later = 0.5 * math.erfc((now_s - self.times_s[-1] - mean_s) / spread_s / math.sqrt(2))
        return min(PHI_MAX, -math.log10(later)) if later else PHI_MAX

    def alive(self, now_s: float) -> bool:
        silent_s = now_s - self.times_s[-1]
        return self.phi(now_s) <= self.threshold_phi and silent_s <= SILENCE_INTERVALS_MAX * self.expected_s


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0.01, 12), max_size=90),
    st.lists(st.floats(0, 12), min_size=1, max_size=5),
    st.sampled_from([1.0, 3.0, 8.0, 12.0]),
)
def test_it_says_what_a_slow_twin_says(
    gaps_s: list[float], silences_s: list[float], threshold: float
) -> None:
    detector, twin, now_s = FailureDetector(threshold), SlowTwin(EXPECTED_S, threshold), 50.0
    detector.heard(1, now_s)
    twin.heard(now_s)
    for gap_s in gaps_s:
        now_s += gap_s
        detector.heard(1, now_s)
        twin.heard(now_s)
    detector.validate()
    for silence_s in silences_s:
        at_s = now_s + silence_s
        if abs(silence_s - SILENCE_INTERVALS_MAX * EXPECTED_S) < 1e-6:
            continue  # Which side of the bound it falls on is rounding.
        phi = twin.phi(at_s)
        assert detector.phi(1, at_s) == pytest.approx(phi, rel=1e-6, abs=1e-9)
        if abs(phi - threshold) > 1e-6:
            assert detector.alive(1, at_s) == twin.alive(at_s)
        if abs(phi - threshold / 2) > 1e-6:
            in_time = silence_s <= SILENCE_INTERVALS_MAX * EXPECTED_S
            assert detector.prompt(1, at_s) == (phi <= threshold / 2 and in_time)


def test_old_intervals_leave_the_window() -> None:
    detector, twin, now_s = FailureDetector(), SlowTwin(EXPECTED_S, 8.0), 50.0
    draw = random.Random(5)
    for beat in range(4 * WINDOW):
        now_s += draw.uniform(0.2, 1.0) if beat < 2 * WINDOW else draw.uniform(2.0, 9.0)
        detector.heard(1, now_s)
        twin.heard(now_s)
        assert detector.phi(1, now_s + 3.0) == pytest.approx(twin.phi(now_s + 3.0), rel=1e-6)
    detector.validate()


def test_a_higher_threshold_is_more_patient_and_a_lower_one_less() -> None:
    patience_s = []
    for threshold in (2.0, 8.0, 14.0):
        detector = FailureDetector(threshold)
        for beat in range(40):
            detector.heard(1, beat * 0.5)
        patience_s.append(next(s / 100 for s in range(1, 1000) if not detector.alive(1, 19.5 + s / 100)))
    assert patience_s == sorted(set(patience_s)) and patience_s[1] == pytest.approx(2.0, abs=0.02)


def test_an_irregular_node_is_given_more_time_than_a_regular_one_with_the_same_mean() -> None:
    detector, now_s = FailureDetector(), 0.0
    for beat in range(80):
        now_s += 0.3 if beat % 2 else 1.7
        detector.heard(1, now_s)
    regular, last_s = heard_every(1.0, 80)
    assert detector.alive(1, now_s + 4.5) and not regular.alive(1, last_s + 4.5)


def test_a_node_is_slow_before_it_is_suspected() -> None:
    detector, last_s = heard_every(0.5, 50)
    assert detector.prompt(1, last_s + 1.0)
    assert detector.alive(1, last_s + 1.8) and not detector.prompt(1, last_s + 1.8)
    assert not detector.prompt(2, last_s), "one that was never heard"
    assert detector.phi(2, last_s) == PHI_MAX and detector.silent_s(2, last_s) is None
    assert detector.silent_s(1, last_s + 3) == 3.0


def test_a_node_that_stood_still_blames_nobody_and_forgives_nobody_who_was_silent_before() -> None:
    detector = FailureDetector()
    for at in range(20):
        detector.heard(1, at * 0.5)
        if at < 10:
            detector.heard(2, at * 0.5)
    assert detector.alive(1, 10.0) and not detector.alive(2, 10.0)
    detector.excuse(30.0, 40.0)
    detector.validate()
    assert detector.alive(1, 40.0) and not detector.alive(2, 40.0)
    assert detector.silent_s(1, 40.0) == 30.5, "what was heard when is told as it was"
    assert not detector.alive(1, 42.0), "and whoever stays silent is suspected in the usual time"
    detector.heard(1, 42.0)
    detector.validate()
    assert detector.alive(1, 43.9) and not detector.alive(1, 44.6)


def test_nobody_prefers_a_node_whose_address_another_one_has_or_that_is_not_ready() -> None:
    detector = FailureDetector()
    for at in range(20):
        for node in (2, 3, 4):
            detector.heard(node, at * 0.5)
    cluster = SimpleNamespace(directory=SimpleNamespace(shadowed=frozenset({2, 1})))
    newest: Any = SimpleNamespace(cluster=cluster)
    opinions = Opinions(detector, newest, lambda: 5, lambda: 9.6)
    opinions.avoided = frozenset({3, 5})
    assert [node for node in (1, 2, 3, 4, 5) if opinions.prefers(node)] == [4, 5]
