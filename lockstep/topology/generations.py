"""How operations make, publish and drop generations of change data capture.

Invariant: pure functions of the value and of the clock reading in an entry. A published generation takes
effect later than the entry that published it; a clock that is slow or goes back holds nobody up.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cdc import GENERATIONS, Generation, generation_id, packed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.topology.kind import commits_generation
from lockstep.topology.planning import change_of, circle_with
from lockstep.values.limits import CDC_GENERATIONS_KEPT_MAX, CDC_LEEWAY_MS, CDC_RING_DELAY_MS

#: Between the entry that commits or publishes a generation and its timestamp: the news gets there, and back.
_AHEAD_MS = 2 * CDC_RING_DELAY_MS + CDC_LEEWAY_MS
#: The least that must be left when it is published: the news gets to everyone.
_AHEAD_MS_MIN = CDC_RING_DELAY_MS + CDC_LEEWAY_MS


def committed(cluster: ClusterMetadata, operation: Operation, at_ms: int, epoch: int) -> ClusterMetadata:
    """The value with a generation for the ring as it will be: with the tokens of the operation, and of all
    that join and have committed generations. Generations that are obsolete make room."""
    kept = _kept(cluster.generations, at_ms)
    timestamp_ms = max(at_ms + _AHEAD_MS, kept[-1].timestamp_ms + 1 if kept else 0)
    if len(kept) >= CDC_GENERATIONS_KEPT_MAX:
        kept = kept[: CDC_GENERATIONS_KEPT_MAX - 1]
    others = [
        change_of(other)
        for other in cluster.operations
        if other.id != operation.id
        and commits_generation(other)
        and other.stage not in (Stage.JOIN_GROUP0, Stage.ROLLBACK_TO_NORMAL)
    ]
    circle = circle_with(cluster.directory, [*others, change_of(operation)])
    id_ = generation_id(cluster.identity.cluster_id, operation.id, epoch, timestamp_ms)
    made = Generation(timestamp_ms, id_, operation.id, epoch, packed(circle.tokens))
    return _with(cluster, (*kept, made))


def _kept(generations: tuple[Generation, ...], at_ms: int) -> tuple[Generation, ...]:
    """Without those that were superseded so long ago that no clock within the leeway writes to them."""
    for at in range(len(generations) - 1, 0, -1):
        later = generations[at]
        if later.is_published and later.timestamp_ms + _AHEAD_MS_MIN < at_ms:
            return generations[at:]
    return generations


def published(cluster: ClusterMetadata, operation: Operation, at_ms: int, epoch: int) -> ClusterMetadata:
    """The value with the operation's generation published, and older ones: who knows one, knows those before.

    When waiting took so long that too little is left before its timestamp, the timestamp is moved; nobody has
    written to it, as only published generations are written to.
    """
    own = next((one for one in cluster.generations if one.operation_id == operation.id), None)
    if own is None or own.is_published:
        # A later generation has taken its place, or was published with it.
        return cluster
    changed: list[Generation] = []
    earliest_ms = 0
    for one in cluster.generations:
        changed.append(one if one.is_published else _moved(one, own, earliest_ms, at_ms, epoch))
        earliest_ms = changed[-1].timestamp_ms + 1
    return _with(cluster, tuple(changed))


def _moved(one: Generation, own: Generation, earliest_ms: int, at_ms: int, epoch: int) -> Generation:
    """An unpublished generation once `own` is published: published too when it is not younger."""
    stamp_ms = max(one.timestamp_ms, earliest_ms)
    if one.committed_epoch > own.committed_epoch:
        return msgspec.structs.replace(one, timestamp_ms=stamp_ms)
    if stamp_ms < at_ms + _AHEAD_MS_MIN:
        stamp_ms = max(at_ms + _AHEAD_MS, earliest_ms)
    return msgspec.structs.replace(one, timestamp_ms=stamp_ms, published_epoch=epoch)


def dropped(cluster: ClusterMetadata, operation: Operation) -> ClusterMetadata:
    """The value without the operation's generation, unless it was published: then it only has more streams
    than the ring has ranges, and whoever reads it was told of it."""
    kept = tuple(one for one in cluster.generations if one.is_published or one.operation_id != operation.id)
    return cluster if len(kept) == len(cluster.generations) else _with(cluster, kept)


def _with(cluster: ClusterMetadata, generations: tuple[Generation, ...]) -> ClusterMetadata:
    changed: ClusterMetadata = cluster.changed(GENERATIONS.set(generations))
    return changed
