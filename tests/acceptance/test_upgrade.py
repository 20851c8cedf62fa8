"""Five nodes that run on the ring get a log under load, one of them dead and ignored by name.

Real processes, the Python driver and the command line. Numbers are those of scenarios of ring membership.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from lockstep.values.errors import LockstepError
from tests.acceptance.parts import Load, connect, until
from tests.acceptance.test_ring import agree, begun, host, run

pytestmark = pytest.mark.slow

UPGRADE = "/storage_service/raft_topology/upgrade"
LIVING = ("n1", "n2", "n3", "n4")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def states(cluster: LocalCluster, *names: str) -> list[dict[str, Any]]:
    return [cluster.admin(name).get(UPGRADE) for name in names]


def test_28_five_nodes_get_a_log_under_load_with_one_dead(home: Path) -> None:
    with begun(home, "up", "127.0.2.71", 5) as cluster:
        load = Load(cluster.contact_points)
        try:
            load.goes_on(20)
            agree(cluster, *LIVING, "n5")
            cluster.kill("n5")
            assert cluster.await_noticed(["n5"], 60.0)
            load.errors.clear()
            load.goes_on(20)
            told = run(home, "upgrade", "status", "--host", host(cluster, "n2"))
            assert "not upgraded: the cluster runs on the ring without a log" in told
            # Nobody is ignored yet: changes wait, it is given up by hand, and nothing has changed.
            run(home, "upgrade", "start", "--wait", "0", "--host", host(cluster, "n2"))
            driver = connect([cluster.file.node("n1").address])
            session = driver.connect()
            with pytest.raises(Exception, match="on its way to a log"):
                session.execute("CREATE TABLE acceptance.held (k int PRIMARY KEY)", timeout=30)
            assert "gave it up" in run(home, "upgrade", "abort", "--host", host(cluster, "n3"))
            session.execute("CREATE TABLE acceptance.between (k int PRIMARY KEY)", timeout=30)
            agree(cluster, *LIVING)
            told = run(home, "upgrade", "start", "--ignore", "5", "--host", host(cluster, "n2"))
            assert "done: the cluster has a log" in told
            # It is the same one that is asked for again, over HTTP too.
            assert cluster.admin("n3").post(UPGRADE, {})["state"] == "done"
            assert all(one["state"] == "done" and one["joined"] for one in states(cluster, *LIVING))
            # What only a log has works at once.
            session.execute(
                "CREATE TABLE acceptance.captured (k int PRIMARY KEY) WITH cdc = {'enabled': true}",
                timeout=30,
            )
            load.goes_on(40)
            shown = run(home, "status", "--host", host(cluster, "n4"), code=None)
            assert "on the ring without a log" not in shown
            # Who was ignored comes back, follows the log, and is shut out until it is taken back.
            coming = threading.Thread(target=cluster.start, args=(["n5"], 120.0))
            coming.start()
            excluded = json.loads(run(home, "status", "--host", host(cluster, "n4"), "-o", "json", code=None))
            assert "ignored by name" in json.dumps(excluded)
            until(lambda: taken_back(home, cluster), 60.0)
            load.goes_on(20)
            coming.join()
            load.goes_on(20)
            load.stop()
            load.check_all()
            # All of it is there after a start of the whole cluster, for a client that comes after it.
            driver.shutdown()
            cluster.stop()
            cluster.start()
            until(lambda: {one["state"] for one in states(cluster, *LIVING, "n5")} == {"done"})
            driver = connect([cluster.file.node("n1").address])
            driver.connect().execute("CREATE TABLE acceptance.after (k int PRIMARY KEY)", timeout=30)
            driver.shutdown()
        finally:
            load.close()


def taken_back(home: Path, cluster: LocalCluster) -> bool:
    try:
        run(home, "topology", "exclude", "5", "--undo", "--host", host(cluster, "n4"))
    except (AssertionError, LockstepError):
        return False
    return True
