"""The world of a simulation: virtual time, the scheduler over all loops, processes, faults' bookkeeping.

Invariant: one seed gives one run. Time moves only when no process has anything to do; whatever is
drawn comes from a stream of its own; every event is in the trace. An error anywhere (an exception that
escapes a task, a monitor's objection, an escape to the real world, a busy spin) is in `errors`.

The trace of a run: every callback, send, fault and observed fact, folded into one digest.

Invariant: the digest depends on the seed and the code alone, so two runs of a seed, in whatever
processes, give the same 128 bits. Events hold only integers, floats, text, bytes and tuples of them.
"""

from __future__ import annotations

import contextvars
import gc
import hashlib
import heapq
from asyncio import events as asyncio_events
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import msgspec

from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.guard import Guard
from lockstep.sim.runtime.loop import Callback, SimLoop, name_of
from lockstep.sim.runtime.network import Fabric
from lockstep.sim.runtime.probes import ProbeBoard
from lockstep.sim.runtime.process import Process
from lockstep.sim.runtime.streams import NS, Stream, stream
from lockstep.sim.runtime.transport import LinkSettings

#: Events hashed together: large enough that hashing does not show, small enough to stay in cache.
BLOCK_EVENTS = 4096

Event = tuple[Any, ...]


class Trace:
    """Append events to `block`; call `flush` when it holds BLOCK_EVENTS."""

    def __init__(self, *, keep: bool = False) -> None:
        self.block: list[Event] = []
        self.events: list[Event] | None = [] if keep else None
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder().encode

    def flush(self) -> None:
        """Hash the block and empty it. The list object stays the same: the scheduler holds it."""
        block = self.block
        # Each event encodes to a self-delimiting value, so where blocks are cut does not show in the digest:
        # what a list begins with, its length, is left out.
        self._hash.update(memoryview(self._encode(block))[_list_head_bytes(len(block)) :])
        self.count += len(block)
        if self.events is not None:
            self.events.extend(block)
        block.clear()

    def digest(self) -> str:
        """Hexadecimal BLAKE2b-128 of everything so far."""
        self.flush()
        return self._hash.hexdigest()

    def render(self, last: int = 200) -> str:
        """The last events as text, one a line; empty unless the trace keeps its events."""
        self.flush()
        return "\n".join(_line(event) for event in (self.events or [])[-last:])


def _list_head_bytes(count: int) -> int:
    """What MessagePack writes in front of the elements of a list."""
    return 1 if count < 1 << 4 else 3 if count < 1 << 16 else 5


def _line(event: Event) -> str:
    at_ns, *rest = event
    return f"{at_ns / 1e9:12.6f}  " + "  ".join(str(part) for part in rest)


T = TypeVar("T")

#: Told (time in ns, process label, kind, facts) of every observed fact; raises to object.
Monitor = Callable[[int, str, str, dict[str, Any]], None]

_set_running_loop = asyncio_events._set_running_loop
#: Steps between two rounds of housekeeping, and rounds between two collections of garbage:
#: finalisers then run at places that the seed alone decides.
_HOUSEKEEPING_STEPS = 4096
_COLLECT_ROUNDS = 16
#: Kinds of facts that the trace keeps.
_SCALARS = (bool, int, float, str, bytes)


class WorldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed does not decide. Times in the unit of their name."""

    #: Probability that a task wake-up is taken out of turn.
    shuffle: float = 0.2
    #: A timer fires up to this much late.
    timer_jitter_us: int = 200
    #: A blocking call (run_blocking) takes up to this long.
    blocking_us: int = 2000
    #: More steps than this in one virtual second are a busy spin.
    events_per_second_max: int = 3_000_000
    stop_on_error: bool = True
    keep_trace: bool = False
    links: LinkSettings = LinkSettings()


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must not happen. `kind`: task, callback, main, monitor, escape, spin or a checker's."""

    at_ns: int
    kind: str
    process: str
    message: str
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"[{self.at_ns / NS:.6f}s {self.process}] {self.kind}: {self.message}"


class World:
    """Use as a context manager, or call `close`."""

    #: Somebody froze objects of this process for good.
    _kept_frozen: ClassVar[bool] = False

    def __init__(self, seed: int, settings: WorldSettings | None = None) -> None:
        self.seed = seed
        self.settings = settings or WorldSettings()
        self.now_ns = 0
        self.steps = 0
        self.ready: list[SimLoop] = []
        self.processes: dict[str, Process] = {}
        self.errors: list[RunError] = []
        self.effects: dict[str, int] = {}
        self.monitors: list[Monitor] = []
        self.trace = Trace(keep=self.settings.keep_trace)
        self.network = Fabric(self, self.settings.links)
        self.probes = ProbeBoard(self)
        #: Set to end the run after the present callback.
        self.stopped = False
        self.events_per_second_peak = 0
        self._heap: list[tuple[int, int, SimLoop | None, Callback]] = []
        self._sequence = 0
        self._schedule = self.stream("schedule")
        self._timer_stream = self.stream("timers")
        self._blocking_stream = self.stream("blocking")
        self._context = contextvars.Context()
        self._graves: list[SimLoop] = []
        self._freezes = True
        self._guard = Guard(self)
        self._housekeeping_due = _HOUSEKEEPING_STEPS
        self._housekeeping_rounds = 0
        self._second = 0
        self._second_began_at_step = 0
        self._closed = False

    def __enter__(self) -> World:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # ---- what processes and faults use

    def stream(self, label: str) -> Stream:
        """A fresh generator of `label`'s own stream; ask once per consumer."""
        return stream(self.seed, label)

    def process(self, name: str, host: str | None = None) -> Process:
        """The process `name`, made (not started) on first use; `host` defaults to an address of its own."""
        process = self.processes.get(name)
        if process is None:
            process = Process(
                self, self.network, self.probes, name, host or f"10.0.0.{len(self.processes) + 1}"
            )
            self.processes[name] = process
        assert host is None or host == process.host, (name, host, process.host)
        return process

    def hosts(self) -> dict[str, bool]:
        """{host: its kernel is up}."""
        found: dict[str, bool] = {}
        for process in self.processes.values():
            found[process.host] = process.powered and found.get(process.host, True)
        return found

    def count(self, effect: str, times: int = 1) -> None:
        """A fault really changed something."""
        self.effects[effect] = self.effects.get(effect, 0) + times

    def note(self, *facts: int | float | str | bytes) -> None:
        """Add an event to the trace."""
        self.trace.block.append((self.now_ns, *facts))

    def observe(self, process: str, kind: str, facts: dict[str, Any]) -> None:
        """A fact told through Probes.observe: traced, then shown to every monitor."""
        self.note(process, "observe", kind, _plain(facts))
        for monitor in self.monitors:
            try:
                monitor(self.now_ns, process, kind, facts)
            except Exception as error:
                self.fail("monitor", process, f"{type(error).__name__}: {error}", error)

    def fail(self, kind: str, process: str, message: str, error: BaseException | None = None) -> None:
        """Record an error of the run; ends it when the settings say so."""
        if error is not None and error.__class__.__name__ not in message:
            message = f"{message} ({type(error).__name__}: {error})"
        self.errors.append(
            RunError(at_ns=self.now_ns, kind=kind, process=process, message=message, error=error)
        )
        self.note(process, "error", kind)
        if self.settings.stop_on_error:
            self.stopped = True

    def at(
        self, time_ns: int, function: Callable[..., Any], *args: Any, loop: SimLoop | None = None, label: str
    ) -> Callback:
        """Call at a virtual instant: on `loop` like an I/O event, or outside all loops.

        `label` is the name in the trace; "" keeps it out (its effects are traced anyway).
        """
        callback = Callback(function, args, self._context, label)
        self._sequence += 1
        now_ns = self.now_ns
        at_ns = time_ns if time_ns > now_ns else now_ns
        heapq.heappush(self._heap, (at_ns, self._sequence, loop, callback))
        return callback

    def after(self, delay_s: float, function: Callable[..., Any], *args: Any, label: str) -> Callback:
        """Call outside all loops, `delay_s` from now."""
        return self.at(self.now_ns + int(delay_s * NS), function, *args, label=label)

    def push_timer(self, time_ns: int, loop: SimLoop, callback: Callback) -> None:
        jitter_us = self.settings.timer_jitter_us
        if jitter_us:
            time_ns += int(self._timer_stream.random() * jitter_us * 1000)
        self._sequence += 1
        now_ns = self.now_ns
        heapq.heappush(self._heap, (time_ns if time_ns > now_ns else now_ns, self._sequence, loop, callback))

    def blocking_delay_ns(self) -> int:
        return 1000 + int(self._blocking_stream.random() * self.settings.blocking_us * 1000)

    def bury(self, loop: SimLoop) -> None:
        """Keep a dead loop until its coroutines can be closed between two callbacks."""
        self._graves.append(loop)

    # ---- running

    def now_s(self) -> float:
        return self.now_ns / NS

    def run(self, until_s: float, done: Callable[[], bool] | None = None) -> None:
        """Run to an instant, or until `done()` (asked whenever time is about to move), or to an error."""
        assert not self._closed
        was_collecting = gc.isenabled()
        gc.disable()
        if not self.steps:
            gc.collect()  # An earlier world of this process would be frozen, and stay for ever.
            # Whoever froze what was there before this world wants it to stay so. To count what is frozen
            # walks all of it, half a second in a process that holds the test suite: no more once some is.
            World._kept_frozen = World._kept_frozen or gc.get_freeze_count() > 0
            self._freezes = not World._kept_frozen
        if self._freezes:
            gc.freeze()
        try:
            with self._guard:
                self._spin(int(until_s * NS), done)
        finally:
            self.trace.flush()
            if self._freezes:
                gc.unfreeze()
            if was_collecting:
                gc.enable()

    def run_for(self, seconds: float, done: Callable[[], bool] | None = None) -> None:
        self.run(self.now_s() + seconds, done)

    def call(
        self,
        main: Callable[[Runtime], Coroutine[Any, Any, T]],
        *,
        name: str = "caller",
        limit_s: float = 60.0,
    ) -> T:
        """Run `main` as a process of its own and return its result. AssertionError when the run fails
        or `main` is not done in `limit_s` virtual seconds; whatever `main` raises is raised here."""
        process = self.process(name)
        process.expected_errors = (Exception,)
        process.start(main)
        self.run_for(limit_s, done=lambda: not process.alive)
        self.check()
        assert process.main_task is not None and process.main_task.done(), f"{name} is not done"
        result: T = process.main_task.result()
        return result

    def check(self) -> None:
        """AssertionError when anything went wrong so far; its cause is the first error."""
        if self.errors:
            lines = "\n".join(str(error) for error in self.errors[:10])
            message = f"seed {self.seed}: {len(self.errors)} errors\n{lines}"
            raise AssertionError(message) from self.errors[0].error

    def digest(self) -> str:
        return self.trace.digest()

    def close(self) -> None:
        """End every process and close its coroutines; nothing they do any more has an effect."""
        if self._closed:
            return
        self._closed = True
        for process in self.processes.values():
            if process.loop is not None:
                process.loop.die()
                self._graves.append(process.loop)
        self._bury_all()
        self._heap.clear()
        self.ready.clear()
        self.network.close()

    def _bury_all(self) -> None:
        for loop in self._graves:
            loop.bury()
        self._graves.clear()

    def _spin(self, until_ns: int, done: Callable[[], bool] | None) -> None:
        """The scheduler: one callback of one random ready loop at a time. The hot path of all simulation."""
        ready, block, now_chance = self.ready, self.trace.block, self._schedule.random
        shuffle = self.settings.shuffle
        current: SimLoop | None = None
        try:
            while not self.stopped:
                if not ready:
                    if current is not None:
                        current = None
                        _set_running_loop(None)
                    if done is not None and done():
                        break
                    if not self._advance(until_ns):
                        break
                    continue
                count = len(ready)
                at = 0 if count == 1 else int(now_chance() * count)
                loop = ready[at]
                queue = loop.queue
                if not queue or loop.stalled:
                    loop.listed = False
                    ready[at] = ready[-1]
                    ready.pop()
                    continue
                waiting = len(queue)
                if waiting > 1 and shuffle and now_chance() < shuffle:
                    callback = loop.pick(int(now_chance() * waiting))
                else:
                    callback = queue.popleft()
                if callback.dropped:
                    continue
                if loop is not current:
                    _set_running_loop(loop)
                    current = loop
                self.steps += 1
                label, function = callback.label, callback.function
                if label is None:
                    label = name_of(function)
                block.append((self.now_ns, loop.label, label))
                try:
                    callback.context.run(function, *callback.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    loop.call_exception_handler({"message": "exception in a callback", "exception": error})
                if loop.crash_in or loop.charge_ns or loop.owed_ns:
                    loop.after_callback()
                if self.steps >= self._housekeeping_due:
                    self._housekeeping()
                    current = None
        finally:
            _set_running_loop(None)

    def _advance(self, until_ns: int) -> bool:
        """Move time to the next instant and queue all that is due then; False when there is none in reach."""
        heap = self._heap
        if not heap or heap[0][0] > until_ns:
            self.now_ns = max(self.now_ns, until_ns)
            return False
        now_ns = self.now_ns = heap[0][0]
        if now_ns // NS != self._second:
            self._next_second(now_ns // NS)
        while heap and heap[0][0] == now_ns:
            loop, callback = heapq.heappop(heap)[2:]
            if callback.dropped:
                continue
            if loop is not None:
                loop.push(callback)
                continue
            self.steps += 1
            if callback.label:
                self.trace.block.append((now_ns, "world", callback.label))
            callback.function(*callback.args)
        return True

    def _next_second(self, second: int) -> None:
        self._measure_second()
        self._second = second
        self._second_began_at_step = self.steps

    def _measure_second(self) -> int:
        """Steps in the present virtual second so far."""
        steps = self.steps - self._second_began_at_step
        self.events_per_second_peak = max(self.events_per_second_peak, steps)
        return steps

    def _housekeeping(self) -> None:
        """Between two callbacks: close the coroutines of the dead, collect garbage, look for busy spins."""
        _set_running_loop(None)
        self._housekeeping_due = self.steps + _HOUSEKEEPING_STEPS
        self._housekeeping_rounds += 1
        if len(self.trace.block) >= BLOCK_EVENTS:
            self.trace.flush()
        limit = self.settings.events_per_second_max
        if self._measure_second() > limit:
            self.fail("spin", "world", f"over {limit} steps in one virtual second")
        self._bury_all()
        if self._housekeeping_rounds % _COLLECT_ROUNDS == 0:
            gc.collect()


def _plain(facts: dict[str, Any]) -> str:
    """The scalar facts as stable text; values of other kinds are for the monitors alone."""
    return " ".join(
        f"{name}={fact.hex() if type(fact) is bytes else fact}"
        for name, fact in facts.items()
        if type(fact) in _SCALARS
    )
