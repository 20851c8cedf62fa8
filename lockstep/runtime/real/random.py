"""Entropy of the operating system, drawn in bulk.

Invariant: every value comes from os.urandom; nothing is seeded, nothing repeats after a fork, because
a pool belongs to the process that filled it.
"""

from __future__ import annotations

import os
import struct

_POOL_WORDS = 512
_POOL = struct.Struct(f"={_POOL_WORDS}Q")
_REAL_SCALE = 2.0**-53


def uuid_text(raw: bytes) -> str:
    """Canonical text of a version 4 UUID from 16 random bytes."""
    value = int.from_bytes(raw, "big")
    value = value & ~(0xF << 76) | (4 << 76)
    value = value & ~(0x3 << 62) | (2 << 62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class RealRandom:
    """Random port."""

    def __init__(self) -> None:
        self._pool: list[int] = []
        self._owner = os.getpid()

    def _word(self) -> int:
        if not self._pool or self._owner != os.getpid():
            self._owner = os.getpid()
            self._pool = list(_POOL.unpack(os.urandom(_POOL.size)))
        return self._pool.pop()

    def real(self) -> float:
        return (self._word() >> 11) * _REAL_SCALE

    def below(self, bound: int) -> int:
        """Uniform by rejection: fewer than two draws on average."""
        assert bound > 0, bound
        bits = (bound - 1).bit_length()
        while True:
            value = self._bits(bits)
            if value < bound:
                return value

    def _bits(self, count: int) -> int:
        if count <= 64:
            return self._word() >> (64 - count)
        return int.from_bytes(os.urandom((count + 7) // 8), "big") & ((1 << count) - 1)

    def bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def uuid(self) -> str:
        return uuid_text(os.urandom(16))
