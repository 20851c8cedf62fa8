"""Blocking calls: what they lead to, who waits for them, and how many threads make them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from lockstep.runtime.real.family import run
from lockstep.runtime.real.tasks import OF_LOOP, BlockingThreads
from lockstep.values.limits import BLOCKING_THREADS_MAX

WAIT_S = 10.0


@pytest.fixture
def named() -> Callable[[], list[str]]:
    """Names of the threads that a test began: earlier ones of this process may have left some."""
    before = set(threading.enumerate())

    def find() -> list[str]:
        found = [one.name for one in threading.enumerate() if one not in before]
        return sorted(name for name in found if name.startswith("blocking-"))

    return find


def refuse() -> None:
    raise ValueError("planted")


def stop() -> None:
    raise StopIteration


def test_what_a_call_returns_and_raises_comes_back_and_one_thread_serves_one_after_the_other(
    named: Callable[[], list[str]],
) -> None:
    async def main() -> list[object]:
        threads = OF_LOOP.get()
        assert threads is not None
        told: list[object] = [await threads.run(partial(int, number)) for number in range(20)]
        for broken in (refuse, stop):
            with pytest.raises((ValueError, RuntimeError)) as error:
                await threads.run(broken)
            told.append(str(error.value))
        told.append(named())
        return told

    assert run(main) == [*range(20), "planted", "a blocking call raised StopIteration()", ["blocking-0"]]
    assert named() == [] and OF_LOOP.get() is None


def test_calls_go_beside_each_other_up_to_the_number_of_threads_and_the_rest_wait() -> None:
    open_, full, at_once, most = threading.Event(), threading.Event(), [0], [0]
    lock = threading.Lock()

    def work() -> None:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        if at_once[0] == BLOCKING_THREADS_MAX:
            full.set()
        assert open_.wait(WAIT_S)
        with lock:
            at_once[0] -= 1

    async def main() -> None:
        threads = OF_LOOP.get()
        assert threads is not None
        calls = [asyncio.create_task(threads.run(work)) for _ in range(2 * BLOCKING_THREADS_MAX)]
        await asyncio.to_thread(full.wait, WAIT_S)
        open_.set()
        await asyncio.gather(*calls)

    run(main)
    assert most == [BLOCKING_THREADS_MAX]


def test_who_is_cancelled_once_or_often_ends_when_the_call_has_ended() -> None:
    began, goes_on, ended = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        assert goes_on.wait(WAIT_S)
        time.sleep(0.01)
        ended.append("thread")

    async def main() -> None:
        threads = BlockingThreads()
        task = asyncio.create_task(threads.run(work))
        task.add_done_callback(lambda _: ended.append("task"))
        await asyncio.to_thread(began.wait, WAIT_S)
        for _ in range(20):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await threads.run(lambda: 7) == 7
        threads.close()

    asyncio.run(main())
    assert ended == ["thread", "task"]


def test_closing_waits_for_what_was_asked_and_later_calls_are_made_all_the_same() -> None:
    made = []

    def slow() -> None:
        time.sleep(0.05)
        made.append("slow")

    async def main() -> None:
        threads = BlockingThreads()
        task = asyncio.create_task(threads.run(slow))
        await asyncio.sleep(0)
        threads.close()
        assert made == ["slow"]
        await task
        assert await threads.run(lambda: 7) == 7
        threads.close()

    asyncio.run(main())


def test_threads_that_nobody_holds_end(named: Callable[[], list[str]]) -> None:
    async def main() -> None:
        threads = BlockingThreads()
        await threads.run(lambda: None)
        assert named() == ["blocking-0"]

    asyncio.run(main())
    gc.collect()
    until_s = time.monotonic() + WAIT_S
    while named() and time.monotonic() < until_s:
        time.sleep(0.005)
    assert named() == []
