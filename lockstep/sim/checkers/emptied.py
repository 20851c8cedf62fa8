"""REP-3 and TAB-1 on disks: who said that it wiped what is not its own holds none of it as the stage ends.

A cancelled newcomer would otherwise keep rows that are deleted and purged elsewhere, and bring them back when
it joins again. Invariant: only nodes that ended such work since the stage began are judged; one that was dead
is excused, and wipes before it becomes pending again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.node.work.worker import gained_ranges, lost_ranges
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.topology.kind import stage_row
from lockstep.topology.stages import DELETING, Work
from lockstep.values.ids import NodeId

_DONE = "work.done"


class Emptied:
    """`entered` and `left` are told of each stage. `done`: how often the process of a node ended work."""

    def __init__(
        self,
        content: Callable[[NodeId], DurableContent | None],
        done: Callable[[NodeId], int],
        fact: Callable[[str], None],
    ) -> None:
        self._content = content
        self._done = done
        self._fact = fact
        self._before: dict[tuple[int, Stage], Mapping[NodeId, int]] = {}

    def entered(self, operation: Operation) -> None:
        if self._deletes(operation) is not None:
            nodes = {node: None for transition in operation.transitions for node in transition.union}
            self._before[operation.id, operation.stage] = {node: self._done(node) for node in nodes}

    def left(self, cluster: ClusterMetadata, operation: Operation) -> None:
        """Raises Violation. `cluster` is the value before the entry that left the stage."""
        work = self._deletes(operation)
        counts = self._before.pop((operation.id, operation.stage), {})
        if work is None:
            return
        ranges_of = gained_ranges if work is Work.DISCARD else lost_ranges
        for node, count in counts.items():
            content = self._content(node)
            if self._done(node) <= count or content is None:
                continue
            content.refresh()
            for replication, ranges in ranges_of(operation, node):
                tables = [
                    table.id
                    for keyspace in cluster.schema.keyspaces
                    if keyspace.replication == replication
                    for table in keyspace.tables
                ]
                for range_ in ranges:
                    if held := content.held(tables, range_):
                        raise Violation(
                            "REP-3",
                            f"node {node} ended the work of {operation.title()} in {operation.stage} and "
                            f"still holds {held} partitions of {range_}",
                        )
                self._fact(
                    "a newcomer was emptied" if work is Work.DISCARD else "a former replica was emptied"
                )

    @staticmethod
    def _deletes(operation: Operation) -> Work | None:
        work = stage_row(operation).work
        return work if work in DELETING else None
