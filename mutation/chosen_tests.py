"""Runs chosen tests in this process, and tells what each takes.

Invariant: a test is named as pytest names it; nothing of the product is imported before tests are collected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest

#: Tests that take seconds cost more than they tell of one mutant.
QUICK: Final = ("-m", "not slow")
#: What tests and product use of others' code, imported once for all trials.
PRELOADED: Final = (
    *("pytest", "hypothesis", "hypothesis.strategies", "xdist.scheduler", "coverage", "msgspec", "rocksdict"),
    *("asyncio", "ssl", "json", "sqlite3", "concurrent.futures", "multiprocessing"),
)
PRELOADED_IS_FINE: Final = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


class Chosen(NamedTuple):
    """The tests of one run of pytest, and the modules they are in."""

    modules: tuple[str, ...]
    tests: frozenset[str]


class Watched:
    """A plugin that says whose work begins: a test's name, or "" for what more than one test uses."""

    def __init__(self, begun: Callable[[str], object]) -> None:
        self.cpu_s: dict[str, float] = {}
        self._begun = begun
        self._now = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began_s = time.process_time()
        self._enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._enter("")
            self.cpu_s[item.nodeid] = time.process_time() - began_s

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self._now
        if fixturedef.scope != "function":
            self._enter("")
        try:
            return (yield)
        finally:
            self._enter(before)

    def _enter(self, name: str) -> None:
        if name != self._now:
            self._now = name
            self._begun(name)


class Only:
    """A plugin that leaves out all tests but some."""

    def __init__(self, tests: frozenset[str]) -> None:
        self._tests = tests

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._tests]


def run_tests(paths: Sequence[str], *plugins: object) -> bool:
    """Whether all tests of these files pass that the plugins leave; the first failure ends it."""
    arguments = [
        *PRELOADED_IS_FINE,
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--hypothesis-profile=ci",
        *QUICK,
    ]
    ended = pytest.main([*arguments, *paths], plugins=list(plugins))
    return ended in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def all_pass(turns: Sequence[Chosen]) -> bool:
    return all(run_tests(turn.modules, Only(turn.tests)) for turn in turns)
