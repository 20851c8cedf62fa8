"""The target of range streams: fetches sorted files, verifies them whole, and makes each visible at once.

Invariants. A file becomes visible in the same step in which its session was seen open in this node's own
metadata, after its digest was verified, and never in part. What was made visible is never asked for again
while the session lasts: its position is durable and outlives both ends. Nothing is written for a closed
session.

Parts of a sorted file on their way to its target: how large they are, and how many are asked for ahead.

Invariant: parts are written in the order of the file; what came out of turn is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.replica.messages import (
    StreamAskPart,
    StreamClose,
    StreamFile,
    StreamNextFile,
    StreamOpen,
    StreamOpened,
    StreamPart,
    StreamSurvey,
    StreamSurveyed,
)
from lockstep.replica.session_guards import SessionGuards
from lockstep.runtime.ports import Clock, Runtime
from lockstep.storage.sorted_file import FORMAT_VERSION
from lockstep.storage.store import FileSummary
from lockstep.streaming.stream_files import ArrivingFile, Position, StreamFiles, StreamKey, digest_of
from lockstep.streaming.stream_progress import StreamCounts, StreamProgress, StreamView, TakenIn
from lockstep.values.errors import (
    DiskRefused,
    FrameCorrupt,
    LockstepError,
    NotReplica,
    Overloaded,
    PeerError,
    ReplicaRefusal,
    SessionClosed,
    StorageError,
)
from lockstep.values.limits import (
    REPLICA_RETRY_MS,
    STREAM_ATTEMPTS_MAX,
    STREAM_FILE_ATTEMPTS_MAX,
    STREAM_LANE_IDLE_MS,
    STREAM_PART_BYTES,
    STREAM_PART_BYTES_MIN,
    STREAM_PART_MS_FAST,
    STREAM_PART_MS_SLOW,
    STREAM_PARTS_AHEAD,
    STREAM_TIMEOUT_MS,
)
from lockstep.values.tokens import Range


class CooperativeYield:
    """How much is asked for at once: more while parts come fast, less when they are slow."""

    def __init__(self) -> None:
        self.part_bytes = STREAM_PART_BYTES_MIN

    def judge(self, size: int, took_ms: float) -> None:
        if took_ms < STREAM_PART_MS_FAST:
            self.part_bytes = min(STREAM_PART_BYTES, max(self.part_bytes, 2 * size))
        elif took_ms > STREAM_PART_MS_SLOW:
            self.part_bytes = max(STREAM_PART_BYTES_MIN, size // 2)


class PartsAhead:
    def __init__(
        self,
        internode: Internode,
        clock: Clock,
        key: StreamKey,
        file: ArrivingFile,
        request: Callable[[int], StreamAskPart | None],
        pace: CooperativeYield,
    ) -> None:
        """`request` asks for what begins at an offset; None at the file's end."""
        self._internode = internode
        self._clock = clock
        self._source = key.source
        self._file = file
        self._request = request
        self._pace = pace
        self._asked = file.size_bytes
        self._coming: deque[tuple[StreamAskPart, asyncio.Future[StreamPart]]] = deque()

    def ask(self) -> None:
        """Ask for what may be on its way."""
        while len(self._coming) < STREAM_PARTS_AHEAD and (ask := self._request(self._asked)) is not None:
            self._coming.append((ask, self._begin(ask)))
            self._asked += ask.size

    async def next(self, require: Callable[[], None]) -> None:
        """Wait until the first of them is written. `require` raises when nobody may wait any more."""
        while True:
            ask, coming = self._coming[0]
            began_s = self._clock.monotonic_s()
            part = await coming
            require()
            if part.size == ask.size and self._file.size_bytes >= ask.offset + ask.size:
                break
            if part.size not in (0, ask.size):
                raise FrameCorrupt("a part of another size came")
            # The source has no turn yet, or it came before the one that it follows.
            self._coming[0] = ask, self._begin(ask)
        self._coming.popleft()
        self._pace.judge(ask.size, (self._clock.monotonic_s() - began_s) * 1000)

    def _begin(self, ask: StreamAskPart) -> asyncio.Future[StreamPart]:
        take = self._file.taker(ask.offset)
        return self._internode.lanes.begin(self._source, verbs.STREAM_PART, ask, STREAM_TIMEOUT_MS, take)

    def close(self) -> None:
        for _, coming in self._coming:
            if not coming.cancel() and not coming.cancelled():
                coming.exception()  # Heard, so that nobody calls it lost.


class TargetEngine(Protocol):
    """What a target needs of its node's storage."""

    async def before_ingest(self, table_id: int, tokens: Range) -> None: ...

    def run_at(
        self, table_id: int, tokens: Range, path: str, count: int, first_key: bytes, last_key: bytes
    ) -> Any: ...

    def ingest(self, run: Any) -> int: ...

    async def synced(self, sequence: int) -> None: ...


class StreamReport(msgspec.Struct, frozen=True, array_like=True):
    """Of the whole stream, also of what earlier attempts brought."""

    moved_bytes: int
    fragments: int
    files: int


class _FileDamaged(FrameCorrupt):
    """A file that arrived is not what its header says."""


class _Copy:
    """One stream to this node while it is worked on."""

    def __init__(self, position: Position, epoch: int, clock: Clock, progress: StreamProgress) -> None:
        """What an earlier call brought counts as moved."""
        self.position = position
        self.epoch = epoch
        self.progress = progress
        key = position.key
        self.view = StreamView(
            key.session_id, key.source, "in", key.table_id, Range(key.left, key.right), clock
        )
        self.view.files, self.view.bytes = position.files, position.moved_bytes
        self.view.total_bytes, self.view.file_bytes = position.total_bytes, position.file_bytes
        progress.views.append(self.view)
        progress.moved_bytes += position.moved_bytes
        progress.files += position.files
        progress.rate.note(clock.monotonic_s(), progress.moved_bytes)
        #: Times that the file which comes next was damaged.
        self.damaged = 0
        self.failures = 0
        #: Digests of files that arrived in one go, by number.
        self.digests: dict[int, bytes] = {}
        self.pace = CooperativeYield()
        #: Bytes that arrived, whatever became of them: shows whether an attempt got anywhere.
        self.arrived = 0

    @property
    def key(self) -> StreamKey:
        return self.position.key

    def moved(self, size: int, now_s: float) -> None:
        self.arrived += size
        self.view.moved(size)
        self.progress.moved_bytes += size
        self.progress.rate.note(now_s, self.progress.moved_bytes)


class StreamClient:
    def __init__(
        self, runtime: Runtime, internode: Internode, engine: TargetEngine, guards: SessionGuards
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._engine = engine
        self._guards = guards
        self._files = StreamFiles(runtime.disk)
        self._views: dict[StreamKey, StreamView] = {}
        self.counts = StreamCounts()
        self.taken_in = TakenIn(self._on_disk)

    def _on_disk(self, session_id: str) -> tuple[int, int]:
        found = list(self._files.of_session(session_id))
        return sum(one.moved_bytes for one in found), sum(one.fragments for one in found)

    def forget_closed(self, session_open: Callable[[str], bool]) -> None:
        """Remove what streams of closed sessions left; at the start, and when sessions were closed."""
        if self._files.forget_closed(session_open):
            self._runtime.probes.reach("stream.target.forgotten")

    def views(self) -> Iterator[StreamView]:
        return iter(list(self._views.values()))

    async def survey(
        self, *, source: Address, session_id: str, table_ids: Sequence[int], tokens: Range, epoch: int
    ) -> frozenset[int]:
        """The tables of which `source` may hold anything in a range; all where it cannot say, for then each
        stream tells what is wrong. SessionClosed when the session ended."""
        self._guards.require(session_id)
        request = StreamSurvey(session_id, tuple(table_ids), tokens.left, tokens.right, epoch)
        try:
            answer: StreamSurveyed = await self._internode.request(
                source, verbs.STREAM_SURVEY, request, STREAM_TIMEOUT_MS
            )
        except (PeerError, ReplicaRefusal, Overloaded):
            self._runtime.probes.reach("stream.target.not_surveyed")
            return frozenset(table_ids)
        return frozenset(answer.table_ids)

    async def stream_range(
        self,
        *,
        source: Address,
        session_id: str,
        table_id: int,
        range: Range,
        epoch: int,
        progress: StreamProgress | None = None,
    ) -> StreamReport:
        """Copy what `source` holds of a range; durable on return. What an earlier call under the same session
        brought, maybe before a restart, is not copied again.

        SessionClosed when the session ended; FrameCorrupt when a file arrives damaged again and again;
        PeerError when the source stays unreachable through STREAM_ATTEMPTS_MAX attempts without progress;
        storage errors as they are.
        """
        self._guards.require(session_id)
        key = StreamKey(session_id, table_id, range.left, range.right, source)
        self.taken_in.of(session_id)
        position = self._files.load(key)
        copy = _Copy(position, epoch, self._runtime.clock, progress or StreamProgress())
        self._views[key] = copy.view
        self.counts.streams += 1
        try:
            while not copy.position.done:
                await self._attempt(copy)
        finally:
            self._views.pop(key, None)
            asyncio.get_running_loop().call_later(STREAM_LANE_IDLE_MS / 1000, self._idle, source)
        copy.view.ended()
        return StreamReport(copy.position.moved_bytes, copy.position.fragments, copy.position.files)

    def begin_anew(self, session_id: str, table_id: int, tokens: Range, source: Address) -> None:
        """Have the next `stream_range` copy everything, also what was copied under the session: the source
        has more by now that belongs to a snapshot."""
        key = StreamKey(session_id, table_id, tokens.left, tokens.right, source)
        if self._files.has(key):
            self._runtime.probes.reach("stream.target.anew")
            self._files.remove(key)

    def _idle(self, source: Address) -> None:
        """Let the connection for files go when nothing is streamed from there."""
        if not any(key.source == source for key in self._views):
            self._internode.lanes.close(source)

    async def _attempt(self, copy: _Copy) -> None:
        """Go on until all is here, or something breaks that another attempt may mend."""
        before = copy.arrived, copy.position.files
        try:
            await self._copy(copy)
        except SessionClosed:
            self._files.remove(copy.key)
            raise
        except _FileDamaged as error:
            self._damaged(copy, error)
        except NotReplica as error:
            # The source knows nothing of this stream (any more): it is opened anew, behind what is here.
            await self._broken(copy, before, error)
            self._forget_stream(copy)
        except (PeerError, ReplicaRefusal, Overloaded) as error:
            await self._broken(copy, before, error)

    async def _broken(self, copy: _Copy, before: tuple[int, int], error: LockstepError) -> None:
        """Pause before another attempt; raises the error after too many that led nowhere."""
        moved = (copy.arrived, copy.position.files) != before
        copy.failures = 1 if moved else copy.failures + 1
        if copy.failures >= STREAM_ATTEMPTS_MAX:
            raise error
        self._guards.require(copy.key.session_id)
        await self._runtime.probes.linger("stream.target.broken")
        await asyncio.sleep(copy.failures * REPLICA_RETRY_MS / 1000)

    def _damaged(self, copy: _Copy, error: LockstepError) -> None:
        copy.damaged += 1
        self.counts.damaged += 1
        self._runtime.probes.reach("stream.target.damaged")
        key = copy.key
        if copy.damaged >= STREAM_FILE_ATTEMPTS_MAX:
            raise FrameCorrupt(
                f"a file of table {key.table_id} from {key.source[0]}:{key.source[1]} was damaged "
                f"{copy.damaged} times: {error.message}",
                hint="look at the source's disk and network; another source is tried if there is one",
            ) from error
        self._guards.require(key.session_id)
        if copy.damaged % 2 == 0:
            # The same bytes again did not help: let the source build its files anew.
            self._internode.send(key.source, verbs.STREAM_CLOSE, StreamClose(copy.position.stream_id))
            self._forget_stream(copy)
        else:
            self._files.discard(key)
            copy.digests = {}
            copy.position = replace(copy.position, fetched=())

    def _forget_stream(self, copy: _Copy) -> None:
        self._guards.require(copy.key.session_id)
        self._files.discard(copy.key)
        copy.position = replace(copy.position, stream_id=0, number=0, fetched=())

    # -- one attempt ------------------------------------------------------------------------------

    async def _copy(self, copy: _Copy) -> None:
        self._guards.require(copy.key.session_id)
        if copy.position.stream_id or copy.position.next_key:
            self.counts.resumed += 1
            self._runtime.probes.reach("stream.target.resumed")
        if not copy.position.stream_id and await self._open(copy):
            return
        arrived: asyncio.Queue[StreamFile] = asyncio.Queue(1)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._fetch(copy, arrived), name="stream.fetch")
                both.create_task(self._take_in(copy, arrived), name="stream.take_in")
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures
        self._internode.send(copy.key.source, verbs.STREAM_CLOSE, StreamClose(copy.position.stream_id))

    async def _open(self, copy: _Copy) -> bool:
        key, position = copy.key, copy.position
        request = StreamOpen(key.session_id, key.table_id, key.left, key.right, copy.epoch, position.next_key)
        opened: StreamOpened = await self._ask(key, verbs.STREAM_OPEN, request)
        self._guards.require(key.session_id)
        copy.digests = {}
        copy.position = replace(
            position,
            done=opened.empty,
            stream_id=opened.stream_id,
            number=0,
            total_bytes=opened.total_bytes,
            file_bytes=opened.file_bytes,
            part_bytes=min(max(opened.part_bytes, 1), STREAM_PART_BYTES),
            fetched=(),
        )
        copy.view.total_bytes, copy.view.file_bytes = opened.total_bytes, opened.file_bytes
        return opened.empty

    async def _fetch(self, copy: _Copy, arrived: asyncio.Queue[StreamFile]) -> None:
        number = copy.position.number
        while True:
            header = await self._header(copy, number)
            assert header.summary is not None, "a header that is ready was checked"
            if header.summary.entries:
                await self._fetch_content(copy, number, header.summary)
            await arrived.put(header)
            if header.last:
                return
            number += 1

    async def _header(self, copy: _Copy, number: int) -> StreamFile:
        key = copy.key
        while True:
            ask = StreamNextFile(key.session_id, copy.position.stream_id, number, copy.position.number)
            header: StreamFile = await self._ask(key, verbs.STREAM_FILE, ask)
            self._guards.require(key.session_id)
            if header.ready:
                break
        _check_header(header, key, number, copy.position.next_key)
        return header

    async def _fetch_content(self, copy: _Copy, number: int, summary: FileSummary) -> None:
        """Append what is not here yet, several parts being on their way at once."""
        key = copy.key
        offset = self._files.arrived(key, number)
        if (number, summary.digest) not in copy.position.fetched or offset > summary.size_bytes:
            self._files.discard(key, number)
            offset = 0
            copy.position = replace(copy.position, fetched=(*copy.position.fetched, (number, summary.digest)))
            self._files.note(copy.position)
        elif offset:
            self._runtime.probes.reach("stream.target.continued")
        file = ArrivingFile(self._runtime.disk, self._files.content(key, number), offset)
        stream_id, part_bytes_max = copy.position.stream_id, copy.position.part_bytes

        def request(at: int) -> StreamAskPart | None:
            size = min(copy.pace.part_bytes, part_bytes_max, summary.size_bytes - at)
            return StreamAskPart(key.session_id, stream_id, number, at, size) if size else None

        clock = self._runtime.clock
        ahead = PartsAhead(self._internode, clock, key, file, request, copy.pace)
        try:
            while offset < summary.size_bytes:
                ahead.ask()
                await ahead.next(lambda: self._guards.require(key.session_id))
                size, offset = file.size_bytes - offset, file.size_bytes
                self.counts.bytes += size
                copy.moved(size, clock.monotonic_s())
                self._runtime.probes.reach("stream.target.chunk")
            digest = file.digest()
            if digest is not None:
                copy.digests[number] = digest
        finally:
            file.close()
            ahead.close()

    # -- what has arrived -------------------------------------------------------------------------

    async def _take_in(self, copy: _Copy, arrived: asyncio.Queue[StreamFile]) -> None:
        while True:
            header = await arrived.get()
            assert header.summary is not None, "only checked headers are handed on"
            if header.summary.entries:
                digest = copy.digests.pop(header.number, None)
                await self._take_file(copy, header.number, header.summary, digest)
            if header.last:
                break
        with self._guards.hold(copy.key.session_id):
            copy.position = replace(copy.position, done=True)
            # With many small ranges most streams bring nothing: there is nothing to remember of them.
            if copy.position.files:
                await self._files.record(copy.position)

    async def _take_file(self, copy: _Copy, number: int, summary: FileSummary, digest: bytes | None) -> None:
        """Verify a file and make it visible, whole."""
        key, tokens = copy.key, Range(copy.key.left, copy.key.right)
        await self._verify(key, number, summary, digest)
        await self._engine.before_ingest(key.table_id, tokens)
        self._runtime.probes.reach("stream.target.file")
        # No await between the guard's look at the session and the store's step that makes the file visible.
        with self._guards.hold(key.session_id):
            sequence = self._ingest(key, tokens, number, summary)
            await self._engine.synced(sequence)
            self._runtime.probes.reach("stream.target.ingested")
            position = copy.position
            copy.position = replace(
                position,
                next_key=summary.next_key,
                moved_bytes=position.moved_bytes + summary.size_bytes,
                fragments=position.fragments + summary.entries,
                files=position.files + 1,
                number=number + 1,
                fetched=tuple(one for one in position.fetched if one[0] > number),
            )
            await self._files.record(copy.position)
        self.taken_in.add(key.session_id, summary.size_bytes, summary.entries)
        self._files.taken_in(key, number)
        copy.damaged = 0
        copy.view.files += 1
        copy.progress.files += 1
        copy.progress.fragments += summary.entries
        self.counts.files += 1

    async def _verify(self, key: StreamKey, number: int, summary: FileSummary, digest: bytes | None) -> None:
        """Make a file durable whose content is what its header says; _FileDamaged if it is not. Without the
        digest of what arrived the file is read."""
        path, disk = self._files.content(key, number), self._runtime.disk
        try:
            if digest is None:
                digest = await self._runtime.tasks.run_blocking(lambda: digest_of(disk, path))
            if disk.size(path) != summary.size_bytes or digest != summary.digest:
                self._guards.require(key.session_id)
                raise _FileDamaged(f"{path} differs from its digest")
            await disk.sync(path)
        except FileNotFoundError as error:
            self._guards.require(key.session_id)  # What arrived under a session goes with it.
            raise _FileDamaged(f"{path} is gone") from error

    def _ingest(self, key: StreamKey, tokens: Range, number: int, summary: FileSummary) -> int:
        """The sequence under which the store shows the file. It looks at the content as its library does: no
        checksum was broken on the way, so what is wrong then was so at the source."""
        try:
            path = self._files.hand_over(key, number)
            run = self._engine.run_at(
                key.table_id, tokens, path, summary.entries, summary.first_key, summary.last_key
            )
            return self._engine.ingest(run)
        except DiskRefused:
            raise
        except StorageError as error:
            raise _FileDamaged(error.message) from error
        except FileNotFoundError as error:
            raise _FileDamaged(f"file {number} of this stream is gone") from error

    async def _ask(self, key: StreamKey, verb: int, request: Any) -> Any:
        return await self._internode.request(key.source, verb, request, STREAM_TIMEOUT_MS)


def _check_header(header: StreamFile, key: StreamKey, number: int, next_key: bytes) -> None:
    """FrameCorrupt unless it is that of file `number`, and what is in it comes from `next_key` on."""
    if header.version != FORMAT_VERSION:
        raise FrameCorrupt(f"the source sends files of version {header.version}")
    of = (header.number, header.table_id, header.left, header.right)
    if of != (number, key.table_id, key.left, key.right) or header.summary is None:
        raise FrameCorrupt("the header of another file came")
    if header.summary.entries and header.summary.first_key < next_key:
        raise FrameCorrupt("a file begins before the position it was asked for")


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one of both that says most: a closed session, then damage, then anything."""
    found = [_first(one) if isinstance(one, BaseExceptionGroup) else one for one in failures.exceptions]
    for kind in (SessionClosed, _FileDamaged):
        for one in found:
            if isinstance(one, kind):
                return one
    unexpected = [one for one in found if not isinstance(one, LockstepError)]
    return unexpected[0] if unexpected else found[0]
