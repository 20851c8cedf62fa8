"""A replica of a tracked table that is away for longer than single mutations are kept for it, on real nodes.

One of three nodes is killed, rows are written, and it is started again under a small load of writes. Told are
what the others' journals keep meanwhile, how long the node takes to hold everything and what is sent for it,
and how slow the load's writes are then: beside the same load while nothing happens, and while the same node
starts and has missed next to nothing. Usage: python bench/long_outage.py [--seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
import urllib.request
from typing import Any

from measuring import SCRATCH, CpuMeter, save, table
from quorum_path import FIRST_ADDRESS, PORTS, Driver

from lockstep.local.clusters import LocalCluster
from lockstep.testing.nodes import Session

#: A silent replica is away after this; operators wait for ten minutes.
AFTER_S = 2.0
SETTINGS = {"tracking": {"cohort_after_ms": int(AFTER_S * 1000)}}
SPACE, AWAY, VALUE_BYTES = "away", "n3", 100
NODES = ("n1", "n2", AWAY)
#: The load leaves the nodes time; what is missed is written as fast as they take it.
IN_FLIGHT, WRITERS = 4, 32
#: What a node keeps under the load, of some seconds: no more than that is not there yet.
KEPT_MAX = 5000
#: Between two looks at a node, and the longest wait for it.
LOOK_S, WAIT_S = 0.1, 300.0
#: How much slower the slowest hundredth of the load's writes may be while a node catches up.
SLOWER_MAX = 1.2


class Watch:
    """What nodes say of themselves."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._port = cluster.file.cql_port

    def _address(self, name: str) -> str:
        return self._cluster.file.node(name).address

    def journal(self, name: str) -> tuple[int, int, int]:
        """Mutations that a node keeps, those in cohorts, and ranges that it is getting."""
        with Session(self._address(name), self._port, timeout_s=WAIT_S) as session:
            rows = session.execute("SELECT * FROM system_views.mutation_journal", consistency="ONE")
        getting = sum(bool(row.getting_from) for row in rows)
        return sum(row.entries for row in rows), sum(row.in_cohorts for row in rows), getting

    def metric(self, name: str, metric: str) -> float:
        address = f"http://{self._address(name)}:{self._cluster.file.admin_port}/metrics"
        with urllib.request.urlopen(address, timeout=WAIT_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == metric
        )

    def wait(self, most: int) -> float:
        """Seconds until no node has anything in cohorts, gets a range, or keeps more mutations than that."""
        began_s = time.monotonic()
        while any(kept > most or apart or getting for kept, apart, getting in map(self.journal, NODES)):
            if time.monotonic() - began_s > WAIT_S:
                raise TimeoutError("a node does not get what it missed")
            time.sleep(LOOK_S)
        return time.monotonic() - began_s


def _load(driver: Driver, cluster: LocalCluster, seconds: float, in_flight: int) -> dict[str, Any]:
    return driver.run(
        CpuMeter(()),
        run="write",
        space=SPACE,
        in_flight=in_flight,
        value_bytes=VALUE_BYTES,
        seconds=seconds,
        warm_up_s=0.5,
    )


def _away(
    cluster: LocalCluster, driver: Driver, watch: Watch, away_s: float, seconds: float
) -> dict[str, Any]:
    """Kill a node, write for `away_s`, and start it under load that lasts for `seconds`."""
    cluster.kill(AWAY)
    kept: list[int] = []
    written = 0
    for _ in range(int(away_s / AFTER_S)):
        written += _load(driver, cluster, AFTER_S, WRITERS)["requests"]
        kept.append(watch.journal("n1")[0])
    if away_s:
        while watch.journal("n1")[0] or watch.journal("n2")[0]:
            time.sleep(LOOK_S)
    took_s: list[float] = []

    def start() -> None:
        cluster.start([AWAY])
        # The load goes on: what is written meanwhile is kept for a moment.
        took_s.append(watch.wait(KEPT_MAX))

    missed = watch.journal("n1")[1]
    starting = threading.Thread(target=start)
    starting.start()
    during = _load(driver, cluster, seconds, IN_FLIGHT)
    starting.join()
    return {
        "written": written,
        "missed": missed,
        "kept": kept,
        "took_s": took_s[0],
        "sent_bytes": watch.metric(AWAY, "lockstep_tracking_cohort_bytes_total"),
        "p50_ms": during["p50_ms"],
        "p99_ms": during["p99_ms"],
        "per_second": during["per_second"],
    }


def measure(seconds: float = 8.0, rounds: int = 3) -> dict[str, Any]:
    """Each round: the load alone, a short absence, and a long one."""
    home = SCRATCH / "clusters"
    shutil.rmtree(home / "outage", ignore_errors=True)
    found: dict[str, list[dict[str, Any]]] = {"alone": [], "short": [], "long": []}
    made = LocalCluster.create(
        "outage", 3, first_address=FIRST_ADDRESS, ports=PORTS, home=home, settings=SETTINGS
    )
    with made as cluster:
        cluster.start()
        watch = Watch(cluster)
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        try:
            driver.make_space(SPACE, " AND replication_type = 'tracked'")
            for _ in range(rounds):
                found["alone"].append(_load(driver, cluster, seconds, IN_FLIGHT))
                found["short"].append(_away(cluster, driver, watch, 0.0, seconds))
                found["long"].append(_away(cluster, driver, watch, seconds, seconds))
        finally:
            driver.close()
    return {"seconds": seconds, "silence_s": AFTER_S, "rounds": found}


def show(figures: dict[str, Any]) -> None:
    found = figures["rounds"]
    rows: list[list[object]] = [["load beside", "writes/s", "p50 ms", "p99 ms"]]
    titles = {"alone": "nothing", "short": "a node that starts", "long": "one that also catches up"}
    for kind, title in titles.items():
        several = found[kind]
        middle = [
            sorted(one[name] for one in several)[len(several) // 2]
            for name in ("per_second", "p50_ms", "p99_ms")
        ]
        rows.append([title, *map(float, middle)])
    print(table("A tracked replica that was away for long", rows))
    for one in found["long"]:
        print(
            f"{one['missed']:,} mutations in cohorts; kept after each {figures['silence_s']:g} s of writes: "
            f"{one['kept']}; all held {one['took_s']:.1f} s after the start, {one['sent_bytes']:,.0f} bytes"
        )
    slower = float(str(rows[3][3])) / float(str(rows[2][3]))
    told = "" if slower <= SLOWER_MAX else " MISSED"
    print(f"p99 beside that of the start alone: {slower:.2f}, goal {SLOWER_MAX}{told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    figures = measure(given.seconds, given.rounds)
    save("long_outage", figures)
    show(figures)


if __name__ == "__main__":
    main()
