"""How much a range holds as it is streamed, told from its first pairs.

Streams are table files: blocks of pairs, compressed one by one where that saves something, with a filter of
keys and an index. Invariant: the pairs are counted exactly for a range of at most `pairs_max`. Beyond that
what was seen is scaled by how far through the range's tokens it reaches, which partitions spread evenly;
nothing is read to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import lz4.block

from lockstep.storage import keys
from lockstep.storage.rocks_runs import shrinks
from lockstep.storage.store import Pair, Store
from lockstep.values.tokens import Range

#: Of the library's table files.
_BLOCK_BYTES: Final = 4096
#: A block that saves less is kept as it is.
_WORTH_SAVING: Final = 1 / 8
#: Properties, footer and the first entries of index and filter.
_FILE_BYTES: Final = 1100
#: Ten bits of the filter, and the beginning of an index entry.
_PAIR_BYTES: Final = 1.5
#: Blocks that are compressed to see what that saves; so many pairs say it of the rest.
_SAMPLE_BLOCKS: Final = 8


def estimated_bytes(store: Store, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]:
    """(bytes, pairs looked at) of a table's range as one file; nothing for one without pairs."""
    lower, upper = keys.token_bounds(table_id, tokens)
    seen = size = 0
    sample: list[Pair] = []
    last = b""
    for key, value in store.scan(lower, upper):
        if seen >= pairs_max:
            reached = keys.split_partition(last)[0]
            return _FILE_BYTES + _scaled(_packed(size, seen, sample), reached, tokens), seen
        seen += 1
        if size < _SAMPLE_BLOCKS * _BLOCK_BYTES:
            sample.append((key, value))
        size += len(key) + len(value)
        last = key
    return (_FILE_BYTES + _packed(size, seen, sample) if seen else 0), seen


def _packed(size: int, pairs: int, sample: Sequence[Pair]) -> int:
    """Bytes in a file of pairs of `size` in all, of which `sample` are the first."""
    raw = packed = 0
    for block in _blocks(sample) if shrinks(sample) else ():
        shrunk = len(lz4.block.compress(block, store_size=False))
        raw += len(block)
        packed += shrunk if shrunk <= len(block) * (1 - _WORTH_SAVING) else len(block)
    return int(size * (packed / raw if raw else 1) + pairs * _PAIR_BYTES)


def _blocks(sample: Sequence[Pair]) -> Iterator[bytes]:
    """As a file has them: one ends with the pair that fills it."""
    pairs: list[bytes] = []
    size = 0
    for key, value in sample:
        pairs += (key, value)
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield b"".join(pairs)
            pairs, size = [], 0
    if pairs:
        yield b"".join(pairs)


def _scaled(size: int, reached: int, tokens: Range) -> int:
    """`size` bytes end at token `reached`; at least what was seen."""
    return size * (tokens.right - tokens.left) // max(1, reached - tokens.left)
