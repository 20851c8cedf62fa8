"""Helper processes: what ends them, whoever has to do it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockstep.runtime.real import HelperProcesses, workers
from lockstep.values.node_limits import HELPER_NICENESS, HELPERS_MAX

HANDLER = "tests.runtime.test_helper_processes:work"
FOREVER_MS = 60_000
#: The kernel lowers priorities no further.
NICENESS_MAX = 19


def work(order: bytes) -> bytes:
    """Does what it is told."""
    what = order.decode()
    if what == "hang":
        time.sleep(600)
    if what == "fail":
        raise ValueError("this order cannot be carried out")
    if what == "print":
        print("said by a helper", flush=True)
    return f"{os.getpid()} {os.nice(0)}".encode()


def run(test: Callable[[HelperProcesses], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        made = HelperProcesses(HANDLER, "pytest")
        try:
            await test(made)
        finally:
            await made.stop()

    asyncio.run(main())


def pids(made: HelperProcesses) -> list[int]:
    return [one.process.pid for one in made._all]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


def test_helpers_are_few_come_after_everybody_else_and_are_used_again() -> None:
    async def test(made: HelperProcesses) -> None:
        answers = await asyncio.gather(*(made.do(b"", FOREVER_MS) for _ in range(6)))
        assert len({answer.split()[0] for answer in answers}) <= HELPERS_MAX
        nicest = min(os.nice(0) + HELPER_NICENESS, NICENESS_MAX)
        assert {int(answer.split()[1]) for answer in answers} == {nicest}
        for pid in pids(made):
            assert os.getpgid(pid) == pid and os.getsid(pid) == os.getsid(0), "compared with its node"

    run(test)


def test_a_helper_ends_with_its_order_whether_it_failed_took_long_or_is_not_waited_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def test(made: HelperProcesses) -> None:
        await made.do(b"print", FOREVER_MS)
        (first,) = pids(made)
        with pytest.raises(ConnectionError, match="ended"):
            await made.do(b"fail", FOREVER_MS)
        with pytest.raises(TimeoutError):
            await made.do(b"hang", 300)
        hanging = asyncio.ensure_future(made.do(b"hang", FOREVER_MS))
        await until(lambda: bool(pids(made)))
        (last,) = pids(made)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert not pids(made) and not lives(first) and not lives(last)
        assert await made.do(b"", FOREVER_MS)

    run(test)
    told = capfd.readouterr().err
    assert "said by a helper" in told and "this order cannot be carried out" in told


def test_idle_helpers_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "HELPER_IDLE_MS", 10)

    async def test(made: HelperProcesses) -> None:
        await made.do(b"", FOREVER_MS)
        (pid,) = pids(made)
        await until(lambda: not lives(pid))
        assert not pids(made)
        assert await made.do(b"", FOREVER_MS)

    run(test)


def test_nothing_is_begun_after_the_end() -> None:
    async def test(made: HelperProcesses) -> None:
        hanging = asyncio.ensure_future(made.do(b"hang", FOREVER_MS))
        await until(lambda: bool(pids(made)))
        await made.stop()
        with pytest.raises(ConnectionError):
            await hanging
        with pytest.raises(ConnectionError):
            await made.do(b"", FOREVER_MS)

    run(test)


def test_a_helper_dies_with_its_node_in_the_middle_of_an_order() -> None:
    program = (
        "import asyncio\n"
        "from lockstep.runtime.real import HelperProcesses\n"
        "async def main():\n"
        f"    made = HelperProcesses({HANDLER!r}, 'pytest')\n"
        "    await made.do(b'', 60000)\n"
        "    working = asyncio.ensure_future(made.do(b'hang', 60000))\n"
        "    await asyncio.sleep(0.1)\n"
        "    print(made._all[0].process.pid, flush=True)\n"
        "    await working\n"
        "asyncio.run(main())\n"
    )
    node = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        assert lives(pid)
        node.send_signal(signal.SIGKILL)
        node.wait()
        asyncio.run(until(lambda: not lives(pid)))
    finally:
        node.kill()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()
