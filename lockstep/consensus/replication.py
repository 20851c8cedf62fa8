"""How entries travel: the leader's appends and commits, the follower's acceptance.

Invariant: a leader counts a member, itself included, only for what is durable there, and commits by counting
only entries of its own term; a follower acknowledges only after persisting; a commit index a member
learns never passes what it is known to share with the leader.
"""

from __future__ import annotations

from lockstep.consensus import quorum, snapshots
from lockstep.consensus.configuration import encode_configuration
from lockstep.consensus.effects import Accepted, Reason, Role
from lockstep.consensus.events import Propose, Unreachable
from lockstep.consensus.messages import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    TimeoutNow,
)
from lockstep.consensus.progress import Mode, Progress
from lockstep.consensus.state import RaftState

# -- the leader's side


def start_leading(state: RaftState) -> None:
    """After winning: track every member and commit the past by an entry of the new term. The group's very
    first entry is its founding configuration, so that every log and snapshot says who belongs to the
    group, also those of members that were not among the founders."""
    state.become_leader()
    track_members(state)
    assert state.log.last_term < state.term, "somebody led this term before"
    log = state.log
    state.uncommitted_bytes = sum(len(e.data) for e in log.entries(log.commit_index + 1, log.last_index))
    if state.configurations.changed_at == 0:
        append_own(state, EntryKind.CONFIGURATION, (encode_configuration(state.configurations.current),))
    else:
        append_own(state, EntryKind.NOOP, (b"",))


def track_members(state: RaftState) -> None:
    """Make the progress table fit the configuration in force."""
    known, state.progress = state.progress, {}
    next_index, window = state.log.last_index + 1, state.settings.in_flight_appends_max
    for peer in state.peers():
        state.progress[peer] = known.get(peer) or Progress(0, next_index, window)
    if state.transfer_target not in state.progress:
        state.transfer_target = None
    assert state.identity not in state.progress, "a leader tracks the others"


def append_own(state: RaftState, kind: EntryKind, data: tuple[bytes, ...]) -> None:
    """Append entries of this leader's term and send them on."""
    assert state.role is Role.LEADER and data, "only a leader appends"
    term, first = state.term, state.log.last_index + 1
    state.append(tuple([Entry(index, term, kind, body) for index, body in enumerate(data, first)]))
    state.uncommitted_bytes += sum(map(len, data))
    if kind is EntryKind.CONFIGURATION:
        track_members(state)
    broadcast(state)


def on_propose(state: RaftState, event: Propose) -> None:
    assert event.data, "a proposal holds at least one entry"
    size = sum(map(len, event.data))
    if state.role is not Role.LEADER:
        state.refuse(Reason.NOT_LEADER)
    elif state.transfer_target is not None:
        state.refuse(Reason.TRANSFERRING)
    elif state.uncommitted_bytes and state.uncommitted_bytes + size > state.settings.uncommitted_bytes_max:
        state.refuse(Reason.TOO_MUCH_UNCOMMITTED)
    else:
        first = state.log.last_index + 1
        append_own(state, EntryKind.NORMAL, event.data)
        state.accepted = Accepted(first, state.log.last_index, state.term)


def broadcast(state: RaftState) -> None:
    """Send everyone who can take it what is new: entries, or just the commit index."""
    for peer, progress in state.progress.items():
        send_append(state, peer, progress, may_be_empty=True, asks=progress.mode is not Mode.REPLICATE)


def send_append(
    state: RaftState, peer: int, progress: Progress, *, may_be_empty: bool, asks: bool = True
) -> bool:
    """One append to `peer`, or a snapshot when the log reaches back no more; False when nothing was sent.
    asks: also an empty one is to be answered."""
    if progress.is_paused:
        return False
    log = state.log
    prev_index = progress.next - 1
    assert prev_index >= progress.match, "a member is sent again what it holds durably"
    prev_term = log.term_at(prev_index)
    if prev_term is None:
        return snapshots.begin(state, peer, progress)
    entries = log.batch(progress.next, state.settings.append_bytes_max) if prev_index < log.last_index else ()
    if not entries and not may_be_empty:
        return False
    quiet = not asks and not entries
    state.outbox.append(
        Append(
            state.group, state.identity, peer, state.term,
            prev_index, prev_term, entries, log.commit_index, quiet,
        )
    )  # fmt: skip
    progress.sent(prev_index + len(entries), bool(entries))
    return True


def advance_commit(state: RaftState) -> bool:
    """Commit what a quorum holds durably; tells the members when the commit index rose."""
    log = state.log
    matches = {peer: progress.match for peer, progress in state.progress.items()}
    matches[state.identity] = state.writes.durable_index
    index = quorum.agreed_value(state.configurations.current, matches)
    assert index <= log.last_index, "a quorum holds what its leader lacks"
    if index <= log.commit_index or not is_committable(state, index):
        return False
    state.uncommitted_bytes -= sum([len(e.data) for e in log.entries(log.commit_index + 1, index)])
    assert state.uncommitted_bytes >= 0, "bytes miscounted"
    log.commit_to(index)
    broadcast(state)
    return True


def is_committable(state: RaftState, index: int) -> bool:
    """Entries of older terms commit only under one of this term: counted alone, one that a quorum holds
    could still be replaced by a leader that never saw it."""
    return state.log.term_at(index) == state.term


def on_append_reply(state: RaftState, reply: AppendReply) -> None:
    assert reply.term == state.term, "an answer in another term"
    progress = state.progress.get(reply.sender)
    if progress is None:
        return
    progress.heard = True
    if reply.rejected:
        own_limit, _ = state.log.agreement_limit(reply.hint_index, reply.hint_term)
        if progress.rejected(reply.index, min(reply.hint_index, own_limit)):
            send_append(state, reply.sender, progress, may_be_empty=True)
        return
    assert reply.index <= state.log.last_index, "a member acknowledged what this leader never sent"
    was_paused = progress.is_paused
    news = progress.acknowledged(reply.index)
    _settle(state, progress, reply.index)
    if news:
        advanced = advance_commit(state)
        if was_paused and not advanced:
            send_append(state, reply.sender, progress, may_be_empty=True)
    while send_append(state, reply.sender, progress, may_be_empty=False):
        pass
    if state.transfer_target == reply.sender and progress.match == state.log.last_index:
        send_timeout_now(state, reply.sender)


def _settle(state: RaftState, progress: Progress, index: int) -> None:
    """An acknowledgement ends probing, or the wait for a snapshot once the log reaches the member again."""
    if progress.mode is Mode.PROBE:
        if index >= progress.next - 1:
            progress.to_replicate()
    else:
        snapshots.settle(state, progress)


def send_timeout_now(state: RaftState, peer: int) -> None:
    assert state.role is Role.LEADER and peer != state.identity, "a leader gives way to another one"
    state.outbox.append(TimeoutNow(state.group, state.identity, peer, state.term))


def broadcast_heartbeat(state: RaftState) -> None:
    """Tell every member who leads, what it may commit, and the newest read round."""
    assert state.role is Role.LEADER, "only leaders are heard"
    commit, read_round = state.log.commit_index, state.reads.round
    for peer, progress in state.progress.items():
        known = min(progress.match, commit)
        state.outbox.append(Heartbeat(state.group, state.identity, peer, state.term, known, read_round))


def on_heartbeat_reply(state: RaftState, reply: HeartbeatReply) -> None:
    progress = state.progress.get(reply.sender)
    if progress is None:
        return
    progress.heard = True
    progress.free_one()
    if progress.match < state.log.last_index:
        send_append(state, reply.sender, progress, may_be_empty=True)


def on_unreachable(state: RaftState, event: Unreachable) -> None:
    progress = state.progress.get(event.peer)
    if progress is not None and progress.mode is Mode.REPLICATE:
        progress.to_probe()


# -- the follower's side


def on_append(state: RaftState, message: Append) -> None:
    assert message.term == state.term, "a leader of another term"
    state.follow(message.sender)
    log = state.log
    if message.prev_index < log.commit_index:
        if not message.quiet:
            state.acknowledge(log.commit_index)
        return
    if not log.matches(message.prev_index, message.prev_term):
        hint_index, hint_term = log.agreement_limit(message.prev_index, message.prev_term)
        state.outbox.append(
            AppendReply(
                state.group, state.identity, message.sender, state.term,
                message.prev_index, True, hint_index, hint_term,
            )
        )  # fmt: skip
        return
    entries = message.entries
    fresh = log.new_part(entries)
    if fresh < len(entries):
        state.append(entries[fresh:])
    shared = message.prev_index + len(entries)
    assert shared <= log.last_index, "what was accepted is here"
    log.commit_to(min(message.commit, shared))
    if not message.quiet:
        state.acknowledge(shared)


def on_heartbeat(state: RaftState, message: Heartbeat) -> None:
    assert message.term == state.term, "a leader of another term"
    state.follow(message.sender)
    state.log.commit_to(message.commit)
    state.outbox.append(
        HeartbeatReply(state.group, state.identity, message.sender, state.term, message.read_round)
    )
