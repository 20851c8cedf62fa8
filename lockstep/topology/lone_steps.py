"""The entry by which transitions that move by themselves go on, many at once.

Invariant: each goes on by one stage of its own table, named by the epoch at which it entered the one that it
leaves, so a second copy of the entry is refused. All of an entry go on or none: what it says was decided at
one value. Every range stays safe against the version before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.tablets import TABLETS, TabletGroup, Tablets
from lockstep.metadata.transitions import TRANSITIONS, Lone, Transition
from lockstep.placement.placements import PlacedRange
from lockstep.topology.kind import stage_row
from lockstep.topology.planning import Proved, regrouped_in
from lockstep.topology.stages import Side, Work, side_of
from lockstep.topology.streams import still_degraded
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
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
            moved = Lone(entered(lone.transition, target, epoch, lone.stage))
            changed.append(moved.transition)
            placed = cluster.placements.ring(one.group).range_at(one.range.right)
            new = regrouped_in(placed, one, (row, stage_row(moved)), epoch, dc_of, proved)
            if (placed.group.reads, placed.group.writes) != (new.group.reads, new.group.writes):
                regrouped.setdefault(one.group, []).append(new)
        if len({one.key for one in (*changed, *ended)}) < len(self.steps):
            raise Rejected("a transition goes on once in an entry")
        assert len(changed) + len(ended) == len(self.steps), "all of an entry go on"
        rings = [
            cluster.placements.ring(group).replaced(sorted(ranges, key=lambda placed: placed.range.right))
            for group, ranges in regrouped.items()
        ]
        return value.changed(
            PLACEMENTS.set(cluster.placements.with_rings(rings)),
            TABLETS.set(_placed_on_shards(cluster.tablets, changed)),
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


def entered(one: Transition, stage: Stage, epoch: int, former: Stage | None = None) -> Transition:
    """The transition in a stage, with the session of its work."""
    assert one.position is not None and stage is not former, "stages follow each other"
    position = msgspec.structs.replace(one.position, stage=stage, stage_epoch=epoch, former=former)
    one = msgspec.structs.replace(one, position=position)
    lone = Lone(one)
    assert lone.stage_epoch == epoch, "a stage is known by the epoch at which it was entered"
    session = "" if stage_row(lone).work is Work.NONE else f"{lone.session_prefix}{epoch}"
    return msgspec.structs.replace(one, position=msgspec.structs.replace(position, session_id=session))


def _placed_on_shards(tablets: Tablets, moved: Sequence[Transition]) -> Tablets:
    """With the shard of who gets a tablet from when it is written there, and without that of who gave it up
    from when it is no more."""
    edits: dict[int, dict[int, list[tuple[NodeId, int]]]] = {}
    for one in moved:
        group, position = tablets.by_group.get(one.group), one.position
        if group is None or position is None or position.target is None:
            continue
        node, shard = position.target
        row = stage_row(Lone(one))
        at = dict(group.shards.of(one.range.right))
        if node in one.gained or row.writes is Side.NEW:
            at[node] = shard
        written = side_of(one, row.writes)
        kept = [(one_node, at.get(one_node, 0)) for one_node in written]
        assert len({one_node for one_node, _ in kept}) == len(kept), "a tablet is on one shard of a node"
        edits.setdefault(one.group, {})[one.range.right] = kept
    found = []
    for group_id, of_tablets in edits.items():
        group = tablets.by_group[group_id]
        shards = group.shards.changed(of_tablets)
        if shards is not group.shards:
            found.append(TabletGroup(group.head, shards))
    return tablets.with_groups(found)


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.ADVANCE_TRANSITIONS: AdvanceTransitions}
