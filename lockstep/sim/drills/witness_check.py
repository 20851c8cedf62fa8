"""Whether quorums with witnesses have the data: over every range of every epoch of a run.

Who acknowledged a write and who is asked by a read have a node in common; that is counted by sets, witnesses
included, in `quorum_check`. Here is the rest. A node that holds a mutation in its journal alone is no answer:
one of those asked keeps the tables. Invariants that are looked at: who shows data kept it at the epoch
before, so it has each write that was acknowledged since; every quorum of a data centre that keeps data has
a node that shows it, whichever others are away; whoever is to keep a range is filled from one that shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.placement.placements import PlacedRange, RingPlacement
from lockstep.placement.quorums import dc_factors, majority
from lockstep.topology import roles
from lockstep.topology.kind import stage_row
from lockstep.topology.stages import Work
from lockstep.topology.streams import stream_plan
from lockstep.values.ids import NodeId


class WitnessCheck:
    """`ranges`: how many were looked at that have witnesses; `missed`: what is wrong, as sentences."""

    def __init__(self) -> None:
        self.ranges = 0
        self.quorums = 0
        self.fills = 0
        self.missed: list[str] = []

    def values(self, values: Sequence[ClusterMetadata]) -> None:
        """The metadata of epochs that follow each other."""
        for before, after in zip((None, *values), values, strict=False):
            for ring in after.placements.rings:
                if ring.replication.has_witnesses:
                    for placed in ring.ranges:
                        self.ranges += 1
                        self.missed += self._of_range(before, after, ring, placed)
            self.missed += self._of_streams(after)

    def _of_range(
        self, before: ClusterMetadata | None, after: ClusterMetadata, ring: RingPlacement, placed: PlacedRange
    ) -> Iterator[str]:
        where = f"epoch {after.epoch}, ({placed.range.left}, {placed.range.right}]"
        shown = roles.readers(after, ring, placed)
        if not set(shown) <= set(roles.keepers(after, ring, placed)):
            yield f"{where}: {shown} are asked for data, and not all keep it"
        if before is not None and (old := before.placements.by_id.get(ring.id)) is not None:
            was = old.range_at(placed.range.right)
            new = set(shown) - set(roles.keepers(before, old, was))
            if new:
                yield f"{where}: {sorted(new)} are asked for data that they did not keep before"
        yield from self._of_quorums(where, after, ring, placed, shown)

    def _of_quorums(
        self,
        where: str,
        cluster: ClusterMetadata,
        ring: RingPlacement,
        placed: PlacedRange,
        shown: Sequence[NodeId],
    ) -> Iterator[str]:
        witnesses = ring.replication.witnesses
        for dc, factor in dc_factors(ring.replication):
            there = [node for node in placed.group.reads if cluster.directory.dc_by_id[node] == dc]
            if factor == witnesses.get(dc, 0) or len(there) < majority(factor):
                continue
            for quorum in combinations(there, majority(factor)):
                self.quorums += 1
                if not set(quorum) & set(shown):
                    yield f"{where}: quorum {quorum} of {dc} has nobody with data"

    def _of_streams(self, cluster: ClusterMetadata) -> Iterator[str]:
        for operation in cluster.operations:
            if stage_row(operation).work is not Work.STREAM:
                continue
            for task in stream_plan(operation, cluster, ()):
                ring = cluster.placements.ring(task.group)
                placed = ring.range_at(task.range.right)
                if not ring.replication.has_witnesses or task.target not in roles.keepers(
                    cluster, ring, placed
                ):
                    continue
                self.fills += 1
                if not set(task.sources) & set(roles.readers(cluster, ring, placed)):
                    yield f"epoch {cluster.epoch}: node {task.target} is filled from {task.sources} alone"
            yield from self._unfilled(cluster, operation.id)

    def _unfilled(self, cluster: ClusterMetadata, operation: int) -> Iterator[str]:
        """Who keeps a range from now on and did not before, and nobody fills."""
        filled = {
            (task.target, task.group, task.range)
            for task in stream_plan(cluster.operations_by_id[operation], cluster, ())
        }
        dc_of = cluster.directory.dc_by_id.__getitem__
        for moving in cluster.transitions.of(operation):
            for node in roles.promoted(moving, dc_of):
                if (node, moving.group, moving.range) not in filled:
                    yield f"epoch {cluster.epoch}: node {node} is to keep {moving.range}, and nobody fills it"
