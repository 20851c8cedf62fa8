"""Keeping the placements in step with the replication settings that the schema uses.

Invariant: exactly the replications in use have a ring; a ring is computed from the token owners when
its replication comes into use, and afterwards only topology operations change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import Held, Wanted, refuse_during
from lockstep.placement.deltas import computed_ring, paired, plan_of
from lockstep.placement.placements import Placements
from lockstep.placement.refills import Passage, refilled
from lockstep.placement.strategies import Owner
from lockstep.schema.model import Replication


def placements_for(
    placements: Placements, replications: Sequence[Replication], owners: Sequence[Owner], epoch: int
) -> Placements:
    """Rings for exactly `replications` (sorted, unique); the same object when nothing changes."""
    known = placements.by_replication
    if tuple(replications) == tuple(ring.replication for ring in placements.rings):
        return placements
    return Placements(
        tuple(
            known[replication] if replication in known else computed_ring(replication, owners, epoch)
            for replication in replications
        )
    )


def refuse_while_locked(cluster: ClusterMetadata, what: str) -> None:
    """Raises Rejected when any operation is running: its plan covers only the rings it knew."""
    hint = "wait for it to finish (`lockstep topology watch`) or cancel it"
    refuse_during(cluster, Wanted.SCHEMA_MOVING, Held.RING, what, hint)


def moves_data(cluster: ClusterMetadata, before: Replication, after: Replication) -> bool:
    """Whether tables need an operation to get from one replication to the other: it gives a range other
    replicas, or asks for more copies of what was written than are sure to be there."""
    circle, dc_of = cluster.directory.circle, cluster.directory.dc_by_id.__getitem__
    before, after = before.settled, after.settled
    return any(
        delta.old != delta.new or refilled(Passage(delta.old, delta.new, before, after), dc_of)
        for delta in paired(plan_of(before, circle), plan_of(after, circle))
    )
