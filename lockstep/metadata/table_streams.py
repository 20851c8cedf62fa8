"""Streams of changes of tables with tablets: one for each tablet, and which there were before splits and
merges, as a part of the metadata.

A set of streams counts from its timestamp to that of the next one, once it is published: until then nobody
writes at its times, neither to it nor to older ones, so its timestamp may still be moved into the future.
Only the newest may be unpublished. A stream's id begins with the last token
of its tablet, so that it lies in the tablet. Invariant: exactly the tablet groups with a log of changes that
was written under tablets have sets; their timestamps ascend; the newest set has one stream for each tablet of
the map as it is. A tablet that a split or merge leaves alone keeps its stream; a stream that was closed is
never opened again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf
from typing import Final

import msgspec

from lockstep.metadata.cdc import STREAM_BYTES, stream_id
from lockstep.metadata.part import Part, Parts, tuple_part
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.tablets import NO_TABLETS, TABLETS, TabletGroup, Tablets
from lockstep.placement.placements import Placements, RingPlacement
from lockstep.schema.log_tables import SUFFIX, capture_options, log_of
from lockstep.schema.model import Schema, Table
from lockstep.values.errors import Rejected
from lockstep.values.hash_tree import blake, changed
from lockstep.values.limits import CDC_LEEWAY_MS
from lockstep.values.node_limits import (
    CDC_TABLETS_AHEAD_MS,
    CDC_TABLETS_POSTPONED_MS,
    STREAM_SETS_KEPT_MAX,
)

#: Bits of a stream's id that say by which entry, of which table, it was opened.
_MARK_BITS: Final = 38


class StreamSet(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`timestamp_ms`: from when on writes are its own. `epoch` made it. `ids`: of its streams, packed, in the
    order of their tokens. `is_pending`: that all replicas knew it in time is not known yet."""

    timestamp_ms: int
    epoch: int
    ids: bytes
    is_pending: bool = False

    @property
    def is_published(self) -> bool:
        return not self.is_pending

    @property
    def count(self) -> int:
        return len(self.ids) // STREAM_BYTES

    @cached_property
    def streams(self) -> tuple[bytes, ...]:
        """In the order of their tokens."""
        ids = self.ids
        return tuple(ids[at : at + STREAM_BYTES] for at in range(0, len(ids), STREAM_BYTES))

    @cached_property
    def tokens(self) -> array[int]:
        """The last tokens of the tablets, ascending."""
        return array("q", [int.from_bytes(stream[:8], "big", signed=True) for stream in self.streams])

    def stream_for(self, token: int) -> bytes:
        """The stream of the tablet that a token lies in."""
        return self.streams[bisect_left(self.tokens, token)]


class TableStreams(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The sets of streams of one tablet group, the oldest first."""

    group: int
    sets: tuple[StreamSet, ...]

    @property
    def newest(self) -> StreamSet:
        return self.sets[-1]

    @property
    def published(self) -> tuple[StreamSet, ...]:
        return self.sets[:-1] if self.newest.is_pending else self.sets

    @property
    def settled_ms(self) -> int:
        """When no coordinator's clock gives writes to older streams than the newest any more, which is
        published."""
        return self.newest.timestamp_ms + CDC_LEEWAY_MS if len(self.sets) > 1 else 0

    def told(self) -> Iterator[tuple[StreamSet, tuple[bytes, ...], tuple[bytes, ...]]]:
        """Each set, with the streams that it closed of the one before, and those that it opened."""
        before: tuple[bytes, ...] = ()
        for one in self.sets:
            was, now = frozenset(before), frozenset(one.streams)
            closed = tuple(stream for stream in before if stream not in now)
            yield one, closed, tuple(stream for stream in one.streams if stream not in was)
            before = one.streams


def _opened(
    log: Table,
    ring: RingPlacement,
    timestamp_ms: int,
    epoch: int,
    kept: Mapping[tuple[int, int], bytes] | None = None,
) -> StreamSet:
    """A set for the tablets of a ring; `kept`: streams of tablets by their bounds, which stay. The first set
    takes the place of none, and so is published as it is made."""
    known = kept or {}
    mark = int.from_bytes(blake(f"{log.uuid}/{epoch}".encode())[:8], "big") >> 64 - _MARK_BITS
    ids = [
        known.get((placed.range.left, placed.range.right)) or stream_id(placed.range.right, 0, mark)
        for placed in ring.ranges
    ]
    return StreamSet(timestamp_ms, epoch, b"".join(ids), is_pending=kept is not None)


def log_in(schema: Schema, group: TabletGroup) -> Table | None:
    """The log of changes that lies with the table of a group; None where it has none."""
    return schema.table(group.head.keyspace, group.head.table + SUFFIX)


def kept_sets(streams: TableStreams, table: Table | None, at_ms: int) -> tuple[StreamSet, ...]:
    """Without those that were superseded so long ago that the log of a table has nothing of them any more."""
    options = capture_options(table) if table is not None else None
    ttl_ms = options.ttl_s * 1000 if options is not None and options.ttl_s else inf
    gone = 0
    for at, later in enumerate(streams.sets[1:], start=1):
        if later.timestamp_ms + 2 * CDC_LEEWAY_MS + ttl_ms < at_ms:
            gone = at
    return streams.sets[gone:]


def full(schema: Schema, group: TabletGroup, streams: TableStreams, at_ms: int) -> str | None:
    """Why a table gets no other tablets now, for the sake of its streams; None where it may."""
    table = schema.table(group.head.keyspace, group.head.table)
    kept = len(kept_sets(streams, table, at_ms))
    if kept < STREAM_SETS_KEPT_MAX:
        return None
    return f"the log of its changes has rows of {kept} sets of streams"


def recut(
    schema: Schema,
    group: TabletGroup,
    streams: TableStreams,
    before: RingPlacement,
    after: RingPlacement,
    at_ms: int,
    epoch: int,
) -> TableStreams:
    """With a set for the tablets as they are after a split or merge, which is to be published. Rejected where
    there are too many."""
    reason = full(schema, group, streams, at_ms)
    if reason is not None:
        raise Rejected(f"{group.head.keyspace}.{group.head.table} keeps its tablets: {reason}")
    log, table = log_in(schema, group), schema.table(group.head.keyspace, group.head.table)
    assert log is not None, "streams are those of a log"
    known = streams.newest
    assert known.is_published, "one map settles before the next"
    assert known.count == len(before.ranges), "each tablet has a stream"
    bounds = [(placed.range.left, placed.range.right) for placed in before.ranges]
    stay = dict(zip(bounds, known.streams, strict=True))
    timestamp_ms = max(at_ms + CDC_TABLETS_AHEAD_MS, known.timestamp_ms + 1)
    made = _opened(log, after, timestamp_ms, epoch, stay)
    return TableStreams(streams.group, (*kept_sets(streams, table, at_ms), made))


def is_late(one: StreamSet, at_ms: int) -> bool:
    """Whether who did not know a set at this time may have written to older ones at times of its own: clocks
    differ, and give writes of clients to their future."""
    return at_ms + 2 * CDC_LEEWAY_MS > one.timestamp_ms


def published(streams: TableStreams, at_ms: int) -> TableStreams:
    """All replicas know the newest set at this time: it counts from its timestamp on, or a while from now
    where that is late."""
    known = streams.newest
    assert known.is_pending, "a published set keeps its timestamp"
    later_ms = at_ms + CDC_TABLETS_AHEAD_MS if is_late(known, at_ms) else 0
    timestamp_ms = max(known.timestamp_ms, later_ms)
    made = msgspec.structs.replace(known, timestamp_ms=timestamp_ms, is_pending=False)
    return TableStreams(streams.group, (*streams.sets[:-1], made))


def postponed(streams: TableStreams, at_ms: int) -> TableStreams:
    """Not all replicas know the newest set yet: it counts later."""
    known = streams.newest
    assert known.is_pending, "a published set keeps its timestamp"
    timestamp_ms = max(known.timestamp_ms, at_ms + CDC_TABLETS_POSTPONED_MS)
    made = msgspec.structs.replace(known, timestamp_ms=timestamp_ms)
    return TableStreams(streams.group, (*streams.sets[:-1], made))


def streams_after(
    known: tuple[TableStreams, ...],
    before: Schema,
    schema: Schema,
    placements: Placements,
    tablets: Tablets,
    at_ms: int | None,
    epoch: int,
) -> tuple[TableStreams, ...]:
    """The streams once the schema has changed: a first set for each log that is written from now on, none of
    logs that are gone. Rejected where a set begins and no time is given.

    The first set counts a little earlier than it is made, for the clocks of coordinators.
    """
    by_group = {one.group: one for one in known}
    for _, was, now in changed(before.table_tree, schema.table_tree):
        table = now if now is not None else was
        assert table is not None, "a table that changed was there, or is"
        group = tablets.by_group.get(table.group)
        if group is None:
            by_group.pop(table.group, None)
        elif log_in(schema, group) is None:
            by_group.pop(group.id, None)
        elif group.id not in by_group and now is not None and (log := log_of(schema, now)) is not None:
            if at_ms is None:
                name = f"{now.keyspace}.{now.name}"
                raise Rejected(f"changes of {name} cannot be captured: the entry does not say from when")
            first = _opened(log, placements.ring(group.id), max(0, at_ms - CDC_LEEWAY_MS), epoch)
            by_group[group.id] = TableStreams(group.id, (first,))
    found = tuple(by_group[group] for group in sorted(by_group))
    return known if found == known else found


def _validate_sets(streams: TableStreams, ring: RingPlacement) -> None:
    stamps = [one.timestamp_ms for one in streams.sets]
    assert stamps and stamps == sorted(set(stamps)), "sets of streams ascend by timestamp"
    assert not any(one.is_pending for one in streams.sets[:-1]), "older sets are published"
    assert len(stamps) <= STREAM_SETS_KEPT_MAX, "so many sets are kept"
    rights = array("q", [placed.range.right for placed in ring.ranges])
    assert streams.newest.tokens == rights, f"each tablet of group {streams.group} has its stream"


def _validate(now: Parts, before: Parts | None) -> None:
    schema, placements, tablets, listed = now[SCHEMA], now[PLACEMENTS], now[TABLETS], now[STREAMS]
    groups = [one.group for one in listed]
    assert groups == sorted(set(groups)), "a group has its streams once"
    former = {one.group: one for one in before[STREAMS]} if before is not None else {}
    rings = before[PLACEMENTS].by_id if before is not None else None
    for one in listed:
        group = tablets.by_group.get(one.group)
        assert group is not None and log_in(schema, group) is not None, f"group {one.group} has a log"
        ring = placements.ring(one.group)
        if former.get(one.group) is not one or rings is None or rings.get(one.group) is not ring:
            _validate_sets(one, ring)
    if before is not None and now.is_same(before, SCHEMA) and now.is_same(before, STREAMS):
        return
    for group in tablets.groups if tablets is not NO_TABLETS else ():
        table = schema.table(group.head.keyspace, group.head.table)
        assert table is not None, "a group is that of a table"
        assert log_of(schema, table) is None or group.id in groups, f"{table.name} has streams"


#: Streams of tables with tablets, by group.
STREAMS: Final[Part[tuple[TableStreams, ...]]] = tuple_part(
    "streams", 45, TableStreams, _validate, needs=(SCHEMA, PLACEMENTS, TABLETS)
)
