"""How much a range holds, told from its first pairs.

Invariant: exact for a range of at most `pairs_max` pairs. Beyond that the bytes seen are scaled by how far
through the range's tokens they reach, which partitions spread evenly; nothing is read to its end.
"""

from __future__ import annotations

from lockstep.storage import keys
from lockstep.storage.store import Store
from lockstep.values.tokens import Range


def estimated_bytes(store: Store, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]:
    """(bytes of keys and values, pairs looked at) of a table's range; uncompressed, as they are streamed."""
    lower, upper = keys.token_bounds(table_id, tokens)
    seen = size = 0
    last = b""
    for key, value in store.scan(lower, upper):
        if seen >= pairs_max:
            return _scaled(size, keys.split_partition(last)[0], tokens), seen
        seen += 1
        size += len(key) + len(value)
        last = key
    return size, seen


def _scaled(size: int, reached: int, tokens: Range) -> int:
    """`size` bytes end at token `reached`; at least what was seen."""
    return size * (tokens.right - tokens.left) // max(1, reached - tokens.left)
