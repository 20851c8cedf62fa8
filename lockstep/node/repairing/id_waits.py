"""Waits until the participants of a repair hold every mutation of some ranges that any of them held when that
began; replicas bring each other what they lack meanwhile, as ever.

Invariant: a wait is over only by what its participants told durably. It fails when a range gets other
replicas or bounds, when a participant cannot be asked, and when nothing has come for long; nothing but
questions is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from lockstep.metadata.repairs import Repair
from lockstep.node.context import NodeContext
from lockstep.node.repairing.progress import RepairProgress
from lockstep.node.work.repairs import RepairQuestions
from lockstep.placement.placements import PlacedRange, RingPlacement
from lockstep.replica.id_participant import require_same
from lockstep.replica.messages import AskedRange, AskIds, ToldIds
from lockstep.tracking.waiting import Wait
from lockstep.values.errors import PeerTimeout
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import REPAIR_IDS_AT_ONCE, REPAIR_IDS_LOOK_MS, REPAIR_IDS_STALLED_S
from lockstep.values.tokens import Range


class IdWaits:
    def __init__(self, context: NodeContext, questions: RepairQuestions) -> None:
        self._runtime = context.runtime
        self._metadata = context.cluster
        self._catch_up = context.catch_up.reach
        self._questions = questions
        self._gate = asyncio.Semaphore(REPAIR_IDS_AT_ONCE)
        #: Waits that are over, of all repairs driven here since the node started.
        self.ended = 0

    async def run(
        self,
        repair: Repair,
        group: int,
        nodes: Sequence[NodeId],
        ranges: Sequence[Range],
        progress: RepairProgress | None = None,
    ) -> None:
        """Return once the nodes hold what any of them held of the placed ranges that these touch, and this
        node is at no older epoch than they were. SessionClosed, NotReplica, RangeLacking, PeerError."""
        ring = self._metadata().placements.by_id.get(group)
        if ring is None:
            return  # Its keyspace was dropped: there is nothing left to wait for.
        asked = tuple(map(_asked, _placed(ring, ranges)))
        waits = {one: Wait(tuple(nodes)) for one in asked}
        mark, mark_s = -1, self._runtime.clock.monotonic_s()
        try:
            while True:
                for one in asked:
                    require_same(self._metadata(), group, one)
                await self._ask_pending(repair, group, waits)
                lacking = {one: wait.lacking_count for one, wait in waits.items() if not wait.is_over}
                if progress is not None:
                    progress.waiting(group, lacking)
                self._runtime.probes.reach("repair.ids.asked")
                if not lacking:
                    break
                left, now_s = sum(lacking.values()), self._runtime.clock.monotonic_s()
                if left != mark:
                    mark, mark_s = left, now_s
                elif now_s - mark_s >= REPAIR_IDS_STALLED_S:
                    raise _stalled(waits)
                self._runtime.probes.reach("repair.ids.lacking")
                await asyncio.sleep(REPAIR_IDS_LOOK_MS / 1000)
        finally:
            if progress is not None:
                progress.waiting(group, dict.fromkeys(asked, 0))
        self.ended += 1
        self._runtime.probes.reach("repair.ids.held")

    async def _ask_pending(self, repair: Repair, group: int, waits: dict[AskedRange, Wait]) -> None:
        """Ask each participant for the ranges of which it is to tell."""
        by_node: dict[int, list[AskedRange]] = {}
        for one, wait in waits.items():
            for node in wait.pending:
                by_node.setdefault(node, []).append(one)
        answers = await asyncio.gather(
            *(self._ask(repair, group, NodeId(node), ranges) for node, ranges in by_node.items())
        )
        for (node, ranges), told in zip(by_node.items(), answers, strict=True):
            for one, held in zip(ranges, told.held, strict=True):
                waits[one] = waits[one].heard(node, held)

    async def _ask(self, repair: Repair, group: int, node: NodeId, ranges: Sequence[AskedRange]) -> ToldIds:
        ask = AskIds(repair.session_id, self._metadata().epoch, group, tuple(ranges))
        async with self._gate:
            told = await self._questions.ids(node, ask)
        assert len(told.held) == len(ranges), "each range is answered"
        if told.epoch > self._metadata().epoch:
            info = self._metadata().directory.by_id[node]
            await self._catch_up(told.epoch, (info.address, info.internode_port))
        return told


def _placed(ring: RingPlacement, ranges: Sequence[Range]) -> list[PlacedRange]:
    """The placed ranges that have some of these tokens, each once and in order."""
    found = {placed.range.right: placed for range_ in ranges for placed in ring.overlapping(range_)}
    return [found[right] for right in sorted(found)]


def _asked(placed: PlacedRange) -> AskedRange:
    return AskedRange(placed.range.left, placed.range.right, placed.group.epoch)


def _stalled(waits: Mapping[AskedRange, Wait]) -> PeerTimeout:
    """What ends a wait to which nothing came for long: which range lacks most, and where."""
    asked, wait = max(waits.items(), key=lambda pair: pair[1].lacking_count)
    if not wait.is_captured:
        names = ", ".join(f"node {node}" for node in wait.pending)
        return PeerTimeout(
            f"{names} goes on getting rows of ({asked.left}, {asked.right}] from other replicas; "
            "run the repair again later"
        )
    lacking = ", ".join(f"node {node} lacks {wait.lacks(node).count}" for node in wait.pending)
    return PeerTimeout(
        f"nothing came for {REPAIR_IDS_STALLED_S} s: of ({asked.left}, {asked.right}] {lacking}",
        hint="lockstep reconcile why",
    )
