"""Streams of changes, judged by every value that the metadata had, by the log of changes at the end, and by
what disks hold of it.

CDC-2: a change stands in the stream that was open at its write time for the range of its row. CDC-3: on the
ring generations follow each other, are published in that order, and keep their times from then on. Of a table
with tablets each split or merge closes the streams of the tablets that it ends and opens one for each that it
makes, from a later time on; nothing else does, no stream is opened twice, and once published that time stays.
CDC-4: a change that a quorum acknowledged is durable once, on a quorum of the replicas of its tablet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from lockstep.metadata.cdc import Generation
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.table_streams import TableStreams
from lockstep.placement.quorums import majority
from lockstep.schema.log_tables import OPERATION
from lockstep.schema.model import Table
from lockstep.sim.checkers.captured import Logged, Wrote
from lockstep.sim.checkers.ownership import raise_first
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_row
from lockstep.values.ids import NodeId
from lockstep.values.tokens import stream_token

#: By a row's partition key, as it is stored.
KeyToken = Callable[[int], int]
_Bounds = tuple[int, int]


class GenerationsWatch:
    """Of the ring. `fact` counts what came to pass."""

    def __init__(self, fact: Callable[[str], None]) -> None:
        self._fact = fact

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        if after.generations is not before.generations:
            raise_first(list(self._problems(before.generations, after.generations)))

    def _problems(self, before: Sequence[Generation], after: Sequence[Generation]) -> Iterator[str]:
        known = {one.id: one for one in after}
        times = [one.timestamp_ms for one in after if one.is_published]
        if times != sorted(set(times)):
            yield f"CDC-3: published generations count from {times} on"
        for was in before:
            now = known.get(was.id)
            if now is None or now == was:
                continue
            if was.is_published or now.timestamp_ms < was.timestamp_ms:
                yield f"CDC-3: the generation of {was.timestamp_ms} counts from {now.timestamp_ms} on by now"
            if now.timestamp_ms > was.timestamp_ms:
                self._fact("generations postponed")
            if now.is_published:
                self._fact("generations published")


class StreamsWatch:
    """Of tables with tablets. `fact` counts what came to pass."""

    def __init__(self, fact: Callable[[str], None]) -> None:
        self._fact = fact
        #: By group: every stream that was ever open.
        self._opened: dict[int, set[bytes]] = {}

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        former, streams = before.streams_by_group, after.streams_by_group
        for group in streams:
            if group not in former:
                self._opened[group] = set(streams[group].newest.streams)
                raise_first(list(_newest_problems(after, streams[group])))
            elif streams[group] is not former[group] or _bounds(before, group) != _bounds(after, group):
                raise_first(list(self._problems(before, after, group)))

    def _problems(self, before: ClusterMetadata, after: ClusterMetadata, group: int) -> Iterator[str]:
        was, now = before.streams_by_group[group], after.streams_by_group[group]
        bounds, wanted = _bounds(before, group), _bounds(after, group)
        if bounds == wanted:
            if not self._is_moved(was, now):
                yield f"CDC-3: streams of group {group} changed, and its tablets did not"
            return
        self._fact("streams closed and opened")
        if len(now.sets) < 2 or now.sets[-2] != was.newest:
            yield f"CDC-3: tablets of group {group} changed, and its streams did not"
            return
        broken = list(_newest_problems(after, now))
        if broken:
            yield from broken
            return
        from_ms, before_ms = now.newest.timestamp_ms, was.newest.timestamp_ms
        if from_ms <= before_ms or was.newest.is_pending:
            yield f"CDC-3: streams of group {group} count from {from_ms} on, and older ones from {before_ms}"
        known, ended = dict(zip(bounds, was.newest.streams, strict=True)), set(was.newest.streams)
        for one, stream in zip(wanted, now.newest.streams, strict=True):
            if one in known and known[one] != stream:
                yield f"CDC-3: tablet {one} of group {group} is left alone, and its stream is not"
            if one not in known and stream in self._opened[group]:
                yield f"CDC-3: stream {stream.hex()} of group {group} is opened twice"
        self._opened[group] |= set(now.newest.streams)
        *_, (_, closed, opened) = now.told()
        if set(closed) != ended - set(now.newest.streams) or set(opened) != set(now.newest.streams) - ended:
            yield f"CDC-3: what group {group} tells of streams that were closed and opened is not what was"

    def _is_moved(self, was: TableStreams, now: TableStreams) -> bool:
        """Whether the newest streams count later, or are published, and nothing else changed."""
        former, newest = was.newest, now.newest
        later = former.is_pending and newest.timestamp_ms >= former.timestamp_ms
        if not later or (now.sets[:-1], newest.ids) != (was.sets[:-1], former.ids):
            return now.sets == was.sets
        if newest.timestamp_ms > former.timestamp_ms:
            self._fact("streams postponed")
        return True


def _bounds(cluster: ClusterMetadata, group: int) -> list[_Bounds]:
    return [(placed.range.left, placed.range.right) for placed in cluster.placements.ring(group).ranges]


def _newest_problems(cluster: ClusterMetadata, streams: TableStreams) -> Iterator[str]:
    """What is wrong with the streams that the tablets of a group have."""
    rights = [right for _, right in _bounds(cluster, streams.group)]
    tokens = [stream_token(stream) for stream in streams.newest.streams]
    if tokens != rights:
        yield f"CDC-3: the tablets of group {streams.group} end at {rights}, its streams at {tokens}"


class OpenStreams(msgspec.Struct, frozen=True):
    """Those that take changes from a time on."""

    timestamp_ms: int
    streams: tuple[bytes, ...]


def open_streams(cluster: ClusterMetadata, table: Table) -> list[OpenStreams]:
    """Those of a table that are published, the oldest first: its tablets', or the ring's."""
    if table.group:
        sets = cluster.streams_by_group[table.group].published
        return [OpenStreams(one.timestamp_ms, one.streams) for one in sets]
    known = [one for one in cluster.generations if one.is_published]
    return [OpenStreams(one.timestamp_ms, tuple(stream for _, stream in one.streams())) for one in known]


def check_streams(logged: Sequence[Logged], sets: Sequence[OpenStreams], token_of_key: KeyToken) -> int:
    """Raise a Violation where a change stands in another stream than that which was open for its row; how
    many stand in others than the first."""
    later = 0
    for one in logged:
        counting = [each for each in sets if each.timestamp_ms * 1000 <= one.at_us]
        if not counting:
            raise Violation("CDC-2", f"{one} is older than all streams")
        later += len(counting) > 1
        streams, token = counting[-1].streams, token_of_key(one.place[0])
        behind = [stream for stream in streams if stream_token(stream) >= token]
        # The first range of a ring begins behind the last one's end.
        wanted = min(behind or streams, key=stream_token)
        if one.stream != wanted:
            raise Violation("CDC-2", f"{one} stands in {one.stream.hex()}, and {wanted.hex()} was open")
    return later


class HeldChange(msgspec.Struct):
    """A row of the log: what it tells, and which nodes' disks hold it for certain."""

    told: Logged
    nodes: set[NodeId]


def changes_on_disks(
    log: Table, contents: Mapping[NodeId, DurableContent], number: Callable[[bytes | None], int | None]
) -> list[HeldChange]:
    """The rows of the log of a table with the columns pk, ck and v; `number` decodes these."""
    ids = {column.name: column.id for column in log.columns}
    found: dict[tuple[bytes, bytes], HeldChange] = {}
    for node, content in sorted(contents.items()):
        content.refresh()
        for store_key, value in content.pairs((log.id,)):
            _, stream, prefix = keys.split_partition(store_key)
            clustering = keys.clustering_of(store_key, prefix)
            known = found.get((stream, clustering))
            if known is not None:
                known.nodes.add(node)
                continue
            row = decode_row(store_key, value, clustering)
            values = {cell.column: cell.value for cell in row.cells}
            place = (number(values[ids["pk"]]) or 0, number(values[ids["ck"]]) or 0)
            operation = values[ids[OPERATION]]
            assert operation is not None, "every change has an operation"
            told = Logged(
                row.cells[0].timestamp_us, place, operation[0], number(values.get(ids["v"])), stream
            )
            found[stream, clustering] = HeldChange(told, {node})
    return list(found.values())


def check_held_changes(
    written: Sequence[Wrote],
    held: Sequence[HeldChange],
    replicas: Callable[[int], Sequence[NodeId]],
) -> int:
    """Raise the first Violation; how many writes were judged otherwise. `replicas`: who answers reads of a
    token."""
    by_place: dict[tuple[int, int], list[HeldChange]] = {}
    for one in held:
        by_place.setdefault(one.told.place, []).append(one)
    for write in written:
        found = [one for one in by_place.get(write.place, ()) if write.is_told_by(one.told)]
        if len(found) > 1 or (write.is_sure and not found):
            raise Violation("CDC-4", f"{write.named()} is {len(found)} times on disks: {found}")
        if not write.is_sure:
            continue
        readers = replicas(stream_token(found[0].told.stream))
        there = found[0].nodes.intersection(readers)
        if len(there) < majority(len(readers)):
            raise Violation(
                "CDC-4", f"{write.named()} is on {sorted(there)} of {list(readers)}, which are no quorum"
            )
    return len(written)
