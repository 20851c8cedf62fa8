"""Compares the data of replicas with the ids that they hold: where all hold the same ids, and their tables
differ all the same, one of both is wrong.

Invariant: nothing is reported, or sent, of a write that is under way. What a participant lacks of an answer
of another one is looked at again once all participants hold each id that any of them held after both had
answered: what is in the tables of one has an id that it held, so by then the others have it, or something
that covers it. What may be purged does not count, also by a clock that is ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lockstep.metadata.purging import purge_before_s
from lockstep.metadata.repairs import Repair
from lockstep.node.context import NodeContext
from lockstep.node.repairing.id_waits import IdWaits
from lockstep.node.repairing.progress import Disagreement, RepairProgress
from lockstep.node.work.repairs import (
    PAGE_ROWS_MAX,
    Comparison,
    RepairQuestions,
    parts_that_differ,
)
from lockstep.replica.merging import lacking, merge_answers
from lockstep.replica.messages import AskRows
from lockstep.schema.model import Table
from lockstep.storage.rows.difference import difference, repair_mutation
from lockstep.storage.rows.visible import partition_left
from lockstep.topology.repairs import RepairUnit
from lockstep.values.node_limits import RECONCILE_PURGE_MARGIN_S, REPAIR_SUSPECTS_MAX
from lockstep.values.rows import ALL_ROWS, Mutation, Partition, Position, ReadCommand, ReadResult, Slice
from lockstep.values.tokens import FULL_RING, Range

CONDITION = "IDS_AND_DATA_DISAGREE"
#: How often in turn something has to lack that is reported.
_LOOKS: Final = 2


class Suspect(msgspec.Struct, frozen=True):
    """A part of a partition that is not the same everywhere: what each participant lacked of it."""

    token: int
    key: bytes
    lacked: tuple[Partition | None, ...]


class TrackedRepairs:
    """What `node.work.repairs.ByIds` is."""

    def __init__(
        self,
        context: NodeContext,
        questions: RepairQuestions,
        comparison: Comparison,
        new_mutation_id: Callable[[], bytes],
    ) -> None:
        self.waits = IdWaits(context, questions)
        self._context = context
        self._runtime = context.runtime
        self._metadata = context.cluster
        self._questions = questions
        self._comparison = comparison
        self._new_mutation_id = new_mutation_id

    async def wait(self, repair: Repair, unit: RepairUnit, progress: RepairProgress) -> None:
        """Return when all participants hold what any of them holds now."""
        if len(unit.nodes) < 2:
            return
        group = repair.parts[unit.part].group
        await self.waits.run(repair, group, unit.nodes, unit.ranges, progress)

    async def compare(self, repair: Repair, unit: RepairUnit, progress: RepairProgress) -> None:
        """Report where data and ids of the unit disagree, and send each participant what it lacks there."""
        table = self._metadata().table(unit.table)
        if len(unit.nodes) < 2 or table is None:
            return
        differ, before_s = await self._comparison.differing(repair, unit, table, progress)
        suspects: list[Suspect] = []
        for range_ in differ:
            after: Position | None = None
            while True:
                results = await self._comparison.page(repair, unit, range_, after)
                merged, after = merge_answers(results, False)
                parts = parts_that_differ(merged, results, after, before_s)
                suspects += [
                    Suspect(part.token, part.key, tuple(lacked)) for part, lacked in lacking(parts, results)
                ]
                if len(suspects) >= REPAIR_SUSPECTS_MAX:
                    await self._judge(repair, unit, table, suspects, progress)
                    suspects = []
                if after is None:
                    break
        if suspects:
            await self._judge(repair, unit, table, suspects, progress)
        await self._comparison.note_equal(repair, unit)

    def compared(self, repair: Repair, progress: RepairProgress) -> None:
        """All that was to be compared was: what disagreed in the past does so no more, or it was found."""
        for part in repair.parts:
            for table_id in part.tables if part.ranges == (FULL_RING,) and not repair.nodes else ():
                table = self._metadata().table(table_id)
                name = f"{table.keyspace}.{table.name}" if table is not None else ""
                if name and name not in progress.by_table:
                    self._context.conditions.clear(CONDITION, name)

    # -- one after another ------------------------------------------------------------------------

    async def _judge(
        self,
        repair: Repair,
        unit: RepairUnit,
        table: Table,
        suspects: Sequence[Suspect],
        progress: RepairProgress,
    ) -> None:
        group = repair.parts[unit.part].group
        ranges = sorted({Range(one.token - 1, one.token) for one in suspects})
        await self.waits.run(repair, group, unit.nodes, ranges)
        ring = self._metadata().placements.ring(group)
        for suspect in suspects:
            still = await self._confirmed(repair, unit, table, suspect)
            lacks = [(node, parts) for node, parts in zip(unit.nodes, still, strict=True) if parts]
            if not lacks:
                self._runtime.probes.reach("repair.ids.under_way")
                continue
            found = Disagreement(
                table.keyspace,
                table.name,
                ring.range_at(suspect.token).range,
                suspect.token,
                suspect.key,
                tuple((node, sum(map(_weight, parts))) for node, parts in lacks),
                tuple(node for node, parts in zip(unit.nodes, still, strict=True) if not parts),
            )
            self._tell(repair, found, progress)
            for node, parts in lacks:
                await self._comparison.send(repair, node, self._mutations(table, parts), progress)

    def _tell(self, repair: Repair, found: Disagreement, progress: RepairProgress) -> None:
        for counted in (progress, self._comparison.total):
            counted.found(found)
        self._runtime.probes.reach("repair.ids.disagree")
        self._context.log("repair.ids_and_data_disagree", repair=repair.id, found=found.text())
        nodes = ", ".join(f"node {node}" for node, _ in found.lacks)
        said = f"{nodes} lacked what its ids claim" if found.wrong == "data" else "rows had no ids"
        count = progress.by_table[found.name]
        detail = f"repair {repair.id} mended {count} partitions, the last one where {said}"
        self._context.conditions.report(CONDITION, found.name, detail)

    def _mutations(self, table: Table, parts: Sequence[Partition]) -> list[Mutation]:
        return [repair_mutation(table.id, part, self._new_mutation_id()) for part in parts]

    async def _confirmed(
        self, repair: Repair, unit: RepairUnit, table: Table, suspect: Suspect
    ) -> list[list[Partition]]:
        """As `_still_lacking`, looked at again where something lacks: a store may have lost what was not on
        its disk, and the table may be empty, or the range another one, from an epoch on that is heard of in
        the wait behind that."""
        group, tokens = repair.parts[unit.part].group, (Range(suspect.token - 1, suspect.token),)
        for _ in range(_LOOKS):
            still = await self._still_lacking(repair, unit, table, suspect)
            if not any(still):
                break
            await self.waits.run(repair, group, unit.nodes, tokens)
        return still if self._metadata().table(unit.table) is not None else [[] for _ in unit.nodes]

    async def _still_lacking(
        self, repair: Repair, unit: RepairUnit, table: Table, suspect: Suspect
    ) -> list[list[Partition]]:
        """By participant what it lacks now of what it lacked, as far as somebody has it now."""
        # A clock that is ahead may have purged more than this node would.
        now_s = self._runtime.clock.wall_us() // 1_000_000 + RECONCILE_PURGE_MARGIN_S
        tokens = Range(suspect.token - 1, suspect.token)
        before_s = purge_before_s(self._metadata(), table, tokens, now_s)
        found: list[list[Partition]] = [[] for _ in unit.nodes]
        after: Position | None = None
        while True:
            command = ReadCommand(
                *(table.id, tokens.left, tokens.right, suspect.key, _slices(suspect), (), True, False),
                *(PAGE_ROWS_MAX, 0, repair.began_s, after),
            )
            ask = AskRows(repair.session_id, self._metadata().epoch, command)
            results = [await self._questions.rows(node, ask) for node in unit.nodes]
            page = _Page(suspect, results, after, before_s)
            for number, lacked in enumerate(suspect.lacked):
                still = page.still(number, lacked) if lacked is not None else None
                if still is not None:
                    found[number].append(still)
            after = page.end
            if after is None:
                return found


class _Page:
    """What participants have of a suspect now, up to where all of them told."""

    def __init__(
        self, suspect: Suspect, results: Sequence[ReadResult], after: Position | None, before_s: int
    ) -> None:
        self._place = (suspect.token, suspect.key)
        self._results = results
        self._after = after
        self._before_s = before_s
        _, self.end = merge_answers(results, False)
        self._all = self._merged(results)

    def still(self, number: int, lacked: Partition) -> Partition | None:
        """What a participant lacks of what it lacked; nothing where nobody has all of that any more, for then
        it was lost before it was durable."""
        claimed = ReadResult((self._behind(lacked),))
        if difference(self._merged((*self._results, claimed)), self._all) is not None:
            return None
        mine = self._results[number]
        return difference(self._merged((mine, claimed)), self._merged((mine,)))

    def _merged(self, answers: Sequence[ReadResult]) -> Partition:
        stop = ReadResult((), True, self.end) if self.end is not None else ReadResult(())
        parts, _ = merge_answers((*answers, stop), False)
        return partition_left(parts[0], self._before_s) if parts else Partition(*self._place)

    def _behind(self, lacked: Partition) -> Partition:
        """What of it is behind the page before."""
        after = self._after
        if after is None or after.clustering is None:
            return lacked
        rows = tuple(row for row in lacked.rows if row.clustering > after.clustering)
        return Partition(*self._place, rows=rows)


def _slices(suspect: Suspect) -> tuple[Slice, ...]:
    """Those of the rows that somebody lacked."""
    lacked = [one for one in suspect.lacked if one is not None]
    rows = [row.clustering for one in lacked for row in one.rows]
    if not rows or any(one.range_deletions for one in lacked):
        return ALL_ROWS
    # The next one behind the last, in byte order.
    return (Slice(min(rows), max(rows) + b"\x00"),)


def _weight(part: Partition) -> int:
    """Rows, and deletions of ranges and of all of it."""
    return (
        len(part.rows) + len(part.range_deletions) + (part.static is not None) + (part.deletion is not None)
    )
