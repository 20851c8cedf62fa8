"""Crashes, restarts, pauses, slowness, clocks and probes of simulated processes."""

from __future__ import annotations

import asyncio
import gc
import itertools

import pytest

from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.loop import SimLoop
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.world import World, WorldSettings

from .sim_parts import PORT, SERVER, Sink, dial


async def _tick(runtime: Runtime) -> None:
    while True:
        runtime.disk.append("ticks", b".")
        runtime.probes.observe("tick")
        await asyncio.sleep(0.1)


class _Watch:
    """A monitor that remembers (time in s, process, kind)."""

    def __init__(self, world: World) -> None:
        self.seen: list[tuple[float, str, str]] = []
        world.monitors.append(self)

    def __call__(self, at_ns: int, process: str, kind: str, facts: dict[str, object]) -> None:
        self.seen.append((at_ns / 1e9, process, kind))

    def kinds(self) -> list[str]:
        return [kind for _, _, kind in self.seen]


def test_nothing_runs_after_a_crash_until_the_restart() -> None:
    with World(1) as world:
        watch = _Watch(world)
        process = world.process("n")
        process.start(_tick)
        world.after(1.0, process.crash, label="crash")
        world.after(3.0, process.start, label="start")
        world.run(5.0)
        assert {name for at, name, _ in watch.seen if at < 1} == {"n.1"}
        assert not [at for at, _, _ in watch.seen if 1.0 < at < 3.0]
        assert {name for at, name, _ in watch.seen if at >= 3} == {"n.2"}


def test_a_crash_before_the_first_callback_starts_nothing() -> None:
    with World(1) as world:
        watch = _Watch(world)
        process = world.process("n")
        process.start(_tick)
        process.crash("power")
        world.run(1.0)
        assert watch.seen == []


def test_no_callback_of_a_dead_incarnation_runs() -> None:
    with World(1, WorldSettings(keep_trace=True)) as world:
        process = world.process("n")
        process.start(_tick)
        world.after(1.0, process.crash, label="crash")
        world.run(5.0)
        world.digest()
        late = [event for event in world.trace.events or () if event[1] == "n.1" and event[0] > 1e9]
        assert late == []


def test_a_crash_inside_a_callback_mutes_the_rest_of_it() -> None:
    collected: list[Sink] = []

    async def server(runtime: Runtime) -> None:
        def accept() -> Sink:
            collected.append(Sink())
            return collected[-1]

        await runtime.network.listen(SERVER, PORT, accept)
        await asyncio.Event().wait()

    async def main(runtime: Runtime) -> None:
        end = await dial(runtime)
        runtime.disk.append("log", b"before")
        try:
            runtime.probes.reach("here")
            runtime.disk.append("log", b"after")
            end.transport.write(b"after")
            runtime.probes.observe("after")
            runtime.tasks.spawn(_tick(runtime), "late")
            asyncio.get_running_loop().call_later(0.1, runtime.probes.observe, "late")
            await runtime.tasks.run_blocking(lambda: None)
        finally:
            runtime.disk.append("log", b"finally")
            runtime.probes.observe("finally")

    with World(2) as world:
        watch = _Watch(world)
        world.process("server", SERVER).start(server)
        world.probes.add(CrashRule(label="here", hit=1))
        process = world.process("n")
        process.start(main)
        world.run(3.0)
        world.check()
        assert not process.alive
        assert world.effects["probe.crash"] == 1
    assert process.disk.read("log") == b"before"
    assert watch.kinds() == []
    assert collected[0].received == b""


def test_the_nth_hit_crashes_and_the_process_starts_again() -> None:
    async def main(runtime: Runtime) -> None:
        while True:
            await asyncio.sleep(0.1)
            runtime.probes.reach("step")

    with World(3) as world:
        world.probes.add(CrashRule(label="step", process="n", hit=5, restart_after_s=1.0))
        process = world.process("n")
        process.start(main)
        world.process("other").start(main)
        world.run(3.0)
        assert process.incarnation == 2
        assert world.process("other").incarnation == 1
        assert world.probes.process_counts[("n", "step")] > 5


def test_a_probability_rule_fires_sometimes() -> None:
    async def main(runtime: Runtime) -> None:
        for _ in range(20):
            await asyncio.sleep(0.1)
            runtime.probes.reach("step")

    survivors = 0
    for seed in range(20):
        with World(seed) as world:
            world.probes.add(CrashRule(label="step", probability=0.05))
            world.process("n").start(main)
            world.run(3.0)
            survivors += "process.kill" not in world.effects
    assert 0 < survivors < 20


def test_a_sync_in_flight_is_a_place_to_crash() -> None:
    async def main(runtime: Runtime) -> None:
        runtime.disk.append("log", b"x")
        await runtime.disk.sync("log")
        runtime.probes.observe("synced")

    with World(4) as world:
        watch = _Watch(world)
        world.probes.add(CrashRule(label="disk.sync.inflight", kind="power", hit=1))
        world.process("n").start(main)
        world.run(1.0)
        assert watch.kinds() == []
        assert world.effects["process.power"] == 1


def test_linger_delays_by_a_rule_only() -> None:
    async def main(runtime: Runtime) -> float:
        began = runtime.clock.monotonic_s()
        await runtime.probes.linger("slowly")
        return runtime.clock.monotonic_s() - began

    with World(5) as world:
        assert world.call(main, name="one") == 0
        world.probes.add(DelayRule(label="slowly", low_s=2, high_s=3))
        assert 2 <= world.call(main, name="two") < 3.01
        assert world.effects["probe.linger"] == 1


def test_a_crash_after_any_callback() -> None:
    with World(6) as world:
        process = world.process("n")
        process.start(_tick)
        process.crash_after(10)
        world.run(5.0)
        assert not process.alive
        assert world.effects["process.crash_at_callback"] == 1
        assert 5 <= len(process.disk.read("ticks")) <= 10


def test_a_paused_process_does_nothing_then_catches_up() -> None:
    with World(7) as world:
        watch = _Watch(world)
        process = world.process("n")
        process.start(_tick)
        world.after(1.0, process.pause_for, 2.0, label="pause")
        world.run(4.0)
        assert not [at for at, _, _ in watch.seen if 1.0 < at < 3.0]
        assert [at for at, _, _ in watch.seen if at >= 3.0]
        assert process.alive


def test_a_slow_process_pays_for_every_callback() -> None:
    async def main(runtime: Runtime) -> float:
        began = runtime.clock.monotonic_s()
        for _ in range(100):
            await asyncio.sleep(0)
        return runtime.clock.monotonic_s() - began

    with World(8) as world:
        assert world.call(main, name="fast") == 0
        world.process("slow").slow_down(1000)
        assert world.call(main, name="slow") > 0.09


def test_a_pause_of_a_slow_process_holds() -> None:
    with World(8) as world:
        watch = _Watch(world)
        process = world.process("n")
        process.slow_down(5000)

        def pause_behind_a_tick(at_ns: int, *rest: object) -> None:
            if at_ns > 1e9 and not world.effects.get("process.pause"):
                # The callback at hand is still to be paid for when the pause begins.
                world.after(0.001, process.pause_for, 2.0, label="pause")
                world.effects["process.pause"] = 0

        world.monitors.append(pause_behind_a_tick)
        process.start(_tick)
        world.run(4.0)
        times = [at for at, _, _ in watch.seen]
        assert max(after - before for before, after in itertools.pairwise(times)) >= 1.99
        assert times[-1] > 3.5


def test_clocks_drift_and_wall_time_jumps_but_monotonic_time_never_does() -> None:
    async def main(runtime: Runtime) -> list[tuple[float, int]]:
        readings = []
        for _ in range(30):
            readings.append((runtime.clock.monotonic_s(), runtime.clock.wall_us()))
            await asyncio.sleep(0.1)
        return readings

    with World(9) as world:
        process = world.process("caller")
        world.after(1.0, process.jump_wall, -3600, label="jump")
        world.after(2.0, process.drift_clock, 1.05, label="drift")
        readings = world.call(main)
    monotonic = [reading[0] for reading in readings]
    wall = [reading[1] for reading in readings]
    assert monotonic == sorted(monotonic)
    assert min(b - a for a, b in itertools.pairwise(wall)) < -3_500_000_000


def test_monotonic_clocks_of_two_processes_are_not_comparable() -> None:
    async def main(runtime: Runtime) -> float:
        return runtime.clock.monotonic_s()

    with World(9) as world:
        assert abs(world.call(main, name="a") - world.call(main, name="b")) > 1


def test_time_goes_at_the_drifting_rate() -> None:
    async def main(runtime: Runtime) -> None:
        await asyncio.sleep(100)

    with World(9) as world:
        world.process("caller").drift_clock(1.25)
        world.call(main, limit_s=200)
        assert world.now_s() == pytest.approx(80, rel=0.01)


def test_each_incarnation_draws_new_entropy() -> None:
    async def main(runtime: Runtime) -> str:
        assert 0 <= runtime.random.real() < 1
        assert runtime.random.below(3) in (0, 1, 2)
        assert len(runtime.random.bytes(5)) == 5
        return runtime.random.uuid()

    with World(10) as world:
        one, two = world.call(main), world.call(main)
        assert one != two
        assert one[14] == two[14] == "4"
    with World(10) as world:
        assert world.call(main) == one


def test_submitted_work_runs_inside_the_process() -> None:
    async def idle(runtime: Runtime) -> None:
        await asyncio.Event().wait()

    async def ask(runtime: Runtime) -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return loop.label

    with World(11) as world:
        world.process("n").start(idle)
        world.run_for(1)
        task = world.process("n").submit(ask)
        world.run_for(1)
        assert task.result() == "n.1"


def test_main_returning_ends_the_process() -> None:
    async def main(runtime: Runtime) -> int:
        runtime.tasks.spawn(_tick(runtime), "left")
        return 5

    with World(12) as world:
        watch = _Watch(world)
        process = world.process("n")
        process.start(main)
        world.run(3.0)
        world.check()
        assert not process.alive
        assert process.main_task is not None
        assert process.main_task.result() == 5
        assert len(watch.seen) <= 1


def test_many_crashes_leave_nothing_behind() -> None:
    with World(13) as world:
        process = world.process("n")
        process.start(_tick)
        for at in range(1, 400):
            world.after(at, process.crash, "kill" if at % 2 else "power", label="crash")
            world.after(at + 0.5, process.start, label="start")
        world.run(450)
        world.check()
        assert process.incarnation == 400
        loops = [thing for thing in gc.get_objects() if type(thing) is SimLoop and thing.world is world]
        assert len(loops) < 250, "dead loops are buried while the world runs"
