"""The system's clocks.

Invariant: monotonic_s never steps back; wall_us is what the host believes and may jump.
"""

from __future__ import annotations

import time


class RealClock:
    """Clock port."""

    # The system's function itself, for every request asks several times.
    monotonic_s = staticmethod(time.monotonic)

    def wall_us(self) -> int:
        return time.time_ns() // 1000
