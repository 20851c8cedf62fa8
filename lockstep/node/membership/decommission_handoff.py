"""What a node does for others as it leaves: it writes the batches and hands over the hints that it keeps.

Invariant: it has not left before each hint that it kept then is with its replica or with another node, or the
metadata says which replicas lack writes of which ranges. The same holds of what came in last once it ends, if
that is possible in LEAVING_RECORD_MS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.handoff.batch_store import BatchStore
from lockstep.handoff.hint_delivery import Fate, HintDelivery
from lockstep.handoff.hint_store import Hint
from lockstep.handoff.hints import Hints
from lockstep.node.context import NodeContext
from lockstep.node.log.submission import Submitter
from lockstep.topology.force_remove import Owed, RecordUndelivered
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import (
    LEAVING_FAREWELL_MS,
    LEAVING_RECORD_MS,
    UNDELIVERED_RANGES_MAX,
)
from lockstep.values.tokens import FULL_RING, Range

#: Time for the entry that records what nobody took: several elections.
_SUBMIT_TIMEOUT_MS = 10_000
#: Pause between two attempts to hand everything over.
_RETRY_MS = 200
#: (keyspace, range) -> nodes that may lack writes of it.
_Lacking = dict[tuple[str, Range], dict[NodeId, None]]


class DecommissionHandoff:
    def __init__(
        self,
        context: NodeContext,
        batches: BatchStore,
        hints: Hints,
        delivery: HintDelivery,
        submitter: Submitter,
    ) -> None:
        self._runtime = context.runtime
        self._batches = batches
        self._hints = hints
        self._delivery = delivery
        self._submitter = submitter
        self._log = context.log
        self._begun = False
        #: The newest hint for each node when they were recorded last.
        self._recorded: dict[NodeId, bytes] = {}

    def begin(self, end: Callable[[], None]) -> None:
        """This node has left: give away what came in last, then call `end`; at once when there is nothing."""
        if self._begun:
            return
        if not self._hints.store.pending and not len(self._batches):
            end()
            return
        self._begun = True
        self._runtime.tasks.spawn(self._end_later(end), "node.farewell")

    async def _end_later(self, end: Callable[[], None]) -> None:
        await self.finish()
        end()

    async def finish(self) -> None:
        """Give away or record what there is, for as long as LEAVING_RECORD_MS."""
        said = ""
        try:
            async with asyncio.timeout(LEAVING_RECORD_MS / 1000):
                while True:
                    try:
                        await self.give()
                        return
                    except LockstepError as error:
                        if str(error) != said:
                            said = str(error)
                            self._log("hints.not_recorded", hints=self._hints.store.count(), error=said)
                        await asyncio.sleep(_RETRY_MS / 1000)
        except TimeoutError:
            self._log("hints.lost", hints=self._hints.store.count(), error=said)

    async def give(self) -> None:
        """Write the batches and hand over the hints; what nobody takes in LEAVING_FAREWELL_MS is recorded.

        LockstepError when that was not possible either: to be tried again.
        """
        try:
            async with asyncio.timeout(LEAVING_FAREWELL_MS / 1000):
                while True:
                    if await self._given():
                        return
                    await asyncio.sleep(_RETRY_MS / 1000)
        except TimeoutError:
            self._runtime.probes.reach("farewell.without_heir")
        await self._record()

    async def _given(self) -> bool:
        try:
            kept = 0
            while len(self._batches) != kept:  # a page at a time, as long as some are written
                kept = len(self._batches)
                await self._batches.replay_due(everything=True)
            return await self._delivery.hand_over()
        except LockstepError as error:
            self._log("hints.not_handed_over", hints=self._hints.store.count(), error=str(error))
            return False

    async def _record(self) -> None:
        kept, newest = await self._kept()
        owed = _together(kept)
        # Ranges that were recorded may be repaired by now, and would be degraded once more.
        if not owed or newest == self._recorded:
            return
        self._log("hints.without_heir", hints=self._hints.store.count(), ranges=len(owed))
        try:
            entry = RecordUndelivered(self._delivery.own_id, owed)
            await self._submitter.submit(entry, _SUBMIT_TIMEOUT_MS)
            self._recorded = newest
        except Rejected as error:
            # Whom it was owed to is gone, or its tables are.
            self._log("hints.owed_to_nobody", error=str(error))

    async def _kept(self) -> tuple[_Lacking, dict[NodeId, bytes]]:
        """Who lacks what, by all hints that are left; and the key of the newest one for each node."""
        lacking: _Lacking = {}
        newest: dict[NodeId, bytes] = {}
        for target in list(self._hints.store.pending):
            after = b""
            while page := self._hints.store.page(target, after):
                after = page[-1].key
                for stored in page:
                    self._add(lacking, target, stored.hint)
                await asyncio.sleep(0)
            newest[target] = after
        return lacking, newest

    def _add(self, lacking: _Lacking, target: NodeId, hint: Hint) -> None:
        fate, _ = self._delivery.judge(target, hint)
        if fate is Fate.GONE:
            return
        plans = self._hints.plans
        table = plans.cluster.table(hint.mutation.table_id)
        plan = plans.write_plan(hint.mutation.table_id, hint.mutation.token, Consistency.ONE)
        assert table is not None, "its table is not gone"
        nodes = [one.node for one in plan.targets] if fate is Fate.AGAIN else [target]
        lacking.setdefault((table.keyspace, plan.range), {}).update(dict.fromkeys(nodes))


def _together(lacking: _Lacking) -> tuple[Owed, ...]:
    """One line a range; of too many ranges, one a keyspace."""
    if len(lacking) > UNDELIVERED_RANGES_MAX:
        whole: _Lacking = {}
        for (keyspace, _), nodes in lacking.items():
            whole.setdefault((keyspace, FULL_RING), {}).update(nodes)
        lacking = whole
    return tuple(
        Owed(keyspace, range_, tuple(sorted(nodes))) for (keyspace, range_), nodes in sorted(lacking.items())
    )
