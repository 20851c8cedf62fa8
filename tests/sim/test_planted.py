"""Planted bugs are found: each is looked for from the seed that last found it on.

`planted_seeds.json` is a table of the first seed that found each bug. A change of the product moves the
runs of all seeds, so a bug may need a few more; when a whole row of seeds misses it, a checker or a fault
has gone blind. Bugs that need many seeds are left to `lockstep sim planted`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.outcomes import Failed

from lockstep.sim import runner
from lockstep.sim.planted import DIRECTED, REGISTRY
from lockstep.sim.scenarios import SCENARIOS
from tests.node import test_failed_work
from tests.replication import test_fences, test_streaming

#: The test that brings each of the directed bugs about, and must fail with it.
BROUGHT_ABOUT: dict[str, Callable[[], None]] = {
    "guards_ignored": (
        test_failed_work.test_an_effect_that_is_slow_holds_the_barrier_behind_its_session_and_is_named
    ),
    "position_without_session": test_streaming.test_a_stream_under_another_session_begins_anew,
    "sources_not_drained": test_streaming.test_the_source_drains_older_writes_before_its_snapshot,
    "fence_checked_once": (
        test_fences.test_a_write_is_refused_after_it_was_executed_when_the_fence_passed_it_meanwhile
    ),
}
#: How a test ends that does not find what it looks for, or waits for it in vain.
FAILS = (AssertionError, ValueError, TimeoutError, BaseExceptionGroup, Failed)
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


@pytest.mark.parametrize("name", DIRECTED)
def test_a_directed_bug_is_found_by_its_test(name: str) -> None:
    BROUGHT_ABOUT[name]()
    with DIRECTED[name].plant(), pytest.raises(FAILS):
        BROUGHT_ABOUT[name]()


def test_a_plant_is_gone_afterwards() -> None:
    for planted in (*REGISTRY.values(), *DIRECTED.values()):
        with planted.plant():
            pass
    from lockstep.topology import barriers, step

    assert step.evaluate is barriers.evaluate
