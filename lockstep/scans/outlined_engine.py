"""An engine that tells of rows in place of giving them, where a read wants to be told.

Invariant: what is told is durable, and of one instant, as are the rows of any read.
"""

from __future__ import annotations

import asyncio

from lockstep.runtime.ports import Tasks
from lockstep.scans.outline_reading import OutlineReading
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store import Store
from lockstep.values.rows import ReadCommand, ReadResult


class OutlinedEngine:
    """What replication needs of one node's storage, with answers to outlines."""

    def __init__(self, engine: StorageEngine, store: Store, tasks: Tasks) -> None:
        self._engine = engine
        self._store = store
        self._tasks = tasks
        self.apply = engine.apply
        self.synced = engine.synced

    async def read(self, command: ReadCommand) -> ReadResult:
        """As that of the engine."""
        engine = self._engine
        if command.outline is None:
            return await engine.read(command)
        sequence = engine.unsynced(command)
        snapshot = self._store.snapshot()
        try:
            reading = OutlineReading(snapshot, command, engine.ask_merge)
            for work in reading.steps():
                await (asyncio.sleep(0) if work is None else self._tasks.run_blocking(work))
        finally:
            snapshot.close()
        if sequence:
            await engine.synced(sequence)
        return reading.result()

    def read_now(self, command: ReadCommand) -> ReadResult | None:
        """As that of the engine."""
        engine = self._engine
        if command.outline is None:
            return engine.read_now(command)
        if command.key is None or engine.unsynced(command):
            return None
        snapshot = self._store.snapshot()
        try:
            reading = OutlineReading(snapshot, command, engine.ask_merge)
            for _ in reading.steps():
                return None
        finally:
            snapshot.close()
        return reading.result()
