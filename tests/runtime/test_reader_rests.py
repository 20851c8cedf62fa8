"""Readers rest after parts in which others wanted the processor, and only then."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.runtime.real.door_process import RestBetweenParts
from lockstep.values.node_limits import SESSION_READER_REST_MS


class Machine:
    """A clock that sleep moves, and a count of interruptions."""

    def __init__(self) -> None:
        self.now_s, self.interrupted = 100.0, 0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now_s += seconds
        # Who sleeps may be counted as interrupted: that is not of the next part.
        self.interrupted += 1

    def parts(self, resting: RestBetweenParts) -> Iterator[None]:
        for took_s, interruptions in ((0.01, 0), (0.02, 1), (0.03, 0), (0.004, 7), (9.0, 2), (0.01, 0)):
            self.now_s += took_s
            self.interrupted += interruptions
            resting.rest()
            yield


def test_a_reader_rests_as_long_as_the_part_took_that_was_interrupted() -> None:
    machine = Machine()
    resting = RestBetweenParts(lambda: machine.now_s, lambda: machine.interrupted, machine.sleep)
    for _ in machine.parts(resting):
        pass
    assert machine.slept == [0.02, 0.004, SESSION_READER_REST_MS / 1000]
