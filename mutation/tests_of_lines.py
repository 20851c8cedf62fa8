"""Knows which test modules run which lines of a room, and how long each takes.

Measured by a run of each test module under coverage.py in a process of its own; a mutant is then tried by
the modules that reach its lines alone, the quickest first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mutation.candidates import Mutant
from mutation.trial import CPU_FACTOR, CPU_S_MIN, Verdict, in_child, unit_tests

#: Tests of nodes that serve requests, most of them simulated: what replicas say to each other is tried there.
_OF_REQUESTS = (
    *(f"node/test_{name}.py" for name in (
        "batches", "forwarding", "full_disks", "hints", "old_decisions", "owed_to_emptied_tables",
        "pages_while_moving", "repairs", "replacing", "requests_while_moving", "stale_work", "views", "work",
    )),
    *(f"server/test_{name}.py" for name in (
        "ballots_move", "conditional_time", "counters", "index_consistency", "indexes", "tracing", "views",
    )),
)  # fmt: skip
#: Folders or modules whose tests are run beside those of the room itself: they use it most.
ALSO: Mapping[str, tuple[str, ...]] = {
    "consensus": (),
    "placement": ("topology",),
    "topology": ("metadata",),
    "metadata": ("topology", "schema_changes"),
    **dict.fromkeys(
        ("internode", "quorum", "replica", "coordination", "handoff", "streaming"),
        ("replication", "storage", *_OF_REQUESTS),
    ),
    "storage": ("replication",),
}
#: A test module that takes longer is not run for each mutant.
MODULE_CPU_S_MAX = 120.0


class TestModule(NamedTuple):
    """`lines` by path of the source file."""

    path: str
    cpu_s: float
    lines: dict[str, frozenset[int]]

    def reaches(self, mutant: Mutant) -> bool:
        return not self.lines.get(mutant.path, frozenset()).isdisjoint(mutant.lines)


def folders_of(root: Path, room: str) -> tuple[str, ...]:
    """Folders and modules whose tests try a room: its own, if there is one, and others that use it most."""
    own = (room,) if (root / "tests" / room).is_dir() else ()
    return (*own, *ALSO.get(room, ()))


def measure(root: Path, room: str, work: Path) -> list[TestModule]:
    """Every test module for a room, the quickest first. RuntimeError when one fails on the sound code."""
    found = []
    for folder in folders_of(root, room):
        for path in modules_of(root, folder):
            module = _measured(root, room, path.relative_to(root).as_posix(), work)
            if module.cpu_s <= MODULE_CPU_S_MAX:
                found.append(module)
    return sorted(found, key=lambda one: (one.cpu_s, one.path))


def modules_of(root: Path, name: str) -> list[Path]:
    """Those of a folder of tests, or the one that is named, ascending."""
    place = root / "tests" / name
    return [place] if place.suffix else sorted(place.rglob("test_*.py"))


def _measured(root: Path, room: str, path: str, work: Path) -> TestModule:
    report = work / "coverage.json"
    report.unlink(missing_ok=True)

    def run() -> bool:
        import coverage

        measuring = coverage.Coverage(data_file=None, source=[str(root / "lockstep" / room)])
        measuring.start()
        passed = unit_tests([path])
        measuring.stop()
        data = measuring.get_data()
        lines = {Path(file).relative_to(root).as_posix(): data.lines(file) for file in data.measured_files()}
        report.write_text(json.dumps(lines))
        return passed

    outcome = in_child(run, work / "measured.log", MODULE_CPU_S_MAX * CPU_FACTOR)
    if outcome.verdict is not Verdict.SURVIVED:
        raise RuntimeError(f"{path} fails on the sound code:\n{outcome.tail}")
    lines = {file: frozenset(numbers) for file, numbers in json.loads(report.read_text()).items()}
    return TestModule(path, outcome.cpu_s, lines)


def chosen(modules: Iterable[TestModule], mutant: Mutant) -> tuple[list[str], float]:
    """The modules that reach a mutant, and the limit of CPU time for them together."""
    reaching: Sequence[TestModule] = [module for module in modules if module.reaches(mutant)]
    limit_s = max(CPU_S_MIN, CPU_FACTOR * sum(module.cpu_s for module in reaching))
    return [module.path for module in reaching], limit_s
