"""Outside the doors to the operating system nothing depends on chance; and each rule can tell."""

from __future__ import annotations

import pytest

from .determinism import ALLOWED, EXEMPT, findings
from .sources import ROOT, product, source_of


def test_the_package_is_deterministic() -> None:
    found = [str(violation) for violation in findings(product())]
    assert not found, f"{len(found)} violations\n" + "\n".join(found)


def test_every_exemption_names_something_that_is_there() -> None:
    for path, _ in ALLOWED:
        assert (ROOT / path).is_file(), path
    for path in EXEMPT:
        assert (ROOT / path).exists(), path


BAD = {
    "for over a set": "for x in {1, 2}: print(x)",
    "for over a made set": "for x in set(y): print(x)",
    "for over a set variable": "def f(y):\n    s = frozenset(y)\n    for x in s: print(x)",
    "for over a parameter": "def f(s: set[int]):\n    for x in s: print(x)",
    "for over an attribute": (
        "class A:\n    def __init__(self): self.s = set()\n    def f(self):\n        for x in self.s: g(x)"
    ),
    "for over an annotated attribute": (
        "class A:\n    def __init__(self): self.s: set[int] = make()\n    def f(self): return list(self.s)"
    ),
    "for over a field": "class A:\n    s: frozenset[int]\n    def f(self): return tuple(self.s)",
    "for over a difference": "for x in a.keys() - b: print(x)",
    "for over a union": "def f(s: set[int], t): return [x for x in s | t]",
    "for over a method's set": "def f(s: set[int], t): return list(s.union(t))",
    "dict comprehension": "def f(s: set[int]): return {x: 1 for x in s}",
    "generator": "def f(s: set[int]): return tuple(x for x in s)",
    "next": "def f(s: set[int]): return next(iter(s))",
    "join": "def f(s: set[str]): return ','.join(s)",
    "unpacking": "def f(s: set[str]): return [*s]",
    "pop": "def f(s: set[str]): return s.pop()",
    "min by key": "def f(s: set[str]): return min(s, key=len)",
    "hash": "x = hash('a')",
    "id": "x = id(y)",
    "sort by id": "x = sorted(y, key=id)",
    "import time": "import time",
    "import random": "from random import choice",
    "import uuid": "import uuid",
    "import threading": "import threading",
    "import os": "import os.path",
    "import weakref": "import weakref",
    "create_task": "async def f(): asyncio.create_task(g())",
    "loop's create_task": "async def f(loop): loop.create_task(g())",
    "ensure_future": "async def f(): asyncio.ensure_future(g())",
    "wait": "async def f(x): done, pending = await asyncio.wait(x)",
    "as_completed": "async def f(x):\n    for y in asyncio.as_completed(x): await y",
    "executor": "async def f(loop): await loop.run_in_executor(None, g)",
    "sockets past the port": "async def f(loop): await loop.create_connection(g, 'h', 1)",
    "finaliser": "class A:\n    def __del__(self): print(1)",
    "swallowed cancel": "async def f():\n    try: await g()\n    except asyncio.CancelledError: return",
    "swallowed everything": "def f():\n    try: g()\n    except BaseException: return",
    "swallowed in a tuple": "def f():\n    try: g()\n    except (ValueError, CancelledError): return",
    "bare except": "def f():\n    try: g()\n    except: return",
    "open": "x = open('a')",
    "now": "x = datetime.datetime.now()",
    "today": "x = date.today()",
}

GOOD = {
    "sorted": "for x in sorted({1, 2}): print(x)",
    "membership": "def f(s: set[int], x): return x in s",
    "sorted generator": "def f(s: set[int]): return sorted(x + 1 for x in s)",
    "any": "def f(s: set[int]): return any(x > 1 for x in s)",
    "set of set": "def f(s: set[int]): return {x + 1 for x in s}",
    "smallest": "def f(s: set[int]): return min(s)",
    "another function's name": "def f():\n    s = {1}\n    return len(s)\ndef g(s):\n    for x in s: h(x)",
    "rebound": "def f(y):\n    s = set(y)\n    s = sorted(s)\n    for x in s: print(x)",
    "spawn": "async def f(tasks): tasks.spawn(g(), 'g')",
    "task group": "async def f():\n    async with asyncio.TaskGroup() as group: group.create_task(g())",
    "wait_for": "async def f(): await asyncio.wait_for(g(), 1)",
    "re-raised cancel": "def f():\n    try: g()\n    except BaseException:\n        h()\n        raise",
    "dict": "for x in {1: 2}: print(x)",
    "set algebra": "def f(s: set[int], t: set[int]): return s | t",
    "list pop": "def f(s: list[int]): return s.pop()",
    "another's hash": "x = table.hash(y)",
    "own method": "x = self.open(y)",
    "hash of a value": "class A:\n    def __hash__(self): return hash(self.text)",
    "wait without its sets": "async def f(x): await asyncio.wait([x])",
}


@pytest.mark.parametrize("name", BAD)
def test_each_rule_bites(name: str) -> None:
    assert list(findings([source_of(BAD[name])])), BAD[name]


@pytest.mark.parametrize("name", GOOD)
def test_good_code_passes(name: str) -> None:
    assert [str(found) for found in findings([source_of(GOOD[name])])] == []


@pytest.mark.parametrize(
    "path", ["lockstep/runtime/real/x.py", "lockstep/cli/x.py", "lockstep/sim/runtime/guard.py"]
)
def test_the_doors_are_exempt(path: str) -> None:
    assert not list(findings([source_of("import time, os", path)]))
