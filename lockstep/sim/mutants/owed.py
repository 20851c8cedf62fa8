"""Planted bugs of what is owed to replicas: hints and logged batches."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from lockstep.handoff import batches
from lockstep.handoff.batch_store import ForgetBatch
from lockstep.handoff.batches import Batches
from lockstep.handoff.hint_delivery import HintDelivery, Taken
from lockstep.handoff.hint_store import HintStore
from lockstep.internode import verbs
from lockstep.node.membership.decommission_handoff import DecommissionHandoff
from lockstep.replica.messages import WriteReply
from lockstep.replica.replica import ReplicaService
from lockstep.sim.plant import Planted, replaced
from lockstep.values.errors import PeerUnreachable


def _batch_forgotten_early() -> contextlib.AbstractContextManager[None]:
    """The batch log forgets a batch before its writes are sent."""
    original = Batches._keep

    async def keep(self: Any, batch: Any, consistency: Any, deadline_s: float) -> Any:
        holders = await original(self, batch, consistency, deadline_s)
        self._forget(holders, ForgetBatch(batch.batch_id, batch.created_us))
        await asyncio.sleep(0.02)
        return holders

    return replaced((Batches, "_keep", keep))


def _batch_log_waits_for_the_first() -> contextlib.AbstractContextManager[None]:
    """A batch waits for the nodes that it asked first, whether or not they answer."""
    return replaced((batches._Keeping, "_ask_others", lambda self: None))


def _hints_never_sent() -> contextlib.AbstractContextManager[None]:
    """Hints are forgotten as if they had been delivered."""

    async def deliver_some(self: Any, target: Any, page: Any) -> bool:
        self._store.delete(page)
        return True

    return replaced((HintDelivery, "_deliver_some", deliver_some))


def _hint_forgotten_unanswered() -> contextlib.AbstractContextManager[None]:
    """A hint that its replica did not answer counts as delivered."""
    original = HintDelivery._send

    def send(self: Any, plan: Any, target: Any, hint: Any) -> Any:
        answer = original(self, plan, target, hint)
        told = asyncio.get_running_loop().create_future()

        def answered(done: Any) -> None:
            if done.cancelled() or told.done():
                told.cancel()
            elif isinstance(done.exception(), TimeoutError | PeerUnreachable):
                told.set_result(WriteReply(plan.epoch))
            elif done.exception() is not None:
                told.set_exception(done.exception())
            else:
                told.set_result(done.result())

        answer.add_done_callback(answered)
        return told

    return replaced((HintDelivery, "_send", send))


def _hints_taken_unsynced() -> contextlib.AbstractContextManager[None]:
    """A node says that it keeps the hints of one that leaves before its disk has them."""

    async def take_over(self: Any, _peer: Any, given: Any) -> Any:
        self._store.put(given.hints)
        self._wake.set()
        return Taken(len(given.hints))

    return replaced((HintDelivery, "_take_over", take_over))


def _hints_of_former_replicas_dropped() -> contextlib.AbstractContextManager[None]:
    """Hints of a node that no longer owns their range are forgotten."""

    def leave_again(self: Any, plan: Any, stored: Any) -> None:
        self._store.delete([stored])

    return replaced((HintDelivery, "_leave_again", leave_again))


def _hint_dropped_unmarked() -> contextlib.AbstractContextManager[None]:
    """What is given up leaves no trace."""
    return replaced((HintStore, "_mark_batch", lambda self, marks: []))


def _left_unrecorded() -> contextlib.AbstractContextManager[None]:
    """A node leaves with hints that nobody took, and nobody knows."""

    async def record(self: Any) -> None:
        self._log("hints.not_handed_over", hints=self._hints.store.count())

    return replaced((DecommissionHandoff, "_record", record))


def _taken_unjudged(taken: int) -> contextlib.AbstractContextManager[None]:
    """A replica takes what comes by one verb without a look at who the replicas are by now."""
    original = ReplicaService._receive_write

    def receive(self: Any, peer: Any, request: Any, respond: Any) -> None:
        placement = self._plans.placement(request.mutation.table_id)
        group = placement and placement.ring.group_for(request.mutation.token)
        is_stale = group is not None and group.epoch > request.epoch
        if not is_stale or respond._verb != taken:
            original(self, peer, request, respond)
            return
        self._engine.apply(request.mutation)
        respond(WriteReply(request.epoch))

    return replaced((ReplicaService, "_receive_write", receive))


OWED = (
    Planted(
        "hints_unjudged",
        "a row lies where nobody looks, and comes back with the range",
        "leavers",
        lambda: _taken_unjudged(verbs.HINT),
    ),
    Planted(
        "read_repairs_unjudged",
        "a row lies where nobody looks, and comes back with the range",
        "menders",
        lambda: _taken_unjudged(verbs.READ_REPAIR),
    ),
    Planted("left_unrecorded", "nobody knows that ranges need a repair", "leavers", _left_unrecorded),
    Planted("batch_forgotten_early", "half a batch is written", "batches", _batch_forgotten_early),
    Planted("hints_never_sent", "replicas lack acknowledged writes", "batches", _hints_never_sent),
    Planted("hint_forgotten_unanswered", "replicas lack writes", "batches", _hint_forgotten_unanswered),
    Planted("hints_taken_unsynced", "replicas lack writes", "batches", _hints_taken_unsynced),
)
#: What a test brings about.
DIRECTED = (
    Planted(
        "hints_of_former_replicas_dropped",
        "a write that was acknowledged at ANY is lost",
        "",
        _hints_of_former_replicas_dropped,
    ),
    Planted(
        "batch_log_waits_for_the_first",
        "logged batches time out while writes at QUORUM succeed",
        "",
        _batch_log_waits_for_the_first,
    ),
    Planted("hint_dropped_unmarked", "nobody knows that a range needs a repair", "", _hint_dropped_unmarked),
)
