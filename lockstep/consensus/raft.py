"""The machine as its driver sees it, `Raft.step(event) -> Ready`, with changes of who belongs to the group
and linearizable reads: the commit index, proven to be the newest.

Owns: construction from what the disk held, dispatch of events and messages, the rules about terms that hold
for every message, and gathering a step's effects.

Invariant: after every step, everything the step decided is in the Ready it returned or in the state; nothing
is forgotten or handed out twice. What was committed is still there, a snapshot and the entries after it make
one log, and nothing is believed that the disk does not show. At most one change is under way, and it starts
only when the previous configuration and an entry of this leader's term are committed; adjacent configurations
always share a voter in any two quorums. A joint configuration is left by itself. A leader that the committed
configuration no longer counts steps down. An index is given out only by a leader that has committed an entry
of its term and that a quorum has acknowledged as leader after the read was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from lockstep.consensus import elections, quorum, replication, snapshots
from lockstep.consensus.configuration import (
    Configuration,
    ConfigurationHistory,
    RaftSettings,
    decode_configuration,
    encode_configuration,
    first_step,
)
from lockstep.consensus.effects import (
    NOTHING,
    Accepted,
    HardState,
    ReadState,
    Ready,
    Reason,
    Role,
    SoftState,
    Stored,
)
from lockstep.consensus.events import (
    Campaign,
    ChunkStored,
    Compact,
    Event,
    ForgetLeader,
    Persisted,
    Propose,
    ProposeConfiguration,
    ReadIndex,
    Received,
    SnapshotChunk,
    SnapshotFailed,
    SnapshotPresent,
    Tick,
    TransferLeadership,
    Unreachable,
)
from lockstep.consensus.log import Log
from lockstep.consensus.messages import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    InstallReply,
    InstallSnapshot,
    Message,
    PreVoteReply,
    PreVoteRequest,
    Snapshot,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from lockstep.consensus.progress import Mode, Progress
from lockstep.consensus.state import RaftState


def on_read_index(state: RaftState, event: ReadIndex) -> None:
    """Starts a round, or waits for the running one to end: reads that come together share a round."""
    reason = _objection(state)
    if reason is not None:
        state.reads_refused.append(event.context)
        state.refuse(reason)
        return
    if not state.progress:
        state.read_states.append(ReadState(event.context, state.log.commit_index))
        return
    state.reads.add(event.context, state.log.commit_index)
    if not state.reads.is_round_open:
        start_round(state)


def _objection(state: RaftState) -> Reason | None:
    if state.role is not Role.LEADER:
        return Reason.NOT_LEADER
    if not state.is_term_committed:
        return Reason.TERM_NOT_COMMITTED
    return Reason.TOO_MANY_READS if state.reads.is_full else None


def start_round(state: RaftState) -> None:
    state.reads.begin_round()
    replication.broadcast_heartbeat(state)
    confirm(state)


def on_heartbeat_reply(state: RaftState, reply: HeartbeatReply) -> None:
    progress = state.progress.get(reply.sender)
    if progress is not None and reply.read_round > progress.read_round:
        assert reply.read_round <= state.reads.round, "an echo of a round that never was"
        progress.read_round = reply.read_round
        confirm(state)


def confirm(state: RaftState) -> None:
    """Give out every read whose round a quorum has echoed; then let the waiting ones have their round."""
    if not state.reads.is_round_open:
        return
    assert state.role is Role.LEADER and state.is_term_committed, "who confirms reads knows the newest commit"
    rounds = {peer: progress.read_round for peer, progress in state.progress.items()}
    rounds[state.identity] = state.reads.round
    state.read_states.extend(state.reads.confirm(quorum.agreed_value(state.configurations.current, rounds)))
    if not state.reads.is_round_open and state.reads.has_waiting:
        start_round(state)


def on_propose_configuration(state: RaftState, event: ProposeConfiguration) -> None:
    target = event.target
    if state.role is not Role.LEADER:
        state.refuse(Reason.NOT_LEADER)
    elif state.transfer_target is not None:
        state.refuse(Reason.TRANSFERRING)
    elif not target.voters or target.is_joint or target.problem():
        state.refuse(Reason.CONFIGURATION_INVALID)
    elif not state.is_term_committed:
        state.refuse(Reason.TERM_NOT_COMMITTED)
    elif state.configurations.current.is_joint or is_change_pending(state):
        state.refuse(Reason.CONFIGURATION_PENDING)
    else:
        _append(state, first_step(state.configurations.current, target))
        state.accepted = Accepted(state.log.last_index, state.log.last_index, state.term)


def is_change_pending(state: RaftState) -> bool:
    return state.configurations.changed_at > state.log.commit_index


def _append(state: RaftState, configuration: Configuration) -> None:
    replication.append_own(state, EntryKind.CONFIGURATION, (encode_configuration(configuration),))


def after_commit(state: RaftState) -> None:
    """The leader's next step once the configuration in force is committed."""
    assert state.role is Role.LEADER, "a change goes on at its leader"
    if is_change_pending(state):
        return
    current = state.configurations.current
    if current.is_joint:
        _append(state, Configuration(current.voters, (), current.learners))
    elif state.identity not in current.voters:
        _give_way(state)


def _give_way(state: RaftState) -> None:
    """This leader is no voter any more: let the most advanced voter campaign at once. What it does not have
    yet is on its way to it."""
    assert state.configurations.current.voters, "somebody votes"
    advanced = max(state.configurations.current.voters, key=lambda peer: state.progress[peer].match)
    replication.send_timeout_now(state, advanced)
    state.become_follower(state.term, None)


def restored(
    group: int,
    identity: int,
    founded: Configuration,
    settings: RaftSettings,
    draw: Callable[[int], int],
    stored: Stored,
) -> RaftState:
    """State from disk; a snapshot that the log does not contain replaces it."""
    snapshot, entries = stored.snapshot, stored.entries
    base_index, base_term, base = 0, 0, founded
    if snapshot is not None:
        base_index, base_term, base = snapshot.index, snapshot.term, snapshot.configuration
        entries = _beyond(snapshot, entries)
    log = Log(base_index, base_term, entries)
    commit = max(base_index, stored.applied_index, stored.commit_index)
    assert commit <= log.last_index, f"entries {log.last_index + 1}..{commit} were committed and are lost"
    assert stored.hard_state.term >= log.last_term, "the stored term is behind the stored log"
    log.commit_to(commit)
    log.handed_index = max(base_index, stored.applied_index)
    configurations = ConfigurationHistory(base_index, base)
    for entry in entries:
        if entry.kind is EntryKind.CONFIGURATION:
            configurations.append(entry.index, decode_configuration(entry.data))
    return RaftState(group, identity, settings, draw, stored.hard_state, log, configurations, snapshot)


def _beyond(snapshot: Snapshot, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The stored entries that continue the snapshot; none when they belong to a log it replaced."""
    if not entries or entries[0].index > snapshot.index:
        return entries
    offset = snapshot.index - entries[0].index
    if offset >= len(entries) or entries[offset].term != snapshot.term:
        return ()
    return entries[offset + 1 :]


class MemberStatus(msgspec.Struct, frozen=True):
    """What the leader knows of a member. `mode`: probe, replicate or snapshot. is_caught_up: it durably holds
    everything that was committed a heartbeat ago, so as a voter it would not hold commits up.
    snapshot_offset / snapshot_bytes: how far the snapshot on its way to it is, else 0."""

    match: int
    next: int
    mode: str
    heard: bool
    is_caught_up: bool = False
    snapshot_offset: int = 0
    snapshot_bytes: int = 0


class RaftStatus(msgspec.Struct, frozen=True):
    """A member's state for operators; `members` is empty unless it leads."""

    group: int
    identity: int
    role: Role
    term: int
    leader: int | None
    first_index: int
    commit_index: int
    durable_index: int
    last_index: int
    configuration: Configuration
    members: dict[int, MemberStatus]


class Raft:
    """One member of one group.

    group, identity: what messages carry. voters: the configuration the group was founded with, equal on all
    founders; empty for a member that joins later and learns everything from the log. draw(bound): a
    uniform integer in [0, bound), called for election timeouts only. stored: what the disk held; the
    entries to apply again come out of the first step.

    Raises AssertionError when an invariant is broken: the driver must then stop this member for good.
    """

    def __init__(
        self,
        group: int,
        identity: int,
        voters: Iterable[int],
        settings: RaftSettings,
        draw: Callable[[int], int],
        stored: Stored | None = None,
    ) -> None:
        founded = Configuration(tuple(sorted(voters)))
        assert not founded.problem(), founded.problem()
        self.state = restored(group, identity, founded, settings, draw, stored or Stored())

    def step(self, event: Event) -> Ready:
        """Take one event and return all its effects; see effects.Ready for what to do with them."""
        state = self.state
        term, committed = state.term, state.log.commit_index
        _EVENT_HANDLERS[type(event)](state, event)
        if state.role is Role.LEADER and state.log.commit_index > committed:
            after_commit(state)
        if state.incoming is not None:
            snapshots.drop_overtaken(state)
        assert state.term >= term and state.log.commit_index >= committed, "a step takes something back"
        return _take_ready(state)

    @property
    def group(self) -> int:
        return self.state.group

    @property
    def identity(self) -> int:
        return self.state.identity

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def is_leader(self) -> bool:
        return self.state.role is Role.LEADER

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def leader(self) -> int | None:
        """Who leads this term as far as known; itself when it leads."""
        return self.state.leader

    @property
    def configuration(self) -> Configuration:
        """The one in force: of the newest configuration entry in the log, committed or not."""
        return self.state.configurations.current

    @property
    def is_configuration_committed(self) -> bool:
        """Whether the one in force is committed here: it can no longer be taken back. While it is joint, a
        further step follows by itself."""
        return not is_change_pending(self.state)

    @property
    def configuration_index(self) -> int:
        """Index of the log entry that brought the configuration in force; grows with every change."""
        return self.state.configurations.changed_at

    @property
    def commit_index(self) -> int:
        return self.state.log.commit_index

    @property
    def is_term_committed(self) -> bool:
        """Whether an entry of the current term is committed (then a leader's reads are possible)."""
        return self.state.is_term_committed

    @property
    def first_index(self) -> int:
        """The oldest entry kept; last_index + 1 when none is."""
        return self.state.log.first_index

    @property
    def last_index(self) -> int:
        return self.state.log.last_index

    @property
    def durable_index(self) -> int:
        return self.state.writes.durable_index

    @property
    def snapshot(self) -> Snapshot | None:
        return self.state.snapshot

    @property
    def hard_state(self) -> HardState:
        """The newest one handed out to be persisted."""
        return self.state.handed_hard_state

    def term_at(self, index: int) -> int | None:
        """None when the entry is compacted away or not there yet."""
        return self.state.log.term_at(index)

    def entry(self, index: int) -> Entry:
        return self.state.log.entry(index)

    def entries(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries first..last, both inside."""
        return self.state.log.entries(first, last)

    def status(self) -> RaftStatus:
        state = self.state
        members = {
            peer: _member_status(progress, state.commit_mark) for peer, progress in state.progress.items()
        }
        return RaftStatus(
            state.group, state.identity, state.role, state.term, state.leader, state.log.first_index,
            state.log.commit_index, state.writes.durable_index, state.log.last_index,
            state.configurations.current, members,
        )  # fmt: skip

    def validate(self) -> None:
        """AssertionError when the state breaks an invariant; linear in the log."""
        self.state.validate()


def _member_status(progress: Progress, commit_mark: int) -> MemberStatus:
    snapshot = progress.snapshot
    return MemberStatus(
        progress.match, progress.next, progress.mode.value, progress.heard,
        progress.mode is Mode.REPLICATE and progress.match >= commit_mark,
        progress.chunk_offset if snapshot is not None else 0,
        snapshot.size_bytes if snapshot is not None else 0,
    )  # fmt: skip


# -- events


def _on_tick(state: RaftState, _event: Tick) -> None:
    if state.role is not Role.LEADER:
        elections.tick_follower(state)
        return
    elections.tick_leader(state)
    snapshots.tick(state)
    state.heartbeat_elapsed += 1
    assert state.heartbeat_elapsed <= state.settings.heartbeat_ticks, "heartbeats are late"
    if state.role is Role.LEADER and state.heartbeat_elapsed >= state.settings.heartbeat_ticks:
        state.heartbeat_elapsed = 0
        state.commit_mark = state.log.commit_index
        if state.reads.has_waiting:
            start_round(state)
        else:
            replication.broadcast_heartbeat(state)


def _on_persisted(state: RaftState, event: Persisted) -> None:
    if not state.writes.complete(event.sequence):
        return
    elections.own_vote_is_durable(state)
    if state.role is Role.LEADER:
        replication.advance_commit(state)


def _on_campaign(state: RaftState, _event: Campaign) -> None:
    elections.campaign(state)


def _on_compact(state: RaftState, event: Compact) -> None:
    log = state.log
    assert event.index <= log.handed_index, "a snapshot holds what was never applied"
    term = log.term_at(event.index)
    if term is None or (state.snapshot is not None and event.index <= state.snapshot.index):
        return
    configuration = state.configurations.at(event.index)
    assert configuration.voters, "a snapshot that does not say who belongs to the group"
    state.snapshot = Snapshot(event.index, term, configuration, event.data, event.size_bytes)
    assert event.keep_entries >= 0, "entries are kept behind a snapshot, not before it"
    log.compact(event.index - event.keep_entries)
    state.configurations.compact(log.base_index)


def _on_received(state: RaftState, event: Received) -> None:
    message = event.message
    assert message.group == state.group and message.receiver == state.identity, "a message went astray"
    if message.term > state.term:
        if not _admit_newer(state, message):
            return
    elif message.term < state.term:
        _answer_older(state, message)
        return
    _MESSAGE_HANDLERS[type(message)](state, message)


_FROM_LEADERS = (Append, Heartbeat, InstallSnapshot, TimeoutNow)


def _admit_newer(state: RaftState, message: Message) -> bool:
    """A newer term ends the own one, except that elections are ignored under a lease and that a pre-vote
    only asks."""
    assert message.term > state.term, "nothing is admitted for a term that is known"
    if isinstance(message, PreVoteRequest):
        return not elections.is_leased(state)
    if isinstance(message, VoteRequest) and elections.is_leased(state) and not message.transfer:
        return False
    if not (isinstance(message, PreVoteReply) and message.granted):
        state.become_follower(message.term, message.sender if isinstance(message, _FROM_LEADERS) else None)
    return True


def _answer_older(state: RaftState, message: Message) -> None:
    """Someone is behind. Most of it is late and ignored; but a leader or candidate that leases or pre-votes
    would keep apart from this member's term for ever must learn of it."""
    assert message.term < state.term, "who is told of this term does not know it"
    if isinstance(message, PreVoteRequest):
        state.outbox.append(PreVoteReply(state.group, state.identity, message.sender, state.term, False))
    elif isinstance(message, _FROM_LEADERS):
        state.outbox.append(
            AppendReply(state.group, state.identity, message.sender, state.term, 0, rejected=True)
        )


def _on_heartbeat_reply(state: RaftState, reply: HeartbeatReply) -> None:
    replication.on_heartbeat_reply(state, reply)
    on_heartbeat_reply(state, reply)


_EVENT_HANDLERS: dict[type[Any], Callable[[RaftState, Any], None]] = {
    Tick: _on_tick,
    Propose: replication.on_propose,
    ProposeConfiguration: on_propose_configuration,
    Received: _on_received,
    Persisted: _on_persisted,
    ReadIndex: on_read_index,
    TransferLeadership: elections.on_transfer,
    Campaign: _on_campaign,
    Unreachable: replication.on_unreachable,
    ForgetLeader: elections.on_forget_leader,
    Compact: _on_compact,
    SnapshotChunk: snapshots.on_snapshot_chunk,
    SnapshotFailed: snapshots.on_snapshot_failed,
    ChunkStored: snapshots.on_chunk_stored,
    SnapshotPresent: snapshots.on_snapshot_present,
}

_MESSAGE_HANDLERS: dict[type[Any], Callable[[RaftState, Any], None]] = {
    PreVoteRequest: elections.on_pre_vote_request,
    PreVoteReply: elections.on_pre_vote_reply,
    VoteRequest: elections.on_vote_request,
    VoteReply: elections.on_vote_reply,
    Append: replication.on_append,
    AppendReply: replication.on_append_reply,
    Heartbeat: replication.on_heartbeat,
    HeartbeatReply: _on_heartbeat_reply,
    InstallSnapshot: snapshots.on_install_snapshot,
    InstallReply: snapshots.on_install_reply,
    TimeoutNow: elections.on_timeout_now,
}


# -- effects


def _take_ready(state: RaftState) -> Ready:
    """Move what the step gathered into a Ready."""
    hard_state: HardState | None = None
    handed = state.handed_hard_state
    if state.term != handed.term or state.vote != handed.vote:
        hard_state = state.handed_hard_state = HardState(state.term, state.vote)
    soft_state: SoftState | None = None
    soft = state.handed_soft_state
    if state.role is not soft.role or state.leader != soft.leader or state.term != soft.term:
        soft_state = state.handed_soft_state = SoftState(state.role, state.term, state.leader)
    entries = state.log.take_unsaved()
    persisted: Persisted | None = None
    if hard_state is not None or entries or state.installed is not None:
        persisted = state.writes.issue(hard_state, state.log.last_index)
    committed = state.log.take_committed(state.writes.durable_index)
    messages, after = state.outbox, state.outbox_after_persist
    if after and state.writes.is_idle:
        messages, after = messages + after, []
    if not (persisted or messages or after or committed or soft_state or _has_answers(state)):
        return NOTHING
    ready = Ready(
        hard_state, state.installed, entries, persisted, tuple(messages), tuple(after), committed, soft_state,
        tuple(state.read_states), tuple(state.reads_refused), state.accepted, state.refused,
        tuple(state.chunks_wanted), state.snapshot_offered, state.chunk_received,
    )  # fmt: skip
    state.outbox, state.outbox_after_persist = [], []
    state.installed = None
    if _has_answers(state):
        state.read_states, state.reads_refused = [], []
        state.accepted = state.refused = None
        state.chunks_wanted = []
        state.snapshot_offered = state.chunk_received = None
    return ready


def _has_answers(state: RaftState) -> bool:
    return bool(
        state.read_states
        or state.reads_refused
        or state.accepted
        or state.refused
        or state.chunks_wanted
        or state.snapshot_offered
        or state.chunk_received
    )
