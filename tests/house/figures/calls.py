"""Counts calls between the modules of a tree while something runs, with the interpreter's profile hook.

Invariant: counting changes nothing of what runs. A call is counted once, when a function begins (a coroutine
when it is first stepped), never when it goes on. Who called is the nearest frame of a counted module; frames
of modules that are not counted (the standard library, values, runtime) are looked through, frames of the
stage (the simulator, the test kit) end the search: what they start has no caller.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from .contract import Contract

#: Code that is part of the function around it.
_PARTS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_RESUME = dis.opmap["RESUME"]


class Calls:
    """What was counted so far. `up` are calls from a room into a higher one that ask; `told` are those that
    only tell: the callee, or the object whose method it is, was handed down as an argument (of anything but a
    constructor), and answered nothing. What was handed down before a walk begins is seen with
    `all_handed`, and is in `wiring`."""

    def __init__(
        self,
        contract: Contract,
        package: str,
        *,
        through: tuple[str, ...],
        stage: tuple[str, ...],
        wiring: Calls | None = None,
    ) -> None:
        self._contract = contract
        self._package = package
        self._through = through
        self._stage = stage
        self.modules: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.up: Counter[tuple[str, str]] = Counter()
        self.told: Counter[tuple[str, str]] = Counter()
        #: Code of callables that were passed as arguments, and to which modules.
        self._handed: dict[CodeType, dict[str, None]] = (
            {} if wiring is None else {code: dict(to) for code, to in wiring._handed.items()}
        )
        #: Calls up that have not returned, of callables that were handed down.
        self._open: dict[FrameType, tuple[str, str]] = {}

    # ---- what the hook says

    def called(self, frame: FrameType) -> None:
        """A frame of any module begins or goes on."""
        code = frame.f_code
        module = self.counted(frame)
        if not module or code.co_name == "<module>" or frame.f_lasti > _beginning(code):
            return
        self.modules.add(module)
        name = code.co_qualname
        while name.endswith(_PARTS):
            name = name.rpartition(".<locals>.")[0]
        self.functions.add((module, name))
        caller = self._caller(frame)
        if caller and caller != module:
            self.pairs[caller, module] += 1
            if self._contract.is_up(caller, module):
                self._called_up(frame, caller, module)
        self._take_arguments(frame, module)

    def returned(self, frame: FrameType, answer: Any) -> None:
        pair = self._open.pop(frame, None)
        if pair is not None:
            (self.told if answer is None else self.up)[pair[0], pair[1]] += 1

    def began(self, frame: FrameType) -> None:
        """As `called`, where nothing counts yet: only what is handed down is noted."""
        module = self.counted(frame)
        if module and frame.f_lasti <= _beginning(frame.f_code):
            self._take_arguments(frame, module)

    # ---- results

    def figures(self) -> dict[str, int]:
        return {
            "modules": len(self.modules),
            "functions": len(self.functions),
            "cross-module calls": self.pairs.total(),
            "calls up": self.up.total() + len(self._open),
            "told up": self.told.total(),
        }

    def ways_up(self) -> dict[str, int]:
        """{caller -> callee: calls} of the calls up that ask, most first."""
        rows = sorted(self.up.items(), key=lambda item: (-item[1], item[0]))
        return {f"{caller} -> {callee}": count for (caller, callee), count in rows}

    # ---- parts

    def counted(self, frame: FrameType) -> str:
        """The frame's module when its calls count, else ""."""
        module = str(frame.f_globals.get("__name__", ""))
        if not _in(module, (self._package,)) or _in(module, self._through) or _in(module, self._stage):
            return ""
        return module

    def _caller(self, frame: FrameType) -> str:
        at = frame.f_back
        while at is not None:
            module = str(at.f_globals.get("__name__", ""))
            if _in(module, self._stage):
                return ""
            if _in(module, (self._package,)) and not _in(module, self._through):
                return module
            at = at.f_back
        return ""

    def _called_up(self, frame: FrameType, caller: str, callee: str) -> None:
        to = self._handed.get(frame.f_code, {})
        if any(self._contract.is_up(module, callee) for module in to):
            self._open[frame] = (caller, callee)
        else:
            self.up[caller, callee] += 1

    def _take_arguments(self, frame: FrameType, module: str) -> None:
        code = frame.f_code
        if code.co_name == "__init__":
            # What a constructor gets is how the house is wired, not the end of one request.
            return
        local = frame.f_locals
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            for handed in _codes_of(local.get(name), self._package) if name != "self" else ():
                if handed is not code:
                    self._handed.setdefault(handed, {})[module] = None


class Counting:
    """Use as a context manager: `listener(frame, event, argument)` hears every event of the interpreter."""

    def __init__(self, listener: Callable[[FrameType, str, Any], None]) -> None:
        self._listener = listener

    def __enter__(self) -> None:
        sys.setprofile(self._listener)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


def all_calls(calls: Calls) -> Counting:
    """Count every call while the context is open."""

    def listen(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls.called(frame)
        elif event == "return":
            calls.returned(frame, argument)

    return Counting(listen)


def all_handed(calls: Calls) -> Counting:
    """Note what is handed down while the context is open; nothing is counted."""

    def listen(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls.began(frame)

    return Counting(listen)


def _in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@functools.cache
def _beginning(code: CodeType) -> int:
    """Where a frame stands when its function begins: at the first RESUME with argument 0."""
    for at in range(0, len(code.co_code), 2):
        if code.co_code[at] == _RESUME and code.co_code[at + 1] == 0:
            return at
    return 0


def _codes_of(value: Any, package: str) -> tuple[CodeType, ...]:
    """The code that runs when the value is called, or a method of it where it is an object of the package."""
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        return (value.__code__,)
    return () if isinstance(value, type) else _methods_of(type(value), package)


@functools.cache
def _methods_of(kind: type, package: str) -> tuple[CodeType, ...]:
    if not _in(kind.__module__, (package,)):
        return ()
    return tuple(found.__code__ for found in vars(kind).values() if isinstance(found, FunctionType))
