"""What a leader knows about one member and how it may send to it.

Invariant: match < next always; in REPLICATE at most `window` appends with entries are unanswered; in PROBE at
most one append is unanswered; in SNAPSHOT none is sent and `snapshot` names what travels instead.

    PROBE      next is a guess: one append at a time until one is accepted
    REPLICATE  the log matches: appends are streamed ahead of their answers
    SNAPSHOT   the member needs a snapshot, which travels in chunks (see snapshots)
"""

from __future__ import annotations

import enum
from collections import deque

from lockstep.consensus.messages import Snapshot


class Mode(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    __slots__ = (
        "chunk_offset",
        "chunk_ticks",
        "heard",
        "in_flight",
        "is_chunk_pending",
        "match",
        "mode",
        "next",
        "probing",
        "read_round",
        "snapshot",
        "snapshot_ticks",
        "window",
    )

    def __init__(self, match: int, next_index: int, window: int) -> None:
        assert 0 <= match < next_index and window > 0, "match and next cross"
        self.match = match
        self.next = next_index
        self.window = window
        self.mode = Mode.PROBE
        #: Last index of each unanswered append with entries (REPLICATE).
        self.in_flight: deque[int] = deque()
        #: A probe is unanswered (PROBE).
        self.probing = False
        #: What it is being sent (SNAPSHOT).
        self.snapshot: Snapshot | None = None
        #: Ticks since it last said anything about the snapshot, and since the last chunk or offer left.
        self.snapshot_ticks = 0
        self.chunk_ticks = 0
        #: Where the current chunk begins, and whether that one is being read or on its way.
        self.chunk_offset = 0
        self.is_chunk_pending = False
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
        self.snapshot = None

    def to_replicate(self) -> None:
        self.mode = Mode.REPLICATE
        self.probing = False
        self.in_flight.clear()
        self.snapshot = None
        self.next = self.match + 1

    def to_snapshot(self, snapshot: Snapshot) -> None:
        assert snapshot.index > self.match, "a member is sent what it has"
        self.mode = Mode.SNAPSHOT
        self.probing = False
        self.in_flight.clear()
        self.snapshot = snapshot
        self.snapshot_ticks = self.chunk_ticks = self.chunk_offset = 0
        self.is_chunk_pending = False

    def sent(self, last_index: int, has_entries: bool) -> None:
        """An append that ends at last_index is on its way."""
        assert not self.is_paused, "an append beyond the window"
        assert last_index >= self.next - 1, "appends go forward"
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
        assert not self.in_flight or self.in_flight[0] > index, "what was acknowledged is in flight"
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
        assert self.match < self.next <= max(index, self.match + 1), "a rejection takes next back"
        self.probing = False
        return True

    def free_one(self) -> None:
        """A member that answers heartbeats but no appends may have lost one: let another through."""
        if self.mode is Mode.REPLICATE and len(self.in_flight) >= self.window:
            self.in_flight.popleft()
        self.probing = False

    def validate(self, last_index: int) -> None:
        assert (self.snapshot is not None) == (self.mode is Mode.SNAPSHOT), "a snapshot outside its transfer"
        assert 0 <= self.match < self.next <= last_index + 1, "match and next cross"
        assert len(self.in_flight) <= self.window, "too many appends in flight"
        assert list(self.in_flight) == sorted(self.in_flight), "appends in flight are out of order"
