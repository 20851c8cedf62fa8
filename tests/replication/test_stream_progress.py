"""What running streams tell of themselves: rates, estimates, and what is done."""

from __future__ import annotations

import pytest

from lockstep.streaming.stream_progress import RATE_WINDOW_S, Rate, StreamProgress, StreamView, left_s
from lockstep.values.tokens import Range


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return int(self.now_s * 1_000_000)


def view(clock: HandClock, *, total: int = 0, file_bytes: int = 0) -> StreamView:
    made = StreamView("s", ("n1", 1), "in", 7, Range(0, 9), clock)
    made.total_bytes, made.file_bytes = total, file_bytes
    return made


@pytest.mark.parametrize(
    ("left_bytes", "rate", "seconds"),
    [(0, 0, 0), (-5, 10, 0), (1, 0, -1), (1, 10, 1), (10, 10, 1), (11, 10, 2), (100, 1, 100)],
)
def test_seconds_left_are_rounded_up_and_unknown_without_a_rate(
    left_bytes: int, rate: int, seconds: int
) -> None:
    assert left_s(left_bytes, rate) == seconds


def test_a_rate_is_that_of_the_last_one_to_two_windows() -> None:
    rate = Rate()
    assert rate.of(5.0, 100) == 0, "nothing was noted"
    rate.note(0.0, 0)
    assert rate.of(0.0, 100) == 0, "no time went by"
    for second in range(1, 31):
        rate.note(float(second), second * 10 if second <= 15 else 150 + (second - 15) * 1000)
        since = rate._marks[0][0]
        assert second - since <= 2 * RATE_WINDOW_S
    assert rate.of(30.0, 150 + 15_000) == 1000, "what was slow before is forgotten"
    assert rate.of(60.0, 150 + 15_000) < 1000


def test_one_stream_tells_bytes_files_rate_and_what_is_left() -> None:
    clock = HandClock()
    one = view(clock, total=1000, file_bytes=300)
    assert (one.files_total, one.rate_bytes_s, one.left_s) == (4, 0, -1)
    clock.now_s += 2
    one.moved(500)
    assert (one.bytes, one.rate_bytes_s, one.left_s, one.since_us) == (500, 250, 2, 100_000_000)
    one.files = 9
    assert one.files_total == 9, "more than was thought"
    one.files = 2
    one.ended()
    assert (one.total_bytes, one.files_total, one.left_s) == (500, 2, 0)
    assert view(clock, total=1000).files_total == 0, "how large a file is was not said"


def test_streams_to_come_are_taken_to_be_as_large_as_those_that_began() -> None:
    clock, progress = HandClock(), StreamProgress()
    assert (progress.total_bytes, progress.files_total) == (0, 0)
    progress.views = [view(clock, total=1000, file_bytes=100), view(clock, total=3000, file_bytes=100)]
    assert (progress.total_bytes, progress.files_total) == (4000, 40)
    progress.expected = 6
    assert (progress.total_bytes, progress.files_total) == (12_000, 120)
    progress.expected = 1
    assert progress.total_bytes == 4000, "there are more than were expected"
    progress.views[0].moved(2500)
    assert progress.total_bytes == 5500, "it has moved more than it said"


def test_a_table_is_done_when_all_its_ranges_are() -> None:
    progress = StreamProgress()
    progress.plan(3, {7: 2, 8: 1})
    assert (progress.ranges_total, progress.tables_total, progress.tables_done) == (3, 2, 0)
    progress.table_done(7)
    assert progress.tables_done == 0
    progress.table_done(8)
    assert progress.tables_done == 1
    progress.table_done(7)
    assert progress.tables_done == 2


def test_what_is_left_is_the_longer_of_bytes_at_the_rate_and_ranges_at_their_pace() -> None:
    clock, progress = HandClock(), StreamProgress()
    progress.plan(10, dict.fromkeys(range(10), 1))
    assert progress.left_s(clock.now_s) == 0, "nobody said yet how much it is"
    progress.views = [view(clock, total=1000)]
    progress.rate.note(clock.now_s, 0)
    assert progress.left_s(clock.now_s) == -1
    clock.now_s += 10
    progress.moved_bytes = 500
    assert progress.rate_bytes_s(clock.now_s) == 50
    assert progress.left_s(clock.now_s) == 10
    progress.ranges = 2
    assert progress.left_s(clock.now_s) == 40, "ten seconds for two of ten ranges"
    progress.ranges = 8
    assert progress.left_s(clock.now_s) == 10, "bytes take longer than two ranges"
    progress.ranges = 10
    assert progress.left_s(clock.now_s) == 10
