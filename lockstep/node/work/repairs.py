"""Drives repairs from the node that was asked: begins and ends them, compares the replicas of ranges, asks
participants again for a while when they cannot, and sends each what it lacks.

Invariant: Everything is done under the repair's session, which entries open and close. A range counts as
repaired only when all its participants had equal digests, or acknowledged as durable what they lacked of the
merge of all. Whatever happens, each repair that this node began is ended by an entry, at the latest by the
node's next start. Who cannot be reached through all attempts, or refuses, makes the question fail. What is
sent to a replica is the difference between what it answered and the merge of what all participants answered,
tombstones included, under the times they were written with.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep.internode import verbs
from lockstep.internode.throttle import Throttle
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.purging import purge_before_s
from lockstep.metadata.repairs import Repair, RepairPart, RepairState, joined_ranges
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.node.repairing.progress import RepairProgress
from lockstep.node.work.driven_ends import ENTRY_TIMEOUT_MS, DrivenEnds
from lockstep.replica.id_participant import IdParticipant
from lockstep.replica.merging import lacking, merge_answers
from lockstep.replica.messages import (
    About,
    AskIds,
    AskRows,
    AskTree,
    Mend,
    Mended,
    Note,
    Noted,
    ToldIds,
    Tree,
)
from lockstep.replica.repair_participant import RepairParticipant
from lockstep.replica.session_guards import SessionGuards
from lockstep.schema.model import Table
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.rows.visible import partition_left
from lockstep.topology.force_remove import Told, all_arrived_before_us
from lockstep.topology.repairs import BeginRepair, EndRepair, RepairUnit, Way, refuse_emptied, units
from lockstep.values.codec import encode
from lockstep.values.errors import (
    LockstepError,
    Overloaded,
    PeerError,
    PeerUnreachable,
    PreconditionError,
    SessionClosed,
)
from lockstep.values.hash_tree import MerkleTree, differing, joined_numbers, split_evenly
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    REPAIR_ATTEMPTS_MAX,
    REPAIR_LEAF_BYTES,
    REPAIR_LEAVES_AT_ONCE,
    REPAIR_LEAVES_MAX,
    REPAIR_RANGES_AT_ONCE_MAX,
    REPAIR_TIMEOUT_MS,
    REPAIR_UNITS_AT_ONCE,
    REPAIR_WRITE_BYTES,
    REPAIR_WRITES_MAX,
    REPLICA_RETRY_MS,
    STREAM_IDLE_MS,
)
from lockstep.values.rows import ALL_ROWS, Mutation, Partition, Position, ReadCommand, ReadResult
from lockstep.values.tokens import Range

#: Neighbouring leaves that differ and are read as one.
LEAVES_TOGETHER_MAX = 8
#: Live rows of each participant that are merged in one go: some 50 ms where they are partitions.
PAGE_ROWS_MAX = 1000


class ByIds(Protocol):
    """Repairs where ids tell of everything."""

    async def wait(self, repair: Repair, unit: RepairUnit, progress: RepairProgress) -> None: ...

    async def compare(self, repair: Repair, unit: RepairUnit, progress: RepairProgress) -> None: ...

    def compared(self, repair: Repair, progress: RepairProgress) -> None: ...


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
        differ, before_s = await self.differing(repair, unit, table, progress)
        gate = asyncio.Semaphore(REPAIR_LEAVES_AT_ONCE)

        async def one(range_: Range) -> None:
            async with gate:
                await self._mend(repair, unit, range_, before_s, progress)

        for at in range(0, len(differ), REPAIR_LEAVES_AT_ONCE):
            await asyncio.gather(*(one(range_) for range_ in differ[at : at + REPAIR_LEAVES_AT_ONCE]))
        await self.note_equal(repair, unit)

    async def differing(
        self, repair: Repair, unit: RepairUnit, table: Table, progress: RepairProgress
    ) -> tuple[list[Range], int]:
        """Ranges in which participants have different digests; and the second before which what may be
        purged counts as gone."""
        is_partial = repair.incremental and unit.way is Way.DATA
        about = About.CHANGES if is_partial else About.EXTENT
        ask = Note(repair.session_id, repair.began_epoch, about, unit.table, unit.ranges)
        extents = await asyncio.gather(*(self._questions.note(node, ask) for node in unit.nodes))
        ranges = unit.ranges
        if is_partial:
            ranges = joined_ranges(range_ for extent in extents for range_ in extent.changed)
        if not ranges:
            return [], 0
        wanted = max(extent.bytes for extent in extents) // REPAIR_LEAF_BYTES
        leaves = split_evenly(ranges, min(wanted, REPAIR_LEAVES_MAX))
        before_s = min(purge_before_s(self._metadata(), table, range_, repair.began_s) for range_ in ranges)
        tree = AskTree(repair.session_id, repair.began_epoch, unit.table, leaves, before_s)
        found = await asyncio.gather(*(self._questions.tree(node, tree) for node in unit.nodes))
        numbers = differing([MerkleTree(one) for one in found])
        self._runtime.probes.reach("repair.compared")
        for counted in (progress, self.total):
            counted.leaves += len(leaves)
            counted.leaves_different += len(numbers)
        return joined_numbers(leaves, numbers, LEAVES_TOGETHER_MAX), before_s

    async def note_equal(self, repair: Repair, unit: RepairUnit) -> None:
        """Its participants are equal, but for what is written meanwhile."""
        if not repair.nodes:
            whole = joined_ranges(unit.ranges)
            equal = Note(repair.session_id, repair.began_epoch, About.EQUAL, unit.table, whole)
            await asyncio.gather(*(self._questions.note(node, equal) for node in unit.nodes))

    async def page(
        self, repair: Repair, unit: RepairUnit, range_: Range, after: Position | None
    ) -> list[ReadResult]:
        """What each participant has of the range behind a place, as far as it tells in one go."""
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
        return await asyncio.gather(*(self._questions.rows(node, ask) for node in unit.nodes))

    async def _mend(
        self, repair: Repair, unit: RepairUnit, range_: Range, before_s: int, progress: RepairProgress
    ) -> None:
        """Read the range from everyone, page by page, and send each what it lacks of the merge."""
        pace = CooperativeYield(self._runtime.clock)
        after: Position | None = None
        while True:
            results = await self.page(repair, unit, range_, after)
            merged, after = merge_answers(results, False)
            differ = parts_that_differ(merged, results, after, before_s)
            lists: list[list[Mutation]] = [[] for _ in unit.nodes]
            for _, missing in lacking(differ, results):
                for mine, one in zip(lists, missing, strict=True):
                    if one is not None:
                        mine.append(repair_mutation(unit.table, one, self._new_mutation_id()))
            await pace.turn()
            for node, mutations in zip(unit.nodes, lists, strict=True):
                await self.send(repair, node, mutations, progress)
            if after is None:
                return

    async def send(
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


class RepairQuestions:
    def __init__(
        self,
        context: NodeContext,
        participant: RepairParticipant,
        guards: SessionGuards,
        id_participant: IdParticipant,
    ) -> None:
        self._runtime = context.runtime
        self._internode = context.internode
        self._participant = participant
        self._id_participant = id_participant
        self._guards = guards
        self._metadata = context.cluster
        self._own_id = context.own_id

    async def tree(self, node: NodeId, ask: AskTree) -> bytes:
        """The digests of the leaves; they may take long to build."""
        while True:
            tree: Tree = await self._ask(node, verbs.REPAIR_TREE, ask, self._participant.tree)
            if tree.ready:
                return tree.leaves

    async def rows(self, node: NodeId, ask: AskRows) -> ReadResult:
        found: ReadResult = await self._ask(node, verbs.REPAIR_READ, ask, self._participant.rows)
        return found

    async def mend(self, node: NodeId, mend: Mend) -> None:
        taken: Mended = await self._ask(node, verbs.REPAIR_WRITE, mend, self._participant.mend)
        assert taken.applied == len(mend.mutations), "what is acknowledged was taken whole"

    async def note(self, node: NodeId, note: Note) -> Noted:
        noted: Noted = await self._ask(node, verbs.REPAIR_NOTE, note, self._participant.note)
        return noted

    async def ids(self, node: NodeId, ask: AskIds) -> ToldIds:
        told: ToldIds = await self._ask(node, verbs.REPAIR_IDS, ask, self._id_participant.ids)
        return told

    async def _ask(self, node: NodeId, verb: int, question: Any, here: Callable[[Any], Any]) -> Any:
        attempt = 0
        while True:
            self._guards.require(question.session_id)
            try:
                if node == self._own_id():
                    return await here(question)
                info = self._metadata().directory.by_id.get(node)
                if info is None:
                    raise PeerUnreachable(f"node {node} is gone")
                address = (info.address, info.internode_port)
                return await self._internode.request(address, verb, question, REPAIR_TIMEOUT_MS)
            except (PeerError, Overloaded):
                attempt += 1
                if attempt >= REPAIR_ATTEMPTS_MAX:
                    raise
            await self._runtime.probes.linger("repair.question.again")
            await asyncio.sleep(attempt * 4 * REPLICA_RETRY_MS / 1000)


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
        by_ids: ByIds,
    ) -> None:
        self._runtime = context.runtime
        self._by_ids = by_ids
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
        self,
        parts: Sequence[RepairPart],
        nodes: Sequence[NodeId] = (),
        *,
        incremental: bool = False,
        full: bool = False,
    ) -> Repair:
        """Begin a repair and go on with it in the background. `full`: compare data also where ids tell of
        everything. PreconditionError when a participant seems dead; Rejected when something holds the
        ranges."""
        assert not (incremental and full), "one of both"
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
        self.progress[repair.id] = RepairProgress(full=full)
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
        work = units(self._state.current, repair, REPAIR_RANGES_AT_ONCE_MAX, full=progress.full)
        progress.ranges = sum(len(unit.ranges) for unit in work)
        against = [unit for unit in work if unit.way is Way.DATA_AGAINST_IDS]
        failures = await self._units(repair, progress, [unit for unit in work if unit not in against])
        if against:
            # Of ranges whose ids are not everywhere data says nothing.
            failed = [(unit.part, range_) for unit, _ in failures for range_ in unit.ranges]
            whole = [
                unit for unit in against if not any((unit.part, range_) in failed for range_ in unit.ranges)
            ]
            failures += await self._units(repair, progress, whole)
            if not failures:
                self._by_ids.compared(repair, progress)
        progress.ranges_failed = sum(len(unit.ranges) for unit, _ in failures)
        ranges = tuple(_whole(number, work, failures) for number in range(len(repair.parts)))
        state = RepairState.FAILED if failures else RepairState.DONE
        text = f"{progress.ranges_failed} of {progress.ranges} ranges: {failures[0][1]}" if failures else ""
        return self._ends.ending(repair.id, state, text, ranges, before_s)

    async def _units(
        self, repair: Repair, progress: RepairProgress, work: Sequence[RepairUnit]
    ) -> list[tuple[RepairUnit, LockstepError]]:
        """Do all of it; what failed, and why."""
        gate = asyncio.Semaphore(REPAIR_UNITS_AT_ONCE)
        failures: list[tuple[RepairUnit, LockstepError]] = []

        async def one(unit: RepairUnit) -> None:
            # A wait has nothing to do most of the time.
            async with gate if unit.way is not Way.IDS else contextlib.nullcontext():
                try:
                    await self._unit(repair, unit, progress)
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
        return failures

    async def _unit(self, repair: Repair, unit: RepairUnit, progress: RepairProgress) -> None:
        if unit.way is Way.IDS:
            await self._by_ids.wait(repair, unit, progress)
        elif unit.way is Way.DATA_AGAINST_IDS:
            await self._by_ids.compare(repair, unit, progress)
        else:
            await self._comparison.run(repair, unit, progress)

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
