"""Tablets of unlike widths, as the ranges of a ring are: which are merged, and which split, so that all get
about as wide as they would be if there were as many even ones as the table is to have.

Rows lie evenly over tokens, so a width stands for bytes and requests to come. Invariant: a tablet is *wide*
from one and a half even ones on, so its halves together are wider than any *narrow* pair, which is at most
one even tablet wide, or has a *sliver* of at most a quarter; and halves are no slivers. So nothing that was
split is merged again for evenness, and each merge of a sliver leaves one less.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from lockstep.placement.tablets.map import Tablet, midpoint

#: Tokens there are: widths are shares of them.
_ALL: Final = 1 << 64
#: A table is uneven when its widest tablet is more than so many times as wide as its narrowest.
UNEVEN: Final = 2.5
#: In even tablets: what is split; what two together have at the most to be merged; a sliver, and what it has
#: at the most together with a neighbour.
WIDE: Final = 1.5
NARROW_PAIR: Final = 1.0
SLIVER: Final = 0.25
SLIVER_PAIR: Final = 1.75


def width(tablet: Tablet) -> int:
    return tablet.range.right - tablet.range.left


def is_uneven(tablets: Sequence[Tablet]) -> bool:
    widths = [width(tablet) for tablet in tablets]
    assert widths and min(widths) > 0, "a map has tablets, and each has tokens"
    return max(widths) > UNEVEN * min(widths)


def in_even_ones(tokens: int, count: int) -> float:
    """How many even tablets, of `count`, so many tokens are."""
    return tokens * count / _ALL


def wide(tablets: Sequence[Tablet], count: int, most: int) -> list[int]:
    """Last tokens of those to be split, ascending: the widest ones first where there are more than `most`."""
    found = [one for one in tablets if in_even_ones(width(one), count) >= WIDE]
    return widest(found, most)


def widest(tablets: Sequence[Tablet], most: int) -> list[int]:
    """Last tokens, ascending."""
    can = [one for one in tablets if midpoint(one.range) is not None]
    chosen = sorted(can, key=lambda one: (-width(one), one.right))[: max(0, most)]
    return sorted([one.right for one in chosen])


def narrow_pairs(
    tablets: Sequence[Tablet], count: int, most: int, may: Callable[[Tablet, Tablet], bool]
) -> list[int]:
    """Last tokens of the first ones of neighbours to be merged, ascending, no tablet in two pairs: the
    narrowest pairs where there are more than `most`. `may`: what else there is to say of a pair."""
    pairs = sorted(
        [
            (width(one) + width(two), at)
            for at, (one, two) in enumerate(itertools.pairwise(tablets))
            if is_narrow(one, two, count)
        ]
    )
    taken: dict[int, None] = {}
    chosen: list[int] = []
    for _, at in pairs:
        if len(chosen) >= most:
            break
        if at in taken or at + 1 in taken or not may(tablets[at], tablets[at + 1]):
            continue
        taken.update({at: None, at + 1: None})
        chosen.append(tablets[at].right)
    return sorted(chosen)


def is_narrow(one: Tablet, two: Tablet, count: int) -> bool:
    assert one.range.right == two.range.left, "only neighbours are merged"
    both = in_even_ones(width(one) + width(two), count)
    sliver = in_even_ones(min(width(one), width(two)), count) <= SLIVER
    return both <= NARROW_PAIR or (sliver and both <= SLIVER_PAIR)
