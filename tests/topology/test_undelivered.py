"""Before which moment all writes have arrived, where clocks differ."""

from __future__ import annotations

from lockstep.topology.force_remove import Told, all_arrived_before_us

#: The steady clock of the node that asks, and the right time then.
STEADY_US = 5_000
NOW_US = 1_000_000_000


def told(kept_for_us: int, ahead_us: int = 0, took_us: int = 0) -> Told:
    at_us = NOW_US + ahead_us
    return Told(at_us - kept_for_us, at_us, STEADY_US, STEADY_US + took_us)


def test_right_clocks_say_when_the_oldest_write_was_made() -> None:
    assert all_arrived_before_us(NOW_US, [told(20), told(70), told(30)]) == NOW_US - 70


def test_the_beginning_is_not_passed_and_a_clock_that_is_behind_counts() -> None:
    assert all_arrived_before_us(NOW_US - 500, [told(20)]) == NOW_US - 500
    assert all_arrived_before_us(NOW_US, [told(20), told(0, ahead_us=-900)]) == NOW_US - 920


def test_what_a_clock_that_is_ahead_dates_is_moved_to_the_others() -> None:
    assert all_arrived_before_us(NOW_US, [told(20), told(600, ahead_us=3_600)]) == NOW_US - 600
    assert all_arrived_before_us(NOW_US + 3_600, [told(20, 3_600), told(20, 3_600)]) == NOW_US + 3_580


def test_what_an_answer_took_may_be_how_far_a_clock_is_ahead() -> None:
    assert all_arrived_before_us(NOW_US, [told(20), told(600, took_us=50)]) == NOW_US - 650


def test_a_write_of_the_future_or_none_that_is_told_of() -> None:
    assert all_arrived_before_us(NOW_US, [told(20), told(-1)]) == 0
    assert all_arrived_before_us(NOW_US, [Told(-1, NOW_US, STEADY_US, STEADY_US)]) == NOW_US


def test_an_older_version_says_only_what_it_keeps() -> None:
    older = Told(NOW_US - 90, 0, STEADY_US, STEADY_US)
    assert all_arrived_before_us(NOW_US, [told(20), older]) == NOW_US - 90
