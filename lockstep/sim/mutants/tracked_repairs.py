"""Planted bugs of repairs of tracked tables and of restores into them: what is awaited, what is reported, and
who is read by ids."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.metadata import schema_change
from lockstep.node.repairing.data_against_ids import TrackedRepairs
from lockstep.node.repairing.id_waits import IdWaits
from lockstep.node.work.repairs import Comparison
from lockstep.sim.plant import Planted, replaced
from lockstep.topology import repairs
from lockstep.tracking.held import NOTHING, Held
from lockstep.tracking.waiting import Wait

_Context = contextlib.AbstractContextManager[None]
_SCENARIO = "tracked_repairs"


def _over_once_captured() -> _Context:
    """A wait is over once it is known what to wait for."""
    return replaced((Wait, "lacks", lambda self, node: NOTHING))


def _one_participants_ids() -> _Context:
    """What one participant holds is all that is awaited."""
    heard = Wait.heard

    def of_first(self: Wait, node: int, held: Held | None) -> Wait:
        after = heard(self, node, held)
        if after.is_captured and not self.is_captured:
            return msgspec.structs.replace(after, wanted=after.told[self.nodes[0]])
        return after

    return replaced((Wait, "heard", of_first))


TRACKED_REPAIRS = (
    Planted("tracked_repair_over_at_once", "a replica lacks writes", _SCENARIO, _over_once_captured),
    Planted("tracked_repair_of_one", "a replica lacks writes", _SCENARIO, _one_participants_ids),
)


def _under_way_reported() -> _Context:
    """What differs is looked at again without waiting for the ids of then."""
    wait = IdWaits.run

    async def run(self: Any, repair: Any, group: Any, nodes: Any, ranges: Any, progress: Any = None) -> None:
        if progress is not None:
            await wait(self, repair, group, nodes, ranges, progress)

    return replaced((IdWaits, "run", run))


def _found_and_not_sent() -> _Context:
    """What lacks is reported, and is not sent."""

    async def send(self: Any, repair: Any, node: Any, mutations: Any, progress: Any) -> None: ...

    return replaced((Comparison, "send", send))


def _nothing_found() -> _Context:
    """Whatever differs is taken for a write under way."""

    async def judge(self: Any, repair: Any, unit: Any, table: Any, suspects: Any, progress: Any) -> None: ...

    return replaced((TrackedRepairs, "_judge", judge))


def _restored_by_ids() -> _Context:
    """Tables are read by ids while rows without are brought to them."""
    return replaced((repairs, "untold", lambda cluster, parts, epoch: cluster.schema))


def _emptied_by_ids() -> _Context:
    """A table that a restore empties is read by ids from then on."""
    return replaced((schema_change, "_still_restored", lambda cluster, schema, change: schema))


#: What a test brings about.
DIRECTED = (
    Planted("tracked_repair_under_way", "what is well is called wrong", "", _under_way_reported),
    Planted("tracked_repair_unsent", "a replica lacks rows", "", _found_and_not_sent),
    Planted("tracked_repair_blind", "damage is not named", "", _nothing_found),
    Planted("tracked_restore_by_ids", "rows are seen and then not", "", _restored_by_ids),
    Planted("tracked_restore_emptied_by_ids", "rows are seen and then not", "", _emptied_by_ids),
)
