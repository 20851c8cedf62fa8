"""Which branches of the code that decides and replicates are reached by seeds, and which by none.

A simulator says nothing about code that it never runs. So each branch is reached by some seed, or is listed
in `unreached.txt` with the reason. Invariant: a branch is named by its module, its function and the two lines
of text between which it goes, so that the list outlives changes elsewhere; measuring never changes a run.
It reads sources and the measure's report, so it belongs to the machine and not to what is simulated.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

import lockstep
from lockstep.sim.scenarios import SCENARIOS
from lockstep.values.errors import ConfigurationError

#: Rooms without I/O, and the one that replicates.
ROOMS: Final = ("consensus", "metadata", "placement", "topology", "gossip", "replication", "storage")
_PACKAGE = Path(lockstep.__file__).parent
LISTED = Path(__file__).parent / "unreached.txt"
_END = "(end)"


class Branch(msgspec.Struct, frozen=True, order=True):
    """`at` and `to` are stripped source lines; `to` is `(end)` where the function is left."""

    module: str
    function: str
    at: str
    to: str

    def text(self) -> str:
        return f"{self.module} | {self.function} | {self.at} | {self.to}"


class Room(msgspec.Struct, frozen=True):
    name: str
    branches: int
    unreached: tuple[Branch, ...]


class Excuse(msgspec.Struct, frozen=True):
    """A line of the list: a branch, of which each part may have wildcards, and why no seed reaches it."""

    branch: Branch
    reason: str

    def covers(self, branch: Branch) -> bool:
        mine = (self.branch.module, self.branch.function, self.branch.at, self.branch.to)
        theirs = (branch.module, branch.function, branch.at, branch.to)
        return all(fnmatch.fnmatchcase(has, wanted) for has, wanted in zip(theirs, mine, strict=True))


def excuses(text: str) -> list[Excuse]:
    """The list's lines: `module | function | line | next line | reason`, with * for anything."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split(" | ")]
        if len(parts) != 5 or not all(parts):
            raise ConfigurationError(f"line {number} of {LISTED.name} has {len(parts)} parts, not 5")
        found.append(Excuse(Branch(*(_literal(part) for part in parts[:4])), parts[4]))
    return found


def _literal(part: str) -> str:
    """Brackets are no wildcards here."""
    return part.replace("[", "[[]")


def sources(rooms: Sequence[str] = ROOMS) -> list[Path]:
    return [path for room in rooms for path in sorted((_PACKAGE / room).rglob("*.py"))]


def functions_of(source: str) -> Callable[[int], str]:
    """The qualified name of the innermost function that a line is in."""
    spans: list[tuple[int, int, str]] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}".lstrip(".")
                spans.append((child.lineno, child.end_lineno or child.lineno, name))
            walk(child, name)

    walk(ast.parse(source), "")

    def of(line: int) -> str:
        inside = [(end - start, name) for start, end, name in spans if start <= line <= end]
        return min(inside)[1] if inside else "(module)"

    return of


def branches_of(path: Path, pairs: Sequence[Sequence[int]]) -> Iterator[Branch]:
    """Names of a file's branches, given by line numbers."""
    source = path.read_text()
    lines, of = source.splitlines(), functions_of(source)
    module = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
    for at, to in pairs:
        there = lines[to - 1].strip() if to > 0 else _END
        yield Branch(module, of(at), lines[at - 1].strip(), there)


def measure(work: Callable[[], None]) -> list[Room]:
    """Run `work`, and tell what of the rooms it reached."""
    try:
        import coverage
    except ImportError as error:
        raise ConfigurationError("coverage is not installed", hint="make setup") from error
    paths = sources()
    meter = coverage.Coverage(branch=True, data_file=None, include=[str(path) for path in paths])
    meter.start()
    try:
        work()
    finally:
        meter.stop()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "reached.json"
        meter.json_report(outfile=str(report))
        files = json.loads(report.read_text())["files"]
    return [_room(room, files) for room in ROOMS]


def _room(name: str, files: dict[str, dict[str, list[list[int]]]]) -> Room:
    count = 0
    unreached: list[Branch] = []
    known = {str(Path(path).resolve()): found for path, found in files.items()}
    for path in sources((name,)):
        found = known.get(str(path.resolve()))
        if found is not None:
            count += len(found["executed_branches"]) + len(found["missing_branches"])
            unreached += branches_of(path, found["missing_branches"])
    return Room(name, count, tuple(sorted(set(unreached))))


def run_seeds(first: int, seeds: int, told: Callable[[str], None]) -> None:
    """As `lockstep sim run` does: the seeds go round all scenarios."""
    from lockstep.sim.scenario import Run

    names = [name for name, scenario in SCENARIOS.items() if scenario.by_default]
    for number in range(seeds):
        name = names[number % len(names)]
        result = Run(SCENARIOS[name], first + number // len(names)).result()
        if result.violation:
            told(f"{name} seed {result.seed} failed: {result.violation}")


def text_of(rooms: Sequence[Room], listed: Sequence[Excuse], *, all_of_them: bool = False) -> str:
    """By room how much was reached, then the branches that no seed reached and nobody excuses."""
    lines: list[str] = []
    open_: list[Branch] = []
    for room in rooms:
        excused = [one for one in room.unreached if any(excuse.covers(one) for excuse in listed)]
        left = room.unreached if all_of_them else [one for one in room.unreached if one not in excused]
        open_ += left
        reached = room.branches - len(room.unreached)
        share = 100 * reached / max(room.branches, 1)
        lines.append(
            f"{room.name:<12} {reached:>5} of {room.branches:>5} branches reached ({share:.1f} %), "
            f"{len(excused)} listed with a reason, {len(room.unreached) - len(excused)} open"
        )
    return "\n".join((*lines, *(branch.text() for branch in open_)))


def open_branches(rooms: Sequence[Room], listed: Sequence[Excuse]) -> list[Branch]:
    """What is neither reached nor listed."""
    return [
        branch for room in rooms for branch in room.unreached if not any(e.covers(branch) for e in listed)
    ]
