"""The files of one range stream at its source, built ahead of what the target asks for.

Invariants. Files are numbered in key order without gaps; one has its number only when all before it have
theirs. At most `kept_max` and `ahead_max` files are on disk, and at most `ahead_max` of later stretches than
the first that is not complete, so that these never keep the next file waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from lockstep.runtime.ports import Runtime
from lockstep.storage.sorted_file import FileSummary, RangeFiles
from lockstep.storage.store import Pair
from lockstep.streaming.stream_files import digest_of
from lockstep.values.errors import DiskRefused, LockstepError
from lockstep.values.limits import STREAM_FILES_KEPT_MAX, STREAM_WAIT_MS


class Fragments(Protocol):
    """A snapshot of a range's fragments, taken in key order; fewer than asked for only at the end."""

    def take(self, count: int) -> list[Pair]: ...

    def close(self) -> None: ...


class FragmentFile(Protocol):
    """A file of the store's own kind in the making; there is none while nothing was added."""

    @property
    def size_bytes(self) -> int: ...

    def add(self, pairs: Sequence[Pair]) -> None: ...

    async def finish(self) -> None: ...


class Stretch(Protocol):
    """A part of the range that is made into files one after the other."""

    @property
    def ended(self) -> bool:
        """Nothing is left to make files of."""
        ...

    async def fill(self, path: str) -> tuple[FileSummary, Callable[[], Awaitable[None]]]:
        """Make the next file: what it holds, but for size and digest, and what completes it while the one
        behind it is made. Without entries there is none."""
        ...

    def stop(self) -> None:
        """Have what fills a file end soon, maybe by cancelling it."""
        ...


class Stretches(Protocol):
    #: How many are filled at once.
    at_once: int
    #: Files on disk; `ahead_max` is for those of later stretches than the first that is not complete.
    kept_max: int
    ahead_max: int

    def next(self) -> Stretch | None:
        """The next one in key order; None when there is none."""
        ...

    @property
    def exhausted(self) -> bool:
        """`next` has given the last one."""
        ...

    def close(self) -> None: ...


class BuiltFile:
    def __init__(self, path: str, summary: FileSummary, last: bool) -> None:
        self.path = path
        self.summary = summary
        self.last = last


class _Begun:
    """A file under way, or complete and without a number yet."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.summary: FileSummary | None = None


class _OpenStretch:
    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch
        self.begun: list[_Begun] = []
        #: One at a time, for they follow each other.
        self.filling = False


class StreamBuild:
    def __init__(self, runtime: Runtime, stem: str, stretches: Stretches, gate: asyncio.Semaphore) -> None:
        """`stem`: what the paths of files begin with. `gate`: bounds how many are filled over all streams."""
        self._runtime = runtime
        self._stem = stem
        self._stretches = stretches
        self._gate = gate
        self._open: list[_OpenStretch] = []
        self._begun = 0
        self._changed = asyncio.Event()
        #: Files that the target has not done with, by number, and how many ever had one.
        self.files: dict[int, BuiltFile] = {}
        self.numbered = 0
        self.error: LockstepError | None = None
        #: The last file has its number.
        self.ended = False
        self.closed = False

    @property
    def under_way(self) -> int:
        """Files that have no number yet."""
        return sum(len(one.begun) for one in self._open)

    def go_on(self) -> None:
        """Begin as many files as may be under way."""
        while not self.closed and self.error is None and (place := self._unfilled()) is not None:
            begun = _Begun(f"{self._stem}-{self._begun}")
            self._begun += 1
            place.begun.append(begun)
            place.filling = True
            self._runtime.tasks.spawn(self._build(place, begun), f"stream.build.{begun.path}")

    def _unfilled(self) -> _OpenStretch | None:
        """The first stretch in key order of which a file may be begun now."""
        stretches = self._stretches
        if sum(one.filling for one in self._open) >= stretches.at_once:
            return None
        for one in self._open:
            if not one.filling and not one.stretch.ended and self._has_room(one is self._open[0]):
                return one
        stretch = stretches.next() if self._has_room(not self._open) else None
        if stretch is None:
            return None
        self._open.append(_OpenStretch(stretch))
        return self._open[-1]

    def _has_room(self, is_first: bool) -> bool:
        ahead = sum(len(one.begun) for one in self._open[1:])
        kept = len(self.files) + self.under_way - ahead
        kept_max, ahead_max = self._stretches.kept_max, self._stretches.ahead_max
        return kept < kept_max if is_first else ahead < ahead_max and kept + ahead < kept_max + ahead_max

    async def wait(self, number: int) -> None:
        """Until the file has its number, or never will have; at most STREAM_WAIT_MS."""
        try:
            async with asyncio.timeout(STREAM_WAIT_MS / 1000):
                while number not in self.files and self.comes(number):
                    await self._changed.wait()
        except TimeoutError:
            return

    def comes(self, number: int) -> bool:
        """Whether there will be such a file, as far as it is known."""
        is_next = self.numbered <= number <= self.numbered + self.under_way
        return is_next and not self.ended and not self.closed and self.error is None

    async def _build(self, place: _OpenStretch, begun: _Begun) -> None:
        try:
            try:
                async with self._gate:
                    if self.closed:
                        return
                    summary, finish = await self._fill(place.stretch, begun.path)
            finally:
                place.filling = False
            # The next one is filled while this one is completed, which is mostly waiting for the disk.
            self.go_on()
            if summary.entries and not self.closed:
                await finish()
                summary = await self._summed_up(begun.path, summary)
            begun.summary = summary
        except (OSError, LockstepError) as error:
            self.error = error if isinstance(error, LockstepError) else DiskRefused(str(error))
        finally:
            if self.closed or begun.summary is None or not begun.summary.entries:
                self._remove(begun.path)
            if not self.closed:
                self._number()
                # What turned out to be empty takes no room.
                self.go_on()
            self._tell()

    async def _fill(self, stretch: Stretch, path: str) -> tuple[FileSummary, Callable[[], Awaitable[None]]]:
        self._runtime.disk.append(path, b"")  # The store wants the directory to be there.
        return await stretch.fill(path)

    async def _summed_up(self, path: str, summary: FileSummary) -> FileSummary:
        disk = self._runtime.disk
        digest = await self._runtime.tasks.run_blocking(lambda: digest_of(disk, path))
        return replace(summary, size_bytes=disk.size(path), digest=digest)

    def _number(self) -> None:
        """Give their numbers to the files that are complete and have nothing before them."""
        while self._open:
            head = self._open[0]
            while head.begun and head.begun[0].summary is not None:
                is_end = head.stretch.ended and len(head.begun) == 1 and not head.filling
                self._name(head.begun.pop(0), is_end and len(self._open) == 1 and self._stretches.exhausted)
            if head.begun or not head.stretch.ended:
                return
            self._open.pop(0)

    def _name(self, begun: _Begun, last: bool) -> None:
        assert begun.summary is not None, "only complete files get a number"
        if begun.summary.entries or last:
            self.files[self.numbered] = BuiltFile(begun.path, begun.summary, last)
            self.numbered += 1
        self.ended = last

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def release(self, number: int) -> int:
        """The target has done with every file before `number`: how many there were."""
        done = [one for one in self.files if one < number]
        for one in done:
            self._remove(self.files.pop(one).path)
        return len(done)

    def close(self) -> None:
        """Remove everything; what is being built ends soon."""
        self.closed = True
        for place in self._open:
            if place.filling:
                place.stretch.stop()
            for begun in place.begun:
                if begun.summary is not None:
                    self._remove(begun.path)
        self._stretches.close()
        for built in self.files.values():
            self._remove(built.path)
        self.files = {}
        self._tell()

    def _remove(self, path: str) -> None:
        if self._runtime.disk.exists(path):
            self._runtime.disk.remove(path)


class LoopStretch:
    """The whole range as the only stretch, its files filled on the loop."""

    at_once = 1
    kept_max = STREAM_FILES_KEPT_MAX
    ahead_max = 0

    def __init__(
        self,
        runtime: Runtime,
        fragments: Fragments,
        begin: Callable[[str], FragmentFile],
        file_bytes: int,
    ) -> None:
        self.exhausted = False
        self._runtime = runtime
        self._fragments = fragments
        self._begin = begin
        self._maker = RangeFiles(fragments.take, file_bytes)
        self._stopped = False

    def next(self) -> LoopStretch | None:
        was_given, self.exhausted = self.exhausted, True
        return None if was_given else self

    @property
    def ended(self) -> bool:
        return self._maker.ended

    async def fill(self, path: str) -> tuple[FileSummary, Callable[[], Awaitable[None]]]:
        """A turn of the loop for each block: handing pairs over costs the interpreter, so a thread would
        hold up requests for longer than a block does."""
        file, maker = self._begin(path), self._maker
        maker.begin()
        while not self._stopped and maker.add_block(file):
            self._runtime.probes.reach("stream.source.block")
            await asyncio.sleep(0)

        async def finish() -> None:
            # What completes a file waits for the disk on the loop: then there is little left to wait for.
            await self._runtime.disk.sync(path)
            await file.finish()

        return maker.summary(0, b""), finish

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._stopped = True
        self._fragments.close()
