"""The tool that measures the tests: which mutants it makes, and which verdict each gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mutation.tests_of_lines import (
    ALSO,
    TESTS_CPU_S_MAX,
    ModuleTests,
    OneTest,
    chosen,
    folders_of,
    in_turns,
    modules_of,
)

# Imported by the tests that make mutants: what it needs takes half a second, in each process that collects.
if TYPE_CHECKING:
    from mutation.candidates import Mutant, MutatedFile

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
class Setting(Base, frozen=True):
    kind: str = "plain"


def clipped(value: int | None, most: int = 3) -> int:
    assert most > 0, f"most is {most + 1}"
    if value is None:
        raise ValueError("nothing " + "there")
    log.append(value)
    return value if value < most else most
"""

RUN = """
import sys
import time
from pathlib import Path
from mutation.candidates import MutatedFile
from mutation import trial
from mutation.trial import MutatedFinder, in_child

root = Path(sys.argv[1])
sys.path.insert(0, str(root))

def tested():
    import small
    return small.least(1, 2) == 1 and small.least(2, 1) == 1

def tried(text):
    def mutated():
        sys.meta_path.insert(0, MutatedFinder("small", root / "small.py", text))
        return tested()
    return in_child(mutated, root / "log", 1.0).verdict.value

file = MutatedFile(root, "small.py")
print("sound", in_child(tested, root / "log", 1.0).verdict.value)
for mutant in file.mutants:
    print(mutant.after, "|", tried(file.source_of(mutant)))
trial.IDLE_S_MAX = 0.5
print("waits |", in_child(lambda: time.sleep(60), root / "log", 30.0).verdict.value)
"""


@pytest.fixture
def file(tmp_path: Path) -> MutatedFile:
    from mutation.candidates import MutatedFile

    (tmp_path / "made.py").write_text(SOURCE)
    return MutatedFile(tmp_path, "made.py")


def test_mutants_are_small_changes_of_what_runs(file: MutatedFile) -> None:
    from mutation.candidates import GROUPS

    changes = {(mutant.before, mutant.after) for mutant in file.mutants}
    assert {("> 0", ">= 0"), ("0", "1"), ("is", "is not"), ("< most", "<= most"), ("3", "4")} <= changes
    assert ("log.append(value)", "pass") in changes
    assert any(after.startswith("if False") for _, after in changes)
    assert {mutant.group for mutant in file.mutants} == set(GROUPS)


def test_annotations_messages_and_class_options_are_left_alone(file: MutatedFile) -> None:
    for mutant in file.mutants:
        changed = file.source_of(mutant)
        for kept in ("frozen=True", 'kind: str = "plain"', "int | None", "most + 1", '"nothing " + "there"'):
            # A check that never applies goes with what it raises.
            assert kept in changed, mutant


@pytest.fixture(scope="module")
def placement() -> list[MutatedFile]:
    """To parse a room and to make its mutants takes seconds."""
    from mutation.candidates import of_room

    return of_room(ROOT, "placement")


def test_every_mutant_compiles_and_has_a_name_of_its_own(placement: list[MutatedFile]) -> None:
    from mutation.candidates import sample

    names = [mutant.name for one in placement for mutant in one.mutants]
    assert len(names) == len(set(names)) > 1000
    for one, mutant in sample(placement, 60, seed=7):
        compile(one.source_of(mutant), mutant.path, "exec")


def test_a_draw_takes_as_many_of_each_group_and_is_repeatable(placement: list[MutatedFile]) -> None:
    from mutation.candidates import sample

    drawn = sample(placement, 30, seed=3)
    assert [mutant.group for _, mutant in drawn] == ["logic"] * 10 + ["omission"] * 10 + ["data"] * 10
    assert [mutant for _, mutant in drawn] == [mutant for _, mutant in sample(placement, 30, seed=3)]
    assert [mutant for _, mutant in drawn] != [mutant for _, mutant in sample(placement, 30, seed=4)]


def test_killed_endless_and_surviving_mutants_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        "def least(a, b):\n    kept = 9\n    over = a - b\n"
        "    while over > 0:\n        over -= 1\n        a -= 1\n    return a\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    verdicts = dict(line.split(" | ") for line in done.stdout.splitlines() if " | " in line)
    assert "sound survived" in done.stdout
    assert verdicts["10"] == "survived", "nothing uses it"
    assert verdicts["a + b"] == "killed"
    assert verdicts["over += 1"] == "endless"
    assert verdicts["waits"] == "endless", "it burns nothing"


def test_each_room_is_tried_by_tests_that_exist() -> None:
    for room in ALSO:
        assert folders_of(ROOT, room)
        for name in folders_of(ROOT, room):
            found = modules_of(ROOT, name)
            assert found and all(path.is_file() for path in found), name
            assert all(path.name.startswith("test_") and path.suffix == ".py" for path in found)


def _module(path: str, *tests: tuple[str, float, set[int]], shared: frozenset[int]) -> ModuleTests:
    made = (OneTest(f"{path}::{name}", cpu_s, {"a.py": frozenset(lines)}) for name, cpu_s, lines in tests)
    return ModuleTests(path, tuple(made), {"a.py": shared})


def _mutant(*lines: int) -> Mutant:
    from mutation.candidates import Mutant

    return Mutant("a.py", lines[0], "f", "1", "2", 1, "logic", lines)


MODULES = [
    _module("one.py", ("slow", 9.0, {5, 6}), ("quick", 0.1, {5}), ("other", 0.1, {7}), shared=frozenset({1})),
    _module("two.py", ("quick", 0.2, {5, 8}), shared=frozenset({1, 9})),
]


def test_a_mutant_is_tried_by_the_tests_that_reach_its_lines_the_quick_ones_first() -> None:
    turns = chosen(MODULES, _mutant(5))
    assert [turn.tests for turn in turns] == [{"one.py::quick", "two.py::quick"}, {"one.py::slow"}]
    assert turns[0].modules == ("one.py", "two.py")
    assert chosen(MODULES, _mutant(6, 7))[0].tests == {"one.py::other"}
    assert chosen(MODULES, _mutant(4)) == []


def test_what_only_imports_reach_is_tried_by_all_tests_that_run_the_file() -> None:
    names = set().union(*(turn.tests for turn in chosen(MODULES, _mutant(9))))
    assert names == {"two.py::quick"}
    names = set().union(*(turn.tests for turn in chosen(MODULES, _mutant(1))))
    assert names == {"one.py::slow", "one.py::quick", "one.py::other", "two.py::quick"}


def test_a_file_that_is_only_imported_is_tried_by_all_tests_of_the_modules_that_import_it() -> None:
    values = ModuleTests("three.py", MODULES[0].tests, {"values.py": frozenset({3})})
    from mutation.candidates import Mutant

    mutant = Mutant("values.py", 3, "f", "1", "2", 1, "logic", (3,))
    names = set().union(*(turn.tests for turn in chosen([*MODULES, values], mutant)))
    assert names == {"one.py::slow", "one.py::quick", "one.py::other"}


def test_tests_of_a_mutant_take_no_longer_than_allowed_but_one_is_always_tried() -> None:
    many = [OneTest(f"m.py::{number}", TESTS_CPU_S_MAX / 4, {}) for number in range(9)]
    assert sum(len(turn.tests) for turn in in_turns(many)) == 4
    (turn,) = in_turns([OneTest("m.py::long", 2 * TESTS_CPU_S_MAX, {})])
    assert turn.tests == {"m.py::long"}


MEASURED = """
import sys
from pathlib import Path
from mutation.tests_of_lines import ALSO, measure

root, told = Path(sys.argv[1]), []
wanted = set(sys.argv[2:])
found = measure(root, "storage", wanted.__contains__, root, 1, told.append)
print("told", len(told))
for module in found:
    for test in module.tests:
        print(test.name, sorted(test.lines.get("lockstep/storage/small.py", ())))
    print("shared", sorted(module.shared["lockstep/storage/small.py"]))
"""


def test_a_measure_is_kept_until_a_file_that_took_part_changes(tmp_path: Path) -> None:
    product, tests = tmp_path / "lockstep" / "storage", tmp_path / "tests" / "storage"
    for place in (product, tests, tmp_path / "tests" / "replication"):
        place.mkdir(parents=True)
    for package in (product.parent, product):
        (package / "__init__.py").touch()
    (product / "small.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    (tests / "test_small.py").write_text(
        "import pytest\nfrom lockstep.storage.small import one, two\n\n"
        "@pytest.fixture(scope='module')\ndef wide():\n    return two()\n\n"
        "def test_one():\n    assert one() == 1\n\ndef test_two(wide):\n    assert wide == 2\n"
    )

    def measured(wanted: str = "lockstep/storage/small.py") -> list[str]:
        command = [sys.executable, "-c", MEASURED, str(tmp_path), wanted]
        # The test kit is of the product whose place the small one takes.
        environment = {
            **os.environ,
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "PYTEST_ADDOPTS": "-p no:lockstep",
        }
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True
        ).stdout.splitlines()

    name = "tests/storage/test_small.py"
    lines = [f"{name}::test_one [2]", f"{name}::test_two []", "shared [1, 5, 6]"]
    assert measured() == ["told 2", *lines]
    assert measured() == ["told 0", *lines], "it was kept"
    (product / "small.py").write_text("def one():\n    a = 1\n    return a\n\n\ndef two():\n    return 2\n")
    assert measured("lockstep/storage/other.py") == ["told 0", *lines], "that file is as it was"
    assert measured()[:2] == ["told 2", f"{name}::test_one [2, 3]"]
