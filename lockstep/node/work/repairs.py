"""Drives repairs from the node that was asked: begins and ends them, compares ranges, sends what is lacking.

Invariants. Everything is done under the repair's session, which entries open and close. A range counts as
repaired only when all its participants had equal digests, or acknowledged as durable what they lacked of the
merge of all. Whatever happens, each repair that this node began is ended by an entry, at the latest by the
node's next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, RepairPart, RepairState, joined_ranges
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.node.work.driven_ends import ENTRY_TIMEOUT_MS, DrivenEnds
from lockstep.node.work.repair_comparison import Comparison, RepairProgress
from lockstep.node.work.repair_questions import RepairQuestions
from lockstep.replica.repair_messages import About, Note
from lockstep.topology.repairs import BeginRepair, EndRepair, RepairUnit, refuse_emptied, units
from lockstep.topology.undelivered import Told, all_arrived_before_us
from lockstep.values.errors import LockstepError, PreconditionError, SessionClosed
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    REPAIR_RANGES_AT_ONCE_MAX,
    REPAIR_UNITS_AT_ONCE,
)
from lockstep.values.tokens import Range


class RepairDriver:
    """`alive(node)` is asked before a repair begins; `progress` tells of repairs driven here, also ended ones
    as long as this node runs and the metadata remembers them."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        questions: RepairQuestions,
        comparison: Comparison,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._submitter = submitter
        self._questions = questions
        self._comparison = comparison
        self._own_id = context.own_id
        self._generation = context.identity.value.generation
        self._alive = context.alive
        self._log = context.log
        self._ends = DrivenEnds(context, state, submitter, "repair")
        self.progress: dict[int, RepairProgress] = {}

    def end_lost(self, cluster: ClusterMetadata) -> None:
        """End what an earlier run of this node left behind, as soon as this one hears of it."""
        for repair in cluster.repairs.running:
            is_lost = repair.driver == self._own_id() and repair.run < self._generation
            if is_lost and repair.id not in self.progress:
                self.progress[repair.id] = RepairProgress()
                reason = f"node {repair.driver}, which drove it, was started anew"
                end = self._ends.ending(repair.id, RepairState.FAILED, reason)
                self._runtime.tasks.spawn(self._ends.submit(end), f"repair.{repair.id}")

    async def begin(
        self, parts: Sequence[RepairPart], nodes: Sequence[NodeId] = (), *, incremental: bool = False
    ) -> Repair:
        """Begin a repair and go on with it in the background. PreconditionError when a participant seems
        dead; Rejected when something holds the ranges."""
        wanted = BeginRepair(
            NodeId(self._own_id()),
            tuple(parts),
            self._runtime.clock.wall_us() // 1_000_000,
            tuple(sorted(nodes)),
            incremental,
            self._generation,
        )
        self.refuse_dead(self._state.current, wanted)
        refuse_emptied(self._state.current, wanted.parts)
        epoch = await self._submitter.submit(wanted, ENTRY_TIMEOUT_MS)
        repairs = self._state.current.repairs
        begun = [one for one in (*repairs.running, *repairs.ended) if one.began_epoch == epoch]
        repair = begun[0]
        known = {one.id for one in (*repairs.running, *repairs.ended)}
        self.progress = {id_: progress for id_, progress in self.progress.items() if id_ in known}
        self.progress[repair.id] = RepairProgress()
        self._runtime.tasks.spawn(self._drive(repair), f"repair.{repair.id}")
        return repair

    async def cancel(self, repair_id: int, reason: str) -> None:
        """End a repair, whoever drives it. Rejected when it is not running."""
        await self._submitter.submit(
            self._ends.ending(repair_id, RepairState.CANCELLED, reason), ENTRY_TIMEOUT_MS
        )

    def refuse_dead(self, cluster: ClusterMetadata, wanted: BeginRepair) -> None:
        """PreconditionError when somebody who would take part seems dead or is shut out."""
        repair = Repair(0, wanted.driver, wanted.parts, wanted.nodes, wanted.incremental, wanted.began_s)
        taking_part = {
            node for unit in units(cluster, repair, REPAIR_RANGES_AT_ONCE_MAX) for node in unit.nodes
        }
        missing = [
            node
            for node in sorted(taking_part)
            if node in cluster.not_served or not (node == self._own_id() or self._alive(node))
        ]
        if missing:
            names = ", ".join(f"node {node}" for node in missing)
            raise PreconditionError(
                f"{names} would take part and cannot be reached",
                hint="start it, or name those that take part: --hosts. That records nothing as repaired",
            )

    # -- one repair -----------------------------------------------------------------------------------

    async def _drive(self, repair: Repair) -> None:
        self._log("repair.began", repair=repair.id, epoch=repair.began_epoch)
        progress = self.progress[repair.id]
        try:
            end = await self._run(repair, progress)
        except LockstepError as error:
            end = self._ends.ending(repair.id, RepairState.FAILED, str(error))
        except Exception as defect:
            reason = f"the repair failed: {type(defect).__name__}: {defect}"
            await self._ends.submit(self._ends.ending(repair.id, RepairState.FAILED, reason))
            raise
        await self._ends.submit(end)
        self._log("repair.ended", repair=repair.id, state=end.state.value, reason=end.reason)

    async def _run(self, repair: Repair, progress: RepairProgress) -> EndRepair:
        before_s = await self._nothing_older_is_under_way(repair)
        work = units(self._state.current, repair, REPAIR_RANGES_AT_ONCE_MAX)
        progress.ranges = sum(len(unit.ranges) for unit in work)
        gate = asyncio.Semaphore(REPAIR_UNITS_AT_ONCE)
        failures: list[tuple[RepairUnit, LockstepError]] = []

        async def one(unit: RepairUnit) -> None:
            async with gate:
                try:
                    await self._comparison.run(repair, unit, progress)
                except SessionClosed:
                    raise
                except LockstepError as error:
                    failures.append((unit, error))
                    self._log("repair.range_failed", repair=repair.id, table=unit.table, error=str(error))
                progress.ranges_done += len(unit.ranges)

        try:
            async with asyncio.TaskGroup() as group:
                for unit in work:
                    group.create_task(one(unit))
        except ExceptionGroup as raised:
            expected, others = raised.split(LockstepError)
            if expected is None or others is not None:
                raise
            raise _first(expected) from raised
        progress.ranges_failed = sum(len(unit.ranges) for unit, _ in failures)
        ranges = tuple(_whole(number, work, failures) for number in range(len(repair.parts)))
        state = RepairState.FAILED if failures else RepairState.DONE
        text = f"{progress.ranges_failed} of {progress.ranges} ranges: {failures[0][1]}" if failures else ""
        return self._ends.ending(repair.id, state, text, ranges, before_s)

    def _now_us(self) -> int:
        """By the steady clock."""
        return int(self._runtime.clock.monotonic_s() * 1_000_000)

    async def _nothing_older_is_under_way(self, repair: Repair) -> int:
        """The second before which every write has reached its replicas or is in what will be compared, on the
        clock that is furthest behind; 0 when some node that may keep an older one for others cannot be asked,
        or cannot tell."""
        cluster = self._state.current
        told: list[Told] = []
        note = Note(repair.session_id, repair.began_epoch, About.UNDELIVERED)
        for node in cluster.directory.present_ids:
            if node in cluster.directory.shadowed:
                return 0
            asked_us = self._now_us()
            try:
                noted = await self._questions.note(node, note)
            except SessionClosed:
                raise
            except LockstepError as error:
                self._log("repair.not_for_purging", repair=repair.id, node=node, error=str(error))
                return 0
            told.append(Told(noted.oldest_us, noted.at_us, asked_us, self._now_us()))
        return all_arrived_before_us(repair.began_s * 1_000_000, told) // 1_000_000


def _whole(
    part: int, work: Sequence[RepairUnit], failures: Sequence[tuple[RepairUnit, LockstepError]]
) -> tuple[Range, ...]:
    """Ranges of a part that were repaired in all its tables: a table's units cover the same ranges."""
    failed = {range_ for unit, _ in failures if unit.part == part for range_ in unit.ranges}
    return joined_ranges(
        {range_ for unit in work if unit.part == part for range_ in unit.ranges}.difference(failed)
    )


def _first(failures: BaseExceptionGroup[LockstepError]) -> LockstepError:
    found = failures.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
