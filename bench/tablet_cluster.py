"""Tablets on real nodes: throughput beside the ring, one move of a tablet, a newcomer under load.

`turns`: QUORUM writes and reads of a table with tablets and of the same table on the ring, in turns on the
same three nodes: at least 0.98 times as many of both. `growth`: a fourth node comes to three that hold the
same rows, once on the ring and once in tablets, while clients overwrite them: it answers for its first tablet
within a second of having joined, and has its share sooner than the one on the ring. Then tablets are moved by
hand, one after the other. The seconds are those of a machine that does nothing else.
Usage: python bench/tablet_cluster.py [--quick] [turns] [growth]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from measuring import CpuMeter, save, table
from quorum_path import WARM_UP_S, Driver, pids_of, running_cluster

from lockstep.local.clusters import LocalCluster
from lockstep.values.errors import LockstepError

SPACE = "spread"
TABLETS = 16
#: The new keyspace by where it lies: on the ring, or in tablets of its own.
OPTIONS = {"ring": "", "tablets": f" AND tablets = {{'enabled': true, 'initial': {TABLETS}}}"}
#: Goals: throughput in units of the ring's, and seconds from having joined to the first tablet.
RATIO, FIRST_S = 0.98, 1.0
ROWS, VALUE_BYTES = 60_000, 1000
IN_FLIGHT, LOADED, LOADED_S = 64, 4, 15.0
MOVED = 5
POLL_S, END_S = 0.02, 300.0


def turns(seconds: float, rounds: int) -> dict[str, Any]:
    """Requests a second and CPU of each by kind and place; the order is turned around from round to round."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {
        kind: {place: [] for place in OPTIONS} for kind in ("write", "read")
    }
    with running_cluster("turns") as cluster:
        meter = CpuMeter(pids_of(cluster))
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        shared = {
            "seconds": seconds,
            "warm_up_s": WARM_UP_S / 2,
            "in_flight": IN_FLIGHT,
            "value_bytes": 100,
        }
        try:
            for place, options in OPTIONS.items():
                driver.make_space(place, options)
            for number in range(rounds):
                for kind, by_place in found.items():
                    for place in sorted(OPTIONS, reverse=bool(number % 2)):
                        by_place[place].append(driver.run(meter, run=kind, space=place, **shared))
        finally:
            driver.close()
    return {
        "rounds": found,
        "per_second": {kind: _ratio(of, "per_second") for kind, of in found.items()},
        "cpu": {kind: _ratio(of, "cpu_us_each") for kind, of in found.items()},
    }


def _ratio(by_place: dict[str, list[dict[str, Any]]], name: str) -> float:
    """Of tablets in units of the ring's, over all rounds."""
    on_ring, on_tablets = (sum(run[name] for run in by_place[place]) for place in ("ring", "tablets"))
    return float(on_tablets / on_ring)


class Watch(threading.Thread):
    """Looks at what a node holds, and keeps when it was so much first. Monotonic seconds.

    It asks for the list of tables, which the metadata answer: the map of a table comes with sizes, for which
    every node reads of all its tablets, and fifty of those a second take longer than what is measured.
    """

    def __init__(self, cluster: LocalCluster, node: int) -> None:
        super().__init__(daemon=True)
        self._admin = cluster.admin("n1")
        self._node = node
        self._ended = threading.Event()
        self.seen_s: dict[int, float] = {}

    def run(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                told = self._admin.get("/v1/tablets", keyspace=SPACE)
            except LockstepError:
                continue
            held = sum(one["tablets"] for one in told["nodes"] if one["node"] == self._node)
            self.seen_s.setdefault(held, time.monotonic())

    def end(self) -> None:
        self._ended.set()
        self.join()

    def reached(self, count: int) -> float:
        """When it first held at least so many; several may come between two looks."""
        deadline_s = time.monotonic() + END_S
        while not any(held >= count for held in tuple(self.seen_s)):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"node {self._node} never held {count} tablets: {sorted(self.seen_s)}")
            time.sleep(POLL_S)
        return min(at_s for held, at_s in tuple(self.seen_s.items()) if held >= count)


def grown(place: str, rows: int) -> dict[str, Any]:
    """Seconds from the start of a fourth node until it serves and, with tablets, until it has the first of
    them and its share."""
    with running_cluster(f"grown-{place}") as cluster:
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        try:
            driver.make_space(SPACE, OPTIONS[place])
            driver.fill(VALUE_BYTES, rows, space=SPACE, noise=True)
            load: dict[str, Any] = {
                "space": SPACE,
                "keys": rows,
                "in_flight": LOADED,
                "value_bytes": VALUE_BYTES,
            }
            meter = CpuMeter(pids_of(cluster))
            meter.start()
            driver.begin(run="overwrite", seconds=LOADED_S, warm_up_s=1.0, **load)
            watch = Watch(cluster, 4) if place == "tablets" else None
            began_s = time.monotonic()
            if watch is not None:
                watch.start()
            cluster.add()
            joined_s = time.monotonic()
            found: dict[str, Any] = {"joined_s": joined_s - began_s}
            if watch is not None:
                found["first_tablet_s"] = max(0.0, watch.reached(1) - joined_s)
                found["balanced_s"] = watch.reached(TABLETS * 3 // 4) - began_s
                watch.end()
            else:
                found["balanced_s"] = found["joined_s"]
            found["cpu_s"] = meter.stop()["cpu_s"]
            driver.end()
            if place == "tablets":
                found["moves"] = moved(cluster)
            return found
        finally:
            driver.close()


def moved(cluster: LocalCluster) -> list[dict[str, float]]:
    """Milliseconds and bytes of moves by hand, one after the other, from beginning to end."""
    admin = cluster.admin("n1")
    admin.post("/v1/tablets/balance", {"on": False})

    def tablets() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = admin.get("/v1/tablets", keyspace=SPACE, table="rows")["tablets"]
        return found

    def is_still() -> bool:
        return not any(one["moving"] for one in admin.get("/v1/tablets", keyspace=SPACE)["tables"])

    _until(is_still)
    found = []
    for number in range(MOVED):
        one = tablets()[number]
        on = [replica["node"] for replica in one["replicas"]]
        target = next(node for node in (1, 2, 3, 4) if node not in on)
        began_s = time.monotonic()
        wanted = {"keyspace": SPACE, "table": "rows", "tablet": number, "from": on[-1], "to": target}
        admin.post("/v1/tablets/move", wanted)
        _until(is_still)
        found.append({"ms": (time.monotonic() - began_s) * 1000, "bytes": one["bytes"] or 0})
        there = [replica["node"] for replica in tablets()[number]["replicas"]]
        if target not in there:
            raise RuntimeError(f"tablet {number} went back to nodes {there}")
    return found


def _until(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + END_S
    while not reached():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {END_S:g} s")
        time.sleep(POLL_S)


PARTS = ("turns", "growth")


def measure(quick: bool = False, chosen: tuple[str, ...] = PARTS) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "turns" in chosen:
        found["turns"] = turns(2.0, 2) if quick else turns(5.0, 4)
    if "growth" in chosen:
        rows = ROWS // 6 if quick else ROWS
        found["growth"] = {"rows": rows, **{place: grown(place, rows) for place in OPTIONS}}
    return found


def goals(figures: dict[str, Any]) -> list[tuple[str, float, str, float, bool]]:
    """(what, measured, at least or at most, goal, whether it is met)."""
    found = []
    if "turns" in figures:
        for kind, ratio in figures["turns"]["per_second"].items():
            found.append((f"QUORUM {kind}s a second, x ring", ratio, ">=", RATIO, ratio >= RATIO))
    if "growth" in figures:
        on_ring, spread = figures["growth"]["ring"], figures["growth"]["tablets"]
        first_s, balanced_s, ring_s = spread["first_tablet_s"], spread["balanced_s"], on_ring["balanced_s"]
        found.append(("first tablet after having joined, s", first_s, "<=", FIRST_S, first_s <= FIRST_S))
        found.append(
            ("has its share, s; goal: join of the ring", balanced_s, "<=", ring_s, balanced_s <= ring_s)
        )
    return found


def show(figures: dict[str, Any]) -> None:
    if "turns" in figures:
        rows: list[list[object]] = [["", "on", "a second", "CPU us", "p50 ms", "p99 ms"]]
        for kind, by_place in figures["turns"]["rounds"].items():
            for place, runs in by_place.items():
                names = ("per_second", "cpu_us_each", "p50_ms", "p99_ms")
                rows.append([kind, place, *(statistics.median(run[name] for run in runs) for name in names)])
        print(table("A table on the ring and in tablets, in turns; medians", rows))
        cpu = ", ".join(f"{kind} {ratio:.3f}" for kind, ratio in figures["turns"]["cpu"].items())
        print(f"CPU of a request with tablets, in units of the ring's: {cpu}")
    if "growth" in figures:
        growth = figures["growth"]
        names = ("joined_s", "first_tablet_s", "balanced_s", "cpu_s")
        rows = [["", *names]]
        rows += [[place, *(growth[place].get(name, 0.0) for name in names)] for place in OPTIONS]
        mb = growth["rows"] * VALUE_BYTES / 1e6
        print(table(f"A fourth node comes to three with {mb:.0f} MB on each, under load", rows))
        moves = growth["tablets"]["moves"]
        ms, size = (statistics.median(move[name] for move in moves) for name in ("ms", "bytes"))
        print(f"one tablet of {size / 1e6:.1f} MB by hand, from beginning to end: {ms:.0f} ms")
    judged = [(*one[:4], "yes" if one[4] else "NO") for one in goals(figures)]
    print(table("goals", [("what", "measured", "", "goal", "met"), *judged]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    given = parser.parse_args()
    figures = measure(given.quick, tuple(given.parts) or PARTS)
    save("tablet_cluster", figures)
    show(figures)
    return 0 if all(one[4] for one in goals(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
