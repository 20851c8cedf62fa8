"""Runs batches of seeds in worker processes, and single seeds again with their story; says what a batch
showed: failures first, then whether the faults and facts it needs really happened.

The one part of the simulator that belongs to the machine: processes, their environment, wall time. Invariant:
workers differ in their hash seed, and a sample of the seeds runs in two of them: what depends on the process
shows as two digests. A batch that is large enough and lacks an effect or a fact it must have is a failure of
its own: silence of a simulator means nothing unless it was tried.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

import msgspec

from lockstep.sim.disasters.run import NAME as DISASTERS
from lockstep.sim.disasters.run import DisasterRun
from lockstep.sim.faults.kinds import LEAVER_FAULTS, STAGE_FAULTS, TIMED
from lockstep.sim.faults.nemesis import KIND_ON
from lockstep.sim.plant import Planted
from lockstep.sim.scenario import Run
from lockstep.sim.scenarios import SCENARIOS
from lockstep.sim.seed_result import SeedResult
from lockstep.values.errors import ConfigurationError

#: A fact or effect is missed only by a batch that had this many seeds in which it could happen.
_SEEDS_TO_JUDGE = 60


def run_of(name: str, seed: int, *, trace: bool = False) -> Run | DisasterRun:
    """One seed of a scenario."""
    return DisasterRun(seed, trace=trace) if name == DISASTERS else Run(SCENARIOS[name], seed, trace=trace)


class Mismatch(msgspec.Struct, frozen=True):
    """One seed gave two digests in two processes."""

    scenario: str
    seed: int
    digests: tuple[str, str]


class Batch:
    """Collects results; `problems` are what makes the batch fail."""

    def __init__(self) -> None:
        self.results: list[SeedResult] = []
        self.mismatches: list[Mismatch] = []
        self.checked_twice = 0

    def add(self, result: SeedResult) -> None:
        self.results.append(result)

    def compared(self, first: SeedResult, second: SeedResult) -> None:
        self.checked_twice += 1
        if first.digest != second.digest:
            self.mismatches.append(Mismatch(first.scenario, first.seed, (first.digest, second.digest)))

    @property
    def failures(self) -> list[SeedResult]:
        return [result for result in self.results if result.violation]

    def vacuous(self) -> list[str]:
        """Effects and facts that the batch had to show and did not."""
        found: list[str] = []
        for name in sorted({result.scenario for result in self.results}):
            seeds = [result for result in self.results if result.scenario == name]
            if len(seeds) >= _SEEDS_TO_JUDGE:
                found += _missing_facts(name, seeds)
                found += _missing_effects(name, seeds)
        return found

    def exit_code(self) -> int:
        return 1 if self.failures or self.mismatches or self.vacuous() else 0


def _missing_facts(scenario: str, seeds: Sequence[SeedResult]) -> list[str]:
    facts = _summed(result.facts for result in seeds)
    probes = _summed(result.probes for result in seeds)
    effects = _summed(result.effects for result in seeds)
    return [
        f"{scenario}: in {len(seeds)} seeds there was never: {fact}"
        for fact in SCENARIOS[scenario].sometimes
        if not (facts.get(fact) or probes.get(fact) or effects.get(fact))
    ]


def _missing_effects(scenario: str, seeds: Sequence[SeedResult]) -> list[str]:
    found = []
    for kind in SCENARIOS[scenario].faults:
        drawn = [result for result in seeds if kind in result.faults]
        if len(drawn) < _SEEDS_TO_JUDGE * KIND_ON / 2:
            continue
        effects = _summed(result.effects for result in drawn)
        wanted = TIMED[kind].effects if kind in TIMED else ({**STAGE_FAULTS, **LEAVER_FAULTS}[kind],)
        if not any(effects.get(effect) for effect in wanted):
            found.append(f"{scenario}: fault {kind} had no effect in {len(drawn)} seeds")
    return found


def _summed(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counter in counters:
        for name, count in counter.items():
            total[name] = total.get(name, 0) + count
    return total


def reproduce(result: SeedResult) -> str:
    return f"lockstep sim replay {result.seed} --scenario {result.scenario} --trace"


def noticed_by(result: SeedResult) -> str:
    """The invariant that failed; where no checker judged, what the product itself fell over."""
    traced = result.violation.partition("Traceback (most recent call last):\n")[2]
    # Lines of frames are indented; what was raised follows them, and may have more lines.
    raised = [line for line in traced.splitlines() if not line.startswith(" ")]
    return f"{result.invariant}, {raised[0]}" if raised else result.invariant


def failure_text(result: SeedResult) -> str:
    return (
        f"FAILED {result.scenario} seed {result.seed} ({result.digest}) "
        f"after {result.virtual_s:.3f} virtual seconds\n"
        f"  {result.violation.strip()}\n"
        f"  again: {reproduce(result)}"
    )


def summary(batch: Batch, wall_s: float) -> str:
    """The whole report as text; `wall_s` is how long the batch took."""
    results = batch.results
    events = sum(result.events for result in results)
    virtual_s = sum(result.virtual_s for result in results)
    cpu_s = max(sum(result.cpu_s for result in results), 1e-9)
    lines = [
        f"{len(results)} seeds, {len(batch.failures)} failed, "
        f"{batch.checked_twice} run twice, {len(batch.mismatches)} not repeatable",
        f"{events:,} events, {events / cpu_s:,.0f} a CPU second; {virtual_s:,.0f} virtual seconds, "
        f"{virtual_s / cpu_s:.0f} a CPU second; {cpu_s:.1f} CPU s, {wall_s:.1f} s",
        f"{sum(r.requests for r in results):,} requests, {sum(r.acknowledged for r in results):,} succeeded; "
        f"{sum(r.judged for r in results):,} registers judged, "
        f"{sum(r.inspected for r in results):,} inspected on disks, "
        f"{sum(r.epochs for r in results):,} epochs",
    ]
    lines += _counters("effects of faults", _summed(r.effects for r in results))
    lines += _counters("facts", _summed(r.facts for r in results))
    lines += _counters("places reached", _summed(r.probes for r in results))
    for mismatch in batch.mismatches:
        lines.append(
            f"NOT REPEATABLE {mismatch.scenario} seed {mismatch.seed}: {' and '.join(mismatch.digests)}"
        )
    lines += [f"VACUOUS {missing}" for missing in batch.vacuous()]
    return "\n".join(lines)


def figures(batch: Batch, wanted: int, wall_s: float) -> dict[str, Any]:
    """The report as `sim-run/1`; `wanted` seeds were asked for."""
    results = batch.results
    return {
        "wanted": wanted,
        "seeds": len(results),
        "failed": len(batch.failures),
        "run_twice": batch.checked_twice,
        "events": sum(result.events for result in results),
        "virtual_s": sum(result.virtual_s for result in results),
        "cpu_s": sum(result.cpu_s for result in results),
        "wall_s": wall_s,
        "requests": sum(result.requests for result in results),
        "acknowledged": sum(result.acknowledged for result in results),
        "judged": sum(result.judged for result in results),
        "inspected": sum(result.inspected for result in results),
        "epochs": sum(result.epochs for result in results),
        "effects": _summed(result.effects for result in results),
        "facts": _summed(result.facts for result in results),
        "places": _summed(result.probes for result in results),
        "failures": [
            {"scenario": one.scenario, "seed": one.seed, "invariant": one.invariant, "again": reproduce(one)}
            for one in batch.failures
        ],
        "not_repeatable": [{"scenario": one.scenario, "seed": one.seed} for one in batch.mismatches],
        "vacuous": batch.vacuous(),
    }


def _counters(title: str, counters: dict[str, int]) -> list[str]:
    shown = [f"{name} {counters[name]:,}" for name in sorted(counters)]
    return [f"{title}: {', '.join(shown)}"] if shown else []


def story_text(story: Sequence[tuple[int, str, str]]) -> str:
    return "\n".join(f"{at_ns / 1e9:11.6f}  {who:<10} {text}" for at_ns, who, text in story)


#: Every so many seeds are run a second time, in another process.
_TWICE_EVERY = 20
_HASH_SEEDS = ("0", "4242", "1", "77")

Job = tuple[str, int]


#: As a shell counts a command that a signal ended.
INTERRUPTED_EXIT_CODE = 130


def run(
    seed: int,
    seeds: int,
    scenario: str = "",
    jobs: int = 0,
    shown: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Run seeds `seed` .. `seed + seeds - 1` and print a report, or have its figures `shown`; the exit code.

    Without a scenario the seeds go round all of them. `jobs` 0: one process per core, at most four. SIGINT
    and SIGTERM end it with the report of what has run.
    """
    names = [checked(scenario)] if scenario else [s.name for s in SCENARIOS.values() if s.by_default]
    wanted = [(names[number % len(names)], seed + number) for number in range(seeds)]
    began = time.monotonic()
    batch = Batch()
    interrupted = False
    try:
        with _terminated_as_interrupted():
            run_batch(
                wanted,
                jobs or min(os.cpu_count() or 1, len(_HASH_SEEDS)),
                batch,
                _tell if shown is None else _mutter,
            )
    except KeyboardInterrupt:
        interrupted = True
        print(f"interrupted after {len(batch.results)} of {len(wanted)} seeds", file=sys.stderr)
    if shown is not None:
        shown(figures(batch, len(wanted), time.monotonic() - began))
    else:
        print(summary(batch, time.monotonic() - began))
    return INTERRUPTED_EXIT_CODE if interrupted else batch.exit_code()


def _tell(text: str) -> None:
    print(text, flush=True)


def _mutter(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends what is inside as SIGINT does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def checked(scenario: str) -> str:
    if scenario not in SCENARIOS:
        raise ConfigurationError(f"there is no scenario {scenario!r}", hint=f"one of: {', '.join(SCENARIOS)}")
    return scenario


def run_batch(
    wanted: Sequence[Job], jobs: int, batch: Batch | None = None, told: Callable[[str], None] | None = None
) -> Batch:
    """Failures are `told` as they come; an interrupted `batch` keeps what has run."""
    batch, told = batch or Batch(), told or _tell
    twice = wanted[::_TWICE_EVERY] if jobs > 1 else ()
    first: dict[Job, SeedResult] = {}
    results = _results(wanted, twice, jobs)
    try:
        for job, result in results:
            if job in first:
                batch.compared(first[job], result)
                continue
            first[job] = result
            batch.add(result)
            if result.violation:
                told(failure_text(result))
    except KeyboardInterrupt:
        # A seed takes seconds to minutes: nobody waits for those that run.
        for worker in multiprocessing.active_children():
            worker.kill()
        raise
    finally:
        results.close()
    return batch


def _results(
    wanted: Sequence[Job], twice: Sequence[Job], jobs: int
) -> Generator[tuple[Job, SeedResult], None, None]:
    """Results as they come; jobs of `twice` come twice, from two processes."""
    if jobs == 1 or len(wanted) == 1:
        for job in wanted:
            yield job, work(job)
        return
    pools = [_pool(hash_seed) for hash_seed in _HASH_SEEDS[:jobs]]
    # A job that runs twice is in two processes' queues; the others go to whoever is free.
    queues: list[list[Job]] = [[] for _ in pools]
    for number, job in enumerate(twice):
        queues[number % jobs].append(job)
        queues[(number + 1) % jobs].append(job)
    again = dict.fromkeys(twice)
    rest = [job for job in wanted if job not in again]
    rest.reverse()
    running: dict[concurrent.futures.Future[SeedResult], tuple[Job, int]] = {}
    try:
        for at in range(jobs):
            _next(at, pools, queues, rest, running)
        while running:
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                job, at = running.pop(future)
                _next(at, pools, queues, rest, running)
                yield job, future.result()
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _next(
    at: int,
    pools: Sequence[concurrent.futures.ProcessPoolExecutor],
    queues: Sequence[list[Job]],
    rest: list[Job],
    running: dict[concurrent.futures.Future[SeedResult], tuple[Job, int]],
) -> None:
    source = queues[at] or rest
    if source:
        job = source.pop()
        running[pools[at].submit(work, job)] = (job, at)


def _pool(hash_seed: str) -> concurrent.futures.ProcessPoolExecutor:
    """One worker process with this hash seed."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = hash_seed
    try:
        context = multiprocessing.get_context("spawn")
        # Ctrl-C reaches the whole group; the process that reports ends its workers itself.
        pool = concurrent.futures.ProcessPoolExecutor(
            1, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)
        )
        pool.submit(os.getpid).result()
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before
    return pool


def work(job: Job) -> SeedResult:
    """One seed in this process."""
    scenario, seed = job
    began = time.process_time()
    result = run_of(scenario, seed).result()
    return msgspec.structs.replace(result, cpu_s=time.process_time() - began)


def replay(what: str | int, scenario: str = "swarm", *, trace: bool = True, last: int = 0) -> int:
    """Run one seed again and print its story (its `last` lines; 0 is all) and its outcome."""
    text = str(what)
    if not text.isdecimal():
        raise ConfigurationError(f"{text!r} is not a seed", hint="lockstep sim replay SEED --scenario NAME")
    again = run_of(checked(scenario), int(text), trace=trace)
    result = again.result()
    if trace and again.story is not None:
        print(story_text(again.story[-last:]))
    if result.violation:
        print(failure_text(result), file=sys.stderr)
    print(f"{scenario} seed {text}: {result.invariant or 'ok'}, digest {result.digest}")
    return 1 if result.violation else 0


def planted_bugs() -> Mapping[str, Planted]:
    """All of them by name; ConfigurationError where the package is installed without its tests."""
    try:
        from lockstep.sim.mutants import REGISTRY
    except ImportError as error:
        raise ConfigurationError(
            "planted bugs are not installed with the package", hint="run it in a checkout of the sources"
        ) from error
    return REGISTRY


def hunt(names: Sequence[str], seeds: int, first: int = 1) -> dict[str, SeedResult | None]:
    """For each planted bug, the first failing seed of `first` .. `first + seeds - 1` of its scenario.

    ConfigurationError when a plant itself falls over: the product has changed under it."""
    registry = planted_bugs()
    found: dict[str, SeedResult | None] = {}
    for name in names:
        found[name] = None
        for seed in range(first, first + seeds):
            with registry[name].plant():
                result = work((registry[name].scenario, seed))
            if fell_over_itself(result):
                raise ConfigurationError(f"the planted bug {name} is outdated: {noticed_by(result)}")
            if result.violation:
                found[name] = result
                break
    return found


def fell_over_itself(result: SeedResult) -> bool:
    """Whether what was raised was raised in the plant's own lines: that finds nothing."""
    frames = [line for line in result.violation.splitlines() if line.lstrip().startswith('File "')]
    return bool(frames) and "/sim/mutants/" in frames[-1]


def planted(seeds: int, only: str = "") -> int:
    """Look for every planted bug and print the seed that finds it; 1 when one is not found."""
    registry = planted_bugs()
    if only and only not in registry:
        raise ConfigurationError(f"there is no planted bug {only!r}", hint=f"one of: {', '.join(registry)}")
    missed = 0
    for name in [only] if only else registry:
        began = time.process_time()
        result = hunt([name], seeds)[name]
        cpu_s = time.process_time() - began
        missed += result is None
        what = "NOT FOUND" if result is None else f"seed {result.seed}, {noticed_by(result)}"
        print(f"{name:<26} {registry[name].scenario:<6} {what} ({cpu_s:.1f} CPU s)", flush=True)
    print(f"{missed} planted bugs were not found in {seeds} seeds each")
    return 1 if missed else 0


Part = TypeVar("Part")
Result = TypeVar("Result")


def spread(work: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """`work` of each part as it ends, in at most a process a core; both go to other processes by name."""
    jobs = min(os.cpu_count() or 1, len(parts))
    if jobs <= 1:
        for part in parts:
            yield work(part)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
        waiting = [pool.submit(work, part) for part in parts]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` answers, and the seconds of CPU that it took."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began
