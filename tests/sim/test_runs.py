"""Whole simulated clusters: every scenario passes a few seeds, and a seed is one run wherever it runs."""

from __future__ import annotations

import pytest

from lockstep.sim import runner
from lockstep.sim.runner import Batch, failure_text, run_of, summary
from lockstep.sim.scenario import Run
from lockstep.sim.scenarios import SCENARIOS
from lockstep.sim.seed_result import SeedResult


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_passes(name: str, seed: int) -> None:
    result = run_of(name, seed).result()
    assert not result.violation, failure_text(result)
    assert result.events > 1000
    assert result.judged > 0


def test_one_seed_gives_one_digest_and_the_story_does_not_change_it() -> None:
    first = Run(SCENARIOS["moves"], 4).result()
    told = Run(SCENARIOS["moves"], 4, trace=True)
    second = told.result()
    assert first.digest == second.digest
    assert told.cluster.story
    assert Run(SCENARIOS["moves"], 5).result().digest != first.digest


def test_processes_with_other_hash_seeds_give_the_same_digests() -> None:
    todo = [("swarm", seed) for seed in range(40, 61)]
    batch = runner.run_batch(todo[:2], 2)
    assert batch.checked_twice == 1
    assert not batch.mismatches
    assert len(batch.results) == 2


def result(seed: int, **changes: object) -> SeedResult:
    return SeedResult(scenario="power", seed=seed, digest=f"d{seed}", faults=("power",), **changes)  # type: ignore[arg-type]


def test_a_batch_without_effects_is_vacuous() -> None:
    batch = Batch()
    for seed in range(60):
        batch.add(result(seed))
    missing = batch.vacuous()
    assert "power: fault power had no effect in 60 seeds" in missing
    assert "power: in 60 seeds there was never: leader changed" in missing
    assert batch.exit_code() == 1
    batch.add(result(99, effects={"process.power": 1, "disk.torn": 1}, facts={"leader changed": 1}))
    assert "power: fault power had no effect in 61 seeds" not in batch.vacuous()


def test_a_small_batch_is_not_judged_for_what_it_lacks() -> None:
    batch = Batch()
    batch.add(result(1))
    assert batch.vacuous() == []
    assert batch.exit_code() == 0


def test_failures_and_mismatches_fail_a_batch_and_say_how_to_repeat_them() -> None:
    failed = result(7, violation="REP-1: lost", invariant="REP-1")
    batch = Batch()
    batch.add(failed)
    assert batch.exit_code() == 1
    assert "lockstep sim replay 7 --scenario power --trace" in failure_text(failed)
    other = Batch()
    other.compared(result(1), result(2))
    assert other.exit_code() == 1
    assert "NOT REPEATABLE power seed 1: d1 and d2" in summary(other, 1.0)
