"""A token bucket: how many bytes a second may pass, over all who ask.

Invariant: in any span of t seconds at most `rate * t` bytes, one burst and one part are let through; turns
are given in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio

from lockstep.runtime.ports import Clock

#: Seconds of the rate that may pass at once after a pause: it evens out the loop's own hiccups.
BURST_S = 0.1


class Throttle:
    def __init__(self, clock: Clock, rate_bytes_s: int) -> None:
        """`rate_bytes_s` 0: nothing is held back. It may be changed at any time."""
        self._clock = clock
        self.rate_bytes_s = rate_bytes_s
        #: Seconds that somebody was held back, in total.
        self.waited_s = 0.0
        self._free_at_s = 0.0

    async def take(self, size: int, wait_ms_max: float) -> bool:
        """Wait for the turn of `size` bytes; False, and nothing taken, when that would take too long."""
        if not self.rate_bytes_s:
            return True
        now_s = self._clock.monotonic_s()
        begins_s = max(self._free_at_s, now_s - BURST_S)
        wait_s = begins_s - now_s
        if wait_s * 1000 > wait_ms_max:
            await self._hold(wait_ms_max / 1000)
            return False
        self._free_at_s = begins_s + size / self.rate_bytes_s
        if wait_s > 0:
            await self._hold(wait_s)
        return True

    async def _hold(self, seconds: float) -> None:
        self.waited_s += seconds
        await asyncio.sleep(seconds)

    def part_bytes(self, wanted: int) -> int:
        """How large a part should be so that one alone does not keep others waiting for long."""
        if not self.rate_bytes_s:
            return wanted
        return max(1, min(wanted, self.rate_bytes_s // 4))
