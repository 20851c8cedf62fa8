"""A newcomer gets its share of the tablets by itself, and gives it back before it leaves: nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect, make_tablets, writing

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
        make_tablets(session, TABLETS)
        with writing(session):
            cluster.add()
            until(lambda: held(cluster).get(4) == TABLETS * 3 // 4, cluster)
            wanted = cluster.any_admin().post("/v1/requests", {"kind": "decommission", "node": 4})
            path = f"/v1/requests/{wanted['id']}"
            until(lambda: cluster.any_admin().get(path)["state"] == "done", cluster)
        assert held(cluster) == dict.fromkeys((1, 2, 3), TABLETS)
        driver.shutdown()
