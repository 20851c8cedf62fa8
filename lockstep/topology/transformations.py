"""Transformations that prepare, advance and cancel topology operations.

Invariant: each entry moves one operation by one stage of its table, changes only ranges it has locked,
and is refused unless every affected range stays safe against the version before it.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded, handed_on
from lockstep.metadata.directory import DIRECTORY, Directory, NodeState
from lockstep.metadata.exclusions import EXCLUDED, Exclusion
from lockstep.metadata.membership import without_leaving
from lockstep.metadata.operations import OPERATIONS, Operation, OperationKind, Stage
from lockstep.metadata.placements_part import PLACEMENTS
from lockstep.metadata.registry import EntryKind
from lockstep.metadata.requests import REQUESTS, Request, begun, failing, finished, with_moved
from lockstep.metadata.service import SERVICE
from lockstep.placement.placements import PlacedRange, Placements, ReplicaGroup
from lockstep.placement.shapes import Shape, shape_of
from lockstep.schema.model import Replication
from lockstep.topology import generations
from lockstep.topology.planning import STATES, Change, full_change, plan, refuse_unsafe_change
from lockstep.topology.precedence import BY_KIND
from lockstep.topology.replication_change import with_replication
from lockstep.topology.replication_walk import step_ended, walk_begun
from lockstep.topology.running import (
    by_replication,
    lock_of,
    merged_rings,
    session_id_of,
    split,
    with_session,
)
from lockstep.topology.stages import TABLES, Side, Work, group_at, replication_at, stage_row
from lockstep.topology.streams import pieces, shunned
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import REQUESTS_PLANNED_MAX


class PrepareOperation(msgspec.Struct, frozen=True, array_like=True):
    """Begin an operation: split the affected ranges and lock them; no replica changes yet.

    `tokens` are those a node that bootstraps or moves is to own, and empty for other kinds. `replaced` is
    the dead node whose tokens a replace takes, `source_dc` where a rebuild reads; empty is any replica.
    `request_id` names the queued request that it carries out; 0 makes a request of its own, which waited
    for nothing. A change of replication is about `keyspace`, which is to have `target`, and no node (0).
    """

    kind: OperationKind
    node: NodeId
    tokens: tuple[int, ...] = ()
    request_id: int = 0
    replaced: NodeId = NodeId(0)
    source_dc: str = ""
    keyspace: str = ""
    target: Replication | None = None

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if self.kind is OperationKind.REPLICATION:
            return walk_begun(cluster, self._request(0), epoch)
        if self.keyspace or self.target is not None:
            raise Rejected(f"a {self.kind} is told no keyspace")
        asked = Change(self.kind, self.node, self.tokens, self.replaced, self.source_dc)
        change = full_change(cluster, asked)
        own_tokens = cluster.directory.by_id[self.node].tokens
        operation_id, stage = cluster.next_operation_id, TABLES[self.kind][0].stage
        operation = Operation(
            id=operation_id,
            kind=self.kind,
            node=self.node,
            tokens=change.tokens,
            stage=stage,
            stage_epoch=epoch,
            transitions=plan(cluster, change),
            history=((stage, epoch),),
            replaced=self.replaced,
            source_dc=self.source_dc,
        )
        operation = msgspec.structs.replace(operation, session_id=session_id_of(operation))
        return cluster.changed(
            DIRECTORY.set(_with_state(cluster.directory, self.node, STATES[self.kind][1], own_tokens, epoch)),
            PLACEMENTS.set(split(cluster.placements, operation)),
            SERVICE.set(without_leaving(cluster.service, self.node)),
            REQUESTS.set(begun(cluster.requests, self._request(operation_id), epoch)),
            OPERATIONS.set(
                msgspec.structs.replace(
                    cluster.running,
                    running=(*cluster.operations, operation),
                    locks=(*cluster.locks, lock_of(operation)),
                    sessions=with_session(cluster.sessions, operation),
                    next_id=operation_id + 1,
                )
            ),
        )

    def _request(self, operation_id: int) -> Request:
        return Request(
            self.request_id,
            self.kind,
            self.node,
            tuple(sorted(self.tokens)),
            self.replaced,
            self.source_dc,
            operation_id=operation_id,
            keyspace=self.keyspace,
            target=self.target,
        )


class AdvanceOperation(msgspec.Struct, frozen=True, array_like=True):
    """Leave `stage` for the next one; leaving the last stage ends the operation and releases its locks.

    `step` is that of an operation which goes through its stages more than once, and 0 for others. `at_ms` is
    the coordinator's wall clock, for the timestamp of a generation of change data capture. `moved_bytes` and
    `moved_fragments`: what the stage's streams brought, or those of the stage that was taken back.
    """

    operation_id: int
    stage: Stage
    step: int = 0
    at_ms: int = 0
    moved_bytes: int = 0
    moved_fragments: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        operation = _running(cluster, self.operation_id)
        if min(self.moved_bytes, self.moved_fragments) < 0:
            raise Rejected(f"{operation.title()} cannot have moved less than nothing")
        if operation.stage is not self.stage:
            raise Rejected(f"{operation.title()} is in stage {operation.stage}, not {self.stage}")
        if operation.step != self.step:
            raise Rejected(f"{operation.title()} is in step {operation.step}, not {self.step}")
        row = stage_row(operation.kind, operation.stage)
        if self.moved_bytes or self.moved_fragments:
            counted = with_moved(cluster.requests, operation.id, self.moved_bytes, self.moved_fragments)
            cluster = cluster.changed(REQUESTS.set(counted))
        if row.next is None and operation.keyspace:
            return step_ended(_handed_on(cluster, operation), operation, epoch, _gives_way)
        if row.next is None or operation.moves_nothing:
            return _ended(cluster, operation, epoch)
        if row.next is Stage.COMMIT_CDC_GENERATION:
            cluster = generations.committed(cluster, operation, self.at_ms, epoch)
        elif row.stage is Stage.COMMIT_CDC_GENERATION:
            cluster = generations.published(cluster, operation, self.at_ms, epoch)
        return _entered(cluster, operation, row.next, epoch)


class CancelOperation(msgspec.Struct, frozen=True, array_like=True):
    """Send an operation back, as long as reads have not moved. `reason` is kept for people.

    A change of replication can always go back: once reads have moved, its step ends first. Cancelled again on
    its way back, it ends where the present step leads, or began: a node that it needs may be gone. `failed`:
    its work failed, nobody changed their mind; so its request ends as failed.
    """

    operation_id: int
    reason: str = ""
    failed: bool = False

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        operation = _running(cluster, self.operation_id)
        target = stage_row(operation.kind, operation.stage).on_failure
        if not can_go_back(operation):
            what = (
                "is already rolling back"
                if operation.stage is Stage.ROLLBACK_TO_NORMAL or operation.is_cancelled
                else "goes forward only"
            )
            raise Rejected(f"{operation.title()} is in stage {operation.stage} and {what}")
        cancelled = msgspec.structs.replace(
            operation,
            cancel_reason=self.reason,
            is_cancelled=bool(operation.keyspace),
            is_stopped=operation.is_returning,
        )
        if target is None:
            entered = cluster.changed(
                OPERATIONS.set(msgspec.structs.replace(cluster.running, running=_with(cluster, cancelled)))
            )
        else:
            entered = _entered(generations.dropped(cluster, operation), cancelled, target, epoch)
        if not self.failed:
            return entered
        return entered.changed(REQUESTS.set(failing(cluster.requests, operation.id)))


def preparation(request: Request, request_id: int) -> PrepareOperation:
    """The entry that begins the operation a request asks for."""
    return PrepareOperation(
        request.kind,
        request.node,
        request.tokens,
        request_id=request_id,
        replaced=request.replaced,
        source_dc=request.source_dc,
        keyspace=request.keyspace,
        target=request.target,
    )


def _gives_way(between: ClusterMetadata) -> bool:
    """Whether what mends a dead node is queued and may begin between two steps of a change of replication."""
    mending = [request for request in between.requests.queue if not BY_KIND[request.kind].is_held_back]
    return any(_may_begin(between, request) for request in mending[:REQUESTS_PLANNED_MAX])


def _may_begin(cluster: ClusterMetadata, request: Request) -> bool:
    try:
        preparation(request, request.id).apply(cluster, cluster.epoch + 1)
    except Rejected:
        return False
    return True


def can_go_back(operation: Operation) -> bool:
    """Whether a cancel would be accepted now."""
    if operation.stage is Stage.ROLLBACK_TO_NORMAL or operation.is_stopped:
        return False
    if operation.is_cancelled:
        return operation.is_returning
    return bool(operation.keyspace) or stage_row(operation.kind, operation.stage).on_failure is not None


def _with(cluster: ClusterMetadata, changed: Operation) -> tuple[Operation, ...]:
    return tuple(changed if other.id == changed.id else other for other in cluster.operations)


def _running(cluster: ClusterMetadata, operation_id: int) -> Operation:
    operation = cluster.operations_by_id.get(operation_id)
    if operation is None:
        raise Rejected(
            f"operation {operation_id} is not running", hint="`lockstep topology requests` lists them"
        )
    return operation


def _entered(cluster: ClusterMetadata, operation: Operation, stage: Stage, epoch: int) -> ClusterMetadata:
    """The value with the operation in `stage` and its ranges' groups as that stage's row says."""
    moved = msgspec.structs.replace(
        operation,
        stage=stage,
        stage_epoch=epoch,
        history=(*operation.history, (stage, epoch)),
    )
    moved = msgspec.structs.replace(moved, session_id=session_id_of(moved))
    value: ClusterMetadata = cluster.changed(
        PLACEMENTS.set(_stepped(cluster, operation, moved, epoch)),
        OPERATIONS.set(
            msgspec.structs.replace(
                cluster.running, running=_with(cluster, moved), sessions=with_session(cluster.sessions, moved)
            )
        ),
    )
    left, row = stage_row(operation.kind, operation.stage), stage_row(moved.kind, stage)
    if not operation.keyspace or left.reads is row.reads:
        return value
    assert row.reads is Side.NEW, "reads go back by steps of their own"
    return with_replication(value, operation.keyspace, replication_at(row, moved.transitions[0]), epoch)


def _stepped(cluster: ClusterMetadata, operation: Operation, moved: Operation, epoch: int) -> Placements:
    """Groups of the operation's ranges for the stage that it moved to, each proved against the present one,
    on the rings of the stage that it left."""
    left, row = (stage_row(one.kind, one.stage) for one in (operation, moved))
    dc_of = cluster.directory.dc_by_id.__getitem__
    # What writes must hear changes although the replicas may not: see `running.passing`.
    recounted = bool(operation.keyspace) and row.work is Work.STREAM
    changed = []
    for transitions in by_replication(operation.transitions).values():
        counts = replication_at(left, transitions[0]), replication_at(row, transitions[0])
        before = cluster.placements.ring(counts[0])
        proved: set[Shape] = set()
        regrouped: list[PlacedRange] = []
        for transition in transitions:
            new = ReplicaGroup(*group_at(row, transition), epoch)
            for placed in before.inside(transition.range):
                old = placed.group
                if recounted or old.reads != new.reads or old.writes != new.writes:
                    regrouped.append(PlacedRange(placed.range, new))
                shape = shape_of((old.reads, old.writes, new.reads, new.writes), dc_of)
                if shape not in proved:
                    refuse_unsafe_change(old, new, transition, dc_of, counts)
                    proved.add(shape)
        changed.append(before.replaced(sorted(regrouped, key=lambda placed: placed.range.right)))
    return cluster.placements.with_rings(tuple(changed))


def _ended(cluster: ClusterMetadata, operation: Operation, epoch: int) -> ClusterMetadata:
    """The value without the operation: ranges merged, lock and session gone, the node in its end state."""
    others = tuple(other for other in cluster.operations if other.id != operation.id)
    return cluster.changed(
        DIRECTORY.set(_end_directory(cluster.directory, operation, epoch)),
        PLACEMENTS.set(merged_rings(cluster.placements, operation, others)),
        EXCLUDED.set(_still_excluded(cluster.excluded, operation)),
        DEGRADED.set(_still_degraded(cluster, operation)),
        SERVICE.set(without_leaving(cluster.service, operation.departing)),
        REQUESTS.set(
            finished(
                cluster.requests,
                operation.id,
                operation.cancel_reason,
                rolled_back=operation.stage is Stage.ROLLBACK_TO_NORMAL,
                epoch=epoch,
            )
        ),
        OPERATIONS.set(
            msgspec.structs.replace(
                cluster.running,
                running=others,
                locks=tuple(lock for lock in cluster.locks if lock.operation_id != operation.id),
                sessions=tuple(
                    session for session in cluster.sessions if session.operation_id != operation.id
                ),
            )
        ),
    )


def _still_excluded(excluded: tuple[Exclusion, ...], operation: Operation) -> tuple[Exclusion, ...]:
    """The exclude list without a node that is gone: it can never be taken back."""
    gone = operation.departing
    if not gone or operation.stage is Stage.ROLLBACK_TO_NORMAL or all(e.node != gone for e in excluded):
        return excluded
    return tuple(exclusion for exclusion in excluded if exclusion.node != gone)


def _handed_on(cluster: ClusterMetadata, operation: Operation) -> ClusterMetadata:
    degraded = _still_degraded(cluster, operation)
    if degraded is cluster.degraded:
        return cluster
    changed: ClusterMetadata = cluster.changed(DEGRADED.set(degraded))
    return changed


def _still_degraded(cluster: ClusterMetadata, operation: Operation) -> tuple[Degraded, ...]:
    """Who was filled from replicas that lack writes may lack them too."""
    before = degraded = cluster.degraded
    if not before or operation.stage is Stage.ROLLBACK_TO_NORMAL:
        return before
    dc_of = cluster.directory.dc_by_id.__getitem__
    for transition in operation.transitions:
        replication = transition.replication_after
        for piece, lacking in pieces(transition, replication, before):
            if lacking and not shunned(operation, piece, lacking, dc_of):
                degraded = handed_on(degraded, replication, piece.range, piece.old, piece.gained)
    return degraded


def _end_directory(directory: Directory, operation: Operation, epoch: int) -> Directory:
    """The nodes once the operation has ended, in success or taken back."""
    node = directory.by_id[operation.node]
    if operation.stage is Stage.ROLLBACK_TO_NORMAL:
        return _with_state(directory, node.id, STATES[operation.kind][0], node.tokens, epoch)
    if operation.departing:
        directory = _with_state(directory, operation.departing, NodeState.LEFT, (), epoch)
    if operation.departing == node.id:
        return directory
    return _with_state(directory, node.id, NodeState.NORMAL, operation.tokens, epoch)


def _with_state(
    directory: Directory, node_id: NodeId, state: NodeState, tokens: tuple[int, ...], epoch: int
) -> Directory:
    node = directory.by_id[node_id]
    return directory.with_node(msgspec.structs.replace(node, state=state, tokens=tokens, epoch=epoch))


KINDS: dict[int, type] = {
    EntryKind.PREPARE_OPERATION: PrepareOperation,
    EntryKind.ADVANCE_OPERATION: AdvanceOperation,
    EntryKind.CANCEL_OPERATION: CancelOperation,
}
