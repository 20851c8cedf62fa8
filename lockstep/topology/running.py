"""What goes with a running operation in the metadata: its cuts of the rings, its lock and its session.

Invariant: a lock holds exactly the ranges of the operation's transitions, and a session is open exactly
while the operation is in a stage with work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Lock, Operation, Session, Stage, Transition
from lockstep.placement.deltas import cut, merged
from lockstep.placement.placements import Placements, RingPlacement
from lockstep.placement.quorums import Passing
from lockstep.topology.kind import stage_row
from lockstep.topology.stages import STREAMING, Work
from lockstep.values.tokens import Range


def by_group(transitions: Sequence[Transition]) -> Mapping[int, list[Transition]]:
    """Transitions by placement group, in their order."""
    grouped: dict[int, list[Transition]] = {}
    for transition in transitions:
        grouped.setdefault(transition.group, []).append(transition)
    return grouped


def cuts(operation: Operation, group: int) -> list[int]:
    """Tokens at which the operation keeps ranges apart: its own tokens and the ends of its transitions."""
    ends = [t.range for t in operation.transitions if t.group == group]
    return [*operation.tokens, *(range_.left for range_ in ends), *(range_.right for range_ in ends)]


def split(placements: Placements, operation: Operation) -> Placements:
    rings = [cut(placements.ring(group), cuts(operation, group)) for group in by_group(operation.transitions)]
    return placements.with_rings(tuple(rings))


def merged_rings(placements: Placements, operation: Operation, others: Sequence[Operation]) -> Placements:
    rings = []
    for group in by_group(operation.transitions):
        keep = [token for other in others for token in cuts(other, group)]
        ring = placements.ring(group)
        rings.append(merged(ring, keep, _inside(ring, operation)))
    return placements.with_rings(tuple(rings))


def _inside(ring: RingPlacement, operation: Operation) -> list[int]:
    """Where ranges may be joined when the operation ends: at its cuts, and within what it changed."""
    found = cuts(operation, ring.id)
    for transition in operation.transitions:
        if transition.group == ring.id:
            found.extend(placed.range.right for placed in ring.overlapping(transition.range))
    return found


def lock_of(operation: Operation) -> Lock:
    return Lock(operation.id, tuple((t.group, t.range) for t in operation.transitions))


def session_id_of(operation: Operation) -> str:
    """Of the operation's stage: deterministic, so that every node names the same session; empty when the
    stage has no work."""
    if stage_row(operation).work is Work.NONE:
        return ""
    step = f"-step-{operation.step}" if operation.step else ""
    return f"operation-{operation.id}{step}-{operation.stage}"


def streaming_session(operation: Operation) -> str:
    """The session whose streams the metadata does not count yet: that of the present stage, or of the one
    that was taken back; empty where nothing is streamed."""
    stage = operation.stage
    if stage is Stage.ROLLBACK_TO_NORMAL and len(operation.history) > 1:
        stage = operation.history[-2][0]
    if stage_row(operation, stage).work not in STREAMING:
        return ""
    return session_id_of(msgspec.structs.replace(operation, stage=stage))


def with_session(sessions: Sequence[Session], operation: Operation) -> tuple[Session, ...]:
    """Close the operation's former session and open that of its present stage, sorted by operation."""
    kept = [session for session in sessions if session.operation_id != operation.id]
    if operation.session_id:
        kept.append(Session(operation.session_id, operation.id, operation.stage, operation.stage_epoch))
    return tuple(sorted(kept, key=lambda session: session.operation_id))


def passing(cluster: ClusterMetadata, group: int, range_: Range) -> Passing | None:
    """Where a range of a placement group is going while replicas are filled for other counts; else None.

    Whoever has not heard that replicas are being filled is refused by those that have, as their groups'
    epochs say.
    """
    operation = cluster.recounting.get(group)
    if operation is None or stage_row(operation).work is not Work.STREAM:
        return None
    found = bisect_left(operation.transitions, range_.right, key=lambda t: t.range.right)
    assert found < len(operation.transitions), "a change of replication has a transition for every range"
    transition = operation.transitions[found]
    assert transition.range.left <= range_.left, "a change of replication has a transition for every range"
    return Passing(transition.new, transition.replication_after)
