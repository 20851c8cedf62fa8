"""Majorities, of one set of voters or of two at once.

Invariant: any two quorums of one configuration share a voter; of a joint one, a quorum holds a majority of
the incoming and one of the outgoing voters. An empty configuration has no quorum at all.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from lockstep.consensus.configuration import Configuration


class VoteResult(enum.Enum):
    WON = "won"
    LOST = "lost"
    PENDING = "pending"


def majority(count: int) -> int:
    return count // 2 + 1


def _agreed(voters: tuple[int, ...], values: Mapping[int, int]) -> int:
    """The largest value that a majority of `voters` has reached; a missing voter reached 0."""
    count = len(voters)
    assert count > 0, "nobody agrees where nobody votes"
    if count == 1:
        return values.get(voters[0], 0)
    reached = sorted([values.get(voter, 0) for voter in voters])
    return reached[count - majority(count)]


def agreed_value(configuration: Configuration, values: Mapping[int, int]) -> int:
    """The largest value (log index, read round) that a quorum has reached; 0 when there are no voters."""
    if not configuration.voters:
        return 0
    agreed = _agreed(configuration.voters, values)
    if configuration.outgoing:
        agreed = min(agreed, _agreed(configuration.outgoing, values))
    return agreed


def _counted(voters: tuple[int, ...], votes: Mapping[int, bool]) -> VoteResult:
    granted = denied = 0
    for voter in voters:
        vote = votes.get(voter)
        if vote is not None:
            granted += vote
            denied += not vote
    needed = majority(len(voters))
    if granted >= needed:
        return VoteResult.WON
    return VoteResult.LOST if len(voters) - denied < needed else VoteResult.PENDING


def vote_result(configuration: Configuration, votes: Mapping[int, bool]) -> VoteResult:
    """How an election stands; votes of others than voters do not count."""
    result = _counted(configuration.voters, votes)
    if not configuration.outgoing or result is VoteResult.LOST:
        return result
    outgoing = _counted(configuration.outgoing, votes)
    return (
        outgoing if result is VoteResult.WON else (VoteResult.PENDING, outgoing)[outgoing is VoteResult.LOST]
    )
