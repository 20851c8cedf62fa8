"""Spark reads a table of a three-node cluster, and the same rows from Parquet in the same session.

Ways to read: Spark over Parquet (the measure), Spark over the table by pages, Spark over snapshots of it at
ONE and at LOCAL_QUORUM, the table's reader without Spark (one process), and decoding alone (pages kept in
memory). Best of some rounds; node CPU is that of all nodes' own processes together, so not of those that read
snapshots. Usage: python bench/spark_scan.py [rows] [rounds].
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import SCRATCH, CpuMeter, save, table

from lockstep.cql.wire.messages import QueryParameters
from lockstep.local.clusters import LocalCluster
from lockstep.local.processes import recorded
from lockstep.schema.types import parse_type
from lockstep.spark.cql_client import CqlConnection, Endpoint, pool_of
from lockstep.spark.options import Options
from lockstep.spark.report import local_session
from lockstep.spark.scan import Hosts, PageDecoder, RawPage, StatementReader
from lockstep.values.ids import Consistency
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

FIRST_ADDRESS = "127.0.46.1"
PORTS = (19342, 17300, 17380)
IN_FLIGHT = 192
ROWS_PER_PARTITION = 20
CORES = 2
COLUMNS = (("id", "int"), ("at", "int"), ("what", "text"), ("price", "double"), ("number", "bigint"))
NAMES = ", ".join(name for name, _ in COLUMNS)


@contextmanager
def nodes() -> Iterator[tuple[LocalCluster, list[int]]]:
    home = SCRATCH / "spark_scan"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with LocalCluster.create("scan", 3, home=home, first_address=FIRST_ADDRESS, ports=PORTS) as cluster:
        cluster.start()
        identities = [recorded(cluster.paths.pid(node.name)) for node in cluster.file.nodes]
        yield cluster, [identity.pid for identity in identities if identity is not None]
    shutil.rmtree(home, ignore_errors=True)


def load(cluster: LocalCluster, rows: int) -> float:
    """Insert the rows; rows per second."""
    connection = CqlConnection.open(Endpoint(cluster.contact_points[0], PORTS[0]), 30.0)
    connection.query(
        "CREATE KEYSPACE bench WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    )
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    connection.query(f"CREATE TABLE bench.rows ({listed}, PRIMARY KEY (id, at))")
    statement = connection.prepare(f"INSERT INTO bench.rows ({NAMES}) VALUES (?, ?, ?, ?, ?)")
    begin_s = time.perf_counter()
    for number in range(rows):
        if connection.in_flight >= IN_FLIGHT:
            connection.receive()
        partition, at = divmod(number, ROWS_PER_PARTITION)
        values = (
            partition.to_bytes(4, "big"),
            at.to_bytes(4, "big"),
            f"row number {number:09d}".encode(),
            struct.pack(">d", number / 4),
            number.to_bytes(8, "big"),
        )
        connection.execute(statement, QueryParameters(Consistency.QUORUM, values))
    while connection.in_flight:
        connection.receive()
    connection.close()
    return rows / (time.perf_counter() - begin_s)


def best(rounds: int, rows: int, pids: list[int], run: Callable[[], object]) -> dict[str, float]:
    """Figures of the fastest round."""
    figures: list[dict[str, float]] = []
    for _ in range(rounds):
        meter = CpuMeter(pids)
        meter.start()
        run()
        figures.append(meter.stop())
    fastest = min(figures, key=lambda one: one["wall_s"])
    return {
        "rows_per_s": rows / fastest["wall_s"],
        "wall_s": fastest["wall_s"],
        "node_cpu_us_per_row": fastest["cpu_s"] / rows * 1e6,
    }


def pages(cluster: LocalCluster) -> list[RawPage]:
    options = Options(tuple(cluster.contact_points), PORTS[0], "bench", "rows")
    hosts = Hosts(options, pool_of(os.getpid()))
    reader = StatementReader(
        f"SELECT {NAMES} FROM bench.rows WHERE token(id) > ? AND token(id) <= ?",
        len(COLUMNS),
        options,
        hosts,
        0,
    )
    bounds = tuple(token.to_bytes(8, "big", signed=True) for token in (TOKEN_MIN, TOKEN_MAX))
    return list(reader.pages(bounds, 0))


def measure(rows: int, rounds: int) -> dict[str, Any]:
    decoder = PageDecoder([(name, parse_type(kind)) for name, kind in COLUMNS], 0)
    # Both compilers of Java: a benchmark is no short job.
    session = local_session("scan", CORES, spark_driver_extraJavaOptions="", spark_driver_memory="2g")
    with nodes() as (cluster, pids):
        written = load(cluster, rows)
        options = {
            "hosts": ",".join(cluster.contact_points),
            "port": str(PORTS[0]),
            "keyspace": "bench",
            "table": "rows",
        }
        frame = session.read.format("lockstep").options(**options).load()
        target = str(SCRATCH / "spark_scan_parquet")
        frame.write.mode("overwrite").parquet(target)
        parquet = session.read.parquet(target)
        assert parquet.count() == rows, "the export is not whole"
        snapshots = {
            level: session.read.format("lockstep")
            .options(**options, snapshot="true", consistencyLevel=level)
            .load()
            for level in ("ONE", "LOCAL_QUORUM")
        }
        for name, snapshot in snapshots.items():
            assert snapshot.count() == rows, f"the snapshot at {name} is not whole"
        kept = pages(cluster)
        figures = {
            "parquet": best(rounds, rows, pids, lambda: _drain(parquet)),
            "snapshot_one": best(rounds, rows, pids, lambda: _drain(snapshots["ONE"])),
            "snapshot_local_quorum": best(rounds, rows, pids, lambda: _drain(snapshots["LOCAL_QUORUM"])),
            "table": best(rounds, rows, pids, lambda: _drain(frame)),
            "table_without_spark": best(rounds, rows, pids, lambda: _decode(decoder, pages(cluster))),
            "decoding": best(rounds, rows, pids, lambda: _decode(decoder, kept)),
        }
        pool_of(os.getpid()).close()
    session.stop()
    shutil.rmtree(Path(target), ignore_errors=True)
    return {"rows": rows, "rounds": rounds, "loaded_rows_per_s": written, "reads": figures}


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _decode(decoder: PageDecoder, given: list[RawPage]) -> int:
    return sum(decoder.decode(page).num_rows for page in given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=100_000)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    given = parser.parse_args()
    figures = measure(given.rows, given.rounds)
    save("spark_scan", figures)
    base = figures["reads"]["parquet"]["rows_per_s"]
    listed: list[list[object]] = [["", "rows/s", "of parquet", "node cpu us/row"]]
    for name, read in figures["reads"].items():
        listed.append([name, read["rows_per_s"], read["rows_per_s"] / base, read["node_cpu_us_per_row"]])
    print(table(f"Reading {given.rows:,} rows, local[{CORES}]", listed))


if __name__ == "__main__":
    main()
