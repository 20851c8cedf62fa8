"""A change reaches all members within few rounds; seeds and pending proposals make it faster, loss slower."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.ring.spreading import Spreader
from lockstep.sim.ring.convergence import (
    Case,
    Convergence,
    cases,
    epidemic_rounds,
    measure,
    seed_all_rounds,
    seed_mean_rounds,
)


def run(nodes: int = 120, seeds: int = 3, loss: float = 0.0, pending: bool = False) -> Convergence:
    return measure(Case(nodes, seeds, loss, pending, trials=4))


def test_all_are_reached_in_about_as_many_rounds_as_an_epidemic_takes() -> None:
    outcome = run()
    assert outcome.missed == 0
    assert 0.3 < outcome.last_p50 / epidemic_rounds(outcome.case) < 2.0
    assert outcome.messages < 4


def test_seeds_and_pending_proposals_are_faster_and_loss_is_slower() -> None:
    none, few, lossy, pending = run(seeds=0), run(), run(loss=0.3), run(pending=True)
    assert few.p50 < none.p50 and few.p99 < none.p99
    assert few.p50 < lossy.p50 and lossy.missed == 0
    assert 3 * pending.p99 < few.p99


def test_ten_times_as_many_members_take_a_few_rounds_more() -> None:
    small, large = run(nodes=40), run(nodes=400)
    assert large.last_p50 < small.last_p50 + 5


def test_the_same_seed_gives_the_same_figures() -> None:
    assert run(loss=0.1) == run(loss=0.1)


def test_who_never_answers_when_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the answers there are pushes to seeds alone, and the others never have it."""
    monkeypatch.setattr(Spreader, "answer", lambda *_: None)
    monkeypatch.setattr("lockstep.sim.ring.convergence._PATIENCE_MS", 5000)
    assert run(nodes=20).missed > 10


def test_the_formulas() -> None:
    case = Case(1000, 100, 0.0)
    assert seed_mean_rounds(case) == 10
    assert seed_all_rounds(case) == pytest.approx(109.2, abs=0.1)
    assert seed_mean_rounds(Case(1000, 0, 0.0)) is None and seed_all_rounds(Case(1000, 0, 0.0)) is None
    assert epidemic_rounds(Case(1000, 0, 0.0)) == pytest.approx(8.2, abs=0.1)
    assert epidemic_rounds(Case(1000, 0, 0.0, pending=True)) == pytest.approx(8.2 / 4, abs=0.1)


def test_the_command_prints_a_row_of_each_case() -> None:
    result = CliRunner().invoke(root, ["sim", "convergence", "--nodes", "40", "--trials", "1"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 3 + len(list(cases(40, 1, 1))) and lines[-1] == "0 members were not reached"
    assert CliRunner().invoke(root, ["sim", "convergence", "--nodes", "1"]).exit_code == 2
