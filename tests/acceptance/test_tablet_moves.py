"""Every tablet of a table is moved once by hand while a node is killed and started: no write is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect, make_tablets, writing

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
        make_tablets(session, TABLETS)
        # Else it moves them again.
        cluster.any_admin().post("/v1/tablets/balance", {"on": False})
        with writing(session):
            for number in range(len(tablets(cluster))):
                if number == 2:
                    cluster.kill("n4")
                    time.sleep(1)
                    again = threading.Timer(4, cluster.start, (["n4"],))
                    again.start()
                moved(cluster, number)
            again.join()
        driver.shutdown()
