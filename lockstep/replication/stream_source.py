"""The source of range streams: builds sorted files from a snapshot and serves them part by part.

Invariants. A source takes its snapshot only after it has applied the stream's epoch and made durable every
write it accepted under older ones. Every request names its session and is refused once that is closed here.
Of one stream at most STREAM_FILES_KEPT_MAX files are on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replication import verbs
from lockstep.replication.handshake import Address, PeerInfo
from lockstep.replication.internode import Internode
from lockstep.replication.messages import (
    StreamAskPart,
    StreamClose,
    StreamFile,
    StreamNextFile,
    StreamOpen,
    StreamOpened,
    StreamPart,
)
from lockstep.replication.raw_bytes import FileReply
from lockstep.replication.replica import ReplicaService
from lockstep.replication.stream_files import digest_of
from lockstep.replication.stream_progress import StreamCounts, StreamView
from lockstep.replication.throttle import Throttle, Turns
from lockstep.runtime.ports import Runtime
from lockstep.storage.sorted_file import FORMAT_VERSION, FileSummary, RangeFiles
from lockstep.storage.store import Pair
from lockstep.values.errors import DiskRefused, LockstepError, NotReplica, Overloaded, SessionClosed
from lockstep.values.limits import (
    STREAM_BUILDS_AT_ONCE_MAX,
    STREAM_ESTIMATE_PAIRS,
    STREAM_FILE_BYTES,
    STREAM_FILES_KEPT_MAX,
    STREAM_IDLE_MS,
    STREAM_PART_BYTES,
    STREAM_WAIT_MS,
    STREAMS_OPEN_MAX,
)
from lockstep.values.tokens import Range

#: Below a node's directory; a file of an incarnation means nothing to the next one.
DIRECTORY = "streams"
_PREFIX = "out-"


class Fragments(Protocol):
    """A snapshot of a range's fragments, taken in key order; fewer than asked for only at the end."""

    def take(self, count: int) -> list[Pair]: ...

    def close(self) -> None: ...


class FragmentSource(Protocol):
    """Where the fragments of a session come from, when that is not the node's store."""

    async def fragments(self, table_id: int, tokens: Range, from_key: bytes = b"") -> Fragments: ...

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]: ...


class FragmentFile(Protocol):
    """A file of the store's own kind in the making; there is none while nothing was added."""

    @property
    def size_bytes(self) -> int: ...

    def add(self, pairs: Sequence[Pair]) -> None: ...

    async def finish(self) -> None: ...


class SourceEngine(Protocol):
    """What a source needs of its node's storage."""

    async def fragments(self, table_id: int, tokens: Range, from_key: bytes = b"") -> Fragments: ...

    def begin_run(self, table_id: int, tokens: Range, path: str) -> FragmentFile: ...

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]: ...


class _BuiltFile:
    def __init__(self, path: str, summary: FileSummary, last: bool) -> None:
        self.path = path
        self.summary = summary
        self.last = last


class _OpenStream:
    def __init__(self, number: int, fragments: Fragments, file_bytes: int, view: StreamView) -> None:
        self.number = number
        self.view = view
        self.fragments = fragments
        self.maker = RangeFiles(fragments.take, file_bytes)
        #: Complete files that the target has not done with, those on their way, and how many ever began.
        self.files: dict[int, _BuiltFile] = {}
        self.coming: dict[int, asyncio.Event] = {}
        self.begun = 0
        #: A file is being filled: one at a time, for they follow each other in the snapshot.
        self.filling = False
        self.error: LockstepError | None = None
        #: The last file is complete, or has yet to be completed.
        self.ended = False
        self.closed = False
        self.used_s = 0.0
        #: Parts whose turn has not come: their askers were told to ask again.
        self.turns: Turns = {}


class StreamService:
    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: SourceEngine,
        replica: ReplicaService,
        metadata: Callable[[], ClusterMetadata],
        catch_up: Callable[[int, Address], Awaitable[None]],
        *,
        throughput_bytes_s: int = 0,
        file_bytes: int = STREAM_FILE_BYTES,
    ) -> None:
        """`throughput_bytes_s` bounds all streams of this source together; 0 is no bound."""
        self._runtime = runtime
        self._engine = engine
        self._replica = replica
        self._metadata = metadata
        self._catch_up = catch_up
        self._file_bytes = file_bytes
        self._streams: dict[int, _OpenStream] = {}
        self._opening = 0
        self._builds = asyncio.Semaphore(STREAM_BUILDS_AT_ONCE_MAX)
        self.throttle = Throttle(runtime.clock, throughput_bytes_s)
        self.counts = StreamCounts()
        #: Asked for each session; None: the store.
        self.source_of: Callable[[str], FragmentSource | None] = lambda _session_id: None
        internode.register(verbs.STREAM_OPEN, StreamOpen, StreamOpened, self._open)
        internode.register(verbs.STREAM_FILE, StreamNextFile, StreamFile, self._file)
        internode.register(verbs.STREAM_PART, StreamAskPart, StreamPart, self._part)
        internode.register(verbs.STREAM_CLOSE, StreamClose, StreamClose, self._close)

    def clean(self) -> None:
        """Remove the files of an earlier incarnation."""
        for name in self._runtime.disk.names(DIRECTORY):
            if name.startswith(_PREFIX):
                self._runtime.disk.remove(f"{DIRECTORY}/{name}")

    # -- requests ---------------------------------------------------------------------------------

    async def _open(self, peer: PeerInfo, request: StreamOpen) -> StreamOpened:
        await self._catch_up(request.epoch, peer.endpoint)
        self._require_session(request.session_id)
        if len(self._streams) + self._opening >= STREAMS_OPEN_MAX:
            raise Overloaded("too many range streams are open on this node")
        tokens = Range(request.left, request.right)
        source = self.source_of(request.session_id) or self._engine
        self._opening += 1
        try:
            await self._replica.drain(request.epoch)
            self._runtime.probes.reach("stream.source.drained")
            fragments = await source.fragments(request.table_id, tokens, request.from_key)
        finally:
            self._opening -= 1
        if not self._metadata().session_open(request.session_id):
            fragments.close()
            raise SessionClosed(f"session {request.session_id} was closed")
        if not source.estimated_bytes(request.table_id, tokens, 1)[1]:
            fragments.close()
            self._runtime.probes.reach("stream.source.empty")
            return StreamOpened(0, self._metadata().epoch, 0, self._file_bytes, STREAM_PART_BYTES, empty=True)
        clock = self._runtime.clock
        view = StreamView(request.session_id, peer.endpoint, "out", request.table_id, tokens, clock)
        view.file_bytes = self._file_bytes
        view.total_bytes = source.estimated_bytes(request.table_id, tokens, STREAM_ESTIMATE_PAIRS)[0]
        # Drawn, so that a target never takes a stream of this source's next life for the one it knew.
        number = 1 + self._runtime.random.below(1 << 62)
        stream = self._streams[number] = _OpenStream(number, fragments, self._file_bytes, view)
        stream.used_s = clock.monotonic_s()
        self.counts.streams += 1
        self._watch(number)
        self._build_next(stream)
        part_bytes = self.throttle.part_bytes(STREAM_PART_BYTES)
        return StreamOpened(number, self._metadata().epoch, view.total_bytes, self._file_bytes, part_bytes)

    async def _file(self, peer: PeerInfo, request: StreamNextFile) -> StreamFile:
        stream = self._stream(request.stream_id, request.session_id)
        self._release(stream, request.done)
        self._build_next(stream)
        await self._wait_for_file(stream, request.number)
        built = stream.files.get(request.number)
        if built is None:
            if stream.error is not None:
                self._drop(stream.number)
                raise Overloaded(f"the source cannot build its next file: {stream.error.message}")
            if request.number not in stream.coming:
                raise NotReplica(f"this stream goes on with file {stream.begun}, not {request.number}")
            return StreamFile(False)
        if built.summary.entries:
            self._runtime.probes.reach("stream.source.file")
        view = stream.view
        return StreamFile(
            True,
            FORMAT_VERSION,
            request.number,
            view.table_id,
            view.range.left,
            view.range.right,
            built.summary,
            built.last,
        )

    async def _wait_for_file(self, stream: _OpenStream, number: int) -> None:
        coming = stream.coming.get(number)
        if coming is not None:
            try:
                async with asyncio.timeout(STREAM_WAIT_MS / 1000):
                    await coming.wait()
            except TimeoutError:
                return

    async def _part(self, peer: PeerInfo, request: StreamAskPart) -> Any:
        """A FileReply, or a StreamPart without bytes."""
        stream = self._stream(request.stream_id, request.session_id)
        built = stream.files.get(request.number)
        if built is None:
            raise NotReplica(f"file {request.number} of this stream is not here")
        if not 0 < request.size <= STREAM_PART_BYTES:
            raise NotReplica(f"a part has at most {STREAM_PART_BYTES} bytes, not {request.size}")
        what = request.number, request.offset
        if not await self.throttle.take(request.size, STREAM_WAIT_MS, stream.turns, what):
            return StreamPart(0)
        disk = self._runtime.disk
        try:
            file = disk.reader(built.path)
        except (OSError, LockstepError) as error:
            if stream.closed:
                self._require_session(request.session_id)
                raise NotReplica(f"stream {request.stream_id} is not open here") from error
            self._drop(stream.number)
            raise Overloaded(f"the source cannot read its file: {error}") from error
        size = min(request.size, max(0, built.summary.size_bytes - request.offset))
        self.counts.bytes += size
        stream.view.moved(size)
        return FileReply(StreamPart(size), file, request.offset, size)

    async def _close(self, peer: PeerInfo, request: StreamClose) -> StreamClose:
        stream = self._streams.get(request.stream_id)
        if stream is not None and stream.ended:
            self._release(stream, stream.begun)
        self._drop(request.stream_id)
        return request

    def _stream(self, number: int, session_id: str) -> _OpenStream:
        stream = self._streams.get(number)
        if stream is None or stream.view.session_id != session_id:
            self._require_session(session_id)
            raise NotReplica(f"stream {number} is not open here")
        if not self._metadata().session_open(session_id):
            self._drop(number)
            raise SessionClosed(f"session {session_id} was closed")
        stream.used_s = self._runtime.clock.monotonic_s()
        return stream

    def _require_session(self, session_id: str) -> None:
        if not self._metadata().session_open(session_id):
            raise SessionClosed(f"session {session_id} is not open")

    # -- building ---------------------------------------------------------------------------------

    def _build_next(self, stream: _OpenStream) -> None:
        """Begin the next file, unless one is being filled, there is none, or enough wait already."""
        if (
            not stream.filling
            and not stream.ended
            and not stream.closed
            and stream.error is None
            and len(stream.files) + len(stream.coming) < STREAM_FILES_KEPT_MAX
        ):
            number, stream.begun = stream.begun, stream.begun + 1
            stream.filling = True
            stream.coming[number] = asyncio.Event()
            self._runtime.tasks.spawn(self._build(stream, number), f"stream.build.{stream.number}")

    async def _build(self, stream: _OpenStream, number: int) -> None:
        path = f"{DIRECTORY}/{_PREFIX}{stream.number:x}-{number}"
        try:
            try:
                async with self._builds:
                    file = await self._fill(stream, path)
                summary, last = stream.maker.summary(0, b""), stream.maker.ended
                stream.ended = last
            finally:
                stream.filling = False
            # The next one is filled while this one is completed, which is mostly waiting for the disk.
            self._build_next(stream)
            if summary.entries and not stream.closed:
                summary = await self._complete(path, file, summary)
            if stream.closed or not summary.entries:
                self._remove(path)
            if not stream.closed:
                stream.files[number] = _BuiltFile(path, summary, last)
        except (OSError, LockstepError) as error:
            self._remove(path)
            stream.error = error if isinstance(error, LockstepError) else DiskRefused(str(error))
        finally:
            stream.coming.pop(number).set()

    async def _fill(self, stream: _OpenStream, path: str) -> FragmentFile:
        """A turn of the loop for each block: handing pairs over costs the interpreter, so a thread would
        hold up requests for longer than a block does. Stops early when the stream is closed."""
        self._runtime.disk.append(path, b"")  # The store wants the directory to be there.
        file = self._engine.begin_run(stream.view.table_id, stream.view.range, path)
        stream.maker.begin()
        while not stream.closed and stream.maker.add_block(file):
            self._runtime.probes.reach("stream.source.block")
            await asyncio.sleep(0)
        return file

    async def _complete(self, path: str, file: FragmentFile, summary: FileSummary) -> FileSummary:
        disk = self._runtime.disk
        # What completes a file waits for the disk on the loop: then there is little left to wait for.
        await disk.sync(path)
        await file.finish()
        digest = await self._runtime.tasks.run_blocking(lambda: digest_of(disk, path))
        return replace(summary, size_bytes=disk.size(path), digest=digest)

    # -- ending -----------------------------------------------------------------------------------

    def _watch(self, number: int) -> None:
        """Look again when the stream would have been idle for too long."""
        stream = self._streams.get(number)
        if stream is None:
            return
        idle_s = self._runtime.clock.monotonic_s() - stream.used_s
        left_s = STREAM_IDLE_MS / 1000 - idle_s
        if left_s <= 0 or not self._metadata().session_open(stream.view.session_id):
            self._drop(number)
        else:
            asyncio.get_running_loop().call_later(left_s, self._watch, number)

    def _release(self, stream: _OpenStream, number: int) -> None:
        """The target has done with every file before `number`."""
        for older in [one for one in stream.files if one < number]:
            self._remove(stream.files.pop(older).path)
            stream.view.files += 1
            self.counts.files += 1

    def _drop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.closed = True
            stream.fragments.close()
            for built in stream.files.values():
                self._remove(built.path)
            stream.files = {}

    def _remove(self, path: str) -> None:
        if self._runtime.disk.exists(path):
            self._runtime.disk.remove(path)

    def forget_closed(self) -> None:
        """Drop the streams of sessions that are closed by now."""
        for number in list(self._streams):
            if not self._metadata().session_open(self._streams[number].view.session_id):
                self._drop(number)

    def open_streams(self) -> int:
        return len(self._streams)

    def views(self) -> Iterator[StreamView]:
        return iter([stream.view for stream in self._streams.values()])

    def stop(self) -> None:
        """Release every snapshot; call before the store is closed."""
        for number in list(self._streams):
            self._drop(number)
