"""`placements/1`: who holds each range of a keyspace."""

from __future__ import annotations

import msgspec


class PlacedRange(msgspec.Struct, frozen=True):
    """Tokens above `start` up to `end`; `epoch` changed their replicas last."""

    start: int
    end: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    epoch: int = 0


class Placements(msgspec.Struct, frozen=True):
    schema: str = "placements/1"
    keyspace: str = ""
    epoch: int = 0
    ranges: tuple[PlacedRange, ...] = ()
