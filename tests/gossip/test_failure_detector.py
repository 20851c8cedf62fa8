from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.gossip.failure_detector import (
    EXPECTED_S,
    SILENCE_INTERVALS_MAX,
    SILENCE_INTERVALS_MIN,
    FailureDetector,
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
    assert detector.explain(1, 0.0) == "never heard"


def test_three_lost_heartbeats_are_forgiven_and_then_it_is_suspected() -> None:
    detector, last_s = heard_every(0.5, 50)
    assert detector.alive(1, last_s + 1.9)
    assert not detector.alive(1, last_s + 2.1)
    assert detector.explain(1, last_s + 2.1) == "suspected: silent for 2.1 s, 2.0 s allowed"


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
