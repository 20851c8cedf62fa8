"""A column that is added again after a drop shows what was written after the time of the drop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.testing import SimulatedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(3) as made:
        made.execute(
            "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        yield made


def filled(cluster: SimulatedCluster, name: str, kind: str = "int") -> str:
    """A table with x written at 100 in one row and at 200 in another; the third row has nothing but x."""
    table = f"ks.{name}"
    cluster.execute(f"CREATE TABLE {table} (k int, c int, x {kind}, y int, PRIMARY KEY (k, c))")
    for c, at in ((1, 100), (2, 200)):
        cluster.execute(f"INSERT INTO {table} (k, c, x, y) VALUES (1, {c}, {c}, 0) USING TIMESTAMP {at}")
        cluster.execute(f"UPDATE {table} USING TIMESTAMP {at} SET x = {c} WHERE k = 1 AND c = {c + 2}")
    return table


def rows(cluster: SimulatedCluster, table: str) -> list[tuple[int, int | None]]:
    return [tuple(row) for row in cluster.execute(f"SELECT c, x FROM {table} WHERE k = 1")]


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("USING TIMESTAMP 50", [(1, 1), (2, 2), (3, 1), (4, 2)]),
        ("USING TIMESTAMP 100", [(1, None), (2, 2), (4, 2)]),
        ("USING TIMESTAMP 200", [(1, None), (2, None)]),
        ("", [(1, None), (2, None)]),
    ],
)
def test_cells_newer_than_the_drop_show_again(
    cluster: SimulatedCluster, at: str, shown: list[tuple[int, int | None]]
) -> None:
    table = filled(cluster, f"t{len(shown)}_{at[-3:].strip() or 'now'}")
    cluster.execute(f"ALTER TABLE {table} DROP x {at}")
    assert [row.c for row in cluster.execute(f"SELECT * FROM {table} WHERE k = 1")] == [1, 2]
    cluster.execute(f"ALTER TABLE {table} ADD x int")
    assert rows(cluster, table) == shown
    live = [row for row in shown if row[1] is not None]
    found = cluster.execute(f"SELECT c, x FROM {table} WHERE k = 1 AND x >= 0 ALLOW FILTERING")
    assert [tuple(row) for row in found] == live
    assert cluster.execute(f"SELECT count(x) FROM {table}")[0][0] == len(live)
    cluster.execute(f"INSERT INTO {table} (k, c, x) VALUES (1, 9, 9)")
    assert rows(cluster, table) == [*shown, (9, 9)]


def test_what_is_dead_stays_dead_when_it_is_dropped_again_for_an_earlier_time(
    cluster: SimulatedCluster,
) -> None:
    table = filled(cluster, "twice")
    cluster.execute(f"ALTER TABLE {table} DROP x USING TIMESTAMP 150")
    cluster.execute(f"ALTER TABLE {table} ADD x int")
    cluster.execute(f"ALTER TABLE {table} DROP x USING TIMESTAMP 10")
    cluster.execute(f"ALTER TABLE {table} ADD x int")
    assert rows(cluster, table) == [(1, None), (2, 2), (4, 2)]
    cluster.execute(f"ALTER TABLE {table} DROP x")
    cluster.execute(f"ALTER TABLE {table} ADD x int")
    assert rows(cluster, table) == [(1, None), (2, None)]


def test_conditions_indexes_and_views_do_not_see_what_is_dead(cluster: SimulatedCluster) -> None:
    table = filled(cluster, "uses")
    cluster.execute(f"ALTER TABLE {table} DROP x USING TIMESTAMP 150")
    cluster.execute(f"ALTER TABLE {table} ADD x int")
    cluster.execute(f"CREATE INDEX ON {table} (x)")
    cluster.execute(
        f"CREATE MATERIALIZED VIEW {table}_view AS SELECT * FROM {table} "
        "WHERE x IS NOT NULL AND k IS NOT NULL AND c IS NOT NULL PRIMARY KEY (x, k, c)"
    )
    cluster.advance(5)
    assert cluster.execute(f"SELECT c FROM {table} WHERE x = 1") == []
    assert sorted(cluster.execute(f"SELECT c FROM {table} WHERE x = 2")) == [(2,), (4,)]
    assert sorted(cluster.execute(f"SELECT x, c FROM {table}_view")) == [(2, 2), (2, 4)]
    # A late write that is older than the drop.
    cluster.execute(f"UPDATE {table} USING TIMESTAMP 140 SET x = 5 WHERE k = 1 AND c = 1")
    cluster.advance(1)
    assert cluster.execute(f"SELECT c FROM {table} WHERE x = 5") == []
    assert sorted(cluster.execute(f"SELECT x, c FROM {table}_view")) == [(2, 2), (2, 4)]
    refused = cluster.execute(f"UPDATE {table} SET y = 1 WHERE k = 1 AND c = 1 IF x = 1")[0]
    assert tuple(refused) == (False, None)
    assert cluster.execute(f"UPDATE {table} SET y = 1 WHERE k = 1 AND c = 2 IF x = 2")[0][0]


def test_static_columns_and_collections(cluster: SimulatedCluster) -> None:
    cluster.execute("CREATE TABLE ks.s (k int, c int, x map<int, int> static, PRIMARY KEY (k, c))")
    cluster.execute("INSERT INTO ks.s (k, c) VALUES (1, 1)")
    for key, at in ((1, 100), (2, 200)):
        cluster.execute(f"UPDATE ks.s USING TIMESTAMP {at} SET x[{key}] = {key} WHERE k = 1")
    cluster.execute("ALTER TABLE ks.s DROP x USING TIMESTAMP 100")
    cluster.execute("ALTER TABLE ks.s ADD x map<int, int> static")
    assert cluster.execute("SELECT c, x FROM ks.s") == [(1, {2: 2})]


def test_the_drop_stays_listed(cluster: SimulatedCluster) -> None:
    table = filled(cluster, "listed")
    cluster.execute(f"ALTER TABLE {table} DROP x USING TIMESTAMP 150000")
    cluster.execute(f"ALTER TABLE {table} ADD x int")
    found = cluster.execute(
        "SELECT column_name, type FROM system_schema.dropped_columns "
        "WHERE keyspace_name = 'ks' AND table_name = 'listed'"
    )
    assert [tuple(row) for row in found] == [("x", "int")]
