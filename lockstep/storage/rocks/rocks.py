"""The store of real nodes: RocksDB through rocksdict, in raw mode only.

Invariants. The scan that reads also owns its read options and the bound's bytes for as long as it lives:
the library keeps a bare pointer into them. The library's lower bound setter is never used (it sets the
upper bound); scans seek and every key is checked against both bounds. A scan that ends because a block
could not be read raises instead of looking complete. After a failed write or sync the store is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from lockstep.runtime.ports import Tasks
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.rocks.rocks_building import FixedContent, TableChecker, remove_content
from lockstep.storage.rocks.rocks_errors import RocksErrors, file_error
from lockstep.storage.rocks.rocks_keeping import KeptFiles
from lockstep.storage.rocks.rocks_runs import RocksCursor, RocksRun, in_pieces
from lockstep.storage.store import Batch, Pair, Run, check_batch
from lockstep.storage.store_position import lost
from lockstep.values import limits
from lockstep.values.errors import (
    CorruptFile,
    DiskRefused,
    PreconditionError,
    StorageError,
    TableFileDamaged,
)


class RocksSettings(msgspec.Struct, frozen=True):
    """Sized for several nodes on one laptop: an idle node holds well below 80 MB resident."""

    block_cache_bytes: int = 8 * 1024 * 1024
    #: Three of them may exist at once: one filling and two being flushed, so that a slow flush does not
    #: stall a write, which would hold the interpreter.
    write_buffer_bytes: int = 8 * 1024 * 1024
    log_bytes_max: int = 64 * 1024 * 1024
    background_jobs: int = 2
    open_files_max: int = 256
    bloom_bits_per_key: int = 10


async def open_rocks_store(
    path: str,
    tasks: Tasks,
    settings: RocksSettings | None = None,
    *,
    kept: KeptFiles | None = None,
    checker: TableChecker | None = None,
) -> RocksStore:
    """Open or create the database directory `path`; recovery runs off the loop.

    PreconditionError when another process has it open, CorruptFile when it cannot be recovered, or, with
    `kept`, when its files lack what they are known to have held. With a `checker` too a damaged table file is
    named also where the library does not name it.
    """
    chosen = settings or RocksSettings()
    if kept is not None:
        await tasks.run_blocking(kept.check)
    try:
        database = await tasks.run_blocking(lambda: _open(path, chosen))
    except CorruptFile as error:
        if isinstance(error, TableFileDamaged) or kept is None or checker is None:
            raise
        raise await checker.first_damaged(path, kept.names()) or error from error
    store = RocksStore(path, tasks, database, kept, checker)
    if kept is not None:
        await kept.begin(database.latest_sequence_number())
        store.follow()
    return store


def _open(path: str, settings: RocksSettings) -> Any:
    # Imported here: commands and tests that open no database do not pay for the library's start.
    import rocksdict

    try:
        return rocksdict.Rdict(path, _options(rocksdict, settings))
    except Exception as error:
        reason = str(error)
        damaged = file_error(path, reason)
        if damaged is not None:
            raise damaged from error
        if f"{path}/LOCK" in reason or "lock hold by" in reason:
            raise PreconditionError(
                f"the database {path} is in use by another process", hint="stop the node that runs on it"
            ) from error
        if "Corruption" in reason:
            raise lost(path, 0, reason) from error
        raise DiskRefused(f"cannot open the database {path}: {reason}") from error


#: Flushed buffers that lie side by side before they are merged into the first level: a read looks into each
#: of them. That level is so small that merging two into it costs no more than four into the library's own.
_FILES_ABOVE: Final = 2
_FIRST_LEVEL_BUFFERS: Final = 8


def _options(rocksdict: Any, settings: RocksSettings) -> Any:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(settings.block_cache_bytes))
    table.set_bloom_filter(settings.bloom_bits_per_key, False)
    in_pieces(rocksdict, table)
    table.set_pin_top_level_index_and_filter(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_level_zero_file_num_compaction_trigger(_FILES_ABOVE)
    options.set_max_bytes_for_level_base(_FIRST_LEVEL_BUFFERS * settings.write_buffer_bytes)
    options.set_max_total_wal_size(settings.log_bytes_max)
    options.set_max_background_jobs(settings.background_jobs)
    options.set_max_open_files(settings.open_files_max)
    options.set_max_file_opening_threads(1)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


#: The library's names for the sizes of its files and of what is not in files yet.
_SIZES: Final = ("live-sst-files-size", "cur-size-all-mem-tables")


#: The library's errors about a file's content, not about the disk.
_FILE_AT_FAULT: Final = ("Corruption", "Invalid argument", "Not implemented")


class RocksStore:
    """See `Store`. Writes hold the interpreter for microseconds; a sync runs in a worker thread.

    Writes are staged: those of a turn or two reach the library as one batch, in order, before anything
    looks (`_write_staged`) and before the sync that makes them durable. One call of the library costs
    more than the rest of a small write.
    """

    def __init__(
        self,
        path: str,
        tasks: Tasks,
        database: Any,
        kept: KeptFiles | None = None,
        checker: TableChecker | None = None,
    ) -> None:
        import rocksdict

        self._path = path
        self._checker = checker
        #: The node's directory, in which the database is one.
        self._files_root = path.rpartition("/")[0] or "."
        self._tasks = tasks
        self._database: Any = database
        self._new_batch = rocksdict.WriteBatch
        self._staged: Any = None
        self._staged_count = 0
        self._staged_bytes = 0
        self._new_read_options = rocksdict.ReadOptions
        self._library = rocksdict
        self._snapshots: dict[int, RocksSnapshot] = {}
        self._next_snapshot = 0
        self._sequence = 0
        self._failure: str | None = None
        self.damaged = DamagedFiles()
        self.damaged.listen(lambda _error: self._compact_no_more())
        self._errors = RocksErrors(path, self.damaged, database.live_files)
        self._kept = kept
        self._following: asyncio.Task[None] | None = None
        #: Syncs that have finished, by which `_follow` sees whether there is more to note.
        self._syncs = 0

    def write(self, batch: Batch) -> int:
        if self._failure is not None:
            raise DiskRefused(self._failure)
        if len(batch) > limits.STORE_BATCH_ROWS_MAX:
            check_batch(batch)
        # The library consumes a batch object when it is written, so it cannot be kept for the next one.
        staged = self._staged
        if staged is None:
            staged = self._staged = self._new_batch(raw_mode=True)
        size = 0
        try:
            for operation in batch:
                if operation[0] == "put":
                    _, key, value = operation
                    staged.put(key, value)
                    size += len(key) + len(value)
                elif operation[0] == "delete":
                    staged.delete(operation[1])
                else:
                    staged.delete_range(operation[1], operation[2])
        except Exception as error:
            # What was staged of this batch must never be written: a batch is visible whole or not at all.
            raise self._died(f"cannot write to {self._path}: {error}") from error
        self._sequence += 1
        self._staged_count += len(batch)
        self._staged_bytes += size
        if (
            self._staged_count >= limits.STORE_STAGED_OPERATIONS_MAX
            or self._staged_bytes >= limits.STORE_STAGED_BYTES_MAX
        ):
            self._write_staged()
        return self._sequence

    def _write_staged(self) -> None:
        """Give the library what is staged. DiskRefused when it does not take it."""
        staged = self._staged
        if staged is None:
            return
        self._staged = None
        self._staged_count = self._staged_bytes = 0
        if self._failure is not None:
            raise DiskRefused(self._failure)
        try:
            self._database.write(staged)
        except Exception as error:
            raise self._died(f"cannot write to {self._path}: {error}") from error

    def _died(self, reason: str) -> DiskRefused:
        # The library takes no more writes once it has met damage in the background.
        self._errors.named(reason)
        self._failure = reason
        return DiskRefused(reason)

    async def sync(self) -> int:
        if self._failure is not None:
            raise DiskRefused(self._failure)
        self._write_staged()
        covered = self._sequence
        try:
            await self._tasks.run_blocking(self._flush_log)
        except Exception as error:
            raise self._died(f"cannot sync {self._path}: {error}") from error
        self._syncs += 1
        self.follow()
        return covered

    def _compact_no_more(self) -> None:
        """The library takes no writes any more once a compaction has met damage; what is in other files, and
        what is written from now on, is as good as before."""
        try:
            self._database.set_options({"disable_auto_compactions": "true"})
        except Exception as error:
            raise self._died(f"cannot end compactions of {self._path}: {error}") from error

    def _flush_log(self) -> None:
        self._database.flush_wal(True)

    def follow(self) -> None:
        """Have it noted in a while how far the store has got."""
        if self._kept is not None and self._following is None:
            self._following = self._tasks.spawn(self._follow(self._kept), "storage.position")

    async def _follow(self, kept: KeptFiles) -> None:
        """Note how far the store has got, again and again until it gets no further."""
        noted = -1
        try:
            while self._failure is None:
                await asyncio.sleep(limits.STORE_POSITION_MS / 1000)
                syncs = self._syncs
                position = kept.position(self._database.latest_sequence_number())
                # Also what the logs hold behind the last sync is then as durable as the position says.
                await self._tasks.run_blocking(self._flush_log)
                if kept.note(position) or syncs != noted:
                    noted = syncs
                    continue
                await kept.settle()
                if self._syncs == noted:
                    break
        except DiskRefused:
            # What was noted last stays, and is true: the next sync tries again.
            return
        except Exception as error:
            # The next write or sync tells of it.
            self._died(f"cannot note how far {self._path} is: {error}")
        finally:
            self._following = None

    def get(self, key: bytes) -> bytes | None:
        self._write_staged()
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:
            raise self._errors.of(error) from error
        return value

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        options = self._new_read_options()
        if reverse:
            return _scan_back(self._errors, self._cursor, options, lower, upper)
        return _scan_on(self._errors, self._cursor, options, lower, upper)

    def _cursor(self, options: Any) -> Any:
        """An iterator that shows everything written before this call."""
        self._write_staged()
        return self._database.iter(options)

    def table_files(self) -> tuple[str, ...]:
        return tuple(sorted(one["name"].rpartition("/")[2] for one in self._database.live_files()))

    async def check_file(self, name: str) -> TableFileDamaged | None:
        if self._checker is None:
            raise StorageError("this node has no process to check files with")
        found = await self._checker.damage_in(self._path, name, self._database.live_files())
        return self.damaged.found(found) if found is not None else None

    def size_bytes(self) -> int:
        sizes = (self._database.property_int_value(f"rocksdb.{name}") for name in _SIZES)
        return sum(size or 0 for size in sizes)

    def snapshot(self) -> RocksSnapshot:
        self._next_snapshot += 1
        made = RocksSnapshot(self, self._next_snapshot, self._cursor(self._new_read_options()))
        self._snapshots[self._next_snapshot] = made
        return made

    def release(self, number: int) -> None:
        """A snapshot ended; called by the snapshot itself."""
        self._snapshots.pop(number, None)

    @property
    def errors(self) -> RocksErrors:
        return self._errors

    def cursor(self, lower: bytes, upper: bytes, *, caches: bool = False) -> RocksCursor:
        self._write_staged()
        return RocksCursor(self._errors, self._database, self._new_read_options, lower, upper, caches=caches)

    def new_run(self, path: str) -> RocksRun:
        return RocksRun(self._library, self._tasks, f"{self._files_root}/{path}")

    def run_at(self, path: str, count: int) -> RocksRun:
        return RocksRun(self._library, self._tasks, f"{self._files_root}/{path}", count)

    async def before_ingest(self) -> None:
        if self._failure is not None:
            raise DiskRefused(self._failure)
        self._write_staged()
        database = self._database
        try:
            # Ingestion flushes what is in memory of the file's range, with the interpreter standing still;
            # now it does not. What is written until then is little.
            await self._tasks.run_blocking(database.flush)
        except Exception as error:
            raise self._died(f"cannot flush {self._path}: {error}") from error

    def ingest(self, run: Run) -> int:
        assert isinstance(run, RocksRun), "a run is ingested by a store of its kind"
        if self._failure is not None:
            raise DiskRefused(self._failure)
        # What is staged was written before: it may not come out above the run.
        self._write_staged()
        if run.count:
            try:
                options = self._library.IngestExternalFileOptions()
                options.set_move_files(True)
                self._database.ingest_external_file([run.path], options)
            except Exception as error:
                # All that concerns the file is found before anything is done with it.
                if str(error).startswith(_FILE_AT_FAULT):
                    raise CorruptFile(run.path, 0, str(error)) from error
                raise self._died(f"cannot ingest into {self._path}: {error}") from error
        self._sequence += 1
        return self._sequence

    async def fixed(self, path: str) -> FixedContent:
        if self._failure is not None:
            raise DiskRefused(self._failure)
        self._write_staged()
        directory = f"{self._files_root}/{path}"
        try:
            await self._tasks.run_blocking(lambda: self._fix(directory))
        except Exception as error:
            raise DiskRefused(f"cannot fix the content of {self._path} in {directory}: {error}") from error
        return FixedContent(self._library, self._tasks, self._errors, directory, self._files_root)

    def _fix(self, directory: str) -> None:
        # Linking holds the interpreter, for some milliseconds, and would flush with it in hand.
        self._database.flush()
        self._library.Checkpoint(self._database).create_checkpoint(directory)

    def remove_fixed(self, path: str) -> None:
        remove_content(self._library, f"{self._files_root}/{path}")

    def close(self) -> None:
        for snapshot in list(self._snapshots.values()):
            snapshot.close()
        try:
            if self._failure is None:
                self._write_staged()
        finally:
            whole, self._failure = self._failure is None, self._failure or f"{self._path} is closed"
            sequence = self._database.latest_sequence_number() if whole else 0
            # Closing it writes what is in memory to files.
            self._close()
            if self._kept is not None and whole:
                self._kept.closed(sequence)

    def _close(self) -> None:
        try:
            self._database.close()
        except Exception as error:
            # What was in memory is in the log: only a damaged table file may keep it there.
            if self._errors.named(error) is None:
                raise DiskRefused(f"cannot close {self._path}: {error}") from error


#: Pairs that a scan of a snapshot takes at once, at first and at most: most reads want one or two, and a
#: generator's step costs as much as taking a pair.
_WALKED_FIRST, _WALKED_MAX = 2, 128


class RocksSnapshot:
    """The library's own snapshots do not isolate their iterators (they show later writes), but one
    iterator always shows the instant at which it was made. So a snapshot is one unbounded iterator that
    every scan seeks anew, unless the one before left it there; only the newest scan may be stepped."""

    def __init__(self, store: RocksStore, number: int, cursor: Any) -> None:
        self._store = store
        self._number = number
        self._cursor: Any = cursor
        self._scan = 0
        #: The cursor is at the second key, the lowest of all from the first one on, where a scan left it.
        self._standing: tuple[bytes, bytes] | None = None

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        self._scan += 1
        return self._walk(self._scan, lower, upper, reverse)

    def _walk(self, scan: int, lower: bytes, upper: bytes, reverse: bool) -> Iterator[Pair]:
        cursor = self._checked(scan)
        standing, self._standing = self._standing, None
        if reverse:
            cursor.seek_for_prev(upper)
            if cursor.valid() and cursor.key() == upper:
                cursor.prev()
        elif standing is None or not standing[0] <= lower <= standing[1]:
            cursor.seek(lower)
        count = _WALKED_FIRST
        while True:
            valid, read_key, read_value = cursor.valid, cursor.key, cursor.value
            step = cursor.prev if reverse else cursor.next
            found: list[Pair] = []
            is_last = False
            while len(found) < count and valid():
                key = read_key()
                if not lower <= key < upper:
                    is_last = True
                    self._standing = None if reverse else (max(lower, upper), key)
                    break
                found.append((key, read_value()))
                step()
            if not is_last and len(found) < count:
                is_last = True
                _check_end(self._store.errors, cursor)
            # Nothing but the snapshot holds the iterator while the caller works, so closing frees it.
            del cursor, valid, read_key, read_value, step
            for pair in found:
                yield pair
                if scan != self._scan or self._cursor is None:
                    break
            cursor = self._checked(scan)
            if is_last:
                return
            count = min(2 * count, _WALKED_MAX)

    def _checked(self, scan: int) -> Any:
        if self._cursor is None:
            raise StorageError("the snapshot is closed")
        if scan != self._scan:
            raise StorageError("a newer scan of the snapshot has begun")
        return self._cursor

    def close(self) -> None:
        self._cursor = None
        self._store.release(self._number)


def _scan_on(errors: RocksErrors, make: Any, options: Any, lower: bytes, upper: bytes) -> Iterator[Pair]:
    # `options` and `upper` are locals of this frame until the last step: the library points into them.
    options.set_iterate_upper_bound(upper)
    cursor = make(options)
    cursor.seek(lower)
    valid, read_key, read_value, step = cursor.valid, cursor.key, cursor.value, cursor.next
    while valid():
        key = read_key()
        if not lower <= key < upper:
            raise errors.of("a scan left its bounds")
        yield key, read_value()
        step()
    _check_end(errors, cursor)


def _scan_back(errors: RocksErrors, make: Any, options: Any, lower: bytes, upper: bytes) -> Iterator[Pair]:
    cursor = make(options)
    cursor.seek_for_prev(upper)
    if cursor.valid() and cursor.key() == upper:
        cursor.prev()
    while cursor.valid():
        key = cursor.key()
        if key < lower:
            return
        if key >= upper:
            raise errors.of("a scan left its bounds")
        yield key, cursor.value()
        cursor.prev()
    _check_end(errors, cursor)


def _check_end(errors: RocksErrors, cursor: Any) -> None:
    try:
        cursor.status()
    except Exception as error:
        raise errors.of(error) from error
