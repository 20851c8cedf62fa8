"""Wiping what is left of ranges that this node owns at once, because another was given up by force.

Invariant: no stage wiped them before, so it happens in the very step in which the entry is applied, before
anything is sent to this node as an owner. A mark in the same store, written behind the wipes, says up to
which epoch that is done: a crash that takes a wipe back takes the mark back, and all that came later, so
starting again does it again.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.storage.engine import StorageEngine
from lockstep.values.errors import DiskRefused
from lockstep.values.tokens import Range

#: Where the newest epoch is kept whose inherited ranges are wiped: eight bytes, big-endian.
_MARK = b"inherited"


class InheritedRanges:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        engine: StorageEngine,
    ) -> None:
        self._runtime = context.runtime
        self._engine = engine
        self._own_id = context.own_id
        kept = engine.local_fact(_MARK)
        self._done_epoch = int.from_bytes(kept, "big") if kept is not None else 0
        self._settle(state.current)
        state.listen(lambda _before, after, _entry: self._settle(after), parts_only=True)

    def _settle(self, cluster: ClusterMetadata) -> None:
        """Wipe what has been inherited since the last time."""
        if all(line.since_epoch <= self._done_epoch for line in cluster.degraded):
            return
        try:
            for tables, range_ in inherited_ranges(cluster, self._own_id(), self._done_epoch):
                self._engine.forget(tables, range_)
                self._runtime.probes.reach("inherited.wiped")
            sequence = self._engine.keep_local_fact(_MARK, cluster.epoch.to_bytes(8, "big"))
        except DiskRefused:
            return  # The store has said that it failed, and this node stops.
        self._done_epoch = cluster.epoch
        self._runtime.tasks.spawn(self._synced(sequence), f"inherited.synced.{cluster.epoch}")

    async def _synced(self, sequence: int) -> None:
        try:
            await self._engine.synced(sequence)
        except DiskRefused:
            self._runtime.probes.reach("inherited.not_synced")


def inherited_ranges(
    cluster: ClusterMetadata, node: int, after_epoch: int
) -> list[tuple[tuple[int, ...], Range]]:
    """Tables, and what of them the node has owned at once since then.

    Not tables of keyspaces that came to be replicated this way later: they owed nothing to who was given up,
    and a node that was away hears of both at once.
    """
    return [
        (
            tuple(
                table.id
                for keyspace in cluster.schema.keyspaces
                if keyspace.group == line.group and line.is_about(keyspace.name)
                for table in keyspace.tables
            ),
            line.range,
        )
        for line in cluster.degraded
        if line.since_epoch > after_epoch and node in line.inherited
    ]
