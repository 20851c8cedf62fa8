"""The coordinator of writes: send to all replicas, count acknowledgements, plan again when ownership moved.

Invariants. A write succeeds only when the replicas that acknowledged satisfy the newest plan this node
knows, and an acknowledgement counts for a plan only when the replica accepted at or after the last change
that matters to the plan. A replica that accepts at an epoch above ours vouches that our group held until
then, so an acknowledgement never calls for a catch-up; a refusal does. Every attempt sends the identical
mutation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from lockstep.coordination.capturing import is_in_time
from lockstep.coordination.context import CLIENT, CoordinationContext, Terms
from lockstep.coordination.driving import carry_out
from lockstep.coordination.forwarding import Forwarding
from lockstep.coordination.hinting import HintingWrite, HintKeeper, Settled
from lockstep.internode.serving import report
from lockstep.internode.waiters import Deadlines
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.quorum.failure_codes import causes_of, late, note_refusal, reasons_of
from lockstep.quorum.plans import Plan
from lockstep.quorum.request_trace import REQUEST_TRACE
from lockstep.quorum.round import (
    BEGIN,
    CHECK,
    ENOUGH,
    WRITE,
    Ask,
    Effects,
    End,
    Failure,
    Learn,
    Round,
    Target,
    Why,
)
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.storage.rows.fragments import require_fitting
from lockstep.values.codec import encode
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    Overloaded,
    RequestError,
    ServerFault,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import (
    MUTATION_BYTES_MAX,
    WRITES_BYTES_IN_FLIGHT_MAX,
    WRITES_IN_FLIGHT_MAX,
)
from lockstep.values.rows import Mutation

#: Why replicas are asked, as probes name it where it is not said before.
_REACHED: Final[Mapping[Why, str]] = {
    Why.ANSWERED_BEFORE: "write.answered_before_plan",
    Why.REFUSED_BEFORE: "write.refused_before_plan",
}
#: As `quorum.round.BEGIN`.
_ANY: Final = Consistency.ANY
#: No replica gets less than the whole mutation.
_WHOLE: Final[Mapping[NodeId, Mutation]] = {}

#: Told the end of a write: None, WriteTimeout, WriteFailure or another RequestError.
Told = Callable[[LockstepError | None], None]


class Begun(msgspec.Struct, frozen=True, gc=False):
    """A write to be begun; `told` hears once of its end."""

    mutation: Mutation
    consistency: Consistency
    told: Told


def settle(future: asyncio.Future[None]) -> Told:
    """Tells the end to a future; one that was cancelled meanwhile hears nothing."""

    def told(error: LockstepError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return told


class Settling(Protocol):
    """A write that settles: whether each of its replicas will have it, its id, and who they are."""

    def reached(self) -> bool: ...

    def settled_for(self) -> tuple[bytes, tuple[Target, ...]]: ...


class SettledWrites(Protocol):
    """Tells replicas of tables with views that a write has settled."""

    def watch(self, write: Settling) -> Settled: ...

    def stop(self) -> None: ...


class TrackedSubmit(Protocol):
    """Begins writes of tracked tables; as `Writes.submit`."""

    def submit(
        self, plan: Plan, mutation: Mutation, deadline_s: float, told: Told, what: str, terms: Terms
    ) -> None: ...


class Writes:
    """What all writes of one node share."""

    def __init__(
        self,
        context: CoordinationContext,
        hints: HintKeeper | None = None,
        forwarding: Forwarding | None = None,
        base_writes: SettledWrites | None = None,
    ) -> None:
        self.context = context
        self.runtime = context.runtime
        self.internode = context.internode
        self.plans = context.plans
        self.replica = context.replica
        self.reach = context.runtime.probes.reach
        self.in_flight = Deadlines(context.runtime.clock)
        #: Writes whose end was told, and of which replicas may still answer.
        self.lingering = Deadlines(context.runtime.clock)
        #: Of the mutations that both hold.
        self.bytes_in_flight = 0
        #: Spares other data centres messages; None: every replica is sent to directly.
        self.forwarding = forwarding
        #: Keeps what replicas did not acknowledge; None: nothing is kept.
        self.hints = hints
        #: Told of writes to tables with views; None: their replicas hear nothing.
        self.base_writes = base_writes
        #: Gathers what is to be applied here while many are begun; None: it is applied at once.
        self._here: list[tuple[Write, Target]] | None = None
        #: Begins writes of tracked tables; None: there are none.
        self.tracked: TrackedSubmit | None = None
        #: Plans that were replaced by one that differs in something that matters.
        self.replans = 0
        #: Refusals that made this node learn a newer epoch first.
        self.catch_ups = 0

    def begin(
        self,
        mutation: Mutation,
        consistency: Consistency,
        timeout_ms: float,
        write_type: str = "SIMPLE",
        terms: Terms = CLIENT,
    ) -> asyncio.Future[None]:
        """As `submit` with a future that ends with None or the error."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(mutation, consistency, timeout_ms, settle(future), write_type, terms)
        return future

    def submit(
        self,
        mutation: Mutation,
        consistency: Consistency,
        timeout_ms: float,
        told: Told,
        write_type: str = "SIMPLE",
        terms: Terms = CLIENT,
    ) -> None:
        """Start a write; `told` hears once of its end, perhaps before this returns.

        Raises Unavailable, Overloaded, InvalidRequest or ColumnsGone when nothing was sent; `told` hears
        nothing then.
        """
        self.admit()
        plan = self.plans.plan_of(mutation, consistency)
        if plan.log_id and terms.needs_columns and not self.is_captured(plan, mutation):
            raise ColumnsGone(str(mutation.table_id), begun=False)
        now_s = self.runtime.clock.monotonic_s()
        if now_s > plan.alive_until_s:
            if consistency is not Consistency.ANY or self.hints is None or not self.hints.policy.enabled:
                plan.require_alive(self.context.opinions)
            plan.note_alive(self.context.opinions)
        deadline_s = now_s + timeout_ms / 1000
        if plan.shard is not None:
            assert self.tracked is not None, "a node with tracked tables tracks"
            self.tracked.submit(plan, mutation, deadline_s, told, write_type, terms)
            return
        base_writes = self.base_writes
        if base_writes is not None and plan.has_views:
            first_epoch = plan.epoch
            write = Write(
                self, Round(WRITE, plan), mutation, deadline_s, told, terms, write_type, first_epoch
            )
            write.settled = base_writes.watch(write)
        else:
            write = Write(self, Round(WRITE, plan), mutation, deadline_s, told, terms, write_type)
        write.start()

    def submit_batch(self, writes: Sequence[Begun], timeout_ms: float) -> None:
        """As `submit` of each, where what that raises is told. All are sent before one is applied."""
        here: list[tuple[Write, Target]] = []
        self._here = here
        for write in writes:
            try:
                self.submit(write.mutation, write.consistency, timeout_ms, write.told)
            except LockstepError as error:
                write.told(error)
            except Exception as error:
                # A defect: its client gets a definite answer, the others' writes begin.
                self.runtime.tasks.spawn(report(error), "write-begin")
                write.told(ServerFault(f"the write did not begin: {type(error).__name__}"))
        self._here = None
        for begun, target in here:
            try:
                begun.apply_here(target)
            except Exception as error:
                self.runtime.tasks.spawn(report(error), "write-here")

    def apply_locally(self, write: Write, target: Target) -> None:
        """Apply a write to this node's own replica, now or once all that begin now are sent."""
        if self._here is not None:
            self._here.append((write, target))
        else:
            write.apply_here(target)

    def is_captured(self, plan: Plan, mutation: Mutation) -> bool:
        """Whether the write says what it adds to the log of its table's changes, if that has one by now, and
        to streams that count at its write time by what this node knows now."""
        captured = mutation.captured
        is_told = not plan.log_id or (captured is not None and captured.table_id == plan.log_id)
        return is_told and is_in_time(self.plans.cluster, mutation)

    def admit(self) -> None:
        """Overloaded when this node coordinates as many writes as it may, or as many bytes of them."""
        if len(self.in_flight) >= WRITES_IN_FLIGHT_MAX:
            raise Overloaded("too many writes in flight on this node")
        if self.bytes_in_flight >= WRITES_BYTES_IN_FLIGHT_MAX:
            raise Overloaded("too many bytes of writes in flight on this node")

    def stop(self) -> None:
        self.in_flight.stop()
        self.lingering.stop()
        if self.base_writes is not None:
            self.base_writes.stop()
        if self.forwarding is not None:
            self.forwarding.stop()


def _require_size(mutation: Mutation, encoded_bytes: int, *, is_whole: bool) -> None:
    if encoded_bytes > MUTATION_BYTES_MAX:
        raise InvalidRequest(f"a mutation of {encoded_bytes} bytes is above {MUTATION_BYTES_MAX}")
    if is_whole:
        require_fitting(mutation, encoded_bytes)


def _has_columns(cluster: ClusterMetadata, mutation: Mutation) -> bool:
    """Whether the table, which is there, has all columns that are written."""
    table, captured = cluster.table(mutation.table_id), mutation.captured
    assert table is not None, "a table with a plan is in the schema"
    logged = captured is not None and cluster.table(captured.table_id) is not None
    if captured is not None and logged and not _has_columns(cluster, captured):
        return False
    known = table.by_id
    return all(
        part.column in known
        for row in (*mutation.rows, *((mutation.static,) if mutation.static is not None else ()))
        for part in (*row.cells, *row.column_deletions)
    )


def _failure(round_: Round[Plan], write_type: str) -> WriteFailure:
    """The end of a write that too many replicas failed at."""
    plan, failures = round_.plan, round_.failed_with(Failure.FINAL)
    received, count = plan.counted(round_.counting()), len(failures)
    reasons, causes = reasons_of(plan.targets, failures), causes_of(plan.targets, failures)
    return WriteFailure(plan.consistency, received, plan.required, count, write_type, reasons, causes)


class Write:
    """One write in flight; hears its replicas as an internode Waiter, with the target as context.

    Its end is told before all have answered; then it goes on as coordination.hinting says.
    """

    __slots__ = (
        "_body",
        "_first_epoch",
        "_forwards",
        "_notes",
        "_number",
        "_parts",
        "_prepared_for",
        "_request",
        "_size",
        "_told",
        "_unacknowledged",
        "_write_type",
        "deadline_s",
        "done",
        "mutation",
        "owner",
        "retry",
        "round",
        "settled",
        "terms",
    )

    def __init__(
        self,
        owner: Writes,
        round_: Round[Plan],
        mutation: Mutation,
        deadline_s: float,
        told: Told,
        terms: Terms,
        write_type: str = "SIMPLE",
        first_epoch: int = 0,
    ) -> None:
        self.owner = owner
        self.round = round_
        self.mutation = mutation
        self.deadline_s = deadline_s
        self.terms = terms
        self.retry: asyncio.TimerHandle | None = None
        #: Whether the end was told.
        self.done = False
        #: Told when nothing more is heard of the write.
        self.settled: Settled | None = None
        self._told = told
        self._write_type = write_type
        self._first_epoch = first_epoch
        #: Node -> what it lacks of the mutation, of those that are sent no more than that.
        self._parts: Mapping[NodeId, Mutation] = _WHOLE
        self._notes = REQUEST_TRACE.get()
        #: Made when the first replica is not to be waited for.
        self._unacknowledged: HintingWrite | None = None
        #: Whether other data centres may be sent one message each: the first time, if all get the same.
        self._forwards = terms.leaves_hints and not round_.plan.is_local
        self._prepare(round_.plan)
        #: Bytes that its owner counts as in flight.
        self._size = len(self._body)
        owner.bytes_in_flight += self._size
        self._number = owner.in_flight.add(self)

    def start(self, parts: Mapping[NodeId, Mutation] = _WHOLE, *, asks_others: bool = True) -> None:
        """`parts` go to the replicas that lack no more than that."""
        self._parts, round_ = parts, self.round
        first = None if asks_others else [target for target in round_.lacking() if target.node in parts]
        plan, effects = round_.plan, round_.begin(first)
        if effects is plan.everyone:
            self.ask(plan.everyone[0])
        else:
            carry_out(self, effects)
        if plan.consistency is _ANY and not self.done:
            self._left().hint_dead()

    # -- sending ----------------------------------------------------------------------------------

    def _prepare(self, plan: Plan) -> None:
        """Build the request once for all replicas of a plan."""
        self._prepared_for = plan
        tracking = self.terms.tracking if plan.shard is not None else None
        self._request = WriteRequest(plan.epoch, plan.needs_epoch, self.mutation, self._first_epoch, tracking)
        self._body = encode(self._request)
        # What leaves no hints mends in parts, which may be smaller than the whole.
        _require_size(self.mutation, len(self._body), is_whole=self.terms.leaves_hints)

    def ask(self, asked: Ask) -> None:
        plan = self.round.plan
        if asked.why is not BEGIN:
            if asked.why in _REACHED:
                self.owner.reach(_REACHED[asked.why])
            if plan is not self._prepared_for:
                # A replica may have been emptied since it answered: it gets the whole.
                self._parts = _WHOLE
                self._prepare(plan)
        local, remote = plan.local, plan.remote
        if asked.targets is not plan.targets:
            local = local if local in asked.targets else None
            remote = tuple(target for target in asked.targets if target is not local)
        if remote:
            self._send(remote)
        if local is not None:
            self.owner.apply_locally(self, local)

    def _request_for(self, target: Target) -> WriteRequest:
        part = self._parts.get(target.node)
        if part is None:
            return self._request
        return WriteRequest(self._request.epoch, self._request.needs_epoch, part)

    def _send(self, targets: Sequence[Target]) -> None:
        owner = self.owner
        internode, verb = owner.internode, self.terms.verb
        if self._forwards and owner.forwarding is not None:
            self._forwards = False
            targets = owner.forwarding.send(self, targets, self._request, self.deadline_s)
        if self._parts:
            whole = [target for target in targets if target.node not in self._parts]
            for target in targets:
                if target.node in self._parts:
                    body = encode(self._request_for(target))
                    internode.submit(target.address, verb, body, self.deadline_s, self, target)
            targets = whole
        if targets:
            internode.submit_each(targets, verb, self._body, self.deadline_s, self)

    def apply_here(self, target: Target) -> None:
        """Give the write to this node's own replica."""
        try:
            self.owner.replica.write(self._request_for(target), self._answered_here)
        except LockstepError as error:
            self.failed(target, error)

    def _answered_here(self, answer: WriteReply | LockstepError) -> None:
        target = self.round.plan.local
        if target is None:
            return  # a newer plan does without this node
        if isinstance(answer, LockstepError):
            self.failed(target, answer)
        else:
            self.replied(target, answer, answer.accepted_epoch)

    # -- answers ----------------------------------------------------------------------------------

    def replied(self, context: Target, reply: WriteReply, sender_epoch: int) -> None:
        effects = self.round.answered(context.node, reply.accepted_epoch)
        if effects is CHECK:
            self.check()
        elif effects:
            carry_out(self, effects)
        elif self.done and self._unacknowledged is not None:
            self._unacknowledged.heard_late()

    def failed(self, context: Target, error: LockstepError) -> None:
        note_refusal(self.owner.internode.repeated_log, self.terms.name, context, error)
        carry_out(self, self.round.failed(context, error))
        if self.done and self._unacknowledged is not None:
            self._unacknowledged.heard_late()

    def check(self) -> None:
        round_, owner = self.round, self.owner
        plan = round_.plan
        if owner.plans.epoch == plan.epoch:
            round_.confirmed(plan)  # nothing has changed since the plan was made
            self.end(None)
        elif (newest := self._newest()) is not None:
            holds = newest is plan or newest.needs_epoch <= plan.epoch
            owner.reach("write.plan_holds" if holds else "write.plan_changed")
            self._go_on(round_.confirmed, newest)

    def _newest(self) -> Plan | None:
        """The plan by all that this node knows now; None, and the write has ended, when its table is gone
        or has lost columns that are written.

        Nothing that any replica took is seen again when the table is gone: its id is never given twice.
        """
        mutation, round_ = self.mutation, self.round
        plan = round_.plan
        try:
            newest = self.owner.plans.plan_of(mutation, plan.consistency)
        except RequestError as error:
            self.owner.reach("write.table_gone")
            self.end(error)
            return None
        if newest.needs_epoch <= plan.epoch:
            return plan if self.terms.is_paired else newest
        if not self.terms.needs_columns or (
            self.owner.is_captured(newest, mutation) and _has_columns(self.owner.plans.cluster, mutation)
        ):
            return newest
        # A name may stand for another column by now: whoever planned the mutation has to do so again.
        self.owner.reach("write.columns_gone")
        begun = bool(round_.accepted or round_.outstanding or round_.failed_with(Failure.FINAL))
        self.end(ColumnsGone(str(mutation.table_id), begun=begun))
        return None

    def _go_on(self, event: Callable[[Plan], Effects], newest: Plan) -> None:
        """Tell the round of the newest plan."""
        round_, owner = self.round, self.owner
        before, made = round_.plan, round_.plans_made
        effects = event(newest)
        if round_.plan is not before:
            owner.reach("write.replanned")
            owner.replans += round_.plans_made - made
        elif newest.needs_epoch > before.epoch:
            owner.reach("write.replans_paced")
        carry_out(self, effects)

    def learn(self, learned: Learn) -> None:
        self.owner.catch_ups += 1
        self.owner.reach("write.behind")
        self.owner.runtime.tasks.spawn(self._learn(learned), "write-replan")

    async def _learn(self, learned: Learn) -> None:
        try:
            await self.owner.context.catch_up(learned.epoch, learned.source.address)
        except LockstepError:
            if not self.done:
                self.owner.reach("write.catch_up_failed")
                carry_out(self, self.round.not_learned())
            return
        if not self.done and (newest := self._newest()) is not None:
            self._go_on(self.round.learned, newest)

    def again(self) -> None:
        round_ = self.round
        if self.done or round_.is_learning:
            round_.is_waiting = False
            return
        self.owner.reach("write.retried")
        if (newest := self._newest()) is not None:
            self._go_on(partial(round_.planned, paused=True), newest)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self, end: End) -> None:
        assert end is ENOUGH or end is End.FAILED, "what else ends a write is known here first"
        if end is ENOUGH:
            self.end(None)
            return
        self.owner.reach("write.hopeless")
        self.end(_failure(self.round, self._write_type))

    def expired(self) -> None:
        self.owner.reach("write.expired")
        round_ = self.round
        plan = round_.plan
        received = plan.counted(round_.counting())
        timeout = WriteTimeout(plan.consistency, received, plan.required, self._write_type)
        late(timeout, plan.targets, round_.failed_with(Failure.PASSING))
        round_.outstanding.clear()
        if plan.consistency is Consistency.ANY and self._left().hint(plan.targets, timeout):
            return
        self.end(timeout)

    def end(self, error: LockstepError | None) -> None:
        """Tell the end, if it was not told before."""
        if self.done:
            return
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
        self.owner.in_flight.remove(self._number)
        self.done = True
        round_ = self.round
        if round_.end is None:
            round_.stop()
        if self._notes is not None:
            counting = {node: round_.accepted[node] for node in round_.counting()}
            self._notes.wrote(self.terms.name, round_.plan, self.mutation, counting, error)
        self._told(error)
        if error is None or isinstance(error, WriteTimeout | WriteFailure):
            self._left().linger()
        else:
            self.let_go()

    def _left(self) -> HintingWrite:
        if self._unacknowledged is None:
            self._unacknowledged = HintingWrite(self)
        return self._unacknowledged

    def let_go(self, whole: bool = True, sequence: int = 0) -> None:
        """Nothing more is heard of this write."""
        self.owner.bytes_in_flight -= self._size
        self._size = 0
        if self.settled is not None:
            settled, self.settled = self.settled, None
            settled(whole, sequence)

    def reached(self) -> bool:
        """Whether each replica of the plan accepted the write, or was left a hint or a mark."""
        lacking, left = self.round.lacking(), self._unacknowledged
        return not lacking or (left is not None and all(left.reached(target) for target in lacking))

    def settled_for(self) -> tuple[bytes, tuple[Target, ...]]:
        """The id of what was written, and its replicas."""
        return self.mutation.mutation_id, self.round.plan.targets
