"""The files of a backup: fragments of a table in key order, in blocks compressed one by one.

A file is made of records (length, CRC, body); a body is the first key of a block and its compressed pairs.
Nothing of it depends on the store, so that every version of every store can take it in.

Invariants. Nothing of a file is believed before its size and digest were found to be those that its manifest
tells. What is read of several parts together has each key once.
"""

from __future__ import annotations

import bisect
import hashlib
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Final

import lz4.block
import msgspec

from lockstep.runtime.ports import Disk
from lockstep.storage.sorted_file import FileSummary
from lockstep.storage.store import Pair
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import BACKUP_RECORD_BYTES_MAX

DIGEST_BYTES: Final = 16


class Block(msgspec.Struct, frozen=True, array_like=True):
    first_key: bytes
    packed: bytes


_BLOCK = decoder(Block)
_PAIRS = decoder(list[tuple[bytes, bytes]])


def content_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


class BackupWriter:
    """A file in the making; see `sorted_file.PairSink`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.size_bytes = 0

    def add(self, pairs: Sequence[Pair]) -> None:
        """DiskRefused."""
        record = frame_record(encode(Block(pairs[0][0], lz4.block.compress(encode(pairs)))))
        self._disk.append(self._path, record)
        self._digest.update(record)
        self.size_bytes += len(record)

    async def finish(self) -> bytes:
        """Make the content durable; its digest."""
        await self._disk.sync(self._path)
        return self._digest.digest()


class CheckedFile:
    """A file that was found whole, and where its blocks begin."""

    def __init__(self, disk: Disk, path: str, summary: FileSummary) -> None:
        """Reads all of it, for a thread. CorruptFile names the file."""
        self._disk = disk
        self._path = path
        self.summary = summary
        self._first_keys: list[bytes] = []
        self._offsets: list[int] = []
        try:
            content = disk.read(path)
        except FileNotFoundError as error:
            raise CorruptFile(path, 0, "the file is missing") from error
        if len(content) != summary.size_bytes:
            raise CorruptFile(path, len(content), f"it has {len(content)} bytes, not {summary.size_bytes}")
        if content_digest(content) != summary.digest:
            raise CorruptFile(path, 0, "its content is not what the manifest tells")
        at = 0
        for end, body in scan_records(path, content, record_bytes_max=BACKUP_RECORD_BYTES_MAX):
            self._first_keys.append(_block(path, at, body).first_key)
            self._offsets.append(at)
            at = end
        self._offsets.append(at)
        if at != len(content):
            raise CorruptFile(path, at, "a block cannot be read")

    def pairs(self, lower: bytes, upper: bytes) -> Iterator[Pair]:
        """Those with lower <= key < upper, a block in memory at a time."""
        number = max(0, bisect.bisect_right(self._first_keys, lower) - 1)
        while number < len(self._first_keys) and self._first_keys[number] < upper:
            for pair in self._read(number):
                if lower <= pair[0] < upper:
                    yield pair
            number += 1

    def _read(self, number: int) -> list[Pair]:
        offset, size = self._offsets[number], self._offsets[number + 1] - self._offsets[number]
        try:
            record = self._disk.read_at(self._path, offset, size)
        except FileNotFoundError as error:
            raise CorruptFile(self._path, offset, "the file is missing") from error
        found = next(scan_records(self._path, record, record_bytes_max=BACKUP_RECORD_BYTES_MAX), None)
        if found is None:
            raise CorruptFile(self._path, offset, "a block changed since it was checked")
        try:
            return _PAIRS.decode(lz4.block.decompress(_block(self._path, offset, found[1]).packed))
        except (lz4.block.LZ4BlockError, *UNREADABLE) as error:
            raise CorruptFile(self._path, offset, f"a block cannot be read: {error}") from error


def _block(path: str, offset: int, body: bytes) -> Block:
    try:
        return _BLOCK.decode(body)
    except UNREADABLE as error:
        raise CorruptFile(path, offset, f"not a block of a backup: {error}") from error


def pairs_of_part(files: Sequence[CheckedFile], lower: bytes, upper: bytes) -> Iterator[Pair]:
    """Of one node's files of a table, which follow each other in key order."""
    for file in files:
        if file.summary.first_key < upper and lower <= file.summary.last_key:
            yield from file.pairs(lower, upper)


class RestoredFragments:
    """Fragments of a range out of several parts, as a table of this cluster has them; see
    `stream_source.Fragments`."""

    def __init__(
        self,
        parts: Sequence[Sequence[CheckedFile]],
        lower: bytes,
        upper: bytes,
        change: Callable[[Pair], Pair | None],
    ) -> None:
        """`lower` and `upper` are keys of the backup. `change` keeps the order of keys."""
        merged = heapq.merge(*(pairs_of_part(files, lower, upper) for files in parts), key=itemgetter(0))
        once = (next(same) for _, same in itertools.groupby(merged, key=itemgetter(0)))
        self._pairs: Iterator[Pair] = (found for pair in once if (found := change(pair)) is not None)

    def take(self, count: int) -> list[Pair]:
        """The next ones, fewer than `count` only at the end. CorruptFile."""
        return list(itertools.islice(self._pairs, count))

    def close(self) -> None:
        self._pairs = iter(())
