"""Whole tables written, compared and followed on Spark: a three-node cluster, three replicas.

A DataFrame of five columns is written as Parquet (the measure) and as one bulk load, in turns, and loaded
once more without Spark by one process; both are read to nowhere, the table from snapshots at ONE and at
LOCAL_QUORUM, for the first time and again; tables are audited on all replicas, as one task loaded them, and
once rows were written into each of their ranges; and the changes of a table whose changes are captured are
streamed to nowhere. Audits and streams have a price of their own, whatever their size, so each is done with a
part of the rows first: what is behind those goes by the rate `more rows/s`, and what is left is `fixed s`.
Best of some rounds; CPU is that of all nodes' own processes, of the readers beside them, and of Spark with
its workers.
Usage: python bench/spark_pipeline.py [rows] [changes] [rounds] [--only writes audits streams].
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from measuring import SCRATCH, CpuMeter, DescendantsMeter, environment, save, table
from spark_scan import COLUMNS, CORES, PORTS, ROWS_PER_PARTITION, nodes

from lockstep.documents.status import PlacedRange, Placements
from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection, Endpoint, pool_of
from lockstep.spark.jobs import audit, tables
from lockstep.spark.jobs.running import Silent
from lockstep.spark.jobs.tables import Access, TableName
from lockstep.spark.loads.writer import bulk_load
from lockstep.spark.report import local_session
from lockstep.values.ids import Consistency

#: Of the rates at which Parquet is written and read, changes a second, and rows of the table a second.
GOALS = {
    "bulk load": 0.2,
    "read, ONE": 0.3,
    "read, LOCAL_QUORUM": 0.2,
    "stream": 300_000.0,
    "audit": 5_000_000.0,
    "audit, one file a range": 5_000_000.0,
}
#: Of the rows of an audit or a stream, which are done alone before all of them.
FEW = 0.2
_CAPTURED = " WITH cdc = {'enabled': true}"
TABLES = {"rows": "", "many": "", "few": "", "tiny": "", "changes": _CAPTURED, "few_changes": _CAPTURED}
#: Of these a task has room for all at a time.
ONE_FILE_ROWS = 400_000
#: Rows that are written into each range, about, before a table is audited again.
WRITTEN_EACH = 4
#: Of a row more, us of CPU.
_COSTS = ("nodes us/row", "readers us/row", "spark us/row")
PARTS = ("writes", "audits", "streams")
PARQUET, PARQUET_READ = "parquet", "parquet, read"
TIMEOUT_S = 600


def best(rounds: int, pids: list[int], runs: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Figures of the fastest round of each; they take turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            meter, readers = CpuMeter(pids), DescendantsMeter(pids)
            spark = DescendantsMeter([os.getpid()], pids)
            for one in (readers, spark, meter):
                one.start()
            run()
            figures = meter.stop()
            found[name].append({**figures, "readers_s": readers.stop(), "spark_s": spark.stop()})
    return {name: min(figures, key=lambda one: one["wall_s"]) for name, figures in found.items()}


def compared(few: dict[str, float], all_: dict[str, float]) -> dict[str, float]:
    """Figures of all rows, with what is fixed and what more rows cost, by those of a few."""
    rows = all_["rows"] - few["rows"]
    more_s = all_["wall_s"] - few["wall_s"]
    of_row = {
        f"more_{name}_us": (all_[f"{name}_s"] - few[f"{name}_s"]) / rows * 1e6
        for name in ("cpu", "readers", "spark")
    }
    figures = {**all_, "few": few["rows"], "few_wall_s": few["wall_s"], **of_row}
    if more_s <= 0:
        # What is fixed varies by more than that; CPU is all that tells.
        return {**figures, "fixed_s": all_["wall_s"], "more_rows_per_s": 0.0}
    return {
        **figures,
        "fixed_s": few["wall_s"] - few["rows"] * more_s / rows,
        "more_rows_per_s": rows / more_s,
    }


def prepare(cluster: LocalCluster) -> None:
    connection = CqlConnection.open(Endpoint(cluster.contact_points[0], PORTS[0]), 30.0)
    connection.query(
        "CREATE KEYSPACE bench WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    )
    listed = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
    for name, options_ in TABLES.items():
        connection.query(f"CREATE TABLE bench.{name} ({listed}, PRIMARY KEY (id, at)){options_}")
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
        if name != PARQUET_READ:
            # Nothing of it is decoded yet; the other level's reading is left by none.
            figures |= best(1, pids, {f"{name}, first": partial(drain, one)})
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
    few = min(int(rows * FEW), ONE_FILE_ROWS)
    counts = {"tiny": int(few * FEW), "few": few, "many": rows}

    def run(name: str, more: int = 0) -> None:
        of = TableName("bench", name)
        described = tables.describe(access, of)
        found = audit.run(session, doors, placements, described, audit.Audit(of), Silent(), access)
        assert found.equal and found.complete, "replicas of a clean cluster differ"
        assert [count for _, count in found.rows] == [counts[name] + more] * 3, found.rows

    for name, count in counts.items():
        wanted = options(cluster, name)
        # One task makes one file of a range, as long as it has room for all of it; files of several lie over
        # each other, and each node merges them.
        frame = rows_of(session, count).coalesce(1)
        frame.write.format("lockstep").options(**wanted, writeMode="bulk").mode("append").save()
    # The first job of a session starts its workers, and has the JVM compile.
    run("few")
    loaded = best(rounds, pids, {name: partial(run, name) for name in ("tiny", "few")})
    written = WRITTEN_EACH * len(ranges)
    connection = CqlConnection.open(Endpoint(cluster.contact_points[0], PORTS[0]), 30.0)
    for name in ("few", "many"):
        for number in range(written):
            connection.query(
                f"INSERT INTO bench.{name} (id, at) VALUES ({-1 - number}, 0)", (), Consistency.ALL
            )
    connection.close()
    runs = {name: partial(run, name, written) for name in ("few", "many")}
    first, since = best(1, pids, runs), best(rounds, pids, runs)
    found = {}
    for title, figures in (
        ("audit, one file a range", loaded),
        ("audit, first", first),
        ("audit", since),
    ):
        less, all_ = ({"rows": counts[name], **one} for name, one in figures.items())
        found[title] = compared(less, all_)
    return found


def streamed(session: Any, cluster: LocalCluster, pids: list[int], count: int, rounds: int) -> dict[str, Any]:
    counts = {"few_changes": int(count * FEW), "changes": count}
    turn = 0

    def run(name: str) -> None:
        nonlocal turn
        turn += 1
        place = SCRATCH / f"spark_pipeline_checkpoint_{turn}"
        shutil.rmtree(place, ignore_errors=True)
        asked = {"changes": "rows", "startingOffsets": "earliest", "safetyIntervalMs": "0"}
        query = (
            session.readStream.format("lockstep")
            .options(**options(cluster, name), **asked)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(place))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S), "the stream has not ended"
        seen = sum(one["numInputRows"] for one in query.recentProgress)
        shutil.rmtree(place, ignore_errors=True)
        assert seen == counts[name], f"{seen} of {counts[name]} changes came"

    for name, rows in counts.items():
        # Changes of the table are captured, so these are statements.
        rows_of(session, rows).write.format("lockstep").options(**options(cluster, name)).mode(
            "append"
        ).save()
    run("few_changes")
    figures = best(rounds, pids, {name: partial(run, name) for name in counts})
    few, all_ = ({"rows": counts[name], **figures[name]} for name in counts)
    return {"stream": compared(few, all_)}


def measure(rows: int, changes: int, rounds: int, only: Sequence[str] = PARTS) -> dict[str, Any]:
    # Both compilers of Java: a benchmark is no short job.
    session = local_session("pipeline", CORES, spark_driver_extraJavaOptions="", spark_driver_memory="2g")
    figures: dict[str, Any] = {}
    try:
        with nodes() as (cluster, pids):
            prepare(cluster)
            # First: table files of loads are the same everywhere as long as nothing else was written.
            if "audits" in only:
                figures |= audited(session, cluster, pids, rows, rounds)
            if "writes" in only:
                figures |= writes(session, cluster, pids, rows, rounds)
            if "streams" in only:
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
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    sys.stderr.write(" ".join(f"{name}={value}" for name, value in environment().items()) + "\n")
    figures = measure(given.rows, given.changes, given.rounds, given.only)
    save("spark_pipeline", figures)
    jobs = figures["jobs"]
    base = {name: jobs[name]["rows_per_s"] for name in (PARQUET, PARQUET_READ) if name in jobs}
    listed: list[list[object]] = [["", "rows", "rows/s", "of parquet", "goal", "node cpu us/row"]]
    parts: list[list[object]] = [["", "rows", "s", "few", "s", "fixed s", "more rows/s", "goal", *_COSTS]]
    for name, one in jobs.items():
        goal, rate = GOALS.get(name, ""), one["rows_per_s"]
        if "fixed_s" in one:
            walls = (one["rows"], one["wall_s"], one["few"], one["few_wall_s"], one["fixed_s"])
            costs = [one[f"more_{what}_us"] for what in ("cpu", "readers", "spark")]
            parts.append([name, *walls, one["more_rows_per_s"] or "?", goal, *costs])
            continue
        measure_ = base[PARQUET_READ if "read" in name else PARQUET]
        listed.append([name, one["rows"], rate, rate / measure_, goal, one["node_cpu_us_per_row"]])
    for title, rows in (("Jobs", listed), ("Audits and streams", parts)):
        if len(rows) > 1:
            print(table(f"{title} on Spark, local[{CORES}]", rows))


if __name__ == "__main__":
    main()
