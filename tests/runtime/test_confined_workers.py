"""Workers of untrusted code: what the kernel still refuses when the language's rules are got around."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockstep.runtime.ports import WorkersRefused
from lockstep.runtime.real import ConfinedWorkers, workers

HANDLER = "tests.runtime.test_confined_workers:attack"


def _attacks() -> dict[str, Callable[[], object]]:
    return {
        "read a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
        "write a file": lambda: os.open("/tmp/written", os.O_WRONLY | os.O_CREAT),
        "list a directory": lambda: os.listdir("/"),
        "look at a file": lambda: os.stat("/etc/passwd"),
        "open a socket": socket.socket,
        "fork": os.fork,
        "start a program": lambda: subprocess.run(["/bin/true"], check=False),
        "start a thread": lambda: threading.Thread(target=print).start(),
        "signal another": lambda: os.kill(os.getppid(), 0),
        "write to an error stream": lambda: os.write(2, b"x"),
        "read an answer": lambda: os.read(1, 1),
        "change a limit": lambda: __import__("resource").setrlimit(4, (0, 0)),
        "change directory": lambda: os.chdir("/tmp"),
        "duplicate a stream": lambda: os.dup(0),
        "make a pipe": os.pipe,
    }


def attack(question: bytes) -> bytes:
    """Does what it is asked, as code that has got around the rules could."""
    what = question.decode()
    if what == "end":
        os._exit(3)
    if what == "loop":
        while True:
            pass
    if what == "grow":
        kept = bytearray(1 << 20)
        while True:
            kept += kept
    if what == "lie":
        os.write(1, struct.pack(">I", 1 << 31))
    if what == "environment":
        return repr(dict(os.environ)).encode()
    if what not in _attacks():
        return str(os.getpid()).encode()
    try:
        _attacks()[what]()
    except (OSError, RuntimeError, ValueError) as error:
        return f"refused: {error}".encode()
    return b"done"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [*dict.fromkeys([*workers._paths(), root, *(p for p in sys.path if "site-packages" in p)])]
    monkeypatch.setattr(workers, "_paths", lambda: paths)


def run(work: Callable[[ConfinedWorkers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        made = ConfinedWorkers(HANDLER)
        try:
            await work(made)
        finally:
            await made.stop()

    asyncio.run(main())


def test_the_kernel_refuses_all_that_is_not_computing() -> None:
    async def work(made: ConfinedWorkers) -> None:
        answers = {name: await made.evaluate("ks", name.encode(), 5000) for name in _attacks()}
        assert {name for name, answer in answers.items() if not answer.startswith(b"refused")} == set()
        assert eval(await made.evaluate("ks", b"environment", 5000)).keys() <= {"LC_CTYPE"}

    run(work)


def test_a_worker_that_does_not_answer_is_replaced() -> None:
    async def work(made: ConfinedWorkers) -> None:
        first = await made.evaluate("ks", b"pid", 5000)
        assert await made.evaluate("ks", b"pid", 5000) == first
        with pytest.raises(TimeoutError):
            await made.evaluate("ks", b"loop", 300)
        second = await made.evaluate("ks", b"pid", 5000)
        assert second != first and [str(one.process.pid).encode() for one in made._all] == [second]
        for what in (b"end", b"grow", b"lie"):
            with pytest.raises(ConnectionError):
                await made.evaluate("ks", what, 20_000)
        assert await made.evaluate("ks", b"pid", 5000) not in (first, second)

    run(work)


def test_owners_share_no_process_and_the_pool_has_a_bound() -> None:
    async def work(made: ConfinedWorkers) -> None:
        owners = [f"ks{number}" for number in range(4)] * 2
        found = await asyncio.gather(*(made.evaluate(owner, b"pid", 20_000) for owner in owners))
        by_pid: dict[bytes, set[str]] = {}
        for owner, pid in zip(owners, found, strict=True):
            by_pid.setdefault(pid, set()).add(owner)
        assert all(len(served) == 1 for served in by_pid.values())
        assert len(made._all) <= workers.WORKERS_MAX

    run(work)


class Pretended:
    """A process and its pipes. To start, to answer and to end take turns of the loop."""

    def __init__(self, running: list[Pretended]) -> None:
        self.stdin = self.stdout = self
        self.returncode: int | None = None
        self._running = running
        self._told = bytearray(struct.pack(">I", 0))
        running.append(self)

    def write(self, question: bytes) -> None:
        self._told += question

    async def drain(self) -> None:
        await asyncio.sleep(0)

    async def readexactly(self, count: int) -> bytes:
        await asyncio.sleep(0)
        found = bytes(self._told[:count])
        del self._told[:count]
        return found

    def kill(self) -> None:
        self.returncode = -9

    async def wait(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        if self in self._running:
            self._running.remove(self)

    def close(self) -> None:
        pass


def test_those_that_start_and_those_that_end_count_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[Pretended] = []
    counts: list[int] = []

    async def start(*_: object, **__: object) -> tuple[Pretended, Pretended]:
        made = Pretended(running)
        counts.append(len(running))
        await asyncio.sleep(0)
        return made, made

    monkeypatch.setattr(workers, "start", start)

    async def work(made: ConfinedWorkers) -> None:
        owners = ("a", "b", "c", "b", "d", "c", "a", "b", "d") * 3
        answers = await asyncio.gather(*(made.evaluate(owner, owner.encode(), 5000) for owner in owners))
        assert answers == [owner.encode() for owner in owners]

    run(work)
    assert max(counts) == workers.WORKERS_MAX


def test_where_nothing_can_be_filtered_nothing_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    unfiltered = workers._PROGRAM.replace(
        "from lockstep.runtime.real.worker_process import main; ",
        "import platform; platform.machine = lambda: 'other'; "
        "from lockstep.runtime.real.worker_process import main; ",
    )
    monkeypatch.setattr(workers, "_PROGRAM", unfiltered)

    async def work(made: ConfinedWorkers) -> None:
        with pytest.raises(WorkersRefused, match="other"):
            await made.evaluate("ks", b"pid", 5000)
        made._unfiltered = True
        assert await made.evaluate("ks", b"pid", 5000)

    run(work)
