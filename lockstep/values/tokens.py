"""Tokens of the Murmur3 ring and ranges of them.

Owns: the token function (equal to the drivers' on every byte string: the tail's bytes are taken as
signed, which plain Murmur3 does not do) and range arithmetic. Invariant: a Range is (left, right],
never wraps, and the whole ring is exactly Range(TOKEN_MIN, TOKEN_MAX); TOKEN_MIN itself is no key's token.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import mmh3
import msgspec

TOKEN_MIN = -(1 << 63)
TOKEN_MAX = (1 << 63) - 1
_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def token_of(key: bytes) -> int:
    """Signed 64-bit token of a serialised partition key.

    The library's hash is used when no byte of the 16-byte tail has its top bit set, for then both
    definitions agree; otherwise the tail is mixed here with its bytes sign-extended.
    """
    tail = key[len(key) & ~15 :]
    token = mmh3.hash64(key, 0)[0] if tail.isascii() else _signed_tail_hash(key)
    return TOKEN_MAX if token == TOKEN_MIN else token


def _rotl(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _fmix(value: int) -> int:
    value ^= value >> 33
    value = (value * 0xFF51AFD7ED558CCD) & _MASK
    value ^= value >> 33
    value = (value * 0xC4CEB9FE1A85EC53) & _MASK
    return value ^ (value >> 33)


def _signed_tail_hash(key: bytes) -> int:
    """x64-128 Murmur3, first half, seed 0, with the tail's bytes sign-extended."""
    blocks = len(key) & ~15
    h1 = h2 = 0
    for at in range(0, blocks, 16):
        k1 = int.from_bytes(key[at : at + 8], "little")
        k2 = int.from_bytes(key[at + 8 : at + 16], "little")
        h1 ^= (_rotl((k1 * _C1) & _MASK, 31) * _C2) & _MASK
        h1 = (((_rotl(h1, 27) + h2) & _MASK) * 5 + 0x52DCE729) & _MASK
        h2 ^= (_rotl((k2 * _C2) & _MASK, 33) * _C1) & _MASK
        h2 = (((_rotl(h2, 31) + h1) & _MASK) * 5 + 0x38495AB5) & _MASK
    tail = key[blocks:]
    k1 = _signed_word(tail[:8])
    k2 = _signed_word(tail[8:])
    h2 ^= (_rotl((k2 * _C2) & _MASK, 33) * _C1) & _MASK
    h1 ^= (_rotl((k1 * _C1) & _MASK, 31) * _C2) & _MASK
    h1 ^= len(key)
    h2 ^= len(key)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _fmix(h1), _fmix(h2)
    h1 = (h1 + h2) & _MASK
    return h1 - (1 << 64) if h1 >> 63 else h1


def _signed_word(part: bytes) -> int:
    word = 0
    for index, byte in enumerate(part):
        signed = byte - 256 if byte > 127 else byte
        word ^= (signed << (8 * index)) & _MASK
    return word


#: Bytes of the token at the beginning of a stream's id.
_TOKEN_BYTES = 8


def stream_token(key: bytes) -> int:
    """The token of a partition of a log of changes: the stream's id begins with it."""
    if len(key) < _TOKEN_BYTES:
        return token_of(key)
    token = max(int.from_bytes(key[:_TOKEN_BYTES], "big", signed=True), TOKEN_MIN + 1)
    assert FULL_RING.contains(token), "a stream lies on the ring"
    return token


class Range(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Tokens t with left < t <= right; left < right always."""

    left: int
    right: int

    def contains(self, token: int) -> bool:
        return self.left < token <= self.right

    def intersects(self, other: Range) -> bool:
        return self.left < other.right and other.left < self.right

    def intersection(self, other: Range) -> Range | None:
        left, right = max(self.left, other.left), min(self.right, other.right)
        return Range(left, right) if left < right else None


FULL_RING = Range(TOKEN_MIN, TOKEN_MAX)


def any_within(tokens: Sequence[int], ranges: Sequence[Range]) -> bool:
    """Whether a token lies in a range or is its left bound; both sorted, the ranges disjoint."""
    at = 0
    for range_ in ranges:
        while at < len(tokens) and tokens[at] < range_.left:
            at += 1
        if at < len(tokens) and tokens[at] <= range_.right:
            return True
    return False


def ranges_between(tokens: Iterable[int]) -> tuple[Range, ...]:
    """The ring cut at each token: sorted, adjacent, covering FULL_RING; no tokens gives the whole ring."""
    cuts = sorted({token for token in tokens if TOKEN_MIN < token < TOKEN_MAX})
    bounds = [TOKEN_MIN, *cuts, TOKEN_MAX]
    assert all(left < right for left, right in itertools.pairwise(bounds)), "no range is empty or wraps"
    return tuple(Range(left, right) for left, right in itertools.pairwise(bounds))
