"""The simulation of tracked replicas holds, meets what there is to meet, and finds each planted bug."""

from __future__ import annotations

import functools

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.sim.mutants.tracking import PLANTS
from lockstep.sim.tracking.harness import Setting, TrackingRun
from lockstep.sim.tracking.report import Verdict, check, found

#: The first seed that finds each bug, where it is not 1.
SEEDS: dict[str, int] = {"gives-from-before": 2, "some-is-whole": 5, "hangs": 2, "forgets-bulks": 3}


@functools.cache
def seeds_of(count: int) -> Verdict:
    return check(1, count)


def test_ids_are_data_and_answers_stand_under_faults() -> None:
    verdict = seeds_of(5)
    assert verdict.holds, verdict.text()
    assert verdict.facts["answered"] > 300 and verdict.facts["acknowledged"] > 500


@pytest.mark.slow
def test_sixteen_seeds_meet_all_there_is() -> None:
    verdict = seeds_of(16)
    assert verdict.holds and not verdict.missing, verdict.text()


def test_a_seed_says_all_that_happens() -> None:
    one, other = (TrackingRun(Setting(4, chaos_ms=8000)).result() for _ in range(2))
    assert one == other and one.facts


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    result = found(name, 1, SEEDS.get(name, 1))
    assert result is not None, "no check sees it"


def test_the_command_says_what_it_found() -> None:
    shown = CliRunner().invoke(root, ["sim", "tracking", "--plant", "never-brings", "--seeds", "1"])
    assert shown.exit_code == 0 and "found with seed" in shown.output
    traced = CliRunner().invoke(root, ["sim", "tracking", "--seed", "2", "--trace"])
    assert traced.exit_code == 0 and "seed 2 holds" in traced.output
    assert CliRunner().invoke(root, ["sim", "tracking", "--plant", "none-such"]).exit_code != 0
