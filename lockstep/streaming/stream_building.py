"""The files of one range stream at its source, built ahead of what the target asks for, those of large
streams in helper processes, from the store's content fixed on disk.

Invariant: Files are numbered in key order without gaps; one has its number only when all before it have
theirs. At most `kept_max` and `ahead_max` files are on disk, and at most `ahead_max` of later stretches than
the first that is not complete, so that these never keep the next file waiting. Stretches follow each other
without gaps and end at tokens, so no partition is in two of them. What is fixed for a stream is removed when
the stream has ended and no helper works for it any more, or at the node's next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from lockstep.runtime.ports import Helpers, Runtime
from lockstep.storage.rows import keys
from lockstep.storage.sorted_file import RangeFiles
from lockstep.storage.store import FileSummary, Pair
from lockstep.streaming.stream_files import digest_of
from lockstep.values.errors import DiskRefused, LockstepError, StorageError
from lockstep.values.limits import (
    STREAM_FILES_AHEAD_MAX,
    STREAM_FILES_KEPT_MAX,
    STREAM_HELPED_BYTES,
    STREAM_HELPER_FAILURES_MAX,
    STREAM_HELPER_TIMEOUT_MS,
    STREAM_WAIT_MS,
)
from lockstep.values.node_limits import HELPERS_MAX
from lockstep.values.tokens import Range


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


class FixedContent(Protocol):
    """See `storage.store.FixedContent`."""

    def order(self, lower: bytes, upper: bytes, bytes_max: int, path: str) -> bytes: ...

    def built(self, answer: bytes) -> tuple[FileSummary, bool]: ...

    def close(self) -> Coroutine[Any, Any, None]: ...


class Checkpoint(Protocol):
    """See `storage.fixing`."""

    async def fixed(self, table_id: int, tokens: Range, path: str) -> FixedContent | None: ...

    def remove(self, path: str) -> None: ...


class HelpedBuilds:
    """Whether and how this node's helpers build files."""

    def __init__(
        self,
        runtime: Runtime,
        fixing: Checkpoint,
        file_bytes: int,
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._fixing = fixing
        self._file_bytes = file_bytes
        self.log = log
        self._failures = 0
        #: What a stream has at least when its files are built by helpers.
        self.bytes_min = STREAM_HELPED_BYTES

    async def stretches(
        self, table_id: int, tokens: Range, from_key: bytes, total_bytes: int, path: str
    ) -> HelpedStretches | None:
        """Of a range of about `total_bytes`, from a key on; None when its files are better built here."""
        left = _left(tokens, from_key)
        left_bytes = total_bytes * (left.right - left.left) // (tokens.right - tokens.left)
        helpers = self._runtime.helpers
        if helpers is None or left_bytes < self.bytes_min or self._failures >= STREAM_HELPER_FAILURES_MAX:
            return None
        # The store wants the directory above to be there.
        self._runtime.disk.append(path, b"")
        self._runtime.disk.remove(path)
        try:
            content = await self._fixing.fixed(table_id, left, path)
        except DiskRefused:
            # If the disk refuses everything, whoever builds here says so.
            self.heard(failed=True)
            return None
        if content is None:
            return None
        work = _Work(self, helpers, content, table_id, from_key, self._file_bytes)
        return HelpedStretches(self._runtime, work, left, left_bytes)

    def heard(self, failed: bool) -> None:
        self._failures = self._failures + 1 if failed else 0


def _left(tokens: Range, from_key: bytes) -> Range:
    """What of a range is at or behind a key."""
    if len(from_key) < keys.PLACE_BYTES:
        return tokens
    first = keys.token_of(from_key) - 1
    return Range(min(max(first, tokens.left), tokens.right - 1), tokens.right)


class _Work:
    """What the stretches of one stream have in common."""

    def __init__(
        self,
        builds: HelpedBuilds,
        helpers: Helpers,
        content: FixedContent,
        table_id: int,
        from_key: bytes,
        file_bytes: int,
    ) -> None:
        self._builds = builds
        self._helpers = helpers
        self.content = content
        self.table_id = table_id
        self.from_key = from_key
        self.file_bytes = file_bytes
        #: What waits for helpers; a helper has ended, or has nothing to do, before its task ends.
        self.filling: dict[asyncio.Task[None], None] = {}

    async def end(self) -> None:
        """Remove what was fixed. Links may be a file's last ones by now: that takes time."""
        if self.filling:
            await asyncio.wait(list(self.filling))
        try:
            await self.content.close()
        except DiskRefused as error:
            self._builds.log("stream.fixed_not_removed", reason=error.message)

    async def build(self, lower: bytes, upper: bytes, path: str) -> tuple[FileSummary, bool]:
        """StorageError when there is no such file."""
        order = self.content.order(lower, upper, self.file_bytes, path)
        try:
            answer = await self._helpers.do(order, STREAM_HELPER_TIMEOUT_MS)
        except (TimeoutError, ConnectionError) as error:
            self._builds.heard(failed=True)
            reason = str(error) or f"it took longer than {STREAM_HELPER_TIMEOUT_MS} ms"
            raise StorageError(f"the helper process did not build {path}: {reason}") from error
        self._builds.heard(failed=False)
        return self.content.built(answer)


class HelpedStretches:
    """Stretches of about a file each, as wide as those before let expect; see `stream_building.Stretches`."""

    at_once = HELPERS_MAX
    kept_max = STREAM_FILES_KEPT_MAX
    ahead_max = STREAM_FILES_AHEAD_MAX

    def __init__(self, runtime: Runtime, work: _Work, tokens: Range, total_bytes: int) -> None:
        self._runtime = runtime
        self._work = work
        self._at, self._right = tokens.left, tokens.right
        #: Tokens and bytes of what is built; an estimate until something is.
        self._tokens, self._bytes = tokens.right - tokens.left, max(1, total_bytes)
        self._is_estimate = True
        self._width = self._tokens

    @property
    def exhausted(self) -> bool:
        return self._at >= self._right

    def next(self) -> HelpedStretch | None:
        if self.exhausted:
            return None
        # A quarter less than a file: a little more than expected needs no second file for the rest.
        wanted = self._work.file_bytes * 3 // 4 * self._tokens // self._bytes
        self._width = max(1, min(wanted, _WIDENED_MAX * self._width))
        # Smaller ones towards the end, so that no helper is left without work for long; but none for little.
        first, little = self._at, self._width // 4
        end = first + max(1, little, min(self._width, (self._right - first) // self.at_once))
        self._at = self._right if end + little >= self._right else end
        return HelpedStretch(self._runtime, self._work, Range(first, self._at), self._built)

    def _built(self, tokens: int, size_bytes: int) -> None:
        if self._is_estimate:
            self._is_estimate = False
            self._tokens = self._bytes = 0
        self._tokens += tokens
        self._bytes = max(1, self._bytes + size_bytes)

    def close(self) -> None:
        self._runtime.tasks.spawn(self._work.end(), "stream.unfix")


#: How much wider than the one before a stretch may be: parts of a range may be almost empty.
_WIDENED_MAX = 8


class HelpedStretch:
    """See `stream_building.Stretch`."""

    def __init__(
        self, runtime: Runtime, work: _Work, tokens: Range, built: Callable[[int, int], None]
    ) -> None:
        self._runtime = runtime
        self._work = work
        self._tokens = tokens
        self._built = built
        lower, self._upper = keys.token_bounds(work.table_id, tokens)
        self._lower = max(lower, work.from_key)
        self._bytes = 0
        self._filling: asyncio.Task[None] | None = None
        self.ended = False

    async def fill(self, path: str) -> tuple[FileSummary, Callable[[], Awaitable[None]]]:
        task = self._filling = asyncio.current_task()
        assert task is not None, "files are filled by tasks"
        self._work.filling[task] = None
        try:
            summary, self.ended = await self._work.build(self._lower, self._upper, path)
        finally:
            self._filling = None
            del self._work.filling[task]
        if summary.entries:
            self._lower = summary.last_key + b"\x00"
            self._bytes += self._runtime.disk.size(path)
        if self.ended:
            self._built(self._tokens.right - self._tokens.left, self._bytes)
        self._runtime.probes.reach("stream.source.helped")
        return summary, _nothing

    def stop(self) -> None:
        if self._filling is not None:
            self._filling.cancel()


async def _nothing() -> None:
    return
