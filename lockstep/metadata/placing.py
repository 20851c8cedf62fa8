"""Keeping the placement groups in step with the keyspaces of the schema.

Invariant: each keyspace has a group with its replication, which it shares with those that are replicated
alike and at rest; a group's ring is computed from the token owners when it comes into use, and afterwards
only topology operations change it.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import Held, Wanted, refuse_during
from lockstep.placement.deltas import computed_ring, paired, plan_of
from lockstep.placement.placements import Placements, RingPlacement
from lockstep.placement.refills import Passage, refilled
from lockstep.schema.model import Replication, Schema


def shared_group(
    placements: Placements, replication: Replication, changing: Container[int]
) -> RingPlacement | None:
    """The group that keyspaces with this replication share, none of those that are `changing` theirs; None
    when there is none yet."""
    alike = (ring for ring in placements.rings if ring.replication == replication)
    return next((ring for ring in alike if ring.id not in changing), None)


def placed(cluster: ClusterMetadata, schema: Schema, epoch: int) -> tuple[Schema, Placements]:
    """The schema in which each keyspace has its group, and the placements with exactly those groups; they are
    the same object when none comes or goes."""
    placements = cluster.placements
    for before, keyspace in cluster.schema.keyspaces_changed_in(schema):
        if keyspace is None or (before is not None and before.replication == keyspace.replication):
            continue
        ring = shared_group(placements, keyspace.replication, cluster.recounting)
        if ring is None:
            ring = computed_ring(placements.next_id, keyspace.replication, cluster.directory.circle, epoch)
            placements = placements.with_rings((ring,))
        schema = schema.with_keyspace(msgspec.structs.replace(keyspace, group=ring.id))
    used = {keyspace.group for keyspace in schema.keyspaces}
    return schema, placements.without(sorted(set(placements.by_id) - used))


def refuse_while_locked(cluster: ClusterMetadata, what: str) -> None:
    """Raises Rejected when any operation is running: its plan covers only the rings it knew."""
    hint = "wait for it to finish (`lockstep topology watch`) or cancel it"
    refuse_during(cluster, Wanted.SCHEMA_MOVING, Held.RING, what, hint)


def moves_data(cluster: ClusterMetadata, before: Replication, after: Replication) -> bool:
    """Whether tables need an operation to get from one replication to the other: it gives a range other
    replicas, or asks for more copies of what was written than are sure to be there."""
    circle, dc_of = cluster.directory.circle, cluster.directory.dc_by_id.__getitem__
    return any(
        delta.old != delta.new or refilled(Passage(delta.old, delta.new, before, after), dc_of)
        for delta in paired(plan_of(before, circle), plan_of(after, circle))
    )
