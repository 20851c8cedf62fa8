"""What a replica tells: bytes there and back, floors in the place of old logs, comparisons with both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.tracking.held import NOTHING, Held, MutationId, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.summaries import Summary, digest, floors_of, pack, parted, summary_of, unpack
from lockstep.values.errors import FrameCorrupt

OFFSETS = st.sets(st.integers(0, 40), max_size=12)
LOGS = st.dictionaries(st.tuples(st.integers(1, 3), st.integers(1, 3)), OFFSETS, max_size=5)
FLOORS = st.dictionaries(st.integers(1, 3), st.integers(1, 4), max_size=3)
#: Below a floor is what everybody holds: all offsets that there are.
WHOLE = 41


def held(found: dict[tuple[int, int], set[int]]) -> Held:
    return held_of({log: of(offsets) for log, offsets in found.items()})


def plain(floors: dict[int, int], found: dict[tuple[int, int], set[int]]) -> set[tuple[int, int, int]]:
    below = {
        (node, start, offset)
        for node, floor in floors.items()
        for start in range(floor)
        for offset in range(WHOLE)
    }
    return below | {(*log, offset) for log, offsets in found.items() for offset in offsets}


@given(FLOORS, LOGS, LOGS, FLOORS)
def test_summaries_compare_as_the_sets_that_they_stand_for(
    floors: dict[int, int],
    mine: dict[tuple[int, int], set[int]],
    theirs: dict[tuple[int, int], set[int]],
    other_floors: dict[int, int],
) -> None:
    one, other = summary_of(floors, held(mine)), summary_of(other_floors, held(theirs))
    one.validate()
    # Whoever holds more than its floor says holds it whole below the other's floor: that is what floors mean.
    lacking = {
        (node, start, offset)
        for (node, start), offsets in one.lacking(other).items()
        for offset in offsets.offsets(1000)
    }
    below_other = plain(other_floors, {})
    assert lacking == plain({}, theirs) - below_other - plain(floors, mine)
    assert one.covers(other) == (not lacking)
    both = one.union(other)
    both.validate()
    assert both.covers(one) and both.covers(other)
    assert all(
        (MutationId(*wanted) in one) == (wanted in plain(floors, mine))
        for wanted in plain(floors, mine) | plain({}, theirs)
    )


@given(FLOORS, LOGS)
def test_bytes_are_canonical(floors: dict[int, int], found: dict[tuple[int, int], set[int]]) -> None:
    told = summary_of(floors, held(found))
    assert unpack(pack(told)) == told
    assert digest(told) == digest(unpack(pack(told)))
    assert told == Summary() or digest(told) != digest(Summary())


@given(st.binary(max_size=24))
def test_other_bytes_are_refused(body: bytes) -> None:
    try:
        told = unpack(body)
    except FrameCorrupt:
        return
    assert pack(told) == body


@pytest.mark.parametrize("cut", range(1, 8))
def test_bytes_that_end_early_are_refused(cut: int) -> None:
    body = pack(summary_of({1: 2}, held({(2, 1): {0, 1, 5}})))
    with pytest.raises(FrameCorrupt):
        unpack(body[:-cut])


def test_a_live_log_takes_few_bytes_and_old_ones_none() -> None:
    clean = held_of({(node, 1_000_000): of(range(90_000_000, 90_000_001)) for node in (1, 2, 3)})
    assert len(pack(Summary((), clean))) <= 3 * 64
    starts = dict.fromkeys((1, 2, 3), 101)
    old = {(node, start): of(range(10)) for node in starts for start in range(1, 102)}
    ended = {log: 10 for log in old if log[1] < 101}
    floors = floors_of(dict.fromkeys(starts, 1), held_of(old), ended, starts)
    assert floors == starts
    after = summary_of(floors, held_of(old))
    assert len(after.held.logs) == 3 and len(pack(after)) < 64
    assert len(pack(summary_of({}, held_of(old)))) < 3 * 101 * 8


def test_a_log_is_retired_only_whole_and_in_order() -> None:
    reconciled = held({(1, 1): {0, 1}, (1, 2): {0, 1, 2}})
    starts = {1: 3}
    assert floors_of({1: 1}, reconciled, {(1, 1): 3, (1, 2): 3}, starts) == {1: 1}
    assert floors_of({1: 1}, reconciled, {(1, 1): 2, (1, 2): 3}, starts) == {1: 3}
    assert floors_of({1: 1}, reconciled, {(1, 2): 3}, starts) == {1: 1}
    # A log that may go on is never over.
    assert floors_of({1: 1}, reconciled, {(1, 1): 2, (1, 2): 3}, {1: 2}) == {1: 2}
    assert floors_of({1: 1}, NOTHING, {(1, 1): 0}, starts) == {1: 2}


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
