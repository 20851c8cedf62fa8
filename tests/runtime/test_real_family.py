"""The production family: entropy, sockets, task ownership, the entry into the loop."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lockstep.runtime.ports import Runtime
from lockstep.runtime.real import real_runtime, run
from lockstep.runtime.real.network import RealNetwork, RealServer
from lockstep.runtime.real.tasks import RealRandom, RealTasks
from lockstep.values.errors import ConfigurationError

HOST = "127.0.1.77"

LOOPS: dict[str, Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]] = {
    "uvloop": run,
    "asyncio": lambda main: asyncio.run(main()),
}


def test_random_reals_are_uniform_and_never_one() -> None:
    source = RealRandom()
    draws = [source.real() for _ in range(5000)]
    assert 0 <= min(draws) <= max(draws) < 1
    assert statistics.fmean(draws) == pytest.approx(0.5, abs=0.03)
    assert len(set(draws)) == 5000


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 2**40, 2**64, 2**80])
def test_below_stays_below(bound: int) -> None:
    source = RealRandom()
    draws = [source.below(bound) for _ in range(300)]
    assert 0 <= min(draws) <= max(draws) < bound
    if bound <= 10:
        assert sorted(set(draws)) == list(range(bound))


def test_uuids_are_version_4() -> None:
    pattern = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    texts = [RealRandom().uuid() for _ in range(50)]
    assert all(pattern.fullmatch(text) for text in texts)
    assert len(set(texts)) == 50


def test_a_forked_child_draws_other_numbers() -> None:
    source = RealRandom()
    source.real()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(source.below(2**63)).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as pipe:
        assert int(pipe.read()) != source.below(2**63)


@pytest.mark.parametrize("loop", LOOPS)
def test_both_ends_send_small_writes_at_once(loop: str) -> None:
    async def main() -> None:
        made: list[asyncio.BaseTransport] = []
        both = asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)
                if len(made) == 2:
                    both.set()

        network = RealNetwork()
        server = await network.listen(HOST, 0, Protocol)
        transport, _ = await network.connect(HOST, server.port, Protocol)
        await asyncio.wait_for(both.wait(), 5)
        for end in made:
            assert end.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.close()
        server.close()

    LOOPS[loop](main)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_unusable_address_is_named(loop: str) -> None:
    async def main() -> None:
        network = RealNetwork()
        server = await network.listen(HOST, 0, asyncio.Protocol)
        assert isinstance(server, RealServer)
        with pytest.raises(ConfigurationError, match=f"{HOST}:{server.port} is in use") as taken:
            await network.listen(HOST, server.port, asyncio.Protocol)
        assert taken.value.hint
        with pytest.raises(ConfigurationError, match="not an address of this host"):
            await network.listen("203.0.113.1", 0, asyncio.Protocol)
        server.close()
        with pytest.raises(OSError):
            await network.connect(HOST, server.port, asyncio.Protocol)

    LOOPS[loop](main)


def test_an_escaped_exception_is_reported_with_the_task_name() -> None:
    told: list[tuple[str, str]] = []

    async def broken() -> None:
        raise ValueError("planted")

    async def main() -> None:
        tasks = RealTasks(lambda name, error: told.append((name, str(error))))
        with pytest.raises(ValueError):
            await tasks.spawn(broken(), "the broken one")
        cancelled = tasks.spawn(asyncio.sleep(9), "cancelled")
        await tasks.cancel_all()
        assert cancelled.cancelled()

    asyncio.run(main())
    assert told == [("the broken one", "planted")]


def test_cancel_all_awaits_also_what_is_spawned_meanwhile() -> None:
    ended: list[str] = []

    async def main() -> None:
        tasks = RealTasks(lambda name, error: None)

        async def late() -> None:
            try:
                await asyncio.sleep(9)
            finally:
                ended.append("late")

        async def stubborn() -> None:
            try:
                await asyncio.sleep(9)
            finally:
                tasks.spawn(late(), "late")
                await asyncio.sleep(0)
                ended.append("stubborn")

        tasks.spawn(stubborn(), "stubborn")
        await asyncio.sleep(0)
        closer = tasks.spawn(tasks.cancel_all(), "closer")
        await asyncio.wait_for(closer, 5)

    asyncio.run(main())
    assert ended[0] == "stubborn"


def test_a_cancelled_task_ends_after_the_thread_that_works_for_it() -> None:
    began, goes_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        began.set()
        assert goes_on.wait(10)
        ended.append("thread")

    async def main() -> None:
        tasks = RealTasks(lambda name, error: None)
        task = tasks.spawn(tasks.run_blocking(work), "works")
        task.add_done_callback(lambda _: ended.append("task"))
        await asyncio.to_thread(began.wait, 10)
        closer = tasks.spawn(tasks.cancel_all(), "closer")
        for _ in range(20):
            await asyncio.sleep(0)
            task.cancel()
        assert not task.done()
        goes_on.set()
        await closer
        assert task.cancelled()

    asyncio.run(main())
    assert ended == ["thread", "task"]


def test_without_a_report_the_loop_hears(tmp_path: Path) -> None:
    heard: list[str] = []

    async def broken() -> None:
        raise ValueError("planted")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: heard.append(context["message"])
        )
        runtime = real_runtime(str(tmp_path))
        runtime.tasks.spawn(broken(), "node/loop")
        await asyncio.sleep(0.01)

    run(main)
    assert heard == ["task node/loop failed"]


def test_blocking_work_runs_off_the_loop(tmp_path: Path) -> None:
    async def main() -> tuple[str, str]:
        runtime: Runtime = real_runtime(str(tmp_path))
        runtime.probes.reach("nothing")
        await runtime.probes.linger("nothing")
        runtime.probes.observe("nothing", at=1)
        assert runtime.clock.wall_us() > 1_700_000_000_000_000
        assert runtime.clock.monotonic_s() <= runtime.clock.monotonic_s()
        name = await runtime.tasks.run_blocking(lambda: threading.current_thread().name)
        return name, type(asyncio.get_running_loop()).__module__

    name, loop = run(main)
    assert name.startswith("blocking")
    assert loop.startswith("uvloop")


def test_importing_the_family_is_cheap() -> None:
    heavy = "sorted({'uvloop', 'uuid', 'random', 'hashlib', 'concurrent.futures.thread'} & set(sys.modules))"
    root = str(Path(__file__).parents[2])

    def loaded(modules: str) -> str:
        command = [sys.executable, "-c", f"import sys, {modules}; print({heavy})"]
        environment = {"PYTHONPATH": root}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert loaded("lockstep.runtime.real") == loaded("asyncio, msgspec")
