"""Comparing the replicas of some ranges of a table, and sending each what it lacks.

Invariant: what is sent to a replica is the difference between what it answered and the merge of what all
participants answered, tombstones included, under the times they were written with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lockstep.internode.throttle import Throttle
from lockstep.metadata.purging import purge_before_s
from lockstep.metadata.repairs import Repair, joined_ranges
from lockstep.node.context import NodeContext
from lockstep.node.work.repair_questions import RepairQuestions
from lockstep.replica.merging import lacking, merge_answers
from lockstep.replica.repair_messages import About, AskRows, AskTree, Mend, Note
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.rows.visible import partition_left
from lockstep.topology.repairs import RepairUnit
from lockstep.values.codec import encode
from lockstep.values.hash_tree import MerkleTree, differing, joined_numbers, split_evenly
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    REPAIR_LEAF_BYTES,
    REPAIR_LEAVES_AT_ONCE,
    REPAIR_LEAVES_MAX,
    REPAIR_WRITE_BYTES,
    REPAIR_WRITES_MAX,
    STREAM_IDLE_MS,
)
from lockstep.values.rows import ALL_ROWS, Mutation, Partition, Position, ReadCommand, ReadResult
from lockstep.values.tokens import Range

#: Neighbouring leaves that differ and are read as one.
LEAVES_TOGETHER_MAX = 8
#: Live rows of each participant that are merged in one go: some 50 ms where they are partitions.
PAGE_ROWS_MAX = 1000


class RepairProgress:
    """What a repair did so far. `rows_sent` counts each change of a partition once for each receiver."""

    def __init__(self) -> None:
        self.ranges = 0
        self.ranges_done = 0
        self.ranges_failed = 0
        self.leaves = 0
        self.leaves_different = 0
        self.changes_sent = 0
        self.bytes_sent = 0


class Comparison:
    def __init__(
        self,
        context: NodeContext,
        questions: RepairQuestions,
        throttle: Throttle,
        new_mutation_id: Callable[[], bytes],
    ) -> None:
        self._runtime = context.runtime
        self._questions = questions
        self._throttle = throttle
        self._metadata = context.cluster
        self._new_mutation_id = new_mutation_id
        #: Of all repairs driven here since the node started.
        self.total = RepairProgress()

    async def run(self, repair: Repair, unit: RepairUnit, progress: RepairProgress) -> None:
        """Make the unit's participants equal. Whatever keeps it from that is raised."""
        table = self._metadata().table(unit.table)
        if len(unit.nodes) < 2 or table is None:
            return  # There is nobody to differ from, or nothing left to repair.
        about = About.CHANGES if repair.incremental else About.EXTENT
        ask = Note(repair.session_id, repair.began_epoch, about, unit.table, unit.ranges)
        extents = await asyncio.gather(*(self._questions.note(node, ask) for node in unit.nodes))
        ranges = unit.ranges
        if repair.incremental:
            ranges = joined_ranges(range_ for extent in extents for range_ in extent.changed)
        if ranges:
            wanted = max(extent.bytes for extent in extents) // REPAIR_LEAF_BYTES
            leaves = split_evenly(ranges, min(wanted, REPAIR_LEAVES_MAX))
            before_s = min(
                purge_before_s(self._metadata(), table, range_, repair.began_s) for range_ in ranges
            )
            await self._compare(repair, unit, leaves, before_s, progress)
        if not repair.nodes:
            whole = joined_ranges(unit.ranges)
            equal = Note(repair.session_id, repair.began_epoch, About.EQUAL, unit.table, whole)
            await asyncio.gather(*(self._questions.note(node, equal) for node in unit.nodes))

    async def _compare(
        self,
        repair: Repair,
        unit: RepairUnit,
        leaves: tuple[Range, ...],
        before_s: int,
        progress: RepairProgress,
    ) -> None:
        ask = AskTree(repair.session_id, repair.began_epoch, unit.table, leaves, before_s)
        found = await asyncio.gather(*(self._questions.tree(node, ask) for node in unit.nodes))
        numbers = differing([MerkleTree(one) for one in found])
        self._runtime.probes.reach("repair.compared")
        for counted in (progress, self.total):
            counted.leaves += len(leaves)
            counted.leaves_different += len(numbers)
        gate = asyncio.Semaphore(REPAIR_LEAVES_AT_ONCE)

        async def one(range_: Range) -> None:
            async with gate:
                await self._mend(repair, unit, range_, before_s, progress)

        mending = joined_numbers(leaves, numbers, LEAVES_TOGETHER_MAX)
        for at in range(0, len(mending), REPAIR_LEAVES_AT_ONCE):
            await asyncio.gather(*(one(range_) for range_ in mending[at : at + REPAIR_LEAVES_AT_ONCE]))

    async def _mend(
        self, repair: Repair, unit: RepairUnit, range_: Range, before_s: int, progress: RepairProgress
    ) -> None:
        """Read the range from everyone, page by page, and send each what it lacks of the merge."""
        pace = CooperativeYield(self._runtime.clock)
        after: Position | None = None
        while True:
            command = ReadCommand(
                unit.table,
                range_.left,
                range_.right,
                None,
                ALL_ROWS,
                (),
                True,
                False,
                PAGE_ROWS_MAX,
                0,
                repair.began_s,
                after,
            )
            ask = AskRows(repair.session_id, repair.began_epoch, command)
            results = await asyncio.gather(*(self._questions.rows(node, ask) for node in unit.nodes))
            merged, after = merge_answers(results, False)
            differ = parts_that_differ(merged, results, after, before_s)
            lists: list[list[Mutation]] = [[] for _ in unit.nodes]
            for _, missing in lacking(differ, results):
                for mine, one in zip(lists, missing, strict=True):
                    if one is not None:
                        mine.append(repair_mutation(unit.table, one, self._new_mutation_id()))
            await pace.turn()
            for node, mutations in zip(unit.nodes, lists, strict=True):
                await self._send(repair, node, mutations, progress)
            if after is None:
                return

    async def _send(
        self, repair: Repair, node: NodeId, mutations: Sequence[Mutation], progress: RepairProgress
    ) -> None:
        batch: list[Mutation] = []
        size = 0
        for mutation in mutations:
            grown = len(encode(mutation))
            if batch and (size + grown > REPAIR_WRITE_BYTES or len(batch) >= REPAIR_WRITES_MAX):
                await self._send_batch(repair, node, batch, size, progress)
                batch, size = [], 0
            batch.append(mutation)
            size += grown
        if batch:
            await self._send_batch(repair, node, batch, size, progress)

    async def _send_batch(
        self, repair: Repair, node: NodeId, batch: list[Mutation], size: int, progress: RepairProgress
    ) -> None:
        while not await self._throttle.take(size, STREAM_IDLE_MS):
            self._runtime.probes.reach("repair.throttled")
        await self._questions.mend(node, Mend(repair.session_id, repair.began_epoch, tuple(batch)))
        for counted in (progress, self.total):
            counted.changes_sent += len(batch)
            counted.bytes_sent += size


def parts_that_differ(
    merged: Sequence[Partition], results: Sequence[ReadResult], end: Position | None, before_s: int
) -> list[Partition]:
    """Those of which somebody's answer says something else than another's, once what may be purged is left
    out. The partition in which an answer stopped is looked at in any case."""
    known = [{(part.token, part.key): part for part in result.partitions} for result in results]
    stopped = None if end is None else (end.token, end.key)
    found: list[Partition] = []
    for partition in merged:
        place = (partition.token, partition.key)
        wanted, nothing = partition_left(partition, before_s), Partition(*place)
        if place == stopped or any(
            partition_left(source.get(place, nothing), before_s) != wanted for source in known
        ):
            found.append(partition)
    return found
