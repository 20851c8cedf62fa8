"""What is between the answers of a tracked table's replicas and the answer to a client.

One replica has answered with data, the others with what they hold. Invariant: what is returned holds
everything that any of the replicas asked held as it was asked, and each of these holds, durably, everything
that is in it: whole mutations, so none is seen in part, and a later read of the level sees them again. What
cannot be brought, for its single mutations are let go of while a replica is away, is read at one that has it,
and is to be held by so many replicas that each later read of the level asks one of them. Data is read three
times at most. A client that told what it has seen is answered by a replica that holds that as well, also
where one answer is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence

from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.read_round import Answer
from lockstep.internode import verbs
from lockstep.quorum.causal import CAUSAL
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import Target
from lockstep.replica.messages import Known, ReadReply, ReadRequest
from lockstep.replica.tracked import Bring
from lockstep.tracking.held import NOTHING, Held, all_of
from lockstep.values.errors import LockstepError, PeerTimeout
from lockstep.values.rows import ReadCommand


def known_of(answer: Answer) -> Known:
    known = answer[1].known
    assert known is not None, "a replica of a tracked table says what it holds"
    return known


def meets(plan: Plan, holders: Collection[int]) -> bool:
    """Whether every read of the plan's level asks one of these replicas."""
    return not plan.satisfied_by(target.node for target in plan.targets if target.node not in holders)


def held_by(answer: Answer) -> Held:
    return _held(known_of(answer))


def _held(known: Known) -> Held:
    return known.held.union(known.recent)


def _with_others(known: Known) -> Held:
    """What it is known to hold of the range, of other partitions too: of what is apart nobody can say of
    which one it is."""
    return _held(known).union(known.open)


def is_even(data: Known, others: Sequence[Known]) -> bool:
    """Whether nothing is to be brought to anybody: the answer with data holds all that others told of, and
    they hold what it shows."""
    if data.apart:
        return False
    for one in others:
        if one.apart or not (data.held.covers(one.held) and data.held.covers(one.recent)):
            return False
        if data.recent and not _held(one).covers(data.recent):
            return False
    return True


def _require_met(plan: Plan, apart: Held, known: Sequence[tuple[Target, Known]]) -> None:
    """PeerTimeout unless each later read of the level asks a replica that has these, which some that answered
    lack."""
    if not apart:
        return
    answered = {int(target.node): one for target, one in known}
    holders = {node for node, one in answered.items() if _with_others(one).covers(apart)}
    for node in sorted(holders):
        if answered[node].apart.covers(apart):
            holders.update(other for other in answered[node].holders if other not in answered)
    if not meets(plan, holders):
        raise PeerTimeout("a replica that was away is still to get what the others hold")


def known_everywhere(context: CoordinationContext, plan: Plan) -> Held:
    """What this node knows to be held by every replica of the plan's range."""
    if plan.local is None or plan.shard is None or context.tracked is None:
        return NOTHING
    return context.tracked.journal.reconciled(plan.shard)


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
    apart = all_of(one.apart for _, one in known)
    bringing: list[Awaitable[None]] = []
    for target, one in known:
        lacking = shown.difference(one.held.union(one.recent))
        _require_met(plan, lacking.intersection(apart).difference(one.open), known)
        lacking = lacking.difference(apart)
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
        data = next((one for one in answers if not one[1].digest and plan.shows(one[0].node)), None)
        if data is None:
            return None
        others = [answer for answer in answers if answer is not data]
        if any(known_of(answer).over != known_of(data).over for answer in others):
            # One of them has not heard yet that a log is over, or has not all of it.
            self._runtime.probes.reach("read.tracked_listed")
            return None
        follows = CAUSAL.get() is not None and request.command.key is not None
        if not follows and is_even(known_of(data), list(map(known_of, others))):
            return [data]
        try:
            async with asyncio.timeout(max(deadline_s - self._runtime.clock.monotonic_s(), 0.0)):
                return [await self._settled(plan, request, data, others, deadline_s)]
        except (LockstepError, TimeoutError):
            self._runtime.probes.reach("read.tracked_anew")
            return None

    async def _settled(
        self, plan: Plan, request: ReadRequest, data: Answer, others: Sequence[Answer], deadline_s: float
    ) -> Answer:
        causal = CAUSAL.get() if request.command.key is not None else None
        apart = all_of(known_of(answer).apart for answer in others)
        if not held_by(data).covers(apart):
            data, others = await self._switched(plan, request, apart, (data, *others), deadline_s)
        wanted = all_of(held_by(answer) for answer in others)
        if causal is not None:
            wanted = wanted.union(causal.wanted(plan))
            if request.names_held:
                whole = all_of(known_of(answer).whole for answer in others)
                wanted = wanted.union(causal.seen_elsewhere(plan).intersection(whole))
        if not known_of(data).held.covers(wanted):
            self.reread += 1
            self._runtime.probes.reach("read.tracked_reread")
            holders = [answer[0] for answer in others]
            if causal is not None:
                self._runtime.probes.reach("read.followed")
                left = [one for one in plan.near_first if one not in (data[0], *holders)]
                holders += sorted(left, key=lambda target: not self._context.alive(target.node))
            everywhere = all_of(known_of(answer).held for answer in others if answer[1].digest)
            await self._bring(plan, data[0], request, wanted, holders, deadline_s, everywhere)
            data = (data[0], await self._read(plan, data[0], request, deadline_s))
        known = [(answer[0], known_of(answer)) for answer in (data, *others)]
        shown, apart = known_of(data).recent, known_of(data).apart
        _require_met(plan, all_of(apart.difference(_with_others(known_of(one))) for one in others), known)
        bringing: list[Awaitable[None]] = [
            self._bring(plan, answer[0], request, lacking, (data[0],), deadline_s)
            for answer in others
            if (lacking := shown.difference(held_by(answer)).difference(apart))
        ]
        if bringing:
            self.brought += len(bringing)
            self._runtime.probes.reach("read.tracked_brought")
            await asyncio.gather(*bringing)
        if causal is not None:
            everywhere = known_everywhere(self._context, plan)
            if request.names_held:
                causal.found(plan, held_by(data), everywhere)
            causal.saw(plan, known_of(data).recent, everywhere)
        return data

    async def _switched(
        self, plan: Plan, request: ReadRequest, apart: Held, answers: Sequence[Answer], deadline_s: float
    ) -> tuple[Answer, list[Answer]]:
        """The data of a replica that holds what cannot be brought to another one, and the other answers.
        PeerTimeout when each of them lacks something."""
        for answer in answers:
            known = known_of(answer)
            if plan.shows(answer[0].node) and not known.partial and _with_others(known).covers(apart):
                self._runtime.probes.reach("read.tracked_switched")
                others = [other for other in answers if other is not answer]
                return (answer[0], await self._read(plan, answer[0], request, deadline_s)), others
        raise PeerTimeout("each replica asked was away while others wrote, and is still to get that")

    async def _read(self, plan: Plan, target: Target, request: ReadRequest, deadline_s: float) -> ReadReply:
        """PeerTimeout when the replica has begun to get what it missed, and shows no data any more."""
        reply: ReadReply
        if target is plan.local:
            reply = await self._context.replica.read(request)
        else:
            left_ms = self._left_ms(deadline_s)
            reply = await self._context.internode.request(target.address, verbs.READ, request, left_ms)
        if reply.digest:
            raise PeerTimeout(f"node {target.node} is getting what it missed of the range")
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
