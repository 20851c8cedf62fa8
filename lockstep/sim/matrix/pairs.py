"""A small choice of cells in which every pair of two values that any cell has is in one of them.

Invariant: pure, and the same for the same cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from lockstep.sim.matrix.cells import Cell

#: Two values of two parts of a cell, with the places of these parts.
Pair = tuple[int, str, int, str]


def pairs_of(cell: Cell) -> tuple[Pair, ...]:
    parts = cell.name.split("/")
    return tuple((i, parts[i], j, parts[j]) for i, j in combinations(range(len(parts)), 2))


def pairwise(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Greedy: the cell with most new pairs is next, the first of equals."""
    pairs = {cell: pairs_of(cell) for cell in cells}
    missing = {pair: None for of_cell in pairs.values() for pair in of_cell}
    picked: list[Cell] = []
    while missing:
        best, news = cells[0], 0
        for cell in cells:
            count = sum(pair in missing for pair in pairs[cell])
            if count > news:
                best, news = cell, count
        picked.append(best)
        for pair in pairs[best]:
            missing.pop(pair, None)
    return tuple(picked)
