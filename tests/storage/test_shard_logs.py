"""What a node tells of a range does not grow with the starts of its replicas."""

from __future__ import annotations

from lockstep.replica.messages import Known
from lockstep.storage.shard_logs import ShardLogs
from lockstep.tracking.intervals import IntervalSet
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
