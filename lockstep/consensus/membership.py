"""Changing who belongs to the group.

Invariant: at most one change is under way, and it starts only when the previous configuration and an entry of
this leader's term are committed; adjacent configurations always share a voter in any two quorums. A joint
configuration is left by itself. A leader that the committed configuration no longer counts steps down.
"""

from __future__ import annotations

from lockstep.consensus import replication
from lockstep.consensus.configuration import Configuration, encode_configuration, first_step
from lockstep.consensus.effects import Accepted, Reason, Role
from lockstep.consensus.events import ProposeConfiguration
from lockstep.consensus.messages import EntryKind
from lockstep.consensus.state import RaftState


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
