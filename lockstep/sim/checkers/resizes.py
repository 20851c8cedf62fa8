"""Splits and merges of tablets, judged at each new epoch by what every node had durably applied.

RSZ-1: a map becomes another one only when each of its replicas has applied that its moves were to end, and
nothing of its table is on its way. RSZ-2: a new map counts as everywhere only when each replica that is not
shut out has applied it. RSZ-3: every token has the same replicas before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.tablets import ResizePhase, TabletGroup
from lockstep.placement.tablets.resize import ResizeKind
from lockstep.sim.checkers.ownership import raise_first
from lockstep.topology.invariants import overlaid
from lockstep.values.ids import NodeId


class ResizeWatch:
    """`seen`: what each node has durably applied, by the value it is asked for; `fact` counts what came to
    pass."""

    def __init__(
        self, seen: Callable[[ClusterMetadata], Mapping[NodeId, int]], fact: Callable[[str], None]
    ) -> None:
        self._seen = seen
        self._fact = fact

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        if before.tablets is after.tablets:
            return
        for group in before.tablets.groups:
            now = after.tablets.by_group.get(group.id)
            if now is not None and now.head.resizing != group.head.resizing:
                self._tell(group, now)
                raise_first(list(problems(before, after, group, self._seen(after))))

    def _tell(self, was: TabletGroup, now: TabletGroup) -> None:
        former, phase = was.head.resizing, now.head.resizing.phase
        kind = former.resize.kind.name.lower()
        if phase is ResizePhase.SETTLING:
            self._fact(f"{kind} finalised")
        elif phase is ResizePhase.PREPARING and former.phase is ResizePhase.CLOSING:
            self._fact("a resize went back")
        elif phase is ResizePhase.NONE and former.resize.kind is not ResizeKind.NONE:
            self._fact(f"{kind} revoked")


def problems(
    before: ClusterMetadata, after: ClusterMetadata, group: TabletGroup, seen: Mapping[NodeId, int]
) -> Iterator[str]:
    """What is wrong with the step of the resize of one table."""
    former, phase = group.head.resizing, after.tablets.by_group[group.id].head.resizing.phase
    name = f"{former.title()} of {group.head.keyspace}.{group.head.table}"
    ring = before.placements.ring(group.id)
    holders = sorted({node for placed in ring.ranges for node in placed.group.writes})
    if phase is ResizePhase.SETTLING:
        late = [node for node in holders if seen.get(node, 0) < former.epoch]
        if late:
            yield f"RSZ-1: {name} changed the map, and node {late[0]} has not applied epoch {former.epoch}"
        if any(one.group == group.id for _, one in before.transitions.tree.items()):
            yield f"RSZ-1: {name} changed the map while tablets of it are on their way"
        for range_, old, new in overlaid(ring, after.placements.ring(group.id)):
            if not set(old.reads) == set(new.reads) == set(new.writes):
                yield f"RSZ-3: {name} changed the replicas of {range_} from {old.reads} to {new.reads}"
    elif former.phase is ResizePhase.SETTLING:
        for node in holders:
            info = before.node(node)
            has_left = info is None or info.state is NodeState.LEFT
            if not has_left and node not in before.excluded_by_node and seen.get(node, 0) < former.epoch:
                yield f"RSZ-2: {name} is said to be everywhere, and not on node {node}"
