"""Planted bugs that a step machine notices by looking at itself, before any harm is seen."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.consensus.effects import Role
from lockstep.consensus.raft import Raft
from lockstep.metadata.operations import Stage
from lockstep.node.log.metadata_store import MetadataStore
from lockstep.node.work.worker import WorkService
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced

_Context = contextlib.AbstractContextManager[None]


def _bytes_miscounted() -> _Context:
    """A leader counts a byte too many for each message: in the end it takes no proposals any more."""
    step = Raft.step

    def miscounting(self: Any, event: Any) -> Any:
        ready = step(self, event)
        if self.state.role is Role.LEADER:
            self.state.uncommitted_bytes += 1
        return ready

    return replaced((Raft, "step", miscounting))


def _snapshot_name_not_synced() -> _Context:
    """The log before a snapshot is dropped although a power cut may take the snapshot's name back."""
    write = MetadataStore.write_snapshot

    async def hasty(self: Any, value: Any, entry: Any) -> Any:
        disk = self._disk

        class Lazy:
            async def sync_names(self, directory: str) -> None:
                return None

            def __getattr__(self, name: str) -> Any:
                return getattr(disk, name)

        self._disk = Lazy()
        try:
            return await write(self, value, entry)
        finally:
            self._disk = disk

    return replaced((MetadataStore, "write_snapshot", hasty))


def _newcomer_not_emptied() -> _Context:
    """What a cancelled newcomer was sent stays on its disk."""
    clean_up = WorkService._clean_up

    async def keeps(self: Any, operation: Any, wanted: Any) -> None:
        if operation.stage is not Stage.ROLLBACK_TO_NORMAL:
            await clean_up(self, operation, wanted)

    return replaced((WorkService, "_clean_up", keeps))


MACHINES = (
    Planted("bytes_miscounted", "proposals are refused for ever", "calm", _bytes_miscounted),
    Planted("snapshot_name_not_synced", "a node cannot start", "log", _snapshot_name_not_synced),
    Planted("newcomer_not_emptied", "what was purged since returns", "newcomers", _newcomer_not_emptied),
)
