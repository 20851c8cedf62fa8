"""Planted bugs of how operations end, are taken back and are taken over."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.metadata.operations import OPERATIONS, Stage
from lockstep.node.work.moved import Amount, Moved
from lockstep.node.work.topology_driver import TopologyDriver
from lockstep.quorum.plans import PlanBook
from lockstep.sim.plant import Planted, replaced
from lockstep.topology.kinds import ring
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.step import WorkReport, work_key, work_orders
from lockstep.values.memo import keep


def _cancel_forgets_lock() -> contextlib.AbstractContextManager[None]:
    """What was taken back keeps its ranges locked."""
    original = ring._ended

    def ended(cluster: Any, operation: Any, epoch: int) -> Any:
        value = original(cluster, operation, epoch)
        if operation.stage is not Stage.ROLLBACK_TO_NORMAL:
            return value
        return value.changed(OPERATIONS.set(msgspec.structs.replace(value.running, locks=cluster.locks)))

    return replaced((ring, "_ended", ended))


def _replaced_stays() -> contextlib.AbstractContextManager[None]:
    """The dead node is a member still when another has its place."""
    original = ring._end_directory

    def end(directory: Any, operation: Any, epoch: int) -> Any:
        value = original(directory, operation, epoch)
        if not isinstance(operation.body, Replace) or operation.stage is Stage.ROLLBACK_TO_NORMAL:
            return value
        dead = msgspec.structs.replace(directory.by_id[operation.body.replaced], tokens=())
        return value.with_node(dead)

    return replaced((ring, "_end_directory", end))


def _address_believed() -> contextlib.AbstractContextManager[None]:
    """Whoever is at a node's address counts as that node, also when another one has taken it over."""
    original = PlanBook._make

    def make(self: Any, placement: Any, placed: Any, consistency: Any, writing: bool) -> Any:
        keep(self.cluster.directory, "shadowed", frozenset())
        return original(self, placement, placed, consistency, writing)

    return replaced((PlanBook, "_make", make))


def _successor_skips_work() -> contextlib.AbstractContextManager[None]:
    """A coordinator that takes over takes the work of the stage it finds for done."""
    original = TopologyDriver._round

    async def one(self: Any) -> bool:
        if not getattr(self, "took_over", False):
            self.took_over = True
            cluster = self._state.current
            for operation in cluster.operations:
                for order in work_orders(operation, cluster, ()):
                    self._work[work_key(order)] = WorkReport.DONE
        return bool(await original(self))

    return replaced((TopologyDriver, "_round", one))


def _new_leader_counts_anew() -> contextlib.AbstractContextManager[None]:
    """A coordinator tells what it has heard so far, although others have heard more."""

    def told(self: Any, request: Any, cluster: Any) -> Any:
        operation = cluster.operations_by_id.get(request.operation_id)
        more = self.uncounted(operation, cluster) if operation is not None else Amount()
        return Amount(request.moved_bytes + more.bytes, request.moved_fragments + more.fragments)

    return replaced((Moved, "told", told))


def _ended_stage_not_counted() -> contextlib.AbstractContextManager[None]:
    """What a stage moved is not in the entry that ends it."""

    def uncounted(self: Any, operation: Any, cluster: Any) -> Any:
        return Amount()

    return replaced((Moved, "uncounted", uncounted))


#: Of what a test brings about.
DIRECTED = (
    Planted("new_leader_counts_anew", "progress goes back", "moves", _new_leader_counts_anew),
    Planted("ended_stage_not_counted", "progress goes back", "moves", _ended_stage_not_counted),
)
TOPOLOGY = (
    Planted("cancel_forgets_lock", "ranges stay locked for ever", "moves", _cancel_forgets_lock),
    Planted("replaced_stays", "the dead node is a member still", "kinds", _replaced_stays),
    Planted("address_believed", "the heir of an address answers for the dead", "kinds", _address_believed),
    Planted("successor_skips_work", "a new replica lacks data", "moves", _successor_skips_work),
)
