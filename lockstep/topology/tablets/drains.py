"""Nodes that are to be gone hand their tablets over before their place in the ring: who waits for that.

Invariant: what is said here follows from the metadata alone, so that an entry comes to the same on every
node. A request whose node holds tablets is paused: its node is normal, and taking the request back leaves it
so. What replaces a node does not wait: tablets of a node that has left are built anew afterwards.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Body
from lockstep.metadata.requests import Request, Requests
from lockstep.placement.placements import RingPlacement
from lockstep.placement.tablets.load import Drain
from lockstep.topology.kind import kind_of
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.memo import memo


def _counted(ring: RingPlacement) -> dict[NodeId, int]:
    counts: dict[NodeId, int] = {}
    for placed in ring.ranges:
        for node in placed.group.writes:
            counts[node] = counts.get(node, 0) + 1
    assert max(counts.values(), default=0) <= ring.count, "a node has at most one replica of a tablet"
    return counts


def held_by_node(ring: RingPlacement) -> dict[NodeId, int]:
    """How many tablets of a group each node has, or takes in; kept with the ring."""
    return memo(ring, "_held_by_node", _counted)


def held_tablets(cluster: ClusterMetadata, node: NodeId, is_gone: bool = False) -> int:
    """How many tablets a node has, or may have something of: those that move count until they have, but not
    for a node that is gone, which has nothing to hand over or to drop."""
    rings = cluster.placements.by_id
    groups = cluster.tablets.by_group
    held = sum(held_by_node(rings[group]).get(node, 0) for group in groups)
    if held or is_gone or not cluster.transitions.count:
        return held
    return sum(one.group in groups and node in one.union for _, one in cluster.transitions.tree.items())


def drained_by(request: Request | Body) -> NodeId:
    """The node that a request empties before it begins; 0 where it empties none."""
    about = request.about
    ring = kind_of(request).ring
    if ring is None or not ring.comes_or_goes or about.departing != about.node:
        return NodeId(0)
    return about.departing


def drains(cluster: ClusterMetadata) -> dict[NodeId, Drain]:
    """The nodes that tablets are to leave, with how: those that live hand them over, the others' are built
    anew from other replicas."""
    found: dict[NodeId, Drain] = {}
    for request in cluster.requests.live:
        node = drained_by(request)
        ring = kind_of(request).ring
        assert node not in found, "a node is in one request"
        if node and ring is not None:
            found[node] = Drain.REMOVE if ring.of_dead else Drain.LEAVE
    return found


def _wanting(requests: Requests) -> tuple[NodeId, ...]:
    filled = [
        request.about.node
        for request in requests.queue
        if (ring := kind_of(request).ring) is not None and ring.is_refill
    ]
    assert len(set(filled)) == len(filled), "a node is in one request"
    return tuple(filled)


def wants_filling(cluster: ClusterMetadata) -> tuple[NodeId, ...]:
    """Nodes that wait to be filled anew, in the order of their requests: what moves gives way to that. Kept
    with the requests."""
    return memo(cluster.requests, "_wanting", _wanting)


def left_holders(cluster: ClusterMetadata) -> tuple[NodeId, ...]:
    """Nodes that have left and still count as replicas of tablets, ascending."""
    rings = cluster.placements.by_id
    holders = {node for group in cluster.tablets.by_group for node in held_by_node(rings[group])}
    by_id = cluster.directory.by_id
    assert holders <= by_id.keys(), "who holds tablets is known"
    return tuple(sorted(node for node in holders if by_id[node].state is NodeState.LEFT))


def paused(cluster: ClusterMetadata, request: Request | Body) -> str:
    """Why a request does not begin its part of the ring yet; "" when nothing of tablets holds it up."""
    if not cluster.tablets.by_group:
        return ""
    node = drained_by(request)
    ring = kind_of(request).ring
    held = held_tablets(cluster, node, ring is not None and ring.of_dead) if node else 0
    if not held:
        return ""
    return f"paused: node {node} holds {held} tablet{'' if held == 1 else 's'}, which other nodes get first"


def refuse_holding(cluster: ClusterMetadata, body: Body) -> None:
    """Raises Rejected while the node that is to be gone holds tablets."""
    reason = paused(cluster, body)
    if reason:
        raise Rejected(reason, hint="a request that may wait begins when the node has none")
