"""The checker of splits and merges: histories with one fault each, and one without."""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transitions import TRANSITIONS
from lockstep.placement.placements import PlacedRange, ReplicaGroup
from lockstep.placement.tablets.resize import Resize, ResizeKind
from lockstep.sim.checkers.resizes import ResizeWatch, problems
from lockstep.topology.tablets.resizes import AdvanceResize, DecideResizes, ResizeChange
from lockstep.values.ids import NodeId
from tests.metadata.histories import History
from tests.topology.tablets.worlds import begin, cluster, exclude, map_of, move


def split() -> History:
    """All entries of a split."""
    history = cluster(tablets=4)
    (group,) = history.now.tablets.groups
    change = ResizeChange(group.id, Resize(ResizeKind.SPLIT, 1))
    history.submit(DecideResizes(history.now.epoch, (change,)))
    for _ in range(3):
        epoch = history.now.tablets.by_group[group.id].head.resizing.epoch
        history.submit(AdvanceResize(group.id, epoch, history.now.epoch))
    return history


def told(before: ClusterMetadata, after: ClusterMetadata, **late: int) -> list[str]:
    """`late`: what node nN has applied; all others have applied everything."""
    seen = dict.fromkeys(before.directory.present_ids, before.epoch)
    seen.update({NodeId(int(name[1:])): epoch for name, epoch in late.items()})
    (group,) = before.tablets.groups
    return list(problems(before, after, group, seen))


def test_a_split_that_all_have_seen_is_counted() -> None:
    history = split()
    facts: list[str] = []
    watch = ResizeWatch(lambda after: dict.fromkeys(after.directory.present_ids, after.epoch), facts.append)
    for before, after in zip(history.values, history.values[1:], strict=False):
        watch.applied(before, after)
    assert facts == ["split finalised"]


def test_a_replica_that_has_not_applied_the_phase_is_found() -> None:
    *_, closing, settling, settled = split().values
    late = map_of(split()).at(0).nodes[0]
    epoch = closing.tablets.groups[0].head.resizing.epoch
    assert told(closing, settling, **{f"n{late}": epoch}) == []
    (text,) = told(closing, settling, **{f"n{late}": epoch - 1})
    assert text.startswith("RSZ-1:") and f"node {late} has not applied" in text
    (text,) = told(settling, settled, **{f"n{late}": settling.epoch - 1})
    assert text.startswith("RSZ-2:") and f"not on node {late}" in text


def test_who_is_shut_out_is_not_waited_for_by_a_new_map() -> None:
    history = cluster(tablets=4)
    (group,) = history.now.tablets.groups
    history.submit(DecideResizes(history.now.epoch, (ResizeChange(group.id, Resize(ResizeKind.SPLIT, 1)),)))
    for _ in range(2):
        epoch = history.now.tablets.by_group[group.id].head.resizing.epoch
        history.submit(AdvanceResize(group.id, epoch, history.now.epoch))
    late = map_of(history).at(0).nodes[0]
    exclude(history, late)
    epoch = history.now.tablets.by_group[group.id].head.resizing.epoch
    before = history.now
    after = history.submit(AdvanceResize(group.id, epoch))
    assert told(before, after, **{f"n{late}": 1}) == []


def test_a_map_that_changes_during_a_move_is_found() -> None:
    *_, closing, settling, _ = split().values
    moved = cluster(tablets=4)
    begin(moved, move(moved))
    assert told(closing, settling) == []
    during = closing.changed(TRANSITIONS.set(moved.now.transitions))
    assert any(text.startswith("RSZ-1:") and "on their way" in text for text in told(during, settling))


def test_other_replicas_than_before_are_found() -> None:
    *_, closing, settling, _ = split().values
    (group,) = settling.tablets.groups
    ring = settling.placements.ring(group.id)
    first = ring.ranges[0]
    others = tuple(node for node in settling.directory.present_ids if node not in first.group.reads)
    nodes = (*first.group.reads[:2], others[0])
    placed = PlacedRange(first.range, ReplicaGroup(nodes, nodes, settling.epoch))
    wrong = settling.changed(PLACEMENTS.set(settling.placements.with_rings((ring.replaced([placed]),))))
    (text,) = told(closing, wrong)
    assert text.startswith("RSZ-3:")
