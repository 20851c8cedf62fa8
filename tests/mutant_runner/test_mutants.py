"""The tool that measures the tests: which mutants it makes, and which verdict each gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mutation.candidates import GROUPS, MutatedFile, of_room, sample
from mutation.tests_of_lines import ALSO, folders_of, modules_of

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
from pathlib import Path
from mutation.candidates import MutatedFile
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
"""


@pytest.fixture
def file(tmp_path: Path) -> MutatedFile:
    (tmp_path / "made.py").write_text(SOURCE)
    return MutatedFile(tmp_path, "made.py")


def test_mutants_are_small_changes_of_what_runs(file: MutatedFile) -> None:
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


def test_every_mutant_compiles_and_has_a_name_of_its_own() -> None:
    files = of_room(ROOT, "placement")
    names = [mutant.name for one in files for mutant in one.mutants]
    assert len(names) == len(set(names)) > 1000
    for one, mutant in sample(files, 60, seed=7):
        compile(one.source_of(mutant), mutant.path, "exec")


def test_a_draw_takes_as_many_of_each_group_and_is_repeatable() -> None:
    files = of_room(ROOT, "placement")
    drawn = sample(files, 30, seed=3)
    assert [mutant.group for _, mutant in drawn] == ["logic"] * 10 + ["omission"] * 10 + ["data"] * 10
    assert [mutant for _, mutant in drawn] == [mutant for _, mutant in sample(files, 30, seed=3)]
    assert [mutant for _, mutant in drawn] != [mutant for _, mutant in sample(files, 30, seed=4)]


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


def test_each_room_is_tried_by_tests_that_exist() -> None:
    for room in ALSO:
        assert folders_of(ROOT, room)
        for name in folders_of(ROOT, room):
            found = modules_of(ROOT, name)
            assert found and all(path.is_file() for path in found), name
            assert all(path.name.startswith("test_") and path.suffix == ".py" for path in found)
