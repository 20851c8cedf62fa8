"""Whether replicas are even is told from what they say without merging it: the same as by sets of ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.coordination.tracked_reads import is_even
from lockstep.replica.messages import Known
from lockstep.tracking.held import Held, LogId, held_of
from lockstep.tracking.intervals import of

LOGS: tuple[LogId, ...] = ((1, 7), (2, 9))
Ids = frozenset[tuple[LogId, int]]
#: Mostly all of the first few, so that replicas are even often enough.
IDS = st.one_of(
    st.integers(0, 3).map(lambda count: frozenset((LOGS[0], offset) for offset in range(count))),
    st.frozensets(st.tuples(st.sampled_from(LOGS), st.integers(0, 3))),
)
SAID = st.tuples(IDS, IDS, st.sampled_from((frozenset(), frozenset(), frozenset({(LOGS[0], 0)}))))


def held(ids: Ids) -> Held:
    return held_of({log: of([offset for other, offset in ids if other == log]) for log in LOGS})


def known(said: tuple[Ids, Ids, Ids]) -> Known:
    return Known(held(said[0]), held(said[1]), held(said[2]))


@given(SAID, st.lists(SAID, max_size=3))
def test_replicas_are_even_where_each_holds_what_any_told_of(
    data: tuple[Ids, Ids, Ids], others: list[tuple[Ids, Ids, Ids]]
) -> None:
    told = frozenset[tuple[LogId, int]]().union(*(one[0] | one[1] for one in others))
    wanted = told <= data[0] and all(data[1] <= one[0] | one[1] for one in others)
    wanted = wanted and not any(one[2] for one in (data, *others))
    assert is_even(known(data), [known(one) for one in others]) is wanted


def test_what_is_even_and_what_is_not() -> None:
    first, second = frozenset({(LOGS[0], 0)}), frozenset({(LOGS[0], 0), (LOGS[0], 1)})
    assert is_even(known((second, first, frozenset())), [known((first, frozenset(), frozenset()))])
    assert not is_even(known((second, second, frozenset())), [known((first, frozenset(), frozenset()))])
    assert is_even(known((second, second, frozenset())), [known((first, second, frozenset()))])
    assert not is_even(known((first, first, frozenset())), [known((frozenset(), second, frozenset()))])
