"""Where orders for backups and restores arrive: each is one piece of work, asked about until it is done.

Invariant: the same order asked twice joins the running work, and a finished one is answered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.node.context import NodeContext
from lockstep.node.work.backup_restoring import BackupRestoring
from lockstep.node.work.backup_taking import BackupTaking
from lockstep.replica.backup_messages import (
    AskBackups,
    BackupAction,
    BackupOrder,
    BackupStatus,
    KeptParts,
)
from lockstep.replica.session_guards import SessionGuards
from lockstep.storage.backup_manifest import check_name
from lockstep.values.errors import LockstepError, ServerFault
from lockstep.values.limits import BACKUP_WAIT_MS


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
