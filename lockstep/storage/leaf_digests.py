"""Digests of ranges of a table: equal on replicas with equal content, however fragmented it is.

Invariant: all leaves are of one instant. What may be purged before `before_s` counts as gone, so that a
replica that has purged it and one that has not are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from lockstep.storage import keys
from lockstep.storage.pace import Pace
from lockstep.storage.purgeable import partition_left
from lockstep.storage.reading import partitions_between
from lockstep.storage.reconcile import is_empty
from lockstep.storage.store import StoreSnapshot
from lockstep.values import codec
from lockstep.values.limits import BACKGROUND_FRAGMENTS_PER_TURN
from lockstep.values.merkle import LEAF_BYTES
from lockstep.values.tokens import Range


async def leaf_digests(
    view: StoreSnapshot, table_id: int, leaves: Sequence[Range], before_s: int, pace: Pace
) -> bytes:
    """One digest of LEAF_BYTES a leaf, in order, joined. Leaves are sorted and disjoint."""
    hashes = [hashlib.blake2b(digest_size=LEAF_BYTES) for _ in leaves]
    for first, behind in _runs(leaves):
        at = first
        span = Range(leaves[first].left, leaves[behind - 1].right)
        lower, upper = keys.token_bounds(table_id, span)
        for partition in partitions_between(view, lower, upper, BACKGROUND_FRAGMENTS_PER_TURN):
            if partition is None:
                await pace.turn()
                continue
            while partition.token > leaves[at].right:
                at += 1
            left = partition_left(partition, before_s)
            if not is_empty(left):
                hashes[at].update(codec.encode(left))
        await pace.turn()
    return b"".join([one.digest() for one in hashes])


def _runs(leaves: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of leaves that touch: one scan does for them."""
    first = 0
    for number in range(1, len(leaves) + 1):
        if number == len(leaves) or leaves[number].left != leaves[number - 1].right:
            yield first, number
            first = number
