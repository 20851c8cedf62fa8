"""A newcomer gets its share of the tablets by itself, and gives it back before it leaves: nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect

pytestmark = pytest.mark.slow

FIRST = "127.0.118.1"
TABLETS = 16


def held(cluster: LocalCluster) -> dict[int, int]:
    nodes = cluster.any_admin().get("/v1/tablets", keyspace="h", table="t")["nodes"]
    return {node["node"]: node["tablets"] for node in nodes}


def until(reached: Callable[[], bool], cluster: LocalCluster) -> None:
    deadline_s = time.monotonic() + 180
    while not reached():
        assert time.monotonic() < deadline_s, held(cluster)
        time.sleep(0.3)


def test_a_newcomer_gets_its_share_and_a_leaver_gives_it_back(tmp_path: Path) -> None:
    with LocalCluster.create("spreading", 3, first_address=FIRST, ports=PORTS, home=tmp_path) as cluster:
        cluster.start()
        driver = connect([f"127.0.118.{n}" for n in range(1, 4)])
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE h WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} "
            f"AND tablets = {{'initial': {TABLETS}}}"
        )
        session.execute("CREATE TABLE h.t (k int PRIMARY KEY, v int)")
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
            cluster.add()
            until(lambda: held(cluster).get(4) == TABLETS * 3 // 4, cluster)
            wanted = cluster.any_admin().post("/v1/requests", {"kind": "decommission", "node": 4})
            path = f"/v1/requests/{wanted['id']}"
            until(lambda: cluster.any_admin().get(path)["state"] == "done", cluster)
        finally:
            ended.set()
            writer.join()
        assert held(cluster) == dict.fromkeys((1, 2, 3), TABLETS)
        select = session.prepare("SELECT v FROM h.t WHERE k = ?")
        select.consistency_level = ConsistencyLevel.QUORUM
        found = {key: session.execute(select, (key,)).one() for key in acknowledged}
        lost = [key for key, value in acknowledged.items() if found[key] is None or found[key].v != value]
        assert len(acknowledged) > 200 and lost == []
        driver.shutdown()
