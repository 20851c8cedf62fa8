"""What a batch of seeds showed: failures first, then whether the faults and facts it needs really happened.

Invariant: a batch that is large enough and lacks an effect or a fact it must have is a failure of its own:
silence of a simulator means nothing unless it was tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lockstep.sim.faults.kinds import LEAVER_FAULTS, STAGE_FAULTS, TIMED
from lockstep.sim.faults.nemesis import KIND_ON
from lockstep.sim.scenario import SeedResult
from lockstep.sim.scenarios import SCENARIOS

#: A fact or effect is missed only by a batch that had this many seeds in which it could happen.
_SEEDS_TO_JUDGE = 60


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


def _counters(title: str, counters: dict[str, int]) -> list[str]:
    shown = [f"{name} {counters[name]:,}" for name in sorted(counters)]
    return [f"{title}: {', '.join(shown)}"] if shown else []


def story_text(story: Sequence[tuple[int, str, str]]) -> str:
    return "\n".join(f"{at_ns / 1e9:11.6f}  {who:<10} {text}" for at_ns, who, text in story)
