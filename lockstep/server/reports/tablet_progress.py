"""How far requests that move tablets are: what is left to do, and about how long that takes.

Invariant: only the metadata leader knows what tablets weigh and what running work has reported, so only it
tells; elsewhere nothing is said.
"""

from __future__ import annotations

from lockstep.metadata.requests import Request, RequestState
from lockstep.node.services import NodeServices
from lockstep.server.reports.tablet_plans import drain_of
from lockstep.topology.kinds.replication import ReplicationChange, Walk, way_asked, way_of
from lockstep.topology.story import workers
from lockstep.topology.tablets.left import UNKNOWN, BytesOf, Left, Reported, left_of_running, left_of_waiting


def left_of(node: NodeServices, request: Request) -> Left | None:
    """None where the request moves no tablets, or this node does not lead."""
    if not node.log.is_leader or not request.is_live:
        return None
    cluster = node.log.cluster
    if request.state is RequestState.RUNNING:
        operation = cluster.operations_by_id[request.operation_id]
        if not isinstance(operation.body, Walk):
            return None
        way = way_of(cluster, operation)
        return left_of_running(cluster, operation, way, _reported(node, request), _weights(node))
    if isinstance(request.body, ReplicationChange):
        asked = way_asked(cluster, request)
        return None if asked is None else left_of_waiting(cluster, asked, _weights(node))
    drain = drain_of(node, request.id)
    if drain is None:
        return None
    return Left(drain.tablets, 0, drain.bytes, round(drain.seconds))


def left_numbers(left: Left | None) -> dict[str, int]:
    """As documents have it; nothing of what nobody knows."""
    if left is None:
        return {}
    found = {
        "tablets_left": left.tablets,
        "tablets_total": left.tablets_total,
        "left_bytes": left.bytes,
        "left_s": left.seconds,
    }
    return {name: value for name, value in found.items() if value != UNKNOWN}


def _weights(node: NodeServices) -> BytesOf | None:
    """What a replica of a tablet weighs by what nodes said last; None while they were not asked."""
    statistics = node.work.balancer.statistics
    if statistics is None:
        return None
    known, nodes = statistics, tuple(statistics.nodes)
    return lambda group, right: known.tablet(group, right, nodes).bytes


def _reported(node: NodeServices, request: Request) -> Reported:
    cluster, topology = node.log.cluster, node.work.topology
    operation = cluster.operations_by_id[request.operation_id]
    dead = tuple(one for one in cluster.directory.present_ids if not node.membership.liveness.alive(one))
    said = [topology.said[key] for _, _, key in workers(operation, cluster, dead) if key in topology.said]
    return Reported(
        topology.moved.brought(operation).bytes,
        sum(one.ranges_done for one in said),
        sum(one.rate_bytes_s for one in said if one.state == "running"),
    )
