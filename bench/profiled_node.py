"""A node process under cProfile: `profiled_node.py DIRECTORY --config FILE` behaves as the node's entry and
leaves DIRECTORY/<node>.prof when the node has stopped. Times in C libraries and threads are not in it."""

from __future__ import annotations

import cProfile
import sys
import time
from pathlib import Path

from lockstep.server.main import main


def run() -> int:
    directory, arguments = Path(sys.argv[1]), sys.argv[2:]
    directory.mkdir(parents=True, exist_ok=True)
    profile = cProfile.Profile(time.process_time)
    try:
        return profile.runcall(main, arguments)
    finally:
        profile.dump_stats(directory / f"{Path(arguments[-1]).parent.name}.prof")


if __name__ == "__main__":
    sys.exit(run())
