"""Who is what of a range, as one node asks of many ranges again and again.

Invariant: what is told is that of the metadata it is asked of, from which the id of this node follows too; it
is worked out once for each range of the newest.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.placement.placements import PlacedRange
from lockstep.replica.tracked import keeps_data, placed_at
from lockstep.storage.shard_logs import Shard
from lockstep.topology.roles import keepers


class ShardRoles(msgspec.Struct, frozen=True):
    """`placed` None: it is no range any more. `others`: the other replicas. `keeping`: those of them whose
    tables are to have what is let go of here, all but witnesses; `is_keeper`: whether this node's are."""

    placed: PlacedRange | None = None
    others: tuple[int, ...] = ()
    keeping: tuple[int, ...] = ()
    is_keeper: bool = False


NO_ROLES = ShardRoles()


class RolesOfShards:
    def __init__(self) -> None:
        self._cluster: ClusterMetadata | None = None
        #: As many as there are ranges of tracked tables that this node has heard of.
        self._found: dict[Shard, ShardRoles] = {}

    def of(self, cluster: ClusterMetadata, own: int, shard: Shard) -> ShardRoles:
        """`own`: this node's id, by that metadata."""
        if cluster is not self._cluster:
            self._cluster, self._found = cluster, {}
        found = self._found.get(shard)
        if found is None:
            found = self._found[shard] = _roles(cluster, own, shard)
        return found


def _roles(cluster: ClusterMetadata, own: int, shard: Shard) -> ShardRoles:
    placed = placed_at(cluster, shard)
    if placed is None:
        return NO_ROLES
    nodes = keepers(cluster, cluster.placements.ring(shard[0]), placed)
    return ShardRoles(
        placed,
        tuple(node for node in placed.group.writes if node != own),
        tuple(node for node in nodes if node != own),
        own in nodes,
    )


class KeptShards:
    """As `keeps_data` of the newest metadata; asked with each write."""

    def __init__(self, cluster: Callable[[], ClusterMetadata], own_id: Callable[[], int]) -> None:
        self._now = cluster
        self._own_id = own_id
        self._cluster: ClusterMetadata | None = None
        #: As many as there are ranges that this node holds something of.
        self._kept: dict[Shard, bool] = {}

    def __call__(self, shard: Shard) -> bool:
        cluster = self._now()
        if cluster is not self._cluster:
            self._cluster, self._kept = cluster, {}
        kept = self._kept.get(shard)
        if kept is None:
            kept = self._kept[shard] = keeps_data(cluster, self._own_id(), shard)
        return kept
