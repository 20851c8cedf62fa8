"""Spreads parts of a batch over processes, and says what one took.

It belongs to the machine, not to what is simulated. Invariant: the results are those of one process; only the
order in which they come, and what they cost, are the machine's.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def spread(work: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """`work` of each part as it ends, in at most a process a core; both go to other processes by name."""
    jobs = min(os.cpu_count() or 1, len(parts))
    if jobs <= 1:
        for part in parts:
            yield work(part)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
        waiting = [pool.submit(work, part) for part in parts]
        for done in concurrent.futures.as_completed(waiting):
            yield done.result()


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` answers, and the seconds of CPU that it took."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began
