"""Tombstones that replicas scanned for one read, against the node's thresholds."""

from __future__ import annotations

import pytest

from lockstep.quorum.plans import Plan, PlanBook
from lockstep.quorum.request_trace import REQUEST_TRACE, RequestTrace
from lockstep.quorum.round import Target
from lockstep.replica.messages import ReadReply
from lockstep.replica.scanned import Scanned, Thresholds
from lockstep.values.errors import ReadFailure
from lockstep.values.ids import TOO_MANY_TOMBSTONES, Consistency, NodeId
from lockstep.values.rows import ReadResult

from .clusters import TABLE_ID, whole_ring

A, B, C = (Target(NodeId(n), (host, 1), "dc1") for n, host in ((1, "10.0.0.1"), (2, "n2"), (3, "10.0.0.3")))


def plan() -> Plan:
    return PlanBook(lambda: whole_ring(5, [1, 2, 3]), lambda: 1).read_plan(TABLE_ID, 1, Consistency.QUORUM)


def answer(target: Target, dead: int) -> tuple[Target, ReadReply]:
    return target, ReadReply(5, ReadResult(()), dead=dead)


def test_a_replica_may_scan_as_many_as_the_threshold_over_all_rounds() -> None:
    scanned = Scanned(Thresholds(tombstone_failure=10))
    scanned.add(plan(), [answer(A, 4), answer(B, 10)])
    scanned.add(plan(), [answer(A, 6)])
    with pytest.raises(ReadFailure) as caught:
        scanned.add(plan(), [answer(A, 1), answer(B, 0), answer(C, 3)])
    found = caught.value
    assert (found.received, found.required, found.failures, found.data_present) == (2, 2, 1, True)
    assert found.reasons == (("10.0.0.1", TOO_MANY_TOMBSTONES),)


def test_all_that_scanned_too_many_are_named_by_address_where_that_is_one() -> None:
    scanned = Scanned(Thresholds(tombstone_failure=1))
    with pytest.raises(ReadFailure) as caught:
        scanned.add(plan(), [answer(A, 2), answer(B, 2), answer(C, 2)])
    found = caught.value
    assert (found.received, found.failures, found.data_present) == (0, 3, False)
    assert [host for host, _ in found.reasons] == ["10.0.0.1", "10.0.0.3"]


@pytest.mark.parametrize("failure", [0, 100])
def test_the_most_that_one_read_scanned_is_noted_above_the_warning_threshold(failure: int) -> None:
    notes = RequestTrace()
    token = REQUEST_TRACE.set(notes)
    try:
        for sums in ((10, 11), (40, 3), (12, 0)):
            scanned = Scanned(Thresholds(tombstone_warn=10, tombstone_failure=failure))
            scanned.add(plan(), [answer(A, sums[0]), answer(B, sums[1])])
        assert notes.dead_by_node == {1: 40, 2: 11} and notes.overwhelmed == {}
        if failure:
            with pytest.raises(ReadFailure):
                scanned.add(plan(), [answer(B, 101)])
            assert notes.overwhelmed == {2: 101}
        silent = Scanned(Thresholds())
        silent.add(plan(), [answer(C, 999)])
        assert 3 not in notes.dead_by_node, "no threshold is none"
    finally:
        REQUEST_TRACE.reset(token)


def test_just_as_many_as_the_warning_threshold_are_not_noted() -> None:
    notes = RequestTrace()
    token = REQUEST_TRACE.set(notes)
    try:
        Scanned(Thresholds(tombstone_warn=10)).add(plan(), [answer(A, 10), answer(B, 11)])
        assert notes.dead_by_node == {2: 11}
    finally:
        REQUEST_TRACE.reset(token)
