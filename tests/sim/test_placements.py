"""Real topology operations against the obvious model: sound ones agree, a flaw in either side is found."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lockstep.cli.sim import sim
from lockstep.sim.drills.placement_drill import Drill, Setting
from lockstep.sim.drills.placement_model import Circle, Place
from lockstep.sim.drills.placement_report import FLAWS, check, settings, text_of

SMALL = settings(10, 10, factors=(2, 3), dcs=(0, 1), tokens=(1,), concurrency=(1, 3))


@pytest.mark.parametrize(("dcs", "seed"), [(0, 1), (1, 2), (3, 1)])
def test_every_step_of_random_operations_is_what_the_model_says(dcs: int, seed: int) -> None:
    for factor, tokens, concurrency in ((2, 4, 1), (3, 16, 3), (5, 1, 5)):
        drill = Drill(Setting(dcs, factor, tokens, concurrency, nodes_max=20, operations=8), seed)
        drill.run()
        assert drill.found == []
        assert drill.did["steps compared"] > 15


def test_every_kind_of_operation_ends_and_some_are_cancelled() -> None:
    verdict = check(1, 2, SMALL)
    assert verdict.holds, text_of(verdict, 0)
    assert verdict.did["CancelOperation done"] > 0
    assert "what the model says" in text_of(verdict, 0)


@pytest.mark.parametrize("name", [name for name in FLAWS if name != "sound"])
def test_a_planted_flaw_in_either_side_is_found(name: str) -> None:
    verdict = check(1, 2, SMALL, name)
    assert verdict.found, FLAWS[name].harm
    assert not verdict.holds and "violations" in text_of(verdict, 0)
    assert check(1, 1, SMALL[:1]).found == ()


def test_nothing_tried_is_no_success() -> None:
    verdict = check(1, 1, settings(4, 1, factors=(2,), dcs=(1,), tokens=(1,), concurrency=(1,)))
    assert not verdict.found and not verdict.holds
    assert "vacuous" in text_of(verdict, 0)


def test_the_models_walk_takes_one_of_each_rack_before_a_second_of_any() -> None:
    places = {1: Place("a", "r1"), 2: Place("a", "r1"), 3: Place("a", "r2"), 4: Place("b", "r1")}
    circle = Circle({"a": 2, "b": 1}, places, {10: 1, 20: 2, 30: 3, 40: 4})
    assert circle.replicas(5) == (1, 3, 4)
    assert circle.replicas(11) == (2, 3, 4)
    assert circle.replicas(41) == (1, 3, 4)
    assert Circle({"a": 3}, places, {10: 1, 20: 2, 30: 3}).replicas(25) == (3, 1, 2)


def test_the_command_tells_the_verdict_and_fails_for_a_flaw() -> None:
    options = [
        "placements",
        "--nodes",
        "8",
        "--operations",
        "6",
        "--factor",
        "2",
        "--dcs",
        "1",
        "--tokens",
        "1",
    ]
    flawed = CliRunner().invoke(sim, [*options, "--plant", "last_range_forgotten"], standalone_mode=False)
    assert flawed.return_value == 1 and "violation: seed 1" in flawed.output
