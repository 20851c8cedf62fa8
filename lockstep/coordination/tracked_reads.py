"""What is between the answers of a tracked table's replicas and the answer to a client.

One replica has answered with data, the others with what they hold. Invariant: what is returned holds
everything that any of the replicas asked held as it was asked, and each of these holds, durably, everything
that is in it: whole mutations, so none is seen in part, and a later read of the level sees them again. Data
is read twice at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.read_round import Answer
from lockstep.internode import verbs
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import Target
from lockstep.replica.messages import Known, ReadReply, ReadRequest
from lockstep.replica.tracked import Bring
from lockstep.tracking.held import NOTHING, Held, all_of
from lockstep.values.errors import LockstepError
from lockstep.values.rows import ReadCommand


def known_of(answer: Answer) -> Known:
    known = answer[1].known
    assert known is not None, "a replica of a tracked table says what it holds"
    return known


def held_by(answer: Answer) -> Held:
    known = known_of(answer)
    return known.held.union(known.recent)


async def bring(
    context: CoordinationContext,
    plan: Plan,
    target: Target,
    table_id: int,
    wanted: Held,
    sources: Sequence[Target],
    left_ms: float,
    everywhere: Held = NOTHING,
) -> None:
    """Have a replica hold these mutations, durably, which the sources hold between them; see `Bring`."""
    assert plan.shard is not None and context.tracked is not None, "the table is tracked"
    addresses = tuple(source.address for source in sources)
    asked = Bring(
        *(plan.epoch, plan.needs_epoch, table_id, plan.shard, wanted, addresses, int(left_ms), everywhere)
    )
    if target is plan.local:
        await context.tracked.bring(asked)
    else:
        await context.internode.request(target.address, verbs.TRACKED_BRING, asked, left_ms)


async def made_even(
    context: CoordinationContext,
    plan: Plan,
    command: ReadCommand,
    known: Sequence[tuple[Target, Known]],
    left_ms: float,
) -> None:
    """Have each of these replicas hold what any of them held of what was read."""
    shown = all_of(one.recent for _, one in known)
    bringing: list[Awaitable[None]] = []
    for target, one in known:
        lacking = shown.difference(one.held.union(one.recent))
        if lacking:
            sources = [other for other, _ in known if other is not target]
            bringing.append(bring(context, plan, target, command.table_id, lacking, sources, left_ms))
    if bringing:
        context.runtime.probes.reach("conditional.brought")
        async with asyncio.timeout(left_ms / 1000):
            await asyncio.gather(*bringing)


class TrackedReads:
    def __init__(self, context: CoordinationContext) -> None:
        self._context = context
        self._runtime = context.runtime
        #: Reads whose data was read again, and replicas that were brought what they lacked.
        self.reread = 0
        self.brought = 0

    async def settled(
        self, plan: Plan, request: ReadRequest, answers: Sequence[Answer], deadline_s: float
    ) -> list[Answer] | None:
        """The answer with data once it stands; None when that failed, and the question is to be asked
        anew."""
        # A replica that is being filled has ids of which it lacks others: it says what it holds, no more.
        readers = plan.group.reads
        data = next(answer for answer in answers if not answer[1].digest and answer[0].node in readers)
        others = [answer for answer in answers if answer is not data]
        try:
            async with asyncio.timeout(max(deadline_s - self._runtime.clock.monotonic_s(), 0.0)):
                return [await self._settled(plan, request, data, others, deadline_s)]
        except (LockstepError, TimeoutError):
            self._runtime.probes.reach("read.tracked_anew")
            return None

    async def _settled(
        self, plan: Plan, request: ReadRequest, data: Answer, others: Sequence[Answer], deadline_s: float
    ) -> Answer:
        wanted = all_of(held_by(answer) for answer in others)
        if not known_of(data).held.covers(wanted):
            self.reread += 1
            self._runtime.probes.reach("read.tracked_reread")
            holders = [answer[0] for answer in others]
            everywhere = all_of(known_of(answer).held for answer in others if answer[1].digest)
            await self._bring(plan, data[0], request, wanted, holders, deadline_s, everywhere)
            data = (data[0], await self._read(plan, data[0], request, deadline_s))
        shown = known_of(data).recent
        bringing: list[Awaitable[None]] = [
            self._bring(plan, answer[0], request, lacking, (data[0],), deadline_s)
            for answer in others
            if (lacking := shown.difference(held_by(answer)))
        ]
        if bringing:
            self.brought += len(bringing)
            self._runtime.probes.reach("read.tracked_brought")
            await asyncio.gather(*bringing)
        return data

    async def _read(self, plan: Plan, target: Target, request: ReadRequest, deadline_s: float) -> ReadReply:
        if target is plan.local:
            return await self._context.replica.read(request)
        reply: ReadReply = await self._context.internode.request(
            target.address, verbs.READ, request, self._left_ms(deadline_s)
        )
        return reply

    async def _bring(
        self,
        plan: Plan,
        target: Target,
        request: ReadRequest,
        wanted: Held,
        sources: Sequence[Target],
        deadline_s: float,
        everywhere: Held = NOTHING,
    ) -> None:
        left_ms = self._left_ms(deadline_s)
        table_id = request.command.table_id
        await bring(self._context, plan, target, table_id, wanted, sources, left_ms, everywhere)

    def _left_ms(self, deadline_s: float) -> float:
        return max(0.0, (deadline_s - self._runtime.clock.monotonic_s()) * 1000)
