"""Runs batches of seeds in worker processes, and single seeds again with their story.

The one part of the simulator that belongs to the machine: processes, their environment, wall time.
Invariant: workers differ in their hash seed, and a sample of the seeds runs in two of them: what depends
on the process shows as two digests.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lockstep.sim.plant import Planted
from lockstep.sim.report import Batch, failure_text, noticed_by, story_text, summary
from lockstep.sim.scenario import Run, SeedResult
from lockstep.sim.scenarios import SCENARIOS
from lockstep.values.errors import ConfigurationError

#: Every so many seeds are run a second time, in another process.
_TWICE_EVERY = 20
_HASH_SEEDS = ("0", "4242", "1", "77")

Job = tuple[str, int]


def run(seed: int, seeds: int, scenario: str = "", jobs: int = 0) -> int:
    """Run seeds `seed` .. `seed + seeds - 1` and print a report; the exit code.

    Without a scenario the seeds go round all of them. `jobs` 0: one process per core, at most four.
    """
    names = [checked(scenario)] if scenario else [s.name for s in SCENARIOS.values() if s.by_default]
    wanted = [(names[number % len(names)], seed + number) for number in range(seeds)]
    began = time.monotonic()
    batch = run_batch(wanted, jobs or min(os.cpu_count() or 1, len(_HASH_SEEDS)))
    print(summary(batch, time.monotonic() - began))
    return batch.exit_code()


def checked(scenario: str) -> str:
    if scenario not in SCENARIOS:
        raise ConfigurationError(f"there is no scenario {scenario!r}", hint=f"one of: {', '.join(SCENARIOS)}")
    return scenario


def run_batch(wanted: Sequence[Job], jobs: int) -> Batch:
    """Failures are printed as they come."""
    batch = Batch()
    twice = wanted[::_TWICE_EVERY] if jobs > 1 else ()
    first: dict[Job, SeedResult] = {}
    for job, result in _results(wanted, twice, jobs):
        if job in first:
            batch.compared(first[job], result)
            continue
        first[job] = result
        batch.add(result)
        if result.violation:
            print(failure_text(result), flush=True)
    return batch


def _results(wanted: Sequence[Job], twice: Sequence[Job], jobs: int) -> Iterator[tuple[Job, SeedResult]]:
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
        pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
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
    result = Run(SCENARIOS[scenario], seed).result()
    return msgspec.structs.replace(result, cpu_s=time.process_time() - began)


def replay(what: str | int, scenario: str = "swarm", *, trace: bool = True, last: int = 0) -> int:
    """Run one seed again and print its story (its `last` lines; 0 is all) and its outcome."""
    text = str(what)
    if not text.isdecimal():
        raise ConfigurationError(f"{text!r} is not a seed", hint="lockstep sim replay SEED --scenario NAME")
    again = Run(SCENARIOS[checked(scenario)], int(text), trace=trace)
    result = again.result()
    if trace and again.cluster.story is not None:
        print(story_text(again.cluster.story[-last:]))
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
    """For each planted bug, the first failing seed of `first` .. `first + seeds - 1` of its scenario."""
    registry = planted_bugs()
    found: dict[str, SeedResult | None] = {}
    for name in names:
        found[name] = None
        for seed in range(first, first + seeds):
            with registry[name].plant():
                result = work((registry[name].scenario, seed))
            if result.violation:
                found[name] = result
                break
    return found


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
