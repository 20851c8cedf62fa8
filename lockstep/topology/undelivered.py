"""Before which moment every write has arrived, by what nodes say whose clocks differ.

Invariant: what deletes a write that some node still keeps for another is dated by whichever node took the
deletion. Its clock is behind the keeper's by no more than the one that is furthest behind, so what is found
is below all of those dates.
"""

from __future__ import annotations

import msgspec


class Told(msgspec.Struct, frozen=True):
    """A node answered between `asked_us` and `heard_us` of the asking node's steady clock that its own wall
    clock was at `at_us` (0: it does not say), and that the oldest write which it keeps for others is of
    `oldest_us` by that clock; -1: it keeps none."""

    oldest_us: int
    at_us: int
    asked_us: int
    heard_us: int


def all_arrived_before_us(began_us: int, told: list[Told]) -> int:
    """Microseconds of the clock that is furthest behind, at most `began_us`; 0 when that is not known: a node
    keeps a write of its future, made while its clock was ahead, nobody knows how long ago."""
    behind_us = min((one.at_us - one.heard_us for one in told if one.at_us), default=0)
    before_us = began_us
    for one in told:
        if one.at_us and one.oldest_us > one.at_us:
            return 0
        before_us = min(before_us, one.at_us or before_us)
        if one.oldest_us >= 0:
            ahead_us = one.at_us - one.asked_us - behind_us if one.at_us else 0
            before_us = min(before_us, one.oldest_us - ahead_us)
    return max(0, before_us)
