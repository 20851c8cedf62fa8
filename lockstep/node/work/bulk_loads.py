"""Bulk loads as a node drives them that a job asks: begins them, has files brought to all their replicas, and
commits.

Invariants. What is committed was held, verified and durable, by as many replicas of every range as a write at
the load's level needs, counted by the placements that the entry was judged with. All replicas of a tracked
table must, for rows of a load have no ids by which one is told what it lacks. A load is called done when as
many as its level needs have taken it in. One that nobody renews is ended by the metadata leader; nothing of
it is left then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.metadata.load_entries import BeginLoad, CommitLoad, EndLoad, ring_of, table_of
from lockstep.metadata.loads import Load, LoadState
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.quorum.plans import Plan, PlanBook
from lockstep.quorum.round import Target
from lockstep.replica.load_messages import (
    LoadFetch,
    LoadFile,
    LoadManifest,
    LoadPhase,
    LoadStage,
    LoadStaged,
    manifest_of,
)
from lockstep.replica.load_requests import (
    AbortRequest,
    BeginRequest,
    CommitAnswer,
    CommitRequest,
    LoadAnswer,
    PutAnswer,
    PutRequest,
    ReadAnswer,
    ReadRequest,
)
from lockstep.schema.model import Table
from lockstep.schema.tracking import is_tracked
from lockstep.streaming.load_target import LoadTarget
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    OutcomeUnknown,
    PreconditionError,
    Rejected,
    Unavailable,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.node_limits import (
    LOAD_COMMIT_ATTEMPTS_MAX,
    LOAD_FILES_MAX,
    LOAD_LEASE_LOOK_S,
    LOAD_PART_BYTES_MAX,
    LOAD_STAGE_TIMEOUT_MS,
    LOAD_SUBMIT_TIMEOUT_MS,
)

#: Of which at least one replica is in every quorum that reads.
LEVELS: Final = (
    Consistency.QUORUM,
    Consistency.LOCAL_QUORUM,
    Consistency.EACH_QUORUM,
    Consistency.ALL,
)

_ALL_OF_A_TRACKED: Final = (
    "a load into a tracked table, or at ALL, needs all replicas: have the missing ones back, or write with "
    "writeMode=statements"
)


class Placed(msgspec.Struct, frozen=True):
    """Where the files of a load belong. `plans` has those of each file's ranges, `cut` the files of which
    some node stores only a part."""

    epoch: int
    plans: dict[str, tuple[Plan, ...]]
    targets: dict[NodeId, Target]
    by_node: dict[NodeId, tuple[LoadFile, ...]]
    cut: tuple[str, ...]

    def lacking(self, held: dict[NodeId, frozenset[str]]) -> tuple[Plan, int] | None:
        """The first plan that nodes with these files do not satisfy, and how many of its nodes have them."""
        for name, plans in self.plans.items():
            nodes = [node for node, names in held.items() if name in names]
            for plan in plans:
                if not plan.satisfied_by(nodes):
                    return plan, plan.counted(nodes)
        return None


def placed_by(book: PlanBook, table_id: int, files: Iterable[LoadFile], level: Consistency) -> Placed:
    """InvalidRequest when the table is gone."""
    plans: dict[str, tuple[Plan, ...]] = {}
    targets: dict[NodeId, Target] = {}
    by_node: dict[NodeId, list[LoadFile]] = {}
    cut: list[str] = []
    for file in files:
        placement = book.placement(table_id)
        if placement is None:
            raise InvalidRequest(f"table id {table_id} is gone: it was dropped or emptied")
        parts = placement.ring.overlapping(file.range)
        found = tuple(book.write_plan(table_id, part.range.right, level) for part in parts)
        if len({frozenset(part.group.writes) for part in parts}) != 1:
            cut.append(file.name)
        plans[file.name] = found
        for target in found[0].targets:
            targets[target.node] = target
            by_node.setdefault(target.node, []).append(file)
    return Placed(
        book.epoch, plans, targets, {node: tuple(theirs) for node, theirs in by_node.items()}, tuple(cut)
    )


class BulkLoads:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        target: LoadTarget,
        submitter: Submitter,
        is_leader: Callable[[], bool],
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self._target = target
        self._submitter = submitter
        self._is_leader = is_leader
        self._book = PlanBook(context.cluster, context.own_id)
        self._state = state
        #: Whether leases are looked at.
        self._looks = False

    # -- the life of a load -------------------------------------------------------------------------

    async def begin(self, request: BeginRequest) -> LoadAnswer:
        """Rejected when the table cannot be loaded, or the name is another load's."""
        wanted = BeginLoad(
            request.job,
            request.keyspace,
            request.table,
            self._runtime.clock.wall_us() // 1000,
            request.lease_ms,
            request.timestamp_us,
            request.overwrite,
        )
        cluster = self._context.cluster()
        if request.dry_run:
            wanted.apply(cluster, cluster.epoch)
            time_us = request.timestamp_us or wanted.at_ms * 1000
            answer = LoadAnswer(request.job, "", "", 0, time_us, wanted.at_ms // 1000, cluster.epoch)
            table = cluster.schema.table(request.keyspace, request.table)
            return msgspec.structs.replace(answer, table=table)
        known = cluster.loads.by_job.get(request.job)
        if known is None or known.state is LoadState.RUNNING:
            await self._submit(wanted)
            if known is None:
                self._context.log("load.began", job=request.job, table=f"{request.keyspace}.{request.table}")
        else:
            # Nothing is written for what ended; another load's name is refused all the same.
            wanted.apply(cluster, cluster.epoch)
        return self.look(request.job)

    def look(self, job: str) -> LoadAnswer:
        """Rejected when nobody knows of it."""
        cluster, load = self._context.cluster(), self.load(job)
        answer = LoadAnswer(
            job,
            load.state.value,
            load.reason,
            load.stored_id,
            load.timestamp_us,
            load.began_ms // 1000,
            cluster.epoch,
            load.ended_epoch,
        )
        if load.state is not LoadState.RUNNING:
            return answer
        table = table_of(cluster, load)
        ranges = tuple((one.range.left, one.range.right) for one in ring_of(cluster, table).ranges)
        types = cluster.schema.by_name[table.keyspace].types
        return msgspec.structs.replace(answer, table=table, types=tuple(types), ranges=ranges)

    def load(self, job: str) -> Load:
        load = self._context.cluster().loads.by_job.get(job)
        if load is None:
            raise Rejected(f"there is no load {job}", hint="it ended long ago, or never began")
        return load

    async def abort(self, request: AbortRequest) -> LoadAnswer:
        """What was committed stays so: the answer says what became of it."""
        if self.load(request.job).state is LoadState.RUNNING:
            await self._submit(EndLoad(request.job, request.reason))
            ended = self.load(request.job)
            self._context.log("load.ended", job=request.job, state=ended.state.value, reason=ended.reason)
        return self.look(request.job)

    async def _submit(self, wanted: BeginLoad | CommitLoad | EndLoad) -> None:
        await self._submitter.submit(wanted, LOAD_SUBMIT_TIMEOUT_MS)

    # -- files --------------------------------------------------------------------------------------

    async def put(self, request: PutRequest) -> PutAnswer:
        """Take a part of a file; with its last one bring it to all replicas that can be reached."""
        if len(request.data) > LOAD_PART_BYTES_MAX:
            raise InvalidRequest(f"a part of a file has at most {LOAD_PART_BYTES_MAX} bytes")
        file, own = request.file, NodeId(self._context.own_id())
        if not await self._target.put(request.job, file, request.offset, request.data):
            return PutAnswer()
        load = self.load(request.job)
        placed = placed_by(self._book, load.table_id, (file,), Consistency.QUORUM)
        wanted = LoadStage(request.job, LoadPhase.STAGE, placed.epoch, (file,), (self._context.address,))
        others = [target for target in placed.targets.values() if target.node != own]
        found = await asyncio.gather(*(self._ask(target, wanted) for target in others))
        held = [t.node for t, staged in zip(others, found, strict=True) if file.name in staged.names]
        return PutAnswer((own, *held))

    def read(self, request: ReadRequest) -> ReadAnswer:
        part = self._target.part(LoadFetch(request.job, request.name, request.offset, LOAD_PART_BYTES_MAX))
        return ReadAnswer(part.found, part.data)

    async def _ask(self, target: Target, wanted: LoadStage) -> LoadStaged:
        """What a replica answers; nothing, with the reason, when it does not."""
        try:
            if target.node == self._context.own_id():
                return await self._target.stage(wanted)
            if not self._context.alive(target.node):
                return LoadStaged((), False, f"node {target.node} seems dead")
            answer: LoadStaged = await self._context.internode.request(
                target.address, verbs.LOAD_STAGE, wanted, LOAD_STAGE_TIMEOUT_MS
            )
            return answer
        except LockstepError as error:
            self._runtime.probes.reach("load.not_staged")
            return LoadStaged((), False, error.message)

    # -- the commit ---------------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """Make a load part of its table. Rejected when it ended otherwise or its table is another one;
        Unavailable when too few replicas hold its files: then it still runs. OutcomeUnknown."""
        level = Consistency(request.consistency)
        if level not in LEVELS:
            names = ", ".join(one.name for one in LEVELS)
            raise InvalidRequest(f"a load is committed at one of {names}, not {level.name}")
        if len(request.files) > LOAD_FILES_MAX:
            raise InvalidRequest(
                f"a load of {len(request.files)} files is over the limit of {LOAD_FILES_MAX}",
                hint="load with fewer partitions",
            )
        manifest = manifest_of(request.job, request.files)
        failure: LockstepError = PreconditionError("no attempt was made")
        for _ in range(LOAD_COMMIT_ATTEMPTS_MAX):
            load = self.load(request.job)
            if load.state is LoadState.COMMITTED and load.digest == manifest.digest:
                self._context.log("load.committed", job=load.job, epoch=load.ended_epoch, rows=load.rows)
                return await self._finish(load, manifest, level)
            if load.state is not LoadState.RUNNING:
                # Says why not, as the log would.
                CommitLoad(request.job, manifest.digest, 0).apply(self._context.cluster(), 0)
            table = table_of(self._context.cluster(), load)
            staged_at = self._staged_at(table, level)
            placed = placed_by(self._book, table.id, manifest.files, staged_at)
            if placed.cut:
                return self._to_cut(load, placed)
            await self._prepare(placed, manifest, request.holders, staged_at)
            try:
                await self._submit(self._entry(manifest, placed, request.rows))
            except OutcomeUnknown as error:
                failure = error
            except Rejected as error:
                failure = error
                if not self._is_stale(load, placed):
                    raise
                self._runtime.probes.reach("load.commit.stale")
        raise failure

    def _staged_at(self, table: Table, level: Consistency) -> Consistency:
        keyspace = self._context.cluster().schema.by_name[table.keyspace]
        return Consistency.ALL if is_tracked(keyspace, table) else level

    @staticmethod
    def _entry(manifest: LoadManifest, placed: Placed, rows: int) -> CommitLoad:
        size = sum(file.size_bytes for file in manifest.files)
        return CommitLoad(manifest.job, manifest.digest, placed.epoch, rows, size)

    def _is_stale(self, load: Load, placed: Placed) -> bool:
        """Whether ranges of the table went to other replicas since they were looked at."""
        cluster = self._context.cluster()
        table = cluster.table(load.table_id)
        if table is None or self.load(load.job).state is not LoadState.RUNNING:
            return False
        return any(one.group.epoch > placed.epoch for one in ring_of(cluster, table).ranges)

    def _to_cut(self, load: Load, placed: Placed) -> CommitAnswer:
        cluster = self._context.cluster()
        ring = ring_of(cluster, table_of(cluster, load))
        ranges = tuple((one.range.left, one.range.right) for one in ring.ranges)
        return CommitAnswer(load.state.value, cut=placed.cut, ranges=ranges)

    async def _prepare(
        self, placed: Placed, manifest: LoadManifest, holders: Sequence[int], level: Consistency
    ) -> None:
        """Have every replica hold all that is its own, and the list. Unavailable when too few do."""
        by_id = self._context.cluster().directory.by_id
        known = [by_id[NodeId(node)] for node in holders if NodeId(node) in by_id]
        sources = {info.id: (info.address, info.internode_port) for info in known}
        asked = list(placed.by_node)
        wanted = (
            LoadStage(
                manifest.job,
                LoadPhase.PREPARE,
                placed.epoch,
                placed.by_node[node],
                tuple(address for holder, address in sources.items() if holder != node),
                manifest,
            )
            for node in asked
        )
        found = await asyncio.gather(
            *(self._ask(placed.targets[node], one) for node, one in zip(asked, wanted, strict=True))
        )
        held = {
            node: frozenset(staged.names) for node, staged in zip(asked, found, strict=True) if staged.done
        }
        lacking = placed.lacking(held)
        if lacking is not None:
            plan, count = lacking
            reasons = "; ".join(dict.fromkeys(staged.reason for staged in found if staged.reason))
            error = Unavailable(level, plan.required, count)
            error.hint = _ALL_OF_A_TRACKED if level is Consistency.ALL else ""
            error.message = (
                f"load {manifest.job} cannot be committed at {level.name}: {count} of {plan.required} "
                f"replicas of tokens ({plan.range.left}, {plan.range.right}] hold its files"
                + (f" ({reasons})" if reasons else "")
            )
            raise error

    async def _finish(self, load: Load, manifest: LoadManifest, level: Consistency) -> CommitAnswer:
        """Wait until enough replicas have taken a committed load in. Ranges that went to other replicas
        since are left out: newcomers have no files of it, and are sent its rows by who took them in."""
        cluster = self._context.cluster()
        table = cluster.table(load.stored_id)
        if table is None:
            return CommitAnswer(load.state.value, load.ended_epoch, done=True)
        ring = ring_of(cluster, table)
        files = [
            file
            for file in manifest.files
            if all(part.group.epoch <= load.ended_epoch for part in ring.overlapping(file.range))
        ]
        placed = placed_by(self._book, load.stored_id, files, level)
        wanted = LoadStage(load.job, LoadPhase.TAKEN, max(load.ended_epoch, placed.epoch))
        asked = list(placed.by_node)
        found = await asyncio.gather(*(self._ask(placed.targets[node], wanted) for node in asked))
        held = {
            node: frozenset(file.name for file in placed.by_node[node])
            for node, staged in zip(asked, found, strict=True)
            if staged.done
        }
        lacking = tuple(node for node in asked if node not in held)
        return CommitAnswer(load.state.value, load.ended_epoch, placed.lacking(held) is None, lacking=lacking)

    # -- leases -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._state.listen(lambda *_: self._wake(), parts_only=True)
        self._wake()

    def _wake(self) -> None:
        if self._context.cluster().loads.running and not self._looks:
            self._looks = True
            self._runtime.tasks.spawn(self._look_for_lost(), "loads.leases")

    async def _look_for_lost(self) -> None:
        """As long as loads run."""
        since: dict[str, tuple[int, float]] = {}
        while self._context.cluster().loads.running:
            await asyncio.sleep(LOAD_LEASE_LOOK_S)
            now_ms, now_s = self._runtime.clock.wall_us() // 1000, self._runtime.clock.monotonic_s()
            running = self._context.cluster().loads.running
            ends = {load.job: load.lease_until_ms for load in running}
            known = {job: one for job, one in since.items() if ends.get(job) == one[0]}
            since = {job: known.get(job, (end, now_s)) for job, end in ends.items()}
            for load in running if self._is_leader() else ():
                # Whoever gave the lease may have had a clock that was ahead.
                waited_ms = (now_s - since[load.job][1]) * 1000
                if load.lease_until_ms <= now_ms or waited_ms >= load.lease_until_ms - load.began_ms:
                    await self._expire(load, max(now_ms, load.lease_until_ms))
        self._looks = False

    async def _expire(self, load: Load, now_ms: int) -> None:
        try:
            await self._submit(EndLoad(load.job, "nobody renewed it", now_ms))
            self._context.log("load.expired", job=load.job, table=f"{load.keyspace}.{load.table}")
        except LockstepError as error:
            # It was renewed, or another leader looks after it; it is looked at again soon.
            self._runtime.probes.reach("load.not_expired")
            self._context.log("load.not_expired", job=load.job, reason=error.message)
