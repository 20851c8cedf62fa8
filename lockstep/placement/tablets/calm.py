"""When bins that lay evenly are uneven enough to move anything for it.

Invariant: what nodes say of sizes is known within a band only, and grows, each number by itself. So the sums
of bins differ by chance, and a target that fits them within a hundredth is another one every time. From rest,
nothing moves before the difference is more than chance and more than single pieces make; then everything is
made as even as it can be, and lies inside of what begins a move by far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from lockstep.placement.tablets.load import BYTES_BAND
from lockstep.placement.tablets.packing import Packing, Piece

#: Of the fuller bin: nobody needs disks to be nearer to each other.
FULLNESS_TRIGGER: Final = 0.03
#: Average pieces by which bins, or what they have of a table, differ without anything to be done: where
#: pieces are alike, one more here or there is as even as it gets.
PIECES_APART: Final = 1.0
#: By how many bands of a bin's pieces together, taken as independent, two bins differ before it is no chance:
#: of sums of numbers that are off by up to a band, one in some hundreds of clusters differs so much.
CHANCE: Final = 3.0


def is_apart(packing: Packing) -> bool:
    """Whether anything is to be moved among bins that were even once."""
    if len(packing.weights) < 2:
        return False
    return _fullness_apart(packing) or packing.are_rates_apart() or _tables_apart(packing)


def _fullness_apart(packing: Packing) -> bool:
    full = packing.fullness()
    fullest, emptiest = full.index(max(full)), full.index(min(full))
    if full[fullest] - full[emptiest] <= FULLNESS_TRIGGER * full[fullest]:
        return False
    movable = [piece for pieces in packing.held[fullest].values() for piece in pieces]
    if not movable:
        return False
    return 2 * packing.step(fullest, emptiest) > _by_chance(movable)


def _tables_apart(packing: Packing) -> bool:
    """Whether a table has much more of itself in one bin than in another."""
    everything = sum(packing.weights)
    for table, total in packing.totals.items():
        if not total:
            continue
        shares = packing.shares(table)
        most, least = shares.index(max(shares)), shares.index(min(shares))
        movable = packing.held[most].get(table)
        if not movable:
            continue
        one, two = packing.weights[most], packing.weights[least]
        apart = (shares[most] - shares[least]) * total / everything
        if 2 * apart / (1 / one + 1 / two) > _by_chance(movable):
            return True
    return False


def _by_chance(pieces: Iterable[Piece]) -> float:
    """What two bins may differ by, of which the fuller has these."""
    sizes = [piece.size for piece in pieces]
    assert sizes, "who differs by what it has, has something"
    chance = CHANCE * BYTES_BAND * math.sqrt(sum([size * size for size in sizes]))
    return PIECES_APART * sum(sizes) / len(sizes) + chance
