"""What a leader knows about one member and how it may send to it.

Invariant: match < next always; in REPLICATE at most `window` appends with entries are unanswered; in PROBE at
most one append is unanswered; in SNAPSHOT none is sent.

    PROBE      next is a guess: one append at a time until one is accepted
    REPLICATE  the log matches: appends are streamed ahead of their answers
    SNAPSHOT   the member needs a snapshot; wait until it has it, or give up after some ticks
"""

from __future__ import annotations

import enum
from collections import deque


class Mode(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    __slots__ = (
        "heard",
        "in_flight",
        "match",
        "mode",
        "next",
        "probing",
        "read_round",
        "snapshot_index",
        "snapshot_ticks",
        "window",
    )

    def __init__(self, match: int, next_index: int, window: int) -> None:
        self.match = match
        self.next = next_index
        self.window = window
        self.mode = Mode.PROBE
        #: Last index of each unanswered append with entries (REPLICATE).
        self.in_flight: deque[int] = deque()
        #: A probe is unanswered (PROBE).
        self.probing = False
        self.snapshot_index = 0
        self.snapshot_ticks = 0
        #: Something came from the member since the last quorum check.
        self.heard = True
        #: The newest read round it echoed.
        self.read_round = 0

    @property
    def is_paused(self) -> bool:
        if self.mode is Mode.REPLICATE:
            return len(self.in_flight) >= self.window
        return self.probing if self.mode is Mode.PROBE else True

    def to_probe(self) -> None:
        self.mode = Mode.PROBE
        self.probing = False
        self.in_flight.clear()
        self.next = self.match + 1
        self.snapshot_index = 0

    def to_replicate(self) -> None:
        self.mode = Mode.REPLICATE
        self.probing = False
        self.in_flight.clear()
        self.snapshot_index = 0
        self.next = self.match + 1

    def to_snapshot(self, index: int) -> None:
        self.mode = Mode.SNAPSHOT
        self.probing = False
        self.in_flight.clear()
        self.snapshot_index = index
        self.snapshot_ticks = 0

    def sent(self, last_index: int, has_entries: bool) -> None:
        """An append that ends at last_index is on its way."""
        if self.mode is Mode.PROBE:
            self.probing = True
        elif has_entries:
            self.next = last_index + 1
            self.in_flight.append(last_index)

    def acknowledged(self, index: int) -> bool:
        """The member holds the log durably up to `index`; False when that was known."""
        while self.in_flight and self.in_flight[0] <= index:
            self.in_flight.popleft()
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        return True

    def rejected(self, index: int, limit: int) -> bool:
        """The member has no match at `index`, at most one at `limit`; False when the answer is stale."""
        if self.mode is Mode.REPLICATE:
            if index <= self.match:
                return False
            self.to_probe()
            self.next = max(self.match, min(limit, index - 1)) + 1
            return True
        if self.mode is Mode.SNAPSHOT or self.next - 1 != index:
            return False
        self.next = max(self.match, min(limit, index - 1)) + 1
        self.probing = False
        return True

    def free_one(self) -> None:
        """A member that answers heartbeats but no appends may have lost one: let another through."""
        if self.mode is Mode.REPLICATE and len(self.in_flight) >= self.window:
            self.in_flight.popleft()
        self.probing = False

    def validate(self, last_index: int) -> None:
        assert 0 <= self.match < self.next <= last_index + 1, "match and next cross"
        assert len(self.in_flight) <= self.window, "too many appends in flight"
        assert list(self.in_flight) == sorted(self.in_flight), "appends in flight are out of order"
