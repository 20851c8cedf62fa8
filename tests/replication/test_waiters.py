"""Operations that end by a deadline: one timer for all, and each told once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.internode.waiters import CallbackWaiter, Deadlines, FutureWaiter, RawWaiter
from lockstep.values.errors import PeerTimeout
from lockstep.values.limits import PEER_SWEEP_MS, SWEEP_LATE_MS

from .support import run


class Operation:
    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.told = 0

    def expired(self) -> None:
        self.told += 1


class Timer:
    def __init__(self, delay_s: float, work: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.work = work
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Desk:
    """Deadlines with timers that fire by hand, and a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []
        clock: Any = SimpleNamespace(monotonic_s=lambda: self.now_s)
        self.deadlines = Deadlines(clock)
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._later)

    def _later(self, delay_s: float, work: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, work))
        return self.timers[-1]

    @property
    def armed(self) -> list[float]:
        return [timer.delay_s for timer in self.timers if not timer.is_cancelled]

    def fire(self, at_s: float) -> None:
        self.now_s = at_s
        [timer] = [timer for timer in self.timers if not timer.is_cancelled]
        self.timers.clear()
        timer.work()
        self.deadlines.validate()


def test_the_earliest_deadline_arms_one_timer_and_those_that_left_are_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        desk = Desk(monkeypatch)
        late, early, gone = Operation(130.0), Operation(110.0), Operation(110.0)
        desk.deadlines.add(late)
        assert desk.armed == [30.0]
        desk.deadlines.add(early)
        assert desk.armed == [10.0]
        number = desk.deadlines.add(gone)
        assert len(desk.timers) == 2 and len(desk.deadlines) == 3
        desk.deadlines.remove(number)
        desk.deadlines.remove(number)
        desk.fire(110.0)
        assert (early.told, late.told, gone.told) == (1, 0, 0)
        assert desk.armed == [20.0] and len(desk.deadlines) == 1
        desk.fire(130.0)
        assert (early.told, late.told) == (1, 1) and desk.armed == [] and not len(desk.deadlines)
        desk.deadlines.add(Operation(130.0))
        assert desk.armed == [PEER_SWEEP_MS / 1000], "sweeps are not too close to each other"

    run(test)


def test_a_loop_that_stood_still_reads_once_before_anything_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk = Desk(monkeypatch)
        one = Operation(110.0)
        desk.deadlines.add(one)
        desk.fire(110.0 + 2 * SWEEP_LATE_MS / 1000)
        assert one.told == 0 and desk.armed == [PEER_SWEEP_MS / 1000]
        desk.fire(desk.now_s + 1)
        assert one.told == 1

    run(test)


def test_a_node_that_stops_tells_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        desk = Desk(monkeypatch)
        desk.deadlines.stop()
        operations = [Operation(110.0), Operation(120.0)]
        for one in operations:
            desk.deadlines.add(one)
        desk.deadlines.stop()
        assert [one.told for one in operations] == [1, 1] and desk.armed == []
        assert not len(desk.deadlines)
        desk.deadlines.validate()

    run(test)


def test_a_waiter_hears_the_first_of_two_ends() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        error = PeerTimeout("late")
        first, second, third = (loop.create_future() for _ in range(3))
        for waiter, ends in ((FutureWaiter(first), "replied"), (FutureWaiter(second), "failed")):
            if ends == "replied":
                waiter.replied(None, "yes", 1)
            waiter.failed(None, error)
            waiter.replied(None, "no", 1)
        assert await first == "yes"
        with pytest.raises(PeerTimeout):
            await second
        raw = RawWaiter(third, lambda data: None)
        raw.reply = "whole"
        raw.ended(None)
        raw.ended(ConnectionResetError())
        assert await third == "whole"
        broken = RawWaiter(loop.create_future(), lambda data: None)
        broken.ended(ConnectionResetError("between"))
        broken.ended(None)
        with pytest.raises(ConnectionResetError):
            await broken.future

    run(test)


def test_callbacks_hear_reply_and_epoch_or_the_error() -> None:
    heard: list[Any] = []
    waiter = CallbackWaiter(lambda reply, epoch: heard.append((reply, epoch)), heard.append)
    error = PeerTimeout("late")
    waiter.replied("context", "yes", 7)
    waiter.failed("context", error)
    assert heard == [("yes", 7), error]
