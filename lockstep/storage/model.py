"""The store of simulated nodes: an ordered map in memory with a log and checkpoints on the Disk port.

Invariants. The log gets one framed record a sync, holding every batch since the last one in order, so a
crash loses whole batches and only unsynced ones. Generation n is `checkpoint-n` (absent for 0) plus
`log-n`; generation n+1 begins only after its checkpoint's content and name are durable, and until then
nothing is written to its log. What a restart reads is made durable before it is served.

Blocks of table files that cannot be read: what a damaged disk does to a store whose node goes on.

Invariant: whoever reads a key in such a block is refused, whatever was written to it since; nothing else is.

An ordered byte map with free snapshots, for the model store.

Invariant: chunks are tuples and never change, so whoever holds the list of chunks holds a snapshot; the
list itself is copied before the first change after a view was taken. Chunks are non-empty and ascending.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.runtime.ports import Disk
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.store import Batch, Family, Operation, Pair, Run, check_ascending, check_batch
from lockstep.storage.store_position import PositionFile, StorePosition, lost
from lockstep.values import codec, limits
from lockstep.values.errors import CorruptFile, DiskRefused, StorageError, TableFileDamaged

#: A change copies one chunk, a change after a snapshot the list of chunks: both stay near 1 microsecond.
CHUNK_KEYS_MAX = 96

_Chunk = tuple[tuple[bytes, ...], tuple[bytes, ...]]


class OrderedView:
    """The content of an OrderedMap at one instant."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self, firsts: list[bytes], chunks: list[_Chunk]) -> None:
        self._firsts = firsts
        self._chunks = chunks

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        if lower >= upper:
            return
        start = max(bisect.bisect_right(self._firsts, lower) - 1, 0)
        stop = bisect.bisect_left(self._firsts, upper)
        order = range(stop - 1, start - 1, -1) if reverse else range(start, stop)
        for at in order:
            keys, values = self._chunks[at]
            first = bisect.bisect_left(keys, lower)
            last = bisect.bisect_left(keys, upper)
            for index in range(last - 1, first - 1, -1) if reverse else range(first, last):
                yield keys[index], values[index]


class OrderedMap:
    """Sorted keys with point and range changes; good to some hundred thousand keys."""

    def __init__(self) -> None:
        self._firsts: list[bytes] = []
        self._chunks: list[_Chunk] = []
        self._shared = False
        self.count = 0

    def view(self) -> OrderedView:
        self._shared = True
        return OrderedView(self._firsts, self._chunks)

    def _own(self) -> None:
        if self._shared:
            self._firsts = self._firsts.copy()
            self._chunks = self._chunks.copy()
            self._shared = False

    def get(self, key: bytes) -> bytes | None:
        at = bisect.bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        keys, values = self._chunks[at]
        index = bisect.bisect_left(keys, key)
        return values[index] if index < len(keys) and keys[index] == key else None

    def put(self, key: bytes, value: bytes) -> None:
        self._own()
        if not self._chunks:
            self._firsts.append(key)
            self._chunks.append(((key,), (value,)))
            self.count = 1
            return
        at = max(bisect.bisect_right(self._firsts, key) - 1, 0)
        keys, values = self._chunks[at]
        index = bisect.bisect_left(keys, key)
        if index < len(keys) and keys[index] == key:
            self._chunks[at] = (keys, (*values[:index], value, *values[index + 1 :]))
            return
        self.count += 1
        self._replace(at, (*keys[:index], key, *keys[index:]), (*values[:index], value, *values[index:]))

    def delete(self, key: bytes) -> None:
        at = bisect.bisect_right(self._firsts, key) - 1
        if at < 0:
            return
        keys, values = self._chunks[at]
        index = bisect.bisect_left(keys, key)
        if index == len(keys) or keys[index] != key:
            return
        self._own()
        self.count -= 1
        self._replace(at, keys[:index] + keys[index + 1 :], values[:index] + values[index + 1 :])

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        if lower >= upper or not self._chunks:
            return
        self._own()
        start = max(bisect.bisect_right(self._firsts, lower) - 1, 0)
        stop = bisect.bisect_left(self._firsts, upper)
        kept: list[_Chunk] = []
        for keys, values in self._chunks[start:stop]:
            first, last = bisect.bisect_left(keys, lower), bisect.bisect_left(keys, upper)
            self.count -= last - first
            if first or last < len(keys):
                kept.append((keys[:first] + keys[last:], values[:first] + values[last:]))
        self._chunks[start:stop] = kept
        self._firsts[start:stop] = [keys[0] for keys, _ in kept]

    def _replace(self, at: int, keys: tuple[bytes, ...], values: tuple[bytes, ...]) -> None:
        if not keys:
            del self._chunks[at], self._firsts[at]
        elif len(keys) <= CHUNK_KEYS_MAX:
            self._chunks[at] = (keys, values)
            self._firsts[at] = keys[0]
        else:
            half = len(keys) // 2
            self._chunks[at : at + 1] = [(keys[:half], values[:half]), (keys[half:], values[half:])]
            self._firsts[at : at + 1] = [keys[0], keys[half]]

    def validate(self) -> None:
        flat = [key for keys, _ in self._chunks for key in keys]
        assert flat == sorted(flat) and len(flat) == len(dict.fromkeys(flat)) == self.count
        assert self._firsts == [keys[0] for keys, _ in self._chunks]
        assert all(len(keys) == len(values) for keys, values in self._chunks)


class DamagedBlocks:
    """Of one simulated store, whose directory names the files."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._blocks: list[tuple[bytes, bytes]] = []
        self._numbers = 0
        self.damaged = DamagedFiles()

    def add(self, first_key: bytes, last_key: bytes) -> None:
        self._blocks.append((first_key, last_key))

    def clear(self) -> None:
        self._blocks.clear()

    def require(self, key: bytes) -> None:
        """TableFileDamaged when the key lies in a block that cannot be read."""
        for first_key, last_key in self._blocks:
            if first_key <= key <= last_key:
                path = f"{self._directory}/{first_key[:16].hex()}.sst"
                raise self.damaged.found(TableFileDamaged(path, 0, "damaged", first_key, last_key))

    def guarded(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """The pairs up to the first that cannot be read."""
        return self._guarded(pairs) if self._blocks else pairs

    def _guarded(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        for pair in pairs:
            self.require(pair[0])
            yield pair


_OPERATIONS = codec.decoder(list[tuple[Any, ...]])
_PAIRS = codec.decoder(list[tuple[bytes, bytes]])
#: Above every key: families are one byte, and none is 0xff.
_END = b"\xff"


async def open_model_store(
    disk: Disk, directory: str, *, log_bytes_max: int = limits.MODEL_STORE_LOG_BYTES_MAX
) -> ModelStore:
    """Recover the newest generation under `directory`; CorruptFile when durable content is damaged, or is not
    there any more."""
    newest = 0
    for name in disk.names(directory):
        kind, _, number = name.partition("-")
        if kind == "checkpoint" and number.isdecimal():
            newest = max(newest, int(number))
    store = ModelStore(disk, directory, newest, log_bytes_max)
    try:
        await store.recover()
    except CorruptFile as error:
        raise lost(error.path, error.offset, error.why) from error
    return store


class ModelStore:
    """See `Store`."""

    def __init__(self, disk: Disk, directory: str, generation: int, log_bytes_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self._generation = generation
        self._log_bytes_max = log_bytes_max
        self._map = OrderedMap()
        self._pending: list[Operation] = []
        self._sequence = 0
        self._log_bytes = 0
        self._log_named = False
        self._syncing = asyncio.Lock()
        self._position = PositionFile(disk, directory)
        self._failure: str | None = None
        self.closed = False
        #: Of a simulated disk.
        self.blocks = DamagedBlocks(directory)
        self.damaged = self.blocks.damaged

    def _path(self, kind: str, generation: int) -> str:
        return f"{self._directory}/{kind}-{generation}"

    async def recover(self) -> None:
        """Load checkpoint and log, cut a torn tail, remove what other generations left."""
        log = self._path("log", self._generation)
        self._refuse_lost()
        if self._generation:
            self._load_checkpoint(self._path("checkpoint", self._generation))
        if self._disk.exists(log):
            content = self._disk.read(log)
            self._log_bytes = self._replay(log, content)
            if self._log_bytes < len(content):
                self._disk.truncate(log, self._log_bytes)
            await self._disk.sync(log)
        current = {f"checkpoint-{self._generation}", f"log-{self._generation}"}
        for name in self._disk.names(self._directory):
            if name not in current:
                self._disk.remove(f"{self._directory}/{name}")
        if self._disk.names(self._directory):
            await self._disk.sync_names(self._directory)
        self._log_named = self._disk.exists(log)
        await self._position.begin(self._positioned())

    def _refuse_lost(self) -> None:
        """CorruptFile when a generation is gone, or has less than it had."""
        position = self._position.load()
        if position is None or self._generation > position.sequence:
            return
        if self._generation < position.sequence:
            raise lost(self._directory, 0, f"generation {position.sequence} of the store is missing")
        for name, size in position.files:
            path = f"{self._directory}/{name}"
            there = self._disk.size(path) if self._disk.exists(path) else 0
            if there < size:
                raise lost(path, there, f"it ends here, and {size} bytes of it had been stored")

    def _positioned(self) -> StorePosition:
        """Where the store is, all that it has written being durable."""
        names = (f"checkpoint-{self._generation}", f"log-{self._generation}")
        paths = [(name, f"{self._directory}/{name}") for name in names]
        files = tuple((name, self._disk.size(path)) for name, path in paths if self._disk.exists(path))
        return StorePosition(self._generation, files)

    def _load_checkpoint(self, path: str) -> None:
        content = self._disk.read(path)
        ends = [0]
        for end, body in _records(path, content):
            ends.append(end)
            for key, value in _PAIRS.decode(body):
                self._map.put(key, value)
        if ends[-1] < len(content):
            raise CorruptFile(path, ends[-1], "a checkpoint ends inside a record")

    def _replay(self, path: str, content: bytes) -> int:
        whole = 0
        for end, body in _records(path, content):
            whole = end
            for operation in _OPERATIONS.decode(body):
                self._apply(operation)
        return whole

    def _apply(self, operation: Operation) -> None:
        if operation[0] == "put":
            self._map.put(operation[1], operation[2])
        elif operation[0] == "delete":
            self._map.delete(operation[1])
        else:
            self._map.delete_range(operation[1], operation[2])

    def write(self, batch: Batch) -> int:
        check_batch(batch)
        return self._write(batch)

    def _write(self, batch: Batch) -> int:
        if self._failure is not None:
            raise DiskRefused(self._failure)
        for operation in batch:
            self._apply(operation)
        self._pending.extend(batch)
        self._sequence += 1
        return self._sequence

    async def sync(self) -> int:
        async with self._syncing:
            if self._failure is not None:
                raise DiskRefused(self._failure)
            try:
                return await self._sync()
            except (DiskRefused, OSError) as error:
                # A failed sync may have lost any part of the log: nothing after it can be trusted.
                self._failure = f"cannot sync {self._directory}: {error}"
                raise DiskRefused(self._failure) from error

    async def _sync(self) -> int:
        covered = self._sequence
        log = self._path("log", self._generation)
        if self._pending:
            record = codec.frame_record(codec.encode(self._pending))
            self._pending = []
            self._disk.append(log, record)
            self._log_bytes += len(record)
        # The view equals the log's end, so it is what a checkpoint at this place must hold.
        due = self._map.view() if self._log_bytes > self._log_bytes_max else None
        if self._log_bytes:
            await self._disk.sync(log)
            if not self._log_named:
                await self._disk.sync_names(self._directory)
                # Before the first write is known as durable, so is that there is a log.
                await self._position.begin(self._positioned())
                self._log_named = True
        if due is not None:
            await self._checkpoint(due)
        return covered

    async def _checkpoint(self, view: OrderedView) -> None:
        generation = self._generation + 1
        unfinished = self._path("unfinished", generation)
        if self._disk.exists(unfinished):
            self._disk.remove(unfinished)
        for pairs in _portions(view.scan(b"", _END)):
            self._disk.append(unfinished, codec.frame_record(codec.encode(pairs)))
        if not self._disk.exists(unfinished):
            self._disk.append(unfinished, codec.frame_record(codec.encode([])))
        await self._disk.sync(unfinished)
        self._disk.rename(unfinished, self._path("checkpoint", generation))
        await self._disk.sync_names(self._directory)
        old = [self._path("log", self._generation)]
        if self._generation:
            old.append(self._path("checkpoint", self._generation))
        self._generation, self._log_bytes, self._log_named = generation, 0, False
        await self._position.begin(self._positioned())
        for path in old:
            self._disk.remove(path)

    def get(self, key: bytes) -> bytes | None:
        self.blocks.require(key)
        return self._map.get(key)

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        return self.blocks.guarded(self._map.view().scan(lower, upper, reverse))

    def damage_block(self, share: float, pairs: int) -> bool:
        """Let so many pairs of tables be unreadable, from this share of them on; False without any."""
        held = [key for key, _ in self._map.view().scan(Family.DATA.key(b""), Family.JOURNAL.key(b""))]
        if held:
            first = int(share * len(held))
            self.blocks.add(held[first], held[min(first + pairs, len(held)) - 1])
        return bool(held)

    def table_files(self) -> tuple[str, ...]:
        return ()

    async def check_file(self, name: str) -> TableFileDamaged | None:
        return None

    def size_bytes(self) -> int:
        checkpoint = self._path("checkpoint", self._generation)
        written = self._disk.size(checkpoint) if self._generation else 0
        return written + self._log_bytes

    def snapshot(self) -> ModelSnapshot:
        return ModelSnapshot(self, self._map.view())

    def cursor(self, lower: bytes, upper: bytes, *, caches: bool = False) -> ModelCursor:
        return ModelCursor(self.scan(lower, upper))

    def new_run(self, path: str) -> ModelRun:
        return ModelRun(self._disk, path)

    def run_at(self, path: str, count: int) -> ModelRun:
        return ModelRun(self._disk, path, pairs_in(path, self._disk.read(path), count))

    async def before_ingest(self) -> None:
        return

    def ingest(self, run: Run) -> int:
        assert isinstance(run, ModelRun), "a run is ingested by a store of its kind"
        return self._write([("put", key, value) for key, value in run.pairs])

    async def fixed(self, path: str) -> None:
        return None

    def remove_fixed(self, path: str) -> None:
        return

    def close(self) -> None:
        self._failure = self._failure or f"{self._directory} is closed"
        self.closed = True


class ModelCursor:
    def __init__(self, pairs: Iterator[Pair]) -> None:
        self._pairs = pairs

    def take(self, count: int) -> list[Pair]:
        return list(itertools.islice(self._pairs, count))

    def close(self) -> None:
        self._pairs = iter(())


class ModelRun:
    """A file of framed records, and its pairs in memory: simulated files are small, and the log that an
    ingested run joins is on the disk."""

    def __init__(self, disk: Disk, path: str, pairs: Sequence[Pair] = ()) -> None:
        self._disk = disk
        self._path = path
        self.pairs: list[Pair] = list(pairs)
        self._bytes = 0

    @property
    def count(self) -> int:
        return len(self.pairs)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def add(self, pairs: Sequence[Pair]) -> None:
        if pairs:
            check_ascending(pairs, self.pairs[-1][0] if self.pairs else b"")
            record = codec.frame_record(codec.encode(pairs))
            self._disk.append(self._path, record)
            self._bytes += len(record)
            self.pairs.extend(pairs)

    async def finish(self) -> None:
        return


def pairs_in(path: str, content: bytes, count: int) -> list[Pair]:
    """What the file of a run holds; CorruptFile unless it is a whole one of so many pairs."""
    found: list[Pair] = []
    end = 0
    try:
        for behind, body in _records(path, content):
            found.extend(_PAIRS.decode(body))
            end = behind
        check_ascending(found, b"")
    except (*codec.UNREADABLE, StorageError) as error:
        raise CorruptFile(path, end, f"not a file of sorted pairs: {error}") from error
    if end < len(content) or len(found) != count:
        raise CorruptFile(path, end, f"a file of {count} pairs has {len(found)}, or ends inside a record")
    return found


class ModelSnapshot:
    def __init__(self, store: ModelStore, view: OrderedView) -> None:
        self._store = store
        self._view: OrderedView | None = view
        self._scan = 0

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        self._scan += 1
        return self._walk(self._scan, lower, upper, reverse)

    def _walk(self, scan: int, lower: bytes, upper: bytes, reverse: bool) -> Iterator[Pair]:
        for pair in self._store.blocks.guarded(self._checked(scan).scan(lower, upper, reverse)):
            yield pair
            self._checked(scan)

    def _checked(self, scan: int) -> OrderedView:
        if self._view is None or self._store.closed:
            raise StorageError("the snapshot is closed")
        if scan != self._scan:
            raise StorageError("a newer scan of the snapshot has begun")
        return self._view

    def close(self) -> None:
        self._view = None


def _records(path: str, content: bytes) -> Iterator[tuple[int, bytes]]:
    return codec.scan_records(path, content, record_bytes_max=limits.MODEL_STORE_RECORD_BYTES_MAX)


def _portions(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Cut into records that stay far below the record limit."""
    portion: list[Pair] = []
    size = 0
    for pair in pairs:
        portion.append(pair)
        size += len(pair[0]) + len(pair[1])
        if size >= limits.CHECKPOINT_PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
