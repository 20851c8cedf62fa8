"""Why no run finds a barrier whose quorums skip who gets a tablet: without it, older plans do no harm either.

Proved over all stages, all sets of replicas that are unaware of a stage, and all quorums among them. It
begins its part of the work only once it has applied the stage, as the session is to be open in its metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

import pytest

from lockstep.metadata.operations import Stage
from lockstep.placement.quorums import majority
from lockstep.topology.stages import Side
from lockstep.topology.tablets.stages import TABLET_STAGES

ROWS = {row.stage: row for row in TABLET_STAGES}
#: Who gets the tablet; it is given up by node 0.
GAINED = 9
BACK = Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP
Nodes = frozenset[int]
#: The stage of an older plan, those whose barriers pass after it, and the one that follows.
Passage = tuple[Stage, ...]


def side(which: Side, factor: int) -> Nodes:
    old = frozenset(range(factor))
    new = old - {0} | {GAINED}
    return {Side.OLD: old, Side.NEW: new, Side.UNION: old | new}[which]


def needed(which: Side, factor: int) -> int:
    """Of a side; who is pending is counted beside the quorum."""
    return majority(factor) + (which is Side.UNION)


def subsets(nodes: Nodes, least: int) -> Iterator[Nodes]:
    sizes = range(least, len(nodes) + 1)
    return map(frozenset, chain.from_iterable(combinations(sorted(nodes), size) for size in sizes))


def ways(first: Stage) -> Iterator[Passage]:
    row = ROWS[first]
    for then in {row.next, row.on_failure} - {None}:
        assert then is not None
        yield first, then
        for way in ways(then):
            yield first, *way


def passages() -> Iterator[Passage]:
    return (way for first in ROWS for way in ways(first) if len(way) > 2)


def unaware(barriers: Passage, factor: int, skipped: Nodes) -> Iterator[Nodes]:
    """Replicas that know none of these stages as their barriers have passed."""
    for nodes in subsets(side(Side.UNION, factor), 0):
        counted = nodes - skipped
        if all(
            len(counted & side(which, factor)) < needed(which, factor)
            for stage in barriers
            for which in ROWS[stage].in_use
        ):
            yield nodes


def does_harm(passage: Passage, factor: int, skipped: Nodes) -> bool:
    """Whether a quorum by the older plan and one by what follows do not meet, one of them a write."""
    stale, last = ROWS[passage[0]], ROWS[passage[-1]]
    for nodes in unaware(passage[1:-1], factor, skipped):
        for older, newer in ((stale.writes, last.reads), (stale.reads, last.writes)):
            for one in subsets(side(older, factor) & nodes, needed(older, factor)):
                if any(not one & other for other in subsets(side(newer, factor), needed(newer, factor))):
                    return True
    return False


def harmed(factor: int, skipped: Nodes) -> list[Passage]:
    return [passage for passage in passages() if does_harm(passage, factor, skipped)]


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5])
def test_only_behind_the_fallback_stage_a_barrier_needs_who_gets_a_tablet(factor: int) -> None:
    assert harmed(factor, frozenset()) == []
    found = harmed(factor, frozenset({GAINED}))
    assert bool(found) is bool(factor % 2) and all(BACK in passage[1:-1] for passage in found)


def test_the_fallback_stage_is_entered_only_where_who_gets_the_tablet_is_shut_out() -> None:
    """It is entered as more of the new replicas are shut out than of the old ones; they answer nobody."""
    for factor in range(1, 6):
        old, new = side(Side.OLD, factor), side(Side.NEW, factor)
        for out in subsets(old | new, 0):
            assert GAINED in out or len(out & new) <= len(out & old)


def test_a_barrier_that_skips_old_replicas_does_harm_at_most_stages() -> None:
    """The search sees what it looks for."""
    assert len({passage[-2] for passage in harmed(3, side(Side.OLD, 3))}) == 6
