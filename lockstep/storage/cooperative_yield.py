"""How work in the background keeps out of the way of requests.

Invariant: of any longer span such work takes at most one part in `1 + rest` of the loop's time, and it gives
the loop a turn after each step.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lockstep.runtime.ports import Clock

#: Rest for each second of work: the work takes a fifth of the loop when nothing else wants it.
REST: Final = 4.0
#: Shorter rests are saved up: a timer of the loop costs about as much as this.
_REST_S_MIN: Final = 0.002


class CooperativeYield:
    def __init__(self, clock: Clock, rest: float = REST) -> None:
        self._clock = clock
        self._rest = rest
        self._owed_s = 0.0
        self._began_s = clock.monotonic_s()

    async def turn(self) -> None:
        """Between two steps of work."""
        self._owed_s += (self._clock.monotonic_s() - self._began_s) * self._rest
        if self._owed_s >= _REST_S_MIN:
            owed, self._owed_s = self._owed_s, 0.0
            await asyncio.sleep(owed)
        else:
            await asyncio.sleep(0)
        self._began_s = self._clock.monotonic_s()
