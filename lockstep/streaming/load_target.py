"""A replica's side of bulk loads: holds staged files, and takes them in when their load was committed.

Invariants. A file is held when it was verified whole and is durable. Files of a committed load are taken in
within the step in which its entry is applied, before anything is answered at that epoch; what a crash or a
closed disk took back is taken in at the next start, before the first request. Exactly the files are taken in
that the entry's list has, and of those the ones whose whole range this node stores. Of a load that ended
otherwise nothing is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.load_entries import ring_of
from lockstep.metadata.loads import Load, LoadState
from lockstep.placement.placements import RingPlacement
from lockstep.replica.load_messages import (
    LoadFetch,
    LoadFile,
    LoadPart,
    LoadPhase,
    LoadStage,
    LoadStaged,
)
from lockstep.replica.replica import CatchUp
from lockstep.runtime.ports import Runtime
from lockstep.schema.model import Table
from lockstep.storage.rows import keys
from lockstep.streaming.load_files import LoadFiles, key_of
from lockstep.streaming.stream_files import digest_of
from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.errors import (
    DiskRefused,
    FrameCorrupt,
    InvalidRequest,
    LockstepError,
    SessionClosed,
    StorageError,
)
from lockstep.values.limits import STREAM_TIMEOUT_MS
from lockstep.values.node_limits import (
    LOAD_FETCH_ATTEMPTS_MAX,
    LOAD_FILE_BYTES_MAX,
    LOAD_PART_BYTES_MAX,
    LOADS_ENDED_KEPT_MAX,
)
from lockstep.values.tokens import Range

#: Where a node keeps which loads it has taken in, newest last: a local fact.
_TAKEN = b"loads"
_KEYS = decoder(tuple[str, ...])


class LoadEngine(Protocol):
    """What loads need of their node's storage."""

    def run_at(
        self, table_id: int, tokens: Range, path: str, count: int, first_key: bytes, last_key: bytes
    ) -> Any: ...

    def take_in(self, run: Any, *, is_indexed: bool) -> int: ...

    def came_in(self, table_id: int, tokens: Range, *, is_indexed: bool) -> int: ...

    async def synced(self, sequence: int) -> None: ...

    def local_fact(self, name: bytes) -> bytes | None: ...

    def keep_local_fact(self, name: bytes, value: bytes) -> int: ...


class LoadCounts(msgspec.Struct):
    """Of this node since its start."""

    files: int = 0
    bytes: int = 0
    damaged: int = 0
    taken_in: int = 0
    lacking: int = 0


def stores(ring: RingPlacement, range_: Range, node: int) -> bool:
    """Whether all of a range is written to a node."""
    return all(node in placed.group.writes for placed in ring.overlapping(range_))


def require_in_table(load: Load, file: LoadFile) -> None:
    """InvalidRequest unless a file says of itself that it holds rows of its load's table, in its range."""
    left, right = file.left, file.right
    lower, upper = keys.token_bounds(load.stored_id, file.range) if left < right else (b"", b"")
    if not lower <= file.first_key <= file.last_key < upper:
        raise InvalidRequest(f"file {file.name} of load {load.job} is not of the table, or not of its range")


class LoadTarget:
    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: LoadEngine,
        metadata: Callable[[], ClusterMetadata],
        catch_up: CatchUp,
        own_id: Callable[[], int],
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._engine = engine
        self._metadata = metadata
        self._catch_up = catch_up
        self._own_id = own_id
        self._log = log
        self._files = LoadFiles(runtime.disk)
        self.counts = LoadCounts()
        self._arriving: dict[str, asyncio.Lock] = {}
        kept = engine.local_fact(_TAKEN)
        self._taken: tuple[str, ...] = _taken_of(kept)
        self._taking: dict[str, asyncio.Task[None]] = {}
        self.follow(metadata())
        internode.register(verbs.LOAD_STAGE, LoadStage, LoadStaged, self._stage)
        internode.register(verbs.LOAD_FETCH, LoadFetch, LoadPart, self._fetch)

    # -- what the log says --------------------------------------------------------------------------

    def applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.loads is not after.loads:
            self.follow(after)

    def follow(self, cluster: ClusterMetadata) -> None:
        """Take in what was committed, and forget what has ended otherwise."""
        present = self._files.keys()
        if not present:
            return
        by_key = {key_of(load.job): load for load in cluster.loads.by_job.values()}
        for key in present:
            load = by_key.get(key)
            if load is not None and load.state is LoadState.RUNNING:
                continue
            if load is not None and load.state is LoadState.COMMITTED:
                if key not in self._taking:
                    self._take_in(key, load, cluster)
            else:
                self._forget(key)
                self._runtime.probes.reach("load.target.forgotten")

    def _forget(self, key: str) -> None:
        self._files.remove(key)
        self._arriving = {name: lock for name, lock in self._arriving.items() if not name.startswith(key)}

    def _take_in(self, key: str, load: Load, cluster: ClusterMetadata) -> None:
        manifest = self._files.manifest(key)
        table = cluster.table(load.stored_id)
        if table is None or manifest is None or manifest.digest != load.digest:
            if table is not None and key not in self._taken:
                self.counts.lacking += 1
                self._log("load.lacking", job=load.job, table=f"{load.keyspace}.{load.table}")
                self._runtime.probes.reach("load.target.lacking")
            self._forget(key)
            return
        ring, own, whole, sequence = ring_of(cluster, table), self._own_id(), True, 0
        for file in manifest.files:
            if stores(ring, file.range, own):
                try:
                    sequence = max(sequence, self._ingest(key, file, table))
                except DiskRefused:
                    return  # The store has said that it failed, and this node stops.
                except (StorageError, FileNotFoundError) as error:
                    whole = False
                    self.counts.damaged += 1
                    self._log("load.damaged", job=load.job, file=file.name, error=str(error))
        if whole:
            self._taken = (*(one for one in self._taken if one != key), key)[-LOADS_ENDED_KEPT_MAX:]
            sequence = self._engine.keep_local_fact(_TAKEN, encode(self._taken))
        self.counts.taken_in += 1
        self._runtime.probes.reach("load.target.taken_in")
        settled = self._runtime.tasks.spawn(self._settle(key, sequence), f"load.settle.{key}")
        self._taking[key] = settled

    def _ingest(self, key: str, file: LoadFile, table: Table) -> int:
        path, is_indexed = self._files.hand_over(key, file), bool(table.indexes)
        if not path:
            return self._engine.came_in(table.id, file.range, is_indexed=is_indexed)
        run = self._engine.run_at(table.id, file.range, path, file.entries, file.first_key, file.last_key)
        return self._engine.take_in(run, is_indexed=is_indexed)

    async def _settle(self, key: str, sequence: int) -> None:
        """What was taken in is durable: its files are needed no more."""
        await self._runtime.probes.linger("load.target.settling")
        try:
            await self._engine.synced(sequence)
        except DiskRefused:
            self._runtime.probes.reach("load.target.not_synced")
            return
        self._forget(key)
        self._taking.pop(key, None)

    # -- what other nodes ask -----------------------------------------------------------------------

    async def _stage(self, peer: PeerInfo, request: LoadStage) -> LoadStaged:
        await self._catch_up(request.epoch, peer.endpoint)
        return await self.stage(request)

    async def stage(self, request: LoadStage) -> LoadStaged:
        """Do what is asked for, as far as that is possible; this node knows of the load."""
        if request.phase is LoadPhase.TAKEN:
            return await self._taken_in(request.job)
        names, reason = [], ""
        for file in request.files:
            try:
                if await self._hold(request.job, file, request.sources):
                    names.append(file.name)
            except SessionClosed:
                raise
            except LockstepError as error:
                reason = error.message
        done = len(names) == len(request.files)
        if done and request.manifest is not None:
            async with self._lock(key_of(request.job), "manifest"):
                await self._kept(request.job, self._files.keep_manifest(request.manifest))
            self._runtime.probes.reach("load.target.prepared")
            if not self._runs(request.job):
                self.follow(self._metadata())
        return LoadStaged(tuple(names), done, reason)

    async def _taken_in(self, job: str) -> LoadStaged:
        key = key_of(job)
        settling = self._taking.get(key)
        if settling is not None:
            await asyncio.shield(settling)
        done = key in self._taken and key not in self._taking
        return LoadStaged((), done, "" if done else "its files are not here")

    async def _fetch(self, _peer: PeerInfo, request: LoadFetch) -> LoadPart:
        return self.part(request)

    def part(self, request: LoadFetch) -> LoadPart:
        """What of a file is asked for, if it is held here."""
        key = key_of(request.job)
        if not self._files.held(key, request.name):
            return LoadPart(False)
        path, size = self._files.sorted_file(key, request.name), min(request.size, LOAD_PART_BYTES_MAX)
        return LoadPart(True, self._runtime.disk.read_at(path, request.offset, size))

    def _runs(self, job: str) -> bool:
        load = self._metadata().loads.by_job.get(job)
        return load is not None and load.state is LoadState.RUNNING

    def require_running(self, job: str) -> Load:
        """The load. SessionClosed when it has ended, or nobody knows of it."""
        load = self._metadata().loads.by_job.get(job)
        if load is None or load.state is not LoadState.RUNNING:
            told = "not known" if load is None else f"{load.state}: {load.reason}".removesuffix(": ")
            raise SessionClosed(f"load {job} is {told}")
        return load

    # -- files on their way -------------------------------------------------------------------------

    async def put(self, job: str, file: LoadFile, offset: int, data: bytes) -> bool:
        """Append what a client sent of a file; whether it is held now. InvalidRequest when it does not
        follow what came before, or the file is not what its digest says."""
        require_in_table(self.require_running(job), file)
        key = key_of(job)
        if not 0 < file.size_bytes <= LOAD_FILE_BYTES_MAX:
            raise InvalidRequest(f"a file of a load has 1 to {LOAD_FILE_BYTES_MAX} bytes")
        async with self._lock(key, file.name):
            if await self._is_held(key, file):
                return True
            path = self._files.part(key, file.name)
            if not offset:
                self._files.discard(path)
            if self._files.size(path) != offset or offset + len(data) > file.size_bytes:
                raise InvalidRequest(f"a part of file {file.name} came out of turn: send it from its begin")
            self._runtime.disk.append(path, data)
            if offset + len(data) < file.size_bytes:
                return False
            if not await self._arrived(job, key, file):
                raise InvalidRequest(f"file {file.name} is not what its digest says: send it again")
        return True

    async def _hold(self, job: str, file: LoadFile, sources: Sequence[Address]) -> bool:
        """Have a file, from whoever has it. SessionClosed when the load ended meanwhile."""
        require_in_table(self.require_running(job), file)
        key = key_of(job)
        async with self._lock(key, file.name):
            if await self._is_held(key, file):
                return True
            failure: LockstepError | None = None
            for attempt in range(LOAD_FETCH_ATTEMPTS_MAX * len(sources)):
                try:
                    if await self._from(job, key, file, sources[attempt % len(sources)]):
                        return True
                except SessionClosed:
                    self._files.discard(self._files.part(key, file.name))
                    raise
                except LockstepError as error:
                    failure = error
            if failure is not None:
                raise failure
            return False

    async def _from(self, job: str, key: str, file: LoadFile, source: Address) -> bool:
        path, offset = self._files.part(key, file.name), 0
        self._files.discard(path)
        while offset < file.size_bytes:
            ask = LoadFetch(job, file.name, offset, LOAD_PART_BYTES_MAX)
            part: LoadPart = await self._internode.request(source, verbs.LOAD_FETCH, ask, STREAM_TIMEOUT_MS)
            self.require_running(job)
            if not part.found:
                return False
            if not part.data or offset + len(part.data) > file.size_bytes:
                raise FrameCorrupt(f"file {file.name} has another size at {source[0]}:{source[1]}")
            self._runtime.disk.append(path, part.data)
            offset += len(part.data)
        return await self._arrived(job, key, file)

    async def _arrived(self, job: str, key: str, file: LoadFile) -> bool:
        """Verify a file and keep it; False when it is not what its digest says."""
        path = self._files.part(key, file.name)
        if not await self._is_whole(path, file):
            self.counts.damaged += 1
            self._runtime.probes.reach("load.target.damaged")
            self._files.discard(path)
            return False
        await self._kept(job, self._files.keep(key, file.name))
        self._runtime.probes.reach("load.target.held")
        if not self._runs(job):
            self._files.discard(self._files.sorted_file(key, file.name))
            self.require_running(job)
        self.counts.files += 1
        self.counts.bytes += file.size_bytes
        return True

    async def _kept(self, job: str, keeping: Coroutine[Any, Any, None]) -> None:
        """Await what makes a file durable. SessionClosed when the load ended before, and its files went."""
        try:
            self.require_running(job)
        except SessionClosed:
            keeping.close()
            raise
        try:
            await keeping
        except FileNotFoundError as error:
            self.require_running(job)
            raise FrameCorrupt(f"a file of load {job} is gone: {error}") from error

    async def _is_held(self, key: str, file: LoadFile) -> bool:
        """Whether a file is here and is what it should be: a disk may have changed it. It is removed when
        not."""
        path = self._files.sorted_file(key, file.name)
        if not self._files.held(key, file.name):
            return False
        if await self._is_whole(path, file):
            return True
        self.counts.damaged += 1
        self._runtime.probes.reach("load.target.damaged")
        self._files.discard(path)
        return False

    async def _is_whole(self, path: str, file: LoadFile) -> bool:
        disk = self._runtime.disk
        if self._files.size(path) != file.size_bytes:
            return False
        try:
            return await self._runtime.tasks.run_blocking(partial(digest_of, disk, path)) == file.digest
        except FileNotFoundError:
            return False  # The load ended, and its files went.

    def _lock(self, key: str, name: str) -> asyncio.Lock:
        return self._arriving.setdefault(f"{key}-{name}", asyncio.Lock())

    # -- for people ---------------------------------------------------------------------------------

    def takes_in(self, job: str) -> bool:
        """Whether files of a committed load are taken in just now, and not durable yet."""
        return key_of(job) in self._taking

    def staged(self, job: str) -> tuple[int, int]:
        """(files, bytes) that are held of a load."""
        key, disk = key_of(job), self._runtime.disk
        held = [name for name in self._files.names(key) if name.endswith(".sorted")]
        return len(held), sum(disk.size(f"loads/{name}") for name in held)


def _taken_of(kept: bytes | None) -> tuple[str, ...]:
    if kept is None:
        return ()
    try:
        return _KEYS.decode(kept)
    except UNREADABLE:
        return ()
