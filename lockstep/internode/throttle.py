"""A token bucket: how many bytes a second may pass, over all who ask.

Invariant: in any span of t seconds at most `rate * t` bytes, one burst, one part and what came late for its
turn are let through; turns are given in the order in which they were first asked for. So nobody is passed for
ever by others who ask more often, however low the rate is.
"""

from __future__ import annotations

import asyncio

from lockstep.runtime.ports import Clock

#: Seconds of the rate that may pass at once after a pause: it evens out the loop's own hiccups.
BURST_S = 0.1
#: For how long a turn is kept for whoever was told to ask again: more than a round trip takes anywhere.
TURN_KEPT_S = 1.0

#: Instants of the turns of those who were told to ask again, by what they ask for.
LoopBudget = dict[tuple[int, int], float]


class Throttle:
    def __init__(self, clock: Clock, rate_bytes_s: int) -> None:
        """`rate_bytes_s` 0: nothing is held back. It may be changed at any time."""
        self._clock = clock
        self.rate_bytes_s = rate_bytes_s
        #: Seconds that somebody was held back, in total.
        self.waited_s = 0.0
        self._free_at_s = 0.0

    async def take(
        self, size: int, wait_ms_max: float, turns: LoopBudget | None = None, what: tuple[int, int] = (0, 0)
    ) -> bool:
        """Wait for the turn of `size` bytes; False, and nothing taken, when that would take too long.

        With `turns`, the turn is kept there under `what`: who asks for the same again has its place.
        """
        if not self.rate_bytes_s:
            return True
        now_s = self._clock.monotonic_s()
        begins_s = turns.pop(what, 0.0) if turns is not None else 0.0
        is_kept = begins_s > now_s - TURN_KEPT_S
        if not is_kept:
            begins_s = max(self._free_at_s, now_s - BURST_S)
        wait_s = begins_s - now_s
        is_far = wait_s * 1000 > wait_ms_max
        if not is_kept and not (is_far and turns is None):
            self._free_at_s = begins_s + size / self.rate_bytes_s
        if is_far:
            if turns is not None:
                turns[what] = begins_s
            await self._hold(wait_ms_max / 1000)
            return False
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
