"""Virtual time, order of callbacks, errors, spins."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.streams import stream
from lockstep.sim.runtime.world import World, WorldSettings


def test_an_hour_passes_without_waiting() -> None:
    async def main(runtime: Runtime) -> float:
        began = runtime.clock.monotonic_s()
        await asyncio.sleep(3600)
        return runtime.clock.monotonic_s() - began

    with World(1) as world:
        assert 3600 <= world.call(main, limit_s=4000) < 3600.001


def test_a_timer_never_fires_before_its_time() -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        for step in range(300):
            due = loop.time() + step * 0.000_123_4
            await asyncio.sleep(due - loop.time())
            assert loop.time() >= due

    with World(2, WorldSettings(timer_jitter_us=0)) as world:
        world.process("caller").drift_clock(1.000_37)
        world.call(main)


def test_plain_asyncio_parts_work() -> None:
    async def main(runtime: Runtime) -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        lock = asyncio.Lock()
        taken: list[int] = []

        async def put() -> None:
            for number in range(10):
                await queue.put(number)

        async def take() -> None:
            for _ in range(5):
                async with lock:
                    taken.append(await asyncio.wait_for(queue.get(), 1))

        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            group.create_task(take())
            group.create_task(take())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.Event().wait()
        return sorted(taken)

    with World(3) as world:
        assert world.call(main) == list(range(10))


def test_task_wake_ups_are_reordered_but_plain_callbacks_are_not() -> None:
    async def main(runtime: Runtime) -> tuple[list[int], list[int]]:
        woken: list[int] = []
        called: list[int] = []
        gate = asyncio.Event()

        async def wait(number: int) -> None:
            await gate.wait()
            woken.append(number)

        tasks = [runtime.tasks.spawn(wait(number), "wait") for number in range(30)]
        await asyncio.sleep(0.1)
        gate.set()
        for number in range(30):
            asyncio.get_running_loop().call_soon(called.append, number)
        await asyncio.gather(*tasks)
        return woken, called

    with World(4) as world:
        woken, called = world.call(main)
    assert sorted(woken) == list(range(30)) != woken
    assert called == list(range(30))


def test_no_reordering_when_it_is_off() -> None:
    async def main(runtime: Runtime) -> list[int]:
        woken: list[int] = []

        async def step(number: int) -> None:
            await asyncio.sleep(0)
            woken.append(number)

        await asyncio.gather(*(step(number) for number in range(20)))
        return woken

    with World(4, WorldSettings(shuffle=0)) as world:
        assert world.call(main) == list(range(20))


def test_an_exception_that_escapes_a_task_fails_the_run() -> None:
    async def broken() -> None:
        raise ValueError("planted")

    async def main(runtime: Runtime) -> None:
        runtime.tasks.spawn(broken(), "broken")
        await asyncio.sleep(1)

    with World(5) as world:
        world.process("n").start(main)
        world.run(2)
        assert [(error.kind, error.process) for error in world.errors] == [("task", "n.1")]
        with pytest.raises(AssertionError, match="planted"):
            world.check()


def test_a_failing_main_and_a_failing_callback_fail_the_run() -> None:
    async def main(runtime: Runtime) -> None:
        asyncio.get_running_loop().call_soon(int, "x")
        await asyncio.sleep(1)
        raise KeyError("planted")

    with World(5, WorldSettings(stop_on_error=False)) as world:
        world.process("n").start(main)
        world.run(2)
        assert [error.kind for error in world.errors] == ["callback", "main"]


def test_an_expected_error_of_main_does_not() -> None:
    async def main(runtime: Runtime) -> None:
        raise KeyError("expected")

    with World(5) as world:
        process = world.process("n")
        process.expected_errors = (KeyError,)
        process.start(main)
        world.run(2)
        world.check()
        assert not process.alive


def test_a_monitor_that_objects_fails_the_run_and_stops_it() -> None:
    async def main(runtime: Runtime) -> None:
        for epoch in range(10):
            await asyncio.sleep(0.1)
            runtime.probes.observe("epoch", epoch=epoch)

    seen: list[object] = []

    def monitor(at_ns: int, process: str, kind: str, facts: dict[str, object]) -> None:
        seen.append((process, kind, facts["epoch"]))
        assert facts["epoch"] != 4, "epoch four"

    with World(6) as world:
        world.monitors.append(monitor)
        world.process("n").start(main)
        world.run(5)
        assert [error.kind for error in world.errors] == ["monitor"]
    assert seen == [("n.1", "epoch", epoch) for epoch in range(5)]


def test_a_busy_spin_is_an_error() -> None:
    async def main(runtime: Runtime) -> None:
        while True:  # noqa: ASYNC110 (the spin is the point)
            await asyncio.sleep(0)

    with World(7, WorldSettings(events_per_second_max=20_000)) as world:
        world.process("n").start(main)
        world.run(5)
        assert [error.kind for error in world.errors] == ["spin"]


def test_run_blocking_takes_time_and_returns_or_raises() -> None:
    async def main(runtime: Runtime) -> tuple[int, float]:
        began = runtime.clock.monotonic_s()
        result = await runtime.tasks.run_blocking(lambda: 41 + 1)
        with pytest.raises(ZeroDivisionError):
            await runtime.tasks.run_blocking(lambda: 1 // 0)
        return result, runtime.clock.monotonic_s() - began

    with World(8) as world:
        result, took = world.call(main)
    assert result == 42
    assert took > 0


def test_cancel_all_ends_every_task_of_the_owner() -> None:
    ended: list[str] = []

    async def main(runtime: Runtime) -> None:
        async def idle(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        for name in ("one", "two"):
            runtime.tasks.spawn(idle(name), name)
        await asyncio.sleep(0.01)
        await runtime.tasks.cancel_all()

    with World(9) as world:
        world.call(main)
    assert sorted(ended) == ["one", "two"]


def test_streams_are_independent_of_each_other() -> None:
    alone = [stream(1, "link/a>b").random() for _ in range(2)]
    other = stream(1, "link/b>a")
    assert alone[0] == alone[1] != other.random()
    assert stream(2, "link/a>b").random() != alone[0]


def test_the_kept_trace_can_be_read() -> None:
    async def main(runtime: Runtime) -> None:
        runtime.probes.observe("hello", who="world")

    with World(1, WorldSettings(keep_trace=True)) as world:
        world.call(main)
        assert "hello" in world.trace.render()


def test_collection_and_clock_are_as_before_after_a_run() -> None:
    import gc
    import time

    async def main(runtime: Runtime) -> None:
        await asyncio.sleep(1)

    with World(1) as world:
        world.call(main)
    assert gc.isenabled()
    assert time.time() > 1_700_000_000


def test_what_was_frozen_stays_frozen_and_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count walks all of it, and a test process that froze its tests starts thousands of worlds."""
    import gc

    async def main(runtime: Runtime) -> None:
        await asyncio.sleep(1)

    gc.freeze()
    frozen = gc.get_freeze_count()
    counted: list[int] = []

    def count() -> int:
        counted.append(frozen)
        return frozen

    monkeypatch.setattr(World, "_kept_frozen", False)
    monkeypatch.setattr(gc, "get_freeze_count", count)
    for seed in range(5):
        with World(seed) as world:
            world.call(main)
    assert counted == [frozen]
    monkeypatch.undo()
    # What dies leaves the number; to unfreeze would leave none.
    assert gc.get_freeze_count() > frozen / 2


def test_sets_of_tasks_and_futures_iterate_alike_in_every_run() -> None:
    async def main(runtime: Runtime) -> list[int]:
        loop = asyncio.get_running_loop()
        tasks = [runtime.tasks.spawn(asyncio.sleep(0.01), "sleep") for _ in range(50)]
        done, _ = await asyncio.wait(tasks)
        return [tasks.index(task) for task in done] + [hash(loop.create_future()) for _ in range(5)]

    orders = []
    for _ in range(3):
        with World(1) as world:
            orders.append(world.call(main))
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0][:50]) == list(range(50))
