"""One real cluster for the whole room, and one Spark session for the tests that need a JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import pool_of

from .support import FIRST_ADDRESS, PORTS, connect, insert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENT_ROWS = 6000
EVENTS_PER_DAY = 20


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with keyspace shop (three replicas) and table events (EVENT_ROWS rows)."""
    home = tmp_path_factory.mktemp("clusters")
    with LocalCluster.create("spark", 3, home=home, first_address=FIRST_ADDRESS, ports=PORTS) as made:
        made.start()
        connection = connect(made)
        connection.query(
            "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
        connection.query("CREATE TABLE shop.events (day int, at int, what text, PRIMARY KEY (day, at))")
        insert(connection, "events", "day int; at int; what text", list(event_rows()))
        connection.close()
        yield made
        pool_of(os.getpid()).close()


def event_rows() -> Iterator[tuple[int, int, str]]:
    for number in range(EVENT_ROWS):
        yield number // EVENTS_PER_DAY, number % EVENTS_PER_DAY, f"event {number}"


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that nothing in the surrounding environment changes."""
    from lockstep.spark.report import local_session

    with pytest.MonkeyPatch.context() as patch:
        for name in tuple(os.environ):
            if name.startswith(("SPARK_", "PYSPARK_")) or name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
                patch.delenv(name)
        for name in ("PYTHONPATH", "PYTHONWARNINGS", "JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            # Restored at the end, whatever the session sets.
            patch.setenv(name, os.environ.get(name, ""))
        session = local_session("tests", cache=tmp_path_factory.mktemp("cache"))
        yield session
        session.stop()
