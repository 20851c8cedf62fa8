"""Generations of change data capture: from which moment on which streams take the changes of which ranges.

A generation has one stream for each range of the ring as it was to be when it was made. Streams are not kept:
they follow from the tokens and the id, and are computed when read. Invariant: generations ascend by their
timestamps; writes use published ones only, and a published timestamp never changes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, Protocol, TypeVar

import msgspec

from lockstep.metadata.part import Part, Parts, tuple_part
from lockstep.values.hash_tree import blake
from lockstep.values.limits import CDC_LEEWAY_MS
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

STREAM_BYTES = 16
#: Milliseconds from the beginning of the Gregorian calendar, where UUIDs of version 1 begin, to 1970.
_UUID_BEGINS_MS = 12_219_292_800_000
_TICKS_PER_MS = 10_000
#: The lower half of a stream id: 38 bits of its generation, 22 bits of its place in it, the format's version.
_PLACE_BITS, _VERSION_BITS, _VERSION = 22, 4, 1
_GENERATION_BITS = 64 - _PLACE_BITS - _VERSION_BITS


class Generation(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`id` is a UUID of version 1 as text, `tokens` the ends of its ranges, packed and ascending.

    `operation_id` is the operation that it was made for, 0 the founding. `committed_epoch` made it.
    `published_epoch` is 0 until every node that could acknowledge a write knows it; until then
    `timestamp_ms`, from which on writes are its own, may still be moved further into the future.
    """

    timestamp_ms: int
    id: str
    operation_id: int
    committed_epoch: int
    tokens: bytes
    published_epoch: int = 0

    @property
    def is_published(self) -> bool:
        return self.published_epoch > 0

    @property
    def count(self) -> int:
        """Of its ranges, and so of its streams."""
        return len(self.tokens) // 8

    def range_ends(self) -> array[int]:
        """The tokens, unpacked: some ms for hundreds of thousands."""
        return unpacked(self.tokens)

    def stream_for(self, token: int) -> bytes:
        """The stream of the range that a token lies in; the first range begins behind the last one's end."""
        place = bisect_left(self._ends, token) % self.count
        return stream_id(self._ends[place], place, self._mark)

    @cached_property
    def _ends(self) -> array[int]:
        return self.range_ends()

    def streams(self, low: int = TOKEN_MIN, high: int = TOKEN_MAX) -> Iterator[tuple[int, bytes]]:
        """(end of the range, stream id) in the order of the ring, of the ends from `low` to `high`."""
        mark, ends = self._mark, self.range_ends()
        for place in range(bisect_left(ends, low), bisect_right(ends, high)):
            yield ends[place], stream_id(ends[place], place, mark)

    @cached_property
    def _mark(self) -> int:
        return int.from_bytes(blake(self.id.encode())[:8], "big") >> 64 - _GENERATION_BITS


def stream_id(token: int, place: int, mark: int) -> bytes:
    """`mark`: what tells streams of one token apart, `place` the stream's in its generation."""
    lower = mark << _PLACE_BITS | place % (1 << _PLACE_BITS)
    return struct.pack(">qQ", token, lower << _VERSION_BITS | _VERSION)


def packed(tokens: array[int]) -> bytes:
    """Eight bytes a token, big end first: equal on every machine."""
    if sys.byteorder == "big":
        return tokens.tobytes()
    swapped = array("q", tokens)
    swapped.byteswap()
    return swapped.tobytes()


def unpacked(data: bytes) -> array[int]:
    """Inverse of `packed`."""
    tokens = array("q", data)
    if sys.byteorder == "little":
        tokens.byteswap()
    return tokens


def generation_id(cluster_id: str, operation_id: int, epoch: int, timestamp_ms: int) -> str:
    """A UUID of version 1 as text: its time is the timestamp, the rest tells clusters and entries apart."""
    ticks = (timestamp_ms + _UUID_BEGINS_MS) * _TICKS_PER_MS
    assert 0 <= ticks < 1 << 60, "the time of a UUID has sixty bits"
    rest = bytearray(blake(f"{cluster_id}/{operation_id}/{epoch}".encode())[:8])
    rest[0] = rest[0] & 0x3F | 0x80
    # Set in every node part that is no network card's address.
    rest[2] |= 0x01
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF | 0x1000
    return f"{low:08x}-{middle:04x}-{high:04x}-{rest[:2].hex()}-{rest[2:].hex()}"


def first_generation(cluster_id: str, tokens: array[int], at_ms: int, epoch: int) -> Generation:
    """That of a new cluster: nobody writes yet, so it counts at once and is published as it is made."""
    id_ = generation_id(cluster_id, 0, epoch, at_ms)
    return Generation(at_ms, id_, 0, epoch, packed(tokens), epoch)


class Counting(Protocol):
    """Streams that take changes from a time on: a generation's, or a set of those of one table's tablets."""

    @property
    def timestamp_ms(self) -> int: ...

    @property
    def is_published(self) -> bool: ...

    def stream_for(self, token: int) -> bytes: ...


C = TypeVar("C", bound=Counting)


def current(generations: Sequence[C], at_us: int) -> C | None:
    """The published generation that writes of this moment belong to."""
    known = [one for one in generations if one.is_published]
    at = bisect_right(known, at_us, key=lambda one: one.timestamp_ms * 1000)
    return known[at - 1] if at else None


def is_pending(sets: Sequence[Counting], at_us: int) -> bool:
    """Whether a write time is one of streams that are not published, and so of none."""
    for one in reversed(sets):
        if one.is_published:
            return False
        if one.timestamp_ms * 1000 <= at_us:
            return True
    return False


def changed_epoch(generations: Sequence[Generation]) -> int:
    """The epoch that made or published the newest; 0 where there are none."""
    return max((max(one.committed_epoch, one.published_epoch) for one in generations), default=0)


def write_allowed(generations: Sequence[Counting], timestamp_us: int, now_us: int) -> str:
    """Why a change with this timestamp may not be captured by a coordinator whose clock says `now_us`; empty
    when it may.

    Of the future only as much is allowed as generations are known ahead. The past beyond the leeway is
    allowed within the present generation: streams of older ones may have been read to their ends.
    """
    leeway_us = CDC_LEEWAY_MS * 1000
    if timestamp_us > now_us + leeway_us:
        return (
            f"cdc: timestamp {timestamp_us} is more than {CDC_LEEWAY_MS // 1000} s ahead of this server's "
            f"time {now_us}, and which streams will be used then is not known yet"
        )
    found = current(generations, timestamp_us)
    if found is None:
        return f"cdc: no stream generation is known for timestamp {timestamp_us}"
    if timestamp_us <= now_us - leeway_us and found is not current(generations, now_us):
        return (
            f"cdc: timestamp {timestamp_us} is more than {CDC_LEEWAY_MS // 1000} s behind this server's time "
            f"{now_us} and belongs to a stream generation that has been superseded since"
        )
    return ""


def validate(generations: Sequence[Generation]) -> None:
    """Assert what must hold of the generations of any value."""
    stamps = [one.timestamp_ms for one in generations]
    assert stamps == sorted(set(stamps)), "generations ascend by timestamp"
    states = [one.is_published for one in generations]
    assert states == sorted(states, reverse=True), "no generation is published before an older one"
    for one in generations:
        assert one.tokens and len(one.tokens) % 8 == 0, "a generation has whole tokens"


def _validate(now: Parts, before: Parts | None) -> None:
    known: tuple[Generation, ...] = now[GENERATIONS]
    validate(known)


#: Generations of change data capture, oldest first.
GENERATIONS: Final[Part[tuple[Generation, ...]]] = tuple_part("generations", 12, Generation, _validate)
