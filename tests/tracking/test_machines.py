"""Transcripts of a read, of a bound, of what the background sends, and of a replica's log."""

from __future__ import annotations

import pytest

from lockstep.tracking.bounds import BoundRound, Close, Phase, RaiseBound
from lockstep.tracking.held import NOTHING, Held, MutationId, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.limits import BACKOFF_MS, PULL_IDS_MAX, STALL_MS, WRITE_TIMEOUT_US
from lockstep.tracking.range_log import Kept, RangeLog, Source, Verdict, bound_for
from lockstep.tracking.reading import AskData, AskSummary, Bring, Stage, TrackedRead
from lockstep.tracking.reconciling import Reconciler, TokenBucket, Urgency
from lockstep.tracking.summaries import Summary

ALL = frozenset((1, 2, 3))


def held(*offsets: int, log: tuple[int, int] = (1, 1)) -> Held:
    return held_of({log: of(offsets)})


def told(*offsets: int) -> Summary:
    return Summary((), held(*offsets))


def test_a_clean_read_is_one_round() -> None:
    read: TrackedRead[str] = TrackedRead((1, 2, 3), ALL, 2, 0)
    assert read.start() == [AskData(1), AskSummary(2)]
    assert read.summary(2, told(0, 1), 1) == []
    assert read.data(1, "rows", told(0, 1), 2) == []
    assert (read.stage, read.result, read.level) == (Stage.DONE, "rows", (1, 2))
    assert read.result_ids == told(0, 1)


def test_what_others_hold_is_brought_and_read_once_more() -> None:
    read: TrackedRead[str] = TrackedRead((1, 2, 3), ALL, 2, 0)
    read.start()
    read.summary(2, told(0, 1, 2), 1)
    assert read.data(1, "old", told(0), 2) == [Bring(1, 2, held(1, 2))]
    assert read.summary(1, told(0, 1), 3) == []
    assert read.summary(1, told(0, 1, 2), 4) == [AskData(1)]
    assert read.summary(1, told(0, 1, 2), 4) == [], "asked for once"
    # Meanwhile it holds more than what was told: the other one of the level brings that.
    assert read.data(1, "new", told(0, 1, 2, 3), 5) == [Bring(2, 1, held(3))]
    assert read.stage is Stage.SPREADING
    assert read.summary(2, told(0, 1, 2), 6) == []
    assert read.summary(2, told(0, 1, 2, 3), 7) == []
    assert (read.stage, read.result) == (Stage.DONE, "new")


def test_silent_replicas_are_replaced() -> None:
    read: TrackedRead[str] = TrackedRead((1, 2, 3), ALL, 2, 0)
    read.start()
    assert read.data(1, "rows", told(0), 1) == []
    assert read.tick(STALL_MS) == []
    assert read.tick(STALL_MS + 1) == [AskSummary(3)]
    assert read.summary(3, told(0), STALL_MS + 2) == []
    assert (read.stage, read.level) == (Stage.DONE, (1, 3))


def test_late_data_is_asked_of_another_replica_that_stores_it() -> None:
    read: TrackedRead[str] = TrackedRead((1, 2, 3), frozenset((1, 3)), 2, 0)
    assert read.start() == [AskData(1), AskSummary(2)]
    read.summary(2, told(0), 1)
    assert read.tick(STALL_MS + 1) == [AskData(3)], "2 is a witness"
    assert read.data(1, "late", told(0), STALL_MS + 2) == []
    # What the first one tells still counts as a summary.
    assert read.stage is Stage.ASKING
    assert read.data(3, "rows", told(0), STALL_MS + 3) == []
    assert (read.stage, read.result) == (Stage.DONE, "rows")


def test_a_bound_is_raised_once_all_closed_and_all_hold_all() -> None:
    one = BoundRound((1, 2, 3), 50)
    assert one.due() == [Close(1, 50), Close(2, 50), Close(3, 50)]
    one.closed(1, True, told(0, 1))
    one.closed(2, True, told(0, 2))
    one.holds(3, told(0, 1, 2))
    assert one.phase is Phase.CLOSING and one.due() == [Close(3, 50)]
    one.closed(3, True, told(0, 1, 2))
    assert one.phase is Phase.DELIVERING and one.due() == []
    one.holds(1, told(0, 1, 2))
    assert one.phase is Phase.DELIVERING
    one.holds(2, told(0, 1, 2))
    assert one.phase is Phase.RAISED
    assert one.due() == [RaiseBound(1, 50), RaiseBound(2, 50), RaiseBound(3, 50)]


def test_one_refusal_ends_a_bound() -> None:
    one = BoundRound((1, 2), 50)
    one.closed(1, False, told())
    assert one.phase is Phase.REFUSED and one.due() == []
    one.closed(2, True, told())
    assert one.phase is Phase.REFUSED


def test_news_are_what_was_not_acknowledged() -> None:
    one = Reconciler(1, (2, 3))
    first = one.news(2, held(0, 1), 0)
    assert first is not None and (first.added, first.whole) == (held(0, 1), True)
    assert one.news(2, held(0, 1, 2), 1) is None, "an answer may still come"
    again = one.news(2, held(0, 1, 2), BACKOFF_MS)
    assert again is not None and again.added == held(0, 1, 2)
    one.acknowledged(2, first.number)
    later = one.news(2, held(0, 1, 2), BACKOFF_MS + 1)
    assert later is not None and later.added == held(0, 1, 2), "that was the acknowledgement of older news"
    one.acknowledged(2, later.number)
    assert one.news(2, held(0, 1, 2), BACKOFF_MS + 2) is None
    fresh = one.news(2, held(0, 1, 2, 3), BACKOFF_MS + 2)
    assert fresh is not None and (fresh.added, fresh.whole) == (held(3), False)
    one.met(2, 7)
    whole = one.news(2, held(0, 1, 2, 3), BACKOFF_MS + 3)
    assert whole is not None and whole.whole


def test_what_lacks_is_fetched_once_and_of_its_owner_first() -> None:
    one = Reconciler(1, (2, 3))
    lacking = held_of({(2, 1): of((0, 1)), (3, 1): of((5,)), (4, 1): of((9,))})
    by = {2: lacking, 3: lacking}
    found = one.fetch(lacking, by, frozenset((2, 3)), 0)
    assert found[3].by_log() == {(3, 1): of((5,))}
    assert found[2].by_log() == {(2, 1): of((0, 1)), (4, 1): of((9,))}
    assert one.fetch(lacking, by, frozenset((2, 3)), 1) == {}
    one.validate()
    one.fetched(3)
    assert list(one.fetch(held(5, log=(3, 1)), by, frozenset((2, 3)), 2)) == [3]
    # Whoever is away gives what was asked of it to others.
    assert list(one.fetch(held(0, log=(2, 1)), by, frozenset((3,)), BACKOFF_MS * 4)) == [3]
    assert (
        one.fetch(
            held(*range(2000), log=(2, 2)), {2: held(*range(2000), log=(2, 2))}, frozenset((2,)), 10**6
        )[2].count
        == PULL_IDS_MAX
    )


def test_reads_never_wait_for_the_bucket_and_the_background_pays() -> None:
    bucket = TokenBucket(0, per_s=1000, burst=100)
    assert bucket.take(0, 80, Urgency.BACKGROUND)
    assert not bucket.take(0, 80, Urgency.BACKGROUND)
    assert bucket.take(0, 90, Urgency.READ)
    assert not bucket.take(100, 80, Urgency.BACKGROUND), "30 of what came are a debt"
    assert bucket.take(160, 80, Urgency.BACKGROUND)
    assert bucket.take(500, 5000, Urgency.BACKGROUND), "a message that is larger than the bucket leaves"
    assert not bucket.take(550, 10, Urgency.BACKGROUND)


def replica(node: int, kept: Kept = Kept()) -> RangeLog:  # noqa: B008
    return RangeLog(node, (1, 2, 3), kept)


def test_a_start_has_a_log_of_its_own_and_clocks_may_go_back() -> None:
    one = replica(1)
    given = [one.give(100), one.give(100), one.give(50)]
    assert [(found.start, found.offset, found.given_us) for found in given] == [
        (1, 0, 100),
        (1, 1, 101),
        (1, 2, 102),
    ]
    again = replica(1, one.kept)
    assert again.give(7) == MutationId(1, 2, 0, 103)
    again.validate()


def test_late_ids_are_refused_of_coordinators_and_delivered() -> None:
    one, now_us = replica(1), 10 * WRITE_TIMEOUT_US
    until = bound_for(now_us)
    assert not one.close(now_us, now_us), "whose clock is ahead moves no bound"
    assert one.close(until, now_us)
    late = MutationId(2, 1, 0, until)
    assert one.take(late, Source.COORDINATOR) is Verdict.LATE
    assert one.take(MutationId(2, 1, 1, until + 1), Source.COORDINATOR) is Verdict.TAKEN
    assert one.take(late, Source.DELIVERY) is Verdict.TAKEN
    assert one.take(late, Source.COORDINATOR) is Verdict.KNOWN
    assert one.give(0).given_us > until
    with pytest.raises(AssertionError):
        one.raise_bound(until + 1)
    one.raise_bound(until)
    again = replica(1, one.kept)
    assert (again.closed_us, again.bound_us) == (until, until)
    assert again.take(MutationId(3, 1, 0, until), Source.COORDINATOR) is Verdict.LATE


def test_what_all_told_is_reconciled_and_old_logs_leave() -> None:
    logs = {node: replica(node) for node in (1, 2, 3)}
    given = logs[1].give(5)
    for node in (2, 3):
        assert logs[node].take(given, Source.COORDINATOR) is Verdict.TAKEN
    logs[1].hear(logs[2].tell())
    assert logs[1].reconciled == NOTHING and logs[1].unreconciled == held(0)
    logs[1].hear(logs[3].tell())
    assert logs[1].reconciled == held(0) and not logs[1].unreconciled
    again = replica(1, logs[1].kept)
    again.hear(logs[2].tell())
    assert again.held == NOTHING and given in again.summary, "its old log is over"
    assert dict(again.summary.floors)[1] == 2
    logs[2].hear(again.tell())
    assert logs[2].held == NOTHING and given in logs[2].summary, "a floor is true for all"
    assert logs[2].take(given, Source.COORDINATOR) is Verdict.KNOWN
    for log in (again, logs[2]):
        log.validate()
