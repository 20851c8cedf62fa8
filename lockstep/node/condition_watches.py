"""Conditions that are looked at rather than reported: the part only keeps a state, and one watch reads it.

Invariant: a watch reads what its part knows already, at no more cost than the part itself allows.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.node.conditions import Conditions
from lockstep.node.metadata_state import MetadataState
from lockstep.storage.space import Space


def watch_metadata(conditions: Conditions, state: MetadataState) -> Callable[[], None]:
    def look() -> None:
        conditions.follow(state.broken is not None, "METADATA_STOPPED", detail=str(state.broken))

    return look


def watch_disk(conditions: Conditions, space: Space) -> Callable[[], None]:
    def look() -> None:
        conditions.follow(space.look(), "DISK_FULL", detail=f"less than {space.reserve_bytes} bytes are free")

    return look
