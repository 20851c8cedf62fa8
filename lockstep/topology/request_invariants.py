"""What must hold of requests at every epoch and between neighbours, as a function that lists violations.

REQ-1: a request goes from queued to running to one end, or from queued to an end, never back (but for a
change of replication that rests between two steps), and what ended never changes. REQ-2: no operation without
its request, none for two, and one live request a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.requests import Request, RequestState

_NEXT = {
    RequestState.QUEUED: (
        RequestState.QUEUED,
        RequestState.RUNNING,
        RequestState.FAILED,
        RequestState.CANCELLED,
    ),
    RequestState.RUNNING: (
        RequestState.RUNNING,
        RequestState.DONE,
        RequestState.FAILED,
        RequestState.CANCELLED,
    ),
}


def check_requests(before: ClusterMetadata, after: ClusterMetadata) -> tuple[str, ...]:
    """REQ-1 and REQ-2 for `after` and the step from `before` to it."""
    if before.requests is after.requests and before.operations is after.operations:
        return ()
    return (*_steps(before, after), *_holders(after))


def _steps(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[str]:
    now = after.requests.by_id
    for old in before.requests.live:
        new = now.get(old.id)
        if new is None:
            yield f"REQ-1: {old.title()} was {old.state} and is forgotten"
        elif new.state not in _NEXT[old.state] and not _rests(old, new):
            yield f"REQ-1: {old.title()} went from {old.state} to {new.state}"
        elif old.wish != new.wish:
            yield f"REQ-1: {old.title()} asks for something else now"
        elif not new.is_live and new.ended_epoch != after.epoch:
            yield f"REQ-1: {old.title()} ended at {after.epoch} and says {new.ended_epoch}"
    for ended in before.requests.ended:
        if ended.id in now and now[ended.id] != ended:
            yield f"REQ-1: {ended.title()} changed after its end"
    known = before.requests.by_id
    for request in now.values():
        if request.id not in known and request.id < before.requests.next_id:
            yield f"REQ-1: {request.title()} came back"


def _rests(old: Request, new: Request) -> bool:
    return bool(old.keyspace) and new.state is RequestState.QUEUED and new.original is not None


def _holders(cluster: ClusterMetadata) -> Iterator[str]:
    running = [r for r in cluster.requests.live if r.state is RequestState.RUNNING]
    held = Counter(request.operation_id for request in running)
    for operation in cluster.operations:
        if held.pop(operation.id, 0) != 1:
            yield f"REQ-2: {operation.title()} has not exactly one request"
    yield from (f"REQ-2: operation {number} has ended, its request has not" for number in held)
    yield from _crowded(cluster.requests.live)


def _crowded(live: tuple[Request, ...]) -> Iterator[str]:
    keyspaces = Counter(request.keyspace for request in live if request.keyspace)
    yield from (
        f"REQ-2: keyspace {name} has {count} requests" for name, count in keyspaces.items() if count > 1
    )
    nodes = Counter(node for request in live for node in request.nodes)
    yield from (f"REQ-2: node {node} has {count} requests" for node, count in nodes.items() if count > 1)
