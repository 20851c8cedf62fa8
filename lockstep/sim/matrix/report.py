"""A batch of cells: run in processes of their own, counted, each failure with the command that repeats it.

Invariant: every cell that was asked for is run or counted as not applicable with its reason; the text and the
exit code follow from (cells, seed) alone.

A small choice of cells in which every pair of two values that any cell has is in one of them.

Invariant: pure, and the same for the same cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.matrix import cells as of_operations
from lockstep.sim.matrix.cells import Cell, matches
from lockstep.sim.matrix.run import CellResult, Ending, run_cell, undisturbed
from lockstep.sim.matrix.tablet_cells import TabletCell, every_tablet_cell, why_no_tablet
from lockstep.sim.matrix.tablet_run import run_tablet_cell
from lockstep.sim.runner import spread, story_text, timed
from lockstep.sim.scenario import Run
from lockstep.values.errors import ConfigurationError

#: Of operations, or of tablets.
AnyCell = Cell | TabletCell
#: Two values of two parts of a cell, with the places of these parts.
Pair = tuple[int, str, int, str]


def chosen(pattern: str) -> tuple[AnyCell, ...]:
    """The cells that `pattern` names; all without it."""
    tablets = (cell for cell in every_tablet_cell() if matches(cell.name, pattern))
    return (*of_operations.chosen(pattern), *tablets)


def why_not(cell: AnyCell) -> str:
    """Why there is nothing to run; empty when there is."""
    return why_no_tablet(cell) if isinstance(cell, TabletCell) else of_operations.why_not(cell)


def pairs_of(cell: AnyCell) -> tuple[Pair, ...]:
    parts = cell.name.split("/")
    return tuple((i, parts[i], j, parts[j]) for i, j in combinations(range(len(parts)), 2))


def pairwise(cells: Sequence[AnyCell]) -> tuple[AnyCell, ...]:
    """Greedy: the cell with most new pairs is next, the first of equals."""
    pairs = {cell: frozenset(pairs_of(cell)) for cell in cells}
    missing = frozenset[Pair]().union(*pairs.values())
    picked: list[AnyCell] = []
    while missing:
        best, news = cells[0], 0
        for cell in cells:
            count = len(pairs[cell] & missing)
            if count > news:
                best, news = cell, count
        picked.append(best)
        missing -= pairs[best]
    return tuple(picked)


#: Which cells have the same undisturbed run.
_Alike = tuple[str, int]
#: Cells that one process runs before it tells of them: failures are told early, and no process is left alone
#: with the largest kind; the undisturbed run is repeated for each such part.
_AT_ONCE_MAX = 24


class Verdict(msgspec.Struct, frozen=True):
    """`skipped`: how many cells do not apply, by reason."""

    results: tuple[CellResult, ...]
    skipped: dict[str, int]

    @property
    def failed(self) -> tuple[CellResult, ...]:
        return tuple(result for result in self.results if result.violation)


def run_matrix(
    only: str, seed: int, *, pairs: bool = False, told: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Run the cells that `only` names (all without it), or so few that each pair of values is among them;
    `told` each failure at once."""
    cells = chosen(only)
    if not cells:
        raise ConfigurationError(
            f"{only!r} names no cell", hint="KIND/STAGE/POINT/VICTIM/FAULT, with * for any of a part"
        )
    skipped: dict[str, int] = {}
    apply: list[AnyCell] = []
    for cell in cells:
        reason = why_not(cell)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            apply.append(cell)
    results = []
    for result in _run_all(pairwise(apply) if pairs else apply, seed):
        if result.violation:
            told(failure_text(result))
        results.append(result)
    return Verdict(tuple(sorted(results, key=lambda result: result.cell.name)), skipped)


def _run_all(cells: Sequence[AnyCell], seed: int) -> Iterator[CellResult]:
    """Cells that share an undisturbed run are run by one process, one after the other."""
    groups: dict[_Alike, list[AnyCell]] = {}
    for cell in cells:
        groups.setdefault((cell.kind, cell.factor), []).append(cell)
    parts = [g[at : at + _AT_ONCE_MAX] for g in groups.values() for at in range(0, len(g), _AT_ONCE_MAX)]
    for results in spread(partial(run_group, seed=seed), parts):
        yield from results


def run_group(cells: Sequence[AnyCell], seed: int) -> list[CellResult]:
    """Cells with one undisturbed run, in this process; tablets may lie elsewhere, so theirs are judged
    without one."""
    operations = [cell for cell in cells if isinstance(cell, Cell)]
    wanted: Ending | None = None
    try:
        wanted = undisturbed(operations[0], seed) if operations else None
    except Violation as found:
        return [
            CellResult(cell=cell, seed=seed, invariant=found.invariant, violation=str(found))
            for cell in cells
        ]
    results = []
    for cell in cells:
        (result, _), cpu_s = timed(partial(_run_cell, cell, seed, wanted))
        results.append(msgspec.structs.replace(result, cpu_s=cpu_s))
    return results


def _run_cell(
    cell: AnyCell, seed: int, wanted: Ending | None, *, trace: bool = False
) -> tuple[CellResult, Run]:
    if isinstance(cell, TabletCell):
        return run_tablet_cell(cell, seed, trace=trace)
    return run_cell(cell, seed, wanted, trace=trace)


def told_story(only: str, seed: int, last: int) -> tuple[CellResult, str]:
    """One cell again, with the last lines of what happened in it."""
    cells = [cell for cell in chosen(only) if not why_not(cell)]
    if len(cells) != 1:
        raise ConfigurationError(f"{only!r} names {len(cells)} cells that apply", hint="name one, whole")
    result, run = _run_cell(cells[0], seed, None, trace=True)
    return result, story_text((run.cluster.story or [])[-last:])


def failure_text(result: CellResult) -> str:
    return (
        f"FAILED {result.cell.name} ({result.invariant})\n  {result.violation}\n"
        f"  again: lockstep sim matrix --only {result.cell.name} --seed {result.seed} --trace"
    )


def text_of(verdict: Verdict) -> str:
    """What was not run and why, how much it cost, and the count."""
    results, failed = verdict.results, verdict.failed
    lines = [f"not applicable: {count:>4}  {why}" for why, count in sorted(verdict.skipped.items())]
    cpu_s = sum(result.cpu_s for result in results)
    lines.append(
        f"{sum(r.events for r in results):,} events, {sum(r.acknowledged for r in results):,} requests "
        f"succeeded, {sum(r.judged for r in results):,} registers judged, {cpu_s:.1f} CPU s"
    )
    skipped = sum(verdict.skipped.values())
    lines.append(f"matrix: {len(results)} cells run, {skipped} not applicable, {len(failed)} failed")
    return "\n".join(lines)
