"""Says that a node refuses requests of clients because it has too many, while it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lockstep.node.conditions import Conditions
from lockstep.runtime.ports import Clock
from lockstep.server.turns import Turns

#: It holds for so long after the last refusal: clients back off and come again meanwhile.
HOLDS_S: Final = 10.0


def watch_overload(conditions: Conditions, turns: Turns, clock: Clock) -> Callable[[], None]:
    """To be looked at whenever somebody wants to know."""
    seen, since_s = turns.shed, 0.0

    def look() -> None:
        nonlocal seen, since_s
        if turns.shed != seen:
            seen, since_s = turns.shed, clock.monotonic_s()
            conditions.report("NODE_OVERLOADED")
        elif clock.monotonic_s() - since_s >= HOLDS_S:
            conditions.clear("NODE_OVERLOADED")

    return look
