"""Every shell block under a comment `run` works as written, and what is shown as its output is printed.

The pages speak of 127.0.0.1; here their clusters get addresses of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lockstep.local.clusters import list_clusters

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
#: A page of some ten commands, each starting or asking real processes.
PAGE_TIMEOUT_S = 240
BLOCK = re.compile(r"<!-- (run|output) -->\n```\w+\n(.*?)```", re.DOTALL)
EXITS = re.compile(r"^(?P<command>.*?)\s+# exits (?P<code>\d+)$")


class Page(msgspec.Struct, frozen=True):
    path: Path
    commands: tuple[str, ...]
    outputs: tuple[str, ...]


def page(path: Path) -> Page:
    found = BLOCK.findall(path.read_text())
    commands = tuple(text for kind, text in found if kind == "run")
    return Page(path, commands, tuple(text for kind, text in found if kind == "output"))


RUN = [one for one in map(page, PAGES) if one.commands]


def script(one: Page, prefix: str) -> str:
    """The page's commands in order; the first that does not end as it says ends the script."""
    lines = []
    for line in "".join(one.commands).splitlines():
        exits = EXITS.match(line)
        expected = f"code=0; {exits['command']} || code=$?; test $code = {exits['code']}" if exits else line
        lines.append(expected)
    text = "\n".join(lines).replace("127.0.0.", prefix)
    created = re.sub(r"lockstep cluster create (\S+)", rf"\g<0> --first-address {prefix}1", text)
    return f"set -e\n{created}\n"


def normal(text: str) -> list[str]:
    """Lines without what differs from run to run: numbers, hashes, columns' widths."""
    lines = []
    for line in text.splitlines():
        plain = re.sub(r"\b[0-9a-f]{12,}\b", "#", line)
        plain = re.sub(r"\d+", "#", plain)
        lines.append(re.sub(r"[\s|]+", " ", plain).strip())
    return lines


#: cqlsh's driver may end its executor while its scheduler still has work; no node is asked any more.
DRIVER_SHUTDOWN = re.compile(
    r"Exception in thread Task Scheduler:\nTraceback[^\n]*\n(?: [^\n]*\n)*"
    r"RuntimeError: cannot schedule new futures after shutdown\n"
)


@pytest.mark.parametrize("one", RUN, ids=lambda one: str(one.path.relative_to(ROOT)))
def test_commands_work_and_print_what_the_page_shows(one: Page, tmp_path: Path) -> None:
    prefix = f"127.0.{100 + RUN.index(one)}."
    bin_directory = str(Path(sys.executable).parent)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
    environment = {
        **kept,
        "PATH": f"{bin_directory}:{kept['PATH']}",
        "PYTHONPATH": str(ROOT),
        "LOCKSTEP_HOME": str(tmp_path / "home"),
        "LOCKSTEP_HOST": f"{prefix}1:7080",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", script(one, prefix)],
            cwd=tmp_path, env=environment, timeout=PAGE_TIMEOUT_S, check=False, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    finally:
        for left in list_clusters(tmp_path / "home" / "clusters"):
            left.destroy()
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in DRIVER_SHUTDOWN.sub("", done.stdout), done.stdout
    printed = normal(done.stdout)
    for line in normal("\n".join(one.outputs)):
        assert line in printed, f"{line!r} is not among\n{done.stdout}"


def test_pages_are_found() -> None:
    assert len(RUN) >= 8
    assert sum(len(one.outputs) for one in RUN) >= 6


def test_a_command_that_ends_otherwise_than_it_says_fails_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("<!-- run -->\n```sh\nfalse   # exits 1\ntrue\n```\n")
    assert subprocess.run(["bash", "-c", script(page(path), "127.0.9.")], check=False).returncode == 0
    path.write_text("<!-- run -->\n```sh\nfalse   # exits 2\ntrue\n```\n")
    assert subprocess.run(["bash", "-c", script(page(path), "127.0.9.")], check=False).returncode != 0
