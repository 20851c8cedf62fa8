"""The monitor of exclusions refuses requests through a node that everybody has shut out, and that of closed
sessions a stage that is left while a node holds guards of one; and only those."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.metadata.operations import Stage
from lockstep.replica.session_guards import SessionGuards
from lockstep.sim.checkers.ownership import Apart, Exclusions, check_released
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Change, Event, Outcome
from lockstep.values.ids import Consistency
from tests.topology.test_guards_and_relaxing import X, joining

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
    found = shut_out(applied)
    found.ended(told, replicas)
    assert found.known_ns == ({"n3": 100} if applied == ALL_KNOW else {})


def test_a_node_is_apart_until_it_has_heard_of_its_return() -> None:
    found = Apart()
    found.seen(100, 9, ["n3"], {"n3": 8})
    assert found and event(90) not in found and event(96) in found and event(101, node="n1") not in found
    found.seen(200, 12, [], {"n3": 9})
    found.seen(210, 13, [], {"n3": 11})
    assert found and event(205) in found
    found.seen(300, 13, [], {"n3": 12})
    assert not found and event(299) in found and event(301) not in found and event(96) in found


def test_all_are_apart_while_ranges_are_degraded() -> None:
    found = Apart()
    found.degraded(100, False)
    found.degraded(100, True)
    found.degraded(150, True)
    assert found and event(90) not in found and event(101, node="n1") in found
    found.degraded(200, False)
    assert not found and event(199) in found and event(301) not in found


def test_a_node_that_was_taken_back_serves() -> None:
    found = shut_out(ALL_KNOW)
    with pytest.raises(Violation):
        found.ended(event(299), 3)
    found.seen(300, {}, ALL_KNOW)
    found.ended(event(301), 3)
    assert not found.known_ns


def check_left(
    stage: Stage, *, session: str = "operation-1-write_both_read_old", behind: int = 0, alive: bool = True
) -> None:
    """The join leaves `stage` while the newcomer, which is `behind` epochs, holds a guard of `session`."""
    history = joining(stage)
    opened = SimpleNamespace(session_open=lambda id_: True)
    here: list[Any] = [opened]
    guards = SessionGuards(lambda: here[0])
    state = SimpleNamespace(epoch=history.now.epoch - behind)
    newcomer: Any = SimpleNamespace(
        log=SimpleNamespace(state=state), data=SimpleNamespace(guards=guards), is_loaded=True
    )
    coordinator: Any = SimpleNamespace(
        membership=SimpleNamespace(liveness=SimpleNamespace(alive=lambda id_: alive))
    )
    with guards.hold(session):
        here[0] = history.now
        check_released(history.now, history.now.operations[0], {X: newcomer}, coordinator)


def test_a_stage_is_not_left_while_a_node_holds_a_guard_of_the_session_that_closed_before_it() -> None:
    with pytest.raises(Violation, match=r"TAB-2: .*while node 4 held 1 guards of operation-1-write_both"):
        check_left(Stage.WRITE_BOTH_READ_NEW)


@pytest.mark.parametrize(
    "held",
    [
        {"stage": Stage.WRITE_BOTH_READ_OLD},
        {"session": "operation-17-write_both_read_old"},
        {"behind": 1},
        {"alive": False},
        {"stage": Stage.NEW_ONLY},
    ],
)
def test_other_guards_hold_nothing_up(held: dict[str, Any]) -> None:
    check_left(**{"stage": Stage.WRITE_BOTH_READ_NEW, **held})
