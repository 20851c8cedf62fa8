"""Which parts of tables are unchanged since a repair made them equal on all their replicas, and digests of
ranges of a table: equal on replicas with equal content, however fragmented.

Tokens fall into BUCKETS equal parts.

Invariant: A bucket's bit is taken back in the same batch as anything that is written to it, and durably
before a file is taken in; it is set only when a repair of all replicas ended well and nothing but that repair
wrote to the bucket since before its digest was taken. So a part whose bits are set on all its replicas is
equal on them, up to what may be purged. All leaves are of one instant. What may be purged before `before_s`
counts as gone, so that a replica that has purged it and one that has not are equal. Of a partition only some
rows are held at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.reading import WholeFold
from lockstep.storage.rows import keys
from lockstep.storage.rows.reconcile import is_empty
from lockstep.storage.rows.visible import partition_left, row_left
from lockstep.storage.store import Family, Operation, Store, StoreSnapshot
from lockstep.values import codec
from lockstep.values.hash_tree import LEAF_BYTES
from lockstep.values.limits import BACKGROUND_FRAGMENTS_PER_TURN, REPAIR_CHANGED_RANGES_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

BUCKETS: Final = 1 << 16
_SHIFT: Final = 64 - 16
_SEGMENT_BUCKETS: Final = 1024
_SEGMENT_BYTES: Final = _SEGMENT_BUCKETS // 8
_NO_BUCKET: Final = bytes(_SEGMENT_BYTES)
_BIAS: Final = 1 << 63
_FAMILY: Final = Family.REPAIR.value


def bucket_of(token: int) -> int:
    return (token + _BIAS) >> _SHIFT


def _range_of(first: int, last: int) -> Range:
    """Tokens of buckets `first` to `last`; the bucket of the lowest token has it too, which no key has."""
    left = max((first << _SHIFT) - _BIAS - 1, TOKEN_MIN)
    return Range(left, min(((last + 1) << _SHIFT) - _BIAS - 1, TOKEN_MAX))


def _buckets_inside(range_: Range) -> tuple[int, int]:
    """First and last bucket that lie in the range whole; when none does, the last is before the first."""
    first = 0 if range_.left == TOKEN_MIN else bucket_of(range_.left + 1)
    if range_.left != TOKEN_MIN and (range_.left + 1 + _BIAS) & ((1 << _SHIFT) - 1):
        first += 1
    last = bucket_of(range_.right)
    if range_.right != TOKEN_MAX and (range_.right + 1 + _BIAS) & ((1 << _SHIFT) - 1):
        last -= 1
    return first, last


def _mask(first: int, last: int) -> int:
    """Buckets `first` to `last`; none when the last is before the first."""
    return ((1 << (last - first + 1)) - 1) << first if first <= last else 0


class _Bits:
    """One bit a bucket. What is done to many is done to one number, for nothing else runs meanwhile."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content = bytearray(BUCKETS // 8)

    def has(self, bucket: int) -> int:
        return self.content[bucket >> 3] & (1 << (bucket & 7))

    def put(self, bucket: int) -> None:
        self.content[bucket >> 3] |= 1 << (bucket & 7)

    def take(self, bucket: int) -> None:
        self.content[bucket >> 3] &= ~(1 << (bucket & 7))

    def number(self) -> int:
        """All at once: bit n is bucket n."""
        return int.from_bytes(self.content, "little")

    def put_all(self, mask: int) -> None:
        self.content[:] = (self.number() | mask).to_bytes(BUCKETS // 8, "little")

    def take_all(self, mask: int) -> None:
        self.content[:] = (self.number() & ~mask).to_bytes(BUCKETS // 8, "little")

    def segment(self, number: int) -> bytes:
        return bytes(self.content[number * _SEGMENT_BYTES : (number + 1) * _SEGMENT_BYTES])


def _segments_of(mask: int) -> Iterator[int]:
    """Those in which the mask has a bucket, in order."""
    content = mask.to_bytes(BUCKETS // 8, "little")
    for number in range(BUCKETS // _SEGMENT_BUCKETS):
        if content[number * _SEGMENT_BYTES : (number + 1) * _SEGMENT_BYTES] != _NO_BUCKET:
            yield number


class Unchanged:
    def __init__(self, store: Store) -> None:
        #: table -> which of its buckets are unchanged; tables without any are absent.
        self._bits: dict[int, _Bits] = {}
        #: table -> session of a repair -> buckets written to since it looked, but by that repair.
        self._touched: dict[int, dict[str, _Bits]] = {}
        #: (table, session) -> buckets that were looked at: asking once more for them starts nothing anew.
        self._watched: dict[tuple[int, str], _Bits] = {}
        for key, value in store.scan(_FAMILY, bytes([_FAMILY[0] + 1])):
            table_id, segment = int.from_bytes(key[1:5], "big"), key[5]
            bits = self._bits.setdefault(table_id, _Bits())
            bits.content[segment * _SEGMENT_BYTES : (segment + 1) * _SEGMENT_BYTES] = value

    # -- what changes ---------------------------------------------------------------------------------

    def changed(self, table_id: int, token: int, *, by_repair: bool = False) -> Sequence[Operation]:
        """Something is about to be written there: what must join its batch."""
        if not by_repair and table_id in self._touched:
            for touched in self._touched[table_id].values():
                touched.put(bucket_of(token))
        bits = self._bits.get(table_id)
        if bits is None:
            return ()
        bucket = bucket_of(token)
        if not bits.has(bucket):
            return ()
        bits.take(bucket)
        return (self._stored(table_id, bits, bucket // _SEGMENT_BUCKETS),)

    def changed_between(self, lower: bytes, upper: bytes) -> Sequence[Operation]:
        """As `changed`, of all that is between two keys of fragments of one table."""
        table_id = int.from_bytes(lower[1:5], "big")
        first = int.from_bytes(lower[5:13], "big") >> _SHIFT if len(lower) >= 13 else 0
        is_whole = len(upper) < 13 or upper[1:5] != lower[1:5]
        last = BUCKETS - 1 if is_whole else int.from_bytes(upper[5:13], "big") >> _SHIFT
        between = _mask(first, last)
        for touched in self._touched.get(table_id, {}).values():
            touched.put_all(between)
        bits = self._bits.get(table_id)
        if bits is None or not (taken := bits.number() & between):
            return ()
        bits.take_all(taken)
        return tuple(self._stored(table_id, bits, segment) for segment in _segments_of(taken))

    def marked(self, table_ids: Iterable[int]) -> set[int]:
        """Those of the tables of which anything is marked or watched."""
        return {*self._bits, *self._touched}.intersection(table_ids)

    def _stored(self, table_id: int, bits: _Bits, segment: int) -> Operation:
        key = _FAMILY + table_id.to_bytes(4, "big") + bytes([segment])
        return ("put", key, bits.segment(segment))

    # -- what repairs ask and say -----------------------------------------------------------------------

    def watch(self, session_id: str, table_id: int, ranges: Sequence[Range]) -> None:
        """From now on note what is written to these ranges, until `forget`. Only the first call counts for a
        bucket: a request that is delivered again may come after digests were taken."""
        touched = self._touched.setdefault(table_id, {}).setdefault(session_id, _Bits())
        watched = self._watched.setdefault((table_id, session_id), _Bits())
        asked = 0
        for range_ in ranges:
            asked |= _mask(bucket_of(range_.left + 1), bucket_of(range_.right))
        new = asked & ~watched.number()
        watched.put_all(new)
        touched.take_all(new)

    def parts(self, table_id: int, ranges: Sequence[Range]) -> tuple[Range, ...]:
        """What of the ranges may have changed; at most about REPAIR_CHANGED_RANGES_MAX pieces."""
        bits = self._bits.get(table_id)
        if bits is None:
            return tuple(ranges)
        drawn = f"{bits.number():0{BUCKETS}b}"[::-1]
        found = [list(_changed(drawn, range_)) for range_ in ranges]
        while sum(map(len, found)) > max(REPAIR_CHANGED_RANGES_MAX, len(ranges)):
            # Within a range alone: what lies between two of them is with other replicas.
            found = [[_joined(of[at : at + 2]) for at in range(0, len(of), 2)] for of in found]
        return tuple(piece for of in found for piece in of)

    def equal(self, session_id: str, table_id: int, ranges: Sequence[Range]) -> Sequence[Operation]:
        """The repair of a session made the ranges equal: what to write, at once."""
        touched = self._touched.get(table_id, {}).get(session_id)
        if touched is None:
            return ()
        bits = self._bits.setdefault(table_id, _Bits())
        inside = 0
        for range_ in ranges:
            inside |= _mask(*_buckets_inside(range_))
        new = inside & ~touched.number() & ~bits.number()
        bits.put_all(new)
        return tuple(self._stored(table_id, bits, segment) for segment in _segments_of(new))

    def forget(self, session_open: Callable[[str], bool]) -> None:
        """Sessions that are not open any more need not be watched for."""
        self._watched = {of: bits for of, bits in self._watched.items() if session_open(of[1])}
        for table_id in list(self._touched):
            kept = {one: bits for one, bits in self._touched[table_id].items() if session_open(one)}
            if kept:
                self._touched[table_id] = kept
            else:
                del self._touched[table_id]

    def validate(self) -> None:
        for table_id, sessions in self._touched.items():
            assert sessions, f"nobody watches table {table_id}"
            assert all((table_id, one) in self._watched for one in sessions), "what is noted is watched"


def _changed(drawn: str, range_: Range) -> Iterator[Range]:
    """Runs of buckets without their bit, cut to the range; `drawn` has a 0 or 1 for each bucket."""
    first, behind = bucket_of(range_.left + 1), bucket_of(range_.right) + 1
    begin = drawn.find("0", first, behind)
    while begin >= 0:
        end = drawn.find("1", begin, behind)
        if end < 0:
            end = behind
        piece = _range_of(begin, end - 1).intersection(range_)
        assert piece is not None, "each bucket has a part of the range"
        yield piece
        begin = drawn.find("0", end, behind)


def _joined(pair: Sequence[Range]) -> Range:
    return Range(pair[0].left, pair[-1].right)


async def leaf_digests(
    view: StoreSnapshot, table_id: int, leaves: Sequence[Range], before_s: int, pace: CooperativeYield
) -> tuple[bytes, tuple[int, ...]]:
    """One digest of LEAF_BYTES a leaf, in order, joined; and how many rows each was made of. Leaves are
    sorted and disjoint."""
    hashes = [hashlib.blake2b(digest_size=LEAF_BYTES) for _ in leaves]
    counts = [0] * len(leaves)
    for first, behind in _runs(leaves):
        at = first
        span = Range(leaves[first].left, leaves[behind - 1].right)
        hashed: _Hashed | None = None
        for seen, pair in enumerate(view.scan(*keys.token_bounds(table_id, span)), start=1):
            if hashed is None or pair[0] >= hashed.fold.end:
                if hashed is not None:
                    counts[at] += hashed.end()
                fold = WholeFold(*keys.split_partition(pair[0]))
                while fold.token > leaves[at].right:
                    at += 1
                hashed = _Hashed(fold, hashes[at], before_s)
            hashed.fold.add(pair)
            if not seen % BACKGROUND_FRAGMENTS_PER_TURN:
                hashed.rows()
                await pace.turn()
        if hashed is not None:
            counts[at] += hashed.end()
        await pace.turn()
    return b"".join([one.digest() for one in hashes]), tuple(counts)


class _Hashed:
    """A partition on its way into a hash: what is no row, if anything is left of it all, then each row."""

    def __init__(self, fold: WholeFold, into: hashlib.blake2b, before_s: int) -> None:
        self.fold = fold
        self._into = into
        self._before_s = before_s
        self._has_head = False
        self._count = 0

    def rows(self) -> None:
        """Those that are finished by now."""
        for row in self.fold.taken():
            left = row_left(row, self._before_s)
            if left is not None:
                self._head()
                self._count += 1
                self._into.update(codec.encode(left))

    def end(self) -> int:
        """Finish; how many rows went in."""
        self.fold.finish()
        self.rows()
        if not is_empty(partition_left(self.fold.head(), self._before_s)):
            self._head()
        return self._count

    def _head(self) -> None:
        if not self._has_head:
            self._has_head = True
            self._into.update(codec.encode(partition_left(self.fold.head(), self._before_s)))


def _runs(leaves: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of leaves that touch: one scan does for them."""
    first = 0
    for number in range(1, len(leaves) + 1):
        if number == len(leaves) or leaves[number].left != leaves[number - 1].right:
            yield first, number
            first = number
