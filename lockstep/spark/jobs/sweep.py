"""`sweep`: many seeds of the simulator, or of the proofs of quorums, as tasks of Spark.

Invariant: what a seed gives is a row, also a failure, so no seed hides another one. Tasks run for some
seconds each: how many seeds that is, is measured with the first ones. Some seeds run twice, in tasks of
their own; one that gives two digests depends on the process that runs it, which is a failure too.
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
from lockstep.spark.jobs.running import Progress, spread, watched
from lockstep.values import codec
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a task is to run: far above its fixed cost of some 40 ms, and little to lose with its process.
TASK_S: Final = 5.0
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


class Case(msgspec.Struct, frozen=True):
    """One seed. `scenario` is one of the simulator, or QUORUMS; `plant` a bug that is planted for it
    alone."""

    scenario: str
    seed: int
    plant: str = ""


class Swept(msgspec.Struct, frozen=True):
    """`violation` is empty where everything held; `cpu_s` differs from run to run, nothing else does."""

    scenario: str
    seed: int
    digest: str
    invariant: str
    violation: str
    events: int
    cpu_s: float
    process: int
    plant: str = ""


class SweepPlan(msgspec.Struct, frozen=True):
    """`tasks` are at least so many: how long a seed takes is measured by the sweep itself."""

    seeds: int
    scenarios: tuple[str, ...]
    twice: int


class SweepReport(msgspec.Struct, frozen=True):
    """`not_repeatable` are seeds with two digests. `failures` are rows, ordered by scenario and seed."""

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


def cases(seed: int, seeds: int, scenario: str = "", plants: Sequence[str] = ()) -> list[Case]:
    """Seeds `seed` on, round all scenarios or of one; `plants` are NAME@SEED. ConfigurationError."""
    if seeds < 1:
        raise ConfigurationError(f"{seeds} seeds are none")
    if scenario and scenario != QUORUMS:
        runner.checked(scenario)
    names = [scenario] if scenario else [one.name for one in SCENARIOS.values() if one.by_default]
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
) -> SweepReport:
    """Run all seeds; with `to` every row is written there as Parquet."""
    began = time.monotonic()
    first, rest = _measured(wanted)
    with watched(session, progress, f"measuring {len(first)} seeds"):
        rows = spread(session, [(one,) for one in first], swept)
    again = list(wanted[::twice_every]) if twice_every else []
    chunks = [*divided(rest, rows), *divided(again, rows)]
    with watched(session, progress, f"running {len(rest):,} seeds in {len(chunks):,} tasks"):
        found = spread(session, chunks, swept)
    rows, repeated = rows + found[: len(rest)], found[len(rest) :]
    digests = {(one.scenario, one.seed): one.digest for one in rows}
    unlike = sorted(
        (one.scenario, one.seed) for one in repeated if digests[one.scenario, one.seed] != one.digest
    )
    rows.sort(key=lambda one: (one.scenario, one.seed))
    if to:
        place = Path(to).expanduser().absolute()
        with watched(session, progress, f"writing {place}"):
            frame(session, rows).coalesce(1).write.mode("error").parquet(uri(place))
    failures = tuple(one for one in rows if one.violation)
    cpu_s = sum(one.cpu_s for one in found)
    return SweepReport(
        len(rows), len(failures), len(repeated), tuple(unlike), len(first) + len(chunks),
        cpu_s / max(len(chunks), 1), sum(one.events for one in rows),
        cpu_s + sum(one.cpu_s for one in rows[: len(first)]), time.monotonic() - began, failures, to,
    )  # fmt: skip


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
