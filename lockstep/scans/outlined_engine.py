"""An engine that tells of rows in place of giving them, where a read wants to be told of many.

Invariant: what is told is durable, and of one instant, as are the rows of any read.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from msgspec.structs import replace

from lockstep.runtime.ports import Tasks
from lockstep.scans.outline_reading import OutlineReading
from lockstep.storage.engine import StorageEngine
from lockstep.storage.reading import Reading
from lockstep.storage.store import Store, StoreSnapshot
from lockstep.values.rows import ReadCommand, ReadResult

#: So many rows are read in less time than it takes to look at rows together at all.
FEW_ROWS: Final = 128


class OutlinedEngine:
    """What replication needs of one node's storage, with answers to outlines."""

    def __init__(self, engine: StorageEngine, store: Store, tasks: Tasks) -> None:
        self._engine = engine
        self._store = store
        self._tasks = tasks
        #: The engine's own: a write passes through nothing here.
        self.apply = engine.apply
        self.synced = engine.synced
        #: Up to so many rows are given; other nodes may have other bounds.
        self.few_rows = FEW_ROWS

    async def read(self, command: ReadCommand) -> ReadResult:
        """As that of the engine; few rows are given, not told of."""
        engine = self._engine
        if command.outline is None:
            return await engine.read(command)
        sequence = engine.unsynced(command)
        snapshot = self._store.snapshot()
        try:
            result = self._few(snapshot, command)
            if result is None:
                # The ranges are opened in this step: they are of the snapshot's instant.
                open_range = partial(self._store.cursor, caches=True)
                reading = OutlineReading(snapshot, command, engine.ask_merge, open_range)
                for work in reading.steps():
                    await (asyncio.sleep(0) if work is None else self._tasks.run_blocking(work))
                result = reading.result()
        finally:
            snapshot.close()
        if sequence:
            await engine.synced(sequence)
        return result

    def read_now(self, command: ReadCommand) -> ReadResult | None:
        """As that of the engine: only few rows."""
        engine = self._engine
        if command.outline is None:
            return engine.read_now(command)
        if command.key is None or engine.unsynced(command):
            return None
        snapshot = self._store.snapshot()
        try:
            return self._few(snapshot, command)
        finally:
            snapshot.close()

    def _few(self, snapshot: StoreSnapshot, command: ReadCommand) -> ReadResult | None:
        """The rows, when the command wants few, or there are few and little beside them."""
        limit = min(self.few_rows, command.row_limit or self.few_rows)
        rows = replace(command, outline=None, row_limit=limit)
        reading = Reading(snapshot, rows, self._engine.ask_merge)
        for turns, work in enumerate(reading.steps(), start=1):
            # One who goes on behind a row of a range is invited once before the next partition.
            if work is not None or turns > 1:
                return None
        result = reading.result()
        filtered = command.outline is not None and bool(command.outline.filters)
        return None if result.more and (filtered or limit != command.row_limit) else result
