"""Building the files of large streams in helper processes, from the store's content fixed on disk.

Invariants. Stretches follow each other without gaps and end at tokens, so no partition is in two of them.
What is fixed for a stream is removed when the stream has ended and no helper works for it any more, or at the
node's next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from lockstep.runtime.ports import Helpers, Runtime
from lockstep.storage.rows import keys
from lockstep.storage.sorted_file import FileSummary
from lockstep.values.errors import DiskRefused, StorageError
from lockstep.values.limits import (
    STREAM_FILES_AHEAD_MAX,
    STREAM_FILES_KEPT_MAX,
    STREAM_HELPED_BYTES,
    STREAM_HELPER_FAILURES_MAX,
    STREAM_HELPER_TIMEOUT_MS,
)
from lockstep.values.process_limits import HELPERS_MAX
from lockstep.values.tokens import Range


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
