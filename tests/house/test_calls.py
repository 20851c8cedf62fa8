"""Calls are counted right: on a package that is made up, and between processes of the simulator."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lockstep.sim.runtime.world import World

from .figures.calls import Calls, all_calls, all_handed
from .figures.causes import Caused
from .figures.contract import Contract
from .figures.validates import Validate, watched

CONTRACT = "[importlinter:contract:rooms]\ntype = layers\ncontainers = madeup\nlayers =\n  high\n  low\n"
MODULES = {
    "__init__": "",
    "low/__init__": "",
    "low/below": """
import asyncio
from functools import partial


class Machine:
    def __init__(self, facts):
        self.facts = facts

    def validate(self):
        assert self.facts is not None
        if isinstance(self.facts, Machine):
            self.facts.validate()

    def ask(self):
        return self.facts()

    def tell(self, told):
        told()

    def tell_object(self, told):
        told.ended()

    def listen(self, listener):
        self.facts = listener

    def each(self, numbers):
        return [self._one(number) for number in numbers]

    def _one(self, number):
        return number

    async def slowly(self):
        await asyncio.sleep(0)
        await self._inner()

    async def _inner(self):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
""",
    "high/__init__": "",
    "high/above": """
from functools import partial

from madeup.low.below import Machine


def fact():
    return 1


def nothing():
    return None


def ended():
    return None


class Ended:
    def __call__(self):
        return None

    def ended(self):
        return None


class Answering:
    def ended(self):
        return 1


def asks():
    return Machine(fact).ask()


def asks_nothing():
    return Machine(nothing).ask()


def asks_by_lambda():
    return Machine(lambda: 1).ask()


def is_told():
    Machine(fact).tell(ended)


def is_told_by_partial():
    Machine(fact).tell(partial(ended))


def is_told_by_object():
    Machine(fact).tell(Ended())


def is_told_by_method():
    Machine(fact).tell_object(Ended())


def is_asked_by_method():
    Machine(fact).tell_object(Answering())


def listening():
    machine = Machine(fact)
    machine.listen(nothing)
    return machine


def is_asked_by_argument():
    Machine(fact).tell(fact)


def calls_inside():
    fact()
    fact()


def lists():
    Machine(fact).each([1, 2, 3])


async def awaits():
    await Machine(fact).slowly()


def looked_through(stage):
    return stage(Machine(fact).ask)
""",
    "values": "def call(function):\n    return function()\n",
    "stage": "def call(function):\n    return function()\n",
}


@pytest.fixture
def above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, text in MODULES.items():
        path = tmp_path / "madeup" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("madeup.values")
    importlib.import_module("madeup.stage")
    yield importlib.import_module("madeup.high.above")
    for name in [name for name in sys.modules if name.partition(".")[0] == "madeup"]:
        del sys.modules[name]


def counter() -> Calls:
    return Calls(Contract(CONTRACT), "madeup", through=("madeup.values",), stage=("madeup.stage",))


@pytest.mark.parametrize(
    ("name", "modules", "functions", "cross", "up", "told"),
    [
        # The constructor and the method are two calls down; what they ask or tell is one up.
        ("asks", 2, 4, 3, 1, 0),
        ("asks_nothing", 2, 4, 3, 1, 0),
        ("asks_by_lambda", 2, 4, 3, 1, 0),
        ("is_told", 2, 4, 3, 0, 1),
        ("is_told_by_partial", 2, 4, 3, 0, 1),
        ("is_told_by_object", 2, 4, 3, 0, 1),
        ("is_told_by_method", 2, 4, 3, 0, 1),
        ("is_asked_by_argument", 2, 4, 3, 1, 0),
        ("is_asked_by_method", 2, 4, 3, 1, 0),
        ("calls_inside", 1, 2, 0, 0, 0),
        ("lists", 2, 4, 2, 0, 0),
        # A coroutine that goes on is not called again.
        ("awaits", 2, 4, 2, 0, 0),
    ],
)
def test_calls(
    above: ModuleType, name: str, modules: int, functions: int, cross: int, up: int, told: int
) -> None:
    calls = counter()
    with all_calls(calls):
        made = getattr(above, name)()
        if asyncio.iscoroutine(made):
            asyncio.run(made)
    assert calls.figures() == {
        "modules": modules,
        "functions": functions,
        "cross-module calls": cross,
        "calls up": up,
        "told up": told,
    }
    assert calls.ways_up() == ({"madeup.low.below -> madeup.high.above": up} if up else {})


@pytest.mark.parametrize("wired", [True, False])
def test_who_listens_since_before_the_walk_is_told(above: ModuleType, wired: bool) -> None:
    wiring = counter()
    with all_handed(wiring):
        machine = above.listening()
    calls = Calls(
        Contract(CONTRACT),
        "madeup",
        through=("madeup.values",),
        stage=("madeup.stage",),
        wiring=wiring if wired else None,
    )
    with all_calls(calls):
        machine.ask()
    assert (calls.figures()["calls up"], calls.figures()["told up"]) == (int(not wired), int(wired))
    assert not wiring.modules


@pytest.mark.parametrize(("way", "cross"), [("values", 3), ("stage", 2)])
def test_frames_that_are_not_counted(above: ModuleType, way: str, cross: int) -> None:
    """Through values the caller is seen; what the stage starts has none."""
    calls = counter()
    with all_calls(calls):
        above.looked_through(sys.modules[f"madeup.{way}"].call)
    assert calls.modules == {"madeup.high.above", "madeup.low.below"}
    assert calls.figures()["cross-module calls"] == cross


def test_every_call_counts_not_every_way(above: ModuleType) -> None:
    calls = counter()
    with all_calls(calls):
        above.asks()
        above.asks()
    assert (calls.figures()["cross-module calls"], calls.figures()["functions"]) == (6, 4)


def test_validates_are_watched(above: ModuleType) -> None:
    below = importlib.import_module("madeup.low.below")
    plain = below.Machine.validate

    def run() -> None:
        below.Machine(1).validate()
        sys.modules["madeup.stage"].call(below.Machine(below.Machine(1)).validate)

    found = watched([Validate("madeup.low.below", "Machine")], run, stage="madeup.stage")
    assert found == {"madeup.low.below:Machine": {"by the simulator": 2, "by anybody": 3}}
    assert below.Machine.validate is plain


# ---- causes

SERVED = """
import asyncio


class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        asyncio.get_running_loop().call_later(0.05, self.later)

    def later(self):
        self.task = asyncio.get_running_loop().create_task(self.work())

    async def work(self):
        await asyncio.get_running_loop().run_in_executor(None, in_a_thread)
        self.transport.write(b"answer")


def in_a_thread():
    pass


def tick():
    pass


def asked():
    pass


async def serve(runtime):
    await runtime.network.listen("127.0.0.1", 1, Server)
    while True:
        tick()
        await asyncio.sleep(0.01)
"""


def test_what_a_request_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served.py").write_text(SERVED)
    monkeypatch.syspath_prepend(str(tmp_path))
    served: Any = importlib.import_module("served")
    world = World(1)
    try:
        world.process("n1", "127.0.0.1").start(served.serve)
        client = world.process("client", "127.0.0.2")
        client.start(lambda runtime: asyncio.sleep(1000))
        answers = asyncio.Queue[bytes]()
        transports: list[Any] = []

        class Client(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                answers.put_nowait(data)

        async def connect(runtime: Any) -> None:
            transports.append((await runtime.network.connect("127.0.0.1", 1, Client))[0])

        async def ask(runtime: Any) -> bytes:
            served.asked()
            transports[0].write(b"question")
            return await answers.get()

        world.run_for(1.0)
        client.submit(connect)
        world.run_for(1.0)
        calls = Calls(Contract(CONTRACT), "served", through=(), stage=("lockstep.sim",))
        with Caused(calls, "lockstep.sim", "client").counting():
            asked = client.submit(ask)
            world.run_for(1.0)
        assert asked.result() == b"answer"
    finally:
        world.close()
        del sys.modules["served"]
    # All that follows from the request, over a connection, a timer, a task and a thread; no tick of the node
    # that served it, and nothing of the client.
    names = ("Server.data_received", "Server.later", "Server.work", "in_a_thread")
    assert calls.functions == {("served", name) for name in names}
