"""Sorted files of one partition of a job: a file a range of the ring, as a store takes it in; and rows that
wait on disk until all of their part of the ring are there.

Invariant: keys of a file ascend strictly and their tokens lie in its range. Rows of one place that are
written at once are one fragment, what a store's reads would make of them. Files of one partition overlap only
where one slice of the ring has more rows than a task has room for: a store takes in files that overlap
nothing as they are, and writes others once more.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import rocksdict
import xxhash

from lockstep.replica.load_messages import LoadFile
from lockstep.spark.loads.encoding import Encoded
from lockstep.storage.rocks.rocks_runs import TableFile
from lockstep.storage.rows.fragments import decode_row, encode_row
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.values.node_limits import LOAD_FILE_BYTES_MAX

#: Pairs that are handed to the library at once.
_STEP: Final = 16_384
_READ_BYTES: Final = 1024 * 1024
#: Files that a task has open at once; so many times what it gathers has one file a range.
SLICES_MAX: Final = 64
_PUT_ASIDE: Final = pa.schema([("tokens", pa.int64()), ("keys", pa.binary()), ("values", pa.binary())])


class Slices:
    """Encoded rows on disk, by slices of the ring."""

    def __init__(self, directory: str, ranges: Sequence[tuple[int, int]]) -> None:
        """`ranges` cover the ring, ascending."""
        self._directory = directory
        self._rights = np.array(slices_of(ranges), dtype=np.int64)
        self._writers: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._writers)

    def add(self, parts: Sequence[Encoded]) -> None:
        tokens, store_keys, values = _joined(parts)
        places = np.searchsorted(self._rights, tokens, side="left").astype(np.uint8)
        order = np.argsort(places, kind="stable")
        rows = pa.record_batch([pa.array(tokens), store_keys, values], schema=_PUT_ASIDE).take(order)
        bounds = [0, *np.cumsum(np.bincount(places, minlength=len(self._rights))).tolist()]
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if begin < end:
                self._writer(number).write_batch(rows.slice(begin, end - begin))

    def _writer(self, number: int) -> Any:
        if number not in self._writers:
            self._writers[number] = pa.ipc.new_stream(self._path(number), _PUT_ASIDE)
        return self._writers[number]

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"slice-{number}")

    def taken(self, bytes_max: int) -> Iterator[list[Encoded]]:
        """All rows, those of a slice together unless they are more than that; their files are removed."""
        for number in sorted(self._writers):
            self._writers[number].close()
            path, found, size = self._path(number), list[Encoded](), 0
            with pa.OSFile(path) as source, pa.ipc.open_stream(source) as batches:
                for batch in batches:
                    tokens, store_keys, values = batch.columns
                    found.append(Encoded(tokens.to_numpy(), store_keys, values))
                    size += batch.nbytes
                    if size >= bytes_max:
                        yield found
                        found, size = [], 0
            os.remove(path)
            if found:
                yield found
        self._writers = {}

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def slices_of(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """The last tokens of slices, ascending: of some ranges each, or of parts of one where these are few."""
    rights = [right for _, right in ranges]
    if len(rights) > SLICES_MAX // 2:
        each = -(-len(rights) // SLICES_MAX)
        return [*rights[each - 1 : -1 : each], rights[-1]]
    parts = SLICES_MAX // len(rights)
    found: list[int] = []
    for left, right in ranges:
        width = (right - left) // parts
        found += [left + width * number for number in range(1, parts) if width] + [right]
    return found


class SortedFiles:
    """Files of one attempt at one partition, in a directory of its own."""

    def __init__(
        self, directory: str, partition: int, attempt: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """`ranges` cover the ring, ascending."""
        self._directory = directory
        self._partition = partition
        self._attempt = attempt
        self._ranges = ranges
        self._rights = np.array([right for _, right in ranges], dtype=np.int64)
        self._number = 0

    def write(self, parts: Sequence[Encoded]) -> Iterator[tuple[LoadFile, str]]:
        """The files of what was encoded, each with its path."""
        tokens, store_keys, values = _joined(parts)
        order, is_distinct = _order(tokens, store_keys)
        tokens = tokens[order]
        places = np.searchsorted(self._rights, tokens, side="left")
        cuts = np.flatnonzero(np.diff(places)) + 1
        bounds = [0, *cuts.tolist(), len(tokens)]
        for begin, end in itertools.pairwise(bounds):
            if begin < end:
                chosen = pa.array(order[begin:end])
                told = store_keys.take(chosen).to_pylist(), values.take(chosen).to_pylist()
                pairs = list(zip(*told, strict=True)) if is_distinct else distinct(*told)
                yield self.file_of(pairs, *self._ranges[int(places[begin])])

    def file_of(self, pairs: Sequence[tuple[bytes, bytes]], left: int, right: int) -> tuple[LoadFile, str]:
        """A file of these pairs, whose tokens are all in (left, right]."""
        number, self._number = self._number, self._number + 1
        path = os.path.join(self._directory, f"{self._partition}-{self._attempt}-{number}")
        table = TableFile(rocksdict, path)
        for at in range(0, len(pairs), _STEP):
            table.add(pairs[at : at + _STEP])
        table.complete()
        size = os.path.getsize(path)
        assert size <= LOAD_FILE_BYTES_MAX, "a task gathers less than a file may have"
        made = LoadFile(
            self._partition,
            self._attempt,
            number,
            left,
            right,
            len(pairs),
            size,
            pairs[0][0],
            pairs[-1][0],
            digest_of(path),
        )
        return made, path


def _joined(parts: Sequence[Encoded]) -> tuple[Any, pa.BinaryArray, pa.BinaryArray]:
    """Tokens, store keys and values of all of them."""
    tokens = np.concatenate([part.tokens for part in parts])
    return (
        tokens,
        _concatenated([part.keys for part in parts]),
        _concatenated([part.values for part in parts]),
    )


def _concatenated(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(list(arrays))


def _order(tokens: Any, store_keys: pa.Array) -> tuple[Any, bool]:
    """Indexes in the order of the keys, and whether it is sure that no two are equal: tokens decide, but for
    rows of one partition."""
    order = np.argsort(tokens, kind="stable")
    ascending = tokens[order]
    if bool((ascending[1:] == ascending[:-1]).any()):
        return pc.sort_indices(store_keys).to_numpy(zero_copy_only=False), False
    return order, True


def distinct(store_keys: list[bytes], values: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Pairs of ascending keys, those of one key made one."""
    if len(set(store_keys)) == len(store_keys):
        return list(zip(store_keys, values, strict=True))
    found: list[tuple[bytes, bytes]] = []
    for key, value in zip(store_keys, values, strict=True):
        if not found or found[-1][0] != key:
            found.append((key, value))
        elif found[-1][1] != value:
            rows = [decode_row(key, one, b"") for one in (found[-1][1], value)]
            merged = merge_rows(rows)
            assert merged is not None, "rows that were written are not nothing"
            found[-1] = key, encode_row(merged)
    return found


def pairs_of(path: str, scratch: str) -> list[tuple[bytes, bytes]]:
    """What a sorted file holds: read by a store of its own, for the library opens files of tables only so.
    `scratch` is its directory, which whoever asks removes."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    database = rocksdict.Rdict(scratch, options)
    try:
        database.ingest_external_file([path])
        items: Any = database.items()
        found = list(items)
        del items  # It holds the store open.
        return found
    finally:
        database.close()


def cut(
    pairs: Sequence[tuple[bytes, bytes]], bounds: Sequence[tuple[bytes, bytes]]
) -> Iterator[tuple[int, Sequence[tuple[bytes, bytes]]]]:
    """Pairs by ranges of store keys, (number of the range, its pairs), where there are some."""
    for number, (lower, upper) in enumerate(bounds):
        first, last = bisect_left(pairs, (lower,)), bisect_left(pairs, (upper,))
        if first < last:
            yield number, pairs[first:last]


def digest_of(path: str) -> bytes:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.digest()
