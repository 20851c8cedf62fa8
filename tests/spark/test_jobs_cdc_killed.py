"""The job `cdc` on real Spark, while executor, node and driver are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from lockstep.cql.wire.messages import QueryParameters
from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection, Endpoint
from lockstep.spark.jobs import cdc
from lockstep.spark.jobs.running import Silent
from lockstep.spark.jobs.tables import Access, TableName
from lockstep.spark.report import QUICK_JAVA_OPTIONS
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency

from .support import PORTS, TIMEOUT_S, connect
from .test_changes import capture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
_WAIT_S = 150.0
#: Between writes. All that a slow machine writes meanwhile is read by the last run.
_PAUSE_S = 0.05
_QUICK = (("safetyIntervalMs", "1500"),)


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[CqlConnection]:
    made = connect(cluster)
    yield made
    made.close()


def access(cluster: LocalCluster) -> Access:
    return Access(",".join(cluster.contact_points), PORTS[0], others=_QUICK)


class Writer(threading.Thread):
    """Writes one number after the other, until it is told to stop."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(name="writer")
        self._endpoint = Endpoint(cluster.contact_points[0], PORTS[0])
        self.sent = 0
        self.acknowledged: list[int] = []
        self.ends = threading.Event()

    def run(self) -> None:
        connection = CqlConnection.open(self._endpoint, TIMEOUT_S)
        while not self.ends.wait(_PAUSE_S):
            value, self.sent = self.sent, self.sent + 1
            with contextlib.suppress(LockstepError):
                statement = connection.prepare("INSERT INTO shop.killed (id, v) VALUES (?, ?)")
                cells = ((value % 40).to_bytes(4, "big"), value.to_bytes(4, "big"))
                connection.execute(statement, QueryParameters(Consistency.QUORUM, cells))
                if connection.receive().opcode == 8:
                    self.acknowledged.append(value)
        connection.close()


def descendants(process_id: int) -> list[int]:
    """Processes that a process began, and those began."""
    found, left = [], [process_id]
    while left:
        one = left.pop()
        for tasks in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                left += map(int, tasks.read_text().split())
        found.append(one)
    return found[1:]


def executors(driver: int) -> list[int]:
    found = []
    for one in descendants(driver):
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{one}/cmdline").read_bytes():
                found.append(one)
    return found


def wait_for(what: Callable[[], bool], driver: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while not what():
        assert driver.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
        time.sleep(0.2)


def test_15_each_change_is_there_once_though_executor_node_and_driver_are_killed(
    spark: SparkSession, cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    capture(connection, "killed (id int PRIMARY KEY, v int)")
    place, log = tmp_path / "files", tmp_path / "log"
    command = [
        sys.executable, "-m", "lockstep.cli.main", "pipeline", "cdc", "shop.killed", "--to",
        f"parquet:{place}", "--max-rows", "40", "--every", "0.1", "--hosts", ",".join(cluster.contact_points),
        "--port", str(PORTS[0]), "--option", "safetyIntervalMs=1500", "--master", "local-cluster[2,1,1024]",
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
        "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.driver.extraJavaOptions={QUICK_JAVA_OPTIONS}",
        "--conf", f"spark.executor.extraJavaOptions={QUICK_JAVA_OPTIONS}",
    ]  # fmt: skip

    def batches() -> int:
        return len(list(place.glob("batch=*/_SUCCESS")))

    writer = Writer(cluster)
    writer.start()
    with log.open("wb") as out:
        driver = subprocess.Popen(command, stdout=out, stderr=out)
    begun = [driver.pid]
    try:
        wait_for(lambda: batches() >= 2, driver, log)
        (killed, *_) = executors(driver.pid)
        os.kill(killed, signal.SIGKILL)
        seen = batches()
        wait_for(lambda: batches() > seen, driver, log)
        cluster.kill("n3")
        seen = batches()
        wait_for(lambda: batches() > seen, driver, log)
        begun += descendants(driver.pid)
    finally:
        for one in {*begun, *descendants(driver.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        driver.wait()
        writer.ends.set()
        writer.join()
        cluster.start(["n3"])
    wanted = cdc.Cdc(TableName("shop", "killed"), f"parquet:{place}", available_now=True, rows_max=400)
    report = cdc.run(spark, access(cluster), wanted, Silent())
    assert report.resumed and report.changes > 0
    told = Counter(row["v"] for row in spark.read.parquet(str(place)).select("v").collect())
    assert len(writer.acknowledged) > 100
    assert [one for one in writer.acknowledged if told[one] != 1] == []
    assert [one for one, count in told.items() if count > 1 or one >= writer.sent] == []
