"""A process that was killed gets what it missed by hints, and then answers for itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import ExecutionProfile
from cassandra.policies import WhiteListRoundRobinPolicy

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect

pytestmark = pytest.mark.slow

FIRST = "127.0.105.1"
POINTS = ["127.0.105.1", "127.0.105.2", "127.0.105.3"]
ROWS = 200


def test_a_killed_replica_has_what_it_missed_before_anybody_reads(tmp_path: Path) -> None:
    made = LocalCluster.create("hinted", 3, first_address=FIRST, ports=PORTS, home=tmp_path)
    with made as cluster:
        cluster.start()
        driver = connect(POINTS[:2])
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE h WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        session.execute("CREATE TABLE h.t (k int PRIMARY KEY, v text)")
        insert = session.prepare("INSERT INTO h.t (k, v) VALUES (?, ?)")
        insert.consistency_level = ConsistencyLevel.QUORUM
        cluster.kill("n3")
        for future in [session.execute_async(insert, (key, f"value {key}")) for key in range(ROWS)]:
            future.result()
        hosts = [driver.metadata.get_host(point) for point in POINTS[:2]]

        def pending() -> int:
            query = "SELECT hints FROM system_views.pending_hints"
            return sum(row.hints for host in hosts for row in session.execute(query, host=host))

        deadline_s = time.monotonic() + 30
        while pending() < ROWS:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        cluster.start(["n3"])
        while pending():
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        driver.shutdown()
        cluster.kill("n1", "n2")
        alone = connect(POINTS[2:])
        only = ExecutionProfile(
            WhiteListRoundRobinPolicy(POINTS[2:]), consistency_level=ConsistencyLevel.ONE, request_timeout=20
        )
        alone.add_execution_profile("only", only)
        rows = alone.connect().execute("SELECT k, v FROM h.t", execution_profile="only")
        assert sorted((row.k, row.v) for row in rows) == [(key, f"value {key}") for key in range(ROWS)]
        alone.shutdown()
