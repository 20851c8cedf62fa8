"""The end of a conditional write in one round: where this node and any other replica are a quorum, this node
accepts the proposal first, and each other replica that accepts it knows that it is decided and applies it.

Invariant: Nobody is told that its vote decides before this node's own is durable. Applied is only what a
quorum accepted, and this node applies it after another one has accepted it. A round ends well when as many
have applied it as the level of the write asks for; in any other case what became of the proposal is found out
as without this.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Any

from lockstep.consensus.paxos import Proposal
from lockstep.coordination.ballot_rounds import ConditionalsShared, PaxosRound, Rounds
from lockstep.internode import verbs
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import BALLOT, End, Round
from lockstep.replica.messages import CommitReply, CommitRequest, ProposeReply, ProposeRequest
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.ids import Consistency


class Reached(enum.Enum):
    """How far a proposal got."""

    #: Decided, and applied at the level of the write.
    HELD = "held"
    #: Decided; too few have said yet that they applied it.
    DECIDED = "decided"
    #: Another ballot is to be taken.
    AGAIN = "again"


class _Votes:
    """Judges the answers of one round, and is this node's own."""

    def __init__(self, owner: ConditionalsShared, commit: CommitRequest) -> None:
        self._owner = owner
        self._commit = commit
        #: Whether it is decided; known at the end of the round at the latest.
        self._known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def decided(self) -> bool:
        return self._known.done() and self._known.result()

    def end(self) -> None:
        if not self._known.done():
            self._known.set_result(False)

    def agrees(self, reply: Any) -> bool:
        if isinstance(reply, CommitReply):
            return True
        assert isinstance(reply, ProposeReply), "others are asked to accept"
        if reply.accepted and not self._known.done():
            self._owner.reach("conditional.decided")
            self._known.set_result(True)
        return reply.applied

    async def here(self) -> Any:
        if await self._known:
            return await self._owner.ballots.answer(self._commit)
        return ProposeReply(self._commit.epoch, False, self._commit.proposal.ballot)


def suits(plan: Plan, level: Plan) -> bool:
    """Whether this node's vote and any other one are a quorum, and no node by itself is enough at the level
    of the write."""
    local = plan.local
    if plan.shard is not None:
        # Only what was decided gets an id, and others apply it under that.
        return False
    if local is None or level.epoch != plan.epoch or level.by_node.keys() != plan.by_node.keys():
        return False
    if any(level.satisfied_by((target.node,)) for target in level.targets):
        return False
    return bool(plan.remote) and all(plan.satisfied_by((local.node, one.node)) for one in plan.remote)


async def decide_at_once(
    rounds: Rounds, plan: Plan, own: Proposal, consistency: Consistency
) -> Reached | None:
    """None: it does not suit, and votes are to be asked for as usual."""
    owner, place = rounds.owner, rounds.place
    try:
        level = owner.plans.write_plan(place.table_id, place.token, consistency)
    except InvalidRequest:
        return None  # The table was dropped meanwhile: whoever plans next tells of it.
    if not suits(plan, level):
        return None
    try:
        first = await owner.ballots.answer(ProposeRequest(plan.epoch, plan.needs_epoch, place, own))
    except LockstepError:
        return None  # Asked again with the others, this node says why, and that is judged as usual.
    if not first.accepted or rounds.changed(plan):
        return None
    owner.reach("conditional.proposed")
    votes = _Votes(owner, CommitRequest(plan.epoch, plan.needs_epoch, place, own))
    paxos_round = PaxosRound(
        owner,
        Round(BALLOT, level),
        verbs.CAS_PROPOSE,
        ProposeRequest(plan.epoch, plan.needs_epoch, place, own, True),
        rounds.deadline_s,
        votes.agrees,
        votes.here,
    )
    try:
        end = await paxos_round.run()
    finally:
        votes.end()
    if end is not End.STALE and votes.decided and not rounds.changed(plan):
        if end is not End.ENOUGH:
            return Reached.DECIDED
        owner.reach("conditional.held_at_once")
        rounds.did("Accepted and applied what was proposed", paxos_round.granted)
        rounds.leave_hints(level, own, paxos_round)
        return Reached.HELD
    if end is not End.ENOUGH:
        await rounds.came_of(plan, paxos_round, end)
    return Reached.AGAIN
