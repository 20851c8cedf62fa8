"""Point reads at QUORUM alone, and beside a job that reads a whole table again and again, in turns.

The job is one process that reads snapshots at ONE, as a Spark task does; the readers beside the nodes run at
a lower priority than these. All share the same cores, the clients too, so a machine of few of them shows what
contention does at worst. "beside files" is the peer: such a process reads the same rows from Parquet, and
asks no node for anything. "job elsewhere" has the job's own process get the processor when nobody else wants
it, as if it were on another machine. With --ahead nodes and clients get the processor before whatever else
runs on the machine, by so many levels of niceness, for which one is root.
Usage: python bench/beside_scans.py [rows] [turns] [--in-flight N] [--seconds S] [--ahead N].
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
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
ALONE = "alone"
FILES = "beside files"
#: (what is read, whether the job's process gives way to all others).
KINDS = {
    FILES: ("files", False),
    "beside a job": ("snapshots", False),
    "job elsewhere": ("snapshots", True),
}
#: A job starts, and reads its first batch, within that on a busy machine.
FIRST_ROWS_S = 60.0
NICEST = 19


def measure(
    rows: int = 1_000_000, turns: int = 4, in_flight: int = 2, seconds: float = TURN_S, ahead: int = 0
) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {ALONE: [], **{kind: [] for kind in KINDS}}
    read = dict.fromkeys(KINDS, 0)
    with nodes() as (cluster, pids), TemporaryDirectory() as directory:
        file = Path(directory, "rows.parquet")
        _fill(cluster, rows, file)
        for pid in (*pids, os.getpid()) if ahead else ():
            Path(f"/proc/{pid}/autogroup").write_text(str(-ahead))
        driver = Driver(cluster.contact_points, PORTS[0])
        try:
            _requests(driver, pids, "write", 16, WRITES_S)
            for _ in range(turns):
                found[ALONE].append(_requests(driver, pids, "read", in_flight, seconds))
                for kind, (source, elsewhere) in KINDS.items():
                    with _job(
                        {**_options(cluster), "file": str(file) if source == "files" else ""},
                        elsewhere=elsewhere,
                    ) as job:
                        before = _told(job, waits=True)
                        found[kind].append(_requests(driver, pids, "read", in_flight, seconds))
                        read[kind] += _told(job) - before
        finally:
            driver.close()
    middle = {
        name: {field: median(turn[field] for turn in of) for field in ("per_second", "p50_ms", "p99_ms")}
        for name, of in found.items()
    }
    per_s = {kind: count / turns / seconds for kind, count in read.items()}
    return {"turns": found, "median": middle, "rows_per_s": per_s, "in_flight": in_flight}


def _give_way() -> None:
    """Get the processor when nobody else wants it, also where the kernel shares it out by sessions."""
    os.setsid()
    Path("/proc/self/autogroup").write_text(str(NICEST))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _fill(cluster: LocalCluster, rows: int, file: Path) -> None:
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
    made = pa.table(columns)
    pq.write_table(made, file)
    bulk_load(made, **_options(cluster))


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
def _job(options: dict[str, str], *, elsewhere: bool) -> Iterator[subprocess.Popen[str]]:
    """A process that scans until its input ends."""
    search = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--job", json.dumps(options)]
    command += ["--elsewhere"] if elsewhere else []
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=search)
    try:
        yield process
    finally:
        process.communicate(timeout=60)


def _told(job: subprocess.Popen[str], *, waits: bool = False) -> int:
    """Rows that it has read; `waits`: once there are any."""
    assert job.stdin is not None and job.stdout is not None
    deadline_s = time.monotonic() + FIRST_ROWS_S
    while True:
        job.stdin.write("\n")
        job.stdin.flush()
        count = int(job.stdout.readline())
        if count or not waits:
            return count
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the job read nothing within {FIRST_ROWS_S:g} s")
        time.sleep(0.1)


def scan(options: dict[str, Any], *, elsewhere: bool) -> None:
    """Reads the table again and again; tells how many rows by then for each line, and ends with its input.

    It is as nice as it can be to what runs in its session; `elsewhere`: to all others."""
    os.nice(NICEST)
    if elsewhere:
        _give_way()
    read = 0

    def listen() -> None:
        for _ in sys.stdin:
            print(read, flush=True)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    file = options.pop("file")
    while True:
        batches = (
            pq.ParquetFile(file).iter_batches() if file else scan_arrow(consistencyLevel="ONE", **options)
        )
        for batch in batches:
            read += batch.num_rows


def show(figures: dict[str, Any]) -> None:
    rows: list[list[object]] = [
        ["point reads at QUORUM", "a second", "p50 ms", "p99 ms", "x alone", "x files"]
    ]
    alone, files = (max(figures["median"][name]["p99_ms"], 1e-9) for name in (ALONE, FILES))
    for name, one in figures["median"].items():
        p99_ms = one["p99_ms"]
        rows.append([name, one["per_second"], one["p50_ms"], p99_ms, p99_ms / alone, p99_ms / files])
    print(table(f"{figures['in_flight']} in flight, by turns", rows))
    for kind, rate in figures["rows_per_s"].items():
        print(f"{kind}: the job reads {rate:,.0f} rows a second")
    print(f"p99 at most {TARGET_P99_RATIO:g} x alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=1_000_000)
    parser.add_argument("turns", type=int, nargs="?", default=4)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=TURN_S)
    parser.add_argument("--job", default="", help=argparse.SUPPRESS)
    parser.add_argument("--elsewhere", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        scan(json.loads(given.job), elsewhere=given.elsewhere)
        return
    figures = measure(given.rows, given.turns, given.in_flight, given.seconds, given.ahead)
    save("beside_scans", figures)
    show(figures)


if __name__ == "__main__":
    main()
