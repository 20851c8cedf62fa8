"""Planted bugs of the timestamps that nodes give."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.node.stamps import Stamps
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced


def _follow_clock() -> contextlib.AbstractContextManager[None]:
    """Timestamps fall when the clock is set back."""
    original = Stamps.next_us

    def next_us(self: Any) -> int:
        self._last_us = min(self._last_us, self._wall_us())
        return original(self)

    return replaced((Stamps, "next_us", next_us))


def _forgotten() -> contextlib.AbstractContextManager[None]:
    """A node that starts goes by its clock alone."""
    return replaced((Stamps, "_stored_us", lambda self: 0))


def _reserved_unsynced() -> contextlib.AbstractContextManager[None]:
    """What is reserved counts before it is durable."""
    original = Stamps._save

    async def save(self: Any, bound_us: int) -> None:
        self._bound_us = max(self._bound_us, bound_us)
        await original(self, bound_us)

    return replaced((Stamps, "_save", save))


STAMPS = (
    Planted("stamps_follow_clock", "a later write loses after a step back", "stamps", _follow_clock),
    Planted("stamps_forgotten", "a later write loses after a restart", "stamps", _forgotten),
)
#: Brought about by a test: it takes a crash within milliseconds, and a step back before the start.
DIRECTED = (Planted("stamps_unsynced", "a crash takes reservations back", "stamps", _reserved_unsynced),)
