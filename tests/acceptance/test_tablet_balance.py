"""A newcomer gets its share of the tablets by itself, and gives it back before it leaves: nothing is lost.
Who takes a dead node's place is added once its tablets have other replicas, so that the next may be lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect, make_tablets, writing

pytestmark = pytest.mark.slow

FIRST = "127.0.118.1"
REPLACED = "127.0.119.81"
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


def test_nodes_are_replaced_one_after_the_other(tmp_path: Path) -> None:
    with LocalCluster.create("replaced", 4, first_address=REPLACED, ports=PORTS, home=tmp_path) as cluster:
        cluster.start()
        driver = connect([f"127.0.119.{n}" for n in (83, 84)])
        session = driver.connect()
        make_tablets(session, TABLETS)
        with writing(session):
            for name in ("n1", "n2"):
                node = cluster.node_id(name)
                cluster.kill(name)
                assert cluster.await_noticed([name], 30.0)
                cluster.add(replaces=name)
                assert held(cluster).get(node, 0) == 0
        assert sum(held(cluster).values()) == TABLETS * 3
        driver.shutdown()
