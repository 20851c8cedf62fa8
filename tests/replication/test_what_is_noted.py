"""What the request path notes for metrics, probes and clients that ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.internode.repeated_log import RepeatedLog
from lockstep.quorum.failure_codes import (
    LABELS,
    READ,
    REASONS,
    STALE_AFTERWARDS,
    Refusals,
    late,
    note_refusal,
)
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.request_trace import RequestTrace
from lockstep.quorum.round import Target
from lockstep.quorum.speculation import ExtraRequests, Histogram, Latencies
from lockstep.values.errors import DiskRefused, PeerTimeout, PeerUnreachable, WriteTimeout
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import LATENCY_SAMPLES_MAX, LATENCY_TABLES_MAX, PLANS_NOTED_MAX

from .clusters import TABLE_ID, read_one, upsert, whole_ring
from .support import RecordingProbes, run

QUORUM = Consistency.QUORUM


def test_every_refusal_is_counted_once_under_its_reason_and_passes_its_probe() -> None:
    probes = RecordingProbes()
    refusals = Refusals(probes)
    for kind, reason in LABELS:
        refusals.refused(kind, reason)
    assert probes.reached == [f"replica.{kind}.{reason}" for kind, reason in LABELS]
    assert refusals.counts == {reason: 1 if reason == STALE_AFTERWARDS else 2 for reason in REASONS}
    refusals.waiting(READ)
    assert (refusals.waits, probes.reached[-1]) == (1, "replica.read.waits")


def test_extra_requests_are_counted_from_none_on() -> None:
    extra = ExtraRequests()
    assert {name: getattr(extra, name) for name in ExtraRequests.__slots__} == dict.fromkeys(
        ExtraRequests.__slots__, 0
    )


def test_a_histogram_holds_what_it_counts_and_is_never_full() -> None:
    histogram = Histogram()
    for took_ms in range(LATENCY_SAMPLES_MAX + 2):
        histogram.add(took_ms % 7)
        histogram.validate()
    assert histogram.total < LATENCY_SAMPLES_MAX
    histogram.total += 1
    with pytest.raises(AssertionError, match="miscounted"):
        histogram.validate()


def test_half_of_a_full_histogram_is_forgotten_and_single_requests_with_it() -> None:
    histogram = Histogram()
    histogram.add(1000)
    for _ in range(LATENCY_SAMPLES_MAX - 1):
        histogram.add(1)
    assert histogram.total == (LATENCY_SAMPLES_MAX - 1) // 2 and isinstance(histogram.total, int)
    assert histogram.percentile(100) < 2


def test_as_many_tables_as_there_is_room_for_are_known() -> None:
    known = Latencies()
    for table_id in range(LATENCY_TABLES_MAX):
        known.add(table_id, 0.001)
    known.validate()
    known._by_table[LATENCY_TABLES_MAX] = Histogram()
    with pytest.raises(AssertionError, match="make room"):
        known.validate()


ONE, TWO = Target(NodeId(1), ("10.0.0.1", 1), "dc1"), Target(NodeId(2), ("n2", 1), "dc1")


def test_a_timeout_says_also_who_failed_meanwhile_and_nothing_of_who_is_silent() -> None:
    silent = WriteTimeout(QUORUM, 1, 2, "SIMPLE")
    text = silent.message
    assert late(silent, (ONE, TWO), None).message == text
    assert late(silent, (ONE, TWO), {NodeId(2): PeerTimeout("late")}).message == text
    failures = {NodeId(2): PeerTimeout("late"), NodeId(1): DiskRefused("full")}
    assert late(silent, (ONE, TWO), failures) is silent
    assert silent.message == f"{text} Failures: UNKNOWN from /10.0.0.1 (DISK_REFUSED: full)"


def test_what_a_replica_answered_is_logged_and_that_it_is_out_of_reach_is_not() -> None:
    said: list[tuple[str, dict[str, Any]]] = []

    async def test() -> None:
        log = RepeatedLog(lambda event, **facts: said.append((event, facts)))
        note_refusal(log, "write", TWO, PeerUnreachable("down"))
        assert said == []
        note_refusal(log, "write", TWO, DiskRefused("full"))

    run(test)
    assert said == [
        (
            "replica.refused",
            {"kind": "write", "node": 2, "address": "n2", "code": "DISK_REFUSED", "reason": "full"},
        )
    ]


def test_plans_are_noted_for_who_asks_and_how_the_request_ended() -> None:
    cluster = whole_ring(5, [1, 2, 3])
    book = PlanBook(lambda: cluster, lambda: 1)
    written, asked = book.write_plan(TABLE_ID, 1, QUORUM), book.read_plan(TABLE_ID, 1, QUORUM)
    notes = RequestTrace(wants_plans=True)
    mutation = upsert(1, b"a", b"x")
    late = WriteTimeout(QUORUM, 1, 2, "SIMPLE")
    notes.wrote("write", written, mutation, {NodeId(3): 5, NodeId(1): 4}, None)
    notes.wrote("repair", written, mutation, {}, late)
    notes.read(asked, read_one(1), [(NodeId(2), 5)], repaired=True)
    told = notes.told()
    assert [(plan["kind"], plan["outcome"]) for plan in told["plans"]] == [
        ("write", "ok"),
        ("repair", late.code),
        ("read", "ok"),
    ]
    first, _, last = told["plans"]
    assert first["responders"] == [{"node": 1, "epoch": 4}, {"node": 3, "epoch": 5}]
    assert (first["table"], first["tokens"]) == (TABLE_ID, [mutation.token - 1, mutation.token])
    assert (first["epoch"], first["required"], first["asked"]) == (5, 2, [1, 2, 3])
    assert (last["table"], last["tokens"], last["repaired"]) == (TABLE_ID, [0, 1], True)
    assert told["left_out"] == 0


def test_no_more_plans_are_noted_than_the_limit_and_none_for_who_does_not_ask() -> None:
    cluster = whole_ring(5, [1, 2, 3])
    plan = PlanBook(lambda: cluster, lambda: 1).read_plan(TABLE_ID, 1, QUORUM)
    asked, silent = RequestTrace(wants_plans=True), RequestTrace()
    for _ in range(PLANS_NOTED_MAX + 2):
        for notes in (asked, silent):
            notes.read(plan, read_one(1), (), repaired=False)
    assert (len(asked.plans), asked.plans_left_out) == (PLANS_NOTED_MAX, 2)
    assert silent.told() == {"plans": [], "left_out": 0}
