"""What a simulated member has on its disk and in its driver's hands, and everything a group ever promised."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lockstep.consensus.configuration import Configuration, decode_configuration
from lockstep.consensus.effects import ChunkReceived, ChunkWanted, HardState
from lockstep.consensus.events import Persisted
from lockstep.consensus.messages import Entry, EntryKind, Message, Snapshot
from lockstep.consensus.raft import Raft


class Violation(AssertionError):
    """A promise of the group was broken."""


def require(condition: bool, promise: str) -> None:
    if not condition:
        raise Violation(promise)


@dataclass
class Write:
    """One Ready's writes on their way to the disk."""

    hard_state: HardState | None
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    persisted: Persisted | None
    messages: tuple[Message, ...]


@dataclass
class Disk:
    """What survives a crash."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)
    #: What is here of each snapshot's bytes, by (index, term).
    files: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def stored(self, snapshot: Snapshot) -> bytes:
        return self.files.get((snapshot.index, snapshot.term), b"")

    def store(self, snapshot: Snapshot, data: bytes) -> None:
        self.files[snapshot.index, snapshot.term] = data

    def do(self, write: Write, parts: int = 1_000_000) -> None:
        """Carry out the first `parts` parts of a write: hard state, snapshot, then entry by entry."""
        if write.hard_state is not None and parts > 0:
            self.hard_state = write.hard_state
        if write.snapshot is not None and parts > 1:
            self.snapshot, self.entries = write.snapshot, []
        if write.entries and parts > 2:
            first = write.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first]
            self.entries.extend(write.entries[: parts - 2])

    def holds(self, index: int, term: int) -> bool:
        if self.snapshot is not None and self.snapshot.index >= index:
            return True
        if not self.entries:
            return False
        offset = index - self.entries[0].index
        return 0 <= offset < len(self.entries) and self.entries[offset].term == term


@dataclass
class Member:
    raft: Raft
    disk: Disk = field(default_factory=Disk)
    writes: deque[Write] = field(default_factory=deque)
    #: What the driver has not got round to: bytes to read for others, an offer or a chunk to answer.
    wanted: list[ChunkWanted] = field(default_factory=list)
    arriving: list[Snapshot | ChunkReceived] = field(default_factory=list)
    #: The last entry that the machine handed out, and how far the state machine is: the same, or further
    #: when the state came another way.
    handed: int = 0
    applied: int = 0
    state: int = 0
    incarnation: int = 0
    commit_seen: int = 0


class History:
    """Everything that was ever promised in the group, over all members and incarnations."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[int, int]] = {}
        self.entries: dict[tuple[int, int], tuple[int, Entry]] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_max = 0
        self.states: dict[int, int] = {0: 0}
        self.configurations: list[tuple[int, Configuration]] = []

    def leads(self, term: int, identity: int, member: Member) -> None:
        who = (identity, member.incarnation)
        require(self.leaders.setdefault(term, who) == who, f"one leader in term {term}")
        raft = member.raft
        for index in range(raft.first_index, self.committed_max + 1):
            require(raft.term_at(index) == self.committed[index].term, "a leader holds all committed entries")

    def appended(self, entry: Entry, previous_term: int | None) -> None:
        if previous_term is not None:
            known = self.entries.setdefault((entry.index, entry.term), (previous_term, entry))
            require(known == (previous_term, entry), f"logs match at {entry.index}/{entry.term}")

    def commits(self, entry: Entry) -> None:
        known = self.committed.setdefault(entry.index, entry)
        require(known == entry, f"one committed entry at {entry.index}")
        if entry.index > self.committed_max:
            self.committed_max = entry.index
            if entry.kind is EntryKind.CONFIGURATION:
                self.configurations.append((entry.index, decode_configuration(entry.data)))

    def configuration_at(self, index: int) -> Configuration:
        """What the group's committed entries say."""
        return next(value for start, value in reversed(self.configurations) if start <= index)

    def applies(self, index: int, state: int) -> None:
        require(self.states.setdefault(index, state) == state, f"one state at {index}")


def snapshot_bytes(index: int, state: int) -> bytes:
    """A snapshot of this state: no two of its parts are alike."""
    return b"%d;%d;" % (index, state) + b"".join(b"%d." % place for place in range(state % 9))
