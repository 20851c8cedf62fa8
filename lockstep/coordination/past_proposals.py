"""The end of a proposal that was left in progress and is so old that a later deletion may be purged.

Invariant: its value is brought to no replica. It is ended without effect only when every replica was asked
since a quorum promised, and none knows it as decided: then nobody was told that it was applied, for whoever
would tell has no more time. Otherwise a quorum gets the rows that there are of it, and it counts as decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, Proposal
from lockstep.coordination.paxos_round import PaxosRound
from lockstep.internode import verbs
from lockstep.quorum.plans import Plan
from lockstep.quorum.policies import BALLOT
from lockstep.quorum.round import Count, Round
from lockstep.replica.ballot_messages import PrepareRequest
from lockstep.replica.ballots import MUTATION
from lockstep.replica.merging import merge_answers
from lockstep.storage.rows.fragments import touched
from lockstep.values.errors import Unavailable
from lockstep.values.rows import ReadCommand

if TYPE_CHECKING:
    from lockstep.coordination.ballot_rounds import Rounds


async def ended(rounds: Rounds, plan: Plan, left: Proposal, now_s: int) -> Proposal | None:
    """What is to be decided in the place of `left`; None: begin again. Unavailable when some replica seems
    dead: it may be the only one that knows."""
    owner, targets = rounds.owner, plan.targets
    alive = [target for target in targets if owner.alive(target.node)]
    if len(alive) < len(targets):
        raise Unavailable(rounds.serial, len(targets), len(alive))
    rounds.did("Asking every replica whether an old proposal was decided")
    command: ReadCommand | None = _rows_of(left, rounds, now_s)
    while command is not None:
        round_ = Round(BALLOT, Count(targets, len(targets)))
        request = PrepareRequest(plan.epoch, plan.needs_epoch, rounds.place, NO_BALLOT, command)
        canvass = PaxosRound(owner, round_, verbs.CAS_PREPARE, request, rounds.deadline_s, lambda reply: True)
        if not await rounds.won(plan, canvass) or rounds.changed(plan):
            return None
        replies = canvass.granted.values()
        if not any(left.origin in paxos.decided(reply.state.committed) for reply in replies):
            owner.reach("conditional.voids")
            return left.voided()
        results = [reply.result for reply in replies]
        await rounds.made_good(command, results)
        _, end = merge_answers(results, command.reverse)
        command = msgspec.structs.replace(command, after=end) if end is not None else None
    owner.reach("conditional.past_decided")
    return left.made_good()


def _rows_of(left: Proposal, rounds: Rounds, now_s: int) -> ReadCommand:
    """A read of all that a proposal would write."""
    mutation, place = MUTATION.decode(left.value), rounds.place
    return ReadCommand(
        place.table_id,
        place.token - 1,
        place.token,
        place.key,
        touched(mutation),
        (),
        reads_static=mutation.static is not None,
        reverse=False,
        row_limit=0,
        partition_row_limit=0,
        now_s=now_s,
    )
