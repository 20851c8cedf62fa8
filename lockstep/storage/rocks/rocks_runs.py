"""Whole ranges in and out of RocksDB: cursors that take many pairs at once, and runs that become table files.

Invariants. A cursor owns its read options and the bound's bytes for as long as it lives: the library keeps a
bare pointer into them. The library ends a walk at a block it cannot read as if that were the end, so a cursor
that ends looks at the same instant with an iterator that tells. A run's file is complete before it is
ingested.
"""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from lockstep.runtime.ports import Tasks
from lockstep.storage.rocks.rocks_errors import RocksErrors
from lockstep.storage.store import Pair, check_ascending
from lockstep.values.errors import DiskRefused, StorageError

#: What a walk reads at once: most ranges lie in many blocks that follow each other on the disk.
_READ_AHEAD_BYTES = 64 * 1024
#: What the library writes before it asks the kernel to begin with writing it out: so the sync at a file's
#: end, during which the interpreter stands still, has little left to do. Each request costs, so not often.
_BYTES_PER_SYNC = 8 * 1024 * 1024


class RocksCursor:
    def __init__(
        self,
        errors: RocksErrors,
        database: Any,
        new_options: Any,
        lower: bytes,
        upper: bytes,
        *,
        caches: bool = False,
    ) -> None:
        self._errors = errors
        self._lower, self._upper = lower, upper
        self._options = new_options()
        self._options.set_iterate_upper_bound(self._upper)
        # Most ranges are read once: they would only push out what requests need.
        self._options.fill_cache(caches)
        self._options.set_readahead_size(_READ_AHEAD_BYTES)
        self._pairs: Any = database.items(from_key=lower, read_opt=self._options)
        self._witness: Any = database.iter(self._options)
        self._last = b""

    def take(self, count: int) -> list[Pair]:
        if self._pairs is None:
            raise StorageError("the cursor is closed")
        found: list[Pair] = list(itertools.islice(self._pairs, count))
        if found:
            if not self._lower <= found[0][0] or not found[-1][0] < self._upper:
                raise self._errors.of("a scan left its bounds")
            self._last = found[-1][0]
        if len(found) < count:
            self._check_end()
        return found

    def _check_end(self) -> None:
        """CorruptFile unless the range really ends behind the last pair."""
        witness = self._witness
        witness.seek(self._last or self._lower)
        if self._last and witness.valid():
            witness.next()
        try:
            witness.status()
        except Exception as error:
            raise self._errors.of(error) from error
        if witness.valid():
            raise self._errors.of("a scan ended before its range did")

    def close(self) -> None:
        self._pairs = self._witness = None


class TableFile:
    """A table file in the making; `path` is absolute or relative to the process."""

    def __init__(self, library: Any, path: str, count: int = 0) -> None:
        self.path = path
        self._library = library
        self._writer: Any = None
        self._last = b""
        self._count = count

    @property
    def count(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        size: int = self._writer.file_size() if self._writer is not None else 0
        return size

    def add(self, pairs: Sequence[Pair]) -> None:
        if not pairs:
            return
        if self._writer is None:
            self._writer = self._open(shrinks(pairs))
        try:
            # The library refuses keys that do not ascend. No step of the interpreter's own for a pair.
            deque(itertools.starmap(self._writer.__setitem__, pairs), 0)
        except Exception as error:
            check_ascending(pairs, self._last)
            raise DiskRefused(f"cannot write {self.path}: {error}") from error
        self._last = pairs[-1][0]
        self._count += len(pairs)

    def _open(self, compresses: bool) -> Any:
        library = self._library
        table = library.BlockBasedOptions()
        table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
        table.set_format_version(_TABLE_FORMAT)
        in_pieces(library, table)
        options = library.Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        kinds = library.DBCompressionType
        options.set_compression_type(kinds.lz4() if compresses else kinds.none())
        options.set_bytes_per_sync(_BYTES_PER_SYNC)
        writer = library.SstFileWriter(options)
        try:
            writer.open(self.path)
        except Exception as error:
            raise DiskRefused(f"cannot write {self.path}: {error}") from error
        return writer

    def complete(self) -> None:
        """Nothing is added any more. Without pairs there is no file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._finish(writer)

    def _finish(self, writer: Any) -> None:
        try:
            writer.finish()
        except Exception as error:
            raise DiskRefused(f"cannot write {self.path}: {error}") from error


class RocksRun(TableFile):
    """See `Run`: a table file in the making, or one that came from elsewhere."""

    def __init__(self, library: Any, tasks: Tasks, path: str, count: int = 0) -> None:
        super().__init__(library, path, count)
        self._tasks = tasks

    async def finish(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await self._tasks.run_blocking(lambda: self._finish(writer))


def in_pieces(library: Any, table: Any) -> None:
    """Have a file's index and filter cut into blocks that the cache holds one by one. Whole, those of a file
    of 30 MB are larger than a shard of the cache: every read would read all of them again."""
    table.set_index_type(library.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_INDEX_PIECE_BYTES)


def shrinks(pairs: Sequence[Pair]) -> bool:
    """Whether compressing such values is worth a try. The library keeps no compressed block that saves less
    than an eighth, so where these say no, the file is the same and takes a third less time."""
    sample = b"".join([value for _, value in pairs])[:_SAMPLE_BYTES]
    return len(zlib.compress(sample, 1)) < len(sample) * _SHRUNK_SHARE


_SAMPLE_BYTES = 16 * 1024
_SHRUNK_SHARE = 0.9
#: As in `RocksSettings`: an ingested file is read like any other.
_BLOOM_BITS_PER_KEY = 10
_INDEX_PIECE_BYTES = 4096
#: Named, not the library's newest: files go to nodes whose library is another one.
_TABLE_FORMAT = 5
