"""Fixing content: whatever ends it early is what its caller hears of."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.storage.engine import Checkpoint
from lockstep.values.errors import DiskRefused
from lockstep.values.tokens import FULL_RING


class Refusing:
    """A store's content that cannot be closed, and the syncs that are waited for before."""

    def __init__(self, failure: DiskRefused | None = None) -> None:
        self.waits = asyncio.Event()
        self.closed = False
        self._failure = failure

    async def fixed(self, _path: str) -> Refusing:
        return self

    async def close(self) -> None:
        self.closed = True
        raise DiskRefused("cannot remove it")

    def unsynced_between(self, _lower: bytes, _upper: bytes) -> int:
        return 7

    async def synced(self, _sequence: int) -> None:
        if self._failure is not None:
            raise self._failure
        self.waits.set()
        await asyncio.Event().wait()


def test_a_cancellation_stays_one_when_closing_fails() -> None:
    async def cancelled() -> None:
        both = Refusing()
        fixing = Checkpoint(both, both)  # type: ignore[arg-type]
        task = asyncio.create_task(fixing.fixed(3, FULL_RING, "there"))
        await both.waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as told:
            await task
        assert both.closed and isinstance(told.value.__cause__, DiskRefused)

    asyncio.run(cancelled())


def test_the_first_refusal_of_the_disk_is_told() -> None:
    first = DiskRefused("the sync failed")
    both = Refusing(first)
    with pytest.raises(DiskRefused) as told:
        asyncio.run(Checkpoint(both, both).fixed(3, FULL_RING, "there"))  # type: ignore[arg-type]
    assert told.value is first and both.closed
