"""Who keeps the data of a range, and who may be asked for it, also while the range is on its way.

Invariants. Who is asked for data keeps all of it: a witness that becomes a full replica stores what is
written from the step on that has both sides written, and is read only once it was filled. Roles change with
the very entries that change the epoch of the range's group, so whoever plans with roles of before is refused.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.placements import PlacedRange, RingPlacement
from lockstep.placement.quorums import DcOf
from lockstep.placement.witnesses import full_of
from lockstep.topology.kind import stage_row
from lockstep.topology.stages import Side
from lockstep.values.ids import NodeId


def readers(cluster: ClusterMetadata, ring: RingPlacement, placed: PlacedRange) -> tuple[NodeId, ...]:
    """Replicas that show data to reads, in ring order."""
    reads = placed.group.reads
    return full_of(ring.replication, reads, cluster.directory.dc_by_id.__getitem__)


def keepers(cluster: ClusterMetadata, ring: RingPlacement, placed: PlacedRange) -> tuple[NodeId, ...]:
    """Replicas that store in their tables what is written, in the order of the group's writes. The others
    have it in their journals until all of these hold it."""
    group = placed.group
    if not ring.replication.has_witnesses:
        return group.writes
    dc_of = cluster.directory.dc_by_id.__getitem__
    moving = cluster.transitions.at(ring.id, placed.range.right)
    if moving is None:
        return full_of(ring.replication, group.writes, dc_of)
    mover = cluster.operations_by_id[moving.operation_id] if moving.operation_id else Lone(moving)
    row = stage_row(mover)
    before = full_of(moving.replication, moving.old, dc_of)
    after = full_of(moving.replication_after, moving.new, dc_of)
    if row.writes is Side.OLD:
        found = set(before)
    elif row.reads is Side.NEW:
        # Whoever gives the range up keeps it whole for those that have not heard of it.
        found = {*after, *(node for node in before if node in moving.lost)}
    else:
        found = {*before, *after}
    kept = tuple(node for node in group.writes if node in found)
    assert kept, "somebody keeps the data"
    return kept


def promoted(transition: Transition, dc_of: DcOf) -> tuple[NodeId, ...]:
    """Witnesses that stay and become full replicas: they are filled with the data."""
    if not _has_witnesses(transition):
        return ()
    before = full_of(transition.replication, transition.old, dc_of)
    after = full_of(transition.replication_after, transition.new, dc_of)
    return tuple(node for node in after if node in transition.old and node not in before)


def demoted(transition: Transition, dc_of: DcOf) -> tuple[NodeId, ...]:
    """Full replicas that stay and become witnesses: they drop the data."""
    if not _has_witnesses(transition):
        return ()
    before = full_of(transition.replication, transition.old, dc_of)
    after = full_of(transition.replication_after, transition.new, dc_of)
    return tuple(node for node in before if node in transition.new and node not in after)


def _has_witnesses(transition: Transition) -> bool:
    return transition.replication.has_witnesses or transition.replication_after.has_witnesses
