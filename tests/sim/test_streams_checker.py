"""The checkers of streams of changes of tables with tablets: histories, logs and disks with one fault each,
and without one."""

from __future__ import annotations

import functools
import itertools
from array import array

import msgspec
import pytest

from lockstep.metadata.cdc import GENERATIONS, Generation, packed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.table_streams import STREAMS, StreamSet, TableStreams
from lockstep.placement.tablets.resize import Resize, ResizeKind
from lockstep.schema.log_tables import is_log
from lockstep.sim.checkers.captured import INSERT, Logged, Wrote
from lockstep.sim.checkers.streams import (
    GenerationsWatch,
    HeldChange,
    StreamsWatch,
    check_held_changes,
    check_streams,
    open_streams,
)
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.values.ids import NodeId
from tests.topology.tablets.test_captured import AT_MS, captured, resized
from tests.topology.tablets.worlds import cluster

BEGAN_MS = AT_MS + 100_000


@functools.cache
def values() -> tuple[ClusterMetadata, ...]:
    """Of a captured table that splits and is merged again."""
    found = cluster(tablets=4)
    captured(found)
    end_ms = resized(found, Resize(ResizeKind.SPLIT, 1), BEGAN_MS)
    resized(found, Resize(ResizeKind.MERGE, 3), end_ms + 1000)
    return tuple(found.values)


def sets() -> tuple[StreamSet, ...]:
    (found,) = values()[-1].parts[STREAMS]
    return found.sets


def watched(last: tuple[StreamSet, ...] | None = None) -> list[str]:
    """`last`: what the sets of streams are from the merge on."""
    facts: list[str] = []
    watch = StreamsWatch(facts.append)
    seen = list(values())
    if last is not None:
        for at, value in enumerate(seen):
            if any(len(one.sets) == len(sets()) for one in value.parts[STREAMS]):
                (known,) = value.parts[STREAMS]
                seen[at] = value.changed(STREAMS.set((TableStreams(known.group, last),)))
    for before, after in itertools.pairwise(seen):
        watch.applied(before, after)
    return facts


def test_streams_that_follow_their_tablets_are_counted() -> None:
    assert len(sets()) == 3 and sets()[1].count == 8
    assert watched() == watched(sets()) == ["streams closed and opened"] * 2


def test_streams_of_other_tablets_are_found() -> None:
    first, second, third = sets()
    with pytest.raises(Violation, match=r"CDC-3: the tablets of group \d+ end at"):
        watched((first, second, msgspec.structs.replace(third, ids=second.ids)))
    with pytest.raises(Violation, match=r"CDC-3: tablets of group \d+ changed, and its streams did not"):
        watched((first, second))


def test_a_stream_that_is_opened_again_is_found() -> None:
    first, second, third = sets()
    with pytest.raises(Violation, match=r"CDC-3: stream \w+ of group \d+ is opened twice"):
        watched((first, second, msgspec.structs.replace(third, ids=first.ids)))


def test_streams_that_count_from_before_older_ones_are_found() -> None:
    first, second, third = sets()
    with pytest.raises(Violation, match=r"CDC-3: streams of group \d+ count from"):
        watched((first, second, msgspec.structs.replace(third, timestamp_ms=second.timestamp_ms)))


@pytest.mark.parametrize(
    ("was_pending", "later_ms", "facts"),
    [(True, 0, []), (True, 7, ["streams postponed"]), (True, -1, None), (False, 7, None)],
)
def test_streams_count_later_only_until_they_are_published(
    was_pending: bool, later_ms: int, facts: list[str] | None
) -> None:
    told: list[str] = []
    newest = values()[-1]
    (known,) = newest.parts[STREAMS]
    *older, last = known.sets

    def with_last(**changes: object) -> ClusterMetadata:
        made = msgspec.structs.replace(last, **changes)
        return newest.changed(STREAMS.set((TableStreams(known.group, (*older, made)),)))

    before = with_last(is_pending=was_pending)
    after = with_last(timestamp_ms=last.timestamp_ms + later_ms)
    if facts is not None:
        StreamsWatch(told.append).applied(before, after)
        assert told == facts
        return
    with pytest.raises(Violation, match=r"CDC-3: streams of group \d+ changed, and its tablets did not"):
        StreamsWatch(told.append).applied(before, after)


def in_set(number: int, one: StreamSet, token: int) -> Logged:
    return Logged(sets()[number].timestamp_ms * 1000 + 7, (5, 1), INSERT, 3, one.stream_for(token))


def test_a_change_stands_in_the_stream_that_was_open_for_its_row() -> None:
    second, newest = sets()[1], values()[-1]
    (group,) = newest.streams_by_group
    (table,) = [table for table in newest.schema.tables_in(group) if not is_log(table)]
    told = open_streams(newest, table)
    logged = [in_set(number, one, 12) for number, one in enumerate(sets())]
    assert check_streams(logged, told, lambda _: 12) == 2
    for number, one, token in ((1, sets()[0], 12), (0, second, 12), (1, second, second.tokens[-1])):
        with pytest.raises(Violation, match=r"CDC-2: .* was open"):
            check_streams([in_set(number, one, token)], told, lambda _: 12)
    with pytest.raises(Violation, match="is older than all streams"):
        check_streams([Logged(0, (5, 1), INSERT, 3, b"")], told, lambda _: 12)


def test_a_change_of_the_ring_stands_in_the_stream_of_its_generation() -> None:
    tokens = array("q", [-100, 0, 100])
    first, second = (
        Generation(at_ms, f"of {at_ms}", 0, 1, packed(tokens), published)
        for at_ms, published in ((1000, 1), (2000, 2))
    )
    pending = msgspec.structs.replace(first, timestamp_ms=3000, id="of 3000", published_epoch=0)
    newest = values()[-1].changed(GENERATIONS.set((first, second, pending)))
    ring = msgspec.structs.replace(newest.schema.keyspaces[0].tables[0], group=0)
    told = open_streams(newest, ring)
    assert [one.timestamp_ms for one in told] == [1000, 2000], "nobody writes to what is not published"
    for token in (-200, -100, -99, 100, 101):
        changes = [
            Logged(at_ms * 1000, (5, 1), INSERT, 3, one.stream_for(token))
            for at_ms, one in ((1000, first), (1999, first), (2000, second), (9000, second))
        ]
        assert check_streams(changes, told, lambda _, token=token: token) == 2
        with pytest.raises(Violation, match=r"CDC-2: .* was open"):
            check_streams(
                [msgspec.structs.replace(changes[0], stream=second.stream_for(token))],
                told,
                lambda _, token=token: token,
            )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"timestamp_ms": 5000}, None),
        ({"timestamp_ms": 5000, "published_epoch": 9}, None),
        ({"timestamp_ms": 2999}, "counts from 2999 on by now"),
        ({"timestamp_ms": 1500, "published_epoch": 9}, "counts from 1500 on by now"),
    ],
)
def test_generations_keep_their_times_once_they_are_published(
    changes: dict[str, int], fault: str | None
) -> None:
    tokens, facts = packed(array("q", [0])), []
    first, pending = Generation(1000, "a", 0, 1, tokens, 1), Generation(3000, "b", 1, 2, tokens)
    before, value = (first, pending), values()[-1]
    after = (first, msgspec.structs.replace(pending, **changes))
    watch = GenerationsWatch(facts.append)
    if fault is None:
        watch.applied(value.changed(GENERATIONS.set(before)), value.changed(GENERATIONS.set(after)))
        is_published = "published_epoch" in changes
        assert facts == ["generations postponed", *["generations published"] * is_published]
        before, after = after, (first, msgspec.structs.replace(after[1], timestamp_ms=6000))
        fault = "counts from 6000 on by now" if is_published else None
    if fault is not None:
        with pytest.raises(Violation, match=f"CDC-3: the generation of .* {fault}"):
            watch.applied(value.changed(GENERATIONS.set(before)), value.changed(GENERATIONS.set(after)))


WRITE = Wrote("c1", 70, (5, 1), INSERT, 3, Outcome.OK)


def held(*nodes: int, stream: bytes = b"8 bytes and more") -> HeldChange:
    return HeldChange(Logged(70, (5, 1), INSERT, 3, stream), {NodeId(node) for node in nodes})


def judged(write: Wrote, *found: HeldChange) -> int:
    return check_held_changes([write], found, lambda token: (NodeId(1), NodeId(2), NodeId(3)))


def test_a_change_that_a_quorum_acknowledged_is_on_one() -> None:
    assert judged(WRITE, held(1, 3)) == 1
    with pytest.raises(Violation, match=r"CDC-4: .* is on \[1\] of \[1, 2, 3\]"):
        judged(WRITE, held(1, 4))
    with pytest.raises(Violation, match=r"CDC-4: .* is 0 times on disks"):
        judged(WRITE)


def test_a_change_that_nobody_acknowledged_may_be_nowhere_and_is_once_at_the_most() -> None:
    unknown = msgspec.structs.replace(WRITE, outcome=Outcome.UNKNOWN)
    assert judged(unknown) == judged(unknown, held(4)) == 1
    with pytest.raises(Violation, match=r"CDC-4: .* is 2 times on disks"):
        judged(unknown, held(1), held(2, stream=b"another of a split"))
