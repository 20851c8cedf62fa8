"""Barriers: when enough replicas have seen a step for the next one to be safe.

Invariant: a barrier on epoch e passes only when, in every group of an affected range that some
coordinator may still use, the members that have not seen e cannot form a quorum, neither over all data
centres nor within one. Whoever could not be asked counts as not having seen it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Transition
from lockstep.placement.quorums import DcOf, dc_factors, majority
from lockstep.topology.stages import Drain, Side, StageRow, Work, side_of, stage_row
from lockstep.topology.streams import StreamTask
from lockstep.values.ids import NodeId


class GroupNeed(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`members` must not hold `quorum` or more nodes that have not seen the step; dc "" = all of them."""

    members: tuple[NodeId, ...]
    quorum: int
    dc: str


class BarrierNeed(msgspec.Struct, frozen=True, array_like=True):
    """`must_see`: each by itself (they get the stage's work); `must_drain`: older requests finished too.

    `never`: whoever the operation was told is dead. It counts as unaware, whatever it said before.
    """

    operation_id: int
    epoch: int
    groups: tuple[GroupNeed, ...]
    must_see: tuple[NodeId, ...]
    must_drain: tuple[NodeId, ...]
    never: tuple[NodeId, ...] = ()

    def nodes(self) -> tuple[NodeId, ...]:
        """Everyone worth asking, ascending."""
        asked = {node for group in self.groups for node in group.members}
        return tuple(sorted(asked.union(self.must_see, self.must_drain).difference(self.never)))


class Missing(msgspec.Struct, frozen=True, array_like=True):
    """A node the barrier waits for: the epoch it was last seen at, and why it counts."""

    node: NodeId
    seen: int
    needed: int
    reason: str


class BarrierState(msgspec.Struct, frozen=True, array_like=True):
    """`missing` may name more nodes than are needed: any that complete each group will do."""

    passed: bool
    missing: tuple[Missing, ...]


def barrier_need(
    operation: Operation,
    cluster: ClusterMetadata,
    tasks: Sequence[StreamTask] = (),
    workers: Sequence[NodeId] = (),
) -> BarrierNeed:
    """What the barrier on the operation's present stage needs.

    `tasks` are the streams still to run, `workers` the nodes that still have a part of the stage's work.
    """
    row = stage_row(operation.kind, operation.stage)
    dc_of = cluster.directory.dc_by_id.__getitem__
    groups: dict[GroupNeed, None] = {}
    for transition in operation.transitions:
        for side in row.in_use:
            for need in _group_needs(transition, side, row, dc_of):
                groups[need] = None
    return BarrierNeed(
        operation.id,
        operation.stage_epoch,
        tuple(groups),
        _must_see(row, operation),
        _must_drain(row, operation, tasks, workers),
        (operation.presumed_dead,) if operation.presumed_dead else (),
    )


def _must_see(row: StageRow, operation: Operation) -> tuple[NodeId, ...]:
    """Pending replicas even when their work is done: a coordinator that is new has not heard of it."""
    if row.work in (Work.WIPE, Work.STREAM):
        return tuple(sorted({node for transition in operation.transitions for node in transition.gained}))
    return (operation.node,) if row.work is Work.REBUILD else ()


def _must_drain(
    row: StageRow, operation: Operation, tasks: Sequence[StreamTask], workers: Sequence[NodeId]
) -> tuple[NodeId, ...]:
    if row.drain is Drain.WORKERS:
        return tuple(sorted(workers))
    if row.drain is Drain.SOURCES:
        return tuple(sorted({source for task in tasks for source in task.sources}))
    if row.drain is Drain.ALL:
        return tuple(sorted({node for t in operation.transitions for node in t.union}))
    return ()


def _group_needs(transition: Transition, side: Side, row: StageRow, dc_of: DcOf) -> list[GroupNeed]:
    members = tuple(sorted(side_of(transition, side)))
    pending = transition.gained if row.pending_votes and side is Side.UNION else ()
    needs = [GroupNeed(members, majority(transition.replication.total) + len(pending), "")]
    for dc, factor in dc_factors(transition.replication):
        local = tuple(node for node in members if dc_of(node) == dc)
        extra = sum(dc_of(node) == dc for node in pending)
        needs.append(GroupNeed(local, majority(factor) + extra, dc))
    return [need for need in needs if len(need.members) >= need.quorum]


def evaluate(
    need: BarrierNeed, acknowledged: Mapping[NodeId, int], drained: Mapping[NodeId, int]
) -> BarrierState:
    """Whether the barrier passes.

    `acknowledged` is the newest epoch each node is known to have durably applied, `drained` the newest
    epoch below which it has no request left; a node that is absent has seen nothing.
    """
    found: dict[NodeId, Missing] = {}
    if need.never:
        acknowledged = {node: seen for node, seen in acknowledged.items() if node not in need.never}

    def miss(node: NodeId, seen: int, reason: str) -> None:
        found.setdefault(node, Missing(node, seen, need.epoch, reason))

    for node in need.must_see:
        if acknowledged.get(node, 0) < need.epoch:
            miss(node, acknowledged.get(node, 0), "receives ranges")
    for node in need.must_drain:
        if min(acknowledged.get(node, 0), drained.get(node, 0)) < need.epoch:
            miss(node, acknowledged.get(node, 0), "has older requests to finish before its part of the work")
    for group in need.groups:
        unseen = [node for node in group.members if acknowledged.get(node, 0) < need.epoch]
        if len(unseen) >= group.quorum:
            where = f" in data centre {group.dc}" if group.dc else ""
            for node in [node for node in unseen if node not in need.never] or unseen:
                miss(node, acknowledged.get(node, 0), f"{len(unseen)} unaware replicas make a quorum{where}")
    return BarrierState(not found, tuple(found[node] for node in sorted(found)))
