"""Writes of tracked tables: a replica gives the id, stores the mutation and coordinates the write.

Invariant: the mutation is stored by whoever gives its id before anybody else hears of it. A coordinator that
is no replica asks one to coordinate, another one only where nothing was done; when that one dies, each
replica has the whole mutation or nothing, and the client is told that the outcome is unknown. What is asked
for is done once at most, and never after a refusal. Nobody is left hints. Of a table with views each replica
keeps a write to bring it to a quorum, until it is told that one has it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from lockstep.coordination.context import CLIENT, SHOWN, CoordinationContext, Terms
from lockstep.coordination.once import Attempt, Attempts, Once
from lockstep.coordination.tracked_reads import known_everywhere
from lockstep.coordination.writes import Told, Write, Writes
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.quorum.causal import CAUSAL, Causal
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import WRITE, Round, Target
from lockstep.storage.rows.fragments import require_fitting
from lockstep.tracking.held import NOTHING, MutationId
from lockstep.values.codec import encode
from lockstep.values.errors import (
    ColumnsGone,
    HandshakeRefused,
    InvalidRequest,
    LockstepError,
    NodeExcluded,
    NotReplica,
    Overloaded,
    PeerUnreachable,
    RequestError,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import WRITES_IN_FLIGHT_MAX
from lockstep.values.rows import Mutation


class Lead(msgspec.Struct, frozen=True, array_like=True):
    """Coordinate a write, as a replica of it."""

    needs_epoch: int
    mutation: Mutation
    consistency: Consistency
    timeout_ms: int
    write_type: str
    needs_columns: bool = True
    attempt: Attempt = Attempt()


class Led(msgspec.Struct, frozen=True, array_like=True):
    """`start`: that of the one who answers, where another one was meant; then nothing was done."""

    epoch: int
    given: MutationId | None = None
    start: int = 0


#: What is acknowledged at these is not lost with one of its replicas.
_HELD: Final = (Consistency.QUORUM, Consistency.LOCAL_QUORUM)


class _HeldByQuorum:
    """A write to a table with views as who listens for its end is told of it: it has settled once a quorum of
    the replicas that there are now holds it, or one of those in this data centre, while others are cut off.
    The rest gets it from these."""

    __slots__ = ("_write",)

    def __init__(self, write: Write) -> None:
        self._write = write

    def reached(self) -> bool:
        plans, mutation = self._write.owner.plans, self._write.mutation
        try:
            return any(self._satisfies(plans.plan_of(mutation, level)) for level in _HELD)
        except InvalidRequest:
            return True  # Its table is gone, and nothing is owed to that.

    def _satisfies(self, newest: Plan) -> bool:
        accepted = self._write.round.accepted
        return newest.satisfied_by([node for node, at in accepted.items() if at >= newest.needs_epoch])

    def settled_for(self) -> tuple[bytes, tuple[Target, ...]]:
        return self._write.settled_for()


class TrackedWrites:
    def __init__(self, context: CoordinationContext, writes: Writes, start: int) -> None:
        """`start`: which one of this node this process is."""
        self._context = context
        self._writes = writes
        self._attempts = Attempts(start)
        self._once = Once[Led](start)
        self._runtime = context.runtime
        #: Writes that another replica coordinates now.
        self.led = 0
        context.internode.register(verbs.TRACKED_WRITE, Lead, Led, self._serve)

    def submit(
        self, plan: Plan, mutation: Mutation, deadline_s: float, told: Told, what: str, terms: Terms
    ) -> None:
        """As `Writes.submit`; `what` is the type of the write. It is stored here already when its terms name
        an id."""
        if plan.consistency is Consistency.ANY:
            raise InvalidRequest("no write of a tracked table is at ANY: replicas of it are left no hints")
        if plan.local is not None and plan.local.node in plan.group.writes:
            # One that is too large is refused by the step that would store it, and gets no id.
            # What is owed is kept by whoever owes it, until a quorum has it.
            first_epoch = plan.epoch if plan.has_views and not terms.is_owed else 0
            given = terms.tracking or self._context.replica.keeping.give(plan, mutation, first_epoch)
            causal = CAUSAL.get()
            if causal is not None:
                causal.wrote(plan, given, known_everywhere(self._context, plan))
            own = msgspec.structs.replace(terms, leaves_hints=False, is_owed=False, tracking=given)
            write = Write(
                self._writes, Round(WRITE, plan), mutation, deadline_s, told, own, what, first_epoch
            )
            if first_epoch and self._writes.base_writes is not None:
                write.settled = self._writes.base_writes.watch(_HeldByQuorum(write))
            write.start()
            return
        require_fitting(mutation, len(encode(mutation)))
        if self.led >= WRITES_IN_FLIGHT_MAX:
            raise Overloaded("too many writes in flight on this node")
        self.led += 1
        self._runtime.tasks.spawn(self._lead(plan, mutation, deadline_s, told, what, terms), "write-led")

    async def _lead(
        self, plan: Plan, mutation: Mutation, deadline_s: float, told: Told, what: str, terms: Terms
    ) -> None:
        try:
            await self._led(plan, mutation, deadline_s, what, terms)
        except RequestError as error:
            told(error)
        except LockstepError:
            told(WriteTimeout(plan.consistency, 0, plan.required, what))
        else:
            told(None)
        finally:
            self.led -= 1

    async def _led(self, plan: Plan, mutation: Mutation, deadline_s: float, what: str, terms: Terms) -> None:
        alive = self._context.alive
        # Who is a replica of the log of changes alone gives no ids.
        leaders = [target for target in plan.near_first if target.node in plan.group.writes]
        for target in sorted(leaders, key=lambda target: not alive(target.node)):
            try:
                led = await self._asked(target.address, plan, mutation, deadline_s, what, terms)
            except (PeerUnreachable, NodeExcluded, HandshakeRefused):
                led = None
            if led is None:
                self._runtime.probes.reach("write.another_leads")
                continue
            causal = CAUSAL.get()
            if causal is not None and led.given is not None:
                causal.wrote(plan, led.given, NOTHING)
            return
        raise plan.shortage(())

    async def _asked(
        self, leader: Address, plan: Plan, mutation: Mutation, deadline_s: float, what: str, terms: Terms
    ) -> Led | None:
        """The answer of a leader; None when it has done nothing, for it started again each time."""
        for _ in range(2):
            left_ms = max(0.0, (deadline_s - self._runtime.clock.monotonic_s()) * 1000)
            columns, attempt = terms.needs_columns, self._attempts.next(leader)
            lead = Lead(plan.needs_epoch, mutation, plan.consistency, int(left_ms), what, columns, attempt)
            try:
                led: Led = await self._context.internode.request(leader, verbs.TRACKED_WRITE, lead, left_ms)
            except ColumnsGone as error:
                # Planned anew by what this node knows it would be refused again.
                with suppress(LockstepError):
                    await self._context.catch_up(error.epoch, leader)
                raise
            if not led.start:
                return led
            self._attempts.told(leader, led.start)
        return None

    async def _serve(self, peer: PeerInfo, request: Lead) -> Led:
        if not self._once.is_meant(request.attempt):
            return Led(self._context.plans.epoch, start=self._once.start)
        try:
            return await self._once.carry_out(
                peer.host_id, request.attempt, lambda: self._carry_out(peer, request)
            )
        except ColumnsGone as error:
            error.epoch = self._context.plans.epoch
            raise

    async def _carry_out(self, peer: PeerInfo, request: Lead) -> Led:
        plans = self._context.plans
        if request.needs_epoch > plans.epoch:
            await self._context.catch_up(request.needs_epoch, peer.endpoint)
        plan = plans.plan_of(request.mutation, request.consistency)
        if plan.local is None or plan.local.node not in plan.group.writes:
            raise NotReplica(f"node {plan.asker.node} leads no write of token {request.mutation.token}")
        causal = Causal()
        noting = CAUSAL.set(causal)
        try:
            written = self._writes.begin(
                request.mutation,
                request.consistency,
                request.timeout_ms,
                request.write_type,
                CLIENT if request.needs_columns else SHOWN,
            )
        finally:
            CAUSAL.reset(noting)
        await written
        return Led(plans.epoch, causal.given)
