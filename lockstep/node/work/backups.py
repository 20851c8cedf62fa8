"""Drives backups and restores from the node that was asked.

Invariants. Everything is done under a session that entries open and close; nothing is purged while one is
open. A backup is complete when every node has written its part. A restore empties a table only after every
part was found whole, and has ended, by its entry, only when all that are replicas by then have taken in every
part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, RepairPart, RepairState, parts_by_group
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.node.work.backup_choice import Found, Restored, chosen_parts, loads, offers, refuse_lossy
from lockstep.node.work.backup_service import BackupService, first_of
from lockstep.node.work.driven_ends import ENTRY_TIMEOUT_MS, DrivenEnds
from lockstep.replica.backup_messages import (
    AskBackups,
    BackupAction,
    BackupOrder,
    BackupStatus,
    KeptPart,
    KeptParts,
    Purpose,
)
from lockstep.schema.changes import EmptyTable
from lockstep.storage.backup_manifest import Statement, check_name
from lockstep.topology.repairs import BACKUP, RESTORE, BeginRepair, refuse_emptied
from lockstep.values.errors import (
    LockstepError,
    Overloaded,
    PeerError,
    PeerUnreachable,
    PreconditionError,
    SessionClosed,
)
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    BACKUP_ATTEMPTS_MAX,
    BACKUP_TIMEOUT_MS,
    REPLICA_RETRY_MS,
    RESTORE_ROUNDS_MAX,
)
from lockstep.values.tokens import FULL_RING


class BackupProgress:
    """Of a backup or a restore driven here; bytes are of files that were written, or brought to replicas."""

    def __init__(self, name: str, backup_id: str) -> None:
        self.name = name
        self.backup_id = backup_id
        self.parts = 0
        self.parts_done = 0
        self.bytes = 0
        self.files = 0


class BackupDriver:
    """`progress` tells of what is driven here, by id."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        desk: BackupService,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._submitter = submitter
        self._internode = context.internode
        self._desk = desk
        self._own_id = context.own_id
        self._generation = context.identity.value.generation
        self._alive = context.alive
        self._log = context.log
        self._ends = DrivenEnds(context, state, submitter, "backup")
        self.progress: dict[int, BackupProgress] = {}

    # -- what is kept -------------------------------------------------------------------------------------

    async def kept(
        self, name: str = "", *, with_manifests: bool = False, remove: bool = False
    ) -> tuple[dict[NodeId, tuple[KeptPart, ...]], tuple[NodeId, ...]]:
        """By node the parts that it keeps, and the nodes that did not say."""
        ask = AskBackups(name, with_manifests, remove)
        cluster = self._state.current
        found: dict[NodeId, tuple[KeptPart, ...]] = {}
        silent: list[NodeId] = []

        async def one(node: NodeId) -> None:
            try:
                if not self._reachable(cluster, node):
                    raise PeerUnreachable(f"node {node} seems dead")
                answer: KeptParts = await self._once(node, verbs.BACKUP_FILES, ask, self._desk.kept)
                found[node] = answer.parts
            except PeerError as error:
                self._log("backup.not_listed", node=node, error=str(error))
                silent.append(node)

        await asyncio.gather(*(one(node) for node in cluster.directory.present_ids))
        return {node: found[node] for node in sorted(found)}, tuple(sorted(silent))

    # -- backups ------------------------------------------------------------------------------------------

    def participants(
        self, cluster: ClusterMetadata, parts: Sequence[RepairPart], *, allow_absent: bool
    ) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
        """(who takes part, who cannot). PreconditionError when somebody cannot and that is not allowed, or so
        many that writes acknowledged at a quorum may be missing."""
        present = cluster.directory.present_ids
        absent = tuple(node for node in present if not self._reachable(cluster, node))
        if absent and not allow_absent:
            names = ", ".join(f"node {node}" for node in absent)
            raise PreconditionError(
                f"{names} cannot be reached",
                hint="start it, or leave it out with --allow-absent: writes at ONE may then be missing",
            )
        refuse_lossy(cluster, parts, absent)
        return tuple(node for node in present if node not in absent), absent

    async def begin(
        self,
        name: str,
        parts: Sequence[RepairPart],
        schema: Sequence[Statement],
        *,
        allow_absent: bool = False,
    ) -> Repair:
        """Begin a backup and go on with it in the background. PreconditionError, Rejected."""
        check_name(name)
        cluster = self._state.current
        nodes, absent = self.participants(cluster, parts, allow_absent=allow_absent)
        kept, _ = await self.kept(name)
        if any(kept.values()):
            raise PreconditionError(
                f"there is a backup {name}, or a part of one",
                hint=f"take another name, or `lockstep backup remove {name}`",
            )
        backup_id = self._runtime.random.uuid()
        repair = await self._begin(BACKUP, parts, name, backup_id)
        purpose = Purpose(
            backup_id,
            self._runtime.clock.wall_us(),
            self._host_ids(nodes),
            self._host_ids(absent),
            tuple(schema),
            tuple(table for part in parts for table in part.tables),
        )
        work = self._back_up(repair, name, nodes, purpose)
        self._runtime.tasks.spawn(self._drive(repair, work), f"backup.{repair.id}")
        return repair

    async def _back_up(self, repair: Repair, name: str, nodes: Sequence[NodeId], purpose: Purpose) -> None:
        progress = self.progress[repair.id]
        progress.parts = len(nodes)
        take = BackupOrder(repair.session_id, repair.began_epoch, BackupAction.TAKE, name, purpose)
        seal = BackupOrder(repair.session_id, repair.began_epoch, BackupAction.SEAL, name)
        discard = BackupOrder(repair.session_id, repair.began_epoch, BackupAction.DISCARD, name)
        try:
            await self._all(repair, [(node, take) for node in nodes])
            self._runtime.probes.reach("backup.taken")
            await self._all(repair, [(node, seal) for node in nodes], counted=False)
        except LockstepError:
            for node in nodes:
                try:
                    await self._work(repair, node, discard)
                except LockstepError as error:
                    # What is left is no part: its manifest is missing, or others lack theirs.
                    self._log("backup.not_discarded", node=node, error=str(error))
            raise

    # -- restores -----------------------------------------------------------------------------------------

    async def found(self, name: str, brought: Mapping[NodeId, Sequence[KeptPart]] | None = None) -> Found:
        """The parts that a restore would take, and where; `brought`: as if nodes kept these too.
        PreconditionError when some are missing."""
        check_name(name)
        kept, silent = await self.kept(name, with_manifests=True)
        for node, parts in (brought or {}).items():
            kept[node] = (*kept.get(node, ()), *parts)
        return chosen_parts(name, kept, silent)

    async def begin_restore(self, wanted: Restored) -> Repair:
        """Bring tables of a backup into tables of this cluster, which are there. Goes on in the background.
        Rejected, PreconditionError."""
        cluster = self._state.current
        parts = tuple(
            part
            for name, ids in wanted.by_keyspace(cluster).items()
            for part in parts_by_group(cluster.schema.by_name[name], ids, (FULL_RING,))
        )
        found = wanted.found
        repair = await self._begin(RESTORE, parts, found.name, found.first.backup_id)
        self._runtime.tasks.spawn(self._drive(repair, self._restore(repair, wanted)), f"restore.{repair.id}")
        return repair

    async def _restore(self, repair: Repair, wanted: Restored) -> None:
        """What is there is touched only when every part was found whole."""
        try:
            await self._all(repair, list(offers(self._state.current, repair, wanted)), counted=False)
        except LockstepError as error:
            raise wanted.untouched(error) from error
        self._runtime.probes.reach("restore.checked")
        if not wanted.empty:
            await self._load(repair, wanted)
            return
        if not self._ends.is_running(repair.id):
            raise SessionClosed(f"session {repair.session_id} was closed, and nothing was changed")
        try:
            for keyspace, name in wanted.empty:
                await self._submitter.submit(ChangeSchema(EmptyTable(keyspace, name)), ENTRY_TIMEOUT_MS)
            await self._load(repair, wanted)
        except LockstepError as error:
            raise wanted.emptied(error) from error

    async def _load(self, repair: Repair, wanted: Restored) -> None:
        """Again, as long as ranges change replicas while they are brought there: a new replica may have got
        its copy from one that had not taken the parts in yet."""
        for _ in range(RESTORE_ROUNDS_MAX):
            cluster = self._state.current
            # Tables have other ids when they were emptied, and a node that was started anew offers nothing;
            # what a node has checked is not read again.
            await self._all(repair, list(offers(cluster, repair, wanted)), counted=False)
            orders = list(loads(cluster, repair, wanted))
            self.progress[repair.id].parts += len(orders)
            await self._all(repair, orders)
            if await self._ends.submit(
                self._ends.ending(repair.id, RepairState.DONE, unchanged_since=cluster.epoch)
            ):
                return
            self._runtime.probes.reach("restore.again")
        raise PreconditionError(
            "ranges changed replicas again and again while the restore ran",
            hint="restore when no operation moves ranges: lockstep topology requests",
        )

    # -- both ---------------------------------------------------------------------------------------------

    async def cancel(self, repair_id: int, reason: str) -> None:
        """End one, whoever drives it. Rejected when it is not running."""
        end = self._ends.ending(repair_id, RepairState.CANCELLED, reason)
        await self._submitter.submit(end, ENTRY_TIMEOUT_MS)

    async def _begin(self, purpose: str, parts: Sequence[RepairPart], name: str, backup_id: str) -> Repair:
        refuse_emptied(self._state.current, parts)
        began_s = self._runtime.clock.wall_us() // 1_000_000
        wanted = BeginRepair(
            NodeId(self._own_id()), tuple(parts), began_s, run=self._generation, purpose=purpose
        )
        epoch = await self._submitter.submit(wanted, ENTRY_TIMEOUT_MS)
        repairs = self._state.current.repairs
        known = (*repairs.running, *repairs.ended)
        repair = next(one for one in known if one.began_epoch == epoch)
        ids = {one.id for one in known}
        self.progress = {id_: progress for id_, progress in self.progress.items() if id_ in ids}
        self.progress[repair.id] = BackupProgress(name, backup_id)
        return repair

    async def _drive(self, repair: Repair, work: Awaitable[None]) -> None:
        purpose, name = repair.purpose, self.progress[repair.id].name
        self._log(f"{purpose}.began", id=repair.id, name=name, epoch=repair.began_epoch)
        end = self._ends.ending(repair.id, RepairState.DONE)
        try:
            await work
        except LockstepError as error:
            end = self._ends.ending(repair.id, RepairState.FAILED, error.message)
        except Exception as defect:
            reason = f"it failed: {type(defect).__name__}: {defect}"
            await self._ends.submit(self._ends.ending(repair.id, RepairState.FAILED, reason))
            raise
        await self._ends.submit(end)
        self._log(f"{purpose}.ended", id=repair.id, state=end.state.value, reason=end.reason)

    # -- asking nodes -------------------------------------------------------------------------------------

    async def _all(
        self, repair: Repair, orders: Sequence[tuple[NodeId, BackupOrder]], *, counted: bool = True
    ) -> None:
        """Have all of it done; the first failure ends the rest."""
        progress = self.progress[repair.id]

        async def one(node: NodeId, order: BackupOrder) -> None:
            status = await self._work(repair, node, order)
            if counted:
                progress.parts_done += 1
                progress.bytes, progress.files = progress.bytes + status.bytes, progress.files + status.files

        try:
            async with asyncio.TaskGroup() as group:
                for node, order in orders:
                    group.create_task(one(node, order))
        except ExceptionGroup as failures:
            expected, others = failures.split(LockstepError)
            if expected is None or others is not None:
                raise
            raise first_of(expected) from failures

    async def _work(self, repair: Repair, node: NodeId, order: BackupOrder) -> BackupStatus:
        """Ask until it is done. Who cannot be reached through all attempts makes it fail."""
        attempt = 0
        while True:
            try:
                status: BackupStatus = await self._once(node, verbs.BACKUP_WORK, order, self._desk.work)
                if status.done:
                    return status
                attempt = 0
                continue
            except (PeerError, Overloaded):
                attempt += 1
                if attempt >= BACKUP_ATTEMPTS_MAX or not self._ends.is_running(repair.id):
                    raise
            except LockstepError as error:
                raise PreconditionError(f"node {node}: {error.message}", hint=error.hint) from error
            await self._runtime.probes.linger("backup.work.again")
            await asyncio.sleep(attempt * 16 * REPLICA_RETRY_MS / 1000)

    async def _once(self, node: NodeId, verb: int, question: Any, here: Callable[[Any], Any]) -> Any:
        if node == self._own_id():
            return await here(question)
        info = self._state.current.directory.by_id.get(node)
        if info is None:
            raise PeerUnreachable(f"node {node} is gone")
        address = (info.address, info.internode_port)
        return await self._internode.request(address, verb, question, BACKUP_TIMEOUT_MS)

    def _reachable(self, cluster: ClusterMetadata, node: NodeId) -> bool:
        return node not in cluster.not_served and (node == self._own_id() or self._alive(node))

    def _host_ids(self, nodes: Sequence[NodeId]) -> tuple[str, ...]:
        by_id = self._state.current.directory.by_id
        return tuple(by_id[node].host_id for node in nodes)
