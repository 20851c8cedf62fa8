"""How connectors for Spark and Flink read a table: range by range of the tokens that drivers see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.cluster import Cluster, Session
from cassandra.pool import Host

from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN
from tests.server.parts import CQL_PORT, Nodes

ROWS = 300


@pytest.fixture(scope="module")
def session(three: Nodes) -> Iterator[Session]:
    cluster = Cluster([three.members[0].address], port=CQL_PORT)
    session = cluster.connect()
    session.execute(
        "CREATE KEYSPACE scanned WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}"
    )
    session.execute("CREATE TABLE scanned.t (a text, b int, v int, PRIMARY KEY ((a, b)))")
    insert = session.prepare("INSERT INTO scanned.t (a, b, v) VALUES (?, ?, ?)")
    for row in range(ROWS):
        session.execute(insert, (f"key-{row}", row, row))
    yield session
    cluster.shutdown()


def ranges_of(session: Session) -> list[tuple[int, int]]:
    """(after, up to) between neighbours on the ring; the one over its end is split there."""
    ring = [token.value for token in session.cluster.metadata.token_map.ring]
    inner = itertools.pairwise(ring)
    return [(TOKEN_MIN, ring[0]), *inner, (ring[-1], TOKEN_MAX)]


def test_scans_of_all_ranges_between_tokens_find_every_row_once(session: Session) -> None:
    ranges = ranges_of(session)
    assert len(ranges) > 3 and ranges == sorted(ranges)
    scan = session.prepare(
        "SELECT a, b, token(a, b) FROM scanned.t WHERE token(a, b) > ? AND token(a, b) <= ?"
    )
    scan.fetch_size = 7
    replicas = session.cluster.metadata.token_map
    found: list[tuple[str, int]] = []
    for after, to in ranges:
        owners = replicas.get_replicas("scanned", replicas.token_class(to))
        assert len(owners) == 2
        rows = list(session.execute(scan, (after, to)))
        assert all(after < token <= to for _, _, token in rows)
        found += [(a, b) for a, b, _ in rows]
    assert sorted(found) == sorted((f"key-{row}", row) for row in range(ROWS))
    open_ended = session.execute("SELECT count(*) FROM scanned.t WHERE token(a, b) > %s", (ranges[0][1],))
    first = session.execute("SELECT count(*) FROM scanned.t WHERE token(a, b) <= %s", (ranges[0][1],))
    assert open_ended.one()[0] + first.one()[0] == ROWS


def test_nodes_tell_about_how_much_is_in_the_ranges_of_which_they_are_the_first_replica(
    session: Session,
) -> None:
    """Together those that drivers see, each once; so small a table is told exactly."""
    figures = "range_start, range_end, partitions_count, mean_partition_size"
    told: list[tuple[str, str, int, int]] = []
    where = "WHERE keyspace_name = 'scanned' AND table_name = 't'"
    for host in session.cluster.metadata.all_hosts():

        def read(text: str, host: Host = host) -> list[Any]:
            return [tuple(row) for row in session.execute(text, host=host)]

        found = read(f"SELECT {figures} FROM system.size_estimates {where}")
        for kind in ("primary", "local_primary"):
            text = f"SELECT {figures} FROM system.table_estimates {where} AND range_type = '{kind}'"
            assert read(text) == found
        assert len(read("SELECT * FROM system.size_estimates")) >= len(found)
        told += found
    ranges = ranges_of(session)
    last = (str(ranges[-1][0]), str(TOKEN_MIN))
    assert sorted((start, end) for start, end, _, _ in told) == sorted(
        [(str(after), str(to)) for after, to in ranges[:-1]] + [last]
    )
    assert sum(count for _, _, count, _ in told) == ROWS
    assert all((mean > 20) == (count > 0) for _, _, count, mean in told)
