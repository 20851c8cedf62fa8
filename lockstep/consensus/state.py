"""The state of one member of one group, and the moves that all parts of the machine share.

Owns: role, term, vote, leader, timers, votes, progress of the members, and the effects that the current step
has gathered. Invariant: the term never falls, the vote of a term never changes, there is at most one leader
in a term. The rules of elections, replication, reads and membership are functions over this in their modules.

Reads that wait for proof that this member still leads.

Owns: the rounds. A round is a number that travels with heartbeats; when a quorum echoed it, every read that
was asked before the round began is linearizable at the commit index noted then. Invariant: a read never joins
a round that has already begun; rounds are confirmed in order.

Writes handed out to the disk and what of them is durable.

Owns: the queue of outstanding writes, the durable part of the log and the durable hard state. Invariant:
durable_index names entries that are on disk *and* still in the log: truncation lowers it, and takes the
truncated entries out of every outstanding write, so a late completion can never vouch for an index whose
entry was replaced meanwhile, not even by one of the same term.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lockstep.consensus.configuration import (
    ConfigurationHistory,
    RaftSettings,
    decode_configuration,
    may_follow,
)
from lockstep.consensus.effects import (
    Accepted,
    ChunkReceived,
    ChunkWanted,
    HardState,
    ReadState,
    Reason,
    Refused,
    Role,
    SoftState,
)
from lockstep.consensus.events import Persisted
from lockstep.consensus.log import Log
from lockstep.consensus.messages import AppendReply, Entry, EntryKind, Message, Snapshot
from lockstep.consensus.progress import Progress


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
        assert last_index >= self.durable_index, "a write takes durable entries back"
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
        assert not self.is_full, "more reads wait than may"
        assert not self._waiting or self._waiting[-1].index <= index, "the commit index falls"
        self._waiting.append(ReadState(context, index))

    def begin_round(self) -> int:
        """Move all waiting reads into a new round, to be sent now."""
        assert self._waiting, "a round for nobody"
        self.round += 1
        self._in_round.extend((self.round, read) for read in self._waiting)
        self._waiting = []
        return self.round

    def confirm(self, confirmed: int) -> list[ReadState]:
        """Reads of all rounds up to `confirmed`."""
        assert 0 <= confirmed <= self.round, "a round is confirmed that never was"
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

    def validate(self) -> None:
        rounds = [round_ for round_, _ in self._in_round]
        assert rounds == sorted(rounds) and all(0 < one <= self.round for one in rounds), (
            "rounds out of order"
        )
        assert len(self._waiting) + len(rounds) <= self._pending_max, "more reads wait than may"


class Incoming:
    """The snapshot that this member is receiving."""

    __slots__ = ("is_storing", "leader_term", "next_offset", "snapshot")

    def __init__(self, snapshot: Snapshot, leader_term: int) -> None:
        self.snapshot = snapshot
        #: The newest term whose leader sent it.
        self.leader_term = leader_term
        #: What must come next; None until the driver has said where to begin.
        self.next_offset: int | None = None
        #: The driver has a chunk that it has not answered.
        self.is_storing = False

    def supersedes(self, snapshot: Snapshot, term: int) -> bool:
        """Whether the other one is only a late message: one leader's snapshots never go back."""
        return self.leader_term == term and snapshot.index <= self.snapshot.index


class RaftState:
    """Mutable; touched only inside a step."""

    def __init__(
        self,
        group: int,
        identity: int,
        settings: RaftSettings,
        draw: Callable[[int], int],
        hard_state: HardState,
        log: Log,
        configurations: ConfigurationHistory,
        snapshot: Snapshot | None,
    ) -> None:
        self.group = group
        self.identity = identity
        self.settings = settings
        self.draw = draw
        self.log = log
        self.configurations = configurations
        self.snapshot = snapshot
        self.writes = Writes(hard_state, log.last_index)
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.votes: dict[int, bool] = {}
        self.progress: dict[int, Progress] = {}
        self.reads = ReadQueue(settings.pending_reads_max)
        self.transfer_target: int | None = None
        self.incoming: Incoming | None = None
        #: The commit index when this leader last sent heartbeats.
        self.commit_mark = log.commit_index
        self.uncommitted_bytes = 0
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.election_timeout = self._draw_timeout()
        # What the current step has gathered, and what the last ones handed out.
        self.handed_hard_state = hard_state
        self.handed_soft_state = SoftState(self.role, self.term, None)
        self.outbox: list[Message] = []
        self.outbox_after_persist: list[Message] = []
        self.installed: Snapshot | None = None
        self.read_states: list[ReadState] = []
        self.reads_refused: list[int] = []
        self.accepted: Accepted | None = None
        self.refused: Refused | None = None
        self.chunks_wanted: list[ChunkWanted] = []
        self.snapshot_offered: Snapshot | None = None
        self.chunk_received: ChunkReceived | None = None

    def _draw_timeout(self) -> int:
        ticks = self.settings.election_ticks
        drawn = self.draw(ticks)
        assert 0 <= drawn < ticks, "draw(bound) must give a number in [0, bound)"
        return ticks + drawn

    @property
    def may_campaign(self) -> bool:
        """Also while an uncommitted entry takes the vote away: perhaps only this member holds that entry, and
        then nobody else can be elected until it has led long enough to commit it."""
        return self.configurations.may_have_vote(self.identity, self.log.commit_index)

    @property
    def is_term_committed(self) -> bool:
        """Whether an entry of the own term is committed; only then is the commit index known to be newest."""
        return self.log.term_at(self.log.commit_index) == self.term

    def peers(self) -> tuple[int, ...]:
        """Members except this one, sorted."""
        return tuple(peer for peer in self.configurations.current.members() if peer != self.identity)

    def refuse(self, reason: Reason) -> None:
        self.refused = Refused(reason, self.leader)

    # -- terms and roles

    def cast_vote(self, candidate: int) -> None:
        assert self.vote is None or self.vote == candidate, f"a second vote in term {self.term}"
        self.vote = candidate

    def _enter(self, role: Role, term: int, leader: int | None) -> None:
        """Common to all role changes: forget what belonged to the old role."""
        assert term >= self.term, f"the term falls from {self.term} to {term}"
        if term > self.term:
            self.term = term
            self.vote = None
        self.role = role
        self.leader = leader
        self.votes = {}
        self.progress = {}
        self.transfer_target = None
        self.uncommitted_bytes = 0
        self.reads_refused.extend(self.reads.clear())
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.election_timeout = self._draw_timeout()

    def become_follower(self, term: int, leader: int | None) -> None:
        self._enter(Role.FOLLOWER, term, leader)

    def become_pre_candidate(self) -> None:
        """Neither term nor vote change: nothing is disturbed if the election could not be won."""
        assert self.role is not Role.LEADER, "a leader campaigns"
        self._enter(Role.PRE_CANDIDATE, self.term, None)

    def become_candidate(self) -> None:
        assert self.role is not Role.LEADER, "a leader campaigns"
        self._enter(Role.CANDIDATE, self.term + 1, None)
        self.cast_vote(self.identity)

    def become_leader(self) -> None:
        assert self.role is Role.CANDIDATE and self.vote == self.identity, "only a candidate can win"
        self._enter(Role.LEADER, self.term, self.identity)
        self.incoming = None
        self.commit_mark = self.log.commit_index

    def follow(self, leader: int) -> None:
        """Something came from the leader of this term."""
        assert self.role is not Role.LEADER, f"two leaders in term {self.term}: this one and {leader}"
        if self.role is not Role.FOLLOWER:
            self.become_follower(self.term, leader)
        assert self.leader is None or self.leader == leader, f"two leaders in term {self.term}"
        self.leader = leader
        self.election_elapsed = 0

    def acknowledge(self, index: int) -> None:
        """Tell the leader, once it is so, that the log is durable and equal to its own up to `index`."""
        assert self.leader is not None, "an acknowledgement without a leader"
        assert index <= self.log.last_index, "an acknowledgement of what is not here"
        self.outbox_after_persist.append(
            AppendReply(self.group, self.identity, self.leader, self.term, index)
        )

    # -- the log

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Append entries, first cutting off whatever they replace; configurations take effect at once."""
        assert entries[-1].term <= self.term, "an entry of a term that is to come"
        cut = entries[0].index - 1
        if cut < self.log.last_index:
            self.log.truncate(cut)
            self.writes.truncate(cut)
            self.configurations.truncate(cut)
        self.log.extend(entries)
        kind = EntryKind.CONFIGURATION
        for entry in [entry for entry in entries if entry.kind is kind]:
            before, after = self.configurations.current, decode_configuration(entry.data)
            assert may_follow(before, after), f"{after} follows {before}"
            self.configurations.append(entry.index, after)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace log and state by a snapshot; not durable before this step's write is."""
        assert snapshot.index > self.log.commit_index, "a snapshot takes back what is committed"
        self.writes.truncate(self.log.commit_index)
        self.log.reset(snapshot.index, snapshot.term)
        self.configurations.reset(snapshot.index, snapshot.configuration)
        assert self.snapshot is None or self.snapshot.index < snapshot.index, "snapshots go back"
        self.snapshot = self.installed = snapshot
        self.incoming = None

    def validate(self) -> None:
        """AssertionError when an invariant of this state does not hold."""
        self.log.validate()
        self.writes.validate(self.log.last_index)
        self.configurations.validate(self.log.last_index)
        self.reads.validate()
        assert self.log.last_term <= self.term, "the log is ahead of the term"
        assert self.log.handed_index <= max(self.writes.durable_index, self.log.base_index), (
            "applied, not durable"
        )
        snapshot_index = self.snapshot.index if self.snapshot else 0
        assert snapshot_index >= self.log.base_index, "what the log forgot is in no snapshot"
        if self.role is Role.LEADER:
            assert self.leader == self.identity, "a leader follows itself"
            assert sorted({*self.progress, self.identity}) == sorted({*self.peers(), self.identity})
            tail = self.log.entries(self.log.commit_index + 1, self.log.last_index)
            assert self.uncommitted_bytes == sum(len(entry.data) for entry in tail), "bytes miscounted"
            for progress in self.progress.values():
                progress.validate(self.log.last_index)
        else:
            assert not self.progress and self.reads.is_empty, "only a leader tracks members and reads"
        if self.role is Role.CANDIDATE:
            assert self.vote == self.identity, "a candidate votes for itself"
