"""Digests of what a replica holds of neighbouring ranges of tokens, equal where the content is equal.

Invariant: a digest is of the rows that are left once what may be purged is gone, of their places and of what
is there, as one fragment of each would hold it; so it depends neither on how content is fragmented nor on
which rows were looked at together. With numpy, rows of one fragment that share a form go in as they are
stored; without it every row is merged alone, and the digests are the same.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import xxhash

from lockstep.scans.scan_table import ScanTable
from lockstep.scans.telling import LENGTH
from lockstep.storage.reading import WholeFold
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_rows, encode_header, encode_row
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.storage.rows.visible import deletion_left, ranges_left, row_left
from lockstep.storage.store import Pair
from lockstep.values.tokens import Range

if TYPE_CHECKING:
    from lockstep.scans.stored_rows import StoredRows

#: Fewer are not worth looking at together.
_TOGETHER_MIN: Final = 16


def parts(whole: Range, count: int) -> tuple[Range, ...]:
    """`count` neighbouring ranges that cover the whole, of equal width but for one token."""
    width = whole.right - whole.left
    bounds = [whole.left + width * at // count for at in range(count + 1)]
    return tuple(Range(bounds[at], bounds[at + 1]) for at in range(count))


def widths_of(table: ScanTable) -> dict[int, int]:
    """Of the columns whose values have one length, by their ids."""
    widths = {column.id: table.kinds[column.name].fixed_bytes or 0 for column in table.table.columns}
    return {column: width for column, width in widths.items() if width}


class _Bucket:
    """Of one range: hashes of places, of how long each is, and of what is there."""

    __slots__ = ("hashes", "rows")

    def __init__(self) -> None:
        self.hashes = (xxhash.xxh3_128(), xxhash.xxh3_128(), xxhash.xxh3_128())
        self.rows = 0

    def add(self, places: Any, lengths: Any, contents: Any, rows: int) -> None:
        for one, data in zip(self.hashes, (places, lengths, contents), strict=True):
            one.update(data)
        self.rows += rows

    def digest(self) -> bytes:
        return xxhash.xxh3_128_digest(b"".join([one.digest() for one in self.hashes]))


def _looked_at_together(rights: Sequence[int], widths: dict[int, int]) -> StoredRows | None:
    """None without numpy. It is loaded for digests alone: its 12 MB are not needed to administer a node."""
    try:
        from lockstep.scans.stored_rows import StoredRows
    except ImportError:
        return None
    return StoredRows(rights, widths)


class BucketDigests:
    """Give it the pairs of `buckets`, sorted and adjacent, in key order with `feed`, then `finish`.

    `before_s`: what was dead before that counts as gone. `widths`: see `row_shapes`. `together` False: every
    row is merged alone.
    """

    def __init__(
        self, buckets: Sequence[Range], before_s: int, widths: dict[int, int], *, together: bool = True
    ) -> None:
        self._rights = [bucket.right for bucket in buckets]
        self._buckets = [_Bucket() for _ in buckets]
        self._before_s = before_s
        self._stored = _looked_at_together(self._rights, widths) if together else None
        self._held: list[Pair] = []
        self._fold: WholeFold | None = None
        self._has_head = False
        #: Rows that were merged alone.
        self.merged_rows = 0

    def feed(self, pairs: Sequence[Pair]) -> None:
        """The last row is held back: more of it may follow."""
        if not pairs:
            return
        self._held = [*self._held, *pairs]
        place = self._held[-1][0][: -keys.WRITE_BYTES]
        at = bisect.bisect_left(self._held, place, key=operator.itemgetter(0))
        ready, self._held = self._held[:at], self._held[at:]
        self._read(ready)

    def finish(self) -> list[tuple[bytes, int]]:
        """Digest and rows of each bucket."""
        ready, self._held = self._held, []
        self._read(ready)
        self._close()
        return [(one.digest(), one.rows) for one in self._buckets]

    # -- portions -------------------------------------------------------------------------------------

    def _read(self, pairs: Sequence[Pair]) -> None:
        """Whole rows; partition by partition where these have more than rows."""
        at = 0
        while at < len(pairs):
            if self._fold is None:
                at = self._rows_from(pairs, at)
                continue
            end = bisect.bisect_left(pairs, self._fold.end, lo=at, key=operator.itemgetter(0))
            self._folded(self._fold, pairs[at:end])
            at = end
            if at < len(pairs):
                self._close()

    def _rows_from(self, pairs: Sequence[Pair], at: int) -> int:
        """Look at rows together up to where a partition begins that has more than those; where that is."""
        stored = self._stored
        if stored is not None and len(pairs) - at >= _TOGETHER_MIN:
            portion = stored.portion(pairs[at:] if at else pairs)
            if portion.count >= min(_TOGETHER_MIN, len(pairs) - at):
                for first, end in portion.rows_alone():
                    self.merged_rows += 1
                    portion.put(first, end, self._left(portion.pairs[first:end]))
                for number, places, lengths, contents, rows in portion.by_bucket():
                    self._buckets[number].add(places, lengths, contents, rows)
                return at + portion.count
        token, key, prefix = keys.split_partition(pairs[at][0])
        self._fold, self._has_head = WholeFold(token, key, prefix), False
        return at

    def _left(self, pairs: Sequence[Pair]) -> bytes | None:
        """What is left of a row."""
        _, _, prefix = keys.split_partition(pairs[0][0])
        row = merge_rows(decode_rows(pairs, len(prefix) + 1))
        left = None if row is None else row_left(row, self._before_s)
        return None if left is None else encode_row(left)

    # -- one by one -----------------------------------------------------------------------------------

    def _folded(self, fold: WholeFold, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            fold.add(pair)
        fold.finish()
        bucket = self._bucket_of(fold)
        for row in fold.taken():
            self._head(fold)
            self.merged_rows += 1
            left = row_left(row, self._before_s)
            if left is not None:
                place = keys.row_place(fold.prefix, row.clustering)
                bucket.add(place, LENGTH.pack(len(place)), encode_row(left), 1)

    def _head(self, fold: WholeFold) -> None:
        """What is no row, once: it comes before the rows."""
        if self._has_head:
            return
        self._has_head = True
        bucket, head = self._bucket_of(fold), fold.head()
        deletion = deletion_left(head.deletion, self._before_s)
        ranges = ranges_left(head.range_deletions, self._before_s)
        static = None if head.static is None else row_left(head.static, self._before_s)
        if deletion is not None or ranges:
            place = keys.head_place(fold.prefix, keys.KIND_HEADER)
            bucket.add(place, LENGTH.pack(len(place)), encode_header(deletion, ranges), 0)
        if static is not None:
            place = keys.head_place(fold.prefix, keys.KIND_STATIC)
            bucket.add(place, LENGTH.pack(len(place)), encode_row(static), 0)

    def _bucket_of(self, fold: WholeFold) -> _Bucket:
        return self._buckets[bisect.bisect_left(self._rights, fold.token)]

    def _close(self) -> None:
        fold, self._fold = self._fold, None
        if fold is not None:
            self._head(fold)
