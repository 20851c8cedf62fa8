"""Planted bugs of tablets that move by themselves: what fills, empties and fences them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.transitions import Lone
from lockstep.placement.placements import RingPlacement
from lockstep.sim.plant import Planted, replaced
from lockstep.topology import step as step_module
from lockstep.topology import streams
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


def _of_tablets(mover: Any, cluster: Any) -> bool:
    """Whether it changes the replication of a keyspace with tablets."""
    return any(one.group in cluster.tablets.by_group for one in cluster.transitions.of(mover.id))


def _recount_not_filled() -> _Context:
    """A replica more is read, and got nothing of what was there."""

    def orders(mover: Any, cluster: Any, dead: Any, given_up: Any = ()) -> Any:
        found = _work_orders(mover, cluster, dead, given_up)
        if isinstance(mover, Lone) or not _of_tablets(mover, cluster):
            return found
        return tuple(order for order in found if order.kind not in STREAMING)

    return replaced((step_module, "_work_orders", orders))


def _counted_as_before() -> _Context:
    """Who has not heard of another factor goes on counting by the old one: tablets keep their epochs."""

    def recounted(cluster: Any, keyspace: Any, to: Any, epoch: int) -> Any:
        rings = []
        for group in sorted(keyspace.groups):
            ring = cluster.placements.ring(group)
            rings.append(RingPlacement(ring.id, to, ring.sectors))
        changed = msgspec.structs.replace(keyspace, replication=to)
        return cluster.changed(
            SCHEMA.set(cluster.schema.with_keyspace(changed)),
            PLACEMENTS.set(cluster.placements.with_rings(rings)),
        )

    return replaced((recount, "recounted_tablets", recounted))


def _dropped_before_others_have_it() -> _Context:
    """A replica goes whose writes those that stay may lack."""
    return replaced((streams, "refills", lambda transition, dc_of: ()))


TABLETS = (
    Planted("tablet_not_filled", "a tablet is read where it was not copied to", "tablets", _not_filled),
    Planted("tablet_not_emptied", "nodes keep tablets that they gave up", "tablets", _not_emptied),
    Planted(
        "tablet_recount_not_filled",
        "one more replica is read before it is filled",
        "tablets",
        _recount_not_filled,
    ),
    Planted(
        "tablet_counted_as_before",
        "a quorum is counted by the factor of before",
        "tablets",
        _counted_as_before,
    ),
    Planted(
        "tablet_dropped_early",
        "a replica goes before those that stay have what it has",
        "tablets",
        _dropped_before_others_have_it,
    ),
)
