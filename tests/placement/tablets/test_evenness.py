"""A table of unlike tablets gets even by itself, with as many as it is asked for, and then rests."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.tablets.counts import CountedTable, CountSettings
from lockstep.placement.tablets.evenness import SLIVER, WIDE, in_even_ones, is_uneven, width
from lockstep.placement.tablets.load import GIB, TabletLoad
from lockstep.placement.tablets.map import TabletMap, map_of
from lockstep.placement.tablets.resize import (
    EVEN_MAX,
    Decided,
    Resize,
    ResizedTable,
    ResizeKind,
    decide,
    resized,
)
from lockstep.schema.tablet_options import TabletHints
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import TARGET_TABLET_BYTES
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .clusters import setting

RACKS = {("dc1", "r1"): 3}
ON_ALL = tuple((NodeId(node), 0) for node in (1, 2, 3))


def ring(count: int, seed: int) -> TabletMap:
    """A map with the bounds of a ring of random tokens."""
    rng = random.Random(seed)
    rights = [*sorted({rng.randrange(TOKEN_MIN, TOKEN_MAX) for _ in range(count - 1)}), TOKEN_MAX]
    return map_of(1, setting(dc1=3), [(right, ON_ALL) for right in rights], 1)


class Table:
    """With rows and requests spread evenly over tokens."""

    def __init__(self, map_: TabletMap, gib: float, rate: float = 0.0, **hints: int) -> None:
        self.map, self.gib, self.rate = map_, gib, rate
        self.hints = (TabletHints(**hints),)  # type: ignore[arg-type]
        self.sequence = 0
        self.kept = 0
        self.decided: list[Resize] = []

    def look(self, standing: Resize | None = None) -> Decided | None:
        loads = {
            one.right: TabletLoad(
                int(self.gib * GIB * in_even_ones(width(one), 1)), self.rate * in_even_ones(width(one), 1)
            )
            for one in self.map.tablets()
        }
        average = sum(load.bytes for load in loads.values()) / self.map.count
        counted = CountedTable(1, {("dc1", "r1"): 3.0}, self.hints, 0, self.map.count, average)
        known = standing or Resize(ResizeKind.NONE, self.sequence)
        found = decide([ResizedTable(self.map, counted, known, loads, self.kept)], RACKS, CountSettings())
        return found[0] if found else None

    def run(self) -> int:
        """Decisions until there is none; each is kept while it stands."""
        for number in range(80):
            found = self.look()
            if found is None:
                return number
            assert self.look(found.resize) is None, "what was decided is kept by the same sizes"
            assert len(found.resize.rights) <= EVEN_MAX
            self.decided.append(found.resize)
            self.map = resized(self.map, found.resize, number + 2)
            self.sequence = found.resize.sequence
        raise AssertionError("decisions do not end")

    def shares(self, count: int) -> list[float]:
        return sorted(in_even_ones(width(one), count) for one in self.map.tablets())


def test_a_ring_of_three_nodes_with_sixteen_tokens_becomes_about_sixteen_even_tablets() -> None:
    table = Table(ring(48, 1), 0.001)
    assert max(table.shares(16)) > 1.4 and min(table.shares(16)) < 0.001
    assert table.run() <= 6
    assert 16 <= table.map.count <= 24
    assert max(table.shares(16)) < WIDE and min(table.shares(16)) > SLIVER


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 200),
    st.integers(0, 1 << 30),
    st.sampled_from((0.0, 1.0, 60.0, 200.0, 900.0)),
    st.sampled_from((0.0, 300.0, 100_000.0)),
    st.sampled_from(({}, {"min_tablet_count": 64}, {"max_tablet_count": 8}, {"min_tablet_count": 1})),
)
def test_decisions_end_and_count_rules_hold(
    count: int, seed: int, gib: float, rate: float, hints: dict[str, int]
) -> None:
    table = Table(ring(count, seed), gib, rate, **hints)
    table.run()
    least = hints.get("min_tablet_count", 8 if "max_tablet_count" in hints else 10)
    most = hints.get("max_tablet_count", 1 << 18)
    ended = table.map.count
    assert ended >= min(least, count) or gib < 0, "no fewer than are asked for"
    assert ended <= max(most, 2 * most - 1)
    if not hints and not rate:
        goal = max(16, gib * GIB / TARGET_TABLET_BYTES)
        assert 0.5 * goal <= ended <= 2.5 * goal
        assert max(table.shares(ended)) < 2.5, "and none is much wider than others"


def test_hot_and_large_neighbours_are_not_merged() -> None:
    table = Table(ring(48, 1), 0.001)
    one, two = list(table.map.tablets())[3:5]
    counted = CountedTable(1, {("dc1", "r1"): 3.0}, (), 0, 48, 1.0)
    hot = {tablet.right: TabletLoad(0, 1.0) for tablet in table.map.tablets()}
    hot[one.right] = TabletLoad(0, 499.0)
    hot[two.right] = TabletLoad(0, 499.0)
    (found,) = decide([ResizedTable(table.map, counted, Resize(), hot)], RACKS, CountSettings())
    assert found.resize.kind is ResizeKind.MERGE and one.right not in found.resize.rights
    large = {right: TabletLoad(TARGET_TABLET_BYTES // 2, 1.0) for right in hot}
    table.kept = 0
    counted = CountedTable(1, {("dc1", "r1"): 3.0}, (), 0, 48, float(TARGET_TABLET_BYTES // 2))
    for found in decide([ResizedTable(table.map, counted, Resize(), large)], RACKS, CountSettings()):
        assert found.resize.kind is ResizeKind.SPLIT, "each pair has a target"


@pytest.mark.parametrize("kept", [0, 30])
def test_a_number_given_by_hand_is_kept(kept: int) -> None:
    table = Table(ring(48, 1), 0.001)
    table.kept = kept
    table.run()
    assert table.map.count >= max(16, kept)
    table = Table(ring(48, 1), 0.001, max_tablet_count=8)
    table.kept = kept
    table.run()
    assert table.map.count <= 15, "a maximum counts before it"


def test_what_was_merged_by_hand_is_not_split_for_evenness() -> None:
    table = Table(ring(48, 1), 0.001)
    assert max(table.shares(16)) < WIDE
    first = min(table.map.tablets(), key=width).right
    table.map = resized(table.map, Resize(ResizeKind.MERGE, 1, (first,), by_hand=True), 2)
    table.kept = 47
    assert is_uneven(list(table.map.tablets())) and table.look() is None


def test_even_tables_are_none_of_this() -> None:
    assert not is_uneven(list(Table(ring(1, 1), 1).map.tablets()))
    split = map_of(1, setting(dc1=3), [(-5, ON_ALL), (TOKEN_MAX, ON_ALL)], 1)
    assert not is_uneven(list(split.tablets())) and is_uneven(list(ring(48, 1).tablets()))
