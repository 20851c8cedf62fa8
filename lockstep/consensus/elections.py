"""Who leads: timeouts, pre-votes, votes, leases and the transfer of leadership.

Invariant: a request for votes leaves only after the candidate's own vote is durable, and that vote counts
only then: so nobody leads one term twice with two logs. A member votes once a term, for a log that is at
least as current as its own.
"""

from __future__ import annotations

from lockstep.consensus import quorum, replication
from lockstep.consensus.effects import Reason, Role
from lockstep.consensus.events import ForgetLeader, TransferLeadership
from lockstep.consensus.messages import (
    PreVoteReply,
    PreVoteRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from lockstep.consensus.quorum import VoteResult
from lockstep.consensus.state import RaftState


def tick_follower(state: RaftState) -> None:
    """Time without a leader: campaign when the drawn timeout has passed. A member without a vote only gives
    the leader up; its time runs on, so that its lease ends and it answers those who do campaign."""
    assert state.role is not Role.LEADER and not state.progress, "a leader tracks members"
    state.election_elapsed += 1
    if state.election_elapsed >= state.election_timeout:
        state.leader = None
        if state.may_campaign:
            campaign(state)


def tick_leader(state: RaftState) -> None:
    """Once an election timeout: still heard by a quorum? A transfer that did not happen is given up."""
    assert state.role is Role.LEADER and state.leader == state.identity, "a leader follows itself"
    state.election_elapsed += 1
    if state.election_elapsed < state.settings.election_ticks:
        return
    state.election_elapsed = 0
    state.transfer_target = None
    if state.settings.check_quorum and not hears_quorum(state):
        state.become_follower(state.term, None)


def hears_quorum(state: RaftState) -> bool:
    """Whether a quorum spoke since the last check; starts the next period."""
    assert state.identity not in state.progress, "a leader hears itself"
    heard = {peer: progress.heard for peer, progress in state.progress.items()}
    heard[state.identity] = True
    for progress in state.progress.values():
        progress.heard = False
    return quorum.vote_result(state.configurations.current, heard) is VoteResult.WON


def is_leased(state: RaftState) -> bool:
    """Whether this member heard a leader so lately that it ignores elections of others."""
    return (
        state.settings.check_quorum
        and state.leader is not None
        and state.election_elapsed < state.settings.election_ticks
    )


def campaign(state: RaftState) -> None:
    if state.role is Role.LEADER or not state.may_campaign:
        return
    if state.settings.pre_vote:
        _start_pre_vote(state)
    else:
        _start_vote(state, transfer=False)


def _start_pre_vote(state: RaftState) -> None:
    term = state.term
    state.become_pre_candidate()
    assert state.term == term, "to ask for votes beforehand costs no term"
    last_index, last_term = state.log.last_index, state.log.last_term
    for peer in _other_voters(state):
        state.outbox.append(
            PreVoteRequest(state.group, state.identity, peer, state.term + 1, last_index, last_term)
        )
    _count_pre_vote(state, state.identity, True)


def _start_vote(state: RaftState, *, transfer: bool) -> None:
    """The own vote is counted by `own_vote_is_durable`, when the disk has it."""
    term = state.term
    state.become_candidate()
    assert state.term == term + 1 and state.vote == state.identity, "a candidate has a term of its own"
    last_index, last_term = state.log.last_index, state.log.last_term
    for peer in _other_voters(state):
        state.outbox_after_persist.append(
            VoteRequest(state.group, state.identity, peer, state.term, last_index, last_term, transfer)
        )


def _other_voters(state: RaftState) -> list[int]:
    configuration = state.configurations.current
    return [peer for peer in state.peers() if configuration.has_vote(peer)]


def own_vote_is_durable(state: RaftState) -> None:
    """Called when writes completed: a candidate whose vote for itself is on disk may count it."""
    durable = state.writes.durable_hard_state
    if state.role is Role.CANDIDATE and durable.term == state.term and durable.vote == state.identity:
        _count_vote(state, state.identity, True)


def _count_pre_vote(state: RaftState, voter: int, granted: bool) -> None:
    assert state.role is Role.PRE_CANDIDATE, "a vote that nobody asked for"
    state.votes.setdefault(voter, granted)
    result = quorum.vote_result(state.configurations.current, state.votes)
    if result is VoteResult.WON:
        _start_vote(state, transfer=False)
    elif result is VoteResult.LOST:
        state.become_follower(state.term, None)


def _count_vote(state: RaftState, voter: int, granted: bool) -> None:
    assert state.role is Role.CANDIDATE and state.vote == state.identity, "a candidate votes for itself"
    state.votes.setdefault(voter, granted)
    result = quorum.vote_result(state.configurations.current, state.votes)
    if result is VoteResult.WON:
        replication.start_leading(state)
    elif result is VoteResult.LOST:
        state.become_follower(state.term, None)


def may_vote_for(state: RaftState, candidate: int) -> bool:
    """Whether this term's vote is free for the candidate, or already its own."""
    return state.vote == candidate or (state.vote is None and state.leader is None)


def on_pre_vote_request(state: RaftState, request: PreVoteRequest) -> None:
    """Answers what a vote would be; changes nothing. Membership is not asked: the log may be behind."""
    is_free = request.term > state.term or may_vote_for(state, request.sender)
    granted = is_free and state.log.is_current(request.last_index, request.last_term)
    term = request.term if granted else state.term
    state.outbox.append(PreVoteReply(state.group, state.identity, request.sender, term, granted))


def on_vote_request(state: RaftState, request: VoteRequest) -> None:
    assert request.term == state.term, "a vote in another term"
    granted = may_vote_for(state, request.sender) and state.log.is_current(
        request.last_index, request.last_term
    )
    reply = VoteReply(state.group, state.identity, request.sender, state.term, granted)
    if granted:
        assert state.role is not Role.LEADER, "a leader votes for nobody else"
        state.cast_vote(request.sender)
        state.election_elapsed = 0
        state.outbox_after_persist.append(reply)
    else:
        state.outbox.append(reply)


def on_pre_vote_reply(state: RaftState, reply: PreVoteReply) -> None:
    expected = state.term + 1 if reply.granted else state.term
    if state.role is Role.PRE_CANDIDATE and reply.term == expected:
        _count_pre_vote(state, reply.sender, reply.granted)


def on_vote_reply(state: RaftState, reply: VoteReply) -> None:
    assert reply.term == state.term, "a vote of another term"
    if state.role is Role.CANDIDATE:
        _count_vote(state, reply.sender, reply.granted)


def on_timeout_now(state: RaftState, message: TimeoutNow) -> None:
    """The leader gives way: no pre-vote, and leases of the others do not count against it."""
    assert message.term == state.term, "a leader of another term gives way"
    if state.role is Role.FOLLOWER and state.leader == message.sender and state.may_campaign:
        _start_vote(state, transfer=True)


def on_forget_leader(state: RaftState, _event: ForgetLeader) -> None:
    if state.role is Role.FOLLOWER:
        state.leader = None


def on_transfer(state: RaftState, event: TransferLeadership) -> None:
    if state.role is not Role.LEADER:
        state.refuse(Reason.NOT_LEADER)
    elif event.target == state.identity or not state.configurations.current.has_vote(event.target):
        state.refuse(Reason.NOT_A_VOTER)
    else:
        if state.transfer_target != event.target:
            # Asked again it goes on: a target that is dead is given up in time all the same.
            state.transfer_target = event.target
            state.election_elapsed = 0
        progress = state.progress[event.target]
        if progress.match == state.log.last_index:
            replication.send_timeout_now(state, event.target)
        else:
            replication.send_append(state, event.target, progress, may_be_empty=True)
