"""How long an empty node takes to join three running ones, from its start until it serves, by how many tables
there are; all of them are empty.

The CPU is that of all four nodes together, the new one's start included: it holds, more or less, while the
machine does other work, when the seconds do not. Usage: python bench/bootstrap.py [rounds] [tables ...]
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from measuring import CpuMeter, cpu_s, save, table
from quorum_path import Driver, pids_of, running_cluster

TARGET_S = 2.0
TABLES = (0, 100, 1000, 10_000)
#: A join with so many tables takes at most this many times as long as one without.
TARGET_TABLES, TARGET_RATIO = 1000, 1.5
#: It takes minutes to make more tables than this: one join among them has to do.
TABLES_OF_ALL_ROUNDS = 1000


def measure(rounds: int, tables: tuple[int, ...] = TABLES) -> dict[str, Any]:
    """Seconds and CPU of each join, every one into three nodes of their own, in turns."""
    joins: dict[int, list[dict[str, float]]] = {count: [] for count in tables}
    for number in range(rounds):
        for count in tables:
            if not number or count <= TABLES_OF_ALL_ROUNDS:
                joins[count].append(_join(count))
    medians = {count: statistics.median(one["seconds"] for one in of) for count, of in joins.items()}
    cpus = {count: statistics.median(one["cpu_s"] for one in of) for count, of in joins.items()}
    return {
        "joins": {str(count): of for count, of in joins.items()},
        "median_s": {str(count): median for count, median in medians.items()},
        "cpu_s": {str(count): cpu for count, cpu in cpus.items()},
        "target_s": TARGET_S,
        "target_ratio": TARGET_RATIO,
        "met": medians[tables[0]] < TARGET_S and _is_flat(medians),
    }


def _is_flat(medians: dict[int, float]) -> bool:
    judged = [median for count, median in medians.items() if count <= TARGET_TABLES]
    return max(judged) < TARGET_RATIO * judged[0]


def _join(tables: int) -> dict[str, float]:
    with running_cluster("bootstrap") as cluster:
        if tables:
            driver = Driver(cluster.contact_points, cluster.file.cql_port)
            try:
                driver.make_tables(tables)
            finally:
                driver.close()
        old = pids_of(cluster)
        meter = CpuMeter(old)
        meter.start()
        began_s = time.perf_counter()
        cluster.add()
        seconds = time.perf_counter() - began_s
        used_s = meter.stop()["cpu_s"]
        new = [pid for pid in pids_of(cluster) if pid not in old]
        return {"seconds": round(seconds, 3), "cpu_s": round(used_s + sum(map(cpu_s, new)), 2)}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = [["empty tables", "median s", "CPU s", "x without", "target s"]]
    medians = figures["median_s"]
    least = next(iter(medians.values()))
    for count, median in medians.items():
        rows.append([int(count), median, figures["cpu_s"][count], median / least, figures["target_s"]])
    return rows


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    figures = measure(rounds, tuple(map(int, sys.argv[2:])) or TABLES)
    print(table("An empty node joins three", rows_of(figures)))
    save("bootstrap", figures)
    return 0 if figures["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
