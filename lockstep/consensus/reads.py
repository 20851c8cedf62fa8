"""Linearizable reads: the commit index, proven to be the newest.

Invariant: an index is given out only by a leader that has committed an entry of its term and that a quorum
has acknowledged as leader after the read was asked.
"""

from __future__ import annotations

from lockstep.consensus import quorum, replication
from lockstep.consensus.effects import ReadState, Reason, Role
from lockstep.consensus.events import ReadIndex
from lockstep.consensus.messages import HeartbeatReply
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
