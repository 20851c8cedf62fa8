"""How long a message waited on its way, from the sender's own clock.

The clocks of two nodes differ by something unknown, so the difference between sending and receiving says
nothing. How much larger it is than the smallest one seen lately says how much longer than the fastest message
this one took.

Invariant: apart from the drift of clocks within DELAY_WINDOW_S a delay is never told too long.
"""

from __future__ import annotations

from typing import Final

#: The smallest difference is of the last one or two such times: clocks drift by some ms a minute at worst.
DELAY_WINDOW_S: Final = 30.0


class QueueingDelay:
    """Of the messages of one connection."""

    __slots__ = ("_before_s", "_least_s", "_until_s")

    def __init__(self) -> None:
        self._before_s: float | None = None
        self._least_s: float | None = None
        self._until_s = 0.0

    def delay_s(self, sent_s: float, now_s: float) -> float:
        """How much longer than the fastest lately a message took that was sent then and is read now."""
        took_s = now_s - sent_s
        if now_s >= self._until_s:
            self._until_s = now_s + DELAY_WINDOW_S
            self._before_s, self._least_s = self._least_s, took_s
        if self._least_s is None or took_s < self._least_s:
            self._least_s = took_s
        least_s = self._least_s if self._before_s is None else min(self._least_s, self._before_s)
        return took_s - least_s
