"""Joins make generations of change data capture: when they are committed, published and dropped."""

from __future__ import annotations

import random

import msgspec
import pytest

from lockstep.coordination.capturing import stream_of
from lockstep.metadata.cdc import Generation, write_allowed
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import CreateTable, DropTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.topology.generations import PublishGenerations, RepairStreams, Unaware, publication
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.step import Propose, Reports, Wait, WorkReport, step
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.errors import Overloaded
from lockstep.values.ids import NodeId
from lockstep.values.limits import CDC_GENERATIONS_KEPT_MAX
from lockstep.values.node_limits import CDC_POSTPONED_MS
from tests.metadata.histories import History, simple, started
from tests.metadata.stored import REGISTERED, from_stored, stored
from tests.topology.drills import Coordinator, refused, register, replacing, run_out

RING_DELAY_MS = 30_000
LEEWAY_MS = 5_000
AHEAD_MS = 2 * RING_DELAY_MS + LEEWAY_MS
NOON_MS = 1_767_268_800_000


def joining(*tokens: int, factor: int = 1) -> History:
    """Three nodes, and one more for each token, whose join has begun."""
    history = started([(0,), (1000,), (2000,)], ("ks", simple(factor)))
    for number, token in enumerate(tokens, 4):
        history.submit(register(number, "dc1", "r1"))
        history.submit(PrepareOperation(Bootstrap(NodeId(number), (token,))))
    return history


def commit(history: History, operation: int, at_ms: int = NOON_MS) -> Generation:
    history.submit(AdvanceOperation(operation, Stage.JOIN_GROUP0, 0, at_ms))
    return history.now.generations[-1]


def publish(history: History, made: Generation, at_ms: int = NOON_MS) -> tuple[Generation, ...]:
    history.submit(PublishGenerations(made.committed_epoch, at_ms))
    return history.now.generations


def ends(generation: Generation) -> list[int]:
    return list(generation.range_ends())


def test_a_new_cluster_has_a_generation_that_counts_at_once() -> None:
    (first,) = joining().now.generations
    assert first.is_published and first.operation_id == 0 and ends(first) == [0, 1000, 2000]


def test_scenario_24_a_join_commits_a_generation_that_is_published_before_it_takes_effect() -> None:
    history = joining(500)
    made = commit(history, 1)
    assert history.now.operations[0].stage is Stage.COMMIT_CDC_GENERATION
    assert made.timestamp_ms >= NOON_MS + 2 * RING_DELAY_MS + LEEWAY_MS and not made.is_published
    assert ends(made) == [0, 500, 1000, 2000], "the ring as it will be"
    history.submit(AdvanceOperation(1, Stage.COMMIT_CDC_GENERATION))
    assert history.now.operations[0].stage is Stage.WRITE_BOTH_READ_OLD and not made.is_published
    published = publish(history, made, NOON_MS + 1000)[-1]
    assert published.published_epoch == history.now.epoch and published.timestamp_ms == made.timestamp_ms
    known, takes_effect_us = history.now.generations, made.timestamp_ms * 1000
    off_us = (LEEWAY_MS + 1) * 1000
    assert "ahead of" in write_allowed(known, takes_effect_us, takes_effect_us - off_us)
    assert "behind" in write_allowed(known, takes_effect_us - 1, takes_effect_us - 1 + off_us)
    assert not write_allowed(known, takes_effect_us - 1, takes_effect_us - 1 + LEEWAY_MS * 1000 - 1000)


def test_news_that_took_too_long_moves_the_timestamp_into_the_future_again() -> None:
    history = joining(500)
    made = commit(history, 1)
    late_ms = made.timestamp_ms - RING_DELAY_MS
    published = publish(history, made, late_ms)[-1]
    assert published.timestamp_ms >= late_ms + AHEAD_MS and published.id == made.id
    assert "no generation of streams is to be published" in refused(
        history, PublishGenerations(made.committed_epoch, late_ms)
    )
    assert history.replayed() == history.now


def test_nobody_writes_at_the_times_of_a_generation_that_is_not_published() -> None:
    history = joining(500)
    (first,), made = history.now.generations, commit(history, 1)
    known, begins_us = history.now.generations, made.timestamp_ms * 1000
    assert stream_of(known, [begins_us - 1], 500, begins_us) == first.stream_for(500)
    with pytest.raises(Overloaded, match="not known to all replicas yet"):
        stream_of(known, [begins_us], 500, begins_us)
    known = publish(history, made)
    assert stream_of(known, [begins_us], 500, begins_us) == made.stream_for(500) != first.stream_for(500)


def test_generations_count_later_while_somebody_does_not_know_them() -> None:
    history = joining(500, 1500)
    one, two = commit(history, 1), commit(history, 2, NOON_MS + 200)
    # Only the first is known everywhere, and late by now; so is the second.
    late_ms = one.timestamp_ms - RING_DELAY_MS
    _, one, two = publish(history, one, late_ms)
    assert one.is_published and one.timestamp_ms == late_ms + AHEAD_MS
    assert not two.is_published and two.timestamp_ms == late_ms + CDC_POSTPONED_MS
    assert "no generation" in refused(history, PublishGenerations(one.committed_epoch, late_ms))
    _, one, two = publish(history, two, late_ms + 1)
    assert two.is_published and two.timestamp_ms == late_ms + CDC_POSTPONED_MS


def captured_joining() -> History:
    history = joining(500)
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    options = (("cdc", (("enabled", "true"),)),)
    history.submit(ChangeSchema(CreateTable("ks", "t", uuid_of("t"), columns, options)))
    return history


def aware(history: History, *behind: int) -> dict[NodeId, int]:
    """What nodes have applied: all, but for those that lack the newest generation."""
    made = history.now.generations[-1].committed_epoch
    return {node: made - (node in behind) for node in history.now.directory.by_id}


def test_the_coordinator_publishes_what_every_node_that_lives_knows() -> None:
    history = joining(500)
    made = commit(history, 1)
    assert publication(history.now, aware(history), (), NOON_MS) == PublishGenerations(
        made.committed_epoch, NOON_MS
    )
    waits = Unaware(made.committed_epoch, ((NodeId(2), made.committed_epoch - 1),))
    assert publication(history.now, aware(history, 2), (), NOON_MS) == waits
    dead = publication(history.now, aware(history, 2), (NodeId(2),), NOON_MS)
    assert isinstance(dead, PublishGenerations), "nothing is captured that it could write"
    publish(history, made)
    assert publication(history.now, aware(history), (), NOON_MS) is None


def test_a_generation_counts_later_while_a_replica_of_captured_tables_is_down() -> None:
    history = captured_joining()
    made = commit(history, 1)
    down, late_ms = (NodeId(2),), made.timestamp_ms - RING_DELAY_MS
    waits = Unaware(made.committed_epoch, ((NodeId(2), made.committed_epoch - 1),))
    assert publication(history.now, aware(history, 2), down, NOON_MS) == waits, (
        "it may serve clients, cut off"
    )
    for at_ms in (late_ms, late_ms + CDC_POSTPONED_MS):
        entry = publication(history.now, aware(history, 2), down, at_ms)
        assert isinstance(entry, PublishGenerations)
        history.submit(entry)
        moved = history.now.generations[-1]
        assert not moved.is_published and moved.timestamp_ms == at_ms + CDC_POSTPONED_MS
        assert publication(history.now, aware(history, 2), down, at_ms) == waits, "once in a while"
    history.submit(ExcludeNodes(down, "drill"))
    entry = publication(history.now, aware(history, 2), down, at_ms)
    assert isinstance(entry, PublishGenerations), "its writes count for nobody"
    history.submit(entry)
    assert history.now.generations[-1] == msgspec.structs.replace(moved, published_epoch=history.now.epoch)


def test_a_generation_that_writers_may_hold_on_to_makes_no_room_for_another() -> None:
    history = joining()
    for number in range(4, 3 + CDC_GENERATIONS_KEPT_MAX):
        join(history, number, NOON_MS)
    known = history.now.generations
    assert len(known) == CDC_GENERATIONS_KEPT_MAX and known[-1].is_published
    history.submit(register(number + 1, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(number + 1), (7777,))))
    operation = history.now.operations[-1].id
    commit(history, operation)
    assert history.now.generations == known
    run_out(history, operation)
    assert ends(history.now.generations[-1]) != list(history.now.directory.circle.tokens)


@pytest.mark.parametrize("at_ms", [0, 1, NOON_MS - 86_400_000])
def test_a_slow_clock_makes_a_later_timestamp_and_blocks_no_join(at_ms: int) -> None:
    history = joining(500, 1500)
    commit(history, 1)
    before = publish(history, history.now.generations[-1])[-1]
    made = commit(history, 2, at_ms)
    assert made.timestamp_ms == before.timestamp_ms + 1
    publish(history, made, at_ms)
    run_out(history, 1)
    run_out(history, 2)


def test_parallel_joins_share_their_rings_and_the_later_publication_brings_the_earlier() -> None:
    history = joining(500, 1500)
    one, two = commit(history, 1), commit(history, 2)
    assert ends(one) == [0, 500, 1000, 2000] and ends(two) == [0, 500, 1000, 1500, 2000]
    assert one.timestamp_ms < two.timestamp_ms
    found = publish(history, two, NOON_MS + AHEAD_MS)
    assert all(generation.is_published for generation in found), "who knows the later knows the earlier"
    assert found[1].timestamp_ms >= NOON_MS + 2 * AHEAD_MS and found[1].timestamp_ms < found[2].timestamp_ms


def test_the_earlier_publication_leaves_the_later_until_it_is_known() -> None:
    history = joining(500, 1500)
    made = commit(history, 1)
    commit(history, 2)
    found = publish(history, made, NOON_MS + AHEAD_MS)
    assert [one.is_published for one in found] == [True, True, False]
    assert found[1].timestamp_ms < found[2].timestamp_ms


def test_a_join_that_is_cancelled_before_publication_leaves_no_generation() -> None:
    history = joining(500)
    before = history.now.generations
    commit(history, 1)
    history.submit(CancelOperation(1))
    assert history.now.generations == before
    run_out(history, 1)
    # It may come again.
    history.submit(PrepareOperation(Bootstrap(NodeId(4), (500,))))
    assert ends(commit(history, 2)) == [0, 500, 1000, 2000]


def test_a_published_generation_stays_when_its_join_is_cancelled() -> None:
    history = joining(500)
    published = publish(history, commit(history, 1))
    history.submit(CancelOperation(1))
    run_out(history, 1)
    assert history.now.generations == published


@pytest.mark.parametrize("kind", [Decommission, Move, Remove])
def test_only_joins_make_generations(kind: type) -> None:
    history = joining(factor=2)
    before = history.now.generations
    history.submit(PrepareOperation(kind(NodeId(3), *([(1500,)] if kind is Move else []))))
    run_out(history, 1)
    assert history.now.generations == before


def test_a_node_without_tokens_and_a_replacement_make_none() -> None:
    history = joining(factor=2)
    before = history.now.generations
    dead = history.now.directory.by_id[NodeId(3)]
    history.submit(msgspec.structs.replace(register(4, "dc1", "r1"), num_tokens=0))
    history.submit(PrepareOperation(Bootstrap(NodeId(4))))
    run_out(history, 1)
    history.submit(replacing(5, dead))
    history.submit(PrepareOperation(Replace(NodeId(5), dead.id)))
    run_out(history, 2)
    assert history.now.generations == before


def join(history: History, number: int, at_ms: int, is_known: bool = True) -> None:
    history.submit(register(number, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(number), (number * 7 + 1,))))
    operation = history.now.operations[-1].id
    made = commit(history, operation, at_ms)
    if is_known:
        publish(history, made, at_ms)
    run_out(history, operation)


def test_what_was_superseded_long_ago_is_dropped_by_later_joins() -> None:
    history = joining()
    for number in range(4, 10):
        join(history, number, NOON_MS + number * 600_000)
    assert [one.operation_id for one in history.now.generations] == [5, 6]
    # Superseded by one that takes effect just now: clocks differ, so it is kept.
    last = history.now.generations[-1]
    join(history, 10, last.timestamp_ms + LEEWAY_MS)
    assert [one.operation_id for one in history.now.generations] == [5, 6, 7]


def uuid_of(name: str) -> str:
    return f"00000000-0000-4000-8000-{name.encode().hex():0>12}"


def test_a_generation_is_kept_as_long_as_logs_have_what_was_written_to_it() -> None:
    history = joining()
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    for name, ttl_s in (("short", "60"), ("long", "1500"), ("off", None)):
        options = (("cdc", (("ttl", ttl_s), ("enabled", "true"))),) if ttl_s else ()
        history.submit(ChangeSchema(CreateTable("ks", name, uuid_of(name), columns, options)))
    for number in range(4, 10):
        join(history, number, NOON_MS + number * 600_000)
    assert [one.operation_id for one in history.now.generations] == [3, 4, 5, 6]
    history.submit(ChangeSchema(DropTable("ks", "long")))
    join(history, 10, NOON_MS + 10 * 600_000)
    assert [one.operation_id for one in history.now.generations] == [6, 7]
    for_ever = (("cdc", (("ttl", "0"), ("enabled", "true"))),)
    history.submit(ChangeSchema(CreateTable("ks", "ever", uuid_of("ever"), columns, for_ever)))
    for number in range(11, 11 + CDC_GENERATIONS_KEPT_MAX):
        join(history, number, NOON_MS + number * 600_000)
    kept = [one.operation_id for one in history.now.generations]
    assert len(kept) == CDC_GENERATIONS_KEPT_MAX and kept[-1] == number - 3, "the oldest made room"


def test_streams_are_made_to_fit_the_ring_again() -> None:
    history = joining(factor=2)
    assert "fit the ring already" in refused(history, RepairStreams(NOON_MS))
    history.submit(PrepareOperation(Move(NodeId(3), (1500,))))
    run_out(history, 1)
    history.submit(RepairStreams(NOON_MS))
    first, made = history.now.generations
    assert ends(first) == [0, 1000, 2000] and ends(made) == [0, 1000, 1500]
    assert not made.is_published and made.timestamp_ms == NOON_MS + AHEAD_MS
    assert "fit the ring already" in refused(history, RepairStreams(NOON_MS))
    publish(history, made)
    assert "fit the ring already" in refused(history, RepairStreams(NOON_MS + 1))
    history.submit(register(4, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(4), (500,))))
    commit(history, 2)
    assert "are made already" in refused(history, RepairStreams(NOON_MS))


def test_joins_faster_than_generations_are_known_keep_the_present_one_and_a_bounded_number() -> None:
    history = joining()
    for number in range(4, 4 + 2 * CDC_GENERATIONS_KEPT_MAX):
        join(history, number, NOON_MS, is_known=False)
        assert len(history.now.generations) <= CDC_GENERATIONS_KEPT_MAX
    assert history.now.generations[0].operation_id == 0
    assert set(ends(history.now.generations[-1])) == set(history.now.directory.circle.tokens)


def test_the_coordinator_puts_its_clock_into_the_entries_that_need_it() -> None:
    history = joining(500)
    for stage, at_ms in ((Stage.JOIN_GROUP0, NOON_MS), (Stage.COMMIT_CDC_GENERATION, 0)):
        if stage is Stage.COMMIT_CDC_GENERATION:
            made = commit(history, 1)
            known = dict.fromkeys(history.now.directory.by_id, history.now.epoch)
            publishes = Propose(PublishGenerations(made.committed_epoch, NOON_MS), 0)
            assert step(history.now, Reports(acknowledged=known, at_ms=NOON_MS)) == publishes
            publish(history, made)
        known = dict.fromkeys(history.now.directory.by_id, history.now.epoch)
        work = {(1, history.now.operations[0].session_id, NodeId(4)): WorkReport.DONE}
        decision = step(history.now, Reports(acknowledged=known, work=work, at_ms=NOON_MS))
        assert decision == Propose(AdvanceOperation(1, stage, 0, at_ms), 1)
        assert not isinstance(step(history.now, Reports(at_ms=NOON_MS)), Propose)
    history = joining(500)
    commit(history, 1)
    blocked = step(history.now, Reports(at_ms=NOON_MS))
    assert isinstance(blocked, Wait) and "to publish streams" in blocked.blockers[-1][1]


def test_another_coordinator_finishes_the_stage() -> None:
    history = joining(500)
    commit(history, 1)
    Coordinator(history, random.Random(1)).finish()
    assert history.now.operations == () and all(one.is_published for one in history.now.generations)
    assert "not running" in refused(history, AdvanceOperation(1, Stage.COMMIT_CDC_GENERATION))


def test_generations_are_part_of_images_snapshots_and_digests() -> None:
    history = joining(500)
    before = history.now
    commit(history, 1)
    now = history.now
    decoder = SnapshotDecoder(registered=REGISTERED)
    for piece in pieces(now):
        decoder.feed(piece)
    assert decoder.finish().generations == now.generations == from_stored(stored(now)).generations
    assert state_digest(now) != state_digest(before)
