"""Point reads at QUORUM alone, and beside a job that reads a whole table again and again, in turns.

The job is one process that reads snapshots at ONE, as a Spark task does; the readers beside the nodes run at
a lower priority than these. All share the same cores, the clients too, so a machine of few of them shows what
contention does at worst. Usage: python bench/beside_scans.py [rows] [turns] [--in-flight N].
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from measuring import ROOT, CpuMeter, save, table
from quorum_path import Driver
from spark_scan import COLUMNS, PORTS, ROWS_PER_PARTITION, nodes

from lockstep.local.clusters import LocalCluster
from lockstep.spark import scan_arrow
from lockstep.spark.cql_client import CqlConnection, Endpoint
from lockstep.spark.loads.writer import bulk_load

#: The 99th percentile beside a job is at most this many times the one alone.
TARGET_P99_RATIO = 1.2
VALUE_BYTES = 100
TURN_S, WRITES_S = 8.0, 3.0


def measure(rows: int = 1_000_000, turns: int = 4, in_flight: int = 2) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {"alone": [], "beside a job": []}
    read = 0
    with nodes() as (cluster, pids):
        _fill(cluster, rows)
        driver = Driver(cluster.contact_points, PORTS[0])
        try:
            _requests(driver, pids, "write", 16, WRITES_S)
            for _ in range(turns):
                found["alone"].append(_requests(driver, pids, "read", in_flight, TURN_S))
                with _job(cluster) as job:
                    found["beside a job"].append(_requests(driver, pids, "read", in_flight, TURN_S))
                    read += _told(job)
        finally:
            driver.close()
    middle = {
        name: {field: median(turn[field] for turn in of) for field in ("per_second", "p50_ms", "p99_ms")}
        for name, of in found.items()
    }
    return {"turns": found, "median": middle, "rows_per_s": read / turns / TURN_S, "in_flight": in_flight}


def _fill(cluster: LocalCluster, rows: int) -> None:
    connection = CqlConnection.open(Endpoint(cluster.contact_points[0], PORTS[0]), 30.0)
    connection.query(
        "CREATE KEYSPACE scanned WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    )
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    connection.query(f"CREATE TABLE scanned.rows ({listed}, PRIMARY KEY (id, at))")
    connection.close()
    numbers = pa.array(range(rows), pa.int64())
    of_partition = pc.divide(numbers, ROWS_PER_PARTITION)
    columns = {
        "id": pc.cast(of_partition, pa.int32()),
        "at": pc.cast(pc.subtract(numbers, pc.multiply(of_partition, ROWS_PER_PARTITION)), pa.int32()),
        "what": pc.binary_join_element_wise("row number", pc.cast(numbers, pa.string()), " "),
        "price": pc.cast(numbers, pa.float64()),
        "number": numbers,
    }
    bulk_load(pa.table(columns), **_options(cluster))


def _options(cluster: LocalCluster) -> dict[str, str]:
    hosts = ",".join(cluster.contact_points)
    return {"hosts": hosts, "port": str(PORTS[0]), "keyspace": "scanned", "table": "rows"}


def _requests(driver: Driver, pids: list[int], kind: str, in_flight: int, seconds: float) -> dict[str, Any]:
    return driver.run(
        CpuMeter(pids),
        run=kind,
        seconds=seconds,
        warm_up_s=1.0,
        in_flight=in_flight,
        value_bytes=VALUE_BYTES,
    )


@contextmanager
def _job(cluster: LocalCluster) -> Iterator[subprocess.Popen[str]]:
    """A process that scans until its input ends."""
    search = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--job", json.dumps(_options(cluster))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=search)
    try:
        yield process
    finally:
        process.communicate(timeout=60)


def _told(job: subprocess.Popen[str]) -> int:
    """Rows that it read since it was asked last."""
    assert job.stdin is not None and job.stdout is not None
    job.stdin.write("\n")
    job.stdin.flush()
    return int(job.stdout.readline())


def scan(options: dict[str, Any]) -> None:
    """Reads the table again and again; tells how many rows by then for each line, and ends with its input.

    It gives way to all others: its own work is on other machines where this matters."""
    os.nice(19)
    read = 0

    def listen() -> None:
        for _ in sys.stdin:
            print(read, flush=True)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        for batch in scan_arrow(consistencyLevel="ONE", **options):
            read += batch.num_rows


def show(figures: dict[str, Any]) -> None:
    rows: list[list[object]] = [["point reads at QUORUM", "a second", "p50 ms", "p99 ms", "p99, x alone"]]
    alone = figures["median"]["alone"]["p99_ms"]
    for name, one in figures["median"].items():
        rows.append([name, one["per_second"], one["p50_ms"], one["p99_ms"], one["p99_ms"] / max(alone, 1e-9)])
    print(table(f"{figures['in_flight']} in flight, by turns", rows))
    print(
        f"the job reads {figures['rows_per_s']:,.0f} rows a second; p99 at most {TARGET_P99_RATIO:g} x alone"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=1_000_000)
    parser.add_argument("turns", type=int, nargs="?", default=4)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--job", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        scan(json.loads(given.job))
        return
    figures = measure(given.rows, given.turns, given.in_flight)
    save("beside_scans", figures)
    show(figures)


if __name__ == "__main__":
    main()
