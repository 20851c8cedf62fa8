"""Checking every table file of this node while it serves: one after the other, by a helper process.

Invariant: one scrub at a time; a file that is damaged is named as one that a read came upon.
"""

from __future__ import annotations

import asyncio

import msgspec

from lockstep.node.context import NodeContext
from lockstep.node.work.table_damage import content_between
from lockstep.storage.store import Store
from lockstep.values.errors import StorageError, TableFileDamaged
from lockstep.values.node_limits import DAMAGED_FILES_MAX


class DamagedFile(msgspec.Struct, frozen=True):
    """`content`: tables and tokens that lie in it."""

    file: str
    offset: int
    content: str
    reason: str


class ScrubState(msgspec.Struct, frozen=True):
    """`state`: never, running, done or failed. `unchecked`: files that could not be checked, and why."""

    state: str = "never"
    files: int = 0
    checked: int = 0
    damaged: tuple[DamagedFile, ...] = ()
    unchecked: tuple[tuple[str, str], ...] = ()


class Scrub:
    def __init__(
        self,
        context: NodeContext,
        store: Store,
    ) -> None:
        self._runtime = context.runtime
        self._store = store
        self._cluster = context.cluster
        self._log = context.log
        self.state = ScrubState()

    def begin(self) -> ScrubState:
        """Check all files that there are now, unless that is under way."""
        if self.state.state != "running":
            names = self._store.table_files()
            self.state = ScrubState("running", len(names))
            self._runtime.tasks.spawn(self._run(names), "storage.scrub")
        return self.state

    async def _run(self, names: tuple[str, ...]) -> None:
        damaged: list[DamagedFile] = []
        unchecked: list[tuple[str, str]] = []
        for number, name in enumerate(names, start=1):
            try:
                error = await self._store.check_file(name)
            except (TimeoutError, ConnectionError, StorageError) as failure:
                unchecked.append((name, str(failure) or "it took too long"))
            else:
                if error is not None and len(damaged) < DAMAGED_FILES_MAX:
                    damaged.append(self._named(name, error))
            self.state = ScrubState("running", len(names), number, tuple(damaged), tuple(unchecked))
            await asyncio.sleep(0)
        self.state = msgspec.structs.replace(self.state, state="failed" if unchecked else "done")
        self._log("storage.scrubbed", files=len(names), damaged=len(damaged), unchecked=len(unchecked))

    def _named(self, name: str, error: TableFileDamaged) -> DamagedFile:
        content = content_between(error.first_key, error.last_key, self._cluster())
        return DamagedFile(name, error.offset, content, error.why)
