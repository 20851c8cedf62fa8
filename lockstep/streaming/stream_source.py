"""The source of range streams: builds sorted files from a snapshot and serves them part by part.

Invariants. A source takes its snapshot, or says that there is nothing, only after it has applied the stream's
epoch and made durable every write it accepted under older ones. Every request names its session and is
refused once that is closed here. Of one stream at most STREAM_FILES_KEPT_MAX files are on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from lockstep.internode import verbs
from lockstep.internode.connection import FileReply
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.throttle import LoopBudget, Throttle
from lockstep.metadata.cluster import ClusterMetadata
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
from lockstep.replica.replica import ReplicaService
from lockstep.runtime.ports import Runtime
from lockstep.storage.sorted_file import FORMAT_VERSION
from lockstep.streaming.stream_building import (
    Checkpoint,
    FragmentFile,
    Fragments,
    HelpedBuilds,
    LoopStretch,
    StreamBuild,
    Stretches,
)
from lockstep.streaming.stream_progress import StreamCounts, StreamView
from lockstep.values.errors import (
    CorruptFile,
    LockstepError,
    NotReplica,
    Overloaded,
    RangeLacking,
    SessionClosed,
)
from lockstep.values.limits import (
    STREAM_BUILDS_AT_ONCE_MAX,
    STREAM_ESTIMATE_PAIRS,
    STREAM_FILE_BYTES,
    STREAM_IDLE_MS,
    STREAM_PART_BYTES,
    STREAM_WAIT_MS,
    STREAMS_OPEN_MAX,
)
from lockstep.values.tokens import Range

#: Below a node's directory; a file of an incarnation means nothing to the next one.
DIRECTORY = "streams"
_PREFIX = "out-"
_STEM = f"{DIRECTORY}/{_PREFIX}"


class FragmentSource(Protocol):
    """Where the fragments of a session come from, when that is not the node's store."""

    async def fragments(self, table_id: int, tokens: Range, from_key: bytes = b"") -> Fragments: ...

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]: ...


class SourceEngine(Protocol):
    """What a source needs of its node's storage."""

    async def fragments(self, table_id: int, tokens: Range, from_key: bytes = b"") -> Fragments: ...

    async def filled(self, table_ids: Sequence[int], tokens: Range) -> tuple[int, ...]: ...

    def begin_run(self, table_id: int, tokens: Range, path: str) -> FragmentFile: ...

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]: ...

    @property
    def fixing(self) -> Checkpoint: ...


class _OpenStream:
    def __init__(self, number: int, build: StreamBuild, view: StreamView) -> None:
        self.number = number
        self.view = view
        self.build = build
        self.used_s = 0.0
        #: Parts whose turn has not come: their askers were told to ask again.
        self.turns: LoopBudget = {}


class StreamLimits(msgspec.Struct, frozen=True, eq=False):
    """`throttle` is for all streams of a source together, and for what else leaves its disk in bulk."""

    throttle: Throttle
    file_bytes: int = STREAM_FILE_BYTES


class StreamService:
    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: SourceEngine,
        replica: ReplicaService,
        metadata: Callable[[], ClusterMetadata],
        catch_up: Callable[[int, Address], Awaitable[None]],
        limits: StreamLimits | None = None,
        source_of: Callable[[str], FragmentSource | None] = lambda _session_id: None,
    ) -> None:
        """`source_of` is asked for each session; None: the store."""
        limits = limits or StreamLimits(Throttle(runtime.clock, 0))
        self._runtime = runtime
        self._engine = engine
        self._replica = replica
        self._metadata = metadata
        self._catch_up = catch_up
        self._source_of = source_of
        self._file_bytes = limits.file_bytes
        self._streams: dict[int, _OpenStream] = {}
        self._opening = 0
        #: Directories in which content was to be fixed.
        self._fixed = 0
        self._builds = asyncio.Semaphore(STREAM_BUILDS_AT_ONCE_MAX)
        self.helped = HelpedBuilds(runtime, engine.fixing, limits.file_bytes, internode.log)
        self.throttle = limits.throttle
        self.counts = StreamCounts()
        internode.register(verbs.STREAM_SURVEY, StreamSurvey, StreamSurveyed, self._survey)
        internode.register(verbs.STREAM_OPEN, StreamOpen, StreamOpened, self._open)
        internode.register(verbs.STREAM_FILE, StreamNextFile, StreamFile, self._file)
        internode.register(verbs.STREAM_PART, StreamAskPart, StreamPart, self._part)
        internode.register(verbs.STREAM_CLOSE, StreamClose, StreamClose, self._close)

    def clean(self) -> None:
        """Remove the files of an earlier incarnation."""
        disk = self._runtime.disk
        for path in [f"{DIRECTORY}/{name}" for name in disk.names(DIRECTORY) if name.startswith(_PREFIX)]:
            if disk.exists(path):
                disk.remove(path)
            else:
                self._engine.fixing.remove(path)

    # -- requests ---------------------------------------------------------------------------------

    async def _survey(self, peer: PeerInfo, request: StreamSurvey) -> StreamSurveyed:
        await self._catch_up(request.epoch, peer.endpoint)
        self._require_session(request.session_id)
        if self._source_of(request.session_id) is not None:
            return StreamSurveyed(request.table_ids)
        tokens = Range(request.left, request.right)
        # Whoever opens a stream of what is lacking here is told so.
        found = {table_id for table_id in request.table_ids if not self._is_held(table_id, tokens)}
        await self._replica.drain(request.epoch)
        self._runtime.probes.reach("stream.source.drained")
        try:
            found.update(await self._engine.filled(request.table_ids, tokens))
        except CorruptFile:
            return StreamSurveyed(request.table_ids)
        self._require_session(request.session_id)
        if len(found) < len(request.table_ids):
            self._runtime.probes.reach("stream.source.empty")
        return StreamSurveyed(tuple(table_id for table_id in request.table_ids if table_id in found))

    def _is_held(self, table_id: int, tokens: Range) -> bool:
        try:
            self._replica.require_held(table_id, tokens)
        except RangeLacking:
            return False
        return True

    async def _open(self, peer: PeerInfo, request: StreamOpen) -> StreamOpened:
        await self._catch_up(request.epoch, peer.endpoint)
        self._require_session(request.session_id)
        if len(self._streams) + self._opening >= STREAMS_OPEN_MAX:
            raise Overloaded("too many range streams are open on this node")
        tokens = Range(request.left, request.right)
        self._replica.require_held(request.table_id, tokens)
        source = self._source_of(request.session_id) or self._engine
        clock = self._runtime.clock
        view = StreamView(request.session_id, peer.endpoint, "out", request.table_id, tokens, clock)
        view.file_bytes = self._file_bytes
        self._opening += 1
        try:
            await self._replica.drain(request.epoch)
            self._runtime.probes.reach("stream.source.drained")
            stretches = await self._stretches(source, request, view)
        finally:
            self._opening -= 1
        if stretches is None:
            self._runtime.probes.reach("stream.source.empty")
            return StreamOpened(0, self._metadata().epoch, 0, self._file_bytes, STREAM_PART_BYTES, empty=True)
        # Drawn, so that a target never takes a stream of this source's next life for the one it knew.
        number = 1 + self._runtime.random.below(1 << 62)
        build = StreamBuild(self._runtime, f"{_STEM}{number:x}", stretches, self._builds)
        stream = self._streams[number] = _OpenStream(number, build, view)
        stream.used_s = clock.monotonic_s()
        self.counts.streams += 1
        self._watch(number)
        build.go_on()
        part_bytes = self.throttle.part_bytes(STREAM_PART_BYTES)
        return StreamOpened(number, self._metadata().epoch, view.total_bytes, self._file_bytes, part_bytes)

    async def _stretches(
        self, source: FragmentSource, request: StreamOpen, view: StreamView
    ) -> Stretches | None:
        """What is to be made into files; None when there is nothing."""
        table_id, tokens, from_key = view.table_id, view.range, request.from_key
        fragments, in_use = await source.fragments(table_id, tokens, from_key), False
        try:
            self._require_session(request.session_id)
            if not source.estimated_bytes(table_id, tokens, 1)[1]:
                return None
            size = view.total_bytes = source.estimated_bytes(table_id, tokens, STREAM_ESTIMATE_PAIRS)[0]
            if source is self._engine:
                self._fixed += 1
                path = f"{_STEM}fixed-{self._fixed}"
                helped = await self.helped.stretches(table_id, tokens, from_key, size, path)
                if helped is not None:
                    return helped
            in_use = True
        finally:
            if not in_use:
                fragments.close()
        return LoopStretch(
            self._runtime,
            fragments,
            lambda path: self._engine.begin_run(table_id, tokens, path),
            self._file_bytes,
        )

    async def _file(self, peer: PeerInfo, request: StreamNextFile) -> StreamFile:
        stream = self._stream(request.stream_id, request.session_id)
        build = stream.build
        self._release(stream, request.done)
        build.go_on()
        await build.wait(request.number)
        built = build.files.get(request.number)
        if built is None:
            if build.error is not None:
                self._drop(stream.number)
                raise Overloaded(f"the source cannot build its next file: {build.error.message}")
            if not build.comes(request.number):
                self._require_session(request.session_id)
                raise NotReplica(f"this stream goes on with file {build.numbered}, not {request.number}")
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

    async def _part(self, peer: PeerInfo, request: StreamAskPart) -> Any:
        """A FileReply, or a StreamPart without bytes."""
        stream = self._stream(request.stream_id, request.session_id)
        built = stream.build.files.get(request.number)
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
            if stream.build.closed:
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
        if stream is not None and stream.build.ended:
            self._release(stream, stream.build.numbered)
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
        files = stream.build.release(number)
        stream.view.files += files
        self.counts.files += files

    def _drop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.build.close()

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
