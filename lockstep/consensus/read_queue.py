"""Reads that wait for proof that this member still leads.

Owns: the rounds. A round is a number that travels with heartbeats; when a quorum echoed it, every read that
was asked before the round began is linearizable at the commit index noted then. Invariant: a read never joins
a round that has already begun; rounds are confirmed in order.
"""

from __future__ import annotations

from collections import deque

from lockstep.consensus.effects import ReadState


class ReadQueue:
    __slots__ = ("_in_round", "_pending_max", "_waiting", "round")

    def __init__(self, pending_max: int) -> None:
        self._pending_max = pending_max
        self._waiting: list[ReadState] = []
        self._in_round: deque[tuple[int, ReadState]] = deque()
        #: The newest round begun.
        self.round = 0

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._in_round

    @property
    def is_full(self) -> bool:
        return len(self._waiting) + len(self._in_round) >= self._pending_max

    @property
    def is_round_open(self) -> bool:
        return bool(self._in_round)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, context: int, index: int) -> None:
        self._waiting.append(ReadState(context, index))

    def begin_round(self) -> int:
        """Move all waiting reads into a new round, to be sent now."""
        self.round += 1
        self._in_round.extend((self.round, read) for read in self._waiting)
        self._waiting = []
        return self.round

    def confirm(self, confirmed: int) -> list[ReadState]:
        """Reads of all rounds up to `confirmed`."""
        done: list[ReadState] = []
        while self._in_round and self._in_round[0][0] <= confirmed:
            done.append(self._in_round.popleft()[1])
        return done

    def clear(self) -> list[int]:
        """Forget all reads and rounds; returns the contexts."""
        contexts = [read.context for _, read in self._in_round] + [read.context for read in self._waiting]
        self._in_round.clear()
        self._waiting = []
        self.round = 0
        return contexts
