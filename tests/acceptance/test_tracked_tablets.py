"""Tablets of a tracked table move, split and merge while a node is killed and started: no write is lost, no
hint is kept, and in the end every replica holds the same ids."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect, make_tablets, settled_errors, until, writing
from tests.acceptance.test_tablet_moves import moved, tablets

pytestmark = pytest.mark.slow

NODES = ("n1", "n2", "n3", "n4")
FIRST = "127.0.119.1"
POINTS = [f"127.0.119.{n}" for n in range(1, 5)]
TABLETS = 4
AWAY_S = 4.0


def resized(cluster: LocalCluster, what: str, count: int) -> None:
    """Have all tablets of the table split or merge, to the end."""
    cluster.any_admin().post("/v1/tablets/resize", {"keyspace": "h", "table": "t", "kind": what})

    def is_done() -> bool:
        (table,) = cluster.any_admin().get("/v1/tablets", keyspace="h")["tables"]
        is_calm = not any(one["stage"] for one in tablets(cluster))
        return (table["tablets"], table["resize_phase"]) == (count, "none") and is_calm

    until(is_done, 120)


def reconciling(cluster: LocalCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.admin(name).get("/v1/reconcile")
    return found


def alike(cluster: LocalCluster) -> bool:
    """Whether every replica holds the same, and all know it."""
    told = [reconciling(cluster, name) for name in NODES]
    return all(
        not one["entries"]
        and all(lag["heard"] and not lag["lacks"] and not lag["is_lacked"] for lag in one["lags"])
        for one in told
    )


def test_no_acknowledged_write_is_lost_while_tracked_tablets_move_split_and_merge(tmp_path: Path) -> None:
    made = LocalCluster.create("tracked", 4, first_address=FIRST, ports=PORTS, home=tmp_path)
    with made as cluster:
        cluster.start()
        driver = connect(POINTS[:3])
        session = driver.connect()
        make_tablets(session, TABLETS, kind="tracked")
        cluster.any_admin().post("/v1/tablets/balance", {"on": False})
        with writing(session):
            moved(cluster, 0)
            cluster.kill("n4")
            time.sleep(1)
            again = threading.Timer(AWAY_S, cluster.start, (["n4"],))
            again.start()
            moved(cluster, 1)
            again.join()
            resized(cluster, "split", 2 * TABLETS)
            moved(cluster, 0)
            # It brings halves that lie apart together again.
            cluster.any_admin().post("/v1/tablets/balance", {"on": True})
            resized(cluster, "merge", TABLETS)
        until(lambda: alike(cluster), 60)
        assert sum(reconciling(cluster, name)["pulled"] for name in NODES) > 0, "the one that was away"
        driver.shutdown()
        assert settled_errors(cluster) == ""
