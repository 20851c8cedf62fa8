"""What one entry of the log did to a node, a request, an operation or a token, in sentences; and where
running operations stand: sentences, stages and barriers.

Invariant: told from the metadata values before and after the entry, so a story read along the log misses
nothing and needs no record of its own. Every function gives nothing where the entry did nothing to its thing.
Told from the stage tables and the barrier that the coordinator itself asks, so it cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.requests import Request, RequestState
from lockstep.placement.placements import ReplicaGroup
from lockstep.topology.barriers import barrier_need
from lockstep.topology.kind import kind_of, stage_row
from lockstep.topology.requests import why
from lockstep.topology.stages import Work
from lockstep.topology.step import (
    Propose,
    Reports,
    RunWorkOrders,
    Wait,
    WorkKey,
    decide,
    work_key,
    work_orders,
)
from lockstep.topology.transformations import can_go_back
from lockstep.values.ids import NodeId

#: Sentences that tell of a state of a node.
_STATES = {
    NodeState.BOOTSTRAPPING: "begins to join the ring",
    NodeState.DECOMMISSIONING: "begins to leave the ring",
    NodeState.REMOVING: "is being removed as dead",
    NodeState.REPLACING: "begins to take the place of node {replaces}",
    NodeState.REBUILDING: "begins to fill its ranges anew",
    NodeState.LEFT: "has left the cluster",
    NodeState.NONE: "is out of the ring again",
}


def of_node(before: ClusterMetadata, after: ClusterMetadata, node_id: NodeId) -> Iterator[str]:
    was, now = before.node(node_id), after.node(node_id)
    if now is not None and was is not now:
        yield from _node_changes(was, now)
    if (node_id in before.voters) is not (node_id in after.voters):
        yield "votes on the metadata" if node_id in after.voters else "votes on the metadata no more"
    shut = node_id in after.excluded_by_node
    if shut is not (node_id in before.excluded_by_node):
        yield f"is shut out: {after.excluded_by_node[node_id].reason}" if shut else "is taken back"
    for request in _touched_requests(before, after):
        if node_id in request.about.nodes:
            for text in of_request(before, after, request.id):
                # Each stage is the request's own story.
                if not text.startswith(("enters ", "leaves ")):
                    yield f"{request.title()}: {text}"
    for operation in _begun(before, after):
        transitions = after.transitions.of(operation.id)
        gained = sum(node_id in t.gained for t in transitions)
        lost = sum(node_id in t.lost for t in transitions)
        if gained or lost:
            yield f"{operation.title()} is to give it {gained} ranges and take {lost} from it"
    for operation in _ended(before, after):
        if node_id not in operation.about.nodes and any(
            node_id in (*t.gained, *t.lost) for t in before.transitions.of(operation.id)
        ):
            yield f"{operation.title()} has ended"


def _node_changes(was: NodeInfo | None, now: NodeInfo) -> Iterator[str]:
    place = f"{now.address}:{now.internode_port} in {now.dc}/{now.rack}"
    if was is None:
        replaces = f", to take the place of node {now.replaces}" if now.replaces else ""
        founds = f", a founder with {len(now.tokens)} tokens" if now.state is NodeState.NORMAL else ""
        yield f"is registered as node {now.id} at {place}{founds}{replaces}"
        return
    if (was.address, was.internode_port, was.dc, was.rack) != (
        now.address,
        now.internode_port,
        now.dc,
        now.rack,
    ):
        yield f"is now at {place}"
    if was.version != now.version:
        yield f"runs version {now.version}"
    if was.state is not now.state:
        if now.state is NodeState.NORMAL:
            came = was.state in (NodeState.BOOTSTRAPPING, NodeState.REPLACING)
            yield f"has joined the ring with {len(now.tokens)} tokens" if came else "is normal again"
        else:
            yield _STATES[now.state].format(replaces=now.replaces)
    elif was.tokens != now.tokens:
        yield f"owns {len(now.tokens)} tokens, {len({*now.tokens} - {*was.tokens})} of them new"


def of_request(before: ClusterMetadata, after: ClusterMetadata, request_id: int) -> Iterator[str]:
    was, now = before.requests.by_id.get(request_id), after.requests.by_id.get(request_id)
    if now is None:
        if was is not None:
            yield f"is forgotten as one of the oldest that ended; it was {was.state}"
        return
    if was is None:
        by = f" by {now.actor}" if now.actor else ""
        yield f"is asked for{by}"
        if now.state is RequestState.QUEUED:
            found = why(after, now)
            yield f"waits: {found.reason}" if found is not None else "is next in the queue"
    if now.operation_id and (was is None or not was.operation_id):
        yield f"begins as operation {now.operation_id}, after {_waited(now, after)}"
    if now.operation_id:
        yield from of_operation(before, after, now.operation_id)
    if (was is None or was.state is not now.state) and not now.is_live:
        yield f"is {now.state}{f': {now.outcome}' if now.outcome else ''}"


def _waited(request: Request, after: ClusterMetadata) -> str:
    epochs = after.epoch - request.requested_epoch
    return f"{epochs} epoch{'' if epochs == 1 else 's'} in the queue" if epochs else "no wait"


def of_operation(before: ClusterMetadata, after: ClusterMetadata, operation_id: int) -> Iterator[str]:
    was = before.operations_by_id.get(operation_id)
    now = after.operations_by_id.get(operation_id)
    if now is None:
        if was is not None:
            yield f"leaves {was.stage} and ends" + (f": {was.cancel_reason}" if was.cancel_reason else "")
        return
    if was is not None and (was.stage, was.stage_epoch) == (now.stage, now.stage_epoch):
        return
    row = stage_row(now)
    doing = f"reads {row.reads}, writes {row.writes}, work {row.work}"
    count = f", {len(after.transitions.of(now.id))} ranges" if was is None else ""
    reason = (
        f"; cancelled: {now.cancel_reason}" if now.cancel_reason and not (was and was.cancel_reason) else ""
    )
    yield f"enters {now.stage} ({doing}{count}){reason}"


def of_token(before: ClusterMetadata, after: ClusterMetadata, keyspace: str, token: int) -> Iterator[str]:
    was, now = _group(before, keyspace, token), _group(after, keyspace, token)
    if now is None:
        if was is not None:
            yield f"keyspace {keyspace} is dropped"
        return
    if was is not None and (was.reads, was.writes) == (now.reads, now.writes):
        return
    through = ", ".join(_cause(operation, after) for operation in _moved(before, after))
    yield f"{_group_text(now)}{f', by {through}' if through else ''}"


def _group_text(group: ReplicaGroup) -> str:
    reads = f"read from {_names(group.reads)}"
    return (
        f"{reads}, also written to {_names(group.write_only)}"
        if group.write_only
        else f"owned by {_names(group.reads)}"
    )


def _names(nodes: tuple[NodeId, ...]) -> str:
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"


def _cause(operation: Operation, after: ClusterMetadata) -> str:
    now = after.operations_by_id.get(operation.id)
    return f"{operation.title()} {f'at {now.stage}' if now is not None else 'at its end'}"


def _group(cluster: ClusterMetadata, keyspace: str, token: int) -> ReplicaGroup | None:
    found = cluster.schema.by_name.get(keyspace)
    return cluster.group_for(found.group, token) if found is not None else None


def of_epoch(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[str]:
    """Everything the functions above would tell of any node, and of keyspaces."""
    told: dict[str, None] = {}
    sets = ((before.voters, after.voters), (before.excluded_by_node, after.excluded_by_node))
    for info in after.directory.nodes:
        came_or_went = any((info.id in was) is not (info.id in now) for was, now in sets)
        if before.node(info.id) is not info or came_or_went:
            for text in of_node(before, after, info.id):
                if not text.startswith("request "):
                    told[f"node {info.id} {text}"] = None
    for request in _touched_requests(before, after):
        for text in of_request(before, after, request.id):
            told[f"{request.title()}: {text}"] = None
    yield from told


def _touched_requests(before: ClusterMetadata, after: ClusterMetadata) -> list[Request]:
    """Requests that the entry changed, or whose operation it moved."""
    moved = {operation.id for operation in _moved(before, after)}
    if before.requests is after.requests and not moved:
        return []
    known = before.requests.by_id
    return [
        request
        for request in (*after.requests.live, *after.requests.ended)
        if known.get(request.id) is not request or request.operation_id in moved
    ]


def _moved(before: ClusterMetadata, after: ClusterMetadata) -> list[Operation]:
    """Operations that the entry began, moved on or ended."""
    if before.operations is after.operations:
        return []
    changed = [o for o in after.operations if before.operations_by_id.get(o.id) is not o]
    return [*changed, *_ended(before, after)]


def _begun(before: ClusterMetadata, after: ClusterMetadata) -> list[Operation]:
    return [o for o in after.operations if o.id not in before.operations_by_id]


def _ended(before: ClusterMetadata, after: ClusterMetadata) -> list[Operation]:
    return [o for o in before.operations if o.id not in after.operations_by_id]


def explain(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> tuple[str, ...]:
    """Where the operation stands, then one line for each thing it waits for or does next."""
    return (headline(operation), *_lines(operation, cluster, reports))


def headline(operation: Operation) -> str:
    """`operation 7 (bootstrap of node 4): write_both_read_old since epoch 15, step 2 of 4`."""
    path = [row.stage for row in kind_of(operation).stages if row.stage is not Stage.ROLLBACK_TO_NORMAL]
    if operation.stage in path:
        where = f"step {path.index(operation.stage) + 1} of {len(path)}"
    else:
        where = f"cancelled: {operation.cancel_reason or 'no reason given'}"
    return f"{operation.title()}: {operation.stage} since epoch {operation.stage_epoch}, {where}"


class PathStage(msgspec.Struct, frozen=True):
    """One stage on the way: `state` is done, current or to come; `epoch` entered it, 0 when it is to come."""

    stage: Stage
    state: str
    epoch: int = 0


def path(operation: Operation) -> tuple[PathStage, ...]:
    """Stages that it went through, the present one, and those to come if nothing fails."""
    found = [PathStage(stage, "done", epoch) for stage, epoch in operation.history[:-1]]
    found.append(PathStage(operation.stage, "current", operation.stage_epoch))
    ahead = stage_row(operation).next
    while ahead is not None:
        found.append(PathStage(ahead, "to come"))
        ahead = stage_row(operation, ahead).next
    return tuple(found)


class Presence(msgspec.Struct, frozen=True):
    """Of those that the present stage's barrier asks: who has applied its epoch, and who has not."""

    epoch: int
    seen: tuple[NodeId, ...]
    unseen: tuple[NodeId, ...]


def presence(
    operation: Operation, cluster: ClusterMetadata, acknowledged: Mapping[NodeId, int], dead: Sequence[NodeId]
) -> Presence:
    orders = work_orders(operation, cluster, dead)
    sources = {source for order in orders for source in order.sources}
    need = barrier_need(operation, cluster, sources, [order.node for order in orders])
    nodes = need.nodes()
    excluded = cluster.excluded_by_node
    seen = tuple(n for n in nodes if acknowledged.get(n, 0) >= need.epoch and n not in excluded)
    return Presence(need.epoch, seen, tuple(node for node in nodes if node not in seen))


def workers(
    operation: Operation, cluster: ClusterMetadata, dead: Sequence[NodeId]
) -> tuple[tuple[NodeId, Work, WorkKey], ...]:
    """Who has a part in the present stage's work, which, and by what key it is reported."""
    orders = work_orders(operation, cluster, dead)
    return tuple((order.node, order.kind, work_key(order)) for order in orders)


def can_cancel(operation: Operation) -> bool:
    """Whether a cancel entry would be accepted now."""
    return can_go_back(operation)


def _lines(operation: Operation, cluster: ClusterMetadata, reports: Reports) -> tuple[str, ...]:
    decision = decide(operation, cluster, reports)
    if isinstance(decision, Wait):
        return tuple(f"waiting for node {node}: {reason}" for node, reason in decision.blockers)
    if isinstance(decision, RunWorkOrders):
        return tuple(f"next: {order.kind} on node {order.node}" for order in decision.orders)
    assert isinstance(decision, Propose), "a running operation is never idle"
    target = stage_row(operation).next
    return (f"next: {f'enter {target}' if target is not None else 'finish'}",)
