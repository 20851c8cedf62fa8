"""Writes the snapshots that the log orders, beside everything else the node does.

Invariant: of several that are due only the newest is written; a failure is told and leaves a longer log, and
the next snapshot tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.entries import LogEntry
from lockstep.metadata.snapshot_file import SnapshotInfo
from lockstep.node.metadata_store import MetadataStore
from lockstep.values.errors import LockstepError

#: Told of each snapshot that is durable here.
SnapshotListener = Callable[[SnapshotInfo], None]


class SnapshotSaver:
    """`bound()` drops what need not be kept any more; called after each snapshot and when `wake` says so."""

    def __init__(
        self, store: MetadataStore, bound: Callable[[], Awaitable[None]], log: Callable[..., None]
    ) -> None:
        self._store = store
        self._bound = bound
        self._log = log
        self._due: tuple[ClusterMetadata, LogEntry] | None = None
        self._wanted = asyncio.Event()
        self.listeners: list[SnapshotListener] = []

    def due(self, value: ClusterMetadata, entry: LogEntry) -> None:
        """A snapshot entry follows `value`: both are to be stored."""
        self._due = (value, entry)
        self._wanted.set()

    def wake(self) -> None:
        """Something may be dropped."""
        self._wanted.set()

    def saved(self, info: SnapshotInfo) -> None:
        """A snapshot is durable, by whomever."""
        self._log("metadata.snapshot", epoch=info.epoch, size_bytes=info.size_bytes)
        for listener in self.listeners:
            listener(info)

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            due, self._due = self._due, None
            try:
                async with self._store.changing:
                    if due is not None and due[1].epoch not in self._store.infos:
                        self.saved(await self._store.write_snapshot(*due))
                    await self._bound()
            except (LockstepError, OSError) as error:
                self._log("metadata.snapshot_failed", error=str(error))
