"""Writes handed out to the disk and what of them is durable.

Owns: the queue of outstanding writes, the durable part of the log and the durable hard state. Invariant:
durable_index names entries that are on disk *and* still in the log: truncation lowers it, and takes the
truncated entries out of every outstanding write, so a late completion can never vouch for an index whose
entry was replaced meanwhile, not even by one of the same term.
"""

from __future__ import annotations

from collections import deque

from lockstep.consensus.effects import HardState
from lockstep.consensus.events import Persisted


class _Write:
    __slots__ = ("hard_state", "last_index", "sequence")

    def __init__(self, sequence: int, hard_state: HardState | None, last_index: int) -> None:
        self.sequence = sequence
        self.hard_state = hard_state
        self.last_index = last_index


class Writes:
    __slots__ = ("_outstanding", "_sequence", "durable_hard_state", "durable_index")

    def __init__(self, hard_state: HardState, durable_index: int) -> None:
        self._outstanding: deque[_Write] = deque()
        self._sequence = 0
        self.durable_index = durable_index
        self.durable_hard_state = hard_state

    @property
    def is_idle(self) -> bool:
        return not self._outstanding

    def issue(self, hard_state: HardState | None, last_index: int) -> Persisted:
        """A write that makes the log durable up to last_index, after all earlier ones."""
        self._sequence += 1
        self._outstanding.append(_Write(self._sequence, hard_state, last_index))
        return Persisted(self._sequence)

    def truncate(self, last_index: int) -> None:
        self.durable_index = min(self.durable_index, last_index)
        for write in self._outstanding:
            write.last_index = min(write.last_index, last_index)

    def complete(self, sequence: int) -> bool:
        """Count every write up to `sequence` as durable; False when all of them already were."""
        assert sequence <= self._sequence, "a write completed that was never handed out"
        outstanding = self._outstanding
        if not outstanding or outstanding[0].sequence > sequence:
            return False
        while outstanding and outstanding[0].sequence <= sequence:
            write = outstanding.popleft()
            self.durable_index = max(self.durable_index, write.last_index)
            if write.hard_state is not None:
                self.durable_hard_state = write.hard_state
        return True

    def validate(self, last_index: int) -> None:
        assert self.durable_index <= last_index, "an index beyond the log counts as durable"
        assert all(write.last_index <= last_index for write in self._outstanding), (
            "a write outlived its entries"
        )
