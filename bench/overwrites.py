"""What a QUORUM read costs while the same keys are overwritten for minutes, on three real node processes.

Twice as many keys are written once and read; then, turn by turn, half of them are overwritten at random for a
while, and both halves are read one after the other. What a read of untouched keys costs beside it says
what the machine and the size of the store make of it: the ratio of the two is what overwriting costs.
Figures are the servers' CPU a request, all three nodes together, and that of their event loops alone: what
the store merges by itself after a turn of writes is in the former, and weighs the more the fewer reads there
are beside it, so on a machine that does other work only the latter says what a read costs.
Usage: python bench/overwrites.py [minutes] [keys]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from measuring import CpuMeter, resident_mb, save, table
from quorum_path import Driver, pids_of, running_cluster

KEYS = 200_000
MINUTES = 4.0
IN_FLIGHT = 64
VALUE_BYTES = 100
#: Of one turn.
WRITE_S, READ_S = 20.0, 5.0
WARM_UP_S = 0.5
#: A read costs at most this many times what it cost before keys were overwritten.
TARGET_RATIO = 1.3


def measure(minutes: float = MINUTES, keys: int = KEYS) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    with running_cluster("overwrites") as cluster:
        pids = pids_of(cluster)

        def read(first: int) -> dict[str, Any]:
            return driver.run(CpuMeter(pids), run="read_overwritten", seconds=READ_S, first=first, **shared)

        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        shared = {"warm_up_s": WARM_UP_S, "in_flight": IN_FLIGHT, "value_bytes": VALUE_BYTES, "keys": keys}
        try:
            driver.fill(VALUE_BYTES, 2 * keys)
            # Of those of the nodes' steps that come late for the first requests of a kind.
            read(0)
            before = read(0)
            began_s = time.monotonic()
            while time.monotonic() - began_s < minutes * 60:
                writes = driver.run(CpuMeter(pids), run="overwrite", seconds=WRITE_S, **shared)
                # In turns, so that neither is always the one right behind the writes.
                order = (keys, 0) if len(turns) % 2 else (0, keys)
                found = {first: read(first) for first in order}
                at_s = time.monotonic() - began_s
                turns.append({"at_s": at_s, "writes": writes, "reads": found[0], "untouched": found[keys]})
        finally:
            driver.close()
        resident = max(resident_mb(pid) for pid in pids)
    return {
        "keys": keys,
        "value_bytes": VALUE_BYTES,
        "target_ratio": TARGET_RATIO,
        "before": before,
        "turns": turns,
        "worst_ratio": max(turn["reads"]["cpu_us_each"] for turn in turns) / before["cpu_us_each"],
        "loop_ratio": max(turn["reads"]["loop_us_each"] for turn in turns) / before["loop_us_each"],
        "last_ratio": turns[-1]["reads"]["cpu_us_each"] / before["cpu_us_each"],
        "beside_untouched": statistics.median(
            turn["reads"]["loop_us_each"] / turn["untouched"]["loop_us_each"] for turn in turns
        ),
        "resident_mb": resident,
    }


def show(figures: dict[str, Any]) -> None:
    before = figures["before"]
    rows: list[list[object]] = [
        [
            "second",
            "overwrites",
            "CPU us a write",
            "CPU us a read",
            "of it the loops",
            "untouched, the loops",
            "reads a second",
            "p50 ms",
            "p99 ms",
        ],
        [0, 0, 0.0, *_shown(before, before)],
    ]
    written = 0
    for turn in figures["turns"]:
        written += turn["writes"]["requests"]
        rows.append(
            [
                int(turn["at_s"]),
                written,
                turn["writes"]["cpu_us_each"],
                *_shown(turn["reads"], turn["untouched"]),
            ]
        )
    print(table(f"QUORUM reads beside overwrites of {figures['keys']:,} keys", rows))
    print(
        f"a read costs {figures['last_ratio']:.2f} times what it cost at first in the end, "
        f"{figures['worst_ratio']:.2f} times at worst (at most {TARGET_RATIO:g}); "
        f"{figures['loop_ratio']:.2f} times at worst on the loops alone; "
        f"{figures['beside_untouched']:.2f} times what reads of untouched keys cost beside it (median, loops)"
    )


def _shown(reads: dict[str, Any], untouched: dict[str, Any]) -> list[object]:
    others = [reads[name] for name in ("per_second", "p50_ms", "p99_ms")]
    return [reads["cpu_us_each"], reads["loop_us_each"], untouched["loop_us_each"], *others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=MINUTES)
    parser.add_argument("keys", type=int, nargs="?", default=KEYS)
    given = parser.parse_args()
    figures = measure(given.minutes, given.keys)
    save("overwrites", figures)
    show(figures)


if __name__ == "__main__":
    main()
