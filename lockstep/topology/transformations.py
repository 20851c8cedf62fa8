"""Transformations that prepare, advance and cancel topology operations.

Invariant: each entry moves one operation by one stage of its table, changes only ranges that it holds, and is
refused unless every affected range stays safe against the version before it. Pure functions of the value and
of the clock reading in an entry.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import OPERATIONS, Body, Operation, Stage
from lockstep.metadata.requests import REQUESTS, Request, failing, with_moved
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.placement.placements import PlacedRange, Placements
from lockstep.topology.generations import committed, dropped
from lockstep.topology.kind import kind_of, moves_nothing, stage_row
from lockstep.topology.planning import (
    Proved,
    by_group,
    regrouped_in,
    session_id_of,
    streaming_session,
)
from lockstep.topology.stages import Work
from lockstep.topology.tablets.drains import refuse_holding
from lockstep.values.errors import Rejected
from lockstep.values.limits import (
    REQUESTS_PLANNED_MAX,
)


class PrepareOperation(msgspec.Struct, frozen=True, array_like=True):
    """Begin the operation that `body` asks for: split the affected ranges and hold them; no replica changes
    yet. `request_id` names the queued request that it carries out; 0 makes a request of its own, which waited
    for nothing.
    """

    body: Body
    request_id: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if self.request_id:
            refuse_holding(cluster, self.body)
        return kind_of(self.body).begun(cluster, Request(self.request_id, self.body), epoch)


class AdvanceOperation(msgspec.Struct, frozen=True, array_like=True):
    """Leave `stage` for the next one; leaving the last stage ends the operation and lets its ranges go.

    `step` is that of an operation which goes through its stages more than once, and 0 for others. `at_ms` is
    the coordinator's wall clock, for the timestamp of a generation of change data capture. `moved_bytes` and
    `moved_fragments`: all that the stage's streams brought, or those of the stage that was taken back.
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
        row = stage_row(operation)
        cluster = _counted(cluster, operation, self.moved_bytes, self.moved_fragments)
        operation = cluster.operations_by_id[operation.id]
        if row.next is None or moves_nothing(operation):
            return kind_of(operation).ended(cluster, operation, epoch, _gives_way)
        if row.next is Stage.COMMIT_CDC_GENERATION:
            cluster = committed(cluster, operation, self.at_ms, epoch)
        return _entered(cluster, operation, row.next, epoch)


class CountMoved(msgspec.Struct, frozen=True, array_like=True):
    """Count what the streams of `session_id` have brought so far, so that it is told of from now on.

    Only what is counted is told: a number that one coordinator heard is gone with it and with the receivers.
    """

    operation_id: int
    session_id: str
    moved_bytes: int
    moved_fragments: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        operation = _running(cluster, self.operation_id)
        if not self.session_id or streaming_session(operation) != self.session_id:
            raise Rejected(f"{operation.title()} does not stream as {self.session_id!r}")
        if self.moved_bytes <= operation.counted_bytes or self.moved_fragments < operation.counted_fragments:
            raise Rejected(f"{operation.title()} has counted {operation.counted_bytes} bytes already")
        return _counted(cluster, operation, self.moved_bytes, self.moved_fragments)


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
        kind, target = kind_of(operation), stage_row(operation).on_failure
        if not kind.can_go_back(operation):
            what = "is already rolling back" if kind.is_taken_back(operation) else "goes forward only"
            raise Rejected(f"{operation.title()} is in stage {operation.stage} and {what}")
        cancelled = msgspec.structs.replace(
            operation, body=kind.cancelled(operation), cancel_reason=self.reason
        )
        assert (cancelled.id, cancelled.stage) == (operation.id, operation.stage), "only its aim changes"
        if target is None:
            entered = cluster.changed(OPERATIONS.set(cluster.running.with_changed(cancelled)))
        else:
            entered = _entered(dropped(cluster, operation), cancelled, target, epoch)
        if not self.failed:
            return entered
        return entered.changed(REQUESTS.set(failing(cluster.requests, operation.id)))


def preparation(request: Request, request_id: int) -> PrepareOperation:
    """The entry that begins the operation a request asks for."""
    return PrepareOperation(request.body, request_id)


def _gives_way(between: ClusterMetadata) -> bool:
    """Whether what mends a dead node is queued and may begin between two steps of a change of replication."""
    mending = [request for request in between.requests.queue if not kind_of(request).is_held_back]
    return any(_may_begin(between, request) for request in mending[:REQUESTS_PLANNED_MAX])


def _may_begin(cluster: ClusterMetadata, request: Request) -> bool:
    try:
        preparation(request, request.id).apply(cluster, cluster.epoch + 1)
    except Rejected:
        return False
    return True


def can_go_back(operation: Operation) -> bool:
    """Whether a cancel would be accepted now."""
    return kind_of(operation).can_go_back(operation)


def _running(cluster: ClusterMetadata, operation_id: int) -> Operation:
    operation = cluster.operations_by_id.get(operation_id)
    if operation is None:
        raise Rejected(
            f"operation {operation_id} is not running", hint="`lockstep topology requests` lists them"
        )
    return operation


def _counted(
    cluster: ClusterMetadata, operation: Operation, moved_bytes: int, moved_fragments: int
) -> ClusterMetadata:
    """The value once this much is counted of the streams that go on; less changes nothing."""
    counted = msgspec.structs.replace(
        operation,
        counted_bytes=max(moved_bytes, operation.counted_bytes),
        counted_fragments=max(moved_fragments, operation.counted_fragments),
    )
    more = (
        counted.counted_bytes - operation.counted_bytes,
        counted.counted_fragments - operation.counted_fragments,
    )
    if more == (0, 0):
        return cluster
    return cluster.changed(
        REQUESTS.set(with_moved(cluster.requests, operation.id, *more)),
        OPERATIONS.set(cluster.running.with_changed(counted)),
    )


def _entered(cluster: ClusterMetadata, operation: Operation, stage: Stage, epoch: int) -> ClusterMetadata:
    """The value with the operation in `stage` and its ranges' groups as that stage's row says."""
    assert epoch > operation.stage_epoch, "stages follow each other"
    assert stage is not operation.stage, "an operation moves on"
    moved = msgspec.structs.replace(
        operation,
        stage=stage,
        stage_epoch=epoch,
        history=(*operation.history, (stage, epoch)),
    )
    moved = msgspec.structs.replace(moved, session_id=session_id_of(moved))
    if streaming_session(moved) != streaming_session(operation):
        moved = msgspec.structs.replace(moved, counted_bytes=0, counted_fragments=0)
    assert not moved.session_id or moved.session_id != operation.session_id, "a session is of one stage"
    value: ClusterMetadata = cluster.changed(
        PLACEMENTS.set(_stepped(cluster, operation, moved, epoch)),
        OPERATIONS.set(cluster.running.with_changed(moved)),
    )
    return kind_of(operation).entered(value, operation, moved, epoch)


def _stepped(cluster: ClusterMetadata, operation: Operation, moved: Operation, epoch: int) -> Placements:
    """Replica groups for the stage that the operation moved to, each proved against the present one."""
    rows = stage_row(operation), stage_row(moved)
    dc_of = cluster.directory.dc_by_id.__getitem__
    # What writes must hear changes although the replicas may not: see `running.passing`.
    recounted = kind_of(operation).recounts and rows[1].work is Work.STREAM
    changed = []
    proved: Proved = set()
    for group, transitions in by_group(cluster.transitions.of(operation.id)).items():
        before = cluster.placements.ring(group)
        regrouped: list[PlacedRange] = []
        for transition in transitions:
            old = before.range_at(transition.range.right)
            new = regrouped_in(old, transition, rows, epoch, dc_of, proved)
            # Roles change with the entry, though the replicas may be the same.
            witnessed = transition.replication.has_witnesses
            if (
                recounted
                or witnessed
                or old.group.reads != new.group.reads
                or old.group.writes != new.group.writes
            ):
                regrouped.append(new)
        changed.append(before.replaced(sorted(regrouped, key=lambda placed: placed.range.right)))
    return cluster.placements.with_rings(tuple(changed))


KINDS: dict[int, type] = {
    EntryKind.PREPARE_OPERATION: PrepareOperation,
    EntryKind.ADVANCE_OPERATION: AdvanceOperation,
    EntryKind.CANCEL_OPERATION: CancelOperation,
    EntryKind.COUNT_MOVED: CountMoved,
}
