"""Merkle trees over the leaves of one list of ranges: which leaves differ, found from the root downwards.

Invariant: two trees of as many leaves differ in exactly those leaves that `differing` names.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec

from lockstep.values.tokens import Range

LEAF_BYTES: Final = 16


class MerkleTree(msgspec.Struct, frozen=True, dict=True):
    """`leaves`: one digest of LEAF_BYTES for each range, in order, joined."""

    leaves: bytes

    @property
    def count(self) -> int:
        return len(self.leaves) // LEAF_BYTES

    def leaf(self, number: int) -> bytes:
        return self.leaves[number * LEAF_BYTES : (number + 1) * LEAF_BYTES]

    @cached_property
    def levels(self) -> tuple[tuple[bytes, ...], ...]:
        """The leaves first, the root last; a node without a neighbour is handed up as it is."""
        level = tuple(self.leaf(number) for number in range(self.count))
        found = [level]
        while len(level) > 1:
            level = tuple(_joined(level[at : at + 2]) for at in range(0, len(level), 2))
            found.append(level)
        return tuple(found)

    @property
    def root(self) -> bytes:
        return self.levels[-1][0] if self.leaves else b""


def _joined(pair: Sequence[bytes]) -> bytes:
    if len(pair) == 1:
        return pair[0]
    return hashlib.blake2b(b"".join(pair), digest_size=LEAF_BYTES).digest()


def differing(trees: Sequence[MerkleTree]) -> tuple[int, ...]:
    """Numbers of the leaves that are not the same in all trees; ValueError when they have not as many."""
    first = trees[0]
    if any(tree.count != first.count for tree in trees):
        raise ValueError("trees over different ranges")
    if all(tree.root == first.root for tree in trees):
        return ()
    suspects = [0]
    for depth in range(len(first.levels) - 2, -1, -1):
        below = [child for node in suspects for child in (2 * node, 2 * node + 1)]
        levels = [tree.levels[depth] for tree in trees]
        suspects = [
            number
            for number in below
            if number < len(levels[0]) and any(level[number] != levels[0][number] for level in levels)
        ]
    return tuple(suspects)


def split_evenly(ranges: Sequence[Range], leaves: int) -> tuple[Range, ...]:
    """The ranges (sorted, disjoint) cut into about `leaves` pieces; each range is one at least."""
    width = sum(range_.right - range_.left for range_ in ranges)
    found: list[Range] = []
    for range_ in ranges:
        span = range_.right - range_.left
        parts = min(span, max(1, leaves * span // width))
        bounds = [range_.left + span * number // parts for number in range(parts)] + [range_.right]
        found.extend(Range(left, right) for left, right in itertools.pairwise(bounds))
    return tuple(found)


def joined_numbers(ranges: Sequence[Range], numbers: Sequence[int], together_max: int) -> list[Range]:
    """The ranges of these numbers, ascending, with up to `together_max` neighbours as one."""
    found: list[Range] = []
    count = 0
    for number in numbers:
        range_ = ranges[number]
        if found and found[-1].right == range_.left and count < together_max:
            found[-1] = Range(found[-1].left, range_.right)
            count += 1
        else:
            found.append(range_)
            count = 1
    return found
