"""The format of a sorted file: fragments of one range in key order, cut into checked blocks.

    block = u32 length | u32 CRC-32 | MessagePack of (keys, values)

Invariants. Equal fragments make equal bytes, whatever the store. A block is handed on only when its checksum
holds; a file's digest covers the length and the checksum of every block, in order, so that content is gone
through once. A file ends with a whole partition unless that one alone is larger than a file may be: then
`next_key` is where the partition begins.
"""

from __future__ import annotations

import bisect
import hashlib
import struct
import zlib
from collections.abc import Callable

import msgspec

from lockstep.storage import keys
from lockstep.storage.store import Pair
from lockstep.values import codec
from lockstep.values.errors import CorruptFile
from lockstep.values.limits import (
    STREAM_BLOCK_BYTES,
    STREAM_BLOCK_BYTES_MAX,
    STREAM_BLOCK_PAIRS,
    STREAM_PAIR_BYTES,
    STREAM_PAIRS_TAKEN,
)

FORMAT_VERSION = 1
DIGEST_BYTES = 16
#: Keys and values apart: lists of bytes are nothing that the collector would look through.
_BLOCK: msgspec.msgpack.Decoder[tuple[list[bytes], list[bytes]]] = codec.decoder(
    tuple[list[bytes], list[bytes]]
)
_HEADER = struct.Struct(">II")


class FileSummary(msgspec.Struct, frozen=True, array_like=True):
    """What a finished file holds, in store keys. `next_key`: from where on whoever has this file and all
    before it still lacks something. `digest` is over the whole content."""

    entries: int
    size_bytes: int
    first_key: bytes
    last_key: bytes
    next_key: bytes
    digest: bytes


class RangeFiles:
    """Turns the fragments that `take` gives into one file after the other, a block at a time.

    `bytes_max` is where a file ends at the next end of a partition; twice that, where it ends anyway.
    """

    def __init__(self, take: Callable[[int], list[Pair]], bytes_max: int) -> None:
        self._take = take
        self._bytes_max = bytes_max
        #: Small files are for tests and tight disks; they get small steps.
        self._block_bytes = min(STREAM_BLOCK_BYTES, bytes_max // 4)
        self._count = max(1, min(STREAM_PAIRS_TAKEN, self._block_bytes // STREAM_PAIR_BYTES))
        self._left: list[Pair] = []
        #: Nothing is left to make files of, once the present one is complete.
        self.ended = False
        self.begin()

    def begin(self) -> None:
        """Forget the file that is complete."""
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._entries = 0
        self._bytes = 0
        self._first = self._last = self._next = b""
        self._complete = False

    def next_block(self) -> bytes:
        """The file's next block; empty when it is complete."""
        if self._complete:
            return b""
        pairs = self._pairs()
        if not pairs:
            self._complete = True
            return b""
        if self._bytes >= self._bytes_max:
            pairs = self._cut(pairs)
        return self._block(pairs) if pairs else b""

    def _pairs(self) -> list[Pair]:
        """What follows, some hundred kilobytes of it."""
        found, self._left = self._left, []
        if not found and not self.ended:
            found = self._take(self._count)
            self.ended = len(found) < self._count
        return found

    def _cut(self, pairs: list[Pair]) -> list[Pair]:
        """The file is large enough: what of `pairs` still belongs to the partition it ends with."""
        prefix = keys.split_partition(self._last)[2]
        at = bisect.bisect_left(pairs, (keys.partition_end(prefix),))
        if at == len(pairs) and self._bytes < 2 * self._bytes_max:
            return pairs
        self._complete = True
        if at == len(pairs):
            self._next, self._left, at = prefix, pairs, 0
        else:
            self._left = pairs[at:]
        self.ended = False if self._left else self.ended
        return pairs[:at]

    def _block(self, pairs: list[Pair]) -> bytes:
        data = codec.frame_record(codec.encode((*zip(*pairs, strict=True),)))
        self._digest.update(data[: _HEADER.size])
        # As many as fit a block by what these had, but no sudden crowd of what may be larger ones.
        fit = self._block_bytes * len(pairs) // len(data)
        self._count = max(1, min(fit, STREAM_BLOCK_PAIRS, 2 * self._count))
        if not self._entries:
            self._first = pairs[0][0]
        self._last = pairs[-1][0]
        self._entries += len(pairs)
        self._bytes += len(data)
        return data

    def summary(self) -> FileSummary:
        """Of the complete file; without entries when there was nothing left."""
        next_key = self._next
        if self._entries and not next_key:
            next_key = keys.partition_end(keys.split_partition(self._last)[2])
        return FileSummary(
            self._entries, self._bytes, self._first, self._last, next_key, self._digest.digest()
        )


class BlockReader:
    """Cuts a file's bytes into blocks again; `name` is for errors. Holds at most one unfinished block."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._bytes = 0
        self._entries = 0

    def feed(self, data: bytes) -> list[memoryview]:
        """The bodies of the blocks that `data` completes, for `columns_of`. CorruptFile."""
        self._bytes += len(data)
        content = self._rest + data if self._rest else data
        view, at = memoryview(content), 0
        found: list[memoryview] = []
        while len(content) - at >= _HEADER.size:
            length, crc = _HEADER.unpack_from(content, at)
            start = at + _HEADER.size
            if not 0 < length <= STREAM_BLOCK_BYTES_MAX:
                raise CorruptFile(self._name, at, f"a block of {length} bytes")
            if start + length > len(content):
                break
            body = view[start : start + length]
            if zlib.crc32(body) != crc:
                raise CorruptFile(self._name, at, "a block differs from its checksum")
            self._digest.update(view[at:start])
            found.append(body)
            at = start + length
        self._rest = content[at:]
        return found

    def columns_of(self, body: memoryview) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of a block, of equal number."""
        try:
            keys_, values = _BLOCK.decode(body)
        except codec.UNREADABLE as error:
            raise CorruptFile(self._name, 0, f"a block does not decode: {error}") from error
        if len(keys_) != len(values) or not keys_:
            raise CorruptFile(self._name, 0, "a block has not as many values as keys")
        self._entries += len(keys_)
        return keys_, values

    def check(self, summary: FileSummary) -> None:
        """CorruptFile unless everything that was fed is exactly the file of this summary."""
        if self._rest or self._bytes != summary.size_bytes or self._entries != summary.entries:
            raise CorruptFile(self._name, self._bytes, "the file is not as long as its header says")
        if self._digest.digest() != summary.digest:
            raise CorruptFile(self._name, 0, "the file differs from its digest")
