"""`sweep`: many seeds of the simulator, or of the proofs of quorums, as tasks of Spark.

Invariant: what a seed gives is a row, also a failure, also the end of its process, so no seed hides another
one. Tasks run for some seconds each: how many seeds that is, is measured with the first ones. Some seeds run
twice, in tasks of their own; one that gives two digests depends on the process that runs it, which is a
failure too.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.sim import runner
from lockstep.sim.drills import quorum_report
from lockstep.sim.scenarios import SCENARIOS
from lockstep.spark.jobs.files import uri
from lockstep.spark.jobs.running import Progress, plain_errors, spread, watched
from lockstep.spark.jobs.swept_rows import Case, Kept, Swept
from lockstep.values import codec
from lockstep.values.errors import ConfigurationError, LockstepError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a task is to run: far above its fixed cost of some 40 ms, and little to lose with its process.
TASK_S: Final = 5.0
#: Tasks of a wave for each that runs at once: half a minute, which is what a killed driver costs.
WAVE_TASKS: Final = 6
#: Seeds of each kind that are measured before the others are divided.
_MEASURED: Final = 2
#: One seed in so many runs twice.
TWICE_EVERY: Final = 20
QUORUMS: Final = "quorums"
_DIGEST_BYTES: Final = 16
#: Operations of one proof of quorums, each of one layout.
_OPERATIONS: Final = 4
#: Replication factors of the layouts: larger ones take seconds a run, and `sim quorums` has them.
_FACTORS: Final = (1, 2, 3)


class SweepPlan(msgspec.Struct, frozen=True):
    """`tasks` are at least so many: how long a seed takes is measured by the sweep itself."""

    seeds: int
    scenarios: tuple[str, ...]
    twice: int


class SweepReport(msgspec.Struct, frozen=True):
    """`not_repeatable` are seeds with two digests. `failures` are rows, ordered by scenario and seed.
    `resumed`: runs that a file had; `repeated_tasks`: those that were lost with a process. Figures of tasks
    are of what ran now, CPU is of all."""

    seeds: int
    failed: int
    run_twice: int
    not_repeatable: tuple[tuple[str, int], ...]
    tasks: int
    task_s: float
    events: int
    cpu_s: float
    elapsed_s: float
    failures: tuple[Swept, ...]
    to: str
    resumed: int = 0
    repeated_tasks: int = 0


def cases(seed: int, seeds: int, scenario: str = "", plants: Sequence[str] = ()) -> list[Case]:
    """Seeds `seed` on, round all scenarios or those that are named, with commas between them; `plants` are
    NAME@SEED. ConfigurationError."""
    if seeds < 1:
        raise ConfigurationError(f"{seeds} seeds are none")
    names = scenario.split(",") if scenario else [one.name for one in SCENARIOS.values() if one.by_default]
    for name in names:
        if name != QUORUMS:
            runner.checked(name)
    found = [Case(names[number % len(names)], seed + number) for number in range(seeds)]
    for text in plants:
        name, _, at = text.partition("@")
        place = int(at) - seed if at.isdecimal() else -1
        if not 0 <= place < seeds:
            raise ConfigurationError(
                f"{text!r} is not BUG@SEED with a seed from {seed} to {seed + seeds - 1}"
            )
        known = quorum_report.FLAWS if found[place].scenario == QUORUMS else runner.planted_bugs()
        if name not in known:
            raise ConfigurationError(f"there is no planted bug {name!r}", hint=f"one of: {', '.join(known)}")
        found[place] = msgspec.structs.replace(found[place], plant=name)
    return found


def plan(wanted: Sequence[Case], twice_every: int = TWICE_EVERY) -> SweepPlan:
    """What `run` would do."""
    return SweepPlan(
        len(wanted),
        tuple(dict.fromkeys(one.scenario for one in wanted)),
        len(wanted[::twice_every]) if twice_every else 0,
    )


def run(
    session: SparkSession,
    wanted: Sequence[Case],
    progress: Progress,
    to: str = "",
    twice_every: int = TWICE_EVERY,
    report: str = "",
) -> SweepReport:
    """Run all seeds; with `to` every row is written there as Parquet. With `report` rows are kept in that
    file as they come, and those that are there from these sources are not run again."""
    began = time.monotonic()
    kept = Kept(Path(report).expanduser()) if report else None
    sweep = _Sweep(session, progress, kept, len(wanted) + len(wanted[::twice_every] if twice_every else ()))
    first, rest = _measured(wanted)
    sweep.do([(one,) for one in first], again=False)
    sweep.do(divided(sweep.left(rest, again=False), list(sweep.once.values())), again=False)
    if twice_every:
        again = sweep.left(wanted[::twice_every], again=True)
        sweep.do(divided(again, list(sweep.once.values())), again=True)
    rows = sorted((sweep.once[one] for one in wanted), key=lambda one: (one.scenario, one.seed))
    second = {one: sweep.twice[one] for one in wanted[::twice_every]} if twice_every else {}
    unlike = sorted(
        (one.scenario, one.seed) for one, row in second.items() if sweep.once[one].digest != row.digest
    )
    if to:
        place = Path(to).expanduser().absolute()
        with watched(session, progress, f"writing {place}"):
            frame(session, rows).coalesce(1).write.mode("error").parquet(uri(place))
    failures = tuple(one for one in rows if one.violation)
    cpu_s = sum(one.cpu_s for one in (*rows, *second.values()))
    return SweepReport(
        len(rows), len(failures), len(second), tuple(unlike), sweep.tasks,
        sweep.cpu_s / max(sweep.tasks, 1), sum(one.events for one in rows),
        cpu_s, time.monotonic() - began, failures, to, sweep.resumed, sweep.repeated_tasks,
    )  # fmt: skip


class _Sweep:
    """Rows by their cases as they come, in waves of tasks."""

    def __init__(self, session: SparkSession, progress: Progress, kept: Kept | None, total: int) -> None:
        self._session = session
        self._progress = progress
        self._kept = kept
        self._total = total
        self.once: dict[Case, Swept] = {}
        self.twice: dict[Case, Swept] = {}
        self.tasks = self.repeated_tasks = 0
        self.cpu_s = 0.0
        for row, again in kept.rows if kept is not None else ():
            (self.twice if again else self.once)[case_of(row)] = row
        self.resumed = len(self.once) + len(self.twice)

    def left(self, wanted: Sequence[Case], *, again: bool) -> list[Case]:
        """Those that are not known."""
        known = self.twice if again else self.once
        return [one for one in wanted if one not in known]

    def do(self, chunks: Sequence[tuple[Case, ...]], *, again: bool) -> None:
        """Run what of these is not known. A wave that is lost is all that is."""
        chunks = [part for chunk in chunks if (part := tuple(self.left(chunk, again=again)))]
        size = max(1, self._session.sparkContext.defaultParallelism * WAVE_TASKS)
        for at in range(0, len(chunks), size):
            wave = chunks[at : at + size]
            failed = sum(1 for row in self.once.values() if row.violation)
            done = len(self.once) + len(self.twice)
            text = f"{done:,} of {self._total:,} seeds done, {failed} failed; {len(wave):,} tasks run"
            with watched(self._session, self._progress, text):
                rows = self._attempted(wave)
            (self.twice if again else self.once).update((case_of(row), row) for row in rows)
            self.cpu_s += sum(row.cpu_s for row in rows)
            if self._kept is not None:
                self._kept.add(rows, again=again)

    def _attempted(self, chunks: Sequence[tuple[Case, ...]]) -> list[Swept]:
        """Rows of all cases. Where a process ends, which takes the wave with it, halves are run again by
        themselves; a seed that ends its process whenever it runs is a failure like any other."""
        self.tasks += len(chunks)
        try:
            with plain_errors():
                return spread(self._session, chunks, swept)
        except LockstepError as error:
            with plain_errors():
                # Without a session nothing is the fault of a seed.
                spread(self._session, [(0,)], list)
            if len(chunks) == 1 and len(chunks[0]) == 1:
                return [_ended(chunks[0][0], error)]
            self.repeated_tasks += len(chunks)
        parts = chunks if len(chunks) > 1 else [(one,) for one in chunks[0]]
        middle = len(parts) // 2
        return self._attempted(parts[:middle]) + self._attempted(parts[middle:])


def _ended(case: Case, error: LockstepError) -> Swept:
    text = f"the process that ran it ended: {error}"
    return Swept(case.scenario, case.seed, "", "PROCESS", text, 0, 0.0, 0, case.plant)


def case_of(row: Swept) -> Case:
    return Case(row.scenario, row.seed, row.plant)


def _measured(wanted: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """The first ones of each scenario, and the rest."""
    seen: dict[str, int] = {}
    first: list[Case] = []
    rest: list[Case] = []
    for one in wanted:
        seen[one.scenario] = seen.get(one.scenario, 0) + 1
        (first if seen[one.scenario] <= _MEASURED else rest).append(one)
    return first, rest


def divided(wanted: Sequence[Case], measured: Sequence[Swept]) -> list[tuple[Case, ...]]:
    """Seeds in tasks of about TASK_S, in an order in which neighbours are strangers."""
    if not wanted:
        return []
    cost_s = {
        name: max(1e-4, sum(one.cpu_s for one in of) / len(of))
        for name in dict.fromkeys(one.scenario for one in measured)
        if (of := [one for one in measured if one.scenario == name])
    }
    mean_s = sum(cost_s.values()) / len(cost_s) if cost_s else TASK_S
    shuffled = list(wanted)
    random.Random(len(shuffled)).shuffle(shuffled)
    total_s = sum(cost_s.get(one.scenario, mean_s) for one in shuffled)
    tasks = min(len(shuffled), max(1, math.ceil(round(total_s / TASK_S, 6))))
    size = math.ceil(len(shuffled) / tasks)
    return [tuple(shuffled[at : at + size]) for at in range(0, len(shuffled), size)]


def swept(part: Sequence[Case]) -> list[Swept]:
    """One task: its seeds, one after another."""
    return [one_seed(case) for case in part]


def one_seed(case: Case) -> Swept:
    """What one seed gives, wherever it runs."""
    began = time.process_time()
    found = _quorums(case) if case.scenario == QUORUMS else _simulated(case)
    cpu_s = time.process_time() - began
    return msgspec.structs.replace(found, cpu_s=cpu_s, process=os.getpid(), plant=case.plant)


def _simulated(case: Case) -> Swept:
    planted: Any = contextlib.nullcontext()
    if case.plant:
        planted = runner.planted_bugs()[case.plant].plant()
    with planted:
        result = runner.work((case.scenario, case.seed))
    return Swept(
        case.scenario,
        case.seed,
        result.digest,
        result.invariant,
        result.violation.strip(),
        result.events,
        0.0,
        0,
    )


def _quorums(case: Case) -> Swept:
    """Every pair of quorums over a run of operations on one layout, which the seed chooses."""
    known = quorum_report.layouts(_FACTORS)
    layout = known[case.seed % len(known)]
    verdict = quorum_report.check(case.seed, 1, case.plant or "sound", [layout], _OPERATIONS)
    digest = hashlib.blake2b(codec.encode(verdict), digest_size=_DIGEST_BYTES).hexdigest()
    violation = "; ".join(verdict.lines) if verdict.missed else ""
    invariant = "quorums meet" if verdict.missed else ""
    return Swept(case.scenario, case.seed, digest, invariant, violation, verdict.comparisons, 0.0, 0)


def frame(session: SparkSession, rows: Sequence[Swept]) -> DataFrame:
    """One row a seed."""
    return session.createDataFrame([msgspec.structs.astuple(one) for one in rows], _SCHEMA)


_SCHEMA: Final = (
    "scenario string, seed bigint, digest string, invariant string, violation string, events bigint, "
    "cpu_s double, process bigint, plant string"
)
