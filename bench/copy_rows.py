"""Rows of a CSV file into three real nodes and back, with the `COPY` of an unmodified cqlsh.

`COPY FROM` sends batches of up to 20 rows from several processes at once, at QUORUM; afterwards every row is
counted, and what `COPY TO` writes must hold the same rows. Figures are rows a second, the servers' CPU a row,
and what should stay zero: hints, and connections between nodes that broke. Usage: python bench/copy_rows.py
[rows]
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from measuring import SCRATCH, CpuMeter, save, table
from quorum_path import pids_of, running_cluster

from lockstep.local.clusters import LocalCluster

ROWS = 100_000
KEYSPACE = "bench"
COLUMNS = ("id", "at", "name", "price", "note")
SCHEMA = (
    f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 3}};"
    f"CREATE TABLE {KEYSPACE}.copied (id int, at timestamp, name text, price decimal, note text, "
    "PRIMARY KEY (id, at))"
)
COPIED = f"{KEYSPACE}.copied ({', '.join(COLUMNS)})"
_MOMENT = "2026-01-{day:02d} {hour:02d}:30:00.000+0000"
#: How cqlsh writes quotes inside quotes.
_WRITTEN: Any = {"doublequote": False, "escapechar": "\\"}
_COUNTED = re.compile(r"^\s*(\d+)\s*$", re.MULTILINE)
_LOST = re.compile(r"internode\.disconnected")
_HINTS = re.compile(r"^lockstep_hints_left_total (\d+)", re.MULTILINE)


def write_rows(file: Path, rows: int) -> None:
    with file.open("w", newline="") as out:
        writer = csv.writer(out, **_WRITTEN)
        for number in range(rows):
            at = _MOMENT.format(day=number % 28 + 1, hour=number % 24)
            note = f'text, with "quotes" and {number} signs' if number % 7 else ""
            writer.writerow((number, at, f"name {number * 7919 % rows}", f"{number % 1000}.25", note))


def rows_in(file: Path) -> list[tuple[str, ...]]:
    with file.open(newline="") as text:
        return sorted(tuple(row) for row in csv.reader(text, **_WRITTEN))


def shell(cluster: LocalCluster, statements: str) -> str:
    """What cqlsh prints; RuntimeError when it fails."""
    command = [str(Path(sys.executable).with_name("cqlsh")), "--request-timeout=300", "-e", statements]
    command += [cluster.contact_points[0], str(cluster.file.cql_port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "Failed" in done.stdout:
        raise RuntimeError(f"cqlsh: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def lost_connections(cluster: LocalCluster) -> int:
    logs = (cluster.paths.log(node.name) for node in cluster.file.nodes)
    return sum(len(_LOST.findall(log.read_text())) for log in logs)


def hints_left(cluster: LocalCluster) -> int:
    """Of all nodes, since their start."""
    total = 0
    for host in cluster.contact_points:
        with urllib.request.urlopen(f"http://{host}:{cluster.file.admin_port}/metrics", timeout=30) as answer:
            total += sum(map(int, _HINTS.findall(answer.read().decode())))
    return total


def timed(cluster: LocalCluster, rows: int, statements: str) -> dict[str, float]:
    meter, began_s = CpuMeter(pids_of(cluster)), time.perf_counter()
    meter.start()
    shell(cluster, statements)
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds, "rows_s": rows / seconds, "cpu_us_row": meter.stop()["cpu_s"] / rows * 1e6}


def measure(rows: int = ROWS) -> dict[str, Any]:
    """RuntimeError when a row is missing or another came back."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    given, got = SCRATCH / "given.csv", SCRATCH / "got.csv"
    write_rows(given, rows)
    got.unlink(missing_ok=True)
    with running_cluster("copy") as cluster:
        shell(cluster, SCHEMA)
        before = lost_connections(cluster)
        begun = timed(cluster, rows, f"CONSISTENCY QUORUM; COPY {COPIED} FROM '{given}'")
        counted = _COUNTED.findall(
            shell(cluster, f"CONSISTENCY QUORUM; SELECT count(*) FROM {KEYSPACE}.copied")
        )
        if counted != [str(rows)]:
            raise RuntimeError(f"{counted} rows are there instead of {rows}")
        ended = timed(cluster, rows, f"CONSISTENCY QUORUM; COPY {COPIED} TO '{got}'")
        lost, hints = lost_connections(cluster) - before, hints_left(cluster)
    if rows_in(got) != rows_in(given):
        raise RuntimeError(f"{got} has other rows than {given}")
    return {"rows": rows, "copy_from": begun, "copy_to": ended, "connections_lost": lost, "hints": hints}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    names = ("seconds", "rows_s", "cpu_us_row")
    shown: list[list[object]] = [["", *names]]
    for kind in ("copy_from", "copy_to"):
        shown.append([kind, *(figures[kind][name] for name in names)])
    return shown


def show(figures: dict[str, Any]) -> None:
    print(table(f"{figures['rows']:,} rows through cqlsh, 3 nodes, QUORUM", rows_of(figures)))
    print(f"connections between nodes that broke: {figures['connections_lost']}, hints: {figures['hints']}")


def main() -> None:
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
    save("copy_rows", figures)
    show(figures)


if __name__ == "__main__":
    main()
