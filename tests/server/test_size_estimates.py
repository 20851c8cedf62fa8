"""What connectors are told of a table's size, by a process on a disk."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.cluster import Cluster, Session
from cassandra.query import BatchStatement, BatchType, SimpleStatement

from lockstep.values.limits import SAMPLES_KEPT_MAX
from tests.server.parts import CQL_PORT, addresses
from tests.server.test_process import configured, running

PARTITIONS = 10_000
VALUE = "v" * 200


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    address = next(addresses())
    with running(configured(tmp_path_factory.mktemp("sizes"), address)):
        cluster = Cluster([address], port=CQL_PORT)
        session = cluster.connect()
        session.execute(
            "CREATE KEYSPACE s WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        yield session
        cluster.shutdown()


def filled(session: Session, name: str, rows: list[tuple[int, int]]) -> None:
    session.execute(f"CREATE TABLE s.{name} (k int, c int, v text, PRIMARY KEY (k, c))")
    insert = session.prepare(f"INSERT INTO s.{name} (k, c, v) VALUES (?, ?, '{VALUE}')")
    begun = []
    for some in range(0, len(rows), 100):
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.add_all([insert] * 100, rows[some : some + 100])
        begun.append(session.execute_async(batch))
    for answer in begun:
        answer.result()


def told(session: Session, name: str) -> tuple[int, float]:
    """(partitions in all ranges, mean size of one, by their numbers)."""
    text = "SELECT * FROM system.size_estimates WHERE keyspace_name = 's' AND table_name = %s"
    found: list[Any] = list(session.execute(text, (name,)))
    count = sum(row.partitions_count for row in found)
    return count, sum(row.partitions_count * row.mean_partition_size for row in found) / count


def test_figures_are_near_the_truth_and_follow_it(session: Session) -> None:
    filled(session, "narrow", [(key, 0) for key in range(PARTITIONS)])
    count, mean = told(session, "narrow")
    assert PARTITIONS / 1.5 < count < PARTITIONS * 1.5
    assert len(VALUE) <= mean < 2 * len(VALUE)
    filled(session, "wide", [(key, row) for key in range(20) for row in range(300)])
    count, mean = told(session, "wide")
    assert count == 20
    assert 300 * len(VALUE) <= mean < 2 * 300 * len(VALUE)
    session.execute("TRUNCATE s.narrow")
    began_s = time.monotonic()
    rows = list(session.execute("SELECT * FROM system.size_estimates WHERE keyspace_name = 's'"))
    assert time.monotonic() - began_s < 5
    assert {row.partitions_count for row in rows if row.table_name == "narrow"} == {0}


def test_a_read_of_all_tables_lacks_none(session: Session) -> None:
    """They are more than one question is about."""
    names = [f"t{number:03d}" for number in range(SAMPLES_KEPT_MAX + 6)]
    for name in names:
        session.execute(f"CREATE TABLE s.{name} (k int PRIMARY KEY)")
    session.execute("INSERT INTO s.t069 (k) VALUES (1)")
    for order in ("ASC", "DESC"):
        text = f"SELECT * FROM system.size_estimates WHERE keyspace_name = 's' ORDER BY table_name {order}"
        found: list[Any] = list(session.execute(SimpleStatement(text, fetch_size=100)))
        told = [name for name, _ in itertools.groupby(row.table_name for row in found)]
        assert [name for name in told if name in names] == sorted(names, reverse=order == "DESC")
        assert sum(row.partitions_count for row in found if row.table_name in names) == 1
