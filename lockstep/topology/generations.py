"""Generations of streams of captured changes on the ring: how joins and operators make them, when they are
published, how long they are kept.

A generation is made with a time from which on it is to count. Until it is published nobody writes at times
from then on, neither to it nor to older ones: so its time may still be moved into the future. It is published
once every node that could acknowledge such a write knows it.

Invariant: a published generation keeps its time, and counts a while after the entry that published it was
proposed. Generations follow each other, and none is published before an older one. Pure functions of the
value and of the clock reading in an entry; a clock that is slow or goes back holds nobody up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Final

import msgspec

from lockstep.metadata.cdc import GENERATIONS, Generation, generation_id, packed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.schema.log_tables import capture_options
from lockstep.topology.kind import commits_generation
from lockstep.topology.planning import change_of, circle_with
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import CDC_GENERATIONS_KEPT_MAX, CDC_LEEWAY_MS, CDC_RING_DELAY_MS
from lockstep.values.node_limits import CDC_POSTPONED_MS

#: Between the entry that makes a generation and its time: the news gets to everyone, and readers follow.
AHEAD_MS = 2 * CDC_RING_DELAY_MS + CDC_LEEWAY_MS
#: The least that must be left when it is published; with less, it counts later.
_AHEAD_MS_MIN = CDC_RING_DELAY_MS + CDC_LEEWAY_MS


def committed(cluster: ClusterMetadata, operation: Operation, at_ms: int, epoch: int) -> ClusterMetadata:
    """The value with a generation for the ring as it will be: with the tokens of the operation, and of all
    that join and have committed generations. Without a log nobody captures changes, and none is made."""
    if cluster.is_on_ring:
        return cluster
    others = [
        change_of(other)
        for other in cluster.operations
        if other.id != operation.id
        and commits_generation(other)
        and other.stage not in (Stage.JOIN_GROUP0, Stage.ROLLBACK_TO_NORMAL)
    ]
    circle = circle_with(cluster.directory, [*others, change_of(operation)])
    kept = kept_generations(cluster, at_ms)
    if len(kept) >= CDC_GENERATIONS_KEPT_MAX:
        if kept[-1].is_published:
            # Writers may hold on to it: new ranges share the streams of old ones until operators make some.
            return cluster
        kept = kept[:-1]
    return _with(cluster, (*kept, _made(cluster, kept, operation.id, packed(circle.tokens), at_ms, epoch)))


def _made(
    cluster: ClusterMetadata,
    kept: tuple[Generation, ...],
    operation_id: int,
    tokens: bytes,
    at_ms: int,
    epoch: int,
) -> Generation:
    """The generation that follows those that are kept; it is to be published."""
    timestamp_ms = max(at_ms + AHEAD_MS, kept[-1].timestamp_ms + 1 if kept else 0)
    assert len(kept) < CDC_GENERATIONS_KEPT_MAX, "there is room"
    assert not kept or kept[-1].timestamp_ms < timestamp_ms, "generations follow each other"
    id_ = generation_id(cluster.identity.cluster_id, operation_id, epoch, timestamp_ms)
    return Generation(timestamp_ms, id_, operation_id, epoch, tokens)


def kept_generations(cluster: ClusterMetadata, at_ms: int) -> tuple[Generation, ...]:
    """Without those that were superseded so long ago that no clock within the leeway writes to them, and that
    logs have nothing of them any more; where many are kept, without the oldest that nobody writes to."""
    generations = cluster.generations
    count = len(generations)
    unwritten = _superseded(generations, at_ms)
    unread = _superseded(generations, at_ms - _logged_ms(cluster))
    assert 0 <= unread <= unwritten < max(count, 1), "the present generation stays"
    return generations[max(unread, min(unwritten, count + 1 - CDC_GENERATIONS_KEPT_MAX)) :]


def _superseded(generations: tuple[Generation, ...], at_ms: float) -> int:
    """How many of the oldest were superseded by a published one so long before a moment that no clock within
    the leeway writes to them then."""
    for at in range(len(generations) - 1, 0, -1):
        later = generations[at]
        if later.is_published and later.timestamp_ms + _AHEAD_MS_MIN < at_ms:
            return at
    return 0


def _logged_ms(cluster: ClusterMetadata) -> float:
    """How long logs of changes have what was written, by the one that has it longest."""
    ttls_s = [
        options.ttl_s or inf
        for keyspace in cluster.schema.keyspaces
        for table in keyspace.tables
        if (options := capture_options(table)) is not None
    ]
    return max(ttls_s, default=0) * 1000


def dropped(cluster: ClusterMetadata, operation: Operation) -> ClusterMetadata:
    """The value without the operation's generation, unless it was published: then it only has more streams
    than the ring has ranges, and whoever reads it was told of it."""
    kept = tuple(one for one in cluster.generations if one.is_published or one.operation_id != operation.id)
    assert len(kept) + 1 >= len(cluster.generations), "an operation makes one generation"
    return cluster if len(kept) == len(cluster.generations) else _with(cluster, kept)


def _with(cluster: ClusterMetadata, generations: tuple[Generation, ...]) -> ClusterMetadata:
    changed: ClusterMetadata = cluster.changed(GENERATIONS.set(generations))
    return changed


def is_late(one: Generation, at_ms: int) -> bool:
    """Whether who does not know a generation at this time may write to older ones at times of its own soon,
    or has."""
    return at_ms + _AHEAD_MS_MIN > one.timestamp_ms


class PublishGenerations(msgspec.Struct, frozen=True, array_like=True):
    """Have the generations count that were made until `known_epoch`, which every node has applied that could
    acknowledge a write; and those later that it will take longer to know. `at_ms` is the wall clock of who
    proposes it."""

    known_epoch: int
    at_ms: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        if cluster.is_on_ring:
            raise Rejected("nothing is captured without a log")
        changed: list[Generation] = []
        for one in cluster.generations:
            earliest_ms = changed[-1].timestamp_ms + 1 if changed else 0
            changed.append(one if one.is_published else self._changed(one, earliest_ms, epoch))
        if tuple(changed) == cluster.generations:
            raise Rejected(f"no generation of streams is to be published that epoch {self.known_epoch} has")
        return _with(cluster, tuple(changed))

    def _changed(self, one: Generation, earliest_ms: int, epoch: int) -> Generation:
        assert not one.is_published, "a published generation keeps its time"
        is_known = one.committed_epoch <= self.known_epoch
        ahead_ms = AHEAD_MS if is_known else CDC_POSTPONED_MS
        later_ms = self.at_ms + ahead_ms if is_late(one, self.at_ms) else 0
        timestamp_ms = max(one.timestamp_ms, later_ms, earliest_ms)
        published_epoch = epoch if is_known else 0
        return msgspec.structs.replace(one, timestamp_ms=timestamp_ms, published_epoch=published_epoch)


class Unaware(msgspec.Struct, frozen=True):
    """Nodes that do not know the oldest generation that is to be published: (node, last seen epoch)."""

    needed_epoch: int
    nodes: tuple[tuple[NodeId, int], ...]


def are_pending(cluster: ClusterMetadata) -> bool:
    """Whether generations are to be published."""
    generations = cluster.generations
    return bool(generations) and not generations[-1].is_published and not cluster.is_on_ring


def publication(
    cluster: ClusterMetadata, acknowledged: Mapping[NodeId, int], dead: Collection[NodeId], at_ms: int
) -> PublishGenerations | Unaware | None:
    """What is next for generations that are not published: an entry, or whom it waits for; None where there
    are none. `acknowledged`: the newest epoch that each node has durably applied."""
    if not are_pending(cluster):
        return None
    pending = [one for one in cluster.generations if not one.is_published]
    needed = pending[0].committed_epoch
    seen = {node: acknowledged.get(node, 0) for node in _knowing(cluster, dead)}
    known = min(seen.values(), default=cluster.epoch)
    if known >= needed or is_late(pending[0], at_ms):
        assert cluster.epoch >= needed, "what is pending was made"
        return PublishGenerations(min(known, cluster.epoch), at_ms)
    return Unaware(needed, tuple((node, epoch) for node, epoch in seen.items() if epoch < needed))


def _knowing(cluster: ClusterMetadata, dead: Collection[NodeId]) -> list[NodeId]:
    """Who must know a generation: who could acknowledge a write to older streams, and all others that live.
    A node that seems dead may be cut off with its clients; it is not waited for where no table of the ring is
    captured."""
    is_captured = any(
        capture_options(table) is not None and not table.group
        for keyspace in cluster.schema.keyspaces
        for table in keyspace.tables
    )
    return [
        node.id
        for node in cluster.directory.nodes
        if node.state is not NodeState.LEFT
        and node.id not in cluster.excluded_by_node
        and (node.id not in dead or (is_captured and node.owns_tokens))
    ]


class RepairStreams(msgspec.Struct, frozen=True, array_like=True):
    """Make a generation for the ring as it is, after moves, departures and cancelled joins. `at_ms` is the
    wall clock of who asks. Nothing is made where the newest generation fits, or one is to be published."""

    at_ms: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        tokens = packed(cluster.directory.circle.tokens)
        kept = kept_generations(cluster, self.at_ms)
        if kept and kept[-1].tokens == tokens:
            raise Rejected("the streams fit the ring already", hint="see system_views.cdc_timestamps")
        if any(not one.is_published for one in kept):
            raise Rejected(
                "streams for a ring that was or will be are made already, and not known to every node",
                hint="wait for joins to end (`lockstep topology requests`), and for nodes that are down",
            )
        if len(kept) >= CDC_GENERATIONS_KEPT_MAX:
            raise Rejected(
                f"{len(kept)} generations of streams are kept, and all of them count now, or will",
                hint="wait until the newest of them counts",
            )
        made = _made(cluster, kept, 0, tokens, self.at_ms, epoch)
        assert made.count, "it has streams"
        return _with(cluster, (*kept, made))


KINDS: Final[Mapping[int, type[Any]]] = {
    EntryKind.REPAIR_STREAMS: RepairStreams,
    EntryKind.PUBLISH_GENERATIONS: PublishGenerations,
}
