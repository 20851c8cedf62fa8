"""The coordinator of writes: send to all replicas, count acknowledgements, plan again when ownership moved.

Invariants. A write succeeds only when the replicas that acknowledged satisfy the newest plan this node
knows, and an acknowledgement counts for a plan only when the replica accepted at or after the last change
that matters to the plan. A replica that accepts at an epoch above ours vouches that our group held until
then, so an acknowledgement never calls for a catch-up; a refusal does. Every attempt sends the identical
mutation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from lockstep.replication import verbs
from lockstep.replication.base_writes import BaseWrites
from lockstep.replication.deadlines import Deadlines
from lockstep.replication.failure_codes import causes_of, late, note_refusal, reasons_of
from lockstep.replication.forwarding import Forwarding
from lockstep.replication.handshake import Address
from lockstep.replication.hints import Hints
from lockstep.replication.internode import Internode
from lockstep.replication.messages import WriteReply, WriteRequest
from lockstep.replication.notes import NOTES
from lockstep.replication.plans import Plan, PlanBook, Target
from lockstep.replication.replica import ReplicaService
from lockstep.replication.serving import report
from lockstep.replication.unacknowledged import Unacknowledged
from lockstep.runtime.ports import Runtime
from lockstep.storage.fragments import require_fitting
from lockstep.values.codec import encode
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    NotReplica,
    Overloaded,
    PeerError,
    RequestError,
    ServerFault,
    StaleEpoch,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import (
    MUTATION_BYTES_MAX,
    REPLICA_RETRY_MS,
    REQUEST_PLANS_MAX,
    WRITES_BYTES_IN_FLIGHT_MAX,
    WRITES_IN_FLIGHT_MAX,
)
from lockstep.values.rows import Mutation

#: A replica that answered with one of these may do better in a moment.
TRANSIENT = (PeerError, NotReplica, Overloaded)


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


class Writes:
    """What all writes of one node share."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        plans: PlanBook,
        replica: ReplicaService,
        catch_up: Callable[[int, Address], Awaitable[None]],
        alive: Callable[[int], bool],
        own_id: Callable[[], int],
    ) -> None:
        self.runtime = runtime
        self.internode = internode
        self.plans = plans
        self.replica = replica
        self.catch_up = catch_up
        self.alive = alive
        self.own_id = own_id
        #: Until when a node seems alive for certain; None: `alive` is asked for every write.
        self.alive_until_s: Callable[[int], float] | None = None
        self.reach = runtime.probes.reach
        self.in_flight = Deadlines(runtime.clock)
        #: Writes whose end was told, and of which replicas may still answer.
        self.lingering = Deadlines(runtime.clock)
        #: Of the mutations that both hold.
        self.bytes_in_flight = 0
        #: Spares other data centres messages; None: every replica is sent to directly.
        self.forwarding: Forwarding | None = None
        #: Keeps what replicas did not acknowledge; None: nothing is kept.
        self.hints: Hints | None = None
        #: Told of writes to tables with views; None: their replicas hear nothing.
        self.base_writes: BaseWrites | None = None
        #: Gathers what is to be applied here while many are begun; None: it is applied at once.
        self._here: list[tuple[Write, Target]] | None = None
        #: Plans that were replaced by one that differs in something that matters.
        self.replans = 0
        #: Refusals that made this node learn a newer epoch first.
        self.catch_ups = 0

    def begin(
        self, mutation: Mutation, consistency: Consistency, timeout_ms: float, write_type: str = "SIMPLE"
    ) -> asyncio.Future[None]:
        """As `begin_told` with a future that ends with None or the error."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin_told(mutation, consistency, timeout_ms, settle(future), write_type)
        return future

    def begin_told(
        self,
        mutation: Mutation,
        consistency: Consistency,
        timeout_ms: float,
        told: Told,
        write_type: str = "SIMPLE",
    ) -> None:
        """Start a write; `told` hears once of its end, perhaps before this returns.

        Raises Unavailable, Overloaded or InvalidRequest when nothing was sent; `told` hears nothing then.
        """
        self.admit()
        plan = self.plans.write_plan(mutation.table_id, mutation.token, consistency)
        now_s = self.runtime.clock.monotonic_s()
        if now_s > plan.alive_until_s:
            if consistency is not Consistency.ANY or self.hints is None or not self.hints.policy.enabled:
                require_alive(plan, self.alive)
            if self.alive_until_s is not None:
                plan.alive_until_s = min(self.alive_until_s(target.node) for target in plan.targets)
        deadline_s = now_s + timeout_ms / 1000
        base_writes = self.base_writes
        if base_writes is not None and plan.has_views:
            write = Write(self, plan, mutation, deadline_s, write_type, told, plan.epoch)
            write.settled = base_writes.watch(write)
        else:
            write = Write(self, plan, mutation, deadline_s, write_type, told)
        write.start()

    def begin_all(self, writes: Sequence[Begun], timeout_ms: float) -> None:
        """As `begin_told` of each, where what that raises is told. All are sent before one is applied."""
        here: list[tuple[Write, Target]] = []
        self._here = here
        for write in writes:
            try:
                self.begin_told(write.mutation, write.consistency, timeout_ms, write.told)
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

    def give_here(self, write: Write, target: Target) -> None:
        """Apply a write to this node's own replica, now or once all that begin now are sent."""
        if self._here is not None:
            self._here.append((write, target))
        else:
            write.apply_here(target)

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


def require_alive(plan: Plan, alive: Callable[[int], bool]) -> None:
    """Unavailable when the replicas that seem alive could not satisfy the plan."""
    seeming = [target.node for target in plan.targets if alive(target.node)]
    if plan.attainable and (len(seeming) == len(plan.targets) or plan.satisfied_by(seeming)):
        return
    raise plan.shortage(seeming)


def _require_size(mutation: Mutation, encoded_bytes: int, *, is_whole: bool) -> None:
    if encoded_bytes > MUTATION_BYTES_MAX:
        raise InvalidRequest(f"a mutation of {encoded_bytes} bytes is above {MUTATION_BYTES_MAX}")
    if is_whole:
        require_fitting(mutation, encoded_bytes)


def _failure(
    plan: Plan, received: int, write_type: str, failures: Mapping[NodeId, LockstepError]
) -> WriteFailure:
    """The end of a write that too many replicas failed at."""
    reasons, causes = reasons_of(plan.targets, failures), causes_of(plan.targets, failures)
    count = len(failures)
    return WriteFailure(plan.consistency, received, plan.required, count, write_type, reasons, causes)


class Write(Unacknowledged):
    """One write in flight; hears its replicas as an internode Waiter, with the target as context.

    Its end is told before all have answered; then it goes on as replication.unacknowledged says.
    """

    noted_as = "write"

    __slots__ = (
        "_body",
        "_failures",
        "_first",
        "_forwards",
        "_moving",
        "_notes",
        "_owner",
        "_plans_made",
        "_request",
        "_retry",
        "_told",
        "_troubles",
        "_verb",
        "_write_type",
        "deadline_s",
    )

    def __init__(
        self,
        owner: Writes,
        plan: Plan,
        mutation: Mutation,
        deadline_s: float,
        write_type: str,
        told: Told,
        first_epoch: int = 0,
    ) -> None:
        super().__init__(plan, mutation)
        self._owner = owner
        self._first = first_epoch
        self._write_type = write_type
        #: Whether other data centres may be sent one message each: the first time, if all get the same.
        self._forwards = self.leaves_hints and not plan.is_local
        self._verb = verbs.WRITE
        self.deadline_s = deadline_s
        self._notes = NOTES.get()
        self._told = told
        self._failures: dict[NodeId, LockstepError] = {}
        #: The last that replicas said who are asked again; None: nobody did.
        self._troubles: dict[NodeId, LockstepError] | None = None
        self._plans_made = 1
        self._retry: asyncio.TimerHandle | None = None
        self._moving = False
        self._prepare()
        self._size = len(self._body)
        owner.bytes_in_flight += self._size
        self._number = owner.in_flight.add(self)

    def start(self) -> None:
        self._send_missing()
        if self._plan.consistency is Consistency.ANY and not self.done:
            self._hint_dead(self._owner)

    # -- sending ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Build the request once for all replicas of the present plan."""
        self._request = WriteRequest(self._plan.epoch, self._plan.needs_epoch, self._mutation, self._first)
        self._body = encode(self._request)
        # What leaves no hints mends in parts, which may be smaller than the whole.
        _require_size(self._mutation, len(self._body), is_whole=self.leaves_hints)

    def _send_missing(self) -> None:
        """Ask every replica of the plan whose acceptance does not count and that is not being asked."""
        since = self._plan.needs_epoch
        own = self._owner.own_id()
        local: Target | None = None
        remote: list[Target] = []
        for target in self._plan.targets:
            node = target.node
            if self._accepted.get(node, -1) >= since or self._outstanding.get(node):
                continue
            self._outstanding[node] = 1
            self._failures.pop(node, None)
            if node == own:
                local = target
            else:
                remote.append(target)
        if remote:
            self._send(remote)
        if local is not None:
            self._owner.give_here(self, local)

    def _request_for(self, target: Target) -> WriteRequest:
        return self._request

    def _send(self, targets: Sequence[Target]) -> None:
        forwarding = self._owner.forwarding
        if self._forwards and forwarding is not None:
            self._forwards = False
            targets = forwarding.send(self, targets, self._request, self.deadline_s)
            if not targets:
                return
        self._owner.internode.submit_each(targets, self._verb, self._body, self.deadline_s, self)

    def apply_here(self, target: Target) -> None:
        """Give the write to this node's own replica."""
        try:
            self._owner.replica.write(self._request_for(target), self._answered_here)
        except LockstepError as error:
            self.failed(target, error)

    def _answered_here(self, answer: WriteReply | LockstepError) -> None:
        target = self._plan.by_node.get(NodeId(self._owner.own_id()))
        if target is None:
            return  # a newer plan does without this node
        if isinstance(answer, LockstepError):
            self.failed(target, answer)
        else:
            self.replied(target, answer, answer.accepted_epoch)

    # -- answers ----------------------------------------------------------------------------------

    def replied(self, context: Target, reply: WriteReply, sender_epoch: int) -> None:
        node = context.node
        self._outstanding.pop(node, None)
        if self._troubles:
            self._troubles.pop(node, None)
        if reply.accepted_epoch > self._accepted.get(node, -1):
            self._accepted[node] = reply.accepted_epoch
        if self.done:
            self._answered_late(self._owner)
            return
        self._judge()
        if reply.accepted_epoch < self._plan.needs_epoch and not self._moving and not self.done:
            self._owner.reach("write.answered_before_plan")
            self._send_missing()  # it answered an attempt from before the present plan

    def _judge(self) -> None:
        plan = self._plan
        if len(self._accepted) < plan.required or self._moving:
            return
        if not plan.satisfied_by(self._counting()):
            return
        if self._owner.plans.epoch == plan.epoch:
            self._end(None)  # nothing has changed since the plan was made
            return
        newest = self._newest()
        if newest is None:
            return
        if newest is plan or newest.needs_epoch <= plan.epoch:
            self._owner.reach("write.plan_holds")
            self._end(None)
        else:
            self._owner.reach("write.plan_changed")
            self._follow(newest)

    def _newest(self) -> Plan | None:
        """The plan by all that this node knows now; None, and the write has ended, when its table is gone
        or has lost columns that are written.

        Nothing that any replica took is seen again when the table is gone: its id is never given twice.
        """
        mutation = self._mutation
        try:
            newest = self._owner.plans.write_plan(mutation.table_id, mutation.token, self._plan.consistency)
        except RequestError as error:
            self._owner.reach("write.table_gone")
            self._end(error)
            return None
        if newest.needs_epoch <= self._plan.epoch or self._still_fits():
            return newest
        # A name may stand for another column by now: whoever planned the mutation has to do so again.
        self._owner.reach("write.columns_gone")
        begun = bool(self._accepted or self._outstanding or self._failures)
        self._end(ColumnsGone(str(mutation.table_id), begun=begun))
        return None

    def _still_fits(self) -> bool:
        """Whether the table, which is there, has all columns that are written."""
        mutation = self._mutation
        table = self._owner.plans.cluster.table(mutation.table_id)
        assert table is not None, "a table with a plan is in the schema"
        known = table.by_id
        return all(
            part.column in known
            for row in (*mutation.rows, *((mutation.static,) if mutation.static is not None else ()))
            for part in (*row.cells, *row.column_deletions)
        )

    def _follow(self, newest: Plan, paused: bool = False) -> None:
        """Go on under the newest plan: what counts for it stays, the rest is sent again."""
        if newest is not self._plan:
            if newest.needs_epoch > self._plan.epoch:
                if self._plans_made >= REQUEST_PLANS_MAX and not paused:
                    self._owner.reach("write.replans_paced")
                    self._retry_later()
                    return
                self._plans_made += 1
                self._owner.replans += 1
            self._owner.reach("write.replanned")
            self._plan = newest
            self._prepare()
        if newest.satisfied_by(self._counting()):
            self._end(None)
        else:
            self._send_missing()

    def failed(self, context: Target, error: LockstepError) -> None:
        self._outstanding.pop(context.node, None)
        note_refusal(self._owner.internode.repeated_log, self.noted_as, context, error)
        if self.done:
            self._answered_late(self._owner)
            return
        if isinstance(error, StaleEpoch):
            if error.epoch <= self._plan.epoch:
                self._owner.reach("write.refused_before_plan")
                self._send_missing()  # it refused an attempt from before the present plan
            elif not self._moving:
                self._moving = True
                self._owner.catch_ups += 1
                self._owner.reach("write.behind")
                self._owner.runtime.tasks.spawn(self._move(error.epoch, context.address), "write-replan")
        elif isinstance(error, TRANSIENT):
            self._troubles = {**(self._troubles or {}), context.node: error}
            self._retry_later()
        else:
            self._failures[context.node] = error
            self._give_up_if_hopeless()

    async def _move(self, epoch: int, source: Address) -> None:
        """A replica knows a change that matters: learn it, then plan again."""
        try:
            await self._owner.catch_up(epoch, source)
        except LockstepError:
            # The source did not deliver: ask the replicas again shortly, another may tell more.
            self._moving = False
            if not self.done:
                self._owner.reach("write.catch_up_failed")
                self._retry_later()
            return
        self._moving = False
        if not self.done and (newest := self._newest()) is not None:
            self._follow(newest)

    def _retry_later(self) -> None:
        if self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(REPLICA_RETRY_MS / 1000, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self.done or self._moving:
            return
        self._owner.reach("write.retried")
        newest = self._newest()
        if newest is not None:
            self._follow(newest, paused=True)

    def _give_up_if_hopeless(self) -> None:
        plan = self._plan
        possible = [target.node for target in plan.targets if target.node not in self._failures]
        if not plan.satisfied_by(possible):
            self._owner.reach("write.hopeless")
            self._end(_failure(plan, plan.counted(self._counting()), self._write_type, self._failures))

    # -- the end ----------------------------------------------------------------------------------

    def expired(self) -> None:
        if self.done:
            self._outstanding.clear()
            self._linger(self._owner)
            return
        self._owner.reach("write.expired")
        plan = self._plan
        received = plan.counted(self._counting())
        timeout = WriteTimeout(plan.consistency, received, plan.required, self._write_type)
        late(timeout, plan.targets, self._troubles)
        self._outstanding.clear()
        if plan.consistency is Consistency.ANY and self._hint(self._owner, plan.targets, timeout):
            return
        self._end(timeout)

    def _end(self, error: LockstepError | None) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._owner.in_flight.remove(self._number)
        if not self.done:
            self.done = True
            if self._notes is not None:
                counting = {node: self._accepted[node] for node in self._counting()}
                self._notes.wrote(self.noted_as, self._plan, self._mutation, counting, error)
            self._told(error)
            if error is None or isinstance(error, WriteTimeout | WriteFailure):
                self._linger(self._owner)
            else:
                self._let_go(self._owner)
