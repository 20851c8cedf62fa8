"""What this node still stores of tablets that it gave up while nobody waited for it: it drops that by itself.

A node that is shut out is not waited for when a tablet leaves it, so no stage of that move has it delete
anything. It does so in the very step in which it applies that it is taken back, in which it jumps over
entries by a snapshot, and when it starts; a crash that takes the deletion back makes it start again.

Invariant: nothing is dropped of a tablet that this node is to have, or that is on its way from it or to it.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rows.keys import with_ballots
from lockstep.values.errors import DiskRefused
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class UnownedTablets:
    def __init__(self, context: NodeContext, state: MetadataState, engine: StorageEngine) -> None:
        self._context = context
        self._engine = engine
        state.listen(self._applied, parts_only=True)
        self._drop(state.current)

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        own = NodeId(self._context.own_id())
        came_back = own in before.excluded_by_node and own not in after.excluded_by_node
        if came_back or after.epoch - before.epoch > 1:
            self._drop(after)

    def _drop(self, cluster: ClusterMetadata) -> None:
        own = NodeId(self._context.own_id())
        if not own or own in cluster.excluded_by_node:
            return
        sequence = 0
        for tables, range_ in unowned(cluster, own):
            stored = [
                table
                for table in tables
                if any(self._engine.estimated_bytes(one, range_, 1)[1] for one in with_ballots((table,)))
            ]
            if not stored:
                continue
            try:
                sequence = self._engine.forget(stored, range_)
            except DiskRefused:
                return  # The store has said that it failed, and this node stops.
            self._context.runtime.probes.reach("tablets.unowned_dropped")
            self._context.log("tablets.unowned_dropped", start=range_.left, end=range_.right)
        if sequence:
            self._context.runtime.tasks.spawn(self._synced(sequence), f"tablets.unowned.{cluster.epoch}")

    async def _synced(self, sequence: int) -> None:
        """Soon, although nobody waits for it: until then it is done again after a crash."""
        try:
            await self._engine.synced(sequence)
        except DiskRefused:
            self._context.runtime.probes.reach("tablets.unowned_not_synced")


def unowned(cluster: ClusterMetadata, own: NodeId) -> list[tuple[tuple[int, ...], Range]]:
    """Tables, and the ranges of their tablets that a node has nothing to do with, neighbours as one."""
    found: list[tuple[tuple[int, ...], Range]] = []
    for group in cluster.tablets.groups:
        tables = tuple(table.id for table in cluster.schema.tables_in(group.id))
        left: Range | None = None
        for placed in cluster.placements.ring(group.id).ranges:
            moving = cluster.transitions.at(group.id, placed.range.right)
            is_own = own in placed.group.writes or (moving is not None and own in moving.union)
            if not is_own and left is not None and left.right == placed.range.left:
                left = Range(left.left, placed.range.right)
                continue
            if left is not None:
                found.append((tables, left))
            left = None if is_own else placed.range
        if left is not None:
            found.append((tables, left))
    return found
