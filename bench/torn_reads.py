"""Reads of partitions that are written whole, on real nodes under faults: torn ones, and ones that go back.

Two keyspaces of one cluster, one tracked and one not, get the same load and meet the same faults: nodes are
killed, stopped and cut off while they write and answer. Of the tracked one no read may show part of a
mutation, or less than an earlier one; the other one must show some such reads, else this could not see them.
Usage: python bench/torn_reads.py [--reads N] [--seed N] [--in-flight N] [--minutes N]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import Any

from client_process import ClientProcess
from measuring import ROOT, SCRATCH, save, table
from proof_faults import Faults
from quorum_path import driver_python

from lockstep.testing import Cluster

KINDS = ("kill", "pause", "isolate", "split", "restart")
#: A node is away for about as long as requests wait, and others follow soon.
AWAY_S, QUIET_S = (0.3, 2.5), (0.2, 1.0)
SPACES = ("tracked", "untracked")
#: Requests that wait for nobody for long; and no hints, which no tracked table has either.
SETTINGS = {"timeouts": {"read_ms": 500, "write_ms": 500}, "hints": {"hinted_handoff_enabled": False}}
SCHEMA = (
    "CREATE KEYSPACE {0} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 3}} "
    "AND replication_type = '{0}'",
    "CREATE TABLE {0}.wide (key int, at int, value int, PRIMARY KEY (key, at))",
)


def clients_of(cluster: Cluster, seed: int, in_flight: int) -> ClientProcess:
    command = [str(driver_python()), str(ROOT / "bench" / "torn_client.py")]
    command += [",".join(cluster.contact_points), str(cluster.port), str(seed), str(in_flight), *SPACES]
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return ClientProcess(command, SCRATCH / "torn_client.log")


def reads_of(clients: ClientProcess) -> int:
    """Whole partitions read of the tracked keyspace."""
    return int(clients.told["spaces"]["tracked"]["whole"])


def measure(reads: int, seed: int = 1, in_flight: int = 48, minutes: float = 60.0) -> dict[str, Any]:
    """Until so many whole partitions of the tracked keyspace were read, or so much time is over."""
    began_s = time.monotonic()
    home = SCRATCH / "torn"
    shutil.rmtree(home, ignore_errors=True)
    with Cluster(3, name="torn", directory=home, settings=SETTINGS) as cluster:
        for space in SPACES:
            for text in SCHEMA:
                cluster.execute(text.format(space))
        faults = Faults(cluster, seed, lambda node: None, KINDS, AWAY_S, QUIET_S)
        clients = clients_of(cluster, seed, in_flight)
        try:
            while reads_of(clients) < reads and time.monotonic() - began_s < minutes * 60:
                struck = faults.strike()
                clients.ask("counts")
                found = clients.told["spaces"]
                shown = " ".join(
                    f"{space}: {one['torn']} torn {one['back']} back" for space, one in found.items()
                )
                print(f"{time.monotonic() - began_s:7.1f} s {reads_of(clients):>9,} reads  {shown}  {struck}")
            clients.ask("stop")
        finally:
            clients.close()
    told = clients.told
    return {"seconds": time.monotonic() - began_s, "seed": seed, "struck": faults.struck, **told}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = [["keyspace", "whole reads", "reads of one row", "torn", "gone back"]]
    for space, one in figures["spaces"].items():
        rows.append([space, one["whole"], one["single"], one["torn"], one["back"]])
    return rows


def failures(figures: dict[str, Any]) -> list[str]:
    """Why these figures are not what they have to be."""
    tracked, untracked = figures["spaces"]["tracked"], figures["spaces"]["untracked"]
    found = [f"tracked: {example}" for example in tracked["examples"]]
    if not untracked["torn"]:
        found.append("nothing torn was seen of the untracked keyspace either: these reads say nothing")
    return found


def show(figures: dict[str, Any]) -> None:
    print(table("Reads at QUORUM under faults of partitions that are written whole", rows_of(figures)))
    print(f"struck: {figures['struck']}; goal: no tracked read is torn or goes back")
    for failure in failures(figures):
        print(f"MISSED: {failure}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=48)
    parser.add_argument("--minutes", type=float, default=60.0)
    given = parser.parse_args()
    figures = measure(given.reads, given.seed, given.in_flight, given.minutes)
    save("torn_reads", figures)
    show(figures)
    return 1 if failures(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
