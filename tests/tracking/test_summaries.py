"""Logs that are over are told apart from those that go on, and by a digest that tells sets apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.tracking.held import LOG_BITS, NOTHING, Held, beside, held_of, is_beside
from lockstep.tracking.intervals import of
from lockstep.tracking.summaries import digest, parted

OFFSETS = st.sets(st.integers(0, 40), max_size=12)
LOGS = st.dictionaries(st.tuples(st.integers(1, 3), st.integers(1, 3)), OFFSETS, max_size=5)


def held(found: dict[tuple[int, int], set[int]]) -> Held:
    return held_of({log: of(offsets) for log, offsets in found.items()})


@given(LOGS, LOGS)
def test_sets_have_equal_digests_when_they_are_equal(
    mine: dict[tuple[int, int], set[int]], theirs: dict[tuple[int, int], set[int]]
) -> None:
    one, other = held(mine), held(theirs)
    assert (digest(one) == digest(other)) == (one == other)
    assert digest(one.union(other)) == digest(other.union(one))


def test_the_digest_of_a_hundred_thousand_starts_is_as_long_as_that_of_none() -> None:
    old = held_of({(1, start): of(range(10)) for start in range(1, 100_001)})
    assert len(digest(old)) == len(digest(NOTHING)) == 16


@given(LOGS, LOGS)
def test_logs_that_are_over_are_told_apart_from_those_that_go_on(
    found: dict[tuple[int, int], set[int]], some: dict[tuple[int, int], set[int]]
) -> None:
    everything = held(found)
    reconciled = everything.intersection(held(some))
    listed, over = parted(everything, reconciled)
    assert listed.union(over) == everything and not listed.intersection(over)
    assert reconciled.covers(over)
    for node, start, _ in over.logs:
        assert any(log[0] == node and log[1] > start for log in listed.logs), "its newest log is listed"
    again, also = parted(everything, everything)
    assert {log[0] for log in again.logs} == {log[0] for log in everything.logs}
    assert len(again.logs) == len({log[0] for log in again.logs}) and again.union(also) == everything


def test_a_log_beside_one_is_over_once_its_node_has_started_again() -> None:
    start = 1 << LOG_BITS
    first, later, again = (1, start), (1, start + 5), (1, 2 * start)
    aside = beside(first)
    assert is_beside(aside[1]) and not any(is_beside(log[1]) for log in (first, later, again))
    running = held_of({log: of(range(3)) for log in (first, aside, later)})
    listed, over = parted(running, running)
    assert over == held_of({first: of(range(3))}) and later in dict(listed.items())
    alone = held_of({aside: of(range(3)), first: of(range(3))})
    assert parted(alone, alone) == (alone, NOTHING), "what goes on beside it ends no log"
    restarted = held_of({log: of(range(3)) for log in (first, aside, later, again)})
    assert parted(restarted, restarted)[0] == held_of({again: of(range(3))})
