"""Planted bugs of counters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from lockstep.coordination import counters as counters_module
from lockstep.coordination.counter_leader import CounterLeader, CounterReply
from lockstep.node import recovering as recovering_module
from lockstep.quorum.policies import COUNTER
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.storage.counter_generation import generation_record
from lockstep.values.errors import PeerTimeout, RangeLacking


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
    failures = tuple(row for row in COUNTER.failures if PeerTimeout not in row[0])
    eager = msgspec.structs.replace(COUNTER, failures=failures)
    return replaced((counters_module, "COUNTER", eager))


def _count_on_when_wiped() -> contextlib.AbstractContextManager[None]:
    """Who lost its store counts on from nothing, in the shards that others still have."""
    original = CounterLeader._check

    def check(self: Any, request: Any) -> None:
        with contextlib.suppress(RangeLacking):
            original(self, request)

    return replaced(
        (recovering_module, "generation_record", lambda _: generation_record(1)),
        (CounterLeader, "_check", check),
    )


COUNTERS = (
    Planted("count_again", "a change counts twice", "counts", _count_what_comes_again),
    Planted("count_side_by_side", "one change hides another", "counts", _count_side_by_side),
    Planted("count_on_when_wiped", "a wiped replica hides what it counted", "stores", _count_on_when_wiped),
    Planted("count_after_timeout", "two replicas count one change", "counts", _count_again_after_a_timeout),
)
