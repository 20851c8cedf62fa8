"""Asks for a snapshot when enough was written since the last one, or when a voter that it names has left: a
newcomer takes none that a majority of its voters does not confirm.

Invariant: only the leader asks, once for each interval: the entry names the snapshot that its interval began
at, so that a second proposal of the same interval, by whomever, is refused.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_member import MetadataMember
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.values.errors import LockstepError, Rejected

#: After a proposal failed: leadership or a peer is in motion.
RETRY_MS = 1000


class SnapshotTrigger:
    """Epochs and bytes of the configuration count from the last snapshot entry; 0 never triggers by them."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        member: MetadataMember,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._submitter = submitter
        self._member = member
        self._timeout_ms = context.configuration.timeouts.metadata_ms
        self._log = context.log
        self._every_epochs = context.configuration.metadata.snapshot_every_epochs
        self._every_bytes = context.configuration.metadata.snapshot_every_bytes
        self._look = asyncio.Event()
        state.listen(lambda *_: self.wake())
        member.roles.add(self.wake)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "metadata.snapshot_trigger")

    def wake(self) -> None:
        """Something was applied, or this node's role changed."""
        if self.due() and self._member.leads:
            self._look.set()

    def due(self) -> str:
        """Why a snapshot is due; empty when it is not."""
        cluster = self._state.current
        since = cluster.epoch - cluster.service.snapshot_epoch
        if self._every_epochs and since >= self._every_epochs:
            return f"{self._every_epochs} epochs"
        if self._every_bytes and since > 1 and self._state.store.log_bytes >= self._every_bytes:
            return f"{self._every_bytes} bytes"
        by_id = cluster.directory.by_id
        for voter in cluster.service.snapshot_voters:
            if voter not in by_id or by_id[voter].state is NodeState.LEFT:
                return f"node {voter}, which the last one names, has left"
        return ""

    async def _run(self) -> None:
        while self._state.broken is None:
            await self._look.wait()
            self._look.clear()
            reason = self.due()
            if not reason or not self._member.leads:
                continue
            after = self._state.current.service.snapshot_epoch
            try:
                await self._submitter.submit(TakeSnapshot(reason, after), self._timeout_ms)
            except Rejected as refusal:
                self._log("metadata.snapshot_refused", reason=refusal.message)
            except LockstepError as error:
                self._log("metadata.snapshot_waits", error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
                self.wake()
