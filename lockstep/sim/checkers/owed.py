"""Hints are gone only when their replica has the write, when another node keeps them, or with a mark.

Invariant: judged in the very step that forgets a hint, by what disks certainly hold then. Not judged: what
was owed to a replica that is none any more, or whose group has changed since, for it may be emptied by now;
and nothing where deletions are purged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep.handoff.hint_records import DroppedHints, Hint, target_of
from lockstep.handoff.hint_store import Stored
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.node import Node
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.values.ids import NodeId
from lockstep.values.rows import Mutation

#: Of the hints that one step forgets, so many are judged: to read disks takes long.
_JUDGED_MAX = 4


class OwedHints:
    """`disks`: what is durable by node, of those that have all that they should."""

    def __init__(self, cluster: SimCluster, disks: Callable[[], dict[NodeId, DurableContent]]) -> None:
        self._cluster = cluster
        self._disks = disks

    def attach(self, name: str, node: Node) -> None:
        """Look at all that a node's store forgets from now on."""
        store = node.data.hints.store
        delete: Callable[..., int] = store.delete

        def judged(hints: Sequence[Stored], marks: Sequence[DroppedHints] = ()) -> int:
            try:
                self.forgotten(name, node.log.cluster, hints, marks)
            except Violation as found:
                self._cluster.world.fail("monitor", name, str(found), found)
            return delete(hints, marks)

        patched: Any = store
        patched.delete = judged

    def forgotten(
        self,
        name: str,
        known: ClusterMetadata,
        hints: Sequence[Stored],
        marks: Sequence[DroppedHints],
    ) -> None:
        """HINT-1: judge what `name`, whose metadata is `known`, forgets."""
        left = [one for one in hints if known.table(one.hint.mutation.table_id) is not None]
        left = [one for one in left if not _is_marked(one, marks)]
        if not left or self._cluster.purges:
            return
        newest = self._cluster.newest
        disks = self._disks()
        for content in disks.values():
            content.refresh()
        own = self._cluster.node_id(name)
        for one in left[:_JUDGED_MAX]:
            target, _ = target_of(one.key)
            others = [content for node, content in disks.items() if node != own]
            if any(content.get(one.key) is not None for content in others):
                self._cluster.fact("a hint was handed on")
            elif _may_have_lost_it(newest, target, one.hint) or target not in disks:
                continue
            elif lacking := list(lacking_of(disks[target], one.hint.mutation)):
                raise Violation(
                    "HINT-1", f"{name} forgets a hint of node {target}, which lacks timestamps {lacking}"
                )
            else:
                self._cluster.fact("a hint was delivered")


def _is_marked(stored: Stored, marks: Sequence[DroppedHints]) -> bool:
    target, _ = target_of(stored.key)
    mutation = stored.hint.mutation
    return any(
        mark.node == target
        and mark.table_id == mutation.table_id
        and (mark.left < mutation.token <= mark.right or mark.left >= mark.right)
        for mark in marks
    )


def _may_have_lost_it(cluster: ClusterMetadata, target: NodeId, hint: Hint) -> bool:
    for keyspace in cluster.schema.keyspaces:
        if any(table.id == hint.mutation.table_id for table in keyspace.tables):
            group = cluster.group_for(keyspace.replication, hint.mutation.token)
            return target not in group.writes or group.epoch > hint.epoch
    return True


def lacking_of(content: DurableContent, mutation: Mutation) -> Iterator[int]:
    """Timestamps of the mutation above all that its place holds."""
    table, key = mutation.table_id, mutation.key
    places: list[tuple[bytes, int]] = []
    if mutation.deletion is not None:
        places.append((b"", mutation.deletion.timestamp_us))
    places += [(gone.start, gone.deletion.timestamp_us) for gone in mutation.range_deletions]
    for row in mutation.rows:
        stamps = [cell.timestamp_us for cell in row.cells]
        stamps += [part.timestamp_us for part in (row.liveness, row.deletion) if part is not None]
        places += [(row.clustering, max(stamps))] if stamps else []
    for clustering, timestamp_us in places:
        if content.state(table, key, clustering)[0] < timestamp_us:
            yield timestamp_us
