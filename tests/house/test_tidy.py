"""The house is tidy; and each rule can tell when it is not."""

from __future__ import annotations

import pytest

from . import tidy
from .sources import product, source_of, texts


@pytest.mark.parametrize("rule", tidy.RULES)
def test_the_package_keeps(rule: str) -> None:
    found = [str(violation) for violation in tidy.RULES[rule](product())]
    assert not found, f"{len(found)} violations\n" + "\n".join(found)


def test_no_leftovers_or_machine_paths() -> None:
    found = [str(violation) for violation in tidy.leftovers(texts())]
    assert not found, f"{len(found)} violations\n" + "\n".join(found)


DOC = '"""A module that says what it owns."""\n'

BAD = {
    "long module": (tidy.sizes, DOC + "x = 1\n" * 601, "lockstep/cql/a.py"),
    "long class": (tidy.sizes, DOC + "class A:\n" + "    x = 1\n" * 400, "lockstep/cql/a.py"),
    "long function": (tidy.sizes, DOC + "def a():\n" + "    x = 1\n" * 70, "lockstep/cql/a.py"),
    "long coroutine": (tidy.sizes, DOC + "async def a():\n" + "    x = 1\n" * 70, "lockstep/cql/a.py"),
    "no docstring": (tidy.docstrings, "x = 1\n", "lockstep/cql/a.py"),
    "empty docstring": (tidy.docstrings, '"""Room."""\n', "lockstep/cql/__init__.py"),
    "utils": (tidy.names, DOC, "lockstep/cql/utils.py"),
    "retired class": (tidy.words, DOC + "class Canvass:\n    x = 1\n", "lockstep/cql/a.py"),
    "retired module": (tidy.words, DOC, "lockstep/node/farewell.py"),
    "suffix": (tidy.names, DOC, "lockstep/cql/token_helpers.py"),
    "clock in a pure room": (tidy.purity, DOC + "import time\n", "lockstep/placement/a.py"),
    "loop in a pure room": (tidy.purity, DOC + "from asyncio import Lock\n", "lockstep/consensus/a.py"),
    "loop in a pure module": (tidy.purity, DOC + "import asyncio\n", "lockstep/quorum/round.py"),
    "nested package": (tidy.purity, DOC + "import os\n", "lockstep/cql/wire/a.py"),
    "unowned": (tidy.ownership, DOC, "lockstep/cql/a.py"),
    "module state": (tidy.module_state, DOC + "cache = {}\n", "lockstep/cql/a.py"),
    "annotated state": (tidy.module_state, DOC + "seen: set[int] = set()\n", "lockstep/cql/a.py"),
    "global": (tidy.module_state, DOC + "def a():\n    global b\n    b = 1\n", "lockstep/cql/a.py"),
    "swallowed": (tidy.swallowed, DOC + "try:\n    a()\nexcept Exception:\n    pass\n", "lockstep/cql/a.py"),
    "bare": (tidy.swallowed, DOC + "try:\n    a()\nexcept:\n    ...\n", "lockstep/cql/a.py"),
}


def test_a_folder_of_too_many_modules_is_found() -> None:
    few, many = (
        [source_of(DOC, f"lockstep/cql/a{number}.py") for number in range(count)] for count in (25, 26)
    )
    assert not list(tidy.folders(few)) and len(list(tidy.folders(many))) == 1


@pytest.mark.parametrize("name", BAD)
def test_each_rule_bites(name: str) -> None:
    rule, text, path = BAD[name]
    assert len(list(rule([source_of(text, path)]))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "# TODO: later",
        "raise NotImplementedError",
        "x = 1  # FIXME",
        f"/{'work'}/main/x",
        f"see /{'root'}/notes",
    ],
)
def test_leftovers_bite(line: str) -> None:
    assert len(list(tidy.leftovers([("a.py", f"{line}\n")]))) == 1


@pytest.mark.parametrize("line", ["workload/root", "a/work", "data-root", "https://x.org/home", "TODOS"])
def test_leftovers_leave_words_alone(line: str) -> None:
    assert not list(tidy.leftovers([("a.py", f"{line}\n")]))


def test_good_code_passes_every_rule() -> None:
    used = source_of(DOC + "TABLE = {1: 2}\n", "lockstep/cql/a.py")
    user = source_of(DOC + "from lockstep.cql import a\n", "lockstep/cql/__main__.py")
    for rule in tidy.RULES.values():
        assert not list(rule([used, user]))


def test_relative_imports_count_as_use() -> None:
    used = source_of(DOC, "lockstep/cql/a.py")
    user = source_of(DOC + "from . import a\n", "lockstep/cql/__init__.py")
    assert not list(tidy.ownership([used, user]))
