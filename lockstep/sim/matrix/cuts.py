"""Power cuts between every two durable steps: after each thing that became durable, before what follows it.

A place is a name that the code reaches: a file of some kind was synced, renamed or removed, or a step of a
longer piece of work is done. Invariant: the places are those that a run without faults reaches, so a new step
is struck by itself; the run up to the cut is the undisturbed one, so a cut that never struck is a failure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial

import msgspec

from lockstep.sim.runner import spread, story_text
from lockstep.sim.runtime.probes import CrashRule
from lockstep.sim.runtime.process import POWER
from lockstep.sim.runtime.streams import stream
from lockstep.sim.scenario import Run, Scenario
from lockstep.sim.scenarios import SCENARIOS
from lockstep.values.errors import ConfigurationError

#: Whose work together reaches all that is durable; a place is struck where it is reached first.
SCENARIOS_CUT = (
    *("metadata", "lwt", "repairs", "batches", "views", "indexes", "counts", "kinds", "columns", "dcs"),
)
#: Places by scenario, with how often the node reaches each that reaches it most.
Reached = Mapping[str, Mapping[str, int]]
#: At which time a node reaches the place: early ones are of its first start.
HITS = (1, 2, 5)
_CHAOS_S = 8.0
_BACK_S = 0.3


class Cut(msgspec.Struct, frozen=True, order=True):
    """The power of the node goes that is the first to reach `label` for the `hit`-th time."""

    scenario: str
    label: str
    hit: int

    @property
    def name(self) -> str:
        return f"{self.scenario}:{self.label}:{self.hit}"


class CutResult(msgspec.Struct, frozen=True, kw_only=True):
    """`violation` is empty when the cut was survived."""

    cut: Cut
    seed: int
    invariant: str = ""
    violation: str = ""


def calm(name: str) -> Scenario:
    """The scenario without faults, and shorter."""
    return msgspec.structs.replace(SCENARIOS[name], faults=(), chaos_s=_CHAOS_S)


class CutRun(Run):
    """`result()` as of any run; `rule.fired` says whether the power was cut."""

    def __init__(self, cut: Cut, seed: int, *, trace: bool = False) -> None:
        super().__init__(calm(cut.scenario), seed, trace=trace)
        self.rule = CrashRule(label=cut.label, kind=POWER, hit=cut.hit, restart_after_s=_BACK_S)
        self.world.probes.add(self.rule)


class _CalmRun(Run):
    """Counts what is reached before clients end: cuts strike until then."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed)
        self.counts: dict[tuple[str, str], int] = {}

    def _heal(self) -> None:
        self.counts = dict(self.world.probes.process_counts)
        super()._heal()


def places(name: str, seed: int) -> dict[str, int]:
    """Labels that nodes reach without faults, and how often the one does that reaches it most."""
    run = _CalmRun(calm(name), seed)
    result = run.result()
    if result.violation:
        raise ConfigurationError(f"{name} seed {seed} fails without any fault: {result.violation}")
    found: dict[str, int] = {}
    for (_, label), count in run.counts.items():
        found[label] = max(found.get(label, 0), count)
    return dict(sorted(found.items()))


def every_cut(reached: Reached) -> tuple[Cut, ...]:
    """Each place in the first of the scenarios that reaches it often enough."""
    cuts: dict[tuple[str, int], Cut] = {}
    for cut in _all_cuts(reached):
        cuts.setdefault((cut.label, cut.hit), cut)
    return tuple(sorted(cuts.values()))


def drawn_cuts(reached: Reached, seed: int, count: int) -> tuple[Cut, ...]:
    """So many, each place in any of the scenarios that reach it: other seeds strike others."""
    cuts = list(_all_cuts(reached))
    return tuple(sorted(stream(seed, "cuts").sample(cuts, min(count, len(cuts)))))


def _all_cuts(reached: Reached) -> Iterator[Cut]:
    for name, labels in reached.items():
        for label, count in labels.items():
            yield from (Cut(name, label, hit) for hit in HITS if hit <= count)


def _named_places(name: str, seed: int) -> tuple[str, dict[str, int]]:
    return name, places(name, seed)


def run_cut(cut: Cut, seed: int) -> CutResult:
    run = CutRun(cut, seed)
    found = run.result()
    invariant, violation = found.invariant, found.violation
    if not violation and not run.rule.fired:
        invariant, violation = "VACUOUS", "the place was never reached"
    return CutResult(cut=cut, seed=seed, invariant=invariant, violation=violation)


def run_cuts(
    only: str, seed: int, sample: int, told: Callable[[str], None], survived: Container[str] = frozenset()
) -> Iterator[CutResult]:
    """Those whose name matches `only`, all without it, or a `sample` of so many drawn by the seed; 0: no
    draw. `told` each failure at once. Those that `survived` an earlier run are not struck again."""
    scenario = only.partition(":")[0] or "*"
    names = [name for name in SCENARIOS_CUT if fnmatch.fnmatchcase(name, scenario)]
    found = dict(spread(partial(_named_places, seed=seed), names)) if names else {}
    reached = {name: found[name] for name in names}
    wanted = drawn_cuts(reached, seed, sample) if sample else every_cut(reached)
    cuts = [cut for cut in wanted if not only or fnmatch.fnmatchcase(cut.name, only)]
    if not cuts:
        raise ConfigurationError(f"{only!r} names no cut", hint="SCENARIO:PLACE:HIT, with * for any part")
    for result in spread(partial(run_cut, seed=seed), [cut for cut in cuts if cut.name not in survived]):
        if result.violation:
            told(failure_text(result))
        yield result


def failure_text(result: CutResult) -> str:
    return (
        f"FAILED {result.cut.name} ({result.invariant})\n  {result.violation}\n"
        f"  again: lockstep sim cuts --only '{result.cut.name}' --seed {result.seed} --trace"
    )


def told_story(only: str, seed: int, last: int) -> tuple[CutResult, str]:
    """One cut again, with the last lines of what happened."""
    scenario, _, rest = only.partition(":")
    label, _, hit = rest.rpartition(":")
    if scenario not in SCENARIOS or not hit.isdecimal():
        raise ConfigurationError(f"{only!r} names no cut", hint="SCENARIO:PLACE:HIT, whole")
    cut = Cut(scenario, label, int(hit))
    run = CutRun(cut, seed, trace=True)
    found = run.result()
    result = CutResult(cut=cut, seed=seed, invariant=found.invariant, violation=found.violation)
    return result, story_text((run.cluster.story or [])[-last:])
