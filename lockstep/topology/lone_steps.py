"""The entry by which transitions that move by themselves go on, many at once.

Invariant: each goes on by one stage of its own table, named by the epoch at which it entered the one that it
leaves, so a second copy of the entry is refused. All of an entry go on or none: what it says was decided at
one value. Every range stays safe against the version before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transitions import TRANSITIONS, Lone, Position, Transition
from lockstep.placement.placements import PlacedRange
from lockstep.topology.kind import stage_row
from lockstep.topology.planning import Proved, regrouped_in
from lockstep.topology.stages import Work
from lockstep.topology.streams import still_degraded
from lockstep.values.errors import Rejected
from lockstep.values.node_limits import TRANSITIONS_ADVANCED_MAX


class TransitionStep(msgspec.Struct, frozen=True, array_like=True):
    """The transition of the placed range of `group` that ends at `right` leaves the stage that it entered at
    `stage_epoch`. `failed`: its work cannot succeed, and it goes where that leads."""

    group: int
    right: int
    stage_epoch: int
    failed: bool = False


class AdvanceTransitions(msgspec.Struct, frozen=True, array_like=True):
    """Have transitions that move by themselves leave their stages, each for the next one of its table, or for
    where failure leads; with its last stage a transition is over, and its range held no more."""

    steps: tuple[TransitionStep, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if not 0 < len(self.steps) <= TRANSITIONS_ADVANCED_MAX:
            raise Rejected(f"1 to {TRANSITIONS_ADVANCED_MAX} transitions go on at once")
        changed: list[Transition] = []
        ended: list[Transition] = []
        regrouped: dict[int, list[PlacedRange]] = {}
        proved: Proved = set()
        dc_of = cluster.directory.dc_by_id.__getitem__
        value = cluster
        for step in self.steps:
            lone = _found(cluster, step)
            one, row = lone.transition, stage_row(lone)
            target = row.on_failure if step.failed else row.next
            if target is None and step.failed:
                raise Rejected(f"{lone.title()} is in stage {lone.stage} and goes forward only")
            if target is None:
                ended.append(one)
                value = value.changed(DEGRADED.set(still_degraded(value, lone)))
                continue
            moved = Lone(_entered(lone, target, epoch))
            changed.append(moved.transition)
            placed = cluster.placements.ring(one.group).range_at(one.range.right)
            new = regrouped_in(placed, one, (row, stage_row(moved)), epoch, dc_of, proved)
            if (placed.group.reads, placed.group.writes) != (new.group.reads, new.group.writes):
                regrouped.setdefault(one.group, []).append(new)
        if len({one.key for one in (*changed, *ended)}) < len(self.steps):
            raise Rejected("a transition goes on once in an entry")
        rings = [
            cluster.placements.ring(group).replaced(sorted(ranges, key=lambda placed: placed.range.right))
            for group, ranges in regrouped.items()
        ]
        return value.changed(
            PLACEMENTS.set(cluster.placements.with_rings(rings)),
            TRANSITIONS.set(cluster.transitions.moved(changed, ended)),
        )


def _found(cluster: ClusterMetadata, step: TransitionStep) -> Lone:
    one = cluster.transitions.at(step.group, step.right)
    if one is None or one.position is None:
        raise Rejected(f"no range of group {step.group} that ends at {step.right} moves by itself")
    lone = Lone(one)
    if lone.stage_epoch != step.stage_epoch:
        raise Rejected(f"{lone.title()} is in {lone.stage} since epoch {lone.stage_epoch}")
    return lone


def _entered(lone: Lone, stage: Stage, epoch: int) -> Transition:
    """The transition in a stage, with the session of its work."""
    assert epoch > lone.stage_epoch and stage is not lone.stage, "stages follow each other"
    session = "" if stage_row(lone, stage).work is Work.NONE else f"{lone.session_prefix}{epoch}"
    position = Position(lone.kind, stage, epoch, session, lone.stage)
    return msgspec.structs.replace(lone.transition, position=position)


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.ADVANCE_TRANSITIONS: AdvanceTransitions}
