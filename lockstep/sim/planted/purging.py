"""Planted bugs of purging."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.node.purging import TombstonePurge
from lockstep.sim.planted.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.storage.purging import Purge


def _purge_unrepaired() -> contextlib.AbstractContextManager[None]:
    """Tombstones go at once, whatever replicas have missed."""
    far_s = 1 << 40
    return replaced(
        (TombstonePurge, "before", lambda *_: far_s), (TombstonePurge, "_is_held", lambda *_: False)
    )


def _purge_in_sessions() -> contextlib.AbstractContextManager[None]:
    """Nobody looks whether something that may still deliver older data is under way."""
    return replaced((TombstonePurge, "_is_held", lambda self, cluster: False))


def _purge_newest_fragment() -> contextlib.AbstractContextManager[None]:
    """A row's tombstones go with the fragment they are in, and its older fragments stay."""
    original = Purge._place

    def place(self: Any, partition: Any, place_: bytes, pairs: Any, *rest: Any) -> Any:
        return original(self, partition, place_, pairs[:1], *rest)

    return replaced((Purge, "_place", place))


PURGING = (
    Planted("purge_unrepaired", "deleted rows return", "purge", _purge_unrepaired),
    Planted("purge_newest_fragment", "deleted rows return", "purge", _purge_newest_fragment),
)
#: What a test brings about.
DIRECTED = (Planted("purge_in_sessions", "older data arrives after its deletion", "", _purge_in_sessions),)
