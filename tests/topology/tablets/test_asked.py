"""Splits and merges that somebody asks for: what is refused, what becomes of them, and what is kept."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step
from lockstep.metadata.tablets import TABLETS, ResizePhase, TabletGroup, Tablets
from lockstep.placement.tablets.counts import CountSettings
from lockstep.placement.tablets.load import GIB, NodeLoad, TabletLoad
from lockstep.placement.tablets.resize import Resize, ResizeKind
from lockstep.schema.changes import AlterOptions
from lockstep.topology.tablets.asked import AskResize, asked_counts, count_after
from lockstep.topology.tablets.balancing import Planner
from lockstep.topology.tablets.resizing import Heard, Resizer
from lockstep.values.errors import Rejected
from tests.metadata.histories import History
from tests.topology.tablets.test_migration import take
from tests.topology.tablets.test_migration import world as on_the_ring
from tests.topology.tablets.test_resizes import advance, resizing, together
from tests.topology.tablets.worlds import begin, cluster, map_of, move

SPLIT, MERGE, NONE = ResizeKind.SPLIT, ResizeKind.MERGE, ResizeKind.NONE


def ask(history: History, kind: ResizeKind, number: int | None = None) -> None:
    before = history.now
    history.submit(asked(history, kind, number))
    history.now.validate(before)


def asked(history: History, kind: ResizeKind, number: int | None = None) -> AskResize:
    map_ = map_of(history)
    return AskResize(map_.id, kind, None if number is None else map_.ring.ranges[number].range.right)


def refused(history: History, kind: ResizeKind, number: int | None = None) -> str:
    before = history.now
    refusal = history.tried(asked(history, kind, number))
    assert refusal is not None and history.now is before
    return refusal.message


def end(history: History) -> None:
    while resizing(history).phase is not ResizePhase.NONE:
        advance(history)


def small(history: History) -> Planner:
    """A planner that was told of tablets with nothing to speak of."""
    map_ = map_of(history)
    planner = Planner()
    said = {}
    for node in history.now.directory.present_ids:
        held = {one.right: TabletLoad(1) for one in map_.tablets() if node in one.nodes}
        said[node] = NodeLoad(100 * GIB, 0.0, {map_.id: held})
    planner.refreshed(said)
    return planner


def decisions(history: History, value: ClusterMetadata | None = None) -> list[Resize]:
    """What would be decided now by itself."""
    now = value or history.now
    planned = small(history).look(now, ())
    entry = Resizer(CountSettings()).look(now, planned.cluster, Heard()).entry
    return [one.resize for one in getattr(entry, "changes", ())]


def test_a_table_is_split_and_keeps_its_number() -> None:
    history = cluster(tablets=4)
    ask(history, SPLIT)
    assert resizing(history).resize == Resize(SPLIT, 1, by_hand=True)
    assert decisions(history) == [], "what somebody asked for is not revoked"
    end(history)
    assert map_of(history).count == 8 and resizing(history).kept == 8
    assert decisions(history) == [], "and not merged again, though the table is empty"
    (group,) = history.now.tablets.groups
    unkept = msgspec.structs.replace(resizing(history), kept=0)
    head = msgspec.structs.replace(group.head, resizing=unkept)
    part = history.now.tablets.with_groups((TabletGroup(head, group.shards),))
    (wanted,) = decisions(history, history.now.changed(TABLETS.set(part)))
    assert wanted.kind is MERGE, "as it would be without that"
    assert history.replayed() == history.now


def test_fewer_by_hand_are_as_many_as_are_kept() -> None:
    history = cluster(tablets=4)
    ask(history, SPLIT)
    end(history)
    ask(history, MERGE)
    together(history)
    end(history)
    assert map_of(history).count == 4 and resizing(history).kept == 4, "as few as somebody made them"
    assert decisions(history) == []


def test_one_tablet_and_one_pair() -> None:
    history = cluster(tablets=4)
    rights = [one.right for one in map_of(history).tablets()]
    ask(history, SPLIT, 1)
    end(history)
    assert map_of(history).count == 5 and resizing(history).kept == 5
    ask(history, MERGE, 1)
    assert count_after(map_of(history), resizing(history).resize) == 4
    end(history)
    assert [one.right for one in map_of(history).tablets()] == rights and resizing(history).kept == 4


def test_what_is_decided_is_taken_back_until_the_map_is_new() -> None:
    history = cluster(tablets=4)
    assert "no split or merge" in refused(history, NONE)
    ask(history, SPLIT)
    advance(history)
    assert resizing(history).phase is ResizePhase.CLOSING
    ask(history, NONE)
    assert resizing(history).resize == Resize(NONE, 2) and resizing(history).phase is ResizePhase.NONE
    assert map_of(history).count == 4 and resizing(history).kept == 0
    ask(history, SPLIT)
    advance(history)
    advance(history)
    assert "no way back" in refused(history, NONE)


def test_what_is_refused() -> None:
    history = cluster(tablets=4)
    assert "would have 2 tablets, and 4 are asked for: initial of the keyspace" in refused(history, MERGE)
    assert "would have 3 tablets" in refused(history, MERGE, 0)
    assert "the last tablet of k.t has none behind it" in refused(history, MERGE, 3)
    begin(history, move(history, 2))
    assert "is on its way" in refused(history, SPLIT, 2)
    ask(history, SPLIT, 1)
    assert "is resized already: split 1 is preparing" in refused(history, SPLIT)
    other = history.tried(AskResize(99, SPLIT))
    assert other is not None and "of no table with tablets" in other.message


def test_the_maximum_of_the_table_counts() -> None:
    history = cluster(tablets=4)
    history.submit(ChangeSchema(AlterOptions("k", "t", (("tablets", (("max_tablet_count", "6"),)),))))
    assert "would have 8 tablets, and max_tablet_count is 6" in refused(history, SPLIT)
    ask(history, SPLIT, 0)
    end(history)
    ask(history, SPLIT, 0)
    end(history)
    assert "would have 7 tablets" in refused(history, SPLIT, 0)


def test_pairs_that_nobody_brings_together_are_refused() -> None:
    history = cluster(tablets=4)
    ask(history, SPLIT)
    end(history)
    far = next(
        number
        for number, (one, two) in enumerate(itertools.pairwise(map_of(history).tablets()))
        if one.replicas != two.replicas
    )
    off = history.now.changed(TABLETS.set(Tablets(history.now.tablets.by_group, False)))
    with pytest.raises(Rejected, match=r"1 pairs of k\.t do not lie on the same nodes"):
        asked(history, MERGE, far).apply(off, off.epoch + 1)
    asked(history, SPLIT, far).apply(off, off.epoch + 1)
    ask(history, MERGE, far)


def test_a_keyspace_that_may_go_back_to_the_ring_is_not_resized() -> None:
    history = on_the_ring()
    take(history, Step.START)
    group = history.now.tablets.groups[0]
    refusal = history.tried(AskResize(group.id, SPLIT))
    assert refusal is not None and "on its way from the ring" in refusal.message
    history.submit(MigrateKeyspace("k", Step.FINALIZE))
    assert history.tried(AskResize(group.id, SPLIT)) is None


def test_nothing_is_resized_while_the_metadata_is_frozen() -> None:
    history = cluster(tablets=4)
    frozen = msgspec.structs.replace(history.now.service, frozen="maintenance")
    with pytest.raises(Rejected, match="frozen: maintenance"):
        asked(history, SPLIT).apply(history.now.changed(SERVICE.set(frozen)), history.now.epoch + 1)


def test_what_is_asked_for_without_sizes() -> None:
    history = cluster(tablets=4)
    (wish,) = asked_counts(history.now).values()
    assert (wish.count, wish.rule) == (4, "initial of the keyspace")
