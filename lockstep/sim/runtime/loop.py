"""The event loop of one simulated process incarnation: no selector, virtual time, a queue the World empties.

Invariant: callbacks of one loop run in the order they were scheduled, except task wake-ups that the
world's scheduler takes out of turn. A dead loop runs nothing and accepts nothing: what the process
does after its crash has no effect. Tasks and futures hash by a per-loop counter, so sets of them
iterate in the same order in every process.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lockstep.sim.runtime.streams import SimClock, Stream

#: Finished tasks are forgotten when this many have gathered.
_PRUNE_AT = 256


class Callback:
    """One scheduled call. `label` is its name in the trace; None means: find it from the function."""

    __slots__ = ("args", "context", "dropped", "function", "label", "when_s")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
        label: str | None = None,
        when_s: float = 0.0,
    ) -> None:
        self.function = function
        self.args = args
        self.context = context
        self.label = label
        self.when_s = when_s
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.when_s

    def task(self) -> asyncio.Task[Any] | None:
        """The task that this call steps or wakes, if any."""
        owner = getattr(self.function, "__self__", None)
        return owner if isinstance(owner, asyncio.Task) else None


def name_of(function: Callable[..., Any]) -> str:
    """The name of a call in the trace: of the task that it steps or wakes, or of the function."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return getattr(function, "__qualname__", "call")


class SimFuture(asyncio.Future[Any]):
    ordinal: int

    def __hash__(self) -> int:
        return self.ordinal


class SimTask(asyncio.Task[Any]):
    ordinal: int

    def __hash__(self) -> int:
        return self.ordinal


class Stage(Protocol):
    """What loops, links, disks and processes ask of the world that they are in."""

    now_ns: int
    #: Loops that have something to run.
    ready: list[SimLoop]

    def stream(self, label: str) -> Stream: ...
    def hosts(self) -> dict[str, bool]: ...
    def count(self, effect: str, times: int = 1) -> None: ...
    def note(self, *facts: int | float | str | bytes) -> None: ...
    def observe(self, process: str, kind: str, facts: dict[str, Any]) -> None: ...
    def fail(self, kind: str, process: str, message: str, error: BaseException | None = None) -> None: ...
    def at(
        self, time_ns: int, function: Callable[..., Any], *args: Any, loop: SimLoop | None = None, label: str
    ) -> Callback: ...
    def after(self, delay_s: float, function: Callable[..., Any], *args: Any, label: str) -> Callback: ...
    def push_timer(self, time_ns: int, loop: SimLoop, callback: Callback) -> None: ...
    def blocking_delay_ns(self) -> int: ...
    def bury(self, loop: SimLoop) -> None: ...


class Sockets(Protocol):
    """What asyncio's own streams ask of the network."""

    def listen(self, loop: SimLoop, host: str, port: int, factory: Any) -> asyncio.AbstractServer: ...
    async def connect(self, loop: SimLoop, host: str, port: int, factory: Any) -> Any: ...


class SimLoop(asyncio.BaseEventLoop):
    """`label` is "<process>.<incarnation>". The World owns scheduling and reads the public attributes."""

    def __init__(self, world: Stage, sockets: Sockets, clock: SimClock, host: str, label: str) -> None:
        self.dead = False
        super().__init__()
        self.world = world
        self._sockets = sockets
        self.clock = clock
        self.host = host
        self.label = label
        self.queue: deque[Callback] = deque()
        self.listed = False
        self.stalled = False
        #: Paused from outside: stays stalled until it is resumed.
        self.held = False
        #: Virtual nanoseconds that every callback costs (a slow node); 0 is free.
        self.charge_ns = 0
        #: What the callback that runs costs beside that; paid when it ends.
        self.owed_ns = 0
        #: Crash after that many more callbacks; 0 is never.
        self.crash_in = 0
        self.on_crash_due: Callable[[], None] = lambda: None
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = _PRUNE_AT
        self._ordinal = 0

    # ---- scheduling

    def push(self, callback: Callback) -> None:
        if self.dead:
            return
        self.queue.append(callback)
        if not self.listed and not self.stalled:
            self.listed = True
            self.world.ready.append(self)

    def wake(self) -> None:
        """Let a stalled loop run again."""
        self.stalled = False
        if self.queue and not self.listed and not self.dead:
            self.listed = True
            self.world.ready.append(self)

    def pick(self, position: int) -> Callback:
        """Take the callback at `position` if it only moves a task; transports stay in order."""
        callback = self.queue[position]
        if callback.label is None and callback.task() is not None:
            del self.queue[position]
            return callback
        return self.queue.popleft()

    def after_callback(self) -> None:
        """Pay for the callback that just ran: time for its work, and of a slow node; the crash due."""
        if self.crash_in:
            self.crash_in -= 1
            if not self.crash_in:
                self.on_crash_due()
        cost_ns, self.owed_ns = self.charge_ns + self.owed_ns, 0
        if cost_ns and not self.stalled and not self.dead:
            self.stalled = True
            if self.charge_ns:
                self.world.count("process.slow_callback")
            self.world.at(self.world.now_ns + cost_ns, self._paid, label="")

    def work(self, cost_us: int) -> None:
        """The callback that runs takes so much virtual time more: what comes after it on this loop, timers
        too, is that late."""
        self.owed_ns += cost_us * 1000

    def _paid(self) -> None:
        if not self.held:
            self.wake()

    def die(self) -> None:
        self.dead = True
        self.queue.clear()

    def bury(self) -> None:
        """Close the coroutines of a dead loop: their `finally` blocks run, muted."""
        assert self.dead
        while self._tasks:
            # A `finally` block may start another task: it lands in the fresh list.
            parked, self._tasks = self._tasks, []
            for task in parked:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close_quietly(task.get_coro())

    # ---- asyncio's interface

    def time(self) -> float:
        return self.clock.monotonic_s()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        scheduled = Callback(callback, args, context if context is not None else contextvars.copy_context())
        if not self.dead:
            self.queue.append(scheduled)
            if not self.listed and not self.stalled:
                self.listed = True
                self.world.ready.append(self)
        return scheduled  # type: ignore[return-value]

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        scheduled = Callback(
            callback, args, context if context is not None else contextvars.copy_context(), None, when
        )
        if not self.dead:
            self.world.push_timer(self.clock.world_ns(when), self, scheduled)
        return scheduled  # type: ignore[return-value]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.clock.monotonic_s() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        self._ordinal += 1
        future.ordinal = self._ordinal
        return future

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        self._ordinal += 1
        # The ordinal comes before __init__, which puts the task into a set.
        task: SimTask = SimTask.__new__(SimTask)
        task.ordinal = self._ordinal
        title = f"{self.label}:{'task' if name is None else name}#{self._ordinal}"
        SimTask.__init__(task, coro, loop=self, name=title, context=context)
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
            self._prune_at = len(self._tasks) * 2 + _PRUNE_AT
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs `func` on this loop at a later virtual instant, while other callbacks go on."""
        future = self.create_future()
        self.world.at(
            self.world.now_ns + self.world.blocking_delay_ns(),
            _run_blocking,
            future,
            func,
            args,
            loop=self,
            label="blocking",
        )
        return future

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """For asyncio's own streams, in tests; nodes use the Network port."""
        return self._sockets.listen(self, str(host), int(port), protocol_factory)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self._sockets.connect(self, str(host), int(port), protocol_factory)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self.world.fail("callback", self.label, str(context.get("message")), error)

    #: asyncio asks for each future and task: no call of Python code answers False.
    get_debug = staticmethod(bool)

    def set_debug(self, enabled: bool) -> None:
        """asyncio's debug mode would time callbacks with the real clock."""

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def close(self) -> None:
        self.dead = True


def _run_blocking(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.done():
        return
    try:
        result = func(*args)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _close_quietly(coroutine: Any) -> None:
    """The process is dead: whatever its cleanup raises concerns nobody."""
    try:
        coroutine.close()
    except (Exception, asyncio.CancelledError, GeneratorExit):
        return
