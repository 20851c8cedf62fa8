"""A node process whose wall clock is off: `skewed_node.py SECONDS --config FILE` behaves as the node's entry.

By how much is drawn at each start, up to so many seconds either way: the clocks of a cluster differ, and step
when nodes start again.
"""

from __future__ import annotations

import random
import sys
import time

from lockstep.runtime.real.family import RealClock
from lockstep.server.main import main


def run() -> int:
    most_s = float(sys.argv[1])
    offset_us = int(random.uniform(-most_s, most_s) * 1_000_000)
    RealClock.wall_us = lambda self: time.time_ns() // 1000 + offset_us  # type: ignore[method-assign]
    return main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(run())
