"""What runs every night and is to reach every branch: seeds of all scenarios, and the other tools.

Invariant: a part is named by what it runs and draws from its own seed, so the set is the same on every
machine and in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from lockstep.sim.scenarios import SCENARIOS

#: Seeds of each scenario: with the tools, 315 s of a core.
NIGHTLY_SEEDS: Final = 4
_STATEMENTS: Final = 1500
_STATEMENTS_UNDER_FAULTS: Final = 600
_FOLLOWERS: Final = 40
_COMMITS: Final = 60

#: Runs, and tells what failed; "" when nothing did.
Part = Callable[[], str]


def parts(first: int = 1, seeds: int = NIGHTLY_SEEDS) -> dict[str, Part]:
    """By name: scenarios in turn, `seeds` of each from `first` on, then the tools."""
    names = [name for name, scenario in SCENARIOS.items() if scenario.by_default]
    seeded: dict[str, Part] = {
        f"{name} {seed}": partial(_seed, name, seed) for seed in range(first, first + seeds) for name in names
    }
    tools: dict[str, Part] = {
        "coordinator": _coordinator,
        "placements": partial(_placements, first),
        "dissemination": partial(_dissemination, first),
        "statements": partial(_statements, first, _STATEMENTS, 1),
        "statements under faults": partial(_statements, first, _STATEMENTS_UNDER_FAULTS, 3),
    }
    return {**tools, **seeded}


def _seed(name: str, seed: int) -> str:
    from lockstep.sim.scenario import Run

    return Run(SCENARIOS[name], seed).result().violation


def _coordinator() -> str:
    from lockstep.sim.coordinator.script import cases, play

    return "; ".join(verdict.problem for case in cases().values() if (verdict := play(case)).problem)


def _placements(seed: int) -> str:
    from lockstep.sim.drills import placement_report

    chosen = placement_report.settings(12, 60, (2, 3), (0, 2), (4,), (3,))
    verdict = placement_report.check(seed, 1, chosen)
    return "" if verdict.holds else placement_report.text_of(verdict, 0.0)


def _dissemination(seed: int) -> str:
    from lockstep.sim.drills.dissemination import Dissemination, Setting

    outcome = Dissemination(Setting(nodes=_FOLLOWERS, commits=_COMMITS, loss=0.05, seed=seed)).run()
    return "" if outcome.holds else outcome.text()


def _statements(seed: int, statements: int, nodes: int) -> str:
    from lockstep.sim.fuzz import report

    told: list[str] = []
    report.run(report.Order(seed=seed, statements=statements, nodes=nodes), told.append)
    return "; ".join(told)
