"""What runs every night, and which branches of the code that decides and replicates it reaches.

A simulator says nothing about code that it never runs. So each branch is reached by some part of the nightly
set, or is listed with the reason: kinds of branches in `unreached.txt`, single ones in `blind.txt`, whose
head has the few reasons that there are. A branch in neither list fails the report, and so does a line that
excuses nothing, or that says of a branch that unit tests take it when they do not.

Invariant: a branch is named by its module, its function and the two lines of text between which it goes, so
that the lists outlive changes elsewhere; measuring never changes a run. A part of the nightly set is named by
what it runs and draws from its own seed, so the set is the same on every machine and in every order.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

import lockstep
from lockstep.sim.runner import run_of, spread, timed
from lockstep.sim.scenarios import SCENARIOS
from lockstep.values.errors import ConfigurationError

#: Seeds of each scenario: with the tools, 6 to 10 minutes of a core, and twice that while it is measured.
NIGHTLY_SEEDS: Final = 4
_STATEMENTS: Final = 1500
_STATEMENTS_UNDER_FAULTS: Final = 600
_FOLLOWERS: Final = 40
_COMMITS: Final = 60
_RINGS: Final = 40

#: Runs, and tells what failed; "" when nothing did.
Part = Callable[[], str]


def parts(first: int = 1, seeds: int = NIGHTLY_SEEDS) -> dict[str, Part]:
    """By name: all scenarios in turn, also those that `sim run` leaves out, `seeds` of each from `first` on,
    then the tools."""
    seeded: dict[str, Part] = {
        f"{name} {seed}": partial(_seed, name, seed)
        for seed in range(first, first + seeds)
        for name in SCENARIOS
    }
    tools: dict[str, Part] = {
        "coordinator": _coordinator,
        "placements": partial(_placements, first),
        "dissemination": partial(_dissemination, first),
        "statements": partial(_statements, first, _STATEMENTS, 1),
        "statements under faults": partial(_statements, first, _STATEMENTS_UNDER_FAULTS, 3),
        "rings": partial(_rings, first, _RINGS, "quorum"),
        "rings of all": partial(_rings, first, _RINGS, "unanimous"),
    }
    return {**tools, **seeded}


def _seed(name: str, seed: int) -> str:
    return run_of(name, seed).result().violation


def _coordinator() -> str:
    from lockstep.sim.coordinator.script import cases, play

    return "; ".join(verdict.problem for case in cases().values() if (verdict := play(case)).problem)


def _placements(seed: int) -> str:
    from lockstep.sim.drills import placement_report

    chosen = placement_report.settings(12, 60, (2, 3), (0, 2), (4,), (3,))
    verdict = placement_report.check(seed, 1, chosen)
    return "" if verdict.holds else placement_report.text_of(verdict, 0.0)


def _dissemination(seed: int) -> str:
    from lockstep.sim.drills.dissemination import Dissemination, Setting

    outcome = Dissemination(Setting(nodes=_FOLLOWERS, commits=_COMMITS, loss=0.05, seed=seed)).run()
    return "" if outcome.holds else outcome.text()


def _statements(seed: int, statements: int, nodes: int) -> str:
    from lockstep.sim.fuzz import report

    told: list[str] = []
    report.run(report.Order(seed=seed, statements=statements, nodes=nodes), told.append)
    return "; ".join(told)


def _rings(first: int, seeds: int, mode: str) -> str:
    from lockstep.ring.ring import Mode
    from lockstep.sim.ring import report
    from lockstep.sim.ring.harness import Setting

    verdict = report.check(Setting(Mode(mode), first, aborting=mode == "quorum"), seeds)
    return "" if verdict.holds else verdict.text()


#: Rooms without I/O, and the one that replicates.
ROOMS: Final = (
    *("consensus", "metadata", "placement", "topology", "gossip", "recovery", "ring", "tracking"),
    *("storage", "internode", "quorum", "replica", "streaming", "coordination", "handoff"),
)
_PACKAGE = Path(lockstep.__file__).parent
LISTED = Path(__file__).parent / "unreached.txt"
_END = "(end)"
#: Single branches that no seed reaches, each with the name of a reason that stands in the file's head.
BLIND: Final = Path(__file__).parent / "blind.txt"
#: The reason that a machine gives and judges: unit tests take the branch.
TESTED: Final = "tested"


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
    reached: frozenset[Branch] = frozenset()


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
        pieces = [part.strip() for part in line.split(" | ")]
        if len(pieces) != 5 or not all(pieces):
            raise ConfigurationError(f"line {number} of {LISTED.name} has {len(pieces)} parts, not 5")
        found.append(Excuse(Branch(*(_literal(part) for part in pieces[:4])), pieces[4]))
    return found


class Reason(msgspec.Struct, frozen=True):
    """`pattern`: what one of the two lines of a branch with this reason has; empty: anything."""

    meaning: str
    pattern: str = ""

    def suits(self, branch: Branch) -> bool:
        return any(re.search(self.pattern, line) for line in (branch.at, branch.to))


class Blind(msgspec.Struct, frozen=True):
    """`head`: lines before the first branch; `reasons` by name; `lines`: by branch the name of its reason."""

    head: tuple[str, ...]
    reasons: dict[str, Reason]
    lines: dict[Branch, str]

    def text(self) -> str:
        lines = (f"{branch.text()} | {reason}" for branch, reason in sorted(self.lines.items()))
        return "".join(f"{line}\n" for line in (*self.head, *lines))


def blind_branches(text: str) -> Blind:
    """Lines `# name = meaning ~ pattern` for reasons, then `module | function | line | next line | name`."""
    lines = text.splitlines()
    head = tuple(line for line in lines if line.startswith("#"))
    named = dict(line[1:].strip().split(" = ", 1) for line in head if " = " in line)
    reasons = {name: Reason(*said.split(" ~ ", 1)) for name, said in named.items()}
    found: dict[Branch, str] = {}
    for line in lines:
        if not line or line.startswith("#"):
            continue
        pieces = line.split(" | ")
        if len(pieces) != 5 or pieces[4] not in reasons:
            raise ConfigurationError(
                f"{line!r} of {BLIND.name} ends in no reason", hint=f"one of {', '.join(sorted(reasons))}"
            )
        branch = Branch(*pieces[:4])
        if not reasons[pieces[4]].suits(branch):
            raise ConfigurationError(f"{line!r} of {BLIND.name} has another reason: it lacks the pattern")
        found[branch] = pieces[4]
    return Blind(head, reasons, found)


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


def line_name(line: str) -> str:
    """The line without the separator of the lists."""
    return line.strip().replace(" | ", "|")


def branches_of(path: Path, pairs: Sequence[Sequence[int]]) -> Iterator[Branch]:
    """Names of a file's branches, given by line numbers."""
    source = path.read_text()
    lines, of = source.splitlines(), functions_of(source)
    module = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
    for at, to in pairs:
        there = line_name(lines[to - 1]) if to > 0 else _END
        yield Branch(module, of(at), line_name(lines[at - 1]), there)


def measure(
    first: int, seeds: int, told: Callable[[str], None], only: str = "*"
) -> tuple[list[Room], list[str]]:
    """Run the nightly set with so many seeds of each scenario, or those parts whose name matches, a process a
    core: what of the rooms it reached, and the names of parts that failed. `told` hears of each of these, and
    of the time all took."""
    names = [name for name in parts(first, seeds) if fnmatch.fnmatchcase(name, only)]
    if not names:
        raise ConfigurationError(f"{only!r} names no part", hint="as 'metadata 1', with * for anything")
    failed: list[str] = []
    taken_s = 0.0
    with tempfile.TemporaryDirectory() as directory:
        work = partial(_measured, first=first, seeds=seeds, directory=directory)
        for name, failure, seconds in spread(work, names):
            taken_s += seconds
            if failure:
                failed.append(name)
                told(f"{name} failed: {failure}")
        rooms = rooms_of([str(path) for path in sorted(Path(directory).iterdir())])
    told(f"{len(names)} parts, {taken_s:.0f} s of a core")
    return rooms, failed


def _coverage() -> Any:
    """The library, which only the development environment has."""
    try:
        import coverage
    except ImportError as error:
        raise ConfigurationError("coverage is not installed", hint="make setup") from error
    return coverage


def _measured(name: str, *, first: int, seeds: int, directory: str) -> tuple[str, str, float]:
    """Run one part in this process, leave in the directory what it reached: its name, failure, seconds."""
    number = list(parts(first, seeds)).index(name)
    failure, seconds = timed(
        lambda: metered(parts(first, seeds)[name], str(Path(directory) / f"part.{number}"))
    )
    return name, failure, seconds


def metered(work: Callable[[], str], path: str) -> str:
    """What `work` answers; what it reached of the rooms is in the file."""
    include = [str(source) for source in sources()]
    meter = _coverage().Coverage(branch=True, data_file=path, include=include)
    meter.start()
    try:
        return work()
    finally:
        meter.stop()
        meter.save()


def rooms_of(files: Sequence[str]) -> list[Room]:
    """What these measures reached together; modules that nobody imported count as not reached."""
    with tempfile.TemporaryDirectory() as directory:
        meter = _coverage().Coverage(branch=True, data_file=str(Path(directory) / "all"))
        meter.combine(files, strict=True, keep=True)
        report = Path(directory) / "reached.json"
        meter.json_report(morfs=[str(path) for path in sources()], outfile=str(report))
        found = json.loads(report.read_text())["files"]
    return [_room(room, found) for room in ROOMS]


def _room(name: str, files: dict[str, dict[str, list[list[int]]]]) -> Room:
    count = 0
    unreached: list[Branch] = []
    reached: list[Branch] = []
    known = {str(Path(path).resolve()): found for path, found in files.items()}
    for path in sources((name,)):
        found = known.get(str(path.resolve()))
        if found is not None:
            count += len(found["executed_branches"]) + len(found["missing_branches"])
            unreached += branches_of(path, found["missing_branches"])
            reached += branches_of(path, found["executed_branches"])
    # Two branches of one name are one: it is reached when both are.
    return Room(name, count, tuple(sorted(unreached)), frozenset(reached) - frozenset(unreached))


class Verdict(msgspec.Struct, frozen=True):
    """`fresh`: neither reached nor excused; `unused` and `needless`: lines of the two lists that excuse
    nothing; `untested`: branches that unit tests are said to take, and do not."""

    rooms: tuple[Room, ...]
    listed: tuple[Excuse, ...]
    blind: Blind
    #: Parts of the nightly set that failed: what they would have reached is not known.
    failed: tuple[str, ...] = ()
    #: What unit tests take; None where that was not measured.
    tested: frozenset[Branch] | None = None

    @property
    def open(self) -> list[Branch]:
        """What is neither reached nor excused by its kind."""
        return [b for room in self.rooms for b in room.unreached if not any(e.covers(b) for e in self.listed)]

    @property
    def fresh(self) -> list[Branch]:
        return [branch for branch in self.open if branch not in self.blind.lines]

    @property
    def unused(self) -> list[Excuse]:
        missed = [branch for room in self.rooms for branch in room.unreached]
        return [one for one in self.listed if not any(map(one.covers, missed))]

    @property
    def needless(self) -> list[Branch]:
        still = frozenset(self.open)
        return [branch for branch in self.blind.lines if branch not in still]

    @property
    def untested(self) -> list[Branch]:
        if self.tested is None:
            return []
        return [b for b, reason in self.blind.lines.items() if reason == TESTED and b not in self.tested]

    @property
    def holds(self) -> bool:
        return not (self.fresh or self.unused or self.needless or self.untested or self.failed)


def text_of(verdict: Verdict, *, all_of_them: bool = False) -> str:
    """By room how much was reached and excused, how many each reason excuses, and what fails: new branches
    that are neither, and lines that excuse nothing. All that is not reached with `all_of_them`."""
    lines: list[str] = []
    reasons: Counter[str] = Counter()
    for room in verdict.rooms:
        found = [next((e for e in verdict.listed if e.covers(branch)), None) for branch in room.unreached]
        excused = [excuse.reason for excuse in found if excuse is not None]
        excused += [
            verdict.blind.reasons[why].meaning for b in room.unreached if (why := verdict.blind.lines.get(b))
        ]
        reasons.update(excused)
        reached, count = room.branches - len(room.unreached), max(room.branches, 1)
        lines.append(
            f"{room.name:<12} {reached:>5} of {room.branches:>5} branches reached "
            f"({100 * reached / count:.1f} %), {len(excused)} listed with a reason "
            f"({100 * len(excused) / count:.1f} %), {len(room.unreached) - len(excused)} open"
        )
    lines += [f"{count:>6} {reason}" for reason, count in reasons.most_common()]
    fresh = verdict.fresh
    lines.append(f"{len(fresh)} neither reached nor excused")
    shown = [b for room in verdict.rooms for b in room.unreached] if all_of_them else fresh
    lines += [branch.text() for branch in shown]
    lines += [f"excuses nothing: {one.branch.text()} | {one.reason}" for one in verdict.unused]
    lines += [f"excuses nothing: {branch.text()}" for branch in verdict.needless]
    lines += [f"no unit test takes: {branch.text()}" for branch in verdict.untested]
    return "\n".join(lines)


def recorded(verdict: Verdict) -> Blind:
    """The list as this verdict has it: without what is reached, and with what unit tests take. What is open
    besides keeps the reason that a person gave; what has none is not in it."""
    lines: dict[Branch, str] = {}
    for branch in verdict.open:
        known = verdict.blind.lines.get(branch, TESTED)
        if known != TESTED or (branch in verdict.tested if verdict.tested is not None else False):
            lines[branch] = known
    return msgspec.structs.replace(verdict.blind, lines=lines)


def without_reached(blind: Blind, rooms: Sequence[Room]) -> Blind:
    """The list without what some parts of the nightly set reach: the others reach no less for that."""
    reached = frozenset[Branch]().union(*(room.reached for room in rooms))
    lines = {branch: reason for branch, reason in blind.lines.items() if branch not in reached}
    return msgspec.structs.replace(blind, lines=lines)


def known_blind() -> Blind:
    return blind_branches(BLIND.read_text())


def record(blind: Blind) -> None:
    BLIND.write_text(blind.text())


def taken_by_tests(path: str) -> frozenset[Branch]:
    """The branches in a data file of coverage.py, as `python -m mutation.branches` writes one."""
    return frozenset[Branch]().union(*(room.reached for room in rooms_of([path])))


def verdict_of(
    rooms: Sequence[Room], failed: Sequence[str], tested: frozenset[Branch] | None = None
) -> Verdict:
    """Of these rooms and failed parts, by the two lists beside this module."""
    return Verdict(tuple(rooms), tuple(excuses(LISTED.read_text())), known_blind(), tuple(failed), tested)
