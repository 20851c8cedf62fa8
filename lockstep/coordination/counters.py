"""Changes of counters as their coordinator sees them: which replica counts, and what became of it.

Invariants. A change is given to another replica, or a second time to one, only after a definite refusal. An
error that is no WriteTimeout or WriteFailure means that nothing was counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lockstep.coordination.counter_leader import CounterLeader, CounterReply, CounterRequest
from lockstep.coordination.writes import require_alive
from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.internode.internode import Internode
from lockstep.quorum.plans import Plan, PlanBook
from lockstep.quorum.policies import COUNTER
from lockstep.quorum.round import Ask, Count, Effects, End, Round, Target
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    PeerTimeout,
    Unavailable,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import REPLICA_RETRY_MS
from lockstep.values.rows import Mutation


class Counters:
    """`catch_up` and `alive` as for writes."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        plans: PlanBook,
        leader: CounterLeader,
        catch_up: Callable[[int, Address], Awaitable[None]],
        alive: Callable[[int], bool],
        own_id: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._plans = plans
        self._leader = leader
        self._catch_up = catch_up
        self._alive = alive
        self._own_id = own_id
        #: What peers last said of their process; bounded by the nodes there are.
        self._incarnations: dict[Address, int] = {}

    async def change(self, mutation: Mutation, consistency: Consistency, timeout_ms: float) -> None:
        """Add the differences in `mutation` to counters of one partition. RequestError."""
        if consistency is Consistency.ANY:
            raise InvalidRequest("Consistency level ANY is not supported for counters")
        deadline_s = self._runtime.clock.monotonic_s() + timeout_ms / 1000
        while True:
            plan = self._plans.write_plan(mutation.table_id, mutation.token, consistency)
            require_alive(plan, self._alive)
            if await self._counted(plan, mutation, deadline_s):
                return
            if self._runtime.clock.monotonic_s() + REPLICA_RETRY_MS / 1000 >= deadline_s:
                # Every replica that was asked has refused for sure.
                raise Unavailable(consistency, plan.required, 0)
            await asyncio.sleep(REPLICA_RETRY_MS / 1000)

    async def _counted(self, plan: Plan, mutation: Mutation, deadline_s: float) -> bool:
        """Whether it is counted; not when all that may count have refused, or one of them is ahead."""
        round_ = Round(COUNTER, Count(self._leaders(plan), 1))
        effects = round_.begin()
        while (target := _asked(effects)) is not None:
            left_ms = (deadline_s - self._runtime.clock.monotonic_s()) * 1000
            if left_ms <= 0:
                break
            try:
                if await self._ask(target, plan, mutation, left_ms):
                    return True
                effects = round_.refused(target.node)
            except LockstepError as error:
                effects = round_.failed(target, error)
                if round_.end is End.FAILED:
                    if isinstance(error, PeerTimeout):
                        raise WriteTimeout(plan.consistency, 0, plan.required, "COUNTER") from error
                    raise
                self._runtime.probes.reach("counter.next_leader" if round_.end is None else "counter.behind")
        if round_.source is not None:
            await self._learn(*round_.source)
        return False

    def _leaders(self, plan: Plan) -> list[Target]:
        """Who may count, in the order to ask: those alive first, this node and its data centre before others.
        A level of one data centre is understood there only."""
        local = plan.needs[0].dc if len(plan.needs) == 1 else ""
        return [
            target
            for target in plan.near_first
            if target.node in plan.group.reads and local in ("", target.dc) and self._alive(target.node)
        ]

    async def _ask(self, target: Target, plan: Plan, mutation: Mutation, left_ms: float) -> bool:
        """Whether it is counted; not when the peer's process is not the one that was known."""
        request = CounterRequest(
            plan.epoch,
            plan.needs_epoch,
            mutation,
            plan.consistency,
            left_ms,
            self._incarnations.get(target.address, 0),
        )
        if target.node == self._own_id():
            return (await self._leader.count(request)).counted
        reply: CounterReply = await self._internode.request(target.address, verbs.COUNTER, request, left_ms)
        if reply.counted:
            return True
        self._incarnations[target.address] = reply.incarnation
        again = CounterRequest(
            plan.epoch, plan.needs_epoch, mutation, plan.consistency, left_ms, reply.incarnation
        )
        reply = await self._internode.request(target.address, verbs.COUNTER, again, left_ms)
        return reply.counted

    async def _learn(self, epoch: int, source: Target) -> None:
        try:
            await self._catch_up(epoch, source.address)
        except LockstepError:
            # Asked again shortly: another replica may tell more.
            self._runtime.probes.reach("counter.catch_up_failed")


def _asked(effects: Effects) -> Target | None:
    """Who is to be asked next."""
    return next((effect.targets[0] for effect in effects if isinstance(effect, Ask)), None)
