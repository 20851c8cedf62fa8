"""Planted bugs of the consensus groups and of the log."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.consensus import elections
from lockstep.metadata.groups.management import ManagementState
from lockstep.metadata.log.recent_ids import RecentIds
from lockstep.node import node as node_module
from lockstep.node.log import metadata_store
from lockstep.node.log.metadata_store import MetadataStore
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.log.raft_journal import RaftJournal
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.values.codec import frame_record
from lockstep.values.errors import LockstepError


def _vote_not_durable() -> contextlib.AbstractContextManager[None]:
    append = RaftJournal.append

    async def forgetful(self: Any, hard_state: Any, entries: Any) -> None:
        if entries:
            await append(self, None, entries)

    return replaced((RaftJournal, "append", forgetful))


def _vote_for_anyone() -> contextlib.AbstractContextManager[None]:
    return replaced((elections, "may_vote_for", lambda state, candidate: True))


def _promise_before_sync() -> contextlib.AbstractContextManager[None]:
    """Raft messages that promise durability leave before the write."""
    execute = RaftDriver._execute

    def hasty(self: Any, ready: Any) -> None:
        for message in ready.messages_after_persist:
            self._send(message)
        execute(self, ready)

    return replaced((RaftDriver, "_execute", hasty))


def _epoch_before_sync() -> contextlib.AbstractContextManager[None]:
    """A node shows an epoch that its disk does not hold yet."""
    append = MetadataStore.append

    class Later:
        """A segment that is synced when the entries were shown."""

        def __init__(self, segment: Any, store: Any) -> None:
            self._segment = segment
            self._store = store

        async def append(self, body: bytes) -> None:
            segment = self._segment
            segment._disk.append(segment._path, frame_record(body))
            self._store._runtime.tasks.spawn(self._sync(), "planted sync")

        async def _sync(self) -> None:
            with contextlib.suppress(LockstepError):
                await self._segment._disk.sync(self._segment._path)

    async def hasty(self: Any, batch: Any) -> None:
        if self._active is not None and not isinstance(self._active, Later):
            self._active = Later(self._active, self)
        await append(self, batch)

    return replaced((MetadataStore, "append", hasty))


def _unsettled_restart() -> contextlib.AbstractContextManager[None]:
    """A restarted node takes for durable what its killed predecessor had not synced."""

    async def nothing(disk: Any, paths: Any) -> None:
        return None

    return replaced((node_module, "settle", nothing), (metadata_store, "settle", nothing))


def _forget_dedup() -> contextlib.AbstractContextManager[None]:
    """A submission that was seen before is judged again."""
    return replaced((RecentIds, "epoch_of", lambda self, entry_id: None))


def _command_twice() -> contextlib.AbstractContextManager[None]:
    """A management command that was seen before is judged again."""
    return replaced((ManagementState, "is_known", lambda self, command_id: False))


LOG = (
    Planted("vote_not_durable", "two leaders in one term", "log", _vote_not_durable),
    Planted("vote_for_anyone", "two leaders in one term", "log", _vote_for_anyone),
    Planted("promise_before_sync", "committed entries are lost", "log", _promise_before_sync),
    Planted("epoch_before_sync", "a node's epoch goes back", "power", _epoch_before_sync),
    Planted("unsettled_restart", "a node's epoch goes back", "log", _unsettled_restart),
    Planted("command_twice", "a management command is applied twice", "metadata", _command_twice),
    Planted("forget_dedup", "a submission is applied twice", "log", _forget_dedup),
)
