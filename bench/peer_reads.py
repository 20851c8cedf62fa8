"""Reads of many rows and conditional batches on three nodes of Lockstep and on three of Cassandra 5.0.6.

Both run side by side and take turns under the same compiled driver, at QUORUM: a partition of 10,000 rows
read page by page, ten rows found by a secondary index, and a batch of five inserts with one conditional
update. Figures are requests a second, percentiles as the driver sees them and the servers' CPU a request.
Cassandra has a heap of 1 GB a node and is warmed before it is measured; it syncs its log every ten seconds,
Lockstep before it acknowledges. Java 17 and Maven fetch and run it; without them it is left out. `--before
TREE` has another checkout of Lockstep take turns too. Usage: python bench/peer_reads.py [seconds] [turns]
[--before TREE] [--without-cassandra] [--only KIND ...]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from measuring import ROOT, CpuMeter, save, table
from quorum_path import Driver, driver_python, pids_of, running_cluster

sys.path.insert(0, str(ROOT))

#: (kind, requests in flight).
KINDS = (("partition", 2), ("by_index", 8), ("conditional", 4))
#: Rate beside Cassandra's, at least.
TARGET_RATES = {"partition": 0.4, "by_index": 0.8}
#: p50 of a conditional batch, at most.
TARGET_CONDITIONAL_MS = 7.0
VALUE_BYTES = 100
#: Before figures count: Cassandra compiles what it runs often, a node of Lockstep has little to warm.
CASSANDRA_WARM_S, OWN_WARM_S = 20.0, 3.0
CASSANDRA_ADDRESSES = ("127.0.0.81", "127.0.0.82", "127.0.0.83")
OWN_FIRST, BEFORE_FIRST = "127.0.0.21", "127.0.0.41"

Measured = tuple[Driver, list[int]]


@contextmanager
def own(name: str, first_address: str, tree: Path | None = None) -> Iterator[Measured]:
    """Three nodes of this checkout, or of another."""
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "lockstep.server.main")
    if tree is not None:
        command = ("env", f"PYTHONPATH={tree}", *command)
    with running_cluster(name, command, first_address) as cluster:
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        try:
            yield driver, pids_of(cluster)
        finally:
            driver.close()


@contextmanager
def cassandra() -> Iterator[Measured]:
    from conformance.compare.cassandra import running

    with ExitStack() as nodes:
        seed = CASSANDRA_ADDRESSES[0]
        pids = [nodes.enter_context(running(address, seed)) for address in CASSANDRA_ADDRESSES]
        driver = Driver(list(CASSANDRA_ADDRESSES), 9042, "datacenter1")
        try:
            yield driver, pids
        finally:
            driver.close()


def measure(
    seconds: float = 6.0,
    turns: int = 3,
    before: Path | None = None,
    kinds: Sequence[str] = (),
    *,
    beside_cassandra: bool = True,
) -> dict[str, Any]:
    """Figures by kind and system, a list of turns each."""
    driver_python()
    if beside_cassandra and (shutil.which("mvn") is None or shutil.which("java") is None):
        print("Cassandra is left out: Java 17 and Maven are not installed", file=sys.stderr)
        beside_cassandra = False
    with ExitStack() as running:
        systems = {"lockstep": running.enter_context(own("peer-reads", OWN_FIRST))}
        if before is not None:
            systems["before"] = running.enter_context(own("peer-before", BEFORE_FIRST, before))
        if beside_cassandra:
            systems["cassandra"] = running.enter_context(cassandra())
        for driver, _ in systems.values():
            driver.prepare(VALUE_BYTES)
        found: dict[str, Any] = {}
        for kind, in_flight in KINDS:
            if kinds and kind not in kinds:
                continue
            found[kind] = {name: [] for name in systems}
            for turn in range(turns):
                for name, (driver, pids) in systems.items():
                    warm_s = CASSANDRA_WARM_S if name == "cassandra" else OWN_WARM_S
                    figures = driver.run(
                        CpuMeter(pids),
                        run=kind,
                        seconds=seconds,
                        warm_up_s=warm_s if not turn else 1.0,
                        in_flight=in_flight,
                        value_bytes=VALUE_BYTES,
                    )
                    found[kind][name].append(figures)
    return {"seconds": seconds, "turns": turns, "kinds": found}


def show(figures: dict[str, Any]) -> None:
    names = ("per_second", "cpu_us_each", "p50_ms", "p99_ms")
    rows: list[list[object]] = [["", "", "a second", "CPU us", "p50 ms", "p99 ms", "x rate", "x CPU"]]
    for kind, systems in figures["kinds"].items():
        middle = {
            name: {field: median(turn[field] for turn in turns) for field in names}
            for name, turns in systems.items()
        }
        peer = middle.get("cassandra") or middle.get("before") or middle["lockstep"]
        for name, one in middle.items():
            ratios = [one[field] / max(peer[field], 1e-9) for field in ("per_second", "cpu_us_each")]
            rows.append([kind, name, *(one[field] for field in names), *ratios])
    print(table("Three nodes at QUORUM, medians of turns; ratios to Cassandra, if it is there", rows))
    targets = ", ".join(f"{kind} {least:g} times its rate" for kind, least in TARGET_RATES.items())
    print(f"targets: {targets}, conditional p50 {TARGET_CONDITIONAL_MS:g} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=6.0)
    parser.add_argument("turns", type=int, nargs="?", default=3)
    parser.add_argument("--before", type=Path, metavar="TREE")
    parser.add_argument("--without-cassandra", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], choices=[kind for kind, _ in KINDS])
    given = parser.parse_args()
    figures = measure(
        given.seconds,
        given.turns,
        given.before,
        given.only,
        beside_cassandra=not given.without_cassandra,
    )
    save("peer_reads", figures)
    show(figures)


if __name__ == "__main__":
    main()
