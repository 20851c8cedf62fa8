"""How many tablets tables are to have, rule by rule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.tablets.counts import CountedTable, CountSettings, counts, racks_of
from lockstep.placement.tablets.load import GIB
from lockstep.schema.tablet_options import TabletHints

RACKS = {("dc1", "a"): 8, ("dc1", "b"): 8, ("dc1", "c"): 8}
THREE = dict.fromkeys(RACKS, 1.0)
SETTINGS = CountSettings()
#: Settings in which no rule but the one at hand says anything.
QUIET = CountSettings(per_shard_initial=0.0)


def wish(table: CountedTable, settings: CountSettings = QUIET) -> tuple[int, str]:
    found = counts([table], RACKS, settings)[table.group]
    return found.count, found.rule


@pytest.mark.parametrize(
    ("table", "count", "rule"),
    [
        (CountedTable(1, THREE), 1, "one tablet"),
        (CountedTable(1, THREE, (), 5), 8, "initial of the keyspace"),
        (CountedTable(1, THREE, (TabletHints(17),)), 32, "min_tablet_count"),
        (CountedTable(1, THREE, (TabletHints(17), TabletHints(40))), 64, "min_tablet_count"),
        (
            CountedTable(1, THREE, (TabletHints(expected_data_size_in_gb=100),)),
            32,
            "expected_data_size_in_gb",
        ),
        (
            CountedTable(1, THREE, (TabletHints(min_per_shard_tablet_count=4),)),
            32,
            "min_per_shard_tablet_count",
        ),
        (CountedTable(1, THREE, (TabletHints(64, 16),)), 16, "max_tablet_count"),
        (CountedTable(1, THREE, (TabletHints(max_tablet_count=100),), 512), 64, "max_tablet_count"),
    ],
)
def test_rules_of_options(table: CountedTable, count: int, rule: str) -> None:
    assert wish(table) == (count, rule)


def test_a_table_of_which_nothing_is_said_has_ten_tablets_on_each_shard() -> None:
    # 3 racks of 8 shards, one replica in each: 80 tablets make ten on each shard.
    assert wish(CountedTable(1, THREE), SETTINGS) == (128, "tablets on each shard")
    assert wish(CountedTable(1, THREE, (), 4), SETTINGS) == (4, "initial of the keyspace")


@pytest.mark.parametrize(
    ("average_gb", "count"),
    [(11, 256), (10, 64), (6, 64), (4, 64), (2.5, 64), (2.4, 32), (0.1, 2), (30, 512)],
)
def test_rules_of_size(average_gb: float, count: int) -> None:
    table = CountedTable(1, THREE, (), 0, 64, average_gb * GIB)
    assert wish(table)[0] == count


def test_tables_that_lie_together_share_the_size_of_a_tablet() -> None:
    pair = CountedTable(1, THREE, (TabletHints(), TabletHints()), 0, 64, 6 * GIB)
    assert wish(pair)[0] == 256, "two tables: half the target each"


def test_a_table_that_nobody_measured_stays_as_large_as_it_is() -> None:
    assert wish(CountedTable(1, THREE, (), 0, 64)) == (64, "as many as there are: its size is not known")
    many = [CountedTable(group, THREE, (), 0, 4096) for group in range(1, 9)]
    assert all(found.count == 4096 for found in counts(many, RACKS, QUIET).values())


def test_an_odd_count_of_the_right_size_stays() -> None:
    assert wish(CountedTable(1, THREE, (), 0, 257, 5.0 * GIB))[0] == 257


def test_scenario_21_seventy_tables_on_a_small_rack_stay_below_twice_the_goal() -> None:
    racks = {("dc1", "a"): 8, ("dc1", "b"): 80, ("dc2", "a"): 80}
    touching = [CountedTable(group, {("dc1", "a"): 1.0, ("dc1", "b"): 1.0}) for group in range(70)]
    apart = [CountedTable(group, {("dc2", "a"): 1.0}) for group in range(70, 75)]
    found = counts([*touching, *apart], racks, SETTINGS)
    on_small = sum(found[table.group].count for table in touching) / 8
    assert 50 < on_small <= 200
    alone = counts(apart, racks, SETTINGS)
    assert all(found[table.group] == alone[table.group] for table in apart), "nobody else is scaled"
    assert "scaled to 100 tablets" in found[0].rule


def test_replicas_of_racks() -> None:
    racks = {("dc1", "a"): 8, ("dc1", "b"): 8, ("dc1", "c"): 0, ("dc2", "a"): 1}
    assert racks_of((("dc1", 3), ("dc2", 0)), racks, {}) == {("dc1", "a"): 1.5, ("dc1", "b"): 1.5}
    assert racks_of((("dc1", 1), ("dc2", 2)), racks, {"dc1": ["b"]}) == {("dc1", "b"): 1.0, ("dc2", "a"): 2.0}
    assert racks_of((("dc9", 3),), racks, {}) == {}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 600),
            st.sampled_from((0, 1, 2, 8, 64, 512)),
            st.sampled_from((0, 1, 7, 33)),
            st.one_of(st.none(), st.floats(0, 1e12)),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_wishes_keep_their_bounds(drawn: list[tuple[int, int, int, float | None]]) -> None:
    tables = [
        CountedTable(group, THREE, (TabletHints(0, most),), initial, current, size)
        for group, (initial, most, current, size) in enumerate(drawn)
    ]
    for table in tables:
        found = counts(tables, RACKS, SETTINGS)[table.group]
        assert found.count == table.current or found.count & (found.count - 1) == 0
        most = table.hints[0].max_tablet_count
        assert found.count >= 1 and (not most or found.count <= most)
        if table.average_bytes is None and not most:
            assert found.count >= table.current
