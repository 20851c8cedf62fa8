"""A node can be stopped and started again in one process, with nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.storage.model import open_model_store
from lockstep.values.errors import CannotApply, LockstepError
from tests.node.support import Town, keyspace


def make(town: Town, runtime: Runtime, name: str) -> Node:
    # The monitor takes what follows for another start of the process.
    town.log.incarnations.pop(f"{name}.1", None)
    node = Node(
        runtime,
        town.configuration(name),
        lambda own: open_model_store(own.disk, "store"),
        lambda event, **facts: town.said.append((name, event, facts)),
    )
    town.nodes[name] = node
    return node


def left_behind(town: Town, name: str) -> dict[str, Any]:
    """Tasks, timers and connections of the process, but for the main task."""
    loop = town.world.processes[name].loop
    assert loop is not None
    tasks = [
        task.get_name()
        for task in loop._tasks
        if not task.done() and not task.get_name().partition(":")[2].startswith("main#")
    ]
    timers = [
        callback.name()
        for _, _, owner, callback in town.world._heap
        if owner is loop and not callback.dropped and "." in callback.name()
    ]
    connections = town.world.network.connections.values()
    ends = [end for both in connections for end in both if end.loop is loop and not end.closed]
    return {"tasks": tasks, "timers": timers, "ends": ends}


def test_stopping_leaves_nothing_and_a_new_node_starts_in_the_same_process() -> None:
    with Town() as town:
        town.start(1, 2)
        rounds: list[dict[str, Any]] = []

        async def main(runtime: Runtime) -> None:
            for _ in range(4):
                node = make(town, runtime, "n3")
                await node.start()
                await asyncio.sleep(1.0)
                await node.stop()
                await asyncio.sleep(0.1)
                rounds.append(left_behind(town, "n3"))
            await make(town, runtime, "n3").start()
            await asyncio.Event().wait()

        town.process(3).start(main)
        town.until(lambda: len(rounds) == 4 and town.ready(1, 2, 3))
        for remains in rounds:
            assert remains["tasks"] == [] and remains["ends"] == []
            assert remains["timers"] == []
        assert town.node(3).context.identity.value.generation == 5
        assert town.finish(town.submit(3, keyspace("k"))).error is None


@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.05, 0.5])
def test_a_start_that_is_cancelled_leaves_nothing(delay_s: float) -> None:
    with Town() as town:
        town.process(1)
        remains: list[dict[str, Any]] = []

        async def main(runtime: Runtime) -> None:
            # The other founders never come.
            start = asyncio.get_running_loop().create_task(make(town, runtime, "n1").start())
            await asyncio.sleep(delay_s)
            start.cancel()
            await asyncio.wait([start])
            assert start.cancelled()
            await asyncio.sleep(0.05)
            remains.append(left_behind(town, "n1"))

        town.process(1).start(main)
        town.until(lambda: bool(remains))
        assert remains == [{"tasks": [], "timers": [], "ends": []}]


def test_what_breaks_a_node_while_it_starts_is_raised_by_the_start() -> None:
    with Town() as town:
        town.process(1)
        raised: list[BaseException] = []

        async def main(runtime: Runtime) -> None:
            node = make(town, runtime, "n1")
            asyncio.get_running_loop().call_later(0.5, node._break, CannotApply("planted"))
            try:
                await node.start()
            except LockstepError as error:
                raised.append(error)
            await asyncio.sleep(0.05)
            assert left_behind(town, "n1") == {"tasks": [], "timers": [], "ends": []}

        town.process(1).start(main)
        town.until(lambda: bool(raised) and not town.process(1).alive)
        assert isinstance(raised[0], CannotApply)
