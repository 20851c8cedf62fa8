"""Requests of all shapes against three real node processes, how merging disturbs them, and a soak.

Load comes from a compiled driver on the same cores. Figures: requests a second, percentiles as the driver
sees them, and the servers' CPU a request (a request of a scan is a page of 1,000 rows). `--soak MINUTES`
repeats all shapes for that long and watches memory. Usage: python bench/workloads.py [seconds]
[--soak MINUTES]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from measuring import CpuMeter, resident_mb, save, table
from quorum_path import WARM_UP_S, Driver, pids_of, running_cluster

#: (kind, requests in flight).
SHAPES = (("write", 64), ("read", 64), ("slice", 16), ("scan", 2))
#: While the background merge runs, the 99th percentile is at most this many times the quiet one.
TARGET_P99_RATIO = 2.0
VALUE_BYTES = 100
#: Writes that make the background merge work: few rows, written again and again.
OVERWRITES_IN_FLIGHT = 32


def measure(seconds: float = 10.0) -> dict[str, Any]:
    """Figures by shape; then point reads alone, and beside writes that keep the background merge at work."""
    found: dict[str, Any] = {}
    with running_cluster("workloads") as cluster:
        pids = pids_of(cluster)
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        try:
            driver.fill(VALUE_BYTES)
            for kind, in_flight in SHAPES:
                found[kind] = _run(driver, pids, kind, in_flight, seconds)
            found["merging"] = _merging(cluster, driver, pids, seconds)
        finally:
            driver.close()
        found["resident_mb"] = max(resident_mb(pid) for pid in pids)
    return found


def _run(driver: Driver, pids: list[int], kind: str, in_flight: int, seconds: float) -> dict[str, Any]:
    return driver.run(
        CpuMeter(pids),
        run=kind,
        seconds=seconds,
        warm_up_s=WARM_UP_S,
        in_flight=in_flight,
        value_bytes=VALUE_BYTES,
    )


def _merging(cluster: Any, driver: Driver, pids: list[int], seconds: float) -> dict[str, Any]:
    """Point reads beside writes of rows that are new, which need no merge, and of the same few rows."""
    other = Driver(cluster.contact_points, cluster.file.cql_port)
    figures = {}
    try:
        for name, kind in (("quiet", "write"), ("merging", "overwrite")):
            other.begin(
                run=kind,
                seconds=seconds + WARM_UP_S,
                warm_up_s=0.5,
                in_flight=OVERWRITES_IN_FLIGHT,
                value_bytes=VALUE_BYTES,
            )
            figures[name] = _run(driver, pids, "read", 8, seconds)
            other.end()
    finally:
        other.close()
    figures["p99_ratio"] = figures["merging"]["p99_ms"] / max(figures["quiet"]["p99_ms"], 0.001)
    return figures


def soak(minutes: float) -> dict[str, Any]:
    """All shapes by turns; resident memory of each node once a turn."""
    samples: list[dict[str, Any]] = []
    failures: dict[str, int] = {}
    with running_cluster("soak") as cluster:
        pids = pids_of(cluster)
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        began_s = time.monotonic()
        try:
            driver.fill(VALUE_BYTES)
            while time.monotonic() - began_s < minutes * 60:
                turn = {kind: _run(driver, pids, kind, in_flight, 5.0) for kind, in_flight in SHAPES}
                for figures in turn.values():
                    for name, count in figures["failures"].items():
                        failures[name] = failures.get(name, 0) + count
                samples.append(
                    {
                        "at_s": time.monotonic() - began_s,
                        "resident_mb": [resident_mb(pid) for pid in pids],
                        "p99_ms": {kind: figures["p99_ms"] for kind, figures in turn.items()},
                        "requests": {kind: figures["requests"] for kind, figures in turn.items()},
                    }
                )
        finally:
            driver.close()
    return {"minutes": minutes, "samples": samples, "failures": failures}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    names = ("per_second", "cpu_us_each", "system_us_each", "p50_ms", "p99_ms")
    heading = ["", "a second", "CPU us", "system us", "p50 ms", "p99 ms"]
    return [heading, *([kind, *(figures[kind][name] for name in names)] for kind, _ in SHAPES)]


def show(figures: dict[str, Any]) -> None:
    print(table(f"Three nodes at QUORUM, values of {VALUE_BYTES} bytes", rows_of(figures)))
    merging = figures["merging"]
    print(
        f"point reads beside writes: p99 {merging['quiet']['p99_ms']:.1f} ms without merging, "
        f"{merging['merging']['p99_ms']:.1f} ms with it: {merging['p99_ratio']:.2f} times "
        f"(at most {TARGET_P99_RATIO:g})"
    )


def show_soak(figures: dict[str, Any]) -> None:
    rows: list[list[object]] = [["minute", "most resident MB", "write p99 ms", "read p99 ms"]]
    samples = figures["samples"]
    for sample in samples[:: max(1, len(samples) // 10)]:
        p99 = sample["p99_ms"]
        rows.append([sample["at_s"] / 60, max(sample["resident_mb"]), p99["write"], p99["read"]])
    print(table("Soak", rows))
    print(f"failures: {figures['failures'] or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=10.0)
    parser.add_argument("--soak", type=float, metavar="MINUTES", default=0.0)
    given = parser.parse_args()
    if given.soak:
        figures = soak(given.soak)
        save("soak", figures)
        show_soak(figures)
        return
    figures = measure(given.seconds)
    save("workloads", figures)
    show(figures)


if __name__ == "__main__":
    main()
