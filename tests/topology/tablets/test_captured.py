"""Streams of captured tables with tablets: what splits and merges open and close, from when on they count,
and what waits for it."""

from __future__ import annotations

import random

import msgspec
import pytest

from lockstep.coordination.capturing import is_in_time, stream_of, streams_of
from lockstep.metadata.cdc import Counting
from lockstep.metadata.schema_change import ChangeCaptured, ChangeSchema
from lockstep.metadata.table_streams import STREAMS, StreamSet, TableStreams, kept_sets
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step
from lockstep.metadata.tablets import ResizePhase
from lockstep.placement.tablets.load import GIB
from lockstep.placement.tablets.resize import Resize
from lockstep.quorum.plans import PlanBook
from lockstep.schema.changes import AlterOptions, DropTable, EmptyTable
from lockstep.schema.model import Table
from lockstep.topology.invariants import check_stale_coordinators, violations
from lockstep.topology.tablets.moves import BeginMoves
from lockstep.topology.tablets.resizes import AdvanceCaptured, AdvanceResize, PublishStreams
from lockstep.values.errors import InvalidRequest, Overloaded
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import CDC_LEEWAY_MS
from lockstep.values.node_limits import (
    CDC_TABLETS_AHEAD_MS,
    CDC_TABLETS_POSTPONED_MS,
    STREAM_SETS_KEPT_MAX,
)
from lockstep.values.rows import Cell, Liveness, Mutation, Row
from lockstep.values.tokens import stream_token
from tests.metadata.histories import History
from tests.topology.lone import World
from tests.topology.tablets.test_migration import take
from tests.topology.tablets.test_migration import world as on_ring
from tests.topology.tablets.test_resizes import (
    MERGE,
    SPLIT,
    Driven,
    decide,
    refused,
    resizing,
    together,
)
from tests.topology.tablets.worlds import TABLE, begin, cluster, map_of, move

AT_MS = 1_800_000_000_000
ON = (("cdc", (("enabled", "true"), ("ttl", "100"))),)
OFF = (("cdc", (("enabled", "false"),)),)
LOG = "t_scylla_cdc_log"


def captured(history: History, at_ms: int = AT_MS, options: object = ON) -> None:
    before = history.now
    history.submit(ChangeCaptured(ChangeSchema(AlterOptions("k", "t", options)), at_ms))
    history.now.validate(before)


def streams(history: History) -> TableStreams:
    (found,) = history.now.parts[STREAMS]
    return found


def table(history: History, name: str = "t") -> Table:
    found = history.now.schema.table("k", name)
    assert found is not None
    return found


def step(history: History, at_ms: int, **more: object) -> AdvanceCaptured:
    (group,) = history.now.tablets.groups
    known = history.now.epoch if resizing(history).phase is ResizePhase.CLOSING else 0
    entry = AdvanceResize(group.id, resizing(history).epoch, known)
    return AdvanceCaptured(msgspec.structs.replace(entry, **more), at_ms)


def advance(history: History, at_ms: int, **more: object) -> None:
    before = history.now
    history.submit(step(history, at_ms, **more))
    history.now.validate(before)
    assert violations(before, history.now) == ()
    assert check_stale_coordinators(history.values[-6:], {}) == ()


def publish(history: History, at_ms: int, are_known: bool = True) -> PublishStreams:
    known = streams(history)
    return PublishStreams(known.group, known.newest.epoch, at_ms, are_known)


def told(history: History, entry: PublishStreams) -> None:
    before = history.now
    history.submit(entry)
    history.now.validate(before)


def recut(history: History, resize: Resize, at_ms: int) -> None:
    """To a new map, whose streams everybody knows."""
    decide(history, resize)
    for _ in range(2):
        advance(history, at_ms)
    told(history, publish(history, at_ms))


def resized(history: History, resize: Resize, at_ms: int) -> int:
    """Through all phases; when the new streams take everything."""
    recut(history, resize, at_ms)
    end_ms = streams(history).settled_ms
    advance(history, end_ms)
    return end_ms


def rights(history: History) -> list[int]:
    return [tablet.right for tablet in map_of(history).tablets()]


def tokens(one: StreamSet) -> list[int]:
    return [stream_token(stream) for stream in one.streams]


def test_a_captured_table_has_a_stream_for_each_tablet_and_its_log_lies_with_it() -> None:
    history = cluster(tablets=4)
    captured(history)
    (first,) = streams(history).sets
    assert tokens(first) == rights(history) and len(set(first.streams)) == 4
    assert all(len(one) == 16 and one[15] & 15 == 1 for one in first.streams), "of the source's version"
    assert first.timestamp_ms == AT_MS - CDC_LEEWAY_MS, "clocks of coordinators may be behind"
    assert table(history, LOG).group == table(history).group == map_of(history).id
    assert len(history.now.tablets.groups) == 1, "a log is no table of its own for the balancer"
    history.submit(ChangeSchema(DropTable("k", "t")))
    assert history.now.parts[STREAMS] == () and history.now.tablets.groups == ()
    assert history.replayed() == history.now


def test_a_table_may_be_made_captured_and_stop_and_begin_again() -> None:
    history = cluster(tablets=4)
    history.submit(ChangeSchema(DropTable("k", "t")))
    history.submit(ChangeCaptured(ChangeSchema(msgspec.structs.replace(TABLE, options=ON)), AT_MS))
    (first,) = streams(history).sets
    captured(history, AT_MS + 1, OFF)
    assert streams(history).sets == (first,), "the log is still read"
    history.submit(ChangeSchema(EmptyTable("k", LOG)))
    assert streams(history).sets == (first,)
    captured(history, AT_MS + 2)
    assert streams(history).sets == (first,), "streams go on"
    captured(history, AT_MS + 3, OFF)
    history.submit(ChangeSchema(DropTable("k", LOG)))
    assert history.now.parts[STREAMS] == ()
    captured(history, AT_MS + 4)
    assert streams(history).newest.streams != first.streams, "another log has streams of its own"
    assert history.replayed() == history.now


def test_streams_need_a_time() -> None:
    history = cluster(tablets=4)
    refusal = history.tried(ChangeSchema(AlterOptions("k", "t", ON)))
    assert refusal is not None and "does not say from when" in refusal.message
    captured(history)
    decide(history, Resize(SPLIT, 1))
    assert "does not say when it was made" in refused(history, step(history, AT_MS).step)
    history = cluster(tablets=4)
    decide(history, Resize(SPLIT, 1))
    assert "are not captured" in refused(history, step(history, AT_MS))


def test_scenario_23_of_a_split_streams_follow_tablets_and_the_difference_gives_the_set() -> None:
    """Given a captured table, when it splits, then new streams have a later timestamp, what is opened and
    closed gives the new set, and log and base share replicas."""
    history = cluster(tablets=4)
    captured(history)
    end_ms = resized(history, Resize(SPLIT, 1), AT_MS + 1000)
    first, second = streams(history).sets
    assert second.timestamp_ms == AT_MS + 1000 + CDC_TABLETS_AHEAD_MS > first.timestamp_ms
    assert end_ms == second.timestamp_ms + CDC_LEEWAY_MS
    assert tokens(second) == rights(history) and second.count == 8
    (_, nothing, all_of_it), (_, closed, opened) = streams(history).told()
    assert nothing == () and all_of_it == first.streams
    assert set(first.streams) - set(closed) | set(opened) == set(second.streams)
    book = PlanBook(lambda: history.now, lambda: NodeId(1))
    log, base = table(history, LOG), table(history)
    for tablet in map_of(history).tablets():
        for token in (tablet.range.left + 1, tablet.right):
            stream = second.stream_for(token)
            assert stream_token(stream) == tablet.right
            plans = [
                book.write_plan(base.id, token, Consistency.QUORUM),
                book.write_plan(log.id, stream_token(stream), Consistency.QUORUM),
            ]
            assert plans[0].by_node.keys() == plans[1].by_node.keys()
    end_ms = resized(history, Resize(SPLIT, 3, (rights(history)[2],)), end_ms)
    _, second, third = streams(history).sets
    alone = [at for at in range(8) if at != 2]
    assert [third.streams[at if at < 2 else at + 1] for at in alone] == [second.streams[at] for at in alone]
    (*_, (_, closed, opened)) = streams(history).told()
    assert closed == (second.streams[2],) and opened == third.streams[2:4], "the others keep their streams"
    assert history.replayed() == history.now


def test_a_merge_closes_two_streams_and_no_stream_is_opened_again() -> None:
    history = cluster(tablets=4)
    captured(history)
    together(history)
    end_ms = resized(history, Resize(MERGE, 1), AT_MS)
    (*_, (second, closed, opened)) = streams(history).told()
    assert len(closed) == 4 and len(opened) == 2 and tokens(second) == rights(history)
    end_ms = resized(history, Resize(SPLIT, 3), end_ms)
    seen: set[bytes] = set()
    for _, _, opened in streams(history).told():
        assert not seen & set(opened)
        seen |= set(opened)
    assert history.replayed() == history.now


def test_a_write_goes_to_the_stream_of_the_tablet_that_its_time_says() -> None:
    history = cluster(tablets=4)
    captured(history)
    recut(history, Resize(SPLIT, 1), AT_MS)
    first, second = streams(history).sets
    sets = streams_of(history.now, table(history))
    token, begins_us = map_of(history).ring.ranges[0].range.right, second.timestamp_ms * 1000
    now_us = begins_us - 1_000_000

    def at(*times_us: int, now_us: int = now_us) -> bytes:
        return stream_of(sets, times_us, token, now_us)

    assert at(begins_us - 1) == first.stream_for(token) != second.stream_for(token)
    assert at(begins_us) == second.stream_for(token), "within the leeway of the clock"
    with pytest.raises(InvalidRequest, match="both sides of a change of streams"):
        at(begins_us - 1, begins_us)
    with pytest.raises(InvalidRequest, match="ahead of this server's time"):
        at(now_us + 6_000_000)
    late_us = begins_us + 10_000_000
    assert at(begins_us + 1, now_us=late_us) == second.stream_for(token), "the present streams take it"
    with pytest.raises(InvalidRequest, match="superseded since"):
        at(begins_us - 1, now_us=late_us)
    with pytest.raises(InvalidRequest, match="no stream generation is known"):
        at(first.timestamp_ms * 1000 - 1)


def test_what_was_captured_by_older_streams_is_planned_anew_once_others_count() -> None:
    history = cluster(tablets=4)
    captured(history)
    base, log = table(history), table(history, LOG)
    old = streams(history).newest
    recut(history, Resize(SPLIT, 1), AT_MS)
    begins_us = streams(history).newest.timestamp_ms * 1000
    token = map_of(history).ring.ranges[0].range.right

    def write(at_us: int, one: Counting) -> Mutation:
        stream = one.stream_for(token)
        row = Row(b"c", Liveness(at_us), None, (Cell(4, b"\x01", at_us),))
        told = Mutation(log.id, stream_token(stream), stream, b"i" * 16, at_us, rows=(row,))
        return Mutation(base.id, token, b"key", b"i" * 16, at_us, captured=told)

    assert is_in_time(history.now, write(begins_us - 1, old))
    assert not is_in_time(history.now, write(begins_us, old))
    assert is_in_time(history.now, write(begins_us, streams(history).newest))
    assert not is_in_time(history.now, write(begins_us - 1, streams(history).newest))


def test_nothing_moves_until_the_streams_of_a_new_map_count() -> None:
    history = cluster(tablets=4)
    captured(history)
    recut(history, Resize(SPLIT, 1), AT_MS)
    settled_ms = streams(history).settled_ms
    assert "do not count yet" in refused(history, step(history, settled_ms - 1))
    assert "is settling" in refused(history, BeginMoves(0, (move(history),)))
    advance(history, settled_ms)
    begin(history, move(history))


def test_streams_expire_with_the_log_and_too_many_hold_up_a_split() -> None:
    history = cluster(tablets=4)
    captured(history)
    end_ms = resized(history, Resize(SPLIT, 1, (rights(history)[0],)), AT_MS)
    known = streams(history)
    begins_ms = known.newest.timestamp_ms
    last_ms = begins_ms + 2 * CDC_LEEWAY_MS + 100_000
    assert kept_sets(known, table(history), last_ms) == known.sets
    assert kept_sets(known, table(history), last_ms + 1) == known.sets[1:]
    resized(history, Resize(SPLIT, 3, (rights(history)[0],)), last_ms + 1)
    assert streams(history).sets[0] == known.sets[1] and len(streams(history).sets) == 2
    captured(history, end_ms, (("cdc", (("enabled", "true"), ("ttl", "0"))),))
    sequence = 5
    while len(streams(history).sets) < STREAM_SETS_KEPT_MAX:
        end_ms = resized(history, Resize(SPLIT, sequence, (rights(history)[-1],)), end_ms)
        sequence += 2
    decide(history, Resize(SPLIT, sequence, (rights(history)[0],)))
    advance(history, end_ms)
    assert "has rows of 64 sets of streams" in refused(history, step(history, end_ms))


def test_a_log_that_is_made_while_a_tablet_moves_has_its_stream_begin_anew() -> None:
    history = cluster(tablets=4)
    wanted = move(history)
    begin(history, wanted)
    world = World(history, random.Random(1))
    while not any(one.position.stage == "streaming" for one in history.now.transitions.listed()):
        world.round()
    (before,) = history.now.transitions.listed()
    captured(history)
    (after,) = history.now.transitions.listed()
    assert after.position.session_id != before.position.session_id
    assert after.position.stage_epoch == history.now.epoch
    while history.now.transitions.count:
        world.round()


def test_keyspaces_between_the_ring_and_tablets_do_not_begin_to_capture() -> None:
    history = on_ring()
    take(history, Step.START)
    refusal = history.tried(ChangeCaptured(ChangeSchema(AlterOptions("k", "t", ON)), AT_MS))
    assert refusal is not None and "on its way from the ring to tablets" in refusal.message
    take(history, Step.FINALIZE)
    captured(history)
    rights = [placed.range.right for placed in history.now.placements.ring(table(history).group).ranges]
    assert tokens(streams(history).newest) == rights
    history = on_ring()
    history.submit(ChangeSchema(AlterOptions("k", "t", ON)))
    refusal = history.tried(MigrateKeyspace("k", Step.START))
    assert refusal is not None and "by streams of ranges of its ring" in refusal.message
    history.submit(ChangeSchema(AlterOptions("k", "t", OFF)))
    take(history, Step.START)
    assert table(history, LOG).group == table(history).group, "what is left to read lies with its table"


def pending(history: History) -> StreamSet:
    """What a split has made, before everybody knows it."""
    captured(history)
    decide(history, Resize(SPLIT, 1))
    for _ in range(2):
        advance(history, AT_MS)
    newest = streams(history).newest
    assert not newest.is_published and newest.timestamp_ms == AT_MS + CDC_TABLETS_AHEAD_MS
    return newest


def test_nobody_writes_at_the_times_of_streams_that_are_not_published() -> None:
    history = cluster(tablets=4)
    begins_us = pending(history).timestamp_ms * 1000
    first, _ = streams(history).sets
    sets, token = streams_of(history.now, table(history)), map_of(history).ring.ranges[0].range.right
    assert stream_of(sets, [begins_us - 1], token, begins_us) == first.stream_for(token)
    with pytest.raises(Overloaded, match="not known to all replicas yet"):
        stream_of(sets, [begins_us], token, begins_us)
    row = Row(b"c", Liveness(begins_us), None, (Cell(4, b"\x01", begins_us),))
    stream = first.stream_for(token)
    told = Mutation(table(history, LOG).id, stream_token(stream), stream, b"i" * 16, begins_us, rows=(row,))
    late = Mutation(table(history).id, token, b"key", b"i" * 16, begins_us, captured=told)
    assert not is_in_time(history.now, late), "who did not know them plans anew, and is refused"


def test_streams_are_published_once_everybody_knows_them_and_never_late() -> None:
    history = cluster(tablets=4)
    begins_ms = pending(history).timestamp_ms
    in_time_ms = begins_ms - 2 * CDC_LEEWAY_MS
    assert "do not count yet" in refused(history, step(history, begins_ms + 99_000))
    told(history, publish(history, in_time_ms))
    assert streams(history).newest.timestamp_ms == begins_ms and streams(history).newest.is_published
    assert "are to be published" in refused(history, publish(history, in_time_ms))
    assert history.replayed() == history.now
    history = cluster(tablets=4)
    pending(history)
    told(history, publish(history, in_time_ms + 1))
    moved_ms = in_time_ms + 1 + CDC_TABLETS_AHEAD_MS
    assert streams(history).newest.timestamp_ms == moved_ms > begins_ms, "who did not know them wrote before"
    assert streams(history).newest.is_published


def test_streams_count_later_while_somebody_does_not_know_them() -> None:
    history = cluster(tablets=4)
    begins_ms = pending(history).timestamp_ms
    entry = publish(history, begins_ms - CDC_TABLETS_POSTPONED_MS, are_known=False)
    assert "count later than that" in refused(history, entry)
    told(history, publish(history, begins_ms, are_known=False))
    assert streams(history).newest.timestamp_ms == begins_ms + CDC_TABLETS_POSTPONED_MS
    assert streams(history).published == streams(history).sets[:1], "it is told of none"
    told(history, publish(history, begins_ms + 1000))
    assert streams(history).newest.timestamp_ms == begins_ms + CDC_TABLETS_POSTPONED_MS
    assert streams(history).published == streams(history).sets
    assert history.replayed() == history.now


def test_the_leader_has_streams_count_later_while_a_replica_is_down() -> None:
    history = cluster(tablets=4)
    captured(history)
    driven = Driven(history, 11 * GIB)
    driven.at_ms = AT_MS
    while resizing(history).phase is not ResizePhase.SETTLING:
        driven.once()
    begins_ms = streams(history).newest.timestamp_ms
    driven.dead = driven.unready = (map_of(history).at(0).nodes[0],)
    for _ in range(4):
        looked = driven.once()
    assert looked.entry is None and "not yet on node" in looked.waits[0].reason
    driven.at_ms = begins_ms - 2 * CDC_LEEWAY_MS + 1
    looked = driven.once()
    assert isinstance(looked.entry, PublishStreams) and not looked.entry.are_known
    assert driven.once().entry is None, "once a minute"
    driven.dead = driven.unready = ()
    while streams(history).newest.is_pending:
        looked = driven.once()
    assert isinstance(looked.entry, PublishStreams) and looked.entry.are_known
    assert streams(history).newest.timestamp_ms == driven.at_ms + CDC_TABLETS_POSTPONED_MS


def test_the_leader_waits_until_streams_count_and_says_so() -> None:
    history = cluster(tablets=4)
    captured(history)
    driven = Driven(history, 11 * GIB)
    driven.at_ms = AT_MS
    while resizing(history).phase is not ResizePhase.SETTLING:
        driven.once()
    for _ in range(4):
        looked = driven.once()
    (waiting,) = looked.waits
    assert waiting.for_time and "its streams of changes count in 20 s" in waiting.reason
    assert looked.entry is None and looked.question is None
    driven.at_ms = streams(history).settled_ms
    driven.once()
    assert resizing(history).phase is ResizePhase.NONE
