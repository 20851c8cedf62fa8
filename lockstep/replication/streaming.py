"""Moving a range: the source serves a snapshot in chunks, the target ingests them under a session.

Invariants. A source takes its snapshot only after it has applied the stream's epoch and made durable
every write it accepted under older ones. A target ingests a chunk only in the same step in which it saw
the session open in its own metadata. A broken stream goes on with the whole partition of the last key it
had: background merges move content only inside a partition, so nothing can slip past.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replication import verbs
from lockstep.replication.handshake import Address, PeerInfo
from lockstep.replication.internode import Internode
from lockstep.replication.messages import StreamChunk, StreamClose, StreamNext, StreamOpen, StreamOpened
from lockstep.replication.replica import ReplicaService
from lockstep.replication.session_guards import SessionGuards
from lockstep.runtime.ports import Runtime
from lockstep.storage.keys import split_partition
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import (
    FrameCorrupt,
    NotReplica,
    Overloaded,
    PeerError,
    ReplicaRefusal,
    SessionClosed,
)
from lockstep.values.limits import (
    REPLICA_RETRY_MS,
    STREAM_ATTEMPTS_MAX,
    STREAM_CHUNK_BYTES,
    STREAM_IDLE_MS,
    STREAM_TIMEOUT_MS,
    STREAMS_OPEN_MAX,
)
from lockstep.values.tokens import Range

Pair = tuple[bytes, bytes]
_PAIRS: msgspec.msgpack.Decoder[list[Pair]] = decoder(list[Pair])
_DIGEST_BYTES = 32


class Fragments(Protocol):
    """A snapshot of a range's fragments in key order."""

    def __iter__(self) -> Iterator[Pair]: ...

    def close(self) -> None: ...


class StreamEngine(Protocol):
    """What streaming needs of one node's storage."""

    async def fragments(self, table_id: int, tokens: Range, after_key: bytes = b"") -> Fragments: ...

    async def ingest(self, pairs: Iterable[Pair]) -> None: ...


class StreamProgress:
    """Counts that a running stream adds to, for status displays."""

    def __init__(self) -> None:
        self.moved_bytes = 0
        self.fragments = 0


class StreamReport(msgspec.Struct, frozen=True, array_like=True):
    moved_bytes: int
    fragments: int


class _OpenStream:
    def __init__(self, session_id: str, fragments: Fragments, now_s: float) -> None:
        self.session_id = session_id
        self.fragments = fragments
        self.pairs = iter(fragments)
        self.digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.served: StreamChunk | None = None
        self.used_s = now_s

    def next_chunk(self, sequence: int) -> StreamChunk:
        """The next chunk, or the last one again when its answer was lost."""
        if self.served is not None and sequence == self.served.sequence:
            return self.served
        expected = 0 if self.served is None else self.served.sequence + 1
        ended = self.served is not None and self.served.last
        if sequence != expected or ended:
            raise NotReplica(f"this stream continues with chunk {expected}, not {sequence}")
        chunk, size = [], 0
        for pair in self.pairs:
            chunk.append(pair)
            size += len(pair[0]) + len(pair[1])
            if size >= STREAM_CHUNK_BYTES:
                break
        last = size < STREAM_CHUNK_BYTES
        data = encode(chunk)
        self.digest.update(data)
        digest = self.digest.digest() if last else b""
        self.served = StreamChunk(sequence, data, zlib.crc32(data), last, digest)
        return self.served


class StreamService:
    """The source side."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: StreamEngine,
        replica: ReplicaService,
        metadata: Callable[[], ClusterMetadata],
        catch_up: Callable[[int, Address], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._replica = replica
        self._metadata = metadata
        self._catch_up = catch_up
        self._streams: dict[int, _OpenStream] = {}
        self._opening = 0
        self._number = 0
        internode.register(verbs.STREAM_OPEN, StreamOpen, StreamOpened, self._open)
        internode.register(verbs.STREAM_NEXT, StreamNext, StreamChunk, self._next)
        internode.register(verbs.STREAM_CLOSE, StreamClose, StreamClose, self._close)

    async def _open(self, peer: PeerInfo, request: StreamOpen) -> StreamOpened:
        await self._catch_up(request.epoch, peer.endpoint)
        self._require_session(request.session_id)
        if len(self._streams) + self._opening >= STREAMS_OPEN_MAX:
            raise Overloaded("too many range streams are open on this node")
        self._opening += 1
        try:
            await self._replica.drain(request.epoch)
            self._runtime.probes.reach("stream.source.drained")
            after = split_partition(request.after)[2] if request.after else b""
            tokens = Range(request.left, request.right)
            fragments = await self._engine.fragments(request.table_id, tokens, after)
        finally:
            self._opening -= 1
        if not self._metadata().session_open(request.session_id):
            fragments.close()
            raise SessionClosed(f"session {request.session_id} was closed")
        self._number += 1
        self._streams[self._number] = _OpenStream(
            request.session_id, fragments, self._runtime.clock.monotonic_s()
        )
        self._watch(self._number)
        return StreamOpened(self._number, self._metadata().epoch)

    async def _next(self, peer: PeerInfo, request: StreamNext) -> StreamChunk:
        stream = self._streams.get(request.stream_id)
        if stream is None:
            raise NotReplica(f"stream {request.stream_id} is not open here")
        if not self._metadata().session_open(stream.session_id):
            self._drop(request.stream_id)
            raise SessionClosed(f"session {stream.session_id} was closed")
        stream.used_s = self._runtime.clock.monotonic_s()
        return stream.next_chunk(request.sequence)

    async def _close(self, peer: PeerInfo, request: StreamClose) -> StreamClose:
        self._drop(request.stream_id)
        return request

    def _require_session(self, session_id: str) -> None:
        if not self._metadata().session_open(session_id):
            raise SessionClosed(f"session {session_id} is not open")

    def _watch(self, number: int) -> None:
        """Look again when the stream would have been idle for too long."""
        stream = self._streams.get(number)
        if stream is None:
            return
        idle_s = self._runtime.clock.monotonic_s() - stream.used_s
        left_s = STREAM_IDLE_MS / 1000 - idle_s
        if left_s <= 0 or not self._metadata().session_open(stream.session_id):
            self._drop(number)
        else:
            asyncio.get_running_loop().call_later(left_s, self._watch, number)

    def _drop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.pairs = iter(())
            stream.fragments.close()

    def open_streams(self) -> int:
        return len(self._streams)

    def stop(self) -> None:
        """Release every snapshot; call before the store is closed."""
        for number in list(self._streams):
            self._drop(number)


class _Copy:
    """What one target stream has so far."""

    def __init__(self, progress: StreamProgress) -> None:
        self.progress = progress
        self.after = b""
        self.moved_bytes = 0
        self.fragments = 0

    def took(self, pairs: list[Pair], size: int) -> None:
        self.after = pairs[-1][0]
        self.moved_bytes += size
        self.fragments += len(pairs)
        self.progress.moved_bytes += size
        self.progress.fragments += len(pairs)


class StreamClient:
    """The target side."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: StreamEngine,
        guards: SessionGuards,
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._engine = engine
        self._guards = guards

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
        """Copy what `source` holds of a range; durable on return.

        SessionClosed when the session ended; PeerError when the source stays unreachable through
        STREAM_ATTEMPTS_MAX attempts without progress; storage errors as they are.
        """
        copy = _Copy(progress if progress is not None else StreamProgress())
        failures = 0
        while True:
            before = copy.fragments
            request = StreamOpen(session_id, table_id, range.left, range.right, epoch, copy.after)
            try:
                await self._copy(source, request, copy)
                return StreamReport(copy.moved_bytes, copy.fragments)
            except SessionClosed:
                raise
            except (PeerError, ReplicaRefusal, Overloaded):
                failures = failures + 1 if copy.fragments == before else 1
                if failures >= STREAM_ATTEMPTS_MAX:
                    raise
                await self._runtime.probes.linger("stream.target.broken")
                await asyncio.sleep(failures * REPLICA_RETRY_MS / 1000)

    async def _copy(self, source: Address, request: StreamOpen, copy: _Copy) -> None:
        self._guards.require(request.session_id)
        if request.after:
            self._runtime.probes.reach("stream.target.resumed")
        opened: StreamOpened = await self._ask(source, verbs.STREAM_OPEN, request)
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        sequence = 0
        try:
            while True:
                step = StreamNext(opened.stream_id, sequence)
                chunk: StreamChunk = await self._ask(source, verbs.STREAM_NEXT, step)
                if zlib.crc32(chunk.pairs) != chunk.crc or chunk.sequence != sequence:
                    raise FrameCorrupt("a stream chunk differs from its checksum")
                digest.update(chunk.pairs)
                if chunk.last and chunk.digest != digest.digest():
                    raise FrameCorrupt("a stream differs from its digest")
                await self._ingest(request.session_id, chunk, copy)
                if chunk.last:
                    return
                sequence += 1
        finally:
            self._internode.send(source, verbs.STREAM_CLOSE, StreamClose(opened.stream_id))

    async def _ingest(self, session_id: str, chunk: StreamChunk, copy: _Copy) -> None:
        pairs = _PAIRS.decode(chunk.pairs)
        self._runtime.probes.reach("stream.target.chunk")
        # No await between this check and the engine's write, which is its first step.
        with self._guards.hold(session_id):
            if pairs:
                await self._engine.ingest(pairs)
                copy.took(pairs, len(chunk.pairs))

    async def _ask(self, source: Address, verb: int, request: Any) -> Any:
        return await self._internode.request(source, verb, request, STREAM_TIMEOUT_MS)
