"""The operation that changes a keyspace's replication: one pass through the stages for each step of its walk.

Invariant: between two steps the keyspace is at rest on a ring of its own with the replication of the step
that ended, every range still locked; the walk ends at the target, or back at the original. Between two steps
it may also give way: the operation ends and its request is queued again, with what it takes to go all the way
back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import OPERATIONS, Operation, OperationKind, Stage
from lockstep.metadata.placements_part import PLACEMENTS
from lockstep.metadata.requests import REQUESTS, Request, begun, finished, rested
from lockstep.placement.deltas import merged
from lockstep.schema.model import Replication
from lockstep.topology.planning import refuse_excluded_targets
from lockstep.topology.replication_change import (
    apart,
    at_rest,
    path_to,
    refuse_start,
    transitions_between,
    wanted_keyspace,
    with_replication,
)
from lockstep.topology.running import lock_of, session_id_of, split, with_session
from lockstep.topology.stages import TABLES
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId

_FIRST = TABLES[OperationKind.REPLICATION][0].stage


def walk_begun(cluster: ClusterMetadata, request: Request, epoch: int) -> ClusterMetadata:
    """The value with the change that `request` asks for in its first step; raises Rejected."""
    keyspace = wanted_keyspace(cluster, request.keyspace, request.target)
    refuse_start(cluster, keyspace, request.id)
    assert request.target is not None, "a keyspace was checked with its target"
    path, at = _whole_path(cluster, request)
    for ends in itertools.pairwise(path[at:]):
        refuse_excluded_targets(cluster, transitions_between(cluster, *ends, apart=1))
    operation = Operation(
        id=cluster.next_operation_id,
        kind=OperationKind.REPLICATION,
        node=NodeId(0),
        tokens=(),
        stage=_FIRST,
        stage_epoch=epoch,
        transitions=(),
        keyspace=keyspace.name,
        path=path,
        at=at,
    )
    asked = msgspec.structs.replace(request, operation_id=operation.id)
    alone = with_replication(cluster, keyspace.name, apart(keyspace.replication, operation.id))
    value = alone.changed(
        REQUESTS.set(begun(cluster.requests, asked, epoch)),
        OPERATIONS.set(
            msgspec.structs.replace(
                alone.running, running=(*cluster.operations, operation), next_id=operation.id + 1
            )
        ),
    )
    return _step_begun(value, operation, epoch)


def _whole_path(cluster: ClusterMetadata, request: Request) -> tuple[tuple[Replication, ...], int]:
    """The settings from the original to the target, and which of them is the present one."""
    keyspace = cluster.schema.by_name[request.keyspace]
    assert request.target is not None, "a keyspace was checked with its target"
    onward = path_to(cluster, keyspace, request.target)
    known = cluster.requests.by_id.get(request.id)
    if known is None or known.original in (None, keyspace.replication):
        return onward, 0
    assert known.original is not None
    try:
        back = path_to(cluster, keyspace, known.original)
    except Rejected:
        # Who owns tokens has changed meanwhile: a cancel then comes back to where it is now.
        return onward, 0
    return (*back[::-1], *onward[1:]), len(back) - 1


#: Says of the value between two steps whether something else should go first.
GivesWay = Callable[[ClusterMetadata], bool]


def step_ended(
    cluster: ClusterMetadata, operation: Operation, epoch: int, gives_way: GivesWay
) -> ClusterMetadata:
    """The value once the present step has ended, in success or taken back: the next step, a rest, or the end.

    The keyspace is on the ring that the step led to, or back on the one that it began from. On its way
    back it does not rest.
    """
    rolled_back = operation.stage is Stage.ROLLBACK_TO_NORMAL
    at_end = msgspec.structs.replace(
        operation,
        at=operation.at if rolled_back else _next(operation),
        is_returning=operation.is_cancelled,
    )
    if not at_end.is_stopped and at_end.at != (0 if at_end.is_returning else len(at_end.path) - 1):
        if not at_end.is_cancelled:
            resting = _resting(cluster, at_end)
            if _gains_excluded(cluster, at_end) or gives_way(resting):
                return resting
        held = cluster.schema.by_name[operation.keyspace].replication
        ring = merged(cluster.placements.ring(held))
        joined = cluster.changed(PLACEMENTS.set(cluster.placements.with_rings((ring,))))
        return _step_begun(joined, at_end, epoch)
    value = _released(cluster, at_end)
    return value.changed(
        REQUESTS.set(
            finished(
                cluster.requests,
                operation.id,
                _outcome(at_end),
                rolled_back=at_end.is_cancelled,
                epoch=epoch,
            )
        )
    )


def _released(cluster: ClusterMetadata, operation: Operation) -> ClusterMetadata:
    """The value without the operation, the keyspace with the replication that it has come to."""
    value: ClusterMetadata = at_rest(cluster, operation, operation.path[operation.at]).changed(
        OPERATIONS.set(
            msgspec.structs.replace(
                at_rest(cluster, operation, operation.path[operation.at]).running,
                running=tuple(other for other in cluster.operations if other.id != operation.id),
                locks=tuple(lock for lock in cluster.locks if lock.operation_id != operation.id),
                sessions=tuple(
                    session for session in cluster.sessions if session.operation_id != operation.id
                ),
            )
        )
    )
    return value


def _resting(cluster: ClusterMetadata, operation: Operation) -> ClusterMetadata:
    """The value with the operation ended between two steps, and its request in the queue again."""
    value: ClusterMetadata = _released(cluster, operation).changed(
        REQUESTS.set(rested(cluster.requests, operation.id, operation.path[0]))
    )
    return value


def _gains_excluded(cluster: ClusterMetadata, operation: Operation) -> bool:
    """Whether the next step gives a range to a node that is shut out."""
    ends = operation.path[operation.at], operation.path[_next(operation)]
    try:
        refuse_excluded_targets(cluster, transitions_between(cluster, *ends, operation.id))
    except Rejected:
        return True
    return False


def _outcome(operation: Operation) -> str:
    """Why it was cancelled, and where it stopped if that is not where it began."""
    if not operation.at:
        return operation.cancel_reason
    return f"{operation.cancel_reason}; it stopped at {operation.path[operation.at].text()}"


def _next(operation: Operation) -> int:
    return operation.at - 1 if operation.is_returning else operation.at + 1


def _step_begun(cluster: ClusterMetadata, operation: Operation, epoch: int) -> ClusterMetadata:
    """The value with the operation in the first stage of the step from path[at] on."""
    ends = operation.path[operation.at], operation.path[_next(operation)]
    begun_step = msgspec.structs.replace(
        operation,
        stage=_FIRST,
        stage_epoch=epoch,
        step=operation.step + 1,
        transitions=transitions_between(cluster, *ends, operation.id),
        history=(*operation.history, (_FIRST, epoch)),
    )
    begun_step = msgspec.structs.replace(begun_step, session_id=session_id_of(begun_step))
    locks = [lock for lock in cluster.locks if lock.operation_id != operation.id]
    return cluster.changed(
        PLACEMENTS.set(split(cluster.placements, begun_step)),
        OPERATIONS.set(
            msgspec.structs.replace(
                cluster.running,
                running=tuple(begun_step if o.id == operation.id else o for o in cluster.operations),
                locks=tuple(sorted((*locks, lock_of(begun_step)), key=lambda lock: lock.operation_id)),
                sessions=with_session(cluster.sessions, begun_step),
            )
        ),
    )
