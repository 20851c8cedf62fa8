"""How long an empty node takes to join three running ones: from its start until it serves.

Usage: python bench/bootstrap.py [rounds]
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from measuring import save, table
from quorum_path import running_cluster

TARGET_S = 2.0


def measure(rounds: int) -> dict[str, Any]:
    """Seconds of each join, every one into three nodes of their own."""
    found = []
    for _ in range(rounds):
        with running_cluster("bootstrap") as cluster:
            began_s = time.perf_counter()
            cluster.add()
            found.append(round(time.perf_counter() - began_s, 3))
    median = statistics.median(found)
    return {"joins_s": found, "median_s": median, "target_s": TARGET_S, "met": median < TARGET_S}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    return [
        ["join", "median s", "target s"],
        ["an empty node into 3", figures["median_s"], figures["target_s"]],
    ]


def main() -> int:
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    print(table("Bootstrap of an empty node", rows_of(figures)))
    save("bootstrap", figures)
    return 0 if figures["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
