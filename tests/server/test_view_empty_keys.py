"""Rows of materialized views whose key is empty: an empty text or blob is a value, and no null."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.testing import CqlError, SimulatedCluster

_SHAPES = {
    "alone": "PRIMARY KEY (v, k)",
    "part": "PRIMARY KEY ((k, v))",
    "first": "PRIMARY KEY ((v, k))",
    "behind": "PRIMARY KEY (k, v)",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(3) as made:
        made.execute(
            "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        yield made


def make_views(cluster: SimulatedCluster, table: str) -> None:
    for name, key in _SHAPES.items():
        cluster.execute(
            f"CREATE MATERIALIZED VIEW {table}_{name} AS SELECT * FROM {table} "
            f"WHERE k IS NOT NULL AND v IS NOT NULL {key}"
        )


def seen(cluster: SimulatedCluster, table: str) -> dict[str, list[tuple[int, object, int | None]]]:
    return {
        name: sorted(tuple(row) for row in cluster.execute(f"SELECT k, v, w FROM {table}_{name}"))
        for name in _SHAPES
    }


@pytest.mark.parametrize(("kind", "empty", "full"), [("text", "", "x"), ("blob", b"", b"x")])
@pytest.mark.parametrize("views_first", [True, False], ids=["written", "built"])
def test_a_view_shows_rows_with_empty_keys(
    cluster: SimulatedCluster, kind: str, empty: object, full: object, views_first: bool
) -> None:
    table = f"ks.t_{kind}_{views_first}"
    cluster.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v {kind}, w int)")
    if views_first:
        make_views(cluster, table)
    insert = f"INSERT INTO {table} (k, v, w) VALUES (?, ?, ?)"
    for k, v in ((1, empty), (2, full), (3, None)):
        cluster.execute(insert, (k, v, 0))
    if not views_first:
        make_views(cluster, table)
    cluster.advance(5)
    there = [(1, empty, 0), (2, full, 0)]
    assert seen(cluster, table) == dict.fromkeys(_SHAPES, there)
    cluster.execute(f"UPDATE {table} SET v = ?, w = 1 WHERE k = 2", (empty,))
    cluster.execute(f"UPDATE {table} SET v = ?, w = 1 WHERE k = 1", (full,))
    cluster.advance(1)
    assert seen(cluster, table) == {name: [(1, full, 1), (2, empty, 1)] for name in _SHAPES}
    cluster.execute(f"UPDATE {table} SET v = null WHERE k = 2")
    cluster.advance(1)
    assert seen(cluster, table) == {name: [(1, full, 1)] for name in _SHAPES}


def test_a_base_table_takes_no_empty_partition_key_and_a_view_is_read_by_one(
    cluster: SimulatedCluster,
) -> None:
    cluster.execute("CREATE TABLE ks.b (k text PRIMARY KEY, v text)")
    cluster.execute(
        "CREATE MATERIALIZED VIEW ks.by_v AS SELECT * FROM ks.b WHERE k IS NOT NULL AND v IS NOT NULL "
        "PRIMARY KEY (v, k)"
    )
    with pytest.raises(CqlError, match="Key may not be empty"):
        cluster.execute("INSERT INTO ks.b (k, v) VALUES ('', '')")
    cluster.execute("INSERT INTO ks.b (k, v) VALUES ('a', '')")
    assert cluster.execute("SELECT k, v FROM ks.by_v") == [("a", "")]
