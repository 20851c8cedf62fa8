"""Seeds of the ring's runs: what they found, what they have met, and whether planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Final

import msgspec

from lockstep.ring.ring import Mode
from lockstep.sim.plant import Planted
from lockstep.sim.ring.harness import RingRun, RunResult, Setting
from lockstep.values.errors import ConfigurationError

#: Where all must accept, operators who abort at acceptors break what the mode promises.
RACES: Final = ("COMMIT-1", "RING-1", "ABORT-1")
_BOTH: Final = (
    *(
        "crashed before the write",
        "crashed between write and message",
        "partition",
        "initiator cut off",
        "lost",
    ),
    *("brought up by the whole ring", "several changes at once", "rejected: stale", "operator aborted"),
    *("asked: join finish", "asked: join cancel", "asked: leave finish", "asked: leave cancel"),
    *("asked: move finish", "asked: move cancel", "asked: remove finish", "asked: remove cancel"),
)
#: What a hundred seeds of a mode must have met, or they show nothing.
SOMETIMES: Final[dict[Mode, tuple[str, ...]]] = {
    Mode.UNANIMOUS: (
        *_BOTH,
        *(
            "restarted with a promise",
            "restarted as initiator: proposing",
            "restarted as initiator: committed",
        ),
        *("rejected: busy", "rejected: aborted"),
    ),
    Mode.QUORUM: (
        *_BOTH,
        *("restarted with a vote", "rejected: ballot", "a later ballot", "finished what was found"),
        *("lost for good", "two that are lost removed at once", "asked: replace finish"),
        *("asked: replace cancel", "an outcome was not known", "a ring ended without a change"),
    ),
}


class Verdict(msgspec.Struct, frozen=True):
    setting: Setting
    seeds: int
    failures: tuple[RunResult, ...]
    facts: dict[str, int]
    commits: int
    steps: int

    @property
    def missing(self) -> tuple[str, ...]:
        """What no seed has met."""
        return tuple(name for name in SOMETIMES[self.setting.mode] if not self.facts.get(name))

    @property
    def holds(self) -> bool:
        """A mode that promises nothing under such operators must be seen to break, and in no other way."""
        if self.setting.safe:
            return not self.failures
        return bool(self.failures) and all(one.invariant in RACES for one in self.failures)

    def text(self) -> str:
        operators = "at any node" if self.setting.aborting else "where the initiator has not committed"
        lines = [
            f"{self.seeds} seeds from {self.setting.seed} on, all that must accept: {self.setting.mode}; "
            f"operators abort {operators}",
            f"{self.commits:,} changes agreed on in {self.steps:,} steps; {len(self.failures)} seeds broke",
        ]
        for one in self.failures[:5]:
            lines.append(f"  seed {one.setting.seed}: {one.violation.strip().splitlines()[-1]}")
        if not self.setting.safe:
            lines.append("the mode does not promise one chain under such operators: it must break")
        lines.append("facts: " + ", ".join(f"{name} {count:,}" for name, count in sorted(self.facts.items())))
        if self.seeds >= 100 and self.missing:
            lines.append(f"never met: {', '.join(self.missing)}")
        lines.append("holds" if self.holds else "DOES NOT HOLD")
        return "\n".join(lines)


def planted_bugs() -> Mapping[str, Planted]:
    """All of them by name; ConfigurationError where the package is installed without them."""
    try:
        from lockstep.sim.mutants.rings import PLANTS
    except ImportError as error:
        raise ConfigurationError(
            "planted bugs are not installed with the package", hint="run it in a checkout of the sources"
        ) from error
    return PLANTS


def planted(name: str) -> Planted:
    """A bug by its name; its scenario is the mode in which it is looked for."""
    known = planted_bugs()
    if name not in known:
        raise ConfigurationError(f"there is no planted bug {name!r}", hint=f"one of: {', '.join(known)}")
    return known[name]


def check(
    setting: Setting, seeds: int, plant: str = "", done: Callable[[Verdict], bool] | None = None
) -> Verdict:
    """Run seeds one after another, until `done` is satisfied if it is given."""
    facts: dict[str, int] = {}
    verdict = Verdict(setting, 0, (), facts, 0, 0)
    with planted(plant).plant() if plant else nullcontext():
        for number in range(seeds):
            result = RingRun(msgspec.structs.replace(setting, seed=setting.seed + number)).result()
            for name, count in result.facts.items():
                facts[name] = facts.get(name, 0) + count
            failures = (*verdict.failures, result) if result.violation else verdict.failures
            verdict = Verdict(
                setting,
                number + 1,
                failures,
                facts,
                verdict.commits + result.commits,
                verdict.steps + result.steps,
            )
            if done is not None and done(verdict):
                break
    return verdict


def found(plant: str, seeds: int, seed: int = 1) -> RunResult | None:
    """The first seed that a planted bug breaks."""
    mode = Mode(planted(plant).scenario)
    setting = Setting(mode, seed, aborting=mode is Mode.QUORUM)
    verdict = check(setting, seeds, plant, lambda verdict: bool(verdict.failures))
    return verdict.failures[0] if verdict.failures else None
