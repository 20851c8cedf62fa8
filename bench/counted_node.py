"""A node process that counts its syncs: `counted_node.py DIRECTORY --config FILE` behaves as the node's entry
and keeps the number, eight bytes, in DIRECTORY/<node>.syncs. With `--profile` after DIRECTORY it also leaves
a cProfile of its main thread there."""

from __future__ import annotations

import cProfile
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lockstep.server.main import main


def _counted(sync: Callable[[int], None], count: mmap.mmap) -> Callable[[int], None]:
    def counting(descriptor: int) -> None:
        # Threads race here only under load on several files; a figure off by a few is good enough.
        count[:8] = (int.from_bytes(count[:8], "big") + 1).to_bytes(8, "big")
        sync(descriptor)

    return counting


def run() -> int:
    directory, arguments = Path(sys.argv[1]), sys.argv[2:]
    profiled = arguments[0] == "--profile"
    if profiled:
        del arguments[0]
    directory.mkdir(parents=True, exist_ok=True)
    node = Path(arguments[-1]).parent.name
    with (directory / f"{node}.syncs").open("w+b") as file:
        file.write(bytes(8))
        file.flush()
        count = mmap.mmap(file.fileno(), 8)
        os.fdatasync = _counted(os.fdatasync, count)  # type: ignore[assignment]
        os.fsync = _counted(os.fsync, count)  # type: ignore[assignment]
        if not profiled:
            return main(arguments)
        profile = cProfile.Profile(time.process_time)
        try:
            return profile.runcall(main, arguments)
        finally:
            profile.dump_stats(directory / f"{node}.prof")


if __name__ == "__main__":
    sys.exit(run())
