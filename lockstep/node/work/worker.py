"""Work of topology stages, done where its effect is: wiping ranges, streaming ranges in, cleaning up.

Invariants: work runs only while its session is open in this node's own metadata, checked in the same step
as each effect; the same order asked twice joins the running work; repeating finished work is harmless.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from msgspec.structs import replace

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import Lone, Transition
from lockstep.node.context import NodeContext
from lockstep.node.data_service import NodeData
from lockstep.node.log.messages import RunWork, WorkStatus
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.work.lacking import of_sole_replica, refill_actor
from lockstep.node.work.tracked_ranges import Streamed
from lockstep.placement.quorums import DcOf
from lockstep.storage.rows.keys import ballots_of, with_ballots
from lockstep.storage.store_position import Lack
from lockstep.streaming.stream_progress import StreamProgress
from lockstep.topology.kind import Mover, moving, stage_row
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.planning import streaming_session
from lockstep.topology.roles import demoted, keepers, promoted, readers
from lockstep.topology.stages import STREAMING, StreamTask, Work
from lockstep.topology.streams import stream_plan
from lockstep.values.errors import (
    FrameCorrupt,
    LockstepError,
    NotReplica,
    PeerError,
    PeerUnreachable,
    ReplicaRefusal,
    ServerFault,
    SessionClosed,
)
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPLICA_RETRY_MS, WORK_ATTEMPTS_MAX, WORK_FAREWELL_MS
from lockstep.values.tokens import Range

#: How long one RUN_WORK request is held open before "running" is answered; bounds the coordinator's wait.
WORK_POLL_MS = 1000
#: Streams one target pulls at once: two keep source and target both busy while there is something to send,
#: two more hide the round trips of the many ranges that hold next to nothing.
STREAMS_AT_ONCE_MAX = 4
#: Of transitions that move by themselves, from one source: the second has its files built while those of the
#: first are sent. With more at once all of them would be there at the end, and none of them sooner.
LONE_STREAMS_PER_SOURCE_MAX = 2
#: What must have been moved for the rate to say something: of less, most of the time went to round trips.
RATE_TOLD_BYTES_MIN = 16 * 1024 * 1024

_Key = tuple[int, Stage, str]


class _Running:
    def __init__(self, operation: Mover) -> None:
        self.operation = operation
        self.done = asyncio.Event()
        self.error: LockstepError | None = None
        self.progress = StreamProgress()


class WorkService:
    """`serves(node)` chooses stream sources; it never decides ownership."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        data: NodeData,
        serves: Callable[[int], bool],
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._catch_up = context.catch_up
        self._engine = data.engine
        self._streams = data.stream_client
        self._own_id = context.own_id
        self._serves = serves
        self._replica = data.replica
        self._guards = data.guards
        self._lacking = data.lacking
        self._decommission_handoff = data.decommission_handoff
        self._tracked_ranges = data.tracked_ranges
        timeouts = context.configuration.timeouts
        # The longest that a request may take, with all that follows from it.
        settle_ms = 2 * timeouts.write_ms + timeouts.cas_contention_ms
        #: When every request has ended that an earlier start of this node may have answered.
        self._settled_s = context.runtime.clock.monotonic_s() + settle_ms / 1000
        self._running: dict[_Key, _Running] = {}
        #: By source; one that cannot be reached holds up no other.
        self._lone_gates: dict[NodeId, asyncio.Semaphore] = {}
        #: Of the last stream that says something about it; 0 before there was one.
        self.rate_bytes_s = 0
        #: How often in a row each piece of work failed for a reason that may not pass by itself.
        self._failures: dict[_Key, int] = {}
        #: Set when the coordinator was told of a failure that it will not mend by asking again.
        self._told = asyncio.Event()
        context.internode.register(verbs.RUN_WORK, RunWork, WorkStatus, self._serve)
        state.listen(self._forget_closed, parts_only=True)

    async def _serve(self, peer: PeerInfo, order: RunWork) -> WorkStatus:
        await self._catch_up.reach(order.epoch, peer.endpoint)
        if order.node != self._own_id():
            raise NotReplica(f"this is node {self._own_id()}: work of node {order.node} is not done here")
        operation = self._mover(order)
        key = (order.operation_id, order.stage, order.session_id)
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Running(operation)
            self._runtime.tasks.spawn(
                self._run(operation, running), f"work.{order.operation_id}.{order.stage}"
            )
        try:
            async with asyncio.timeout(WORK_POLL_MS / 1000):
                await running.done.wait()
        except TimeoutError:
            return self._status("running", running)
        if running.error is not None:
            self._running.pop(key, None)
            return self._failed(key, running, running.error)
        self._failures.pop(key, None)
        return self._status("done", running)

    def _status(self, state: str, running: _Running, text: str = "", definite: bool = False) -> WorkStatus:
        now_s, done = self._runtime.clock.monotonic_s(), running.progress
        taken = self._taken(running.operation)
        return WorkStatus(
            state,
            text,
            done.moved_bytes,
            done.fragments,
            definite,
            done.total_bytes,
            done.rate_bytes_s(now_s),
            done.left_s(now_s),
            done.files,
            done.files_total,
            done.ranges,
            done.ranges_total,
            done.tables_done,
            done.tables_total,
            *(taken if taken is not None else (-1, 0)),
        )

    def _taken(self, operation: Mover) -> tuple[int, int] | None:
        """(bytes, fragments) that its streams made durable here; None when this start does not know, or where
        no operation counts them."""
        if isinstance(operation, Lone):
            return None
        session = streaming_session(operation)
        if not session:
            return 0, 0
        if session == operation.session_id:
            return self._streams.taken_in.of(session)
        return self._streams.taken_in.remembered(session)

    def _failed(self, key: _Key, running: _Running, error: LockstepError) -> WorkStatus:
        self._failures[key] = self._failures.get(key, 0) + 1 if _is_counted(error) else 0
        definite = self._engine.failed or self._failures[key] >= WORK_ATTEMPTS_MAX
        if definite:
            self._told.set()
        return self._status("failed", running, str(error), definite)

    def before_breaking(self, end: Callable[[], None]) -> None:
        """Call `end`, for the store died: at once, or when the coordinator has heard what failed by that."""
        if all(running.done.is_set() for running in self._running.values()):
            end()
        else:
            self._runtime.tasks.spawn(self._end_later(end), "work.farewell")

    async def _end_later(self, end: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(WORK_FAREWELL_MS / 1000):
                await self._told.wait()
            # The answer that told it is still to be sent.
            await asyncio.sleep(REPLICA_RETRY_MS / 1000)
        except TimeoutError:
            self._runtime.probes.reach("work.farewell_unheard")
        end()

    def _mover(self, order: RunWork) -> Mover:
        cluster = self._state.current
        lone = None if order.operation_id else cluster.transitions.lone_of(order.session_id)
        mover = lone or cluster.operations_by_id.get(order.operation_id)
        if mover is not None and (mover.stage, mover.session_id) == (order.stage, order.session_id):
            return mover
        raise SessionClosed(f"operation {order.operation_id} has left the stage this work belongs to")

    def _moving(self, mover: Mover) -> tuple[Transition, ...]:
        """Its ranges; SessionClosed when it has left the stage, and may have others by now, or none."""
        cluster = self._state.current
        if mover.session_id and not cluster.session_open(mover.session_id):
            raise SessionClosed(f"the {mover.title()} has left {mover.stage}")
        return moving(cluster, mover)

    async def _run(self, operation: Mover, running: _Running) -> None:
        try:
            row, ranges = stage_row(operation), self._moving(operation)
            own, dc_of = self._own_id(), self._state.current.directory.dc_by_id.__getitem__
            if row.work is Work.WIPE:
                await self._wipe(operation, gained_ranges(ranges, own, dc_of))
            elif row.work is Work.CLEANUP and operation.about.departing == self._own_id():
                await self._decommission_handoff.give()
            elif row.work is Work.CLEANUP:
                await self._clean_up(operation, lost_ranges(ranges, own, dc_of))
            elif row.work is Work.DISCARD:
                await self._clean_up(operation, gained_ranges(ranges, own, dc_of))
            elif row.work in STREAMING:
                lacks = self._lacking.fillable
                if lacks:
                    await self._settle()
                elif self._is_refill(operation):
                    # It was filled before this start: what was asked for then is there.
                    return
                began_s = self._runtime.clock.monotonic_s()
                if operation.body == Rebuild(operation.node):
                    await self._fill(operation, running.progress, lacks)
                else:
                    await self._stream(operation, running.progress)
                self._note_rate(running.progress, self._runtime.clock.monotonic_s() - began_s)
            self._runtime.probes.reach("work.done")
        except LockstepError as error:
            running.error = error
        except Exception as defect:
            running.error = ServerFault(f"{operation.stage} failed: {type(defect).__name__}: {defect}")
            raise
        finally:
            running.done.set()

    async def _fill(self, operation: Mover, progress: StreamProgress, lacks: Sequence[Lack]) -> None:
        """Stream from replicas that hold every acknowledged write, each table of each range."""
        self._lacking.filling = progress
        try:
            await self._stream(operation, progress)
            await self._lacking.filled(lacks, of_sole_replica(lacks, self._state.current, operation.node))
        finally:
            self._lacking.filling = None

    def _is_refill(self, operation: Mover) -> bool:
        """Whether this node itself asked for the rebuild, since it lacked something."""
        request = self._state.current.requests.by_operation.get(operation.id)
        if request is None or not isinstance(operation.body, Rebuild):
            return False
        return request.actor == refill_actor(operation.node)

    async def _settle(self) -> None:
        """What this node had acknowledged or promised before it lost it counts until the coordinators have
        ended those requests: by then their other replicas have it, from which this one is filled."""
        left_s = self._settled_s - self._runtime.clock.monotonic_s()
        if left_s > 0:
            self._runtime.probes.reach("work.settles")
            await asyncio.sleep(left_s)

    def _note_rate(self, progress: StreamProgress, seconds: float) -> None:
        if progress.moved_bytes >= RATE_TOLD_BYTES_MIN and seconds > 0:
            self.rate_bytes_s = int(progress.moved_bytes / seconds)

    async def _clean_up(self, operation: Mover, wanted: Sequence[tuple[int, Sequence[Range]]]) -> None:
        """Wipe what is not this node's: it refuses all requests for it, and has finished the older ones."""
        await self._replica.drain(operation.stage_epoch)
        self._runtime.probes.reach("work.cleans_up")
        await self._wipe(operation, wanted)

    async def _wipe(self, operation: Mover, wanted: Sequence[tuple[int, Sequence[Range]]]) -> None:
        """Delete whatever is stored of ranges that this node is about to gain, or has lost. Of those of which
        it is a replica before and after, what it promised stays: others count on that."""
        own, dc_of = self._own_id(), self._state.current.directory.dc_by_id.__getitem__
        moving = self._moving(operation)
        staying = [one for one in moving if own in promoted(one, dc_of) or own in demoted(one, dc_of)]
        for group, ranges in wanted:
            tables = table_ids(self._state.current, group)
            kept = [one.range for one in staying if one.group == group]
            for range_ in ranges if tables else ():
                for piece, stays in _cut(range_, kept):
                    with self._guards.hold(operation.session_id):
                        await self._engine.wipe(tables, piece, keeps_ballots=stays)
                    self._runtime.probes.reach("work.wipes")

    async def _stream(self, operation: Mover, progress: StreamProgress) -> None:
        self._moving(operation)
        cluster = self._state.current
        dead = tuple(
            node.id
            for node in cluster.directory.nodes
            if node.id in cluster.excluded_by_node or not self._serves(node.id)
        )
        tasks = [t for t in stream_plan(operation, cluster, dead) if t.target == self._own_id()]
        starved = next((task for task in tasks if not task.sources), None)
        if starved is not None:
            self._runtime.probes.reach("work.starved")
            # This node's own opinion: a newcomer has not heard from everyone yet. It is asked again.
            raise PeerUnreachable(
                f"too few live replicas of ({starved.range.left}, {starved.range.right}] to stream from"
            )
        rows_of = {task: self._with_rows(cluster, task) for task in tasks}
        counts = ((task, len(table_ids(cluster, task.group))) for task in tasks)
        progress.expected = sum((len(task.sources) + len(rows_of[task])) * count for task, count in counts)
        ranges_of = Counter(task.group for task in tasks)
        tables = {table: n for group, n in ranges_of.items() for table in table_ids(cluster, group)}
        progress.plan(len(tasks), tables)
        gate = asyncio.Semaphore(STREAMS_AT_ONCE_MAX)
        surveyed: dict[StreamTask, Streamed] = {}

        async def one(task: StreamTask) -> None:
            async with gate:
                surveyed[task] = await self._tracked_ranges.survey(
                    operation.session_id,
                    task,
                    operation.stage_epoch,
                    partial(self._begin_anew, operation.session_id, task),
                )
                await self._stream_task(operation, task, rows_of[task], progress)
                progress.ranges += 1

        try:
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(one(task))
        except ExceptionGroup as failures:
            expected, others = failures.split(LockstepError)
            if expected is None or others is not None:
                raise
            raise _first(expected) from failures
        # An id is of all tables of a range.
        for task in tasks:
            await self._tracked_ranges.take(
                operation.session_id,
                task,
                surveyed[task],
                operation.stage_epoch,
                lambda: self._moving(operation),
            )
            if operation.body == Rebuild(operation.node):
                await self._tracked_ranges.refill(task, surveyed[task])
        # Reads move here once this is done, and not all of them would find another replica.
        await self._engine.indexes.settled()

    def _with_rows(self, cluster: ClusterMetadata, task: StreamTask) -> tuple[NodeId, ...]:
        """The sources of a task that keep the data; none where this node is to be a witness. What others
        promised and accepted it gets of all of them: each has voted."""
        ring = cluster.placements.ring(task.group)
        if not ring.replication.has_witnesses:
            return task.sources
        placed = ring.range_at(task.range.right)
        if self._own_id() not in keepers(cluster, ring, placed):
            return ()
        keeping = readers(cluster, ring, placed)
        return tuple(node for node in task.sources if node in keeping)

    def _begin_anew(self, session_id: str, task: StreamTask) -> None:
        nodes = self._state.current.directory.by_id
        for source in task.sources:
            address = nodes[source].address, nodes[source].internode_port
            for table in with_ballots(table_ids(self._state.current, task.group)):
                self._streams.begin_anew(session_id, table, task.range, address)

    async def _stream_task(
        self,
        operation: Mover,
        task: StreamTask,
        with_rows: tuple[NodeId, ...],
        progress: StreamProgress,
    ) -> None:
        tables = table_ids(self._state.current, task.group)
        wanted = await self._survey(operation, task, tables)
        progress.expected -= sum(
            (1 + (source in with_rows)) * (len(tables) - len(found)) for source, found in wanted.items()
        )
        filled = frozenset[int]().union(*wanted.values())
        progress.tables_skipped(tables, but=filled)
        for table in sorted(filled):
            sources = tuple(source for source in task.sources if table in wanted[source])
            try:
                await self._stream_table(
                    operation, replace(task, sources=sources), with_rows, table, progress
                )
                progress.table_done(table)
            finally:
                # What came after it was dropped, or emptied: nobody else would ever delete that.
                if self._state.current.table(table) is None:
                    self._engine.forget((table,), task.range)
                    self._runtime.probes.reach("work.forgets_dropped")

    async def _survey(
        self, operation: Mover, task: StreamTask, tables: tuple[int, ...]
    ) -> dict[int, frozenset[int]]:
        """Source -> tables of which it holds anything in the task's range."""
        nodes = self._state.current.directory.by_id
        return {
            source: await self._streams.survey(
                source=(nodes[source].address, nodes[source].internode_port),
                session_id=operation.session_id,
                table_ids=tables,
                tokens=task.range,
                epoch=operation.stage_epoch,
            )
            for source in (task.sources if tables else ())
        }

    async def _stream_table(
        self,
        operation: Mover,
        task: StreamTask,
        with_rows: tuple[NodeId, ...],
        table: int,
        progress: StreamProgress,
    ) -> None:
        for source in task.sources:
            cluster = self._state.current
            if cluster.table(table) is None:
                return
            node = cluster.directory.by_id[source]
            async with self._gate(operation, source):
                # Ballots first: what they call decided is then in the rows that follow.
                for stored in (ballots_of(table), table) if source in with_rows else (ballots_of(table),):
                    await self._streams.stream_range(
                        source=(node.address, node.internode_port),
                        session_id=operation.session_id,
                        table_id=stored,
                        range=task.range,
                        epoch=operation.stage_epoch,
                        progress=progress,
                    )

    def _gate(self, mover: Mover, source: NodeId) -> AbstractAsyncContextManager[Any]:
        """Passed in the order in which it was asked for; an operation has its own limit."""
        if not isinstance(mover, Lone):
            return nullcontext()
        gates = self._lone_gates
        return gates.setdefault(source, asyncio.Semaphore(LONE_STREAMS_PER_SOURCE_MAX))

    def _forget_closed(self, _before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if not self._running:
            return
        for key in list(self._running):
            if not after.session_open(key[2]):
                del self._running[key]
                self._failures.pop(key, None)


def _is_counted(error: LockstepError) -> bool:
    """Whether a failure that comes again and again is one to give up for.

    Not when nodes cannot be reached, or a stranger stands where one was: who is dead is for operators to say,
    and a cut heals. Not when a node is shut out: it is taken back some day. Not when the order was late: its
    session is closed.
    """
    if isinstance(error, PeerError | ReplicaRefusal):
        return isinstance(error, FrameCorrupt)
    return not error.retriable


def _first(failures: BaseExceptionGroup[LockstepError]) -> LockstepError:
    found = failures.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def gained_ranges(moving: Iterable[Transition], node: int, dc_of: DcOf) -> list[tuple[int, list[Range]]]:
    """By placement group, the ranges the node gains, or is to keep the data of, adjacent ones joined."""
    return _joined(one for one in moving if node in one.gained or node in promoted(one, dc_of))


def lost_ranges(moving: Iterable[Transition], node: int, dc_of: DcOf) -> list[tuple[int, list[Range]]]:
    """By placement group, the ranges the node gives up, or is to be a witness of, adjacent ones joined."""
    return _joined(one for one in moving if node in one.lost or node in demoted(one, dc_of))


def _joined(transitions: Iterable[Transition]) -> list[tuple[int, list[Range]]]:
    found: dict[int, list[Range]] = {}
    for transition in transitions:
        ranges = found.setdefault(transition.group, [])
        if ranges and ranges[-1].right == transition.range.left:
            ranges[-1] = Range(ranges[-1].left, transition.range.right)
        else:
            ranges.append(transition.range)
    return list(found.items())


def _cut(range_: Range, kept: Iterable[Range]) -> Iterator[tuple[Range, bool]]:
    """A range in parts, with whether each is one of the others, which are disjoint."""
    left = range_.left
    for one in sorted(kept):
        shared = one.intersection(range_)
        if shared is None:
            continue
        if left < shared.left:
            yield Range(left, shared.left), False
        yield shared, True
        left = shared.right
    if left < range_.right:
        yield Range(left, range_.right), False


def table_ids(cluster: ClusterMetadata, group: int) -> tuple[int, ...]:
    """Tables of the placement group."""
    return cluster.schema.table_ids_in(group)
