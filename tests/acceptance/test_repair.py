"""A replica of real processes that missed writes is made equal by `lockstep repair`, and by nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import ADMIN_PORT, PORTS, connect, lockstep

pytestmark = pytest.mark.slow

FIRST = "127.0.106.1"
POINTS = ["127.0.106.1", "127.0.106.2", "127.0.106.3"]
HOST = f"{FIRST}:{ADMIN_PORT}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"hints": {"hinted_handoff_enabled": False}}
    made = LocalCluster.create(
        "repair", 3, settings=settings, first_address=FIRST, ports=PORTS, home=tmp_path
    )
    with made:
        made.start()
        yield made


def test_a_node_that_was_away_is_repaired(cluster: LocalCluster) -> None:
    driver = connect(POINTS)
    session = driver.connect()
    session.execute(
        "CREATE KEYSPACE r WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    session.execute("CREATE TABLE r.t (k int, c int, v text, PRIMARY KEY (k, c))")
    insert = session.prepare("INSERT INTO r.t (k, c, v) VALUES (?, ?, ?)")
    insert.consistency_level = ConsistencyLevel.ALL
    for key in range(100):
        session.execute(insert, (key, 0, "before"))
    cluster.kill("n3")
    insert.consistency_level = ConsistencyLevel.QUORUM
    for key in range(0, 100, 2):
        session.execute(insert, (key, 1, "while away"))
    for key in range(1, 100, 10):
        session.execute(
            SimpleStatement(f"DELETE FROM r.t WHERE k = {key}", consistency_level=ConsistencyLevel.QUORUM)
        )
    driver.shutdown()

    cluster.start(["n3"])

    plan = lockstep("repair", "r.t", "--preview", "--host", HOST)
    assert plan.code == 0, plan.err
    assert "would be refused" not in plan.out and "repairs.next_id: 1 -> 2" in plan.out
    first = lockstep("repair", "r", "--host", HOST, "-o", "json")
    assert first.code == 0, first.err
    told = json.loads(first.out)
    assert told["state"] == "done"
    assert told["progress"]["changes_sent"] >= 60
    second = lockstep("repair", "r", "--host", f"{POINTS[1]}:{ADMIN_PORT}", "-o", "json")
    assert json.loads(second.out)["progress"]["changes_sent"] == 0, "nothing is lacking any more"

    cluster.kill("n1")
    cluster.kill("n2")
    alone = connect([POINTS[2]])
    session = alone.connect()
    select = SimpleStatement("SELECT k, c FROM r.t", consistency_level=ConsistencyLevel.ONE)
    rows = {(row.k, row.c) for row in session.execute(select)}
    wanted = {(key, 0) for key in range(100) if key % 10 != 1} | {(key, 1) for key in range(0, 100, 2)}
    assert rows == wanted
    repairs = list(session.execute("SELECT id, state FROM system_views.repairs"))
    assert [row.state for row in sorted(repairs)][-2:] == ["done", "done"]
    alone.shutdown()
