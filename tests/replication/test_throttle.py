"""The throttle of stream sources, on a clock that only moves when everybody sleeps."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lockstep.internode.throttle import BURST_S, LoopBudget, Throttle
from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.world import World


def virtual(test_rate: int, sizes: list[list[int]]) -> list[tuple[float, int]]:
    """(instant, bytes) of every part that some streams got through."""
    passed: list[tuple[float, int]] = []

    async def main(runtime: Runtime) -> None:
        throttle = Throttle(runtime.clock, test_rate)
        began_s = runtime.clock.monotonic_s()

        async def stream(parts: list[int]) -> None:
            for size in parts:
                while not await throttle.take(size, 2000):
                    pass
                passed.append((runtime.clock.monotonic_s() - began_s, size))

        async with asyncio.TaskGroup() as group:
            for parts in sizes:
                group.create_task(stream(parts))

    world = World(seed=1)
    world.process("n1", "10.0.0.1").start(main)
    world.run_for(10_000.0)
    assert not world.errors, world.errors
    return passed


def test_all_streams_together_stay_below_the_rate_in_any_span() -> None:
    rate, part = 1000, 50
    passed = virtual(rate, [[part] * 40, [part] * 40, [20] * 10])
    assert sum(size for _, size in passed) == 4200
    for first, (since_s, _) in enumerate(passed):
        for last in range(first, len(passed)):
            moved = sum(size for _, size in passed[first : last + 1])
            span_s = passed[last][0] - since_s
            assert moved <= rate * (span_s + BURST_S) + 2 * part + 1
    assert 3.9 < passed[-1][0] < 4.3, "and what is allowed is used"


def test_nobody_waits_for_long_without_hearing_of_it() -> None:
    passed = virtual(10, [[100], [100]])
    assert passed[0][0] == 0
    assert 9.0 < passed[1][0] < 12.5


def shares(rate: int, streams: int, parts_ahead: int) -> list[float]:
    """What share each stream gets that asks for some parts at once; each began after the last."""
    moved = [0] * streams
    seconds = 120.0

    async def main(runtime: Runtime) -> None:
        throttle = Throttle(runtime.clock, rate)
        size = throttle.part_bytes(256 * 1024)

        async def parts(stream: int, turns: LoopBudget, number: int) -> None:
            for offset in itertools.count():
                # A round trip later it asks again.
                while not await throttle.take(size, 2000, turns, (number, offset)):  # noqa: ASYNC110
                    await asyncio.sleep(0.3)
                moved[stream] += size
                await asyncio.sleep(0.001)

        async def one(stream: int) -> None:
            await asyncio.sleep(stream / 2)
            turns: LoopBudget = {}
            await asyncio.gather(*(parts(stream, turns, number) for number in range(parts_ahead)))

        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(one(stream) for stream in range(streams)))
        except TimeoutError:
            pass

    world = World(seed=1)
    world.process("n1", "10.0.0.1").start(main)
    world.run_for(seconds + 10)
    assert not world.errors, world.errors
    assert sum(moved) <= rate * (seconds + BURST_S) + 2 * 256 * 1024
    assert sum(moved) > 0.8 * rate * seconds, "and what is allowed is used"
    return [one / sum(moved) for one in moved]


@pytest.mark.parametrize(("rate", "streams"), [(200_000, 2), (1_000_000, 4), (4_000_000, 8)])
def test_streams_that_began_later_get_their_share_at_any_rate(rate: int, streams: int) -> None:
    assert min(shares(rate, streams, 8)) > 0.7 / streams


def test_no_rate_holds_nothing_back() -> None:
    assert all(at_s == 0 for at_s, _ in virtual(0, [[1 << 20] * 5, [1 << 20] * 5]))


def test_parts_shrink_with_the_rate_so_that_one_does_not_hold_up_the_others() -> None:
    class Still:
        def monotonic_s(self) -> float:
            return 0.0

        def wall_us(self) -> int:
            return 0

    assert Throttle(Still(), 0).part_bytes(1000) == 1000
    assert Throttle(Still(), 800).part_bytes(1000) == 200
    assert Throttle(Still(), 1).part_bytes(1000) == 1
