"""`make first-hour`: a new user's first hour, from README.md and docs/start/first-hour.md alone.

Everything happens in a directory of its own, with a home of its own, a copy of the checkout, and the wanted
interpreter: the README's commands in the copy, then those of the first hour in an environment that has the
wheel, then an installation from the copy. A command that ends otherwise than its page says, prints a
traceback or a warning, or does not print what the page shows, fails the walk; the table says how long each
took. Clusters are at 127.0.0.1 and on, as on the pages.

Usage: python bench/first_hour.py [--python PROGRAM] [--whole] [--keep]; --whole also runs what takes minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
BLOCK: Final = re.compile(r"(?:<!-- (?P<mark>\w+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
EXITS: Final = re.compile(r"\s#\sexits (?P<code>\d+)$")
COMMENT: Final = re.compile(r"\s+#\s.*$")
#: No command of a first hour is worth more; `make test` is.
COMMAND_TIMEOUT_S: Final = 600.0
WHOLE_TIMEOUT_S: Final = 3600.0
#: What takes minutes and is a tour or a suite of its own.
LONG: Final = ("make demo", "make test", "make test-fast")
#: What no command of a page may print.
UNWELCOME: Final = ("Traceback (most recent call last)", "DeprecationWarning", "error[", "WARNING")
#: What a command must print although its page shows no output of it; by the beginning of the command.
SAID: Final = {
    "make help": "make demo",
    "lockstep cluster create": "nodes serving",
    "lockstep metadata verify": "all logs read agree",
    "lockstep cluster destroy": "is gone",
}


class Command(NamedTuple):
    """One command of a page, as it stands there, and how it must end."""

    text: str
    exits: int = 0

    @property
    def title(self) -> str:
        first = COMMENT.sub("", self.text.strip().splitlines()[0])
        return first + (" ..." if "\n" in self.text.strip() else "")


class Block(NamedTuple):
    """Commands that stand together, and the lines shown as their output."""

    commands: tuple[Command, ...]
    shown: tuple[str, ...] = ()


class Step(NamedTuple):
    page: str
    title: str
    seconds: float
    problem: str


def blocks_of(text: str) -> list[Block]:
    """The shell blocks of a page in order; a block under `output` belongs to the one before it."""
    found: list[Block] = []
    for match in BLOCK.finditer(text):
        if match["language"] == "sh":
            found.append(Block(tuple(commands_of(match["text"]))))
        elif match["mark"] == "output" and found:
            found[-1] = found[-1]._replace(shown=(*found[-1].shown, *match["text"].splitlines()))
    return found


def commands_of(text: str) -> Iterator[Command]:
    """Lines until the shell takes them for whole: here-documents and quotes go over several."""
    gathered = ""
    for line in text.splitlines(keepends=True):
        gathered += line
        judged = subprocess.run(["bash", "-n"], input=gathered, capture_output=True, text=True, check=False)
        if judged.returncode or judged.stderr:
            continue
        if gathered.strip():
            exits = EXITS.search(gathered.rstrip())
            yield Command(gathered, int(exits["code"]) if exits else 0)
        gathered = ""
    if gathered.strip():
        raise ValueError(f"the shell does not take this for whole commands:\n{gathered}")


def shape(line: str) -> str:
    """Without what differs from run to run: numbers, hashes, widths of columns."""
    return re.sub(r"[\s|]+", " ", re.sub(r"\d+", "#", re.sub(r"\b[0-9a-f]{12,}\b", "#", line))).strip()


def problem_of(command: Command, code: int | None, printed: str) -> str:
    """What is wrong with how a command ended; empty when nothing is."""
    if code is None:
        return "it did not end"
    if code != command.exits:
        return f"it exits with {code}, not {command.exits}"
    unwelcome = [text for text in UNWELCOME if text in printed and not (text == "error[" and command.exits)]
    if unwelcome:
        return f"it prints {unwelcome[0]!r}"
    for begin, said in SAID.items():
        if command.text.startswith(begin) and said not in printed:
            return f"it does not print {said!r}"
    return ""


def missing(shown: Sequence[str], printed: str) -> list[str]:
    """Lines of a page's output that nothing printed has the shape of."""
    shapes = {shape(line) for line in printed.splitlines()}
    return [line for line in shown if shape(line) and shape(line) not in shapes]


class Shell:
    """One shell that keeps its directory and environment from command to command, as a terminal does."""

    def __init__(self, directory: Path, environment: dict[str, str], scratch: Path) -> None:
        self._command, self._output = scratch / "command.sh", scratch / "output"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=directory, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def run(self, text: str, timeout_s: float) -> tuple[int | None, str]:
        """Its exit code, None when it did not end, and all that it printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._command.write_text(text)
        self._process.stdin.write(f". {self._command} </dev/null >{self._output} 2>&1; echo $?\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        code = self._process.stdout.readline().strip() if ready else ""
        return (int(code) if code else None), self._output.read_text(errors="replace")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Walk:
    """The steps taken so far; `steps` is what the table shows."""

    def __init__(self, scratch: Path, environment: dict[str, str], *, whole: bool) -> None:
        self._scratch = scratch
        self._environment = environment
        self._whole = whole
        self.steps: list[Step] = []

    def page(self, name: str, directory: Path, replaced: dict[str, str]) -> bool:
        """Run a page's commands in order, up to the first that fails; whether none did."""
        shell = Shell(directory, self._environment, self._scratch)
        try:
            return all(
                self._block(shell, name, block, replaced) for block in blocks_of((ROOT / name).read_text())
            )
        finally:
            shell.close()

    def commands(self, name: str, directory: Path, texts: Sequence[str]) -> bool:
        """Run commands that no page has word for word."""
        shell = Shell(directory, self._environment, self._scratch)
        try:
            return self._block(shell, name, Block(tuple(map(Command, texts))), {})
        finally:
            shell.close()

    def _block(self, shell: Shell, name: str, block: Block, replaced: dict[str, str]) -> bool:
        printed = ""
        for command in block.commands:
            if command.title in LONG and not self._whole:
                continue
            text = command.text
            for old, new in replaced.items():
                text = text.replace(old, new)
            began_s = time.perf_counter()
            code, output = shell.run(text, WHOLE_TIMEOUT_S if command.title in LONG else COMMAND_TIMEOUT_S)
            printed += output
            problem = problem_of(command, code, output)
            self._told(Step(name, command.title, time.perf_counter() - began_s, problem), output)
            if problem:
                return False
        lacking = missing(block.shown, printed)
        if lacking:
            self._told(
                Step(name, "what the page shows", 0.0, f"nothing printed is like {lacking[0]!r}"), printed
            )
        return not lacking

    def _told(self, step: Step, output: str) -> None:
        self.steps.append(step)
        print(f"{step.seconds:7.1f} s  {step.title}", flush=True)
        if step.problem:
            print(f"FAILED: {step.problem}\n{output}", flush=True)


def copy_checkout(target: Path) -> None:
    """What the version control knows or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def clean_environment(scratch: Path, python: str) -> dict[str, str]:
    """A home of its own, the wanted interpreter as `python3`; of the machine only how to reach packages."""
    programs = scratch / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(python)
    (scratch / "home").mkdir()
    kept = ("PIP_", "UV_", "SSL_", "HTTP", "http", "NO_PROXY", "no_proxy", "LANG", "LC_", "REQUESTS_")
    taken = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    if settings.exists():
        taken.setdefault("PIP_CONFIG_FILE", str(settings))
    path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
    # The Makefile looks for python3.11 first, which the machine may have beside the wanted one.
    return {**taken, "HOME": str(scratch / "home"), "PATH": path, "PYTHON": "python3"}


def destroy_left(scratch: Path, environment: dict[str, str]) -> None:
    """End the clusters that a failed walk leaves."""
    homes = scratch / "home" / ".lockstep" / "clusters"
    for left in sorted(homes.iterdir()) if homes.is_dir() else []:
        lockstep = scratch / "checkout" / ".venv" / "bin" / "lockstep"
        subprocess.run([lockstep, "cluster", "destroy", left.name], env=environment, check=False)


def walk(scratch: Path, python: str, *, whole: bool) -> list[Step]:
    environment = clean_environment(scratch, python)
    checkout, elsewhere = scratch / "checkout", scratch / "elsewhere"
    elsewhere.mkdir()
    copy_checkout(checkout)
    taken = Walk(scratch, environment, whole=whole)
    build = "checkout/.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w . ./checkout"
    try:
        went_well = taken.page("README.md", checkout, {}) and taken.commands("the wheel", scratch, [build])
        if went_well:
            (wheel,) = scratch.glob("*.whl")
            taken.page("docs/start/first-hour.md", elsewhere, {"lockstep-db": str(wheel)})
            from_checkout = [
                "python3 -m venv from-checkout && source from-checkout/bin/activate",
                "pip install --quiet ../checkout",
                "lockstep --version",
            ]
            taken.commands("from a checkout", elsewhere, from_checkout)
    finally:
        destroy_left(scratch, environment)
    return taken.steps


def table(steps: Sequence[Step]) -> str:
    width = max(len(step.title) for step in steps)
    lines = [f"{'page':<24} {'command':<{width}} {'s':>7}  result"]
    lines += [
        f"{step.page:<24} {step.title:<{width}} {step.seconds:>7.1f}  {step.problem or 'holds'}"
        for step in steps
    ]
    total_s = sum(step.seconds for step in steps)
    failed = sum(bool(step.problem) for step in steps)
    return "\n".join([*lines, f"{len(steps)} steps, {failed} failed, {total_s:.0f} s"])


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--python", default=sys.executable, help="The interpreter of the new user.")
    options.add_argument("--whole", action="store_true", help="Also what takes minutes.")
    options.add_argument("--keep", action="store_true", help="Keep the directory.")
    chosen = options.parse_args()
    found = shutil.which(chosen.python)
    if found is None:
        options.error(f"there is no program {chosen.python}")
    told = [found, "-c", "import sys; print(sys.executable, '%d.%d.%d' % sys.version_info[:3])"]
    python, version = subprocess.run(told, check=True, capture_output=True, text=True).stdout.split()
    print(f"the first hour with Python {version}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="first-hour-"))
    try:
        steps = walk(scratch, python, whole=chosen.whole)
    finally:
        if not chosen.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    print(table(steps))
    return 1 if any(step.problem for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
