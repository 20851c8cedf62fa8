"""Random streams: one independent, seeded generator for every consumer of randomness.

Invariant: a stream depends on (seed, label) alone. A draw by one consumer (a link, a disk, the
scheduler) never shifts what another one draws, so faults can be removed one by one when a failing
run is shrunk.
"""

from __future__ import annotations

import hashlib
import random

from lockstep.runtime.real.tasks import uuid_text

Stream = random.Random


def stream(seed: int, label: str) -> Stream:
    """The generator of consumer `label` under `seed`."""
    digest = hashlib.blake2b(f"{seed}/{label}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))


class SimRandom:
    """The Random port of one process incarnation."""

    def __init__(self, source: Stream) -> None:
        self._source = source

    def real(self) -> float:
        return self._source.random()

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def bytes(self, size: int) -> bytes:
        return self._source.randbytes(size)

    def uuid(self) -> str:
        return uuid_text(self._source.randbytes(16))
