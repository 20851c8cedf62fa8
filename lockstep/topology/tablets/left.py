"""What a request that moves tablets has still to do: of a change of replication, and of what empties a node.

Invariant: counts follow from the metadata and from what the work of the present stage has reported; bytes are
those that nodes said of tablets, and unknown where nobody did. A change of replication gives, or takes, each
tablet of its keyspace one replica a step: that is what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation
from lockstep.placement.tablets.moves import STAGES_MS, STREAM_BYTES_PER_S
from lockstep.schema.model import Keyspace, Replication
from lockstep.topology.kind import stage_row
from lockstep.topology.stages import STREAMING, Side
from lockstep.topology.tablets.recount import step_between

#: What a tablet weighs, by group and last token.
BytesOf = Callable[[int, int], int]
UNKNOWN: Final = -1
Step = tuple[Replication, Replication]


class Left(msgspec.Struct, frozen=True):
    """`tablets` replicas are still to be made or given up, of `tablets_total` (0: nobody counted them).
    `bytes` are still to be copied, which takes about `seconds`; both are -1 where nobody knows."""

    tablets: int
    tablets_total: int = 0
    bytes: int = UNKNOWN
    seconds: int = UNKNOWN


class Reported(msgspec.Struct, frozen=True):
    """Of the streams of the present stage: the bytes that they brought, ranges that are whole, and their rate
    together."""

    bytes: int = 0
    ranges: int = 0
    rate_bytes_s: int = 0


class Way(msgspec.Struct, frozen=True):
    """Of a change of a keyspace's replication: the step that runs, None where none does or it is taken back;
    those after it; and how many the change has from its beginning to its end."""

    keyspace: Keyspace
    present: Step | None
    ahead: tuple[Step, ...]
    steps: int


def left_of_running(
    cluster: ClusterMetadata, operation: Operation, way: Way, said: Reported, bytes_of: BytesOf | None
) -> Left | None:
    """Of a change that runs; None where its keyspace lies on the ring."""
    if way.keyspace.tablets is None:
        return None
    row, each = stage_row(operation), count_of(cluster, way.keyspace)
    has_moved = row.reads is Side.NEW
    streams = row.work in STREAMING
    left = 0 if has_moved else max(0, each - said.ranges) if streams else each
    bytes_left = UNKNOWN
    if bytes_of is not None:
        weight = _weight(cluster, way.keyspace, bytes_of)
        copies = _grown((way.present,)) if way.present is not None and not has_moved else 0
        bytes_left = max(0, copies * weight - (said.bytes if streams else 0)) + _grown(way.ahead) * weight
    takers = len({node for one in cluster.transitions.of(operation.id) for node in one.gained})
    rate = said.rate_bytes_s or STREAM_BYTES_PER_S * max(1, takers)
    left += each * len(way.ahead)
    total = max(left, each * way.steps)
    assert 0 <= left <= total, "nothing is left that was never to be done"
    return Left(left, total, bytes_left, seconds_for(bytes_left, len(way.ahead) + 1, rate))


def left_of_waiting(cluster: ClusterMetadata, way: Way, bytes_of: BytesOf | None) -> Left | None:
    """Of a change that waits to begin, or between two steps; None where its keyspace lies on the ring."""
    if way.keyspace.tablets is None:
        return None
    assert way.present is None, "none of its steps runs"
    each = count_of(cluster, way.keyspace)
    bytes_left = UNKNOWN
    if bytes_of is not None:
        bytes_left = _grown(way.ahead) * _weight(cluster, way.keyspace, bytes_of)
    return Left(each * len(way.ahead), each * way.steps, bytes_left, seconds_for(bytes_left, len(way.ahead)))


def count_of(cluster: ClusterMetadata, keyspace: Keyspace) -> int:
    """How many tablets all tables of a keyspace have together."""
    return sum(cluster.placements.ring(group).count for group in keyspace.groups)


def seconds_for(bytes_left: int, steps: int, rate_bytes_s: int = STREAM_BYTES_PER_S) -> int:
    """About how long so many bytes take in so many steps, rounded up; -1 where the bytes are unknown."""
    assert rate_bytes_s > 0, "data streams at some rate"
    if bytes_left == UNKNOWN:
        return UNKNOWN
    return -(-(bytes_left * 1000 // rate_bytes_s + steps * STAGES_MS) // 1000)


def _grown(steps: Iterable[Step]) -> int:
    """How many of the steps give each tablet one replica more."""
    return sum(step_between(*ends)[1] > 0 for ends in steps)


def _weight(cluster: ClusterMetadata, keyspace: Keyspace, bytes_of: BytesOf) -> int:
    """What one replica of each tablet weighs together."""
    return sum(
        bytes_of(group, placed.range.right)
        for group in keyspace.groups
        for placed in cluster.placements.ring(group).ranges
    )
