"""Writes that nodes keep for others: before which moment all have arrived, and what a node left with.

Invariants. A node that leaves has given away what it kept, or every range of it is degraded. What deletes a
write that some node still keeps for another is dated by whichever node took the deletion; its clock is behind
the keeper's by no more than the one that is furthest behind, so what is found is below all of those dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, with_missing
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import UNDELIVERED_RANGES_MAX
from lockstep.values.tokens import Range


class Told(msgspec.Struct, frozen=True):
    """A node answered between `asked_us` and `heard_us` of the asking node's steady clock that its own wall
    clock was at `at_us` (0: it does not say), and that the oldest write which it keeps for others is of
    `oldest_us` by that clock; -1: it keeps none."""

    oldest_us: int
    at_us: int
    asked_us: int
    heard_us: int


def all_arrived_before_us(began_us: int, told: list[Told]) -> int:
    """Microseconds of the clock that is furthest behind, at most `began_us`; 0 when that is not known: a node
    keeps a write of its future, made while its clock was ahead, nobody knows how long ago."""
    behind_us = min((one.at_us - one.heard_us for one in told if one.at_us), default=0)
    before_us = began_us
    for one in told:
        if one.at_us and one.oldest_us > one.at_us:
            return 0
        before_us = min(before_us, one.at_us or before_us)
        if one.oldest_us >= 0:
            ahead_us = one.at_us - one.asked_us - behind_us if one.at_us else 0
            before_us = min(before_us, one.oldest_us - ahead_us)
    return max(0, before_us)


class Owed(msgspec.Struct, frozen=True, array_like=True):
    """Nodes that may lack writes of a range of a keyspace."""

    keyspace: str
    range: Range
    nodes: tuple[NodeId, ...]


class RecordUndelivered(msgspec.Struct, frozen=True, array_like=True):
    """`node` leaves, or left, with writes that it kept for others; nobody took them."""

    node: NodeId
    owed: tuple[Owed, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        info = cluster.node(self.node)
        if info is None or info.state not in (NodeState.DECOMMISSIONING, NodeState.LEFT):
            raise Rejected(f"node {self.node} does not leave, and delivers what it keeps for others")
        if len(self.owed) > UNDELIVERED_RANGES_MAX:
            raise Rejected(f"more than {UNDELIVERED_RANGES_MAX} ranges are recorded at once")
        degraded = cluster.degraded
        for owed in self.owed:
            keyspace = cluster.schema.by_name.get(owed.keyspace)
            present = [node for node in owed.nodes if node in cluster.directory.present_ids]
            if owed.range.left >= owed.range.right:
                raise Rejected(f"({owed.range.left}, {owed.range.right}] is no range")
            if keyspace is not None and present:
                group, range_ = keyspace.group, owed.range
                degraded = with_missing(degraded, group, keyspace.name, range_, present, epoch)
        if degraded == cluster.degraded:
            raise Rejected(f"what node {self.node} keeps is owed to nobody any more")
        return cluster.changed(DEGRADED.set(degraded))


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.RECORD_UNDELIVERED: RecordUndelivered}
