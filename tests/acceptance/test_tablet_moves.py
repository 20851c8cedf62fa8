"""Every tablet of a table is moved once by hand while a node is killed and started: no write is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect

pytestmark = pytest.mark.slow

FIRST = "127.0.117.1"
POINTS = [f"127.0.117.{n}" for n in range(1, 5)]
TABLETS = 8


def tablets(cluster: LocalCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.any_admin().get("/v1/tablets", keyspace="h", table="t")["tablets"]
    return found


def moved(cluster: LocalCluster, number: int) -> None:
    """Asked of n1, until its transition is over."""
    one = tablets(cluster)[number]
    on = [replica["node"] for replica in one["replicas"]]
    target = next(node for node in range(1, 5) if node not in on)
    source = next(node for node in on if node != 1)
    wanted = {"keyspace": "h", "table": "t", "tablet": number, "from": source, "to": target}
    cluster.any_admin().post("/v1/tablets/move", wanted)
    deadline_s = time.monotonic() + 120
    while tablets(cluster)[number]["stage"]:
        assert time.monotonic() < deadline_s, tablets(cluster)[number]
        time.sleep(0.1)
    there = {replica["node"] for replica in tablets(cluster)[number]["replicas"]}
    assert there == {*on, target} - {source}


def test_no_acknowledged_write_is_lost_while_all_tablets_move(tmp_path: Path) -> None:
    made = LocalCluster.create("moving", 4, first_address=FIRST, ports=PORTS, home=tmp_path)
    with made as cluster:
        cluster.start()
        driver = connect(POINTS[:3])
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE h WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} "
            f"AND tablets = {{'initial': {TABLETS}}}"
        )
        session.execute("CREATE TABLE h.t (k int PRIMARY KEY, v int)")
        # Else it moves them again.
        cluster.any_admin().post("/v1/tablets/balance", {"on": False})
        insert = session.prepare("INSERT INTO h.t (k, v) VALUES (?, ?)")
        insert.consistency_level = ConsistencyLevel.QUORUM
        acknowledged: dict[int, int] = {}
        ended = threading.Event()

        def write() -> None:
            key = 0
            while not ended.is_set():
                try:
                    session.execute(insert, (key, key * 3), timeout=5)
                except Exception:
                    time.sleep(0.05)
                else:
                    acknowledged[key] = key * 3
                key += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(len(tablets(cluster))):
                if number == 2:
                    cluster.kill("n4")
                    time.sleep(1)
                    again = threading.Timer(4, cluster.start, (["n4"],))
                    again.start()
                moved(cluster, number)
            again.join()
        finally:
            ended.set()
            writer.join()
        select = session.prepare("SELECT v FROM h.t WHERE k = ?")
        select.consistency_level = ConsistencyLevel.QUORUM
        found = {key: session.execute(select, (key,)).one() for key in acknowledged}
        lost = [key for key, value in acknowledged.items() if found[key] is None or found[key].v != value]
        assert len(acknowledged) > 200 and lost == []
        driver.shutdown()
