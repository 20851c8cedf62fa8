"""One simulated process: its incarnations, its disk and clock, and what can be done to it.

Invariant: at most one incarnation lives. Disk and clock survive incarnations; everything else is new
in each. Killing keeps what the kernel holds (page cache, open ports answer with resets); a power cut
loses all that was not synced and leaves peers in silence until the host is back.

The simulator's Workers port: user functions run in the process of the simulation, at once.

Invariant: an answer takes a turn of the loop and no time, and depends on the question alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lockstep.cql.functions.user_batches import handle
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real.tasks import RealTasks
from lockstep.sim.runtime.disk import DiskPort, SimDisk
from lockstep.sim.runtime.loop import SimLoop, Stage
from lockstep.sim.runtime.network import Fabric, NetworkPort
from lockstep.sim.runtime.probes import ProbeBoard, SimProbes
from lockstep.sim.runtime.streams import NS, SimClock, SimRandom


class InlineWorkers:
    async def evaluate(self, owner: str, question: bytes, timeout_ms: int) -> bytes:
        """See ports.Workers. Nothing ends a function here that does not end."""
        await asyncio.sleep(0)
        return handle(question)

    async def stop(self) -> None:
        return


T = TypeVar("T")

Main = Callable[[Runtime], Coroutine[Any, Any, Any]]

KILL = "kill"
POWER = "power"


class Process:
    """`start(main)` runs `main(runtime)`; when main returns, the process exits.

    `expected_errors`: exceptions with which main may end without failing the run.
    """

    def __init__(self, world: Stage, network: Fabric, probes: ProbeBoard, name: str, host: str) -> None:
        self.world = world
        self._network = network
        self._probes = probes
        self.name = name
        self.host = host
        self.label = f"{name}.0"
        self.incarnation = 0
        self.loop: SimLoop | None = None
        self.runtime: Runtime | None = None
        self.main_task: asyncio.Task[Any] | None = None
        self.expected_errors: tuple[type[BaseException], ...] = ()
        #: False after a power cut, until the next start: packets to the host meet silence.
        self.powered = True
        #: What every callback costs, in virtual microseconds; survives restarts.
        self.callback_cost_us = 0
        self.disk = SimDisk(world, name)
        self.faults = world.stream(f"fault/{name}")
        self.clock = SimClock(world, (10 + self.faults.randrange(100_000)) * NS)
        self._main: Main | None = None
        self._paused = False
        self._paused_at_ns = 0
        #: How long it has stood still in all, by `pause`, in virtual nanoseconds.
        self.stood_ns = 0

    @property
    def alive(self) -> bool:
        return self.loop is not None and not self.loop.dead

    @property
    def paused(self) -> bool:
        return self._paused

    # ---- life

    def start(self, main: Main | None = None) -> None:
        """A new incarnation; `main` None means the main of the previous one. No-op while one lives."""
        if self.alive:
            return
        self._main = main or self._main
        assert self._main is not None, f"{self.name} has no main"
        world = self.world
        self.incarnation += 1
        self.label = f"{self.name}.{self.incarnation}"
        self.main_task = None
        loop = self.loop = SimLoop(world, self._network.dialing, self.clock, self.host, self.label)
        loop.charge_ns = self.callback_cost_us * 1000
        self._paused = False
        self.runtime = self._runtime(loop)
        world.note(self.label, "start")
        if not self.powered:
            self.powered = True
            self._network.host_is_back(self.host)
        loop.call_soon(self._boot, loop, self._main, self.runtime, context=contextvars.Context())

    def start_after(self, delay_s: float) -> None:
        self.world.after(delay_s, self.start, label=f"start {self.name}")

    def _runtime(self, loop: SimLoop) -> Runtime:
        probes = SimProbes(self._probes, self, loop)
        return Runtime(
            clock=self.clock,
            random=SimRandom(self.world.stream(f"entropy/{self.label}")),
            disk=DiskPort(self.disk, loop, probes),
            network=NetworkPort(self._network, loop),
            tasks=SimTasks(loop),
            probes=probes,
            workers=InlineWorkers(),
        )

    def _boot(self, loop: SimLoop, main: Main, runtime: Runtime) -> None:
        self.main_task = loop.create_task(main(runtime), name="main")
        self.main_task.add_done_callback(self._main_ended)

    def _main_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.world.note(self.label, "main cancelled")
        elif (error := task.exception()) is not None and not isinstance(error, self.expected_errors):
            self.world.fail("main", self.label, "main failed", error)
        self._end("exit")

    def submit(
        self, work: Callable[[Runtime], Coroutine[Any, Any, T]], name: str = "submitted"
    ) -> asyncio.Task[T]:
        """Run `work(runtime)` inside the living incarnation; its outcome is for the holder of the task."""
        assert self.alive and self.loop is not None and self.runtime is not None, f"{self.name} is down"
        context = contextvars.Context()
        return context.run(self.loop.create_task, work(self.runtime), name=name)

    # ---- faults

    def crash(self, kind: str = KILL) -> None:
        """End the incarnation at this very instant. Effects of the running callback stop here."""
        assert kind in (KILL, POWER), kind
        if self.alive:
            self.world.count(f"process.{kind}")
            self._end(kind)

    def _end(self, kind: str) -> None:
        loop = self.loop
        assert loop is not None
        self.world.note(self.label, kind)
        loop.die()
        self._paused = False
        self.powered = kind != POWER
        self._network.process_ended(loop, kind, self.faults)
        if kind == POWER or self.disk.failed:
            # A host whose disk dropped pages is started anew before anything may trust its cache.
            self.disk.power_loss()
        self.world.bury(loop)

    def crash_after(self, callbacks: int, kind: str = KILL, restart_after_s: float | None = None) -> None:
        """Crash right behind the `callbacks`-th callback from now of this incarnation: at any await."""
        assert self.loop is not None and callbacks > 0

        def due() -> None:
            self.world.count("process.crash_at_callback")
            self.crash(kind)
            if restart_after_s is not None:
                self.start_after(restart_after_s)

        self.loop.on_crash_due = due
        self.loop.crash_in = callbacks

    def pause(self) -> None:
        """Stop running callbacks, as SIGSTOP does; the kernel still accepts connections and bytes."""
        if self.alive and not self._paused:
            assert self.loop is not None
            self._paused = self.loop.stalled = self.loop.held = True
            self._paused_at_ns = self.world.now_ns
            self.world.count("process.pause")
            self.world.note(self.label, "pause")

    def resume(self) -> None:
        if self.alive and self._paused:
            assert self.loop is not None
            self._paused = self.loop.held = False
            self.stood_ns += self.world.now_ns - self._paused_at_ns
            self.world.note(self.label, "resume")
            self.loop.wake()

    def pause_for(self, seconds: float) -> None:
        """One stall of the event loop (a long collection, a stopped virtual machine)."""
        self.pause()
        self.world.after(seconds, self.resume, label=f"resume {self.name}")

    def slow_down(self, callback_cost_us: int) -> None:
        """Every callback costs that much virtual time from now on; 0 heals."""
        self.callback_cost_us = callback_cost_us
        if self.loop is not None:
            self.loop.charge_ns = callback_cost_us * 1000
        self.world.note(self.label, "slow", callback_cost_us)

    def drift_clock(self, rate: float) -> None:
        """Local seconds per real second."""
        self.clock.set_rate(rate)
        self.world.count("clock.drift")
        self.world.note(self.label, "clock rate", rate)

    def jump_wall(self, seconds: float) -> None:
        self.clock.jump_wall(seconds)
        self.world.count("clock.jump")
        self.world.note(self.label, "clock jump", seconds)

    def set_wall_right(self) -> None:
        """Undo all steps, as whoever looks after the clock does."""
        if self.clock.wall_error_us:
            self.jump_wall(-self.clock.wall_error_us / 1e6)

    def wipe_disk(self) -> None:
        """Replace the disk by an empty one; the process must be down."""
        assert not self.alive, self.name
        self.disk.wipe()

    def swap_disk(self, disk: SimDisk) -> None:
        """Attach another disk (a backup's clone, another node's); the process must be down."""
        assert not self.alive, self.name
        self.disk = disk
        self.world.count("disk.swapped")


class SimTasks(RealTasks):
    """Tasks port: the production owner, reporting into the world's errors."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(self._escaped)
        self._loop = loop

    def _escaped(self, name: str, error: BaseException) -> None:
        if not self._loop.dead:
            self._loop.world.fail("task", self._loop.label, f"{name} failed", error)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = self._loop.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def run_blocking(self, work: Callable[[], T]) -> T:
        result: T = await self._loop.run_in_executor(None, work)
        return result
