"""Splits and merges: when they are decided, kept, revoked, ready, and what they make of a map."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.tablets.counts import CountedTable, CountSettings
from lockstep.placement.tablets.load import GIB, Drain, Host, LoadStatistics, NodeLoad, TabletLoad
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.placement.tablets.moves import MoveKind, Why
from lockstep.placement.tablets.resize import (
    DECISIONS_MAX,
    NO_RESIZE,
    Decided,
    Resize,
    ResizedTable,
    ResizeKind,
    apart,
    average_bytes,
    decide,
    moves_together,
    resized,
    tablet_loads,
    unready,
)
from lockstep.placement.tablets.target import BalancedTable
from lockstep.schema.model import Replication
from lockstep.schema.tablet_options import TabletHints
from lockstep.values.ids import NodeId

from .clusters import Carried, hosts_of, measured, scattered, setting

RACKS = {("dc1", "a"): 64}
REPLICAS = {("dc1", "a"): 1.0}
#: No rule but size says anything.
QUIET = CountSettings(per_shard_initial=0.0)


def even_map(count: int, group: int = 1) -> TabletMap:
    return map_of(group, setting(dc1=1), [(right, ((NodeId(1), 0),)) for right in even_rights(count)], 1)


def table(
    count: int,
    average_gb: float | None,
    resize: Resize = NO_RESIZE,
    hints: TabletHints | None = None,
    group: int = 1,
) -> ResizedTable:
    size = None if average_gb is None else average_gb * GIB
    counted = CountedTable(group, REPLICAS, (hints,) if hints else (), 0, count, size)
    return ResizedTable(even_map(count, group), counted, resize)


def test_tablets_with_witnesses_are_split_and_never_merged() -> None:
    """Pairs that lie on the same nodes may have another witness each."""
    replication = Replication("NetworkTopologyStrategy", (("dc1", -1), ("dc1", 3)))
    nodes = tuple((NodeId(number), 0) for number in (1, 2, 3))

    def with_witnesses(one: ResizedTable) -> ResizedTable:
        tablets = [(right, nodes) for right in even_rights(one.map.count)]
        return msgspec.structs.replace(one, map=map_of(1, replication, tablets, 1))

    small, large = table(8, 0.001), table(8, 40.0)
    assert (found := decided(small)) is not None and found.resize.kind is ResizeKind.MERGE
    assert decided(with_witnesses(small)) is None
    assert (found := decided(with_witnesses(large))) is not None and found.resize.kind is ResizeKind.SPLIT


def decided(one: ResizedTable) -> Decided | None:
    found = decide([one], RACKS, QUIET)
    return found[0] if found else None


@pytest.mark.parametrize(
    ("average_gb", "kind"),
    [
        (11, ResizeKind.SPLIT),
        (10, None),
        (6, None),
        (4, None),
        (2.5, None),
        (2, ResizeKind.MERGE),
        (None, None),
    ],
)
def test_decisions_by_size(average_gb: float | None, kind: ResizeKind | None) -> None:
    found = decided(table(16, average_gb))
    assert (found.resize.kind if found else None) == kind
    assert found is None or found.resize.sequence == 1


@pytest.mark.parametrize(
    ("kind", "average_gb", "is_kept"),
    [
        (ResizeKind.SPLIT, 11, True),
        (ResizeKind.SPLIT, 6, True),
        (ResizeKind.SPLIT, 5, True),
        (ResizeKind.SPLIT, 4, False),
        (ResizeKind.MERGE, 2, True),
        (ResizeKind.MERGE, 4, True),
        (ResizeKind.MERGE, 5, True),
        (ResizeKind.MERGE, 6, False),
        (ResizeKind.SPLIT, None, True),
        (ResizeKind.MERGE, None, True),
    ],
)
def test_decisions_are_kept_until_their_opposite_is_nearer(
    kind: ResizeKind, average_gb: float | None, is_kept: bool
) -> None:
    found = decided(table(16, average_gb, Resize(kind, 7)))
    if is_kept:
        assert found is None
    else:
        assert found is not None and found.resize == Resize(ResizeKind.NONE, 8) and found.reason


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 60), st.integers(0, 5))
def test_sizes_that_stay_come_to_rest(count: int, average_gb: float, sequence: int) -> None:
    """A decision is not revoked by what led to it, and tables of the size that they have come to rest."""
    total, resize = average_gb * count, Resize(ResizeKind.NONE, sequence)
    for _ in range(40):
        found = decided(table(count, total / count, resize))
        if found is None:
            break
        assert found.resize.sequence == resize.sequence + 1
        assert decided(table(count, total / count, found.resize)) is None
        count = 2 * count if found.resize.kind is ResizeKind.SPLIT else (count + 1) // 2
        resize = Resize(ResizeKind.NONE, found.resize.sequence)
    else:
        raise AssertionError("splits and merges take turns")
    assert count == 1 or total / count >= 1.25
    assert total / count <= 20


@pytest.mark.parametrize("average_gb", [0.01, 3.0, 6.0, 20.0, None])
@pytest.mark.parametrize("count", [1, 5, 8, 16])
@pytest.mark.parametrize(
    "hints", [TabletHints(max_tablet_count=2), TabletHints(min_tablet_count=16), TabletHints()]
)
def test_what_is_decided_is_not_taken_back_for_what_it_was_decided_for(
    average_gb: float | None, count: int, hints: TabletHints
) -> None:
    found = decided(table(count, average_gb, NO_RESIZE, hints))
    if found is not None:
        assert decided(table(count, average_gb, found.resize, hints)) is None


def test_what_is_asked_for_decides_without_statistics() -> None:
    more = decided(table(4, None, hints=TabletHints(16)))
    assert more is not None and more.resize.kind is ResizeKind.SPLIT and "min_tablet_count" in more.reason
    assert decided(table(4, None, more.resize, TabletHints(16))) is None
    less = decided(table(16, 6, hints=TabletHints(max_tablet_count=4)))
    assert less is not None and less.resize.kind is ResizeKind.MERGE
    kept = decided(table(16, 1, Resize(ResizeKind.MERGE, 3), TabletHints(16)))
    assert kept is not None and kept.resize == Resize(ResizeKind.NONE, 4) and "asked for" in kept.reason


def test_the_largest_come_first_and_a_round_is_bounded() -> None:
    many = [table(16, 11 + group, group=group) for group in range(1, 31)]
    found = decide(many, RACKS, QUIET)
    assert [one.group for one in found] == list(range(30, 30 - DECISIONS_MAX, -1))
    standing = [table(16, 11, Resize(ResizeKind.SPLIT, 1), group=group) for group in range(31, 94)]
    assert len(decide([*many, *standing], RACKS, QUIET)) == 1, "as many as there are shards"


def test_an_odd_number_isolates_the_largest_that_leaves_pairs() -> None:
    one = table(5, 1)
    rights = even_rights(5)
    loads = {right: TabletLoad(size) for right, size in zip(rights, (5, 90, 30, 7, 8), strict=True)}
    found = decided(ResizedTable(one.map, one.counted, NO_RESIZE, loads))
    assert found is not None and found.resize.isolated == rights[2], "the second is larger and leaves none"
    merged = resized(one.map, found.resize, 2)
    assert [tablet.right for tablet in merged.tablets()] == [rights[1], rights[2], rights[4]]


# One tablet, one pair


def loaded(count: int, loads: dict[int, TabletLoad], resize: Resize = NO_RESIZE) -> ResizedTable:
    one = even_map(count)
    every = {right: loads.get(at, TabletLoad(4 * GIB)) for at, right in enumerate(even_rights(count))}
    average = sum(load.bytes for load in every.values()) / count
    return ResizedTable(one, CountedTable(1, REPLICAS, (), 0, count, average), resize, every)


@pytest.mark.parametrize("load", [TabletLoad(21 * GIB), TabletLoad(4 * GIB, 900.0, 900.0)])
def test_a_huge_or_hot_tablet_is_split_alone(load: TabletLoad) -> None:
    one = loaded(16, {5: load})
    found = decided(one)
    right = even_rights(16)[5]
    assert found is not None and found.resize == Resize(ResizeKind.SPLIT, 1, (right,))
    after = resized(one.map, found.resize, 2)
    assert after.count == 17 and after.at(right - 1).right == right
    assert decided(loaded(16, {5: load}, found.resize)) is None
    revoked = decided(loaded(16, {}, found.resize))
    assert revoked is not None and revoked.resize == Resize(ResizeKind.NONE, 2)


def test_one_hot_key_is_not_split_for_ever() -> None:
    one, hot = even_map(16), 12345
    for number in range(60):
        loads = {t.right: TabletLoad(GIB * 4, 5000.0 * t.range.contains(hot)) for t in one.tablets()}
        counted = CountedTable(1, REPLICAS, (), 0, one.count, 4.0 * GIB)
        found = decide([ResizedTable(one, counted, Resize(ResizeKind.NONE, number), loads)], RACKS, QUIET)
        if not found:
            break
        one = resized(one, found[0].resize, number + 2)
    assert 17 < one.count < 40 and not found


def test_a_cold_pair_is_merged_alone() -> None:
    rights = even_rights(16)
    split = even_map(16).split([rights[3]], 2)
    loads = {tablet.right: TabletLoad(4 * GIB, 100.0) for tablet in split.tablets()}
    middle = split.at(rights[2] + 1).right
    counted = CountedTable(1, REPLICAS, (), 0, 17, 4.0 * GIB)
    loads |= {middle: TabletLoad(GIB, 10.0), rights[3]: TabletLoad(GIB, 10.0)}
    found = decide([ResizedTable(split, counted, NO_RESIZE, loads)], RACKS, QUIET)
    assert [one.resize for one in found] == [Resize(ResizeKind.MERGE, 1, (middle,))]
    after = resized(split, found[0].resize, 3)
    assert [one.right for one in after.tablets()] == rights
    warm = loads | {middle: TabletLoad(GIB, 90.0)}
    assert not decide([ResizedTable(split, counted, NO_RESIZE, warm)], RACKS, QUIET)
    even = even_map(16)
    cold = {
        right: TabletLoad(GIB // 10) if at in (2, 3) else TabletLoad(4 * GIB)
        for at, right in enumerate(rights)
    }
    counted = CountedTable(1, REPLICAS, (), 0, 16, 4.0 * GIB)
    assert not decide([ResizedTable(even, counted, NO_RESIZE, cold)], RACKS, QUIET), "no tablet gets wider"


def test_a_cold_pair_stays_decided_until_it_is_large_or_hot() -> None:
    rights = even_rights(16)
    split = even_map(16).split([rights[3]], 2)
    middle = split.at(rights[2] + 1).right
    usual = {tablet.right: TabletLoad(4 * GIB, 100.0) for tablet in split.tablets()}

    def look(each: TabletLoad, *others: int, average_gb: float | None = 4.0) -> Decided | None:
        size = None if average_gb is None else average_gb * GIB
        loads = usual | {middle: each, rights[3]: each}
        standing = Resize(ResizeKind.MERGE, 1, (middle, *others))
        return decided(ResizedTable(split, CountedTable(1, REPLICAS, (), 0, 17, size), standing, loads))

    assert look(TabletLoad(GIB, 10.0)) is None
    # Below the target together, though above what the decision was made for.
    assert look(TabletLoad(2 * GIB, 200.0)) is None
    for load in (TabletLoad(3 * GIB), TabletLoad(GIB, 300.0)):
        revoked = look(load)
        assert revoked is not None and revoked.resize == Resize(ResizeKind.NONE, 2)
        assert revoked.reason == f"the pair that ends at {rights[3]} is not small and cold any more"
        assert look(load, average_gb=None) is None, "nothing is known of the table"
    # A pair that is as wide as any is judged by what it holds, each of several for itself.
    revoked = look(TabletLoad(GIB, 10.0), rights[5])
    assert revoked is not None and str(rights[6]) in revoked.reason
    usual |= {rights[5]: TabletLoad(GIB), rights[6]: TabletLoad(GIB)}
    assert look(TabletLoad(GIB, 10.0), rights[5]) is None
    assert look(TabletLoad(GIB, 10.0), rights[5], average_gb=10) is None, "wider than two even ones"
    revoked = look(TabletLoad(3 * GIB), rights[5])
    assert revoked is not None and str(rights[3]) in revoked.reason


def test_a_decision_about_a_tablet_that_is_gone_is_revoked() -> None:
    revoked = decided(loaded(16, {5: TabletLoad(21 * GIB)}, Resize(ResizeKind.SPLIT, 4, (12345,))))
    assert revoked is not None and revoked.resize == Resize(ResizeKind.NONE, 5)
    assert revoked.reason == "a tablet is there no more"


# Readiness and pairs


def test_a_split_is_ready_when_every_replica_said_its_number() -> None:
    hosts = hosts_of(("dc1", "a", 1), ("dc1", "a", 1))
    rights = even_rights(4)
    one = map_of(1, setting(dc1=2), [(right, ((NodeId(1), 0), (NodeId(2), 0))) for right in rights], 1)
    split = Resize(ResizeKind.SPLIT, 5)
    said = {NodeId(node): {1: dict.fromkeys(rights, 5)} for node in (1, 2)}
    assert unready(one, split, said, hosts) == []
    assert unready(one, Resize(ResizeKind.SPLIT, 6), said, hosts) == [(1, 4), (2, 4)], "another number"
    late = {**said, NodeId(2): {1: dict.fromkeys(rights[1:], 5)}}
    assert unready(one, split, late, hosts) == [(2, 1)]
    assert unready(one, Resize(ResizeKind.SPLIT, 5, (rights[2],)), late, hosts) == [], (
        "of that tablet all are"
    )
    moved = one.with_replicas({rights[0]: ((NodeId(1), 0), (NodeId(3), 0))}, 2)
    assert unready(moved, split, said, [*hosts, Host(NodeId(3), "dc1", "a")]) == [(3, 1)]
    for bad in (Host(NodeId(2), "dc1", "a", is_excluded=True), Host(NodeId(2), "dc1", "a", 1, Drain.REMOVE)):
        assert unready(one, split, said, [hosts[0], bad]) == [(2, 4)]
    assert unready(one, split, said, hosts[:1]) == [(2, 4)], "who has left is not ready"


@pytest.mark.parametrize("seed", range(10))
def test_pairs_come_together_and_are_merged(seed: int) -> None:
    rng = random.Random(seed)
    hosts = hosts_of(*[("dc1", rack, 2) for rack in "abc" for _ in range(2)])
    one = scattered(1, rng.choice((8, 9, 15)), setting(dc1=rng.choice((2, 3))), hosts, rng)
    rights = [tablet.right for tablet in one.tablets()]
    merge = Resize(ResizeKind.MERGE, 1, (), rng.choice(rights[::2]) if len(rights) % 2 else None)
    carried = Carried(hosts, [BalancedTable(one, resize=merge)], measured(hosts, [one]))
    wanted = len(apart(one, merge))
    carried.run()
    carried.check()
    after = carried.maps[1]
    assert wanted and not apart(after, merge) and {move.why for move in carried.moved} == {Why.MERGE}
    assert resized(after, merge, 9).count == (len(rights) + 1) // 2


def test_a_replica_goes_to_the_nearest_place() -> None:
    hosts = hosts_of(*[("dc1", rack, 2) for rack in "aabb"])
    first, second = even_rights(2)
    merge = Resize(ResizeKind.MERGE, 1)
    one = map_of(
        1,
        setting(dc1=2),
        [(first, ((NodeId(1), 1), (NodeId(3), 0))), (second, ((NodeId(4), 0), (NodeId(1), 0)))],
        1,
    )
    moves = moves_together(one, merge, hosts, [], {second: 77})
    assert [(m.kind, m.source, m.target, m.bytes) for m in moves] == [
        (MoveKind.INTRANODE, (1, 0), (1, 1), 77)
    ]
    one = one.with_replicas({second: ((NodeId(4), 0), (NodeId(1), 1))}, 2)
    moves = moves_together(one, merge, hosts, [], {})
    assert [(m.kind, m.source, m.target) for m in moves] == [(MoveKind.MIGRATION, (4, 0), (3, 0))]
    assert not moves_together(one, merge, hosts, [(1, first)], {}), "one of the pair is on its way"
    hosts[2] = Host(NodeId(3), "dc1", "b", 2, Drain.LEAVE)
    assert not moves_together(one, merge, hosts, [], {}), "a node of the pair drains"


def in_one_dc(node: NodeId) -> str:
    return "dc1"


def test_sizes_of_tables() -> None:
    one = map_of(
        1, setting(dc1=2), [(right, ((NodeId(1), 0), (NodeId(2), 0))) for right in even_rights(2)], 1
    )
    left, right = even_rights(2)
    loads = {left: TabletLoad(10, 1.0, 2.0), right: TabletLoad(30)}
    nodes = {
        NodeId(1): NodeLoad(9, 0.0, {1: loads}),
        NodeId(2): NodeLoad(9, 0.0, {1: {left: TabletLoad(20)}}),
    }
    statistics = LoadStatistics(1, nodes)
    assert average_bytes(one, statistics, in_one_dc) is None
    assert tablet_loads(one, statistics) == {left: TabletLoad(20, 1.0, 2.0), right: TabletLoad(30)}
    complete = statistics.moved(1, right, NodeId(1), NodeId(2))
    other = one.with_replicas({right: ((NodeId(2), 0),)}, 2)
    assert average_bytes(other, complete, in_one_dc) == (10 + 20 + 30) / 3


def test_the_average_size_is_of_replicas_that_keep_data() -> None:
    """The second of each tablet is a witness: what it holds says nothing, and it may have told nothing."""
    right, placed = even_rights(1)[0], ((NodeId(1), 0), (NodeId(2), 0))
    witnessed = Replication("NetworkTopologyStrategy", (("dc1", -1), ("dc1", 2)))
    statistics = LoadStatistics(1, {NodeId(1): NodeLoad(9, 0.0, {1: {right: TabletLoad(10)}})})
    assert average_bytes(map_of(1, witnessed, [(right, placed)], 1), statistics, in_one_dc) == 10
    assert average_bytes(map_of(1, setting(dc1=2), [(right, placed)], 1), statistics, in_one_dc) is None
