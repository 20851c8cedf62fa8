"""The crash matrix of tablets: it has every combination, and a small choice of its cells holds."""

from __future__ import annotations

from itertools import product

import pytest

from lockstep.metadata.operations import Stage
from lockstep.metadata.tablets import ResizePhase
from lockstep.sim.matrix import report
from lockstep.sim.matrix.cells import Point, Victim
from lockstep.sim.matrix.tablet_cells import (
    LONE,
    RESIZES,
    Change,
    TabletCell,
    TabletFault,
    Way,
    every_tablet_cell,
    may_end,
    rows_of,
    why_no_tablet,
)
from lockstep.sim.matrix.tablet_run import run_tablet_cell
from lockstep.sim.mutants import REGISTRY
from lockstep.topology import step
from lockstep.topology.stages import Side
from lockstep.topology.tablets.stages import TABLET_STAGES

APPLY = tuple(cell for cell in every_tablet_cell() if not why_no_tablet(cell))
#: One of each change, of each stage of a migration, and of each victim with each fault.
QUICK = (
    "tablet_migration/streaming/work/source/excluded",
    "tablet_migration/write_both_read_new/entry/target/excluded",
    "tablet_migration/use_new/entry/coordinator/killed",
    "tablet_rebuild/streaming/entry/target/killed",
    "tablet_drain/cleanup/entry/source/excluded",
    "tablet_rf_up/write_both_read_old/entry/target/excluded",
    "tablet_rf_down/cleanup/entry/source/paused",
    "tablet_split/closing/entry/source/excluded",
    "tablet_merge/preparing/entry/target/killed",
)


def cell(name: str) -> TabletCell:
    (found,) = [one for one in APPLY if one.name == name]
    return found


def test_every_stage_and_phase_is_struck_at_every_part_by_every_fault() -> None:
    assert len({one.name for one in every_tablet_cell()}) == len(every_tablet_cell())
    for change in Change:
        stages = {one.stage for one in APPLY if one.kind is change}
        phases = set(ResizePhase) - {ResizePhase.NONE}
        assert stages == (phases if change in RESIZES else {row.stage for row in rows_of(change)})
    for stage, victim, fault in product(Stage, Victim, TabletFault):
        is_there = any(row.stage is stage for row in TABLET_STAGES) and victim in (
            Victim.SOURCE,
            Victim.TARGET,
            Victim.COORDINATOR,
        )
        back = stage in (Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION) or "fallback" in stage
        wanted = is_there and not (back and victim is Victim.TARGET)
        name = f"tablet_migration/{stage}/entry/{victim}/{fault}"
        assert any(one.name == name for one in APPLY) is wanted, name


def test_what_does_not_apply_says_why() -> None:
    assert {one.point for one in APPLY} == {Point.ENTRY, Point.WORK}
    skipped = [one for one in every_tablet_cell() if why_no_tablet(one)]
    assert {why_no_tablet(one) for one in skipped} == {
        "the stage has no work",
        "the target is shut out already",
        "nobody gets anything",
        "nobody gives anything up",
        "nothing of the table is on its way",
        "who is shut out drops nothing",
        "who is dead drops nothing",
    }


def test_how_a_tablet_may_end_agrees_with_the_table_of_stages() -> None:
    """Where the old replicas are read, or there is a way back, a lost newcomer is given up; else never."""
    for row in TABLET_STAGES:
        back = row.on_failure is not None or (row.reads is Side.OLD and row.next is not Stage.STREAMING)
        assert may_end(row.stage, Victim.TARGET) == ((Way.BACK,) if back else (Way.FORWARD,)), row.stage
        assert Way.FORWARD in may_end(row.stage, Victim.SOURCE) or row.on_failure is None, row.stage


@pytest.mark.parametrize("name", QUICK)
def test_scenario_09_a_small_choice_holds(name: str) -> None:
    (result,) = report.run_group([cell(name)], 1)
    assert not result.violation, report.failure_text(result)
    assert result.judged > 0


def test_a_cell_is_one_run() -> None:
    one = cell("tablet_migration/streaming/entry/target/excluded")
    (first, run), (second, _) = (run_tablet_cell(one, 3) for _ in range(2))
    assert first.violation == "" and first.digest == second.digest
    assert run.strike.way is Way.BACK


def test_a_tablet_that_goes_on_without_its_newcomer_fails_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "goes_back", lambda lone, cluster, dead: False)
    (result,) = report.run_group([cell("tablet_migration/streaming/entry/target/excluded")], 1)
    assert result.invariant == "LIVENESS"


def test_a_planted_bug_fails_cells() -> None:
    with REGISTRY["tablet_not_emptied"].plant():
        (result,) = report.run_group([cell("tablet_migration/cleanup/entry/target/killed")], 1)
    assert result.invariant == "TAB-1"


def test_the_command_runs_cells_of_tablets() -> None:
    verdict = report.run_matrix("tablet_split/settling/entry/source/excluded", 1)
    assert report.text_of(verdict).endswith("matrix: 1 cells run, 0 not applicable, 0 failed")
    assert {one.kind for one in APPLY if one.kind in LONE} == set(LONE)
