"""Whole tables written, compared and followed on Spark: a three-node cluster, three replicas.

A DataFrame of five columns is written as Parquet (the measure) and as one bulk load, in turns, and loaded
once more without Spark by one process; both are read to nowhere, the table from snapshots at ONE and at
LOCAL_QUORUM; what was loaded is audited on all replicas; and the changes of a table whose changes are
captured are streamed to nowhere, by pages and from snapshots of their log. Best of some rounds; node CPU is
that of all nodes' own processes together. Usage: python bench/spark_pipeline.py [rows] [changes] [rounds].
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from measuring import SCRATCH, CpuMeter, environment, save, table
from spark_scan import COLUMNS, CORES, PORTS, ROWS_PER_PARTITION, nodes

from lockstep.documents.status import PlacedRange, Placements
from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection, Endpoint, pool_of
from lockstep.spark.jobs import audit, tables
from lockstep.spark.jobs.running import Silent
from lockstep.spark.jobs.tables import Access, TableName
from lockstep.spark.loads.writer import bulk_load
from lockstep.spark.report import local_session

LOADED = TableName("bench", "rows")
#: Of the rates at which Parquet is written and read, changes a second, and rows of the table a second.
GOALS = {
    "bulk load": 0.2,
    "read, ONE": 0.3,
    "read, LOCAL_QUORUM": 0.2,
    "stream": 300_000.0,
    "stream, snapshot": 300_000.0,
    "audit": 5_000_000.0,
}
PARQUET, PARQUET_READ = "parquet", "parquet, read"
TIMEOUT_S = 600


def best(rounds: int, pids: list[int], runs: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Figures of the fastest round of each; they take turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            meter = CpuMeter(pids)
            meter.start()
            run()
            found[name].append(meter.stop())
    return {name: min(figures, key=lambda one: one["wall_s"]) for name, figures in found.items()}


def prepare(cluster: LocalCluster) -> None:
    connection = CqlConnection.open(Endpoint(cluster.contact_points[0], PORTS[0]), 30.0)
    connection.query(
        "CREATE KEYSPACE bench WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    )
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    connection.query(f"CREATE TABLE bench.rows ({listed}, PRIMARY KEY (id, at))")
    connection.query(
        f"CREATE TABLE bench.changes ({listed}, PRIMARY KEY (id, at)) WITH cdc = {{'enabled': true}}"
    )
    connection.close()


def rows_of(session: Any, count: int) -> Any:
    return session.range(0, count, 1, CORES).selectExpr(
        f"CAST(id DIV {ROWS_PER_PARTITION} AS INT) AS id",
        f"CAST(id % {ROWS_PER_PARTITION} AS INT) AS at",
        "format_string('row number %09d', id) AS what",
        "id / 4D AS price",
        "id AS number",
    )


def options(cluster: LocalCluster, name: str) -> dict[str, str]:
    return {
        "hosts": ",".join(cluster.contact_points),
        "port": str(PORTS[0]),
        "keyspace": "bench",
        "table": name,
    }


def writes(session: Any, cluster: LocalCluster, pids: list[int], rows: int, rounds: int) -> dict[str, Any]:
    frame = rows_of(session, rows).cache()
    assert frame.count() == rows
    target = str(SCRATCH / "spark_pipeline_parquet")
    given = options(cluster, "rows")
    figures = best(
        rounds,
        pids,
        {
            PARQUET: lambda: frame.write.mode("overwrite").parquet(target),
            "bulk load": lambda: (
                frame.write.format("lockstep").options(**given, writeMode="bulk").mode("overwrite").save()
            ),
        },
    )
    whole: pa.Table = frame.toArrow()
    more = {"bulk load, no Spark": lambda: bulk_load(whole, mode="overwrite", **given)}
    figures |= best(1, pids, more)
    frame.unpersist()
    frames = {PARQUET_READ: session.read.parquet(target)}
    for level in ("ONE", "LOCAL_QUORUM"):
        wanted = {**given, "snapshot": "true", "consistencyLevel": level}
        frames[f"read, {level}"] = session.read.format("lockstep").options(**wanted).load()
    for name, one in frames.items():
        assert (found := one.count()) == rows, f"{found} of {rows} rows are there: {name}"
    figures |= best(rounds, pids, {name: partial(drain, one) for name, one in frames.items()})
    shutil.rmtree(Path(target), ignore_errors=True)
    return {name: {"rows": rows, **one} for name, one in figures.items()}


def drain(frame: Any) -> None:
    """Read all of it."""
    frame.write.format("noop").mode("overwrite").save()


def audited(session: Any, cluster: LocalCluster, pids: list[int], rows: int, rounds: int) -> dict[str, Any]:
    asked = cluster.any_admin().get("/v1/placements", keyspace="bench")["ranges"]
    ranges = tuple(PlacedRange(one["start"], one["end"], tuple(one["reads"])) for one in asked)
    placements = Placements(keyspace="bench", epoch=1, ranges=ranges)
    doors: dict[int, Any] = {
        cluster.node_id(node.name): cluster.admin(node.name) for node in cluster.file.nodes
    }
    access = Access(",".join(cluster.contact_points), PORTS[0])
    described = tables.describe(access, LOADED)

    def run() -> None:
        found = audit.run(session, doors, placements, described, audit.Audit(LOADED), Silent(), access)
        assert found.equal and found.complete, "replicas of a clean cluster differ"
        assert [count for _, count in found.rows] == [rows] * 3, found.rows

    return {"audit": {"rows": rows, **best(rounds, pids, {"": run})[""]}}


def streamed(session: Any, cluster: LocalCluster, pids: list[int], count: int, rounds: int) -> dict[str, Any]:
    given = options(cluster, "changes")
    # Changes of the table are captured, so these are statements.
    rows_of(session, count).write.format("lockstep").options(**given).mode("append").save()
    asked = {**given, "changes": "rows", "startingOffsets": "earliest", "safetyIntervalMs": "0"}
    turn = 0

    def run(told: dict[str, str]) -> None:
        nonlocal turn
        turn += 1
        place = SCRATCH / f"spark_pipeline_checkpoint_{turn}"
        shutil.rmtree(place, ignore_errors=True)
        query = (
            session.readStream.format("lockstep")
            .options(**told)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(place))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S), "the stream has not ended"
        seen = sum(one["numInputRows"] for one in query.recentProgress)
        shutil.rmtree(place, ignore_errors=True)
        assert seen == count, f"{seen} of {count} changes came"

    figures = best(
        rounds,
        pids,
        {
            "stream": lambda: run(asked),
            "stream, snapshot": lambda: run({**asked, "snapshot": "true"}),
        },
    )
    return {name: {"rows": count, **one} for name, one in figures.items()}


def measure(rows: int, changes: int, rounds: int) -> dict[str, Any]:
    # Both compilers of Java: a benchmark is no short job.
    session = local_session("pipeline", CORES, spark_driver_extraJavaOptions="", spark_driver_memory="2g")
    try:
        with nodes() as (cluster, pids):
            prepare(cluster)
            figures = writes(session, cluster, pids, rows, rounds)
            figures |= audited(session, cluster, pids, rows, rounds)
            figures |= streamed(session, cluster, pids, changes, rounds)
            pool_of(os.getpid()).close()
    finally:
        session.stop()
    for one in figures.values():
        one["rows_per_s"] = one["rows"] / one["wall_s"]
        one["node_cpu_us_per_row"] = one["cpu_s"] / one["rows"] * 1e6
    return {"rounds": rounds, "load_after": os.getloadavg()[0], "jobs": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=1_000_000)
    parser.add_argument("changes", type=int, nargs="?", default=100_000)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    given = parser.parse_args()
    sys.stderr.write(" ".join(f"{name}={value}" for name, value in environment().items()) + "\n")
    figures = measure(given.rows, given.changes, given.rounds)
    save("spark_pipeline", figures)
    base = {name: figures["jobs"][name]["rows_per_s"] for name in (PARQUET, PARQUET_READ)}
    listed: list[list[object]] = [["", "rows", "rows/s", "of parquet", "goal", "node cpu us/row"]]
    for name, one in figures["jobs"].items():
        goal, rate = GOALS.get(name, ""), one["rows_per_s"]
        measure_ = base[PARQUET_READ if "read" in name else PARQUET]
        listed.append([name, one["rows"], rate, rate / measure_, goal, one["node_cpu_us_per_row"]])
    print(table(f"Jobs on Spark, local[{CORES}]", listed))


if __name__ == "__main__":
    main()
