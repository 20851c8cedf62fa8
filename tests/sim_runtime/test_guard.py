# ruff: noqa: PLW0108, SIM115 (each lambda looks its function up when it runs, behind the guard)
"""Planted escapes: each way out of the simulation is an error; time shows the process's clock."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.guard import Escape
from lockstep.sim.runtime.world import World


def _run_inside(action: Callable[[], Any]) -> World:
    async def main(runtime: Runtime) -> None:
        action()

    world = World(1)
    process = world.process("n")
    process.expected_errors = (Escape,)
    process.start(main)
    world.run(1.0)
    world.close()
    return world


ESCAPES: dict[str, Callable[[], Any]] = {
    "random module": lambda: random.random(),
    "random choice": lambda: random.choice([1, 2]),
    "system random": lambda: random.SystemRandom().random(),
    "urandom": lambda: os.urandom(4),
    "uuid4": lambda: uuid.uuid4(),
    "uuid1": lambda: uuid.uuid1(),
    "secrets": lambda: secrets.token_bytes(4),
    "thread": lambda: threading.Thread(target=int).start(),
    "sleep": lambda: time.sleep(0),
    "socket": lambda: socket.socket(),
    "name lookup": lambda: socket.getaddrinfo("localhost", 80),
    "child process": lambda: subprocess.run(["true"], check=True),
    "shell": lambda: os.system("true"),
    "open": lambda: open("/dev/null"),
    "os.open": lambda: os.open("/dev/null", os.O_RDONLY),
    "listdir": lambda: os.listdir("."),
    "pathlib": lambda: Path("/tmp").iterdir().__next__(),
    "mkdir": lambda: os.mkdir("/nonexistent/x"),
    "temporary file": lambda: tempfile.mkdtemp(),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_an_error(name: str) -> None:
    world = _run_inside(ESCAPES[name])
    assert [error.kind for error in world.errors][:1] == ["escape"], world.errors
    assert world.errors[0].process == "n.1"


def test_a_swallowed_escape_still_fails_the_run() -> None:
    def swallow() -> None:
        try:
            os.urandom(1)
        except Exception:
            return

    assert [error.kind for error in _run_inside(swallow).errors] == ["escape"]


def test_harmless_actions_are_not_escapes() -> None:
    def harmless() -> None:
        import colorsys

        colorsys.rgb_to_hsv(0.1, 0.2, 0.3)
        try:
            raise ValueError("shown")
        except ValueError:
            import traceback

            traceback.format_exc()

    assert _run_inside(harmless).errors == []


def test_time_functions_show_the_process_clock() -> None:
    async def main(runtime: Runtime) -> list[float]:
        began = time.monotonic(), time.perf_counter(), time.time()
        await asyncio.sleep(1000)
        assert time.monotonic() == runtime.clock.monotonic_s()
        assert abs(time.time() * 1e6 - runtime.clock.wall_us()) < 1000
        assert time.monotonic_ns() // 1000 == time.perf_counter_ns() // 1000
        assert time.time_ns() // 1000 == runtime.clock.wall_us()
        return [
            now - then
            for now, then in zip((time.monotonic(), time.perf_counter(), time.time()), began, strict=True)
        ]

    with World(1) as world:
        for passed in world.call(main, limit_s=2000):
            assert 1000 <= passed < 1000.01


def test_other_threads_are_left_alone() -> None:
    from_other: list[Any] = []
    go, gone = threading.Event(), threading.Event()

    def other() -> None:
        go.wait(10)
        from_other.extend([os.urandom(2), random.random(), time.time() > 1_700_000_000])
        gone.set()

    thread = threading.Thread(target=other)
    thread.start()

    async def main(runtime: Runtime) -> None:
        go.set()
        # Waits for real: the other thread must run while the guard is active.
        gone.wait(10)

    with World(1) as world:
        world.call(main)
    thread.join()
    assert len(from_other) == 3


def test_the_real_world_is_back_after_a_run() -> None:
    state = random.getstate()
    _run_inside(lambda: None)
    assert random.getstate() == state
    assert len(os.urandom(3)) == 3
    assert os.getpid() != 4242
    threading.Thread(target=int).start()
    time.sleep(0)
