"""Whole tables by the Spark Cassandra Connector and by the format `lockstep`, on the same three nodes.

Both read all rows of one table to nowhere at ONE and at LOCAL_QUORUM, and append as many to another; best of
some rounds. The connector is that of Cassandra, 3.5 for PySpark 3.5, in an environment of its own; it comes
from Maven Central. Usage: python bench/spark_connector.py [rows] [rounds].
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import ROOT, environment, save, table
from spark_pipeline import drain, options, rows_of
from spark_scan import COLUMNS, CORES, PORTS, nodes

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection, Endpoint, pool_of
from lockstep.spark.report import local_session

PACKAGE = "com.datastax.spark:spark-cassandra-connector_2.12:3.5.1"
PYSPARK = "pyspark==3.5.6"
CONNECTOR_ENVIRONMENT = ROOT / "build" / "connector-venv"
END_S = 1800


def connector_python() -> Path:
    """The interpreter of the connector's own environment, made when it is not there."""
    python, stamp = CONNECTOR_ENVIRONMENT / "bin" / "python", CONNECTOR_ENVIRONMENT / ".stamp"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", str(CONNECTOR_ENVIRONMENT)], check=True)
        quiet = ["--disable-pip-version-check", "--quiet"]
        subprocess.run([str(python), "-m", "pip", *quiet, "install", PYSPARK, "setuptools"], check=True)
        stamp.touch()
    return python


def prepared(cluster: LocalCluster) -> None:
    connection = CqlConnection.open(Endpoint(cluster.contact_points[0], PORTS[0]), 30.0)
    connection.query(
        "CREATE KEYSPACE bench WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    )
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    for name in ("rows", "written"):
        connection.query(f"CREATE TABLE bench.{name} ({listed}, PRIMARY KEY (id, at))")
    connection.close()


def by_format(session: Any, cluster: LocalCluster, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round; the table that both read is loaded first."""
    frame = rows_of(session, rows)
    frame.write.format("lockstep").options(**options(cluster, "rows"), writeMode="bulk").mode("append").save()

    def read(level: str, snapshot: str) -> None:
        wanted = {**options(cluster, "rows"), "consistencyLevel": level, "snapshot": snapshot}
        drain(session.read.format("lockstep").options(**wanted).load())

    def write(mode: str) -> None:
        given = {**options(cluster, "written"), "writeMode": mode}
        frame.write.format("lockstep").options(**given).mode("append").save()

    runs: dict[str, Callable[[], None]] = {
        "read, ONE": lambda: read("ONE", "true"),
        "read, LOCAL_QUORUM": lambda: read("LOCAL_QUORUM", "true"),
        "write": lambda: write("bulk"),
        "write, statements": lambda: write("statements"),
    }
    return {name: [timed(run) for _ in range(rounds)] for name, run in runs.items()}


def timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def by_connector(cluster: LocalCluster, rows: int, rounds: int) -> dict[str, list[float]]:
    script = ROOT / "bench" / "peers" / "connector_job.py"
    hosts = ",".join(cluster.contact_points)
    arguments = [str(connector_python()), str(script), hosts, str(PORTS[0]), str(rows), str(rounds), PACKAGE]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True, timeout=END_S, env=kept)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(rows: int, rounds: int) -> dict[str, Any]:
    connector_python()
    with nodes() as (cluster, _):
        prepared(cluster)
        session = local_session(
            "connector", CORES, spark_driver_extraJavaOptions="", spark_driver_memory="2g"
        )
        try:
            own = by_format(session, cluster, rows, rounds)
        finally:
            session.stop()
            pool_of(os.getpid()).close()
        other = by_connector(cluster, rows, rounds)
    rates = {
        who: {name: rows / min(seconds) for name, seconds in found.items()}
        for who, found in (("lockstep", own), ("connector", other))
    }
    rates["connector"]["write, statements"] = rates["connector"]["write"]
    return {"rows": rows, "rounds": rounds, "rows_per_s": rates, "load_after": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=1_000_000)
    parser.add_argument("rounds", type=int, nargs="?", default=2)
    given = parser.parse_args()
    sys.stderr.write(" ".join(f"{name}={value}" for name, value in environment().items()) + "\n")
    figures = measure(given.rows, given.rounds)
    save("spark_connector", figures)
    own, other = figures["rows_per_s"]["lockstep"], figures["rows_per_s"]["connector"]
    listed: list[list[object]] = [["rows/s", "lockstep", "connector 3.5", "ratio"]]
    listed += [[name, own[name], other[name], own[name] / other[name]] for name in own]
    print(table(f"{given.rows:,} rows of five columns, three nodes, RF 3, local[{CORES}]", listed))


if __name__ == "__main__":
    main()
