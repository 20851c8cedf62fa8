"""A node that measures itself: on each line of standard input it tells the most processor time, in
milliseconds, that one callback of its loop took since the one before, which that was, and what a fixed piece
of work takes on this processor at that moment. The time of threads beside the loop does not count, nor how
busy the machine is. Usage: as lockstep.server.main.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

import uvloop

from lockstep.server.main import main

_LONGEST: list[tuple[float, str]] = [(0.0, "")]


def _measured(run: Any) -> Any:
    def measure(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        took_ms = (time.thread_time() - began_s) * 1e3
        if took_ms > _LONGEST[0][0]:
            _LONGEST[0] = (took_ms, repr(handle)[:300])

    return measure


def _pace_ms() -> float:
    """Of allocations and look-ups, as decoding is made of."""
    began_s, kept = time.thread_time(), {}
    for number in range(100_000):
        kept[number & 1023] = (number, bytes(4))
    return (time.thread_time() - began_s) * 1e3


def _tell() -> None:
    for _ in sys.stdin:
        (took_ms, what), _LONGEST[0] = _LONGEST[0], (0.0, "")
        told = {"longest_ms": took_ms, "callback": what, "pace_ms": min(_pace_ms() for _ in range(3))}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    # The other loop is not of Python: its callbacks cannot be measured one by one.
    asyncio.Handle._run = _measured(asyncio.Handle._run)  # type: ignore[method-assign]
    uvloop.new_event_loop = asyncio.new_event_loop
    threading.Thread(target=_tell, daemon=True).start()
    sys.exit(main())
