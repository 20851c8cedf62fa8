"""Planted bugs are found: each is looked for from the seed that last found it on.

`planted_seeds.json` is a table of the first seed that found each bug. A change of the product moves the
runs of all seeds, so a bug may need a few more; when a whole row of seeds misses it, a checker or a fault
has gone blind. Bugs that need many seeds are left to `lockstep sim planted`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.sim import runner
from lockstep.sim.planted import REGISTRY
from lockstep.sim.scenarios import SCENARIOS

TABLE = json.loads((Path(__file__).parent / "planted_seeds.json").read_text())
#: Bugs that the test suite looks for, and how far.
QUICK_SEEDS_MAX = 16
SEEDS_TRIED = 30


def test_every_planted_bug_has_a_row_and_a_scenario() -> None:
    assert sorted(TABLE) == sorted(REGISTRY)
    assert all(planted.scenario in SCENARIOS for planted in REGISTRY.values())


@pytest.mark.parametrize("name", [name for name in TABLE if (TABLE[name] or 99) <= QUICK_SEEDS_MAX])
def test_a_planted_bug_is_found(name: str) -> None:
    found = runner.hunt([name], SEEDS_TRIED, first=TABLE[name])[name]
    assert found is not None, f"{REGISTRY[name].harm}: not found in {SEEDS_TRIED} seeds"


def test_a_plant_is_gone_afterwards() -> None:
    for planted in REGISTRY.values():
        with planted.plant():
            pass
    from lockstep.topology import barriers, step

    assert step.evaluate is barriers.evaluate
