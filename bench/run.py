"""`make bench`: all benchmarks, their results as JSON under bench/results and as tables here.

The bare message path and the product's path are measured in turn in the same run, with the same driver, value
size and number of requests in flight, so that their ratio holds whatever else the machine does.
Usage: python bench/run.py [--quick] [--only NAME ...] [--spark]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from measuring import ROOT, environment, save, table

from lockstep.values.errors import LockstepError

sys.path.insert(0, str(ROOT))

IN_FLIGHT = (64, 192)
VALUE_BYTES = 100
#: CPU of a QUORUM write, all nodes together, in units of the bare path's under the same driver.
TARGET_RATIO = 3.0


def quorum(quick: bool) -> dict[str, Any]:
    """QUORUM writes and reads beside the bare path under the same driver, before and after: the mean counts.

    The lower bound is the bare path without a driver's protocol, loaded in crowds by a client of its own.
    """
    import bare_cql
    import bare_path
    import quorum_path

    seconds = 4.0 if quick else 10.0
    found = []
    for in_flight in IN_FLIGHT:
        before = bare_cql.measure(seconds / 2, in_flight, VALUE_BYTES)
        product = quorum_path.measure(seconds, in_flight, VALUE_BYTES)
        after = bare_cql.measure(seconds / 2, in_flight, VALUE_BYTES)
        bound = bare_path.measure(seconds / 2, in_flight, VALUE_BYTES)
        bare_us = (before["cpu_us_each"] + after["cpu_us_each"]) / 2
        write_us = product["writes"]["cpu_us_each"]
        found.append(
            {
                "in_flight": in_flight,
                "bare": [before, after],
                "lower_bound": bound,
                "product": product,
                "bare_us": bare_us,
                "ratio": write_us / bare_us,
                "ratio_to_lower_bound": write_us / bound["cpu_us_each"],
            }
        )
    rows: list[list[object]] = [
        ["in flight", "", "a second", "CPU us", "system us", "p50 ms", "p99 ms", "x bare", "x bound"]
    ]
    for one in found:
        rows.append([one["in_flight"], "lower bound", *_shown(one["lower_bound"]), "", ""])
        rows.extend([one["in_flight"], "bare path", *_shown(bare), "", ""] for bare in one["bare"])
        ratios = (one["ratio"], one["ratio_to_lower_bound"])
        rows.append([one["in_flight"], "QUORUM write", *_shown(one["product"]["writes"]), *ratios])
        rows.append([one["in_flight"], "QUORUM read", *_shown(one["product"]["reads"]), "", ""])
    print(table(f"Requests of {VALUE_BYTES} bytes; CPU of all three nodes together", rows))
    print(f"target: a write costs at most {TARGET_RATIO:g} times the bare path under the same driver")
    return {"value_bytes": VALUE_BYTES, "target_ratio": TARGET_RATIO, "runs": found}


def _shown(figures: dict[str, Any]) -> list[float]:
    names = ("per_second", "cpu_us_each", "system_us_each", "p50_ms", "p99_ms")
    return [figures[name] for name in names]


def layers(quick: bool) -> dict[str, Any]:
    import layers as benchmark

    from lockstep.runtime.real import run

    figures = run(lambda: benchmark.measure(10 if quick else benchmark.ROUNDS))
    print(table("One QUORUM write, without kernel, loop and threads", benchmark.rows_of(figures)))
    return figures


def startup(quick: bool) -> dict[str, Any]:
    import startup as benchmark

    figures = benchmark.measure(3 if quick else 5)
    print(table("Start-up", benchmark.rows_of(figures)))
    return figures


def schema(quick: bool) -> dict[str, Any]:
    import schema_scale as benchmark

    figures = benchmark.measure(1_000 if quick else benchmark.TABLES)
    benchmark.show(figures)
    return figures


def metadata(quick: bool) -> dict[str, Any]:
    """Commits of the metadata log beside the peers that are installed."""
    import metadata_commits as benchmark

    if quick:
        figures = benchmark.measure(2.0, submitters=(1, benchmark.TARGET_SUBMITTERS), rounds=1)
    else:
        figures = benchmark.measure()
    benchmark.report(figures)
    return figures


def internode(quick: bool) -> dict[str, Any]:
    return _lines("internode_path.py", *(("20000", "6000") if quick else ()))


def cql(quick: bool) -> dict[str, Any]:
    return _lines("cql_plan.py")


def topology(quick: bool) -> dict[str, Any]:
    """Placement of a whole large ring, one join on it entry by entry, one lookup; beside what is allowed."""
    import topology as benchmark

    figures = benchmark.measure(quick)
    benchmark.show(figures)
    return figures


def requests(quick: bool) -> dict[str, Any]:
    return _lines("request_queue.py")


def storage(quick: bool) -> dict[str, Any]:
    return _lines("storage_paths.py", *(("2000",) if quick else ()))


def spark(quick: bool) -> dict[str, Any]:
    jobs = ("spark_pipeline.py", *(("100000", "20000", "1") if quick else ()))
    connector = ("spark_connector.py", *(("100000", "1") if quick else ()))
    beside = ("beside_scans.py", *(("100000", "1") if quick else ()))
    scripts = (("spark_scan.py",), jobs, connector, beside)
    return {"output": [line for script in scripts for line in _lines(*script)["output"]]}


def _lines(script: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark that prints for itself, and keep what it prints."""
    command = [sys.executable, str(ROOT / "bench" / script), *arguments]
    search = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=search, stdout=subprocess.PIPE, text=True, check=True)
    print(f"\n{script}\n{done.stdout.rstrip()}")
    return {"output": done.stdout.splitlines()}


def filtered(quick: bool) -> dict[str, Any]:
    """SELECTs that filter and group many rows, told by columns and by giving all rows, in turns."""
    import filtered_rows as benchmark

    figures = benchmark.measure(2 if quick else 7)
    benchmark.show(figures)
    return figures


def streaming(quick: bool) -> dict[str, Any]:
    """Streaming of files between two processes, beside a raw copy and the storage library alone."""
    import streaming as benchmark

    figures = benchmark.measure(200, 1) if quick else benchmark.measure()
    print(table("Streaming of rows of 100 bytes between two processes", benchmark.rows_of(figures)))
    return figures


def workloads(quick: bool) -> dict[str, Any]:
    """Requests of all shapes, and point reads while the background merge works."""
    import workloads as benchmark

    figures = benchmark.measure(3.0 if quick else 10.0)
    benchmark.show(figures)
    return figures


def peers(quick: bool) -> dict[str, Any]:
    """Reads of many rows and conditional batches, in turns with Cassandra where that can be fetched."""
    import peer_reads as benchmark

    figures = benchmark.measure(3.0, 1) if quick else benchmark.measure()
    benchmark.show(figures)
    return figures


def overwrites(quick: bool) -> dict[str, Any]:
    """CPU of a QUORUM read over minutes in which the same keys are overwritten."""
    import overwrites as benchmark

    figures = benchmark.measure(1.0, 20_000) if quick else benchmark.measure()
    benchmark.show(figures)
    return figures


def overload(quick: bool) -> dict[str, Any]:
    """Goodput, latency of who is admitted, refusals and recovery under ten times the load that saturates."""
    import overload as benchmark

    figures = benchmark.measure(8.0 if quick else benchmark.OVERLOAD_S)
    benchmark.show(figures)
    return figures


def bootstrap(quick: bool) -> dict[str, Any]:
    import bootstrap as benchmark

    figures = benchmark.measure(1, (0, 100)) if quick else benchmark.measure(3)
    print(table("An empty node joins three", benchmark.rows_of(figures)))
    return figures


def copy(quick: bool) -> dict[str, Any]:
    """A CSV file through cqlsh, into three nodes and back."""
    import copy_rows as benchmark

    figures = benchmark.measure(10_000 if quick else benchmark.ROWS)
    benchmark.show(figures)
    return figures


def tablets(quick: bool) -> dict[str, Any]:
    """Maps, plans and how even tables lie, in this process; beside what is allowed."""
    import tablets as benchmark

    figures = benchmark.measure(("maps", "entry", "rolling") if quick else tuple(benchmark.PARTS))
    benchmark.show(figures)
    return figures


def tablet_cluster(quick: bool) -> dict[str, Any]:
    """Tablets on real nodes beside the ring: throughput in turns, a newcomer under load, single moves."""
    import tablet_cluster as benchmark

    figures = benchmark.measure(quick)
    benchmark.show(figures)
    return figures


def torn(quick: bool) -> dict[str, Any]:
    """Torn reads of tracked and of untracked tables, whose nodes are killed, stopped and cut off."""
    import torn_reads as benchmark

    figures = benchmark.measure(2_000, minutes=2) if quick else benchmark.measure(100_000, minutes=20)
    benchmark.show(figures)
    return figures


def outage(quick: bool) -> dict[str, Any]:
    """A replica of a tracked table that is away for long, and catches up under load."""
    import long_outage as benchmark

    figures = benchmark.measure(4.0, 1) if quick else benchmark.measure()
    benchmark.show(figures)
    return figures


def tracked(quick: bool) -> dict[str, Any]:
    """What tracked tables cost beside untracked ones."""
    import tracked_reads as benchmark

    figures = benchmark.measure(("counts", "summaries", "starts") if quick else tuple(benchmark.PARTS))
    benchmark.show(figures)
    return figures


BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "quorum": quorum,
    "workloads": workloads,
    "overwrites": overwrites,
    "peers": peers,
    "overload": overload,
    "copy": copy,
    "layers": layers,
    "startup": startup,
    "metadata": metadata,
    "schema": schema,
    "internode": internode,
    "cql": cql,
    "topology": topology,
    "bootstrap": bootstrap,
    "requests": requests,
    "storage": storage,
    "filtered": filtered,
    "streaming": streaming,
    "tablets": tablets,
    "tablet_cluster": tablet_cluster,
    "tracked_reads": tracked,
    "torn_reads": torn,
    "long_outage": outage,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, for a look")
    parser.add_argument("--only", nargs="+", choices=[*BENCHMARKS, "spark"], metavar="NAME")
    parser.add_argument("--spark", action="store_true", help="also what runs on Spark, which needs pyspark")
    given = parser.parse_args()
    chosen = given.only or list(BENCHMARKS)
    if given.spark and "spark" not in chosen:
        chosen.append("spark")
    known = {**BENCHMARKS, "spark": spark}
    print(" ".join(f"{name}={value}" for name, value in environment().items()))
    failed = []
    for name in chosen:
        if name == "spark" and importlib.util.find_spec("pyspark") is None:
            print("spark: left out, pyspark is not installed (make setup-spark)", file=sys.stderr)
            continue
        try:
            print(f"wrote {save(name, known[name](given.quick)).relative_to(ROOT)}")
        except (RuntimeError, OSError, subprocess.CalledProcessError, LockstepError) as error:
            # One benchmark that cannot run does not take the others' figures away.
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
