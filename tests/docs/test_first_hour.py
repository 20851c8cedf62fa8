"""The walk of a new user's first hour takes every command of its pages, and notices one that goes wrong."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def walker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_hour", ROOT / "bench/first_hour.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_shell_line_of_the_pages_is_a_command(walker: ModuleType) -> None:
    titles = {
        page: [one.title for block in walker.blocks_of((ROOT / page).read_text()) for one in block.commands]
        for page in ("README.md", "docs/start/first-hour.md")
    }
    assert titles["README.md"][:4] == [*walker.LONG, "make setup && source .venv/bin/activate"]
    assert titles["README.md"][-1] == "lockstep cluster destroy try"
    hour = titles["docs/start/first-hour.md"]
    assert hour[1] == "pip install lockstep-db cassandra-driver pytest"
    assert "cat > sensors.py <<'CODE' ..." in hour and hour[-1] == "lockstep cluster destroy shop"
    shown = [
        line for b in walker.blocks_of((ROOT / "docs/start/first-hour.md").read_text()) for line in b.shown
    ]
    assert "00:59 65.9" in shown and "killed n3" in shown


def test_commands_go_on_over_lines_until_the_shell_takes_them(walker: ModuleType) -> None:
    text = "cat <<'X'\na 'b\nX\necho \"one\ntwo\"\nfalse   # exits 1\n"
    found = list(walker.commands_of(text))
    assert [one.text for one in found] == ["cat <<'X'\na 'b\nX\n", 'echo "one\ntwo"\n', "false   # exits 1\n"]
    assert [one.exits for one in found] == [0, 0, 1]
    with pytest.raises(ValueError, match="whole commands"):
        list(walker.commands_of("echo 'open\n"))


PAGE = "```sh\nx=1\nexport x\n{command}\n```\n<!-- output -->\n```text\nthere are 17 of them\n```\n"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo there are $((x + 4)) of them", ""),
        ("echo there are none", "nothing printed is like 'there are 17 of them'"),
        ("exit_with() { return 3; }; exit_with", "it exits with 3, not 0"),
        ("echo there are 1 of them; echo 'DeprecationWarning: old' >&2", "it prints 'DeprecationWarning'"),
        ("echo there are 1 of them; echo 'error[CODE]: no'", "it prints 'error['"),
    ],
)
def test_a_command_that_goes_wrong_fails_its_page(
    walker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, problem: str
) -> None:
    monkeypatch.setattr(walker, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE.replace("{command}", command))
    taken = walker.Walk(tmp_path, {"PATH": os.defpath}, whole=False)
    assert taken.page("page.md", tmp_path, {}) == (not problem)
    assert [step.problem for step in taken.steps if step.problem] == ([problem] if problem else [])
    assert ("1 failed" in walker.table(taken.steps)) == bool(problem)
