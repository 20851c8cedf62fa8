"""The guard of a run: what simulated code does to the real world is an error, never a silent leak.

Invariant: while a world runs, in its thread, time shows the running process's clock; entropy, threads,
sleeping, sockets, files and child processes raise Escape and put it among the world's errors, so that
even a swallowed one fails the run. Other threads are left alone. What no hook can see
(`datetime.now`, the order of a set) is the source rules' business and the re-run's.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import sys
import threading
import time
from asyncio import events as asyncio_events
from collections.abc import Callable
from typing import Any

from lockstep.sim.runtime.loop import SimLoop, Stage

#: Audit events that leave the simulation, by prefix.
_FORBIDDEN_EVENTS = (
    "socket.",
    "subprocess.",
    "open",
    "os.",
    "shutil.",
    "tempfile.",
    "glob.",
    "sqlite3.",
    "ctypes.dlopen",
    "urllib.",
    "mmap.",
    "fcntl.",
    "signal.",
    "builtins.id",
    "builtins.input",
)
#: These read source files, to import a module lazily or to show a traceback.
_READERS_OF_SOURCE = ("importlib", "linecache", "tokenize", "zipimport", "traceback", "inspect", "pkgutil")
_ENTROPY = (
    "random",
    "randint",
    "randrange",
    "getrandbits",
    "randbytes",
    "choice",
    "choices",
    "shuffle",
    "sample",
    "uniform",
    "triangular",
    "gauss",
    "normalvariate",
    "expovariate",
    "betavariate",
)
#: What os.getpid() says inside.
_PROCESS_ID = 4242


class Escape(RuntimeError):
    """Simulated code touched the real world."""


class _Hook:
    """The one audit hook of the interpreter; such hooks cannot be removed, so it is installed once."""

    def __init__(self) -> None:
        self.active: Guard | None = None
        self.installed = False

    def install(self) -> None:
        if not self.installed:
            self.installed = True
            sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        guard = self.active
        if guard is not None and event.startswith(_FORBIDDEN_EVENTS) and guard.applies():
            guard.judge(event, sys._getframe(1))


_HOOK = _Hook()


class Guard(contextlib.AbstractContextManager["Guard"]):
    """Active between enter and exit; the world enters it for each run."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self._thread = 0
        self._saved: list[tuple[Any, str, Any]] = []
        self._random_state: Any = None
        self._source = world.stream("guard")
        self._previous: Guard | None = None

    def __enter__(self) -> Guard:
        self._thread = threading.get_ident()
        self._random_state = random.getstate()
        # Functions imported by name are out of reach of the patches below: make them repeat at least.
        random.seed(self._source.getrandbits(64))
        for owner, name, replacement in self._replacements():
            self._saved.append((owner, name, getattr(owner, name)))
            setattr(owner, name, replacement)
        self._previous, _HOOK.active = _HOOK.active, self
        _HOOK.install()
        return self

    def __exit__(self, *failure: object) -> None:
        _HOOK.active = self._previous
        while self._saved:
            owner, name, original = self._saved.pop()
            setattr(owner, name, original)
        random.setstate(self._random_state)

    def applies(self) -> bool:
        return threading.get_ident() == self._thread

    def judge(self, event: str, frame: Any) -> None:
        """Raise Escape unless the caller only loads or quotes source code."""
        module = str(frame.f_globals.get("__name__", "?"))
        if event == "builtins.id":
            if not module.startswith("lockstep.") or module.startswith("lockstep.sim."):
                return
        elif _reads_source(frame):
            return
        self.escape(f"{event} in {module}, line {frame.f_lineno}")

    def escape(self, what: str) -> None:
        loop = asyncio_events._get_running_loop()
        process = loop.label if isinstance(loop, SimLoop) else "world"
        error = Escape(what)
        # Not active while it is recorded: that may look at the real world.
        active, _HOOK.active = _HOOK.active, None
        try:
            self._world.fail("escape", process, what, error)
        finally:
            _HOOK.active = active
        raise error

    def _replacements(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        forbid, steer = self._forbid, self._steer
        found: list[tuple[Any, str, Callable[..., Any]]] = [
            (time, "time", steer(time.time, lambda: self._wall_us() / 1e6)),
            (time, "time_ns", steer(time.time_ns, lambda: self._wall_us() * 1000)),
            (time, "monotonic", steer(time.monotonic, lambda: self._monotonic_ns() / 1e9)),
            (time, "monotonic_ns", steer(time.monotonic_ns, self._monotonic_ns)),
            (time, "perf_counter", steer(time.perf_counter, lambda: self._monotonic_ns() / 1e9)),
            (time, "perf_counter_ns", steer(time.perf_counter_ns, self._monotonic_ns)),
            (time, "sleep", forbid(time.sleep, "time.sleep")),
            (os, "getpid", steer(os.getpid, lambda: _PROCESS_ID)),
            (os, "urandom", forbid(os.urandom, "os.urandom")),
            (random, "_urandom", forbid(os.urandom, "random.SystemRandom")),
            (threading.Thread, "start", forbid(threading.Thread.start, "threading.Thread.start")),
            (_thread, "start_new_thread", forbid(_thread.start_new_thread, "_thread.start_new_thread")),
        ]
        found += [(random, name, forbid(getattr(random, name), f"random.{name}")) for name in _ENTROPY]
        uuid = sys.modules.get("uuid")
        if uuid is not None:
            found += [
                (uuid, name, forbid(getattr(uuid, name), f"uuid.{name}")) for name in ("uuid1", "uuid4")
            ]
        return found

    def _forbid(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        def forbidden(*args: Any, **keywords: Any) -> Any:
            if self.applies():
                caller = sys._getframe(1)
                self.escape(f"{what} in {caller.f_globals.get('__name__', '?')}, line {caller.f_lineno}")
            return original(*args, **keywords)

        return forbidden

    def _steer(self, original: Callable[[], Any], simulated: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: simulated() if self.applies() else original()

    def _wall_us(self) -> int:
        loop = asyncio_events._get_running_loop()
        return loop.clock.wall_us() if isinstance(loop, SimLoop) else self._world.now_ns // 1000

    def _monotonic_ns(self) -> int:
        loop = asyncio_events._get_running_loop()
        return loop.clock.monotonic_ns() if isinstance(loop, SimLoop) else self._world.now_ns


def _reads_source(frame: Any) -> bool:
    """An import or a traceback is under way, a few calls up."""
    for _ in range(12):
        if frame is None:
            return False
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0].lstrip("_") in _READERS_OF_SOURCE:
            return True
        frame = frame.f_back
    return False
