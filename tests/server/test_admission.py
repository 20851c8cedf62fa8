"""What a node learns of how much it can work on: tables of single windows, and servers that are simulated."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.server.cql.loop_budget import Admission
from lockstep.values.node_limits import (
    ADMISSION_BUSY_MS,
    ADMISSION_MAX,
    ADMISSION_MIN,
    ADMISSION_PATIENCE_MS,
    ADMISSION_STANDING_MS,
    ADMISSION_START,
    ADMISSION_TARGET_MS,
    ADMISSION_TICK_MS,
    ADMISSION_WINDOW_MS,
)

TICK_S, WINDOW_S = ADMISSION_TICK_MS / 1000, ADMISSION_WINDOW_MS / 1000
BUSY_S = 2 * ADMISSION_BUSY_MS / 1000


def after_window(limit: int, in_flight: int, ended: int, late_s: float, waiting: bool) -> int:
    """The limit after one window in which so many were in flight all the time and so many ended."""
    admission = Admission()
    admission.limit = limit
    admission.observe(0.0, in_flight, 0, late_s, waiting=waiting)
    admission.observe(WINDOW_S, in_flight, ended, late_s, waiting=waiting)
    return admission.limit


@pytest.mark.parametrize(
    ("what", "limit", "in_flight", "ended", "late_s", "waiting", "found"),
    [
        ("fast and nobody waits", 256, 10, 1000, BUSY_S, False, 256),
        ("fast and others wait", 256, 256, 1000, BUSY_S, True, 288),
        ("slow on a busy loop", 400, 400, 500, BUSY_S, True, 200),
        ("far too slow", 400, 400, 1, BUSY_S, True, 200),
        ("slow, and fewer in flight than the limit", 4000, 400, 500, BUSY_S, True, 200),
        ("slow while the loop has time: others are", 400, 400, 500, 0.0, True, 450),
        ("slow while the loop has time, nobody waits", 400, 400, 500, 0.0, False, 400),
        ("never below the least", ADMISSION_MIN, ADMISSION_MIN, 0, BUSY_S, True, ADMISSION_MIN),
        ("never above the most", ADMISSION_MAX, 10, 1000, 0.0, True, ADMISSION_MAX),
    ],
)
def test_one_window(
    what: str, limit: int, in_flight: int, ended: int, late_s: float, waiting: bool, found: int
) -> None:
    assert after_window(limit, in_flight, ended, late_s, waiting) == found, what


def test_patience_is_shorter_once_others_always_waited() -> None:
    admission = Admission()
    long_s, short_s = ADMISSION_PATIENCE_MS / 1000, ADMISSION_STANDING_MS / 1000
    admission.observe(0.0, 5, 0, 0.0, waiting=True)
    assert admission.patience_s(long_s - 0.01) == long_s
    assert admission.patience_s(long_s) == short_s
    admission.observe(2.0, 5, 0, 0.0, waiting=False)
    admission.observe(2.1, 5, 0, 0.0, waiting=True)
    assert admission.patience_s(3.0) == long_s
    admission.rest()
    assert admission.patience_s(9.0) == long_s


class Served:
    """A server of one core behind an admission, at which clients keep asking: each step of a tick it ends as
    many as it can, serves those in flight at once, and refuses what has waited for too long."""

    def __init__(self, per_second: int) -> None:
        self.admission = Admission()
        self._per_tick = per_second * TICK_S
        self._credit = 0.0
        self.now_s = 0.0
        self.queue: deque[float] = deque()
        self.working: deque[float] = deque()
        self.ended = 0
        self.refused = 0
        self.slowest_s = 0.0

    def tick(self, population: int) -> None:
        self.now_s += TICK_S
        for _ in range(population - len(self.queue) - len(self.working)):
            self.queue.append(self.now_s)
        while self.queue and len(self.working) < self.admission.limit:
            self.working.append(self.queue.popleft())
        self._credit = min(self._credit + self._per_tick, self._per_tick + 1)
        busy = len(self.working) >= self._credit
        while self.working and self._credit >= 1:
            self._credit -= 1
            self.ended += 1
            self.slowest_s = max(self.slowest_s, self.now_s - self.working.popleft())
        late_s = BUSY_S if busy else 0.0
        waiting = bool(self.queue)
        self.admission.observe(self.now_s, len(self.working), self.ended, late_s, waiting=waiting)
        before_s = self.now_s - self.admission.patience_s(self.now_s)
        while self.queue and self.queue[0] < before_s:
            self.queue.popleft()
            self.refused += 1


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(200, 20_000), st.integers(1, 40))
def test_goodput_is_that_of_the_server_and_who_is_admitted_is_answered_soon(
    per_second: int, times: int
) -> None:
    served = Served(per_second)
    population = times * max(1, per_second * ADMISSION_TARGET_MS // 1000)
    for _ in range(int(5 / TICK_S)):
        served.tick(population)
    served.slowest_s, ended, refused = 0.0, served.ended, served.refused
    for _ in range(int(5 / TICK_S)):
        served.tick(population)
    goodput = (served.ended - ended) / 5
    assert goodput >= 0.8 * min(per_second, population / TICK_S)
    worked_s = max(3 * ADMISSION_TARGET_MS / 1000, 1.5 * ADMISSION_MIN / per_second)
    assert served.slowest_s <= ADMISSION_STANDING_MS / 1000 + worked_s
    if population < per_second * ADMISSION_STANDING_MS / 1000 / 2:
        assert served.refused == refused, "nobody waits for that long"
    # Recovery: what was learned does not hold back fewer clients.
    served.slowest_s = 0.0
    for _ in range(int(2 / TICK_S)):
        served.tick(ADMISSION_MIN)
    ended = served.ended
    for _ in range(int(1 / TICK_S)):
        served.tick(ADMISSION_MIN)
    assert served.ended - ended >= 0.8 * min(per_second, ADMISSION_MIN / TICK_S)


def test_it_starts_between_its_bounds() -> None:
    assert ADMISSION_MIN <= Admission().limit == ADMISSION_START <= ADMISSION_MAX
