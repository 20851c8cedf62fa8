"""What voters read in the step of a promise, or of a look, and what it lacks where some are witnesses.

Invariant: rows come of replicas that keep them. What is judged has all that anybody who answered held of the
partition as it was asked: what a witness alone held is brought to who shows the rows first, and the rows are
read again in the step of a later promise, for one step says what was decided before and nothing later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.tracked_reads import bring
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import Target
from lockstep.replica.messages import Known, PrepareReply
from lockstep.tracking.held import all_of
from lockstep.values.ids import NodeId
from lockstep.values.rows import ReadCommand, ReadResult


class Looked(msgspec.Struct, frozen=True):
    """What replicas read for one question, and which mutations of a tracked table each of them held then.
    `witnessed`: of these the ones that show no rows."""

    plan: Plan
    results: list[ReadResult]
    known: tuple[tuple[Target, Known], ...]
    witnessed: tuple[tuple[Target, Known], ...] = ()


def looked_of(plan: Plan, replies: Mapping[NodeId, PrepareReply]) -> Looked:
    """Of everybody that answered, in their order."""
    known, witnessed, results = [], [], list[ReadResult]()
    for node, reply in replies.items():
        assert reply.result is not None, "who answers has looked"
        if reply.known is not None:
            known.append((plan.by_node[node], reply.known))
            if plan.readers is not None and node not in plan.readers:
                witnessed.append(known[-1])
                continue
        results.append(reply.result)
    return Looked(plan, results, tuple(known), tuple(witnessed))


def promises(reply: PrepareReply) -> bool:
    return reply.result is not None


async def shows_all(
    context: CoordinationContext, command: ReadCommand, looked: Looked, left_ms: float
) -> bool:
    """Whether the rows that were read have what witnesses hold. If not those who show rows hold it,
    durably, when this returns. PeerTimeout and the other errors of `bring`."""
    if not looked.witnessed:
        return True
    witnesses = [target for target, _ in looked.witnessed]
    wanted = all_of(one.held.union(one.recent) for _, one in looked.witnessed)
    showing = [(target, one) for target, one in looked.known if target not in witnesses]
    assert showing, "one of those who suffice shows rows"
    if not wanted.difference(all_of(one.held.union(one.recent) for _, one in showing)):
        return True
    context.runtime.probes.reach("conditional.witness_ahead")
    everywhere = all_of(one.held for _, one in looked.witnessed)
    async with asyncio.timeout(left_ms / 1000):
        await asyncio.gather(
            *(
                bring(context, looked.plan, target, command.table_id, lacking, witnesses, left_ms, everywhere)
                for target, one in showing
                if (lacking := wanted.difference(one.held.union(one.recent)))
            )
        )
    return False
