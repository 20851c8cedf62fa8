"""Bulk loads on real Spark while tablets split and executor, node and driver are killed: scenarios 10, 12 and
13 of the data pipeline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection
from lockstep.values.ids import Consistency

from .support import connect, options
from .test_jobs_cdc_killed import descendants, executors, wait_for
from .test_loads import gone, staged_names
from .test_loads_disturbed import split

pytestmark = pytest.mark.slow

PARTITIONS, ROWS_EACH = 8, 3000
ROWS = PARTITIONS * ROWS_EACH
#: Rows of the second half of the partitions come when there is a file `go`.
_DRIVER = """
import json
import sys
import time
from pathlib import Path

import lockstep.spark
from lockstep.spark.report import QUICK_JAVA_OPTIONS

place, options, partitions, each = json.loads(sys.argv[1])
go, held_from = Path(place) / "go", partitions // 2 * each


def held(number):
    while number >= held_from and not go.exists():
        time.sleep(0.1)
    return number


spark = lockstep.spark.session(
    "load", spark_master="local-cluster[2,1,1024]", spark_driver_host="127.0.0.1",
    spark_driver_bindAddress="127.0.0.1", spark_ui_enabled="false",
    spark_executor_extraJavaOptions=QUICK_JAVA_OPTIONS,
)
spark.udf.register("held", held, "long")
numbers = spark.range(0, partitions * each, 1, partitions)
made = numbers.selectExpr("CAST(held(id) AS INT) AS id", "id * 10 AS n")
made.write.format("lockstep").options(**options).mode("append").save()
(Path(place) / "written").touch()
"""


class Job:
    """The driver, as a process of its own."""

    def __init__(self, place: Path, given: dict[str, str]) -> None:
        place.mkdir()
        self.place, self.log = place, place / "log"
        (place / "driver.py").write_text(_DRIVER)
        told = json.dumps([str(place), given, PARTITIONS, ROWS_EACH])
        with self.log.open("wb") as out:
            self.driver = subprocess.Popen(
                [sys.executable, str(place / "driver.py"), told], stdout=out, stderr=out
            )
        self._begun = {self.driver.pid}

    def until_half_is_staged(self, cluster: LocalCluster, seen: int = 0) -> None:
        """Each of the first tasks has put a file of each tablet on each replica."""
        wanted = seen + PARTITIONS // 2 * len(cluster.file.nodes)
        wait_for(lambda: len(staged_names(cluster)) >= wanted, self.driver, self.log)
        self._begun |= set(descendants(self.driver.pid))

    def kill(self) -> None:
        """The driver, then what it began."""
        self._begun |= set(descendants(self.driver.pid))
        for one in (self.driver.pid, *sorted(self._begun - {self.driver.pid})):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self.driver.wait()


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[CqlConnection]:
    made = connect(cluster)
    yield made
    made.close()


def stored(connection: CqlConnection, table: str) -> list[tuple[int, int]]:
    found = connection.query(f"SELECT id, n FROM {table}", consistency=Consistency.QUORUM)
    return sorted((int(str(row["id"])), int(str(row["n"]))) for row in found)


def test_10_12_13_a_load_is_whole_though_tablets_split_and_executor_and_node_die(
    cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    # A second attempt finds what the first has left.
    connection.query("DROP KEYSPACE IF EXISTS halved")
    connection.query(
        "CREATE KEYSPACE halved WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} "
        "AND tablets = {'enabled': true, 'initial': 2}"
    )
    connection.query("CREATE TABLE halved.t (id int PRIMARY KEY, n bigint)")
    job = Job(tmp_path / "job", options(cluster, "t", keyspace="halved"))
    try:
        job.until_half_is_staged(cluster)
        split(cluster, "halved", "t", 4)
        (killed, *_) = executors(job.driver.pid)
        os.kill(killed, signal.SIGKILL)
        cluster.kill("n3")
        # Nothing of the load is there yet, and writes go on.
        assert stored(connection, "halved.t") == []
        connection.query("INSERT INTO halved.t (id, n) VALUES (7, 1)", consistency=Consistency.QUORUM)
        (job.place / "go").touch()
        wait_for((job.place / "written").exists, job.driver, job.log)
        assert f"lockstep: halved.t: {ROWS} rows written by load" in job.log.read_text()
        live = {7: (7, 1)}
        wanted = [live.get(one, (one, 10 * one)) for one in range(ROWS)]
        assert stored(connection, "halved.t") == wanted
    finally:
        job.kill()
        cluster.start(["n3"])
    assert gone(cluster)
    # The node that was away has no say in what a quorum reads.
    assert stored(connection, "halved.t") == wanted


def test_10_of_a_load_whose_driver_is_killed_nothing_is_left(
    cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    # A first attempt may have left it.
    connection.query("DROP TABLE IF EXISTS shop.orphaned")
    connection.query("CREATE TABLE shop.orphaned (id int PRIMARY KEY, n bigint)")
    job = Job(tmp_path / "job", options(cluster, "orphaned", leaseMs="6000"))
    try:
        job.until_half_is_staged(cluster)
    finally:
        job.kill()
    assert stored(connection, "shop.orphaned") == [] and staged_names(cluster)
    connection.query("INSERT INTO shop.orphaned (id, n) VALUES (7, 1)")
    assert gone(cluster)
    assert stored(connection, "shop.orphaned") == [(7, 1)]
