"""Giving a node up without moving its data, saying later that what it left behind was repaired, and writes
that nodes keep for others: before which moment all have arrived, and what a node leaves.

Invariant: one entry, no stages: the node has left, its ranges have their new replicas at once, and every
range whose acknowledged writes may now be missed is degraded in the same value. A node that leaves has given
away what it kept, or every range of it is degraded. What deletes a write that some node still keeps for
another is dated by whichever node took the deletion; its clock is behind the keeper's by no more than the one
that is furthest behind, so what is found is below all of those dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded, with_missing, without_node, without_range
from lockstep.metadata.directory import DIRECTORY, EXCLUDED, NodeState
from lockstep.metadata.groups.membership import without_leaving
from lockstep.metadata.groups.service import SERVICE, Service
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.requests import REQUESTS
from lockstep.metadata.requests import without_node as without_node_requests
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import Transition
from lockstep.placement.deltas import Delta, GroupChange, changes, merged, with_groups
from lockstep.placement.placements import RingPlacement
from lockstep.schema.tracking import tracked_tables
from lockstep.topology.planning import refuse_voter
from lockstep.topology.streams import enough, pieces
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import SERVICE_TEXT_CHARACTERS_MAX, UNDELIVERED_RANGES_MAX
from lockstep.values.tokens import Range


class ForceRemove(msgspec.Struct, frozen=True, array_like=True):
    """The node is gone for good, whatever it stored; `reason` is for people who read the log."""

    node: NodeId
    reason: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        _refuse_start(cluster, self)
        info = cluster.directory.by_id[self.node]
        left = msgspec.structs.replace(info, state=NodeState.LEFT, tokens=(), epoch=epoch)
        degraded = list(without_node(cluster.degraded, self.node))
        rings = []
        for ring, deltas in changes_without(cluster, self.node):
            changes = [GroupChange(delta.range, delta.new, delta.new) for delta in deltas]
            rings.append(merged(with_groups(ring, changes, epoch)))
            degraded.extend(_degraded(cluster, ring, deltas, self.node, epoch))
        assert not any(self.node in placed.group.writes for ring in rings for placed in ring.ranges), (
            "it is gone"
        )
        return cluster.changed(
            DIRECTORY.set(cluster.directory.with_node(left)),
            PLACEMENTS.set(cluster.placements.with_rings(tuple(rings))),
            DEGRADED.set(tuple(degraded)),
            EXCLUDED.set(tuple(one for one in cluster.excluded if one.node != self.node)),
            SERVICE.set(_service_without(cluster, self.node)),
            REQUESTS.set(
                without_node_requests(
                    cluster.requests, self.node, f"node {self.node} was given up by force", epoch
                )
            ),
        )


class MarkRepaired(msgspec.Struct, frozen=True, array_like=True):
    """All replicas of the range have every acknowledged write again."""

    group: int
    range: Range

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        kept = without_range(cluster.degraded, self.group, self.range)
        if kept == cluster.degraded:
            raise Rejected(f"nothing of ({self.range.left}, {self.range.right}] is degraded")
        return cluster.changed(DEGRADED.set(kept))


def _service_without(cluster: ClusterMetadata, node: NodeId) -> Service:
    """Nobody waits to leave for the request that fails with the node: one it was to replace stays."""
    service = without_leaving(cluster.service, node)
    request = cluster.requests.by_node.get(node)
    return service if request is None else without_leaving(service, request.about.replaced)


def _refuse_start(cluster: ClusterMetadata, wanted: ForceRemove) -> None:
    node = cluster.node(wanted.node)
    if node is None:
        raise Rejected(f"there is no node {wanted.node}")
    if node.state is NodeState.LEFT:
        raise Rejected(f"node {node.id} has left the cluster")
    if len(wanted.reason) > SERVICE_TEXT_CHARACTERS_MAX:
        raise Rejected(f"a reason has at most {SERVICE_TEXT_CHARACTERS_MAX} characters")
    # A tablet stays where it is until it is built from a quorum of its replicas.
    on_ring = (table for table in tracked_tables(cluster.schema) if not table.group)
    tracked = next(on_ring, None)
    if tracked is not None and node.owns_tokens:
        raise Rejected(
            f"table {tracked.keyspace}.{tracked.name} is tracked, and its new replicas would claim nothing",
            hint="remove it without --force, or replace it: both fill the new replicas",
        )
    refuse_voter(cluster, node)
    if cluster.operations:
        holders = ", ".join(operation.title() for operation in cluster.operations)
        raise Rejected(
            f"node {node.id} cannot be given up while {holders} moves ranges",
            hint="wait for its end (`lockstep topology watch`) or cancel it",
        )
    if node.owns_tokens and len(cluster.directory.owners) == 1:
        raise Rejected(f"node {node.id} is the last one that owns tokens")


def changes_without(
    cluster: ClusterMetadata, node: NodeId
) -> tuple[tuple[RingPlacement, tuple[Delta, ...]], ...]:
    """By placement group, the ranges that get other replicas when the node is gone."""
    circle = cluster.directory.circle
    left = circle.changed({node: None})
    if left is circle:
        return ()
    return tuple((ring, changes(ring.replication, circle, left)) for ring in cluster.shared_rings)


def _degraded(
    cluster: ClusterMetadata,
    ring: RingPlacement,
    deltas: tuple[Delta, ...],
    node: NodeId,
    epoch: int,
) -> list[Degraded]:
    """Ranges with replicas that got nothing, and those whose last sure copy was on the node: replicas that an
    earlier removal left without writes are sure of nothing."""
    dc_of = cluster.directory.dc_by_id.__getitem__
    names = tuple(k.name for k in cluster.schema.keyspaces if k.group == ring.id)
    found = []
    for delta in deltas:
        whole = Transition(ring.id, delta.range, delta.old, delta.new, ring.replication)
        assert node not in delta.new, "who is gone gets nothing"
        for piece, lacking in pieces(whole, cluster.degraded):
            lost = node in piece.old and not enough(piece, dc_of, (node, *lacking))
            if piece.gained or lost:
                # Where nobody is sure to have a write, it does not help that those leave who surely lack it.
                missing = () if lost else piece.gained
                found.append(Degraded(ring.id, piece.range, epoch, missing, piece.gained, names))
    return found


KINDS: dict[int, type] = {
    EntryKind.FORCE_REMOVE: ForceRemove,
    EntryKind.MARK_REPAIRED: MarkRepaired,
}


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
    assert all(one.asked_us <= one.heard_us for one in told), "an answer comes after its question"
    behind_us = min((one.at_us - one.heard_us for one in told if one.at_us), default=0)
    before_us = began_us
    for one in told:
        if one.at_us and one.oldest_us > one.at_us:
            return 0
        before_us = min(before_us, one.at_us or before_us)
        if one.oldest_us >= 0:
            ahead_us = one.at_us - one.asked_us - behind_us if one.at_us else 0
            before_us = min(before_us, one.oldest_us - ahead_us)
    assert before_us <= began_us, "what began since has not arrived"
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
                for group in keyspace.groups:
                    degraded = with_missing(degraded, group, keyspace.name, owed.range, present, epoch)
        if degraded == cluster.degraded:
            raise Rejected(f"what node {self.node} keeps is owed to nobody any more")
        return cluster.changed(DEGRADED.set(degraded))


UNDELIVERED_KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.RECORD_UNDELIVERED: RecordUndelivered}
