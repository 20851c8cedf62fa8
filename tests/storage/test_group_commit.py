"""Group commit beside its happy path: what it refuses, whom a failed disk is told to, and its period."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.storage.group_commit import GroupCommit
from lockstep.values import limits
from lockstep.values.errors import DiskRefused, Overloaded, StorageError

from .support import CountingProbes, LoopTasks, runtime_of

#: Longer than any test waits.
HOUR_MS = 3_600_000


class Disk:
    """Stands for a store. While it is held each of its syncs waits until it is let through."""

    def __init__(self) -> None:
        self.written = 0
        self.syncs = 0
        self.refuses = False
        self.held = False
        self.let = asyncio.Semaphore(0)

    async def sync(self) -> int:
        covered = self.written
        if self.held:
            await self.let.acquire()
        if self.refuses:
            raise DiskRefused("no room")
        self.syncs += 1
        return covered


class Committed:
    def __init__(self, period_ms: int = 0) -> None:
        self.disk, self.runtime = Disk(), runtime_of()
        self.failures: list[StorageError] = []
        self.commit = GroupCommit(self.disk, self.runtime, self.failures.append, period_ms)  # type: ignore[arg-type]

    def write(self, prefix: bytes = b"p") -> int:
        self.disk.written += 1
        self.commit.wrote(prefix, self.disk.written)
        return self.disk.written

    async def idle(self) -> None:
        assert isinstance(self.runtime.tasks, LoopTasks)
        await self.runtime.tasks.idle()

    @property
    def reached(self) -> list[str]:
        assert isinstance(self.runtime.probes, CountingProbes)
        return self.runtime.probes.reached


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_all_who_wait_share_a_sync_and_who_comes_during_one_waits_for_the_next() -> None:
    async def body() -> None:
        made = Committed()
        made.disk.held = True
        first = [asyncio.create_task(made.commit.synced(made.write())) for _ in range(3)]
        await turns()
        again = asyncio.create_task(made.commit.synced(2))
        late = asyncio.create_task(made.commit.synced(made.write(b"q")))
        await turns()
        assert made.commit.unsynced_partition(b"p") == 3 and made.commit.unsynced_partition(b"q") == 4
        made.disk.let.release()
        await asyncio.gather(*first, again)
        assert made.disk.syncs == 1 and not late.done()
        assert made.commit.unsynced_partition(b"p") == 0
        made.disk.let.release()
        await late
        assert made.disk.syncs == 2 and made.commit.unsynced_between(b"", b"z") == 0
        await made.commit.synced(4)
        assert made.disk.syncs == 2, "what is durable needs no sync"

    asyncio.run(body())


def test_ranges_count_for_the_partitions_in_them() -> None:
    async def body() -> None:
        made = Committed()
        one = made.write(b"d")
        made.disk.written += 1
        made.commit.wrote_range(b"b", b"f", made.disk.written)
        commit = made.commit
        wanted = [(b"a", 0), (b"b", 2), (b"d", 2), (b"f", 0)]
        assert [(prefix, commit.unsynced_partition(prefix)) for prefix, _ in wanted] == wanted
        assert commit.unsynced_between(b"a", b"b") == 0 == commit.unsynced_between(b"f", b"g")
        assert commit.unsynced_between(b"e", b"g") == 2
        three = made.write(b"h")
        assert commit.unsynced_between(b"h", b"i") == three and commit.unsynced_between(b"d", b"i") == three
        await commit.synced(one)
        assert commit.unsynced_between(b"", b"z") == 0

    asyncio.run(body())


def test_too_much_that_waits_for_the_disk_is_refused_until_it_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UNSYNCED_WRITES_MAX", 3)

    async def body() -> None:
        made = Committed()
        for _ in range(3):
            made.commit.admit()
            made.write()
        with pytest.raises(Overloaded):
            made.commit.admit()
        await made.commit.synced(3)
        made.commit.admit()

    asyncio.run(body())


@pytest.mark.parametrize("period_ms", [0, HOUR_MS])
def test_after_one_failed_sync_nothing_more_is_promised(period_ms: int) -> None:
    async def body() -> None:
        made = Committed(period_ms)
        made.disk.refuses = True
        assert not made.commit.failed
        for _ in range(2):
            with pytest.raises(DiskRefused, match="no room"):
                await made.commit.durable(made.write())
        made.disk.refuses = False
        for refused in (made.commit.synced(made.write()), made.commit.durable(made.write())):
            with pytest.raises(DiskRefused, match="no room"):
                await refused
        with pytest.raises(DiskRefused):
            made.commit.admit()
        made.commit.fail(DiskRefused("again"))
        assert made.commit.failed and [error.message for error in made.failures] == ["no room"]
        assert made.disk.syncs == 0

    asyncio.run(body())


def test_who_waits_for_a_sync_that_is_cancelled_is_cancelled() -> None:
    async def body() -> None:
        made = Committed()
        made.disk.held = True
        waiting = asyncio.create_task(made.commit.synced(made.write()))
        await turns()
        await made.runtime.tasks.cancel_all()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not made.failures

    asyncio.run(body())


def test_with_a_period_nobody_waits_but_who_must_have_it_durable() -> None:
    async def body() -> None:
        made = Committed(HOUR_MS)
        await made.commit.synced(made.write())
        await turns()
        assert made.disk.syncs == 0, "its time has not come"
        await made.commit.durable(made.write())
        assert made.disk.syncs == 1
        await made.commit.synced(2)
        await made.idle()
        assert made.disk.syncs == 1, "nothing was written since"

    asyncio.run(body())


def test_a_period_ends_by_itself_and_early_where_much_waits_or_the_store_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UNSYNCED_WRITES_MAX", 8)

    async def body() -> None:
        made = Committed(1)
        await made.commit.synced(made.write())
        await made.idle()
        assert made.disk.syncs == 1 and "storage.sync.periodic" in made.reached
        crowded = Committed(HOUR_MS)
        for _ in range(5):
            await turns()
            assert crowded.disk.syncs == 0
            await crowded.commit.synced(crowded.write())
        await crowded.idle()
        assert crowded.disk.syncs == 1 and "storage.sync.periodic" not in crowded.reached
        closed = Committed(HOUR_MS)
        await closed.commit.synced(closed.write())
        await turns()
        await closed.commit.settle()
        assert closed.disk.syncs == 1
        closed.commit.fail(DiskRefused("it is closed"))
        assert closed.failures == []

    asyncio.run(body())
