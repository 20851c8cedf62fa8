"""Random streams, one independent, seeded generator for every consumer of randomness, and the clock of one
simulated process: world time seen through a drifting oscillator.

Invariant: a stream depends on (seed, label) alone. A draw by one consumer (a link, a disk, the scheduler)
never shifts what another one draws, so faults can be removed one by one when a failing run is shrunk.
Monotonic time never steps back, whatever happens to its rate; only wall time jumps. The clock belongs to the
process and survives its incarnations, as a host's clock does.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Protocol

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


NS = 1_000_000_000
#: Wall time at the start of every world: 2026-01-01T00:00:00Z.
WALL_START_US = 1_767_225_600_000_000


class Timed(Protocol):
    """The world that a clock shows."""

    now_ns: int


class SimClock:
    """Clock port. `start_ns` is what monotonic time shows first: it differs per process, so that
    code which compares monotonic times of two nodes fails."""

    def __init__(self, world: Timed, start_ns: int) -> None:
        self._world = world
        self._start_ns = start_ns
        self._base_world_ns = world.now_ns
        self._base_local_ns = start_ns
        self._wall_offset_us = 0
        #: Wall time shows multiples of this only: it stands still in between.
        self.wall_tick_us = 1
        self.rate = 1.0

    def monotonic_ns(self) -> int:
        return self._base_local_ns + int((self._world.now_ns - self._base_world_ns) * self.rate)

    def monotonic_s(self) -> float:
        return (self._base_local_ns + int((self._world.now_ns - self._base_world_ns) * self.rate)) / NS

    def wall_us(self) -> int:
        wall_us = WALL_START_US + self._wall_offset_us + (self.monotonic_ns() - self._start_ns) // 1000
        return wall_us - wall_us % self.wall_tick_us

    def processor_s(self) -> float:
        """Work takes no time of its own in a simulation."""
        return 0.0

    def world_ns(self, local_s: float) -> int:
        """The first world instant at which `monotonic_s()` is at least `local_s`."""
        ahead = (local_s * NS - self._base_local_ns) / self.rate
        return self._base_world_ns + math.ceil(ahead) + 2

    def set_rate(self, rate: float) -> None:
        """Local seconds per world second from now on; drift of a healthy clock is within 1 +- 0.0005."""
        assert rate > 0, rate
        self._base_local_ns = self.monotonic_ns()
        self._base_world_ns = self._world.now_ns
        self.rate = rate

    @property
    def wall_error_us(self) -> int:
        """By how much steps have set wall time off."""
        return self._wall_offset_us

    def jump_wall(self, seconds: float) -> None:
        self._wall_offset_us += round(seconds * 1_000_000)
