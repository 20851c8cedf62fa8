"""An ordered byte map with free snapshots, for the model store.

Invariant: chunks are tuples and never change, so whoever holds the list of chunks holds a snapshot; the
list itself is copied before the first change after a view was taken. Chunks are non-empty and ascending.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from lockstep.storage.store import Pair

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
