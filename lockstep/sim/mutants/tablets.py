"""Planted bugs of tablets that move by themselves: what fills, empties and fences them."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.metadata.transitions import Lone
from lockstep.sim.plant import Planted, replaced
from lockstep.topology import step as step_module
from lockstep.topology.stages import DELETING, STREAMING
from lockstep.topology.tablets import recount

_Context = contextlib.AbstractContextManager[None]
_work_orders = step_module._work_orders


def _without(kinds: Any) -> _Context:
    def orders(mover: Any, cluster: Any, dead: Any, given_up: Any = ()) -> Any:
        found = _work_orders(mover, cluster, dead, given_up)
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


def _left_behind() -> _Context:
    """Who is down as it gives a tablet up keeps it, as on the ring."""

    def has_no_part(mover: Any, one: Any, node: Any, cluster: Any, dead: Any, given_up: Any) -> bool:
        return node in dead

    return replaced((step_module, "_has_no_part", has_no_part))


def _changed_while_it_moves() -> _Context:
    """A change of the factor begins while tablets of the keyspace move by themselves."""
    return replaced((recount, "refuse_moving", lambda cluster, keyspace: None))


TABLETS = (
    Planted("tablet_not_filled", "a tablet is read where it was not copied to", "tablets", _not_filled),
    Planted("tablet_not_emptied", "nodes keep tablets that they gave up", "tablets", _not_emptied),
    Planted("tablet_left_behind", "nodes that were down keep tablets", "tablets", _left_behind),
    Planted(
        "tablet_changed_on_its_way", "a factor changes as tablets move", "tablets", _changed_while_it_moves
    ),
)
