"""Where orders for backups and restores arrive, each one piece of work that is asked about until it ends; and
this node's part in a restore: offering parts of a backup that it keeps, and bringing tables to its ranges.

Invariant: the same order asked twice joins the running work, and a finished one is answered once. A part is
offered only after every file of the wanted tables was found whole; a session of a restore streams nothing but
what was offered under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.node.context import NodeContext
from lockstep.node.work.backup_taking import BackupTaking
from lockstep.replica.backup_messages import AskBackups, BackupAction, BackupOrder, BackupStatus, KeptParts
from lockstep.replica.session_guards import SessionGuards
from lockstep.storage import backup_manifest as manifests
from lockstep.storage.backup_manifest import (
    BackedTable,
    CheckedFile,
    Manifest,
    RestoredFragments,
    TableMapping,
    check_name,
)
from lockstep.storage.rows import keys
from lockstep.streaming.stream_target import StreamClient
from lockstep.topology.repairs import RESTORE
from lockstep.values.errors import LockstepError, NotReplica, PreconditionError, ServerFault
from lockstep.values.limits import BACKUP_WAIT_MS, RESTORE_STREAMS_AT_ONCE
from lockstep.values.tokens import Range


class _OfferedTable:
    """The files of one table in some parts of a backup, and what becomes of what they hold."""

    def __init__(self, mapping: TableMapping) -> None:
        self.mapping = mapping
        self.parts: list[list[CheckedFile]] = []

    def fragments(self, lower: bytes, upper: bytes) -> RestoredFragments:
        of_backup = self.mapping.of_backup
        return RestoredFragments(self.parts, of_backup(lower), of_backup(upper), self.mapping.changed)

    def size_bytes(self, lower: bytes, upper: bytes) -> int:
        """About what there is; 0 only when there is nothing."""
        first, end = self.mapping.of_backup(lower), self.mapping.of_backup(upper)
        return sum(
            file.summary.size_bytes
            for files in self.parts
            for file in files
            if file.summary.first_key < end and first <= file.summary.last_key
        )


class RestoringSource:
    """What is offered under one session; see `stream_source.FragmentSource`."""

    def __init__(self, tables: Mapping[int, _OfferedTable]) -> None:
        self._tables = tables

    async def fragments(self, table_id: int, tokens: Range, from_key: bytes = b"") -> RestoredFragments:
        """NotReplica when nothing of the table was offered here."""
        lower, upper = keys.token_bounds(table_id, tokens)
        return self._table(table_id).fragments(max(lower, from_key), upper)

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]:
        size = self._table(table_id).size_bytes(*keys.token_bounds(table_id, tokens))
        return size, min(size, pairs_max)

    def _table(self, table_id: int) -> _OfferedTable:
        found = self._tables.get(table_id)
        if found is None:
            raise NotReplica(f"nothing of table {table_id} was offered here")
        return found


class BackupRestoring:
    def __init__(
        self,
        context: NodeContext,
        taking: BackupTaking,
        streams: StreamClient,
        guards: SessionGuards,
    ) -> None:
        self._runtime = context.runtime
        self._taking = taking
        self._streams = streams
        self._guards = guards
        self._metadata = context.cluster
        self._offers: dict[str, RestoringSource] = {}
        #: By session and path what was found whole: an order to offer it again reads nothing again.
        self._files: dict[str, dict[str, CheckedFile]] = {}

    def source_of(self, session_id: str) -> RestoringSource | None:
        """Where a session's fragments come from, when not from the store. NotReplica when they were to come
        from a backup, and this run of the node was not asked to offer any."""
        found = self._offers.get(session_id)
        if found is None and session_id.startswith(f"{RESTORE}-"):
            raise NotReplica("this node offers no part of the backup under this session")
        return found

    async def offer(self, order: BackupOrder) -> BackupStatus:
        """CorruptFile names the first file that is damaged; PreconditionError where tables do not fit."""
        manifests.check_name(order.name)
        self._guards.require(order.session_id)
        files_known = self._files.setdefault(order.session_id, {})
        tables: dict[int, _OfferedTable] = {}
        size = files = 0
        for host_id in order.host_ids:
            manifests.check_name(host_id)
            try:
                manifest = self._taking.manifest(order.name, host_id)
            except FileNotFoundError as error:
                raise PreconditionError(f"this node keeps no part {host_id} of {order.name}") from error
            for wanted in order.offered:
                backed = next((one for one in manifest.tables if one.id == wanted.backed), None)
                if backed is None:
                    continue
                offered = tables.get(wanted.table)
                if offered is None:
                    offered = tables[wanted.table] = _OfferedTable(
                        self._mapping(manifest, backed, wanted.table)
                    )
                offered.parts.append(await self._checked(order, host_id, backed, files_known))
                size, files = size + backed.size_bytes, files + len(backed.files)
        self._guards.require(order.session_id)
        for wanted in order.offered:
            tables.setdefault(
                wanted.table, _OfferedTable(TableMapping(wanted.backed, wanted.table, {}, exact=True))
            )
        self._offers[order.session_id] = RestoringSource(tables)
        self._runtime.probes.reach("restore.offered")
        return BackupStatus(True, size, files)

    def _mapping(self, manifest: Manifest, backed: BackedTable, table_id: int) -> TableMapping:
        cluster = self._metadata()
        table = cluster.table(table_id)
        if table is None:
            raise PreconditionError(f"table {backed.keyspace}.{backed.name} was dropped meanwhile")
        keyspace = cluster.schema.by_name[table.keyspace]
        columns = manifests.columns_between(backed, keyspace, table)
        salt = manifest.salt if backed.counts else 0
        return TableMapping(backed.id, table.id, columns, exact=backed.exact, salt=salt, dead=backed.dead)

    async def _checked(
        self, order: BackupOrder, host_id: str, backed: BackedTable, known: dict[str, CheckedFile]
    ) -> list[CheckedFile]:
        disk, found = self._runtime.disk, []
        directory = manifests.part_directory(order.name, host_id)
        for file in backed.files:
            self._guards.require(order.session_id)
            path, summary = f"{directory}/{file.name}", file.summary()
            if path not in known or known[path].summary != summary:
                check = partial(CheckedFile, disk, path, summary)
                known[path] = await self._runtime.tasks.run_blocking(check)
            found.append(known[path])
        return found

    async def load(self, order: BackupOrder) -> BackupStatus:
        """Bring the ranges here from every source, durably. Errors: see `StreamClient.stream_range`."""
        gate = asyncio.Semaphore(RESTORE_STREAMS_AT_ONCE)
        size = files = 0

        async def one(source: tuple[str, int], range_: Range) -> None:
            nonlocal size, files
            async with gate:
                report = await self._streams.stream_range(
                    source=source,
                    session_id=order.session_id,
                    table_id=order.table,
                    range=range_,
                    epoch=order.epoch,
                )
                size, files = size + report.moved_bytes, files + report.files

        try:
            async with asyncio.TaskGroup() as group:
                for range_ in order.ranges:
                    for source in order.sources:
                        group.create_task(one(source, range_))
        except ExceptionGroup as failures:
            expected, others = failures.split(LockstepError)
            if expected is None or others is not None:
                raise
            raise first_of(expected) from failures
        self._runtime.probes.reach("restore.loaded")
        return BackupStatus(True, size, files)

    def forget_closed(self, session_open: Callable[[str], bool]) -> None:
        for kept in (self._offers, self._files):
            for session_id in [one for one in kept if not session_open(one)]:
                del kept[session_id]


def first_of(failures: BaseExceptionGroup[LockstepError]) -> LockstepError:
    found = failures.exceptions[0]
    return first_of(found) if isinstance(found, BaseExceptionGroup) else found


class _Work:
    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.status = BackupStatus(False)
        self.error: LockstepError | None = None


class BackupService:
    def __init__(
        self,
        context: NodeContext,
        taking: BackupTaking,
        restoring: BackupRestoring,
        guards: SessionGuards,
    ) -> None:
        self._runtime = context.runtime
        self._taking = taking
        self._guards = guards
        self._catch_up = context.catch_up.reach
        self._actions: Mapping[BackupAction, Callable[[BackupOrder], Awaitable[BackupStatus]]] = {
            BackupAction.TAKE: taking.take,
            BackupAction.SEAL: taking.seal,
            BackupAction.DISCARD: taking.discard,
            BackupAction.OFFER: restoring.offer,
            BackupAction.LOAD: restoring.load,
        }
        self._works: dict[BackupOrder, _Work] = {}
        context.internode.register(verbs.BACKUP_WORK, BackupOrder, BackupStatus, self._serve)
        context.internode.register(verbs.BACKUP_FILES, AskBackups, KeptParts, self._serve_files)

    async def _serve(self, peer: PeerInfo, order: BackupOrder) -> BackupStatus:
        await self._catch_up(order.epoch, peer.endpoint)
        return await self.work(order)

    async def _serve_files(self, _peer: PeerInfo, ask: AskBackups) -> KeptParts:
        return await self.kept(ask)

    async def work(self, order: BackupOrder) -> BackupStatus:
        """How the work stands. Whatever it failed with is raised."""
        self._guards.require(order.session_id)
        found = self._works.get(order)
        if found is None:
            found = self._works[order] = _Work()
            self._runtime.tasks.spawn(self._run(order, found), f"backup.{order.action.name.lower()}")
        try:
            async with asyncio.timeout(BACKUP_WAIT_MS / 1000):
                await found.done.wait()
        except TimeoutError:
            return BackupStatus(False)
        self._works.pop(order, None)
        if found.error is not None:
            raise found.error
        return found.status

    async def _run(self, order: BackupOrder, work: _Work) -> None:
        try:
            work.status = await self._actions[order.action](order)
        except LockstepError as error:
            work.error = error
        except OSError as error:
            work.error = ServerFault(f"{order.action.name.lower()} failed: {error}")
        except Exception as defect:
            work.error = ServerFault(f"{order.action.name.lower()} failed: {type(defect).__name__}: {defect}")
            raise
        finally:
            work.done.set()

    async def kept(self, ask: AskBackups) -> KeptParts:
        if ask.name:
            check_name(ask.name)
        parts = await self._taking.kept(ask.name, with_manifests=ask.with_manifests, remove=ask.remove)
        return KeptParts(parts)

    def forget_closed(self, session_open: Callable[[str], bool]) -> None:
        """Nobody asks any more for what was done under these."""
        for order in [one for one in self._works if not session_open(one.session_id)]:
            del self._works[order]
