"""Which validate() bodies there are in the product, and which of them the simulator calls.

A validate() counts when it asserts something or calls another one; those of CQL types, which judge a client's
bytes, are left out.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from ..sources import Source, dotted
from .tree import Tree

NAME = "validate"
#: The runs in which calls are counted: each with this seed.
SCENARIOS = ("swarm", "schema", "lwt", "views", "tracked_tablets", "ringed")
SEED = 1
_STAGE = "lockstep.sim"


class Validate(NamedTuple):
    """`owner` is the class; "" for a function of the module."""

    module: str
    owner: str

    @property
    def title(self) -> str:
        return f"{self.module}:{self.owner}" if self.owner else self.module


def validates(tree: Tree) -> list[Validate]:
    return [one for source in tree.sources for one in _validates(source)]


def _validates(source: Source) -> Iterator[Validate]:
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef):
            if any(_judges(inner) for inner in node.body):
                yield Validate(source.module, node.name)
        elif _judges(node):
            yield Validate(source.module, "")


def _judges(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.name != NAME:
        return False
    return any(
        isinstance(inner, ast.Assert)
        or (isinstance(inner, ast.Call) and dotted(inner.func).rpartition(".")[2] == NAME and not inner.args)
        for inner in ast.walk(node)
    )


class Stage:
    """Who calls for the simulator: a module of it, or a validate() that it has called."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.depth = 0

    def calls(self, module: object) -> bool:
        return self.depth > 0 or str(module).startswith(self._name)


class Asked:
    """Calls of one validate(): by the simulator, itself or in another one that it called, and by anybody."""

    def __init__(self) -> None:
        self.by_simulator = 0
        self.by_anybody = 0

    def counting(self, whole: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
        @functools.wraps(whole)
        def counted(*args: Any, **named: Any) -> Any:
            inside = stage.calls(sys._getframe(1).f_globals.get("__name__", ""))
            self.by_anybody += 1
            self.by_simulator += inside
            stage.depth += inside
            try:
                return whole(*args, **named)
            finally:
                stage.depth -= inside

        return counted


def watched(
    wanted: Sequence[Validate], run: Callable[[], None], stage: str = _STAGE
) -> dict[str, dict[str, int]]:
    """{validate: calls} while `run` runs: by the simulator, itself or by way of others, and by anybody."""
    found, simulator = {one: Asked() for one in wanted}, Stage(stage)
    undo: list[tuple[Any, str, Any]] = []
    try:
        for one, asked in found.items():
            module = importlib.import_module(one.module)
            owner = getattr(module, one.owner) if one.owner else module
            plain = vars(owner)[NAME]
            counted = asked.counting(plain, simulator)
            for place, name in [(owner, NAME)] if one.owner else list(_places(plain)):
                undo.append((place, name, plain))
                setattr(place, name, counted)
        run()
    finally:
        for place, name, plain in undo:
            setattr(place, name, plain)
    return {
        one.title: {"by the simulator": asked.by_simulator, "by anybody": asked.by_anybody}
        for one, asked in found.items()
    }


def _places(function: Any) -> Iterator[tuple[Any, str]]:
    """Modules that hold the function under a name: whoever imported it calls it by that."""
    assert isinstance(function, FunctionType)
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is function:
                yield module, name


def in_simulations(tree: Tree) -> dict[str, dict[str, int]]:
    """Calls in one seed of each of SCENARIOS. AssertionError when one of them finds a violation."""
    from lockstep.sim.scenario import Run
    from lockstep.sim.scenarios import SCENARIOS as known

    def run() -> None:
        for name in SCENARIOS:
            result = Run(known[name], SEED).result()
            assert not result.violation, result.violation

    return watched(validates(tree), run)
