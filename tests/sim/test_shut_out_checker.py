"""The monitor of exclusions refuses requests through a node that everybody has shut out, and only those."""

from __future__ import annotations

import pytest

from lockstep.sim.checkers.shut_out import Exclusions
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.history import Change, Event, Outcome
from lockstep.values.ids import Consistency

ALL_KNOW = {"n1": 9, "n2": 10, "n3": 9}


def event(
    start: int, node: str = "n3", level: Consistency = Consistency.QUORUM, outcome: Outcome = Outcome.OK
) -> Event:
    change = Change("t", b"k", 1, level, 1000, ((0, b"1/c1"),))
    return Event(client="c1", request=change, start_ns=start, end_ns=start + 5, outcome=outcome, node=node)


def shut_out(applied: dict[str, int]) -> Exclusions:
    found = Exclusions()
    found.seen(100, {"n3": 9}, applied)
    found.seen(200, {"n3": 9}, applied)
    return found


def test_a_request_that_needs_others_fails_through_a_node_that_all_have_shut_out() -> None:
    with pytest.raises(Violation, match=r"PLC-4: .*through n3 succeeded"):
        shut_out(ALL_KNOW).ended(event(101), 3)


@pytest.mark.parametrize(
    ("applied", "told", "replicas"),
    [
        (ALL_KNOW, event(99), 3),
        (ALL_KNOW, event(101, node="n1"), 3),
        (ALL_KNOW, event(101, level=Consistency.ONE), 3),
        (ALL_KNOW, event(101, outcome=Outcome.UNKNOWN), 3),
        (ALL_KNOW, event(101), 1),
        ({**ALL_KNOW, "n1": 8}, event(101), 3),
    ],
)
def test_other_requests_may_succeed(applied: dict[str, int], told: Event, replicas: int) -> None:
    shut_out(applied).ended(told, replicas)


def test_a_node_that_was_taken_back_serves() -> None:
    found = shut_out(ALL_KNOW)
    found.seen(300, {}, ALL_KNOW)
    found.ended(event(301), 3)
