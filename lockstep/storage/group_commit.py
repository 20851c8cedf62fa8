"""Group commit: one sync at a time, each covering everything written before it began; and whether the disk
has room for writes: below a reserve they are refused, while reads, deletions and what the metadata log needs
go on.

Invariants. `synced(n)` returns only after a sync that began after write n has finished. A partition is
known as unsynced from its write until such a sync has finished, so a reader can wait for exactly what it
saw. After one failed sync or write every later call fails: nothing more can be promised. A refusal for lack
of room is made before anything is written, so it is definite and leaves the store as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.runtime.ports import Runtime
from lockstep.storage.store import Store
from lockstep.values import limits
from lockstep.values.errors import DiskRefused, Overloaded, StorageError


class _Unsynced:
    """What was written between two starts of a sync, with the last sequence that touched it."""

    __slots__ = ("partitions", "ranges", "writes")

    def __init__(self) -> None:
        self.writes = 0
        self.partitions: dict[bytes, int] = {}
        self.ranges: list[tuple[bytes, bytes, int]] = []

    def of_partition(self, prefix: bytes) -> int:
        found = self.partitions.get(prefix, 0)
        for lower, upper, sequence in self.ranges:
            if lower <= prefix < upper:
                found = max(found, sequence)
        return found

    def between(self, lower: bytes, upper: bytes) -> int:
        found = 0
        for prefix, sequence in self.partitions.items():
            if sequence > found and lower <= prefix < upper:
                found = sequence
        for start, end, sequence in self.ranges:
            if start < upper and lower < end:
                found = max(found, sequence)
        return found


class Space:
    """`reserve_bytes` 0: the disk is never looked at."""

    def __init__(self, runtime: Runtime, reserve_bytes: int) -> None:
        self._runtime = runtime
        self.reserve_bytes = reserve_bytes
        self._next_look_s = 0.0
        #: Whether `admit` is to look again.
        self._due = reserve_bytes > 0
        self.is_full = False
        #: Writes that were refused.
        self.refused = 0

    def synced(self) -> None:
        """What was written lies on the disk now."""
        self._due = self.reserve_bytes > 0

    def admit(self) -> None:
        """As `require`, before a write: a look between two syncs is enough."""
        if self._due:
            self.require()

    def look(self) -> bool:
        """Whether too little is free; the disk is asked every DISK_SPACE_LOOK_MS at most."""
        if not self.reserve_bytes:
            return False
        now_s = self._runtime.clock.monotonic_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + limits.DISK_SPACE_LOOK_MS / 1000
            # Once full, a little more must be free before writes are taken again.
            wanted = self.reserve_bytes * (5 if self.is_full else 4) // 4
            self.is_full = self._runtime.disk.free_bytes() < wanted
        return self.is_full

    def require(self) -> None:
        """DiskRefused while there is too little room for a write."""
        self._due = False
        if self.look():
            self._due = True
            self.refused += 1
            self._runtime.probes.reach("storage.disk_full")
            raise DiskRefused(
                f"less than {self.reserve_bytes} bytes are free: writes are refused",
                hint="make room on the data directory's disk: storage.reserve_bytes stay free",
            )


class GroupCommit:
    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        on_failure: Callable[[StorageError], None] | None = None,
        period_ms: int = 0,
        reserve_bytes: int = 0,
    ) -> None:
        """With a period nobody waits for a sync: one is made that long after the first write behind the last,
        and a crash may take back what was acknowledged since."""
        self.space = Space(runtime, reserve_bytes)
        self._period_ms = period_ms
        #: Set when a periodic sync is not to wait.
        self._hurry = asyncio.Event()
        self._store = store
        self._runtime = runtime
        self._on_failure = on_failure
        self._covered = 0
        self._written = 0
        #: Written since the last sync began, and while it runs, what it is about to cover.
        self._open = _Unsynced()
        self._closing = _Unsynced()
        self._closing_covers = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._joined: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._failure: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the store can make nothing durable any more."""
        return self._failure is not None

    def admit(self) -> None:
        """Overloaded when too much waits for a sync; DiskRefused when syncing has failed."""
        if self._failure is not None:
            raise DiskRefused(self._failure)
        if self._open.writes >= limits.UNSYNCED_WRITES_MAX:
            raise Overloaded("too many writes wait for the disk")

    def admit_growth(self) -> None:
        """As `admit`, of what takes room; DiskRefused also when there is none."""
        self.space.admit()
        self.admit()

    def fail(self, error: StorageError) -> None:
        """The store is dead, by a sync or by a write: say so once, and promise nothing from now on."""
        if self._failure is None:
            self._failure = error.message
            if self._on_failure is not None:
                self._on_failure(error)

    def wrote(self, prefix: bytes, sequence: int) -> None:
        """A write touched the partition with this key prefix."""
        self._open.writes += 1
        self._open.partitions[prefix] = sequence
        self._written = sequence

    def wrote_range(self, lower: bytes, upper: bytes, sequence: int) -> None:
        self._open.ranges.append((lower, upper, sequence))
        self._written = sequence

    def unsynced_partition(self, prefix: bytes) -> int:
        """The sequence to wait for before an answer may speak of the partition; 0 for none."""
        return self._open.of_partition(prefix) or self._closing.of_partition(prefix)

    def unsynced_between(self, lower: bytes, upper: bytes) -> int:
        return self._open.between(lower, upper) or self._closing.between(lower, upper)

    def is_synced(self, sequence: int) -> bool:
        """Whether everything written up to `sequence` is durable already."""
        return sequence <= self._covered

    async def synced(self, sequence: int) -> None:
        """Wait until everything written up to `sequence` is durable. DiskRefused when it cannot be."""
        if not self._period_ms:
            await self.durable(sequence)
            return
        if self._failure is not None:
            raise DiskRefused(self._failure)
        if sequence > self._covered and self._task is None:
            self._task = self._runtime.tasks.spawn(self._run(), "storage.sync")
        if self._open.writes > limits.UNSYNCED_WRITES_MAX // 2:
            self._hurry.set()

    async def durable(self, sequence: int) -> None:
        """As `synced`, whatever the period."""
        if sequence <= self._covered:
            return
        if self._failure is not None:
            raise DiskRefused(self._failure)
        self._hurry.set()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._waiting.append(waiter)
            self._task = self._runtime.tasks.spawn(self._run(), "storage.sync")
        elif sequence <= self._closing_covers:
            self._joined.append(waiter)
        else:
            self._waiting.append(waiter)
        await waiter

    async def _run(self) -> None:
        try:
            while self._waiting or (self._period_ms and self._covered < self._written):
                if self._period_ms and not self._waiting:
                    await self._wait_for_period()
                await self._sync_once()
                await asyncio.sleep(0)  # Who was told has more to sync by then, and needs no new task.
        except StorageError as error:
            for waiter in self._taken():
                waiter.set_exception(DiskRefused(error.message))
            self.fail(error)
        finally:
            self._task = None
            # Only a cancelled task still has waiters here; they cannot be told anything true.
            for waiter in self._taken():
                waiter.cancel()

    async def _wait_for_period(self) -> None:
        self._hurry.clear()
        try:
            async with asyncio.timeout(self._period_ms / 1000):
                await self._hurry.wait()
        except TimeoutError:
            self._runtime.probes.reach("storage.sync.periodic")

    async def _sync_once(self) -> None:
        self._joined, self._waiting = self._waiting, []
        self._closing, self._open = self._open, _Unsynced()
        self._closing_covers = self._written
        self._runtime.probes.reach("storage.sync.started")
        covered = await self._store.sync()
        self._runtime.probes.reach("storage.sync.finished")
        assert covered >= self._closing_covers, "a sync covers what was written before it"
        self._covered = covered
        self.space.synced()
        self._closing = _Unsynced()
        joined, self._joined = self._joined, []
        for waiter in joined:
            if not waiter.done():
                waiter.set_result(None)

    def _taken(self) -> list[asyncio.Future[None]]:
        waiters = [waiter for waiter in self._joined + self._waiting if not waiter.done()]
        self._joined, self._waiting = [], []
        return waiters

    def validate(self) -> None:
        """What holds between any two turns of the loop."""
        assert self._closing_covers <= self._written, "a sync covers what was written before it"
        assert len(self._open.partitions) <= self._open.writes, "writes are miscounted"
        assert self._task is not None or not (self._joined or self._waiting), "somebody waits for no sync"

    async def settle(self) -> None:
        """Wait for a sync that runs; used before the store is closed."""
        self._hurry.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        # A closed store refuses writes too, and that is no failure.
        self._on_failure = None
