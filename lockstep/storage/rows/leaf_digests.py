"""Digests of ranges of a table: equal on replicas with equal content, however fragmented it is.

Invariant: all leaves are of one instant. What may be purged before `before_s` counts as gone, so that a
replica that has purged it and one that has not are equal. Of a partition only some rows are held at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.reading import WholeFold
from lockstep.storage.rows import keys
from lockstep.storage.rows.reconcile import is_empty
from lockstep.storage.rows.visible import partition_left, row_left
from lockstep.storage.store import StoreSnapshot
from lockstep.values import codec
from lockstep.values.hash_tree import LEAF_BYTES
from lockstep.values.limits import BACKGROUND_FRAGMENTS_PER_TURN
from lockstep.values.tokens import Range


async def leaf_digests(
    view: StoreSnapshot, table_id: int, leaves: Sequence[Range], before_s: int, pace: CooperativeYield
) -> bytes:
    """One digest of LEAF_BYTES a leaf, in order, joined. Leaves are sorted and disjoint."""
    hashes = [hashlib.blake2b(digest_size=LEAF_BYTES) for _ in leaves]
    for first, behind in _runs(leaves):
        at = first
        span = Range(leaves[first].left, leaves[behind - 1].right)
        hashed: _Hashed | None = None
        for seen, pair in enumerate(view.scan(*keys.token_bounds(table_id, span)), start=1):
            if hashed is None or pair[0] >= hashed.fold.end:
                if hashed is not None:
                    hashed.end()
                fold = WholeFold(*keys.split_partition(pair[0]))
                while fold.token > leaves[at].right:
                    at += 1
                hashed = _Hashed(fold, hashes[at], before_s)
            hashed.fold.add(pair)
            if not seen % BACKGROUND_FRAGMENTS_PER_TURN:
                hashed.rows()
                await pace.turn()
        if hashed is not None:
            hashed.end()
        await pace.turn()
    return b"".join([one.digest() for one in hashes])


class _Hashed:
    """A partition on its way into a hash: what is no row, if anything is left of it all, then each row."""

    def __init__(self, fold: WholeFold, into: hashlib.blake2b, before_s: int) -> None:
        self.fold = fold
        self._into = into
        self._before_s = before_s
        self._has_head = False

    def rows(self) -> None:
        """Those that are finished by now."""
        for row in self.fold.taken():
            left = row_left(row, self._before_s)
            if left is not None:
                self._head()
                self._into.update(codec.encode(left))

    def end(self) -> None:
        self.fold.finish()
        self.rows()
        if not is_empty(partition_left(self.fold.head(), self._before_s)):
            self._head()

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
