"""The crash matrix: it has every combination; a small choice of cells has every pair of values, and holds."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from lockstep.sim.matrix import report
from lockstep.sim.matrix.cells import (
    KINDS,
    Cell,
    Fault,
    Point,
    Victim,
    chosen,
    every_cell,
    why_not,
)
from lockstep.sim.matrix.operator import WORK_LABELS, Strike
from lockstep.sim.matrix.report import pairwise
from lockstep.sim.matrix.run import Ending, difference, run_cell
from lockstep.sim.mutants import REGISTRY
from lockstep.topology.kinds.registry import BY_NAME
from lockstep.topology.stages import Work
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MIN, Range

APPLY = tuple(cell for cell in every_cell() if not why_not(cell))
SMALL = pairwise(APPLY)
GROUPS = sorted({(cell.kind, cell.factor) for cell in SMALL})


def cell(name: str) -> Cell:
    (found,) = chosen(name)
    return found


def test_every_stage_of_every_operation_is_struck_at_every_point() -> None:
    assert {one.kind.name for one in KINDS.values() if one.kind is not None} == set(BY_NAME)
    strikes = [(v, f) for v, f in product(Victim, Fault) if (v is Victim.NOBODY) == (f is Fault.CANCEL)]
    steps = sum(len(one.rows) or 1 for one in KINDS.values())
    assert len(every_cell()) == len(set(every_cell())) == steps * len(Point) * len(strikes)
    for name, one in KINDS.items():
        for row in one.rows:
            struck = {c.point for c in APPLY if (c.kind, c.stage) == (name, row.stage)}
            assert struck >= {Point.ENTRY, Point.BARRIER, Point.LEAVE}, (name, row.stage)


def test_every_work_has_a_place_in_its_middle() -> None:
    assert set(WORK_LABELS) == {row.work for kind in BY_NAME.values() for row in kind.stages} - {Work.NONE}


def test_what_does_not_apply_says_why_and_no_kind_is_left_out() -> None:
    assert why_not(cell("remove/prepared/entry/subject/crash")) == "the subject is dead already"
    assert why_not(cell("bootstrap/new_only/work/source/crash")) == "the stage has no work"
    assert why_not(cell("bootstrap/cleanup/work/source/crash")) == ""
    assert {c.kind for c in APPLY} == set(KINDS)
    assert {c.fault for c in APPLY} == set(Fault)


def test_every_pair_of_values_is_in_the_small_choice() -> None:
    def pairs(cells: tuple[Cell, ...]) -> set[tuple[int, str, int, str]]:
        return {
            (i, parts[i], j, parts[j])
            for parts in (one.name.split("/") for one in cells)
            for i, j in combinations(range(5), 2)
        }

    assert pairs(SMALL) == pairs(APPLY)
    assert len(SMALL) < len(APPLY) / 10
    assert len(pairs(SMALL[:-1])) < len(pairs(APPLY))


@pytest.mark.parametrize(("kind", "factor"), GROUPS)
def test_the_small_choice_holds(kind: str, factor: int) -> None:
    cells = [one for one in SMALL if (one.kind, one.factor) == (kind, factor)]
    failed = [result for result in report.run_group(cells, seed=1) if result.violation]
    assert not failed, "\n".join(report.failure_text(result) for result in failed)


def test_a_cell_is_one_run_and_names_the_command_that_repeats_it() -> None:
    one = cell("bootstrap/write_both_read_old/work/source/crash")
    wanted = report.undisturbed(one, 3)
    first, second = (run_cell(one, 3, wanted)[0] for _ in range(2))
    assert first.violation == ""
    assert first.digest == second.digest
    told = report.failure_text(first)
    assert f"lockstep sim matrix --only {one.name} --seed 3" in told


def test_a_place_that_is_never_reached_fails_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    one = cell("move/write_both_read_old/entry/target/crash")
    wanted = report.undisturbed(one, 1)
    monkeypatch.setattr(Strike, "_arm", lambda *_: None)
    assert run_cell(one, 1, wanted)[0].invariant == "VACUOUS"


def test_a_planted_bug_fails_cells() -> None:
    with REGISTRY["skip_wipe"].plant():
        (result,) = report.run_group([cell("move/cleanup/entry/source/crash")], 1)
    assert result.invariant == "REP-3"


@pytest.mark.parametrize(
    "name",
    [
        "replication_up/write_both_read_new/entry/target/lost",  # it is taken back twice, half-way
        "remove/prepared/work/source/lost",  # the dead node and the lost one are to vote, and are given up
    ],
)
def test_what_waits_for_two_lost_nodes_comes_to_its_end(name: str) -> None:
    (result,) = report.run_group([cell(name)], 1)
    assert result.violation == ""


def test_an_end_differs_by_tokens_places_and_groups() -> None:
    one, two, three = NodeId(1), NodeId(2), NodeId(3)
    whole = Range(TOKEN_MIN, 10)
    wanted = Ending({10: one, 20: two}, [(whole, (one, two), (one, two))])
    assert difference(wanted, wanted) == ""
    assert difference(wanted, Ending({10: one, 20: three}, [(whole, (one, three), (one, three))])) == ""
    assert "tokens are [10]" in difference(wanted, Ending({10: one}, []))
    assert "of several" in difference(wanted, Ending({10: one, 20: one}, []))
    assert "not" in difference(wanted, Ending(wanted.owners, [(whole, (one,), (one, two))]))
    assert "0 ranges" in difference(wanted, Ending(wanted.owners, []))


def test_only_names_cells_that_are_there() -> None:
    assert {c.kind for c in chosen("bootstrap/*/entry")} == {"bootstrap"}
    with pytest.raises(ConfigurationError, match="names no cell"):
        report.run_matrix("bootstrap/nowhere", 1)


def test_the_count_is_printed() -> None:
    verdict = report.run_matrix("force_remove", 1)
    assert report.text_of(verdict).endswith("matrix: 6 cells run, 46 not applicable, 0 failed")
