"""Knows which tests run which lines of the rooms, and how long each takes.

Measured by one run of each test module under coverage.py, each test a context of its own, and kept in
`build/mutation`. A measure holds for a file of the product as long as neither that file nor any of the tests
that took part in it has changed: what else changed may make the choice of tests worse, and no verdict wrong.
A mutant is then tried by the tests that reach its lines alone, the quickest first.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mutation.chosen_tests import Chosen, Watched, run_tests
from mutation.trial import CPU_FACTOR, CPU_S_MIN, Verdict, in_child

if TYPE_CHECKING:
    from mutation.candidates import Mutant

#: Tests of nodes that serve requests, most of them simulated: what replicas say to each other is tried there.
_OF_REQUESTS = (
    *(f"node/test_{name}.py" for name in (
        "batches", "forwarding", "full_disks", "hints", "old_decisions", "owed_to_emptied_tables",
        "pages_while_moving", "purging", "repairs", "replacing", "requests_while_moving", "stale_work",
        "views", "work",
    )),
    *(f"server/test_{name}.py" for name in (
        "ballots_move", "conditional", "conditional_time", "counters", "index_consistency", "indexes",
        "tracing", "views",
    )),
    "sim/test_coordinator.py",
)  # fmt: skip
#: Tests of whole nodes that recover, have no log, or know by ids what they hold.
_OF_NODES = {
    "metadata": ("management_elsewhere", "metadata_replacing", "upgrade"),
    "recovery": (
        "management_truncation", "recovering", "recovery", "recovery_again", "recovery_by_log",
    ),
    "ring": ("other_rings", "ring_carrying", "ring_submissions", "upgrade"),
    "tracking": (
        "causal", "journal_audit", "tracked", "tracked_cohorts", "tracked_migration", "tracked_moves",
        "tracked_repairs", "tracked_restores", "tracked_statements", "tracked_witnesses",
    ),
}  # fmt: skip


def _nodes(room: str) -> tuple[str, ...]:
    return tuple(f"node/test_{name}.py" for name in _OF_NODES[room])


#: Folders or modules whose tests are run beside those of the room itself: they use it most.
ALSO: Mapping[str, tuple[str, ...]] = {
    "consensus": (),
    "placement": ("topology",),
    "topology": ("metadata",),
    "metadata": ("topology", "schema_changes", *_nodes("metadata")),
    **dict.fromkeys(
        ("internode", "quorum", "replica", "coordination", "handoff", "streaming"),
        ("replication", "storage", *_OF_REQUESTS),
    ),
    "storage": ("replication",),
    **{room: _nodes(room) for room in ("recovery", "ring", "tracking")},
}
#: Rooms whose lines are remembered by test: one measure of a module serves all of them.
ROOMS: Final = (*ALSO, "gossip")
#: Of one module, as measured; far more than any needs without its slow tests.
MODULE_CPU_S_MAX = 300.0
#: The tests of one mutant take at most so much as measured, which coverage makes two to three times as long:
#: what 45 survivors cost is bounded, and a mutant that only later tests would kill counts as a survivor.
TESTS_CPU_S_MAX = 30.0
#: Tests are run in turns, the first of which take no longer, as most mutants fall at once.
TURNS_CPU_S = (2.0, 8.0, TESTS_CPU_S_MAX)


class OneTest(NamedTuple):
    """`name` is pytest's, with the module's path; `lines` of the rooms by path of the source file."""

    name: str
    cpu_s: float
    lines: Mapping[str, frozenset[int]]

    @property
    def module(self) -> str:
        return self.name.partition("::")[0]


class ModuleTests(NamedTuple):
    """`shared` holds what runs for more than one test: imports, and fixtures of wider scope; `arcs` the steps
    from line to line of all of them."""

    path: str
    tests: tuple[OneTest, ...]
    shared: Mapping[str, frozenset[int]]
    arcs: Mapping[str, Sequence[Sequence[int]]] = {}

    def reaching(self, mutant: Mutant) -> list[OneTest]:
        """Tests that reach its lines themselves. If only what they share does, those that run anything else
        of that file, or all tests when none does."""
        lines = frozenset(mutant.lines)
        own = [test for test in self.tests if not lines.isdisjoint(test.lines.get(mutant.path, ()))]
        if own or lines.isdisjoint(self.shared.get(mutant.path, ())):
            return own
        return [test for test in self.tests if mutant.path in test.lines] or list(self.tests)


def folders_of(root: Path, room: str) -> tuple[str, ...]:
    """Folders and modules whose tests try a room: its own, if there is one, and others that use it most."""
    own = (room,) if (root / "tests" / room).is_dir() else ()
    return (*own, *ALSO.get(room, ()))


def modules_of(root: Path, name: str) -> list[Path]:
    """Those of a folder of tests, or the one that is named, ascending."""
    place = root / "tests" / name
    return [place] if place.suffix else sorted(place.rglob("test_*.py"))


def measure(
    root: Path, room: str, wanted: Callable[[str], bool], work: Path, jobs: int, told: Callable[[str], None]
) -> list[ModuleTests]:
    """Every test module for a room; measures hold for wanted files."""
    return measured(root, names_of(root, folders_of(root, room)), wanted, work, jobs, told)


def names_of(root: Path, folders: Iterable[str]) -> list[str]:
    """Of the test modules in these folders."""
    paths = [path for folder in folders for path in modules_of(root, folder)]
    return list(dict.fromkeys(path.relative_to(root).as_posix() for path in paths))


def measured(
    root: Path,
    names: Sequence[str],
    wanted: Callable[[str], bool],
    work: Path,
    jobs: int,
    told: Callable[[str], None],
) -> list[ModuleTests]:
    """These test modules, by kept measures where they hold for wanted files; without those that fail on the
    sound code."""
    digest = functools.lru_cache(maxsize=None)(functools.partial(_digest, root))
    kept = {name: _kept(root, name, wanted, digest) for name in names}
    missing = [name for name in names if kept[name] is None]
    if missing:
        told(f"{len(missing)} of {len(names)} test modules are measured anew")
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda name: _measured(root, name, work, digest, told), missing)
        kept.update(zip(missing, found, strict=True))
    return [module for module in kept.values() if module is not None]


def _place_of(root: Path, name: str) -> Path:
    return root / "build" / "mutation" / f"{name.replace('/', '.')}.json"


def _digest(root: Path, path: str) -> str:
    """Of a file's bytes; "" of a file that is gone."""
    place = root / path
    return hashlib.blake2b(place.read_bytes(), digest_size=12).hexdigest() if place.is_file() else ""


def _kept(
    root: Path, name: str, wanted: Callable[[str], bool], digest: Callable[[str], str]
) -> ModuleTests | None:
    """The earlier measure, if the tests and the wanted files that took part are as they were."""
    place = _place_of(root, name)
    if not place.is_file():
        return None
    kept = json.loads(place.read_text())
    counting = {path: had for path, had in kept["files"].items() if path.startswith("tests/") or wanted(path)}
    if any(digest(path) != had for path, had in counting.items()):
        return None
    return _module_of(name, kept)


def _module_of(name: str, kept: Mapping[str, Any]) -> ModuleTests:
    def lines_of(packed: Mapping[str, str]) -> dict[str, frozenset[int]]:
        return {path: frozenset(_unpacked(text)) for path, text in packed.items()}

    tests = tuple(
        OneTest(test, kept["cpu_s"].get(test, 0.0), lines_of(packed))
        for test, packed in kept["tests"].items()
    )
    return ModuleTests(name, tests, lines_of(kept["shared"]), kept["arcs"])


def _packed(lines: Iterable[int]) -> str:
    """One bit a line, in base 16."""
    return f"{sum(1 << line for line in set(lines)):x}"


def _unpacked(text: str) -> list[int]:
    bits = int(text, 16)
    return [line for line in range(bits.bit_length()) if bits >> line & 1]


def _measured(
    root: Path, name: str, work: Path, digest: Callable[[str], str], told: Callable[[str], None]
) -> ModuleTests | None:
    flat = name.replace("/", ".")
    report = work / f"{flat}.json"

    def run() -> bool:
        import coverage

        meter = coverage.Coverage(
            branch=True, data_file=None, include=[str(root / "lockstep" / "*"), str(root / "tests" / "*")]
        )
        meter.start()
        watched = Watched(meter.switch_context)
        passed = run_tests([name], watched)
        meter.stop()
        report.write_text(json.dumps(_by_test(meter.get_data(), root, watched)))
        return passed

    outcome = in_child(run, work / f"{flat}.log", MODULE_CPU_S_MAX * CPU_FACTOR)
    if outcome.verdict is not Verdict.SURVIVED:
        told(f"{name} fails on the sound code, so it judges no mutant:\n{outcome.tail}")
        return None
    measured = json.loads(report.read_text())
    measured["files"] = {path: digest(path) for path in sorted({name, *measured["files"]})}
    place = _place_of(root, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(measured))
    told(f"  {outcome.cpu_s:6.1f} s {name}: {len(measured['tests'])} tests")
    return _module_of(name, measured)


def _by_test(data: Any, root: Path, watched: Watched) -> dict[str, Any]:
    tests: dict[str, dict[str, str]] = {test: {} for test in watched.cpu_s}
    shared: dict[str, str] = {}
    arcs: dict[str, list[tuple[int, int]]] = {}
    files = {Path(file).relative_to(root).as_posix(): file for file in data.measured_files()}
    for path, file in sorted(files.items()):
        if not path.startswith(tuple(f"lockstep/{room}/" for room in ROOMS)):
            continue
        arcs[path] = sorted(data.arcs(file) or ())
        lines: dict[str, list[int]] = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                lines.setdefault(context, []).append(line)
        for context, found in lines.items():
            if context in tests:
                tests[context][path] = _packed(found)
        if "" in lines:
            shared[path] = _packed(lines[""])
    return {
        "tests": tests,
        "cpu_s": watched.cpu_s,
        "shared": shared,
        "arcs": arcs,
        "files": sorted(files),
    }


def chosen(modules: Iterable[ModuleTests], mutant: Mutant) -> list[Chosen]:
    """The tests that reach a mutant, in turns."""
    reaching = [test for module in modules for test in module.reaching(mutant)]
    return in_turns(sorted(reaching, key=lambda test: (test.cpu_s, test.name)))


def in_turns(tests: Sequence[OneTest]) -> list[Chosen]:
    """At least one test, then as many as the time for all of them allows."""
    turns: list[list[OneTest]] = [[] for _ in TURNS_CPU_S]
    at, spent_s = 0, 0.0
    for test in tests:
        spent_s += test.cpu_s
        while at < len(TURNS_CPU_S) and spent_s > TURNS_CPU_S[at] and test is not tests[0]:
            at += 1
        if at == len(TURNS_CPU_S):
            break
        turns[at].append(test)
    return [
        Chosen(tuple(dict.fromkeys(test.module for test in turn)), frozenset(test.name for test in turn))
        for turn in turns
        if turn
    ]


def limit_s_of(modules: Iterable[ModuleTests], turns: Sequence[Chosen]) -> float:
    """The limit of CPU time for these tests."""
    wanted = frozenset[str]().union(*(turn.tests for turn in turns))
    taken_s = sum(test.cpu_s for module in modules for test in module.tests if test.name in wanted)
    return max(CPU_S_MIN, CPU_FACTOR * taken_s)
