"""Change of a keyspace's replication: one pass through the stages for each step of a walk from setting to
setting.

Invariant: from the first step to the end the keyspace has a placement group of its own, and between two steps
that is at rest with the replication of the step that ended, every range still held; the walk ends at the
target, or back at the original. Between two steps it may also give way: the operation ends and its request is
queued again, with what it takes to go all the way back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED
from lockstep.metadata.directory import REPLICATION_CHANGE
from lockstep.metadata.operations import OPERATIONS, About, Body, Operation, Stage
from lockstep.metadata.requests import REQUESTS, Request, begun, finished, keyspace_busy, rested
from lockstep.metadata.schema_change import moves_data
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.tablet_groups import lies_by
from lockstep.metadata.transitions import TRANSITIONS, Transition
from lockstep.placement.deltas import merged
from lockstep.schema.changes import SYSTEM_KEYSPACES, AlterKeyspace
from lockstep.schema.model import Replication
from lockstep.schema.replication_options import parse_replication
from lockstep.topology.kind import Drill, GivesWay, Kind, stage_row
from lockstep.topology.planning import laid_out, refuse_excluded_targets, session_id_of
from lockstep.topology.replication_change import (
    is_recounted,
    path_to,
    recounted,
    refuse_start,
    step_transitions,
    wanted_keyspace,
    with_own_group,
    with_shared_group,
)
from lockstep.topology.stages import RANGE_MOVEMENT, Side
from lockstep.topology.streams import sources_of, still_degraded, tasks_of_quorum
from lockstep.topology.tablets import recount
from lockstep.topology.tablets.left import Way
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

_FIRST = RANGE_MOVEMENT[0].stage


class ReplicationChange(msgspec.Struct, frozen=True, array_like=True, tag="replication_change"):
    """What is asked for: `keyspace` is to have `target`."""

    keyspace: str
    target: Replication | None = None

    @property
    def about(self) -> About:
        return _about(self.keyspace)

    @property
    def kind(self) -> Kind:
        return KIND


class Walk(msgspec.Struct, frozen=True, array_like=True, tag="replication_walk"):
    """What runs. It goes along `path`, from the original replication to the target, or back when
    `is_returning`; it is between path[at] and the next one. One that `is_cancelled` returns once its present
    step has ended, one that `is_stopped` ends right there."""

    keyspace: str
    path: tuple[Replication, ...] = ()
    at: int = 0
    is_returning: bool = False
    is_cancelled: bool = False
    is_stopped: bool = False

    @property
    def about(self) -> About:
        return _about(self.keyspace)

    @property
    def kind(self) -> Kind:
        return KIND

    @property
    def next(self) -> int:
        """Where on the path the present step leads."""
        return self.at - 1 if self.is_returning else self.at + 1

    @property
    def is_at_end(self) -> bool:
        return self.is_stopped or self.at == (0 if self.is_returning else len(self.path) - 1)


def _about(keyspace: str) -> About:
    return About(KIND.name, KIND.precedence, keyspace=keyspace, is_global=True)


def walk_of(operation: Operation) -> Walk:
    assert isinstance(operation.body, Walk), "it changes a replication"
    return operation.body


def target_in(body: Body) -> Replication | None:
    """The replication that a keyspace is to have; None where none changes."""
    if isinstance(body, Walk):
        return body.path[-1]
    return body.target if isinstance(body, ReplicationChange) else None


def asked_in(request: Request) -> ReplicationChange:
    assert isinstance(request.body, ReplicationChange), "it asks for another replication"
    return request.body


def target_of(cluster: ClusterMetadata, change: AlterKeyspace) -> Replication | None:
    """The replication for which an ALTER KEYSPACE needs an operation; None when one entry does it, or when it
    is refused. A change that is under way to the same replication is meant too."""
    keyspace = cluster.schema.by_name.get(change.keyspace)
    if keyspace is None or change.replication is None or change.keyspace in SYSTEM_KEYSPACES:
        return None
    present = keyspace.replication
    known = cluster.directory.data_centers
    target = parse_replication(keyspace.name, change.replication, known, present)
    running = under_way(cluster, keyspace.name, target)
    if running is not None:
        return target
    if is_recounted(cluster, keyspace) or not keyspace.by_name or target == present:
        return None
    # Nobody's replicas are a request too: its refusal says why.
    if keyspace.tablets is not None:
        return None if target.total and lies_by(cluster, keyspace, target) else target
    return target if not target.total or moves_data(cluster, present, target) else None


def under_way(cluster: ClusterMetadata, keyspace: str, target: Replication) -> Request | None:
    """The live request that gives the keyspace this replication, and is not on its way back."""
    request = cluster.requests.by_keyspace.get(keyspace)
    if request is None or request.body != ReplicationChange(keyspace, target):
        return None
    operation = cluster.operations_by_id.get(request.operation_id)
    return request if operation is None or not walk_of(operation).is_cancelled else None


def _refuse_unfit(cluster: ClusterMetadata, request: Request) -> None:
    if REPLICATION_CHANGE not in cluster.features_enabled:
        raise Rejected(
            f"the feature {REPLICATION_CHANGE} is not enabled yet",
            hint="upgrade all nodes: `lockstep features` shows who lacks it",
        )
    asked = asked_in(request)
    busy = cluster.requests.by_keyspace.get(asked.keyspace)
    if busy is not None:
        raise keyspace_busy(busy)
    wanted_keyspace(cluster, asked.keyspace, asked.target)


def walk_begun(cluster: ClusterMetadata, request: Request, epoch: int) -> ClusterMetadata:
    """The value with the change that `request` asks for in its first step; raises Rejected."""
    asked = asked_in(request)
    keyspace = wanted_keyspace(cluster, asked.keyspace, asked.target)
    refuse_start(cluster, keyspace, request.id)
    path, at = _whole_path(cluster, request, asked)
    assert path[at] == keyspace.replication, "a walk goes on from where it is"
    # What a later step does with tablets, it finds as they are by then.
    for ends in itertools.pairwise(path[at:] if keyspace.tablets is None else path[at : at + 2]):
        refuse_excluded_targets(cluster, step_transitions(cluster, keyspace.name, *ends))
    operation = Operation(
        id=cluster.next_operation_id,
        body=Walk(keyspace.name, path, at),
        tokens=(),
        stage=_FIRST,
        stage_epoch=epoch,
    )
    running = msgspec.structs.replace(request, operation_id=operation.id)
    alone = with_own_group(cluster, keyspace.name)
    value = alone.changed(REQUESTS.set(begun(cluster.requests, running, epoch)))
    return _step_begun(value, operation, epoch)


def _whole_path(
    cluster: ClusterMetadata, request: Request, asked: ReplicationChange
) -> tuple[tuple[Replication, ...], int]:
    """The settings from the original to the target, and which of them is the present one."""
    keyspace = cluster.schema.by_name[asked.keyspace]
    assert asked.target is not None, "a keyspace was checked with its target"
    onward = path_to(cluster, keyspace, asked.target)
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


def step_ended(
    cluster: ClusterMetadata, operation: Operation, epoch: int, gives_way: GivesWay
) -> ClusterMetadata:
    """The value once the present step has ended, in success or taken back: the next step, a rest, or the end.

    The keyspace has the replicas that the step led to, or those that it began from. On its way back it does
    not rest.
    """
    degraded = still_degraded(cluster, operation)
    if degraded is not cluster.degraded:
        cluster = cluster.changed(DEGRADED.set(degraded))
    walk = walk_of(operation)
    at = walk.at if operation.stage is Stage.ROLLBACK_TO_NORMAL else walk.next
    assert 0 <= at < len(walk.path), "a step ends at a setting of its path"
    walk = msgspec.structs.replace(walk, at=at, is_returning=walk.is_cancelled)
    at_end = msgspec.structs.replace(operation, body=walk)
    if not walk.is_at_end:
        stuck = _cannot_go_on(cluster, at_end)
        if not walk.is_cancelled:
            resting = _resting(cluster, at_end)
            if stuck or gives_way(resting):
                return resting
        if not (stuck and _has_tablets(cluster, walk)):
            return _step_begun(_joined(cluster, walk), at_end, epoch)
    value = _released(cluster, at_end)
    return value.changed(
        REQUESTS.set(
            finished(
                cluster.requests,
                operation.id,
                _outcome(at_end),
                rolled_back=walk.is_cancelled,
                epoch=epoch,
            )
        )
    )


def _has_tablets(cluster: ClusterMetadata, walk: Walk) -> bool:
    return cluster.schema.by_name[walk.keyspace].tablets is not None


def _joined(cluster: ClusterMetadata, walk: Walk) -> ClusterMetadata:
    """The value with the keyspace's ring without the cuts of the step that ended; tablets are not cut."""
    if _has_tablets(cluster, walk):
        return cluster
    ring = merged(cluster.placements.ring(cluster.schema.by_name[walk.keyspace].group))
    joined: ClusterMetadata = cluster.changed(PLACEMENTS.set(cluster.placements.with_rings((ring,))))
    return joined


def _released(cluster: ClusterMetadata, operation: Operation) -> ClusterMetadata:
    """The value without the operation, the keyspace with the replication that it has come to."""
    walk = walk_of(operation)
    value: ClusterMetadata = with_shared_group(_joined(cluster, walk), walk.keyspace).changed(
        OPERATIONS.set(cluster.running.without(operation.id)),
        TRANSITIONS.set(cluster.transitions.ended(operation.id)),
    )
    assert value.schema.by_name[walk.keyspace].replication == walk.path[walk.at], "it is where it stopped"
    return value


def _resting(cluster: ClusterMetadata, operation: Operation) -> ClusterMetadata:
    """The value with the operation ended between two steps, and its request in the queue again."""
    assert not walk_of(operation).is_cancelled, "on its way back it does not rest"
    value: ClusterMetadata = _released(cluster, operation).changed(
        REQUESTS.set(rested(cluster.requests, operation.id, walk_of(operation).path[0]))
    )
    return value


def _next_transitions(cluster: ClusterMetadata, operation: Operation) -> tuple[Transition, ...]:
    """Those of the step from path[at] on."""
    walk = walk_of(operation)
    assert 0 <= walk.next < len(walk.path), "a step leads along the path"
    return step_transitions(cluster, walk.keyspace, walk.path[walk.at], walk.path[walk.next])


def _cannot_go_on(cluster: ClusterMetadata, operation: Operation) -> bool:
    """Whether the next step gives a range to a node that is shut out, or has no node for a tablet. Where that
    is a step back, the walk ends before it: ranges on a ring follow from the nodes that there are."""
    try:
        refuse_excluded_targets(cluster, _next_transitions(cluster, operation))
    except Rejected:
        return True
    return False


def _outcome(operation: Operation) -> str:
    """Why it was cancelled, and where it stopped if that is not where it began."""
    walk = walk_of(operation)
    if not walk.at:
        return operation.cancel_reason
    return f"{operation.cancel_reason}; it stopped at {walk.path[walk.at].text()}"


def _step_begun(cluster: ClusterMetadata, operation: Operation, epoch: int) -> ClusterMetadata:
    """The value with the operation in the first stage of the step from path[at] on."""
    begun_step = msgspec.structs.replace(
        operation,
        stage=_FIRST,
        stage_epoch=epoch,
        step=operation.step + 1,
        history=(*operation.history, (_FIRST, epoch)),
        counted_bytes=0,
        counted_fragments=0,
    )
    begun_step = msgspec.structs.replace(begun_step, session_id=session_id_of(begun_step))
    placements, transitions = laid_out(cluster, operation.id, _next_transitions(cluster, operation))
    return cluster.changed(
        PLACEMENTS.set(placements),
        TRANSITIONS.set(transitions),
        OPERATIONS.set(cluster.running.with_changed(begun_step)),
    )


# What there is still to do


def way_of(cluster: ClusterMetadata, operation: Operation) -> Way:
    """Of a change that runs."""
    walk = walk_of(operation)
    is_back = operation.stage is Stage.ROLLBACK_TO_NORMAL
    reached = walk.at if is_back else walk.next
    rest = walk.path[reached::-1] if walk.is_cancelled else walk.path[reached:]
    ahead = () if walk.is_stopped else tuple(itertools.pairwise(rest))
    present = None if is_back else (walk.path[walk.at], walk.path[walk.next])
    return Way(cluster.schema.by_name[walk.keyspace], present, ahead, len(walk.path) - 1)


def way_asked(cluster: ClusterMetadata, request: Request) -> Way | None:
    """Of a change that waits to begin, or between two steps; None where it cannot be as things are."""
    asked = asked_in(request)
    if asked.target is None or asked.keyspace not in cluster.schema.by_name:
        return None
    try:
        path, at = _whole_path(cluster, request, asked)
    except Rejected:
        return None
    ahead = tuple(itertools.pairwise(path[at:]))
    return Way(cluster.schema.by_name[asked.keyspace], None, ahead, len(path) - 1)


# Between two entries of a step


def _entered(cluster: ClusterMetadata, left: Operation, entered: Operation, epoch: int) -> ClusterMetadata:
    """The value with the replication that the step leads to, once reads have moved."""
    row, walk = stage_row(entered), walk_of(entered)
    if row.writes is Side.NEW and _has_tablets(cluster, walk):
        return recount.without_stray_shards(cluster, cluster.schema.by_name[walk.keyspace])
    if stage_row(left).reads is row.reads:
        return cluster
    assert row.reads is Side.NEW, "reads go back by steps of their own"
    return recounted(cluster, walk.keyspace, walk.path[walk.next], epoch)


def _also_filled(operation: Operation, cluster: ClusterMetadata) -> Iterator[NodeId]:
    """Where writes are lacking, whoever stays may be filled."""
    for transition in cluster.transitions.of(operation.id):
        if any(line.group == transition.group for line in cluster.degraded):
            yield from transition.new


def _is_taken_back(operation: Operation) -> bool:
    return operation.stage is Stage.ROLLBACK_TO_NORMAL or walk_of(operation).is_cancelled


def _can_go_back(operation: Operation) -> bool:
    """Always, once reads have moved after the present step; a second time only where it goes back."""
    walk = walk_of(operation)
    if operation.stage is Stage.ROLLBACK_TO_NORMAL or walk.is_stopped:
        return False
    return walk.is_returning if walk.is_cancelled else True


def _cancelled(operation: Operation) -> Walk:
    """Cancelled again on its way back, it ends where the present step leads, or began: a node that it needs
    may be gone."""
    walk = walk_of(operation)
    return msgspec.structs.replace(walk, is_cancelled=True, is_stopped=walk.is_returning)


def _way_out(operation: Operation) -> str:
    """It and the removal or replacement of the node that it waits for would else wait for each other."""
    return f"takes this step back{' and stops there' if walk_of(operation).is_returning else ''}"


# What must hold


def _running_problems(cluster: ClusterMetadata, operation: Operation) -> Iterator[str]:
    """A keyspace in change has a placement group of its own, as its step has reached it, all held."""
    walk = walk_of(operation)
    held = cluster.schema.by_name[walk.keyspace]
    transitions = cluster.transitions.of(operation.id)
    groups = {transition.group for transition in transitions}
    users = [k.name for k in cluster.schema.keyspaces if not groups.isdisjoint(k.groups)]
    if groups and users != [walk.keyspace]:
        yield f"OP-1: the placement group of {operation.title()} belongs to {users}"
        return
    if groups != set(held.groups):
        yield f"OP-1: {operation.title()} holds groups {sorted(groups)}, of {sorted(held.groups)}"
        return
    row = stage_row(operation)
    ends = walk.path[walk.at], walk.path[walk.next]
    if operation.stage is Stage.ROLLBACK_TO_NORMAL:
        ends = ends[0], ends[0]
    reached = ends[1] if row.reads is Side.NEW else ends[0]
    if held.replication != reached:
        has = held.replication.text()
        yield f"OP-1: {operation.title()} has reached {reached.text()}, its keyspace has {has}"
    for group in sorted(groups):
        ranges = sorted(t.range for t in transitions if t.group == group)
        bounds = [range_.left for range_ in ranges] + [TOKEN_MAX]
        if bounds[0] != TOKEN_MIN or any(r.right != bounds[at + 1] for at, r in enumerate(ranges)):
            yield f"OP-1: {operation.title()} does not hold the whole ring of its keyspace"


def _end_problems(before: ClusterMetadata, after: ClusterMetadata, operation: Operation) -> Iterator[str]:
    """A change of replication ends at its target, or its original when taken back, or rests one step on."""
    walk = walk_of(operation)
    rolled_back = operation.stage is Stage.ROLLBACK_TO_NORMAL
    back = walk.is_cancelled or rolled_back
    wanted = walk.path[0] if back else walk.path[-1]
    request = after.requests.by_keyspace.get(walk.keyspace)
    if request is not None and request.original is not None:
        wanted = walk.path[walk.at + 1]
    elif walk.is_stopped and not rolled_back:
        wanted = walk.path[walk.at - 1]
    elif walk.is_stopped:
        wanted = walk.path[walk.at]
    keyspace = after.schema.by_name.get(walk.keyspace)
    reached = walk.at if rolled_back else walk.next
    if (
        back
        and keyspace is not None
        and keyspace.tablets is not None
        and not _has_place(after, walk, reached)
    ):
        wanted = walk.path[reached]
    if keyspace is None or keyspace.replication != wanted:
        yield f"OP-1: {operation.title()} did not leave its keyspace with {wanted.text()}"
        return
    if stage_row(operation).next is not None:
        yield f"OP-1: {operation.title()} ended in stage {operation.stage}"
    for transition in before.transitions.of(operation.id):
        replicas = transition.old if rolled_back else transition.new
        group = keyspace.group or transition.group
        for placed in after.placements.ring(group).overlapping(transition.range):
            if placed.group.reads != replicas or placed.group.writes != replicas:
                yield f"OP-1: {operation.title()} left {placed}, not {replicas}"


def _has_place(cluster: ClusterMetadata, walk: Walk, at: int) -> bool:
    """Whether tablets of the keyspace can go the step back from path[at]."""
    try:
        if at:
            step_transitions(cluster, walk.keyspace, walk.path[at], walk.path[at - 1])
    except Rejected:
        return False
    return True


KIND: Final[Kind] = Kind(
    name="replication_change",
    body=ReplicationChange,
    precedence=7,
    is_held_back=True,
    why="it needs the ring to itself, and may take long",
    # Each step of the walk goes through this table once.
    stages=RANGE_MOVEMENT,
    drills=(
        Drill("replication_up", nobodys=True, sheds=False, founders=6),
        Drill("replication_down", nobodys=True, fills=False, founders=6, factor=5),
    ),
    ring=None,
    refuse_unfit=_refuse_unfit,
    begun=walk_begun,
    ended=step_ended,
    tasks=lambda operation, *given: tasks_of_quorum(*given),
    sources=sources_of,
    also_filled=_also_filled,
    entered=_entered,
    recounts=True,
    walks=True,
    is_taken_back=_is_taken_back,
    can_go_back=_can_go_back,
    cancelled=_cancelled,
    way_out=_way_out,
    running_problems=_running_problems,
    end_problems=_end_problems,
)
