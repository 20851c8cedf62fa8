"""Planted bugs of counters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from lockstep.replication import counters as counters_module
from lockstep.replication.counter_leader import CounterLeader, CounterReply
from lockstep.replication.writes import TRANSIENT
from lockstep.sim.planted.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.values.errors import PeerTimeout


def _count_what_comes_again() -> contextlib.AbstractContextManager[None]:
    """A change that is delivered twice is added twice, also by the next process."""

    async def receive(self: Any, peer: Any, request: Any) -> CounterReply:
        await self._count(request)
        return CounterReply(True, self.incarnation)

    return replaced((CounterLeader, "_receive", receive))


def _count_side_by_side() -> contextlib.AbstractContextManager[None]:
    """Changes of one counter do not wait for each other."""

    def enter(self: CounterLeader, place: Any) -> asyncio.Lock:
        return asyncio.Lock()

    def leave(self: CounterLeader, place: Any) -> None:
        return None

    return replaced((CounterLeader, "_enter", enter), (CounterLeader, "_leave", leave))


def _count_again_after_a_timeout() -> contextlib.AbstractContextManager[None]:
    """A change is given to another replica when the first one does not answer."""
    return replaced((counters_module, "TRANSIENT", (*TRANSIENT, PeerTimeout)), *_unheard())


def _unheard() -> tuple[tuple[Any, str, Any], ...]:
    """No PeerTimeout is told apart from a refusal."""

    class Never(Exception):
        """Raised by nobody."""

    return ((counters_module, "PeerTimeout", Never),)


COUNTERS = (
    Planted("count_again", "a change counts twice", "counts", _count_what_comes_again),
    Planted("count_side_by_side", "one change hides another", "counts", _count_side_by_side),
    Planted("count_after_timeout", "two replicas count one change", "counts", _count_again_after_a_timeout),
)
