"""Tokens of many partition keys at once: the ring's function, as `values.tokens` defines it.

Invariant: equal to `token_of` for every key. Keys of one length are hashed together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_BLOCK: Final = 16
_WORD: Final = 8


def tokens_of(keys: pa.BinaryArray) -> Any:
    """Signed 64-bit tokens (numpy) of serialised partition keys, none of them null."""
    lengths = pc.binary_length(keys).to_numpy(zero_copy_only=False)
    found = np.empty(len(keys), dtype=np.int64)
    for length in np.unique(lengths):
        at = np.flatnonzero(lengths == length)
        some = keys if len(at) == len(keys) else keys.take(pa.array(at))
        found[at] = _hashed(octets_of(some, int(length)))
    return found


def octets_of(values: pa.BinaryArray, length: int) -> Any:
    """Values of one length, none of them null, as rows of bytes."""
    if not length or not len(values):
        return np.empty((len(values), length), dtype=np.uint8)
    _, offsets, data = values.buffers()
    first = np.frombuffer(offsets, dtype=np.int32, count=1, offset=4 * values.offset)[0]
    found = np.frombuffer(data, dtype=np.uint8, count=len(values) * length, offset=int(first))
    return found.reshape(len(values), length)


def _rotl(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


def _fmix(value: Any) -> Any:
    value = value ^ (value >> np.uint64(33))
    value = value * np.uint64(0xFF51AFD7ED558CCD)
    value = value ^ (value >> np.uint64(33))
    value = value * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


def _hashed(octets: Any) -> Any:
    """x64-128 Murmur3, first half, seed 0, with the tail's bytes sign-extended."""
    count, length = octets.shape
    h1 = np.zeros(count, dtype=np.uint64)
    h2 = np.zeros(count, dtype=np.uint64)
    blocks = length & ~(_BLOCK - 1)
    for at in range(0, blocks, _BLOCK):
        k1 = np.ascontiguousarray(octets[:, at : at + _WORD]).view("<u8")[:, 0]
        k2 = np.ascontiguousarray(octets[:, at + _WORD : at + _BLOCK]).view("<u8")[:, 0]
        h1 = h1 ^ (_rotl(k1 * _C1, 31) * _C2)
        h1 = (_rotl(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        h2 = h2 ^ (_rotl(k2 * _C2, 33) * _C1)
        h2 = (_rotl(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
    tail = octets[:, blocks:].view(np.int8).astype(np.int64).view(np.uint64)
    k1, k2 = _word(tail[:, :_WORD]), _word(tail[:, _WORD:])
    h2 = h2 ^ (_rotl(k2 * _C2, 33) * _C1)
    h1 = h1 ^ (_rotl(k1 * _C1, 31) * _C2)
    h1, h2 = h1 ^ np.uint64(length), h2 ^ np.uint64(length)
    h1 = h1 + h2
    h2 = h2 + h1
    h1, h2 = _fmix(h1), _fmix(h2)
    tokens = (h1 + h2).view(np.int64)
    # The smallest is no key's token.
    tokens[tokens == np.iinfo(np.int64).min] = np.iinfo(np.int64).max
    return tokens


def _word(tail: Any) -> Any:
    """Bytes, each sign-extended, joined by exclusive or."""
    word = np.zeros(len(tail), dtype=np.uint64)
    for at in range(tail.shape[1]):
        word = word ^ (tail[:, at] << np.uint64(8 * at))
    return word
