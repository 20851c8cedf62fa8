"""What is known of other clocks from their answers: true to within its error, and soon after a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.gossip.failure_detector import ClockOffsets, Offset, measured, own_skew
from lockstep.values.node_limits import CLOCK_SAMPLE_AGE_S_MAX

WAYS_US = st.tuples(st.integers(0, 3_000_000), st.integers(0, 3_000_000))


def answer(true_us: int, there_us: int, back_us: int, asked_us: int = 10**15) -> Offset:
    """Of a clock that is `true_us` ahead, after these ways."""
    return measured(asked_us, asked_us + there_us + true_us, there_us + back_us)


@given(true_us=st.integers(-(10**10), 10**10), ways=st.lists(WAYS_US, min_size=1, max_size=20))
def test_the_truth_is_within_the_error(true_us: int, ways: list[tuple[int, int]]) -> None:
    offsets = ClockOffsets()
    for at, (there_us, back_us) in enumerate(ways):
        offsets.heard(7, answer(true_us, there_us, back_us), float(at))
    found = offsets.of(7, float(len(ways)))
    assert found is not None
    assert abs(found.offset_us - true_us) <= found.error_us + 1
    assert found.certain_us <= abs(true_us) + 1
    last = ways[-8:]
    assert found.error_us == min((there + back + 1) // 2 for there, back in last)


def test_a_step_is_seen_with_the_next_answer_that_tells() -> None:
    offsets = ClockOffsets()
    for at in range(5):
        offsets.heard(7, answer(0, 500, 500), float(at))
    offsets.heard(7, answer(5_000_000, 20_000, 30_000), 6.0)
    found = offsets.of(7, 6.0)
    assert found is not None and found.certain_us > 4_900_000
    # An answer so slow that it may be of the same clock changes nothing.
    offsets.heard(7, answer(5_000_000, 2_000_000, 1_000_000), 7.0)
    assert offsets.of(7, 7.0) == found


def test_what_is_old_is_not_known() -> None:
    offsets = ClockOffsets()
    offsets.heard(7, answer(0, 1, 1), 1.0)
    assert offsets.of(7, 1.0 + CLOCK_SAMPLE_AGE_S_MAX) is not None
    assert offsets.of(7, 2.0 + CLOCK_SAMPLE_AGE_S_MAX) is None
    assert offsets.known(2.0 + CLOCK_SAMPLE_AGE_S_MAX) == {}
    offsets.heard(8, answer(0, 1, 1), 1.0)
    offsets.forget(8)
    assert offsets.of(8, 1.0) is None
    offsets.stepped()
    assert offsets.known(1.0) == {}


@pytest.mark.parametrize(
    ("others", "own"),
    [
        ((), 0),
        ((0, 0), 0),
        ((9, 9), -9),
        ((0, 9), 0),
        ((-9, -9), 9),
        ((-9,), 9),
        ((0, 0, 9, 9), 0),
        ((0, 9, 9), -9),
        ((1, 2, 3, 90), -2),
    ],
)
def test_who_is_off_is_told_by_the_middle_of_all_clocks(others: tuple[int, ...], own: int) -> None:
    assert own_skew([Offset(other, 0) for other in others]).offset_us == own
