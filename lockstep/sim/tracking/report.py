"""Many seeds in turn: what broke, what was met, and whether planted bugs are found."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

import msgspec

from lockstep.sim.plant import Planted
from lockstep.sim.tracking.harness import RunResult, Setting, TrackingRun
from lockstep.values.errors import ConfigurationError

#: What fifty seeds must have met, or they show nothing.
SOMETIMES: Final = (
    *("crashed before the write", "crashed between write and message", "crashed for long", "partition"),
    *("a clock jumped", "telling paused", "fetching paused", "writes paused", "lost"),
    *("acknowledged", "answered", "timed out", "a read brought what lacked", "background fetch"),
    *("another replica in the place of a silent one", "write known", "write late", "shipped and lacking"),
    *("ids went to cohorts", "a cohort's data was sent", "a cohort's data was taken"),
    *("a bound was raised", "purged", "a log was retired", "symbols of audits"),
)


class Verdict(msgspec.Struct, frozen=True):
    seed: int
    seeds: int
    failures: tuple[RunResult, ...]
    facts: dict[str, int]
    steps: int

    @property
    def missing(self) -> tuple[str, ...]:
        """What no seed has met."""
        return tuple(name for name in SOMETIMES if not self.facts.get(name))

    @property
    def holds(self) -> bool:
        return not self.failures

    def text(self) -> str:
        lines = [
            f"{self.seeds} seeds from {self.seed} on: {self.steps:,} steps; {len(self.failures)} seeds broke"
        ]
        for one in self.failures[:5]:
            lines.append(f"  seed {one.setting.seed}: {one.violation.strip().splitlines()[-1]}")
        lines.append("facts: " + ", ".join(f"{name} {count:,}" for name, count in sorted(self.facts.items())))
        if self.seeds >= 50 and self.missing:
            lines.append(f"never met: {', '.join(self.missing)}")
        lines.append("holds" if self.holds else "DOES NOT HOLD")
        return "\n".join(lines)


def planted_bugs() -> Mapping[str, Planted]:
    """All of them by name; ConfigurationError where the package is installed without them."""
    try:
        from lockstep.sim.mutants.tracking import PLANTS
    except ImportError as error:
        raise ConfigurationError(
            "planted bugs are not installed with the package", hint="run it in a checkout of the sources"
        ) from error
    return PLANTS


def planted(name: str) -> Planted:
    known = planted_bugs()
    if name not in known:
        raise ConfigurationError(f"there is no planted bug {name!r}", hint=f"one of: {', '.join(known)}")
    return known[name]


def check(seed: int, seeds: int, plant: str = "", *, first_failure: bool = False) -> Verdict:
    """Run seeds one after another, at most until one fails if that is asked for."""
    facts: dict[str, int] = {}
    failures: list[RunResult] = []
    steps = ran = 0
    with planted(plant).plant() if plant else nullcontext():
        for number in range(seed, seed + seeds):
            result = TrackingRun(Setting(number)).result()
            ran, steps = ran + 1, steps + result.steps
            for name, count in result.facts.items():
                facts[name] = facts.get(name, 0) + count
            if result.violation:
                failures.append(result)
                if first_failure:
                    break
    return Verdict(seed, ran, tuple(failures), facts, steps)


def found(plant: str, seeds: int, seed: int = 1) -> RunResult | None:
    """The first seed that a planted bug breaks."""
    failures = check(seed, seeds, plant, first_failure=True).failures
    return failures[0] if failures else None
