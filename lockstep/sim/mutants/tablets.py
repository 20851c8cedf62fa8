"""Planted bugs of tablets that move by themselves: what fills, empties and fences them."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.metadata.transitions import Lone
from lockstep.sim.plant import Planted, replaced
from lockstep.topology import step as step_module
from lockstep.topology.stages import DELETING, STREAMING

_Context = contextlib.AbstractContextManager[None]
_work_orders = step_module._work_orders


def _without(kinds: Any) -> _Context:
    def orders(mover: Any, cluster: Any, dead: Any) -> Any:
        found = _work_orders(mover, cluster, dead)
        if not isinstance(mover, Lone):
            return found
        return tuple(order for order in found if order.kind not in kinds)

    return replaced((step_module, "_work_orders", orders))


def _not_filled() -> _Context:
    """Reads move to a newcomer that got nothing of what was there."""
    return _without(STREAMING)


def _not_emptied() -> _Context:
    """A node keeps what it gave up."""
    return _without(DELETING)


TABLETS = (
    Planted("tablet_not_filled", "a tablet is read where it was not copied to", "tablets", _not_filled),
    Planted("tablet_not_emptied", "nodes keep tablets that they gave up", "tablets", _not_emptied),
)
