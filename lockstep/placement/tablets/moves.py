"""Moves of tablet replicas, and how many may run at once on each shard.

Invariant: a shard reads for at most two moves and writes for at most two, counted by weight; a shard with
nothing to do takes any move. A small tablet weighs by its bytes, so many of them go together, for what a move
costs besides its bytes is the same for all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lockstep.placement.tablets.shards import Replica

#: Weight of a whole move; a tablet of no bytes weighs 1.
WHOLE: Final = 32
#: What a shard reads for, and writes for, at once: the second keeps it busy while the first changes stages.
READS_MAX: Final = 2 * WHOLE
WRITES_MAX: Final = 2 * WHOLE
#: Bytes that weigh as a whole move: a second or so of streaming, beside which changing stages does not count.
BATCH_BYTES: Final = 64 * 1024 * 1024
#: What a shard is taken to stream when nobody has measured it, and what all stages of a move take besides.
STREAM_BYTES_PER_S: Final = 50 * 1024 * 1024
STAGES_MS: Final = 500


class MoveKind(enum.IntEnum):
    MIGRATION = 0
    INTRANODE = 1
    #: The source is gone; the target is filled from the other replicas.
    REBUILD = 2


class Why(enum.IntEnum):
    """What a move is for, in the order in which moves come."""

    DRAIN = 0
    BALANCE = 1
    SHARDS = 2
    MERGE = 3


class Move(msgspec.Struct, frozen=True):
    """A replica of the tablet (group, last token) from one shard to another."""

    kind: MoveKind
    why: Why
    group: int
    right: int
    source: Replica
    target: Replica
    bytes: int = 0

    def weight(self) -> int:
        part = -(-self.bytes * WHOLE // BATCH_BYTES)
        return min(WHOLE, max(1, part))

    def after(self, replicas: Sequence[Replica]) -> tuple[Replica, ...]:
        """The replicas of the tablet once the move is done; the newcomer has the place of the other."""
        return tuple([self.target if replica == self.source else replica for replica in replicas])


class Running(msgspec.Struct, frozen=True):
    """A move that has been started. It counts as finished for load, and while it streams for the shards.
    `reader`: whom a rebuild streams from."""

    move: Move
    is_streaming: bool = True
    reader: Replica | None = None


class Slots:
    """What the shards have left; working state of a planner."""

    def __init__(self, running: Iterable[Running]) -> None:
        self._reads: dict[Replica, int] = {}
        self._writes: dict[Replica, int] = {}
        for one in running:
            if one.is_streaming:
                self._take(one.move, one.reader or one.move.source)

    def admit(self, move: Move, reader: Replica, weight: int = 0) -> bool:
        """Take what a move needs; False, and nothing taken, when a shard has not enough left."""
        if not self.has_room(move, reader, weight):
            return False
        self._take(move, reader, weight)
        most = weight or move.weight()
        assert self._reads[reader] <= max(READS_MAX, most), (
            "a shard reads for so much at once, or for one move"
        )
        assert self._writes[move.target] <= max(WRITES_MAX, most), "and writes for so much, or for one"
        return True

    def has_room(self, move: Move, reader: Replica, weight: int = 0) -> bool:
        assert reader != move.target, "what comes to a shard comes from another one"
        weight = weight or move.weight()
        read, written = self._reads.get(reader, 0), self._writes.get(move.target, 0)
        return (not read or read + weight <= READS_MAX) and (not written or written + weight <= WRITES_MAX)

    def _take(self, move: Move, reader: Replica, weight: int = 0) -> None:
        weight = weight or move.weight()
        self._reads[reader] = self._reads.get(reader, 0) + weight
        self._writes[move.target] = self._writes.get(move.target, 0) + weight

    def is_full(self, target: Replica) -> bool:
        return self._writes.get(target, 0) >= WRITES_MAX


def duration_ms(moves: Sequence[Move], bytes_per_s: int = STREAM_BYTES_PER_S) -> int:
    """How long moves take when every shard streams at this rate: the busiest one decides."""
    assert bytes_per_s > 0, "data streams at some rate"
    reading: dict[Replica, tuple[int, int]] = {}
    writing: dict[Replica, tuple[int, int]] = {}
    for move in moves:
        for at, busy in ((move.source, reading), (move.target, writing)):
            held, weight = busy.get(at, (0, 0))
            busy[at] = (held + move.bytes, weight + move.weight())
    spans = [
        held * 1000 // bytes_per_s + STAGES_MS * -(-weight // READS_MAX)
        for busy in (reading, writing)
        for held, weight in busy.values()
    ]
    return max(spans, default=0)
