"""What a node holds of a range, and that what it tells of that does not grow with the starts of replicas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.replica.messages import Known
from lockstep.storage.shard_logs import ShardLogs
from lockstep.tracking.held import Held, held_of
from lockstep.tracking.intervals import IntervalSet, of
from lockstep.values.codec import encode

STARTS = 100
PLACE = (1, 2)


def after_starts(starts: int) -> ShardLogs:
    """Of three replicas that started so often, and gave some thousand ids each time."""
    logs = ShardLogs(0)
    for start in range(1, starts + 1):
        for node in (1, 2, 3):
            number = start * 7 << 24 | node
            logs.settle((node, number), IntervalSet((0, 1000 * start + node)))
    logs.add((1, starts * 7 << 24 | 1), 1000 * starts + 2, PLACE)
    return logs


def test_a_summary_has_the_size_of_the_logs_that_go_on() -> None:
    logs = after_starts(STARTS)
    held, reconciled, over = logs.listed
    told = Known(held, logs.of_place(PLACE), over=over)
    assert len(held.logs) == len(reconciled.logs) == 3 and len(over) == 16
    assert len(encode(told)) <= 128 and len(encode(Known(logs.held, logs.open))) > 4000
    assert held.difference(reconciled) == logs.open


def test_a_log_is_listed_again_when_something_of_it_is_not_reconciled() -> None:
    logs, same = after_starts(5), after_starts(5)
    before = logs.listed[2]
    assert before == same.listed[2] != after_starts(4).listed[2]
    logs.add((2, 2 * 7 << 24 | 2), 5000, PLACE)
    assert len(logs.listed[0].logs) == 4 and logs.listed[2] != before
    logs.settle((2, 2 * 7 << 24 | 2), IntervalSet((5000, 5000)))
    assert len(logs.listed[0].logs) == 3 and logs.listed[2] != before, "it is another set by now"
    assert not ShardLogs(0).listed[2]


LOGS = ((1, 7), (2, 9))
Ids = set[tuple[int, int, int]]
#: What is done with an offset of one of two logs; most come in order.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("next", "next", "next", "add", "settle", "set_apart", "release", "look")),
        st.integers(0, 1),
        st.integers(0, 9),
    ),
    max_size=40,
)


def ids(found: Held) -> Ids:
    return {(*log, offset) for log, offsets in found.items() for offset in offsets.offsets(1000)}


@given(STEPS, st.sets(st.tuples(st.integers(0, 1), st.integers(0, 12)), max_size=6))
def test_what_is_held_is_told_as_it_is(
    steps: list[tuple[str, int, int]], asked: set[tuple[int, int]]
) -> None:
    """Against sets of ids, however seldom somebody looks in between."""
    logs = ShardLogs(0)
    held: Ids = set()
    reconciled: Ids = set()
    apart: Ids = set()
    for step, which, chosen in steps:
        log = LOGS[which]
        end = max((one[2] for one in held if one[:2] == log), default=-1) + 1
        assert logs.end(log) == end
        offset = end if step == "next" else chosen
        one, some = (*log, offset), IntervalSet((offset, offset))
        assert logs.contains(log, offset) == (one in held)
        if step in ("next", "add") and one not in held:
            assert logs.add(log, offset, (3, offset)) == 1
            held.add(one)
        elif step == "settle":
            logs.settle(log, some)
            held.add(one)
            reconciled.add(one)
            apart.discard(one)
        elif step == "set_apart":
            logs.set_apart(log, some)
            held.add(one)
            apart.add(one)
            reconciled.discard(one)
        elif step == "release" and one in apart:
            logs.release(log, some)
            held.discard(one)
            apart.discard(one)
        elif step == "look":
            assert ids(logs.held) == held and ids(logs.open) == held - reconciled - apart
    by_log = {log: of([offset for which, offset in asked if LOGS[which] == log]) for log in LOGS}
    wanted = held_of(by_log)
    assert logs.covers(wanted) == (ids(wanted) <= held)
    assert (ids(logs.reconciled), ids(logs.apart)) == (reconciled, apart)
    assert ids(logs.held) == held and ids(logs.open) == held - reconciled - apart
    assert logs.covers(wanted) == (ids(wanted) <= held)
