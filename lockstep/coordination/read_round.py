"""One question to enough replicas: ask, count answers, ask another when one fails or is slow; and blocking
read repair: what a read returns is held by enough replicas before it is returned.

One replica is asked for its answer, the others of the quorum may say by a digest that they have the same. Who
has another one is asked for it.

Invariant: the future ends once, with answers that satisfy the plan, or with None when a replica knows a
change that matters, which the round names, or with ReadTimeout or ReadFailure. No answer in it is a digest. A
repair is planned when it is sent, carries that epoch and is judged by replicas like any write; it succeeds
when the replicas that held everything already, together with those that acknowledged, satisfy a write of the
read's level under the newest plan. So a later read of the level sees it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lockstep.coordination.context import REPAIR, CoordinationContext
from lockstep.coordination.driving import again_after, carry_out
from lockstep.coordination.writes import Write, Writes, settle
from lockstep.internode import verbs
from lockstep.internode.waiters import Deadlines
from lockstep.metadata.purging import purge_before_s
from lockstep.quorum.failure_codes import causes_of, late, note_refusal, reasons_of
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import BEGIN, CHECK, READ, WRITE, Ask, End, Failure, Round, Target, Why
from lockstep.quorum.speculation import ExtraRequests, Latencies, Policy
from lockstep.replica.merging import digest_of, filled_in, lacking
from lockstep.replica.messages import ReadReply, ReadRequest, Tracking
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.rows.visible import partition_left
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError, ReadFailure, ReadTimeout, WriteFailure, WriteTimeout
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import DIGEST_OVER_BYTES, READ_EXTRA_AFTER_MS, REPAIRS_AT_ONCE_MAX
from lockstep.values.rows import Mutation, Partition, ReadResult
from lockstep.values.tokens import Range

Answer = tuple[Target, ReadReply]


class _Slow:
    """A reminder that a question has waited long; all share one timer, for most need none."""

    __slots__ = ("deadline_s", "expired")

    def __init__(self, question: ReadRound, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.expired = question.waited_long


class ReadsShared:
    """What all rounds of one node share."""

    def __init__(self, context: CoordinationContext) -> None:
        self.runtime = context.runtime
        self.internode = context.internode
        self.replica = context.replica
        self.reach = context.runtime.probes.reach
        #: How large an answer is whose digest is asked for where only agreement is.
        self.digest_over_bytes = DIGEST_OVER_BYTES
        self.in_flight = Deadlines(context.runtime.clock)
        #: Rounds that ask another replica when those asked are slow.
        self.slow = Deadlines(context.runtime.clock)
        #: How long questions about a partition took.
        self.latencies = Latencies()
        self.counters = ExtraRequests()


class ReadRound:
    """Hears its replicas as an internode Waiter, with the target as context."""

    __slots__ = (
        "_answers",
        "_bodies",
        "_digests",
        "_extra",
        "_extras",
        "_number",
        "_owner",
        "_policy",
        "_request",
        "_started_s",
        "deadline_s",
        "future",
        "retry",
        "round",
    )

    def __init__(
        self,
        owner: ReadsShared,
        plan: Plan,
        ordered: Sequence[Target],
        request: ReadRequest,
        deadline_s: float,
        policy: Policy,
    ) -> None:
        self._owner = owner
        self.round = Round(READ, plan, ordered)
        self._request = request
        #: The request as sent: for the answer, and for a digest of a large one.
        self._bodies = [b"", b""]
        self._policy = policy
        self._started_s = owner.runtime.clock.monotonic_s()
        self.deadline_s = deadline_s
        self.future: asyncio.Future[list[Answer] | None] = asyncio.get_running_loop().create_future()
        self._answers: dict[NodeId, Answer] = {}
        #: Whether any answer was a digest.
        self._digests = False
        #: Number of the reminder to ask another replica; 0 for none.
        self._extra = 0
        #: Replicas asked since others were slow.
        self._extras = 0
        self.retry: asyncio.TimerHandle | None = None
        self._number = owner.in_flight.add(self)

    def start(self) -> None:
        plan, round_ = self.round.plan, self.round
        carry_out(self, round_.begin(plan.first_near if round_.order is plan.near_first else None))
        if self._policy.always:
            self._ask_extra()
        else:
            self._remind()

    def _remind(self) -> None:
        """Come back after a while when there are replicas that were not asked."""
        if self.future.done() or not self.round.has_fresh():
            return
        command, now_s = self._request.command, self._owner.runtime.clock.monotonic_s()
        left_s = self.deadline_s - now_s
        wait_s = self._owner.latencies.wait_s(command.table_id, self._policy, left_s)
        if wait_s is None:
            return
        if command.key is None:
            # How long questions about single partitions take says nothing of ranges.
            wait_s = min(READ_EXTRA_AFTER_MS / 1000, max(left_s, 0.0) / 4)
        self._extra = self._owner.slow.add(_Slow(self, now_s + wait_s))

    def ask(self, asked: Ask) -> None:
        targets = asked.targets
        if asked.why is BEGIN:
            # Ranges differ somewhere too often for a second question each time.
            by_digest = self._request.command.key is not None or self._request.tracking is not Tracking.NONE
            # This node is first in order and answers last: it may answer at once, while the others work.
            for target in reversed(targets):
                self._ask(target, by_digest=by_digest and target is not targets[0])
            return
        if asked.why is Why.ANOTHER:
            self._owner.reach("read.asked_another")
        for target in targets:
            self._ask(target)

    def _ask(self, target: Target, *, by_digest: bool = False) -> None:
        owner = self._owner
        if target is self.round.plan.local:
            try:
                reply = owner.replica.read_now(self._request)
            except LockstepError as error:
                self.failed(target, error)
                return
            if reply is not None:
                self.replied(target, reply, reply.accepted_epoch)
            else:
                owner.runtime.tasks.spawn(self._read_here(target), "read-here")
        else:
            body = self._bodies[by_digest] or self._encoded(by_digest=by_digest)
            owner.internode.submit(target.address, verbs.READ, body, self.deadline_s, self, target)

    def _encoded(self, *, by_digest: bool) -> bytes:
        request = self._request
        if by_digest and request.tracking is not Tracking.NONE:
            request = msgspec.structs.replace(request, digest_over_bytes=0, tracking=Tracking.SUMMARY)
        elif by_digest:
            request = ReadRequest(
                request.epoch, request.needs_epoch, request.command, self._owner.digest_over_bytes
            )
        body = self._bodies[by_digest] = encode(request)
        return body

    async def _read_here(self, target: Target) -> None:
        try:
            reply = await self._owner.replica.read(self._request)
        except LockstepError as error:
            self.failed(target, error)
        else:
            self.replied(target, reply, reply.accepted_epoch)

    def waited_long(self) -> None:
        self._extra = 0
        self._ask_extra()

    def _ask_extra(self) -> None:
        """One more replica, and again when that is not enough."""
        if self.future.done():
            return
        effects = self.round.slow()
        if effects:
            self._extras += 1
            self._owner.counters.asked += 1
            carry_out(self, effects)
            self._remind()
        else:
            self._owner.counters.insufficient += 1

    # -- answers ----------------------------------------------------------------------------------

    def replied(self, context: Target, reply: ReadReply, sender_epoch: int) -> None:
        if self.future.done():
            return
        self._answers[context.node] = (context, reply)
        if reply.digest:
            self._digests = True
        if self._digests and self._request.tracking is Tracking.NONE:
            self._fill_in()
        round_ = self.round
        effects = round_.answered(context.node, round_.plan.epoch)
        if effects is CHECK:
            self.check()
        elif effects:
            carry_out(self, effects)

    def check(self) -> None:
        if self._digests:
            digests = [target for target, reply in self._answers.values() if reply.digest]
            if self._request.tracking is not Tracking.NONE:
                # Who is just getting what it missed shows no data. Whoever asked finds others when all are.
                digests = [] if self._has_data() else [t for t in digests if not self._is_partial(t)]
            if digests:
                self._ask_for_content(digests)
                return
        self.round.confirmed(self.round.plan)
        self._note_time()
        self._end(list(self._answers.values()))

    def _fill_in(self) -> None:
        """Put answers at hand in the places of digests that stand for them."""
        answers = self._answers
        digests = [answer for answer in answers.values() if answer[1].digest]
        if not digests:
            return
        known = {digest_of(reply.result): reply.result for _, reply in answers.values() if not reply.digest}
        for target, reply in digests:
            whole = filled_in(reply, known)
            if whole is not None:
                answers[target.node] = (target, whole)

    def _ask_for_content(self, digests: list[Target]) -> None:
        """Enough have answered, but not all as somebody whose answer is at hand."""
        if self._has_data():
            self._owner.counters.digest_mismatches += 1
            self._owner.reach("digests.differ")
        else:
            # Whoever was asked for the answer failed: perhaps the others agree with the first of these.
            if self._request.tracking is not Tracking.NONE:
                plan = self.round.plan
                digests.sort(key=lambda target: not plan.shows(target.node))
            digests = digests[:1]
        for target in digests:
            del self._answers[target.node]
        carry_out(self, self.round.withdrawn(digests))

    def failed(self, context: Target, error: LockstepError) -> None:
        note_refusal(self._owner.internode.repeated_log, "read", context, error)
        if not self.future.done():
            carry_out(self, self.round.failed(context, error))

    def again(self) -> None:
        if not self.future.done():
            self._owner.reach("read.retried")
            carry_out(self, self.round.again())

    def _is_partial(self, target: Target) -> bool:
        known = self._answers[target.node][1].known
        return known is not None and known.partial

    def _has_data(self) -> bool:
        """Whether a replica gave its answer, be it that there is nothing."""
        if self._request.tracking is Tracking.NONE:
            return any(not reply.digest for _, reply in self._answers.values())
        plan = self.round.plan
        return any(not reply.digest and plan.shows(target.node) for target, reply in self._answers.values())

    # -- the end ----------------------------------------------------------------------------------

    def finish(self, end: End) -> None:
        assert end is not End.ENOUGH, "what is enough is checked first"
        if end is End.STALE:
            self._end(None)
        else:
            self._end(self._failure() if end is End.FAILED else self._timeout())

    def _failure(self) -> ReadFailure:
        self._owner.reach("read.hopeless")
        plan, failures = self.round.plan, self.round.failed_with(Failure.FINAL)
        return ReadFailure(
            plan.consistency,
            plan.counted(self._answers),
            plan.required,
            len(failures),
            self._has_data(),
            reasons_of(plan.targets, failures),
            causes_of(plan.targets, failures),
        )

    def expired(self) -> None:
        self._owner.reach("read.expired")
        if self._extras:
            self._owner.counters.missed += 1
        self._note_time()
        carry_out(self, self.round.expired())

    def _timeout(self) -> ReadTimeout:
        plan = self.round.plan
        timeout = ReadTimeout(plan.consistency, plan.counted(self._answers), plan.required, self._has_data())
        return late(timeout, plan.targets, self.round.failures)

    def _note_time(self) -> None:
        command = self._request.command
        if command.key is not None:
            took_s = self._owner.runtime.clock.monotonic_s() - self._started_s
            self._owner.latencies.add(command.table_id, took_s)

    def _end(self, told: list[Answer] | LockstepError | None) -> None:
        if self._extra:
            self._owner.slow.remove(self._extra)
        if self.retry is not None:
            self.retry.cancel()
        self._owner.in_flight.remove(self._number)
        if self.future.done():
            return
        if isinstance(told, LockstepError):
            self.future.set_exception(told)
        else:
            self.future.set_result(told)


class Additional:
    """When a repair turns to replicas that did not answer the read: the table's policy, and what it needs."""

    __slots__ = ("counters", "latencies", "policy")

    def __init__(self, policy: Policy, latencies: Latencies, counters: ExtraRequests) -> None:
        self.policy = policy
        self.latencies = latencies
        self.counters = counters


def _begin(
    writes: Writes,
    round_: Round[Plan],
    whole: Mutation,
    parts: Mapping[NodeId, Mutation],
    deadline_s: float,
    additional: Additional,
) -> asyncio.Future[None]:
    """Send each replica that answered what it lacks, and others the whole when those do not suffice."""
    clock, table_id = writes.runtime.clock, whole.table_id
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    began_s, tell = clock.monotonic_s(), settle(future)

    def told(error: LockstepError | None) -> None:
        if error is None or isinstance(error, WriteTimeout):
            additional.latencies.add(table_id, clock.monotonic_s() - began_s)
        tell(error)

    def extended() -> None:
        additional.counters.repairs_extended += 1

    write = Write(writes, round_, whole, deadline_s, told, REPAIR)
    writes.runtime.probes.reach("read.repaired")
    suffices = round_.plan.satisfied_by({*round_.counting(), *parts})
    wait_s = additional.latencies.wait_s(table_id, additional.policy, deadline_s - began_s)
    write.start(parts, asks_others=not suffices)
    if suffices and wait_s is not None:
        again_after(write, wait_s, extended)
    return future


async def repair(
    writes: Writes,
    new_mutation_id: Callable[[], bytes],
    table_id: int,
    merged: Sequence[Partition],
    answers: Sequence[tuple[Target, ReadReply]],
    consistency: Consistency,
    deadline_s: float,
    additional: Additional,
) -> None:
    """Bring what `merged` says to enough replicas. ReadTimeout or ReadFailure when that fails."""
    results = [reply.result for _, reply in answers]
    waiting: list[asyncio.Future[None]] = []
    for part, missing in lacking(_lasting(writes, table_id, merged, results), results):
        plan = writes.plans.write_plan(table_id, part.token, consistency)
        whole = repair_mutation(table_id, part, new_mutation_id())
        parts: dict[NodeId, Mutation] = {}
        holders: dict[NodeId, int] = {}
        for (target, reply), one in zip(answers, missing, strict=True):
            if one is None:
                holders[target.node] = reply.accepted_epoch
            else:
                parts[target.node] = repair_mutation(table_id, one, new_mutation_id())
        round_ = Round(WRITE, plan, holders=holders)
        waiting.append(_begin(writes, round_, whole, parts, deadline_s, additional))
        if len(waiting) >= REPAIRS_AT_ONCE_MAX:
            await _all_done(writes, waiting, consistency)
            waiting = []
    if waiting:
        await _all_done(writes, waiting, consistency)


def _lasting(
    writes: Writes, table_id: int, merged: Sequence[Partition], results: Sequence[ReadResult]
) -> list[Partition]:
    """Partitions in which answers differ by more than what replicas may purge, each at its own time: brought
    back to those that have, it would never be gone from all of them."""
    cluster = writes.plans.cluster
    table = cluster.table(table_id)
    if table is None:
        return list(merged)
    now_s = writes.runtime.clock.wall_us() // 1_000_000
    known = [{(p.token, p.key): p for p in result.partitions} for result in results]
    found: list[Partition] = []
    for partition in merged:
        token, key = partition.token, partition.key
        before_s = purge_before_s(cluster, table, Range(token - 1, token), now_s)
        nothing = Partition(token, key)
        left = partition_left(partition, before_s)
        if any(partition_left(source.get((token, key), nothing), before_s) != left for source in known):
            found.append(partition)
        else:
            writes.reach("repair.purged_alone")
    return found


async def _all_done(writes: Writes, waiting: list[asyncio.Future[None]], consistency: Consistency) -> None:
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, WriteTimeout):
            writes.reach("read.repair_timed_out")
            raise ReadTimeout(consistency, outcome.received, outcome.required, True) from outcome
        if isinstance(outcome, WriteFailure):
            writes.reach("read.repair_failed")
            failure = ReadFailure(
                consistency, outcome.received, outcome.required, outcome.failures, True, outcome.reasons
            )
            failure.message = outcome.message
            raise failure from outcome
        if isinstance(outcome, BaseException):
            raise outcome
