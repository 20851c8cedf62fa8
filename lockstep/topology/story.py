"""What one entry of the log did to a node, a request, an operation or a token, in sentences.

Invariant: told from the metadata values before and after the entry, so a story read along the log misses
nothing and needs no record of its own. Every function gives nothing where the entry did nothing to its thing.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import Operation
from lockstep.metadata.requests import Request, RequestState
from lockstep.placement.placements import ReplicaGroup
from lockstep.topology.kind import stage_row
from lockstep.topology.queue import why
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
        gained = sum(node_id in t.gained for t in operation.transitions)
        lost = sum(node_id in t.lost for t in operation.transitions)
        if gained or lost:
            yield f"{operation.title()} is to give it {gained} ranges and take {lost} from it"
    for operation in _ended(before, after):
        if node_id not in operation.about.nodes and any(
            node_id in (*t.gained, *t.lost) for t in operation.transitions
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
    count = f", {len(now.transitions)} ranges" if was is None else ""
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
