"""Rounds of ballots on one partition: one question to its replicas until enough agree, what writes and reads
that take ballots have in common, and the end of a proposal left in progress that is too old.

Invariant: What was decided last, or where deletions of its time may be purged what was read, is held by a
quorum before a round says what it read. Nothing is brought or finished that a purged deletion may have been
later than. A round counts only when nothing that matters has changed since it was planned. What goes wrong
once something was proposed is unknown. It ends once, at the latest at its deadline; who agreed before the end
is in `granted`, whatever the end was. The value of an old proposal is brought to no replica. It is ended
without effect only when every replica was asked since a quorum promised, and none knows it as decided: then
nobody was told that it was applied, for whoever would tell has no more time. Otherwise a quorum gets the rows
that there are of it, and it counts as decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, STEPS, Ballot, Happened, Phase, Promises, Proposal
from lockstep.coordination.ballot_counts import ConditionalCounts
from lockstep.coordination.context import SHOWN, CoordinationContext
from lockstep.coordination.driving import carry_out
from lockstep.coordination.looked import Looked, looked_of, promises, shows_all
from lockstep.coordination.tracked_reads import made_even
from lockstep.coordination.writes import Writes
from lockstep.internode import verbs
from lockstep.internode.waiters import Deadlines
from lockstep.metadata.purging import purge_before_s
from lockstep.quorum.failure_codes import causes_of, late, note_refusal, reasons_of
from lockstep.quorum.plans import Plan
from lockstep.quorum.request_trace import REQUEST_TRACE
from lockstep.quorum.round import BALLOT, VOTE, Ask, Count, End, Round, Target
from lockstep.replica.ballots import MUTATION, BallotService
from lockstep.replica.merging import lacking, merge_answers
from lockstep.replica.messages import (
    CommitReply,
    CommitRequest,
    Place,
    PrepareReply,
    PrepareRequest,
    ProposeRequest,
)
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.rows.fragments import touched
from lockstep.tracking.held import MutationId
from lockstep.values.codec import encode
from lockstep.values.errors import (
    ColumnsGone,
    ConditionalUnknown,
    LockstepError,
    RequestError,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import (
    BALLOT_BROUGHT_S,
    BALLOT_PAUSE_MS_MAX,
    BALLOT_PAUSE_MS_MIN,
    BALLOTS_KEPT_S,
    PURGE_AGE_S_MIN,
    REPLICA_RETRY_MS,
)
from lockstep.values.node_limits import BALLOT_EXTRA_AFTER_MS
from lockstep.values.rows import ReadCommand
from lockstep.values.tokens import Range


class ConditionalsShared:
    """What all conditional requests of one node share."""

    def __init__(
        self,
        context: CoordinationContext,
        ballots: BallotService,
        writes: Writes,
        next_stamp_us: Callable[[], int],
    ) -> None:
        self.context = context
        self.runtime = context.runtime
        self.plans = context.plans
        self.ballots = ballots
        self.writes = writes
        self.reach = context.runtime.probes.reach
        self.in_flight = Deadlines(context.runtime.clock)
        #: Rounds that ask another replica when those asked are slow.
        self.slow = Deadlines(context.runtime.clock)
        self._next_stamp_us = next_stamp_us
        #: Rounds planned anew.
        self.replans = 0

    def next_ballot(self, floor_us: int) -> Ballot:
        """By this node's timestamps, if those are later than `floor_us`. A floor that is ahead of them moves
        no other partition's ballots: one clock that is wrong would take all others along."""
        time_us = max(self._next_stamp_us(), floor_us + 1)
        return Ballot(time_us, self.runtime.random.below(1 << 62))


async def ended(rounds: Rounds, plan: Plan, left: Proposal, now_s: int) -> Proposal | None:
    """What is to be decided in the place of `left`; None: begin again. Unavailable when some replica seems
    dead: it may be the only one that knows."""
    owner, targets = rounds.owner, plan.targets
    alive = [target for target in targets if owner.context.alive(target.node)]
    if len(alive) < len(targets):
        raise Unavailable(rounds.serial, len(targets), len(alive))
    rounds.did("Asking every replica whether an old proposal was decided")
    command: ReadCommand | None = _rows_of(left, rounds, now_s)
    while command is not None:
        round_ = Round(BALLOT, Count(targets, len(targets)))
        request = PrepareRequest(plan.epoch, plan.needs_epoch, rounds.place, NO_BALLOT, command)
        paxos_round = PaxosRound(
            owner, round_, verbs.CAS_PREPARE, request, rounds.deadline_s, lambda reply: True
        )
        if not await rounds.won(plan, paxos_round) or rounds.changed(plan):
            return None
        replies = paxos_round.granted.values()
        if not any(left.origin in paxos.decided(reply.state.committed) for reply in replies):
            owner.reach("conditional.voids")
            return left.voided()
        looked = looked_of(plan, paxos_round.granted)
        await rounds.made_good(command, looked)
        _, end = merge_answers(looked.results, command.reverse)
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


class _Slow:
    """A reminder that votes take long; all share one timer, for most need none."""

    __slots__ = ("deadline_s", "expired")

    def __init__(self, paxos_round: PaxosRound, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.expired = paxos_round.waited_long


class PaxosRound:
    """`agrees` judges a reply. Hears replicas as an internode Waiter, with the target as context."""

    def __init__(
        self,
        owner: ConditionalsShared,
        round_: Round[Any],
        verb: int,
        request: Any,
        deadline_s: float,
        agrees: Callable[[Any], bool],
        here: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """`here`: what this node answers, instead of what it does when others ask it this."""
        self._owner = owner
        self._here = here
        self.round = round_
        self._verb = verb
        self._request = request
        self._body = encode(request)
        self._agrees = agrees
        self.deadline_s = deadline_s
        self.granted: dict[NodeId, Any] = {}
        self.refused: dict[NodeId, Any] = {}
        self.retry: asyncio.TimerHandle | None = None
        self._future: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._number = owner.in_flight.add(self)
        #: Number of the reminder to ask another replica; 0 for none.
        self._extra = 0
        #: Told of each replica of which it is known only after the end that it did not agree.
        self.missed: Callable[[Target], None] | None = None

    async def run(self) -> End:
        carry_out(self, self.round.begin())
        self._remind()
        try:
            return await self._future
        finally:
            self.round.stop()
            self._owner.in_flight.remove(self._number)
            self._owner.slow.remove(self._extra)
            if self.retry is not None:
                self.retry.cancel()

    def _remind(self) -> None:
        """Come back after a while when there are replicas that were not asked."""
        if self.round.policy.replaces and self.round.end is None and self.round.has_fresh():
            wait_s = BALLOT_EXTRA_AFTER_MS / 1000
            self._extra = self._owner.slow.add(_Slow(self, self._owner.runtime.clock.monotonic_s() + wait_s))

    def waited_long(self) -> None:
        self._extra = 0
        if self.round.end is None:
            self._owner.reach("conditional.asked_another")
            carry_out(self, self.round.slow())
            self._remind()

    def ask(self, asked: Ask) -> None:
        owner, own = self._owner, self._owner.context.own_id()
        remote = [target for target in asked.targets if target.node != own]
        if remote:
            owner.context.internode.submit_each(remote, self._verb, self._body, self.deadline_s, self)
        for target in asked.targets:
            if target.node == own:
                owner.runtime.tasks.spawn(self._answer_here(target), "ballots.here")

    async def _answer_here(self, target: Target) -> None:
        try:
            reply = await (self._here() if self._here else self._owner.ballots.answer(self._request))
        except LockstepError as error:
            self.failed(target, error)
        else:
            self.replied(target, reply, reply.accepted_epoch)

    def replied(self, context: Target, reply: Any, sender_epoch: int) -> None:
        if self.round.end is not None:
            if self.missed is not None and not self._agrees(reply):
                self.missed(context)
            return
        if self._agrees(reply):
            self.granted[context.node] = reply
            carry_out(self, self.round.answered(context.node, self.round.plan.epoch))
        else:
            self.refused[context.node] = reply
            carry_out(self, self.round.refused(context.node))

    def failed(self, context: Target, error: LockstepError) -> None:
        note_refusal(self._owner.context.internode.repeated_log, "conditional", context, error)
        if self.missed is not None:
            self.missed(context)
        carry_out(self, self.round.failed(context, error))

    def again(self) -> None:
        carry_out(self, self.round.again())

    def check(self) -> None:
        carry_out(self, self.round.confirmed(self.round.plan))

    def expired(self) -> None:
        carry_out(self, self.round.expired())

    def finish(self, end: End) -> None:
        if not self._future.done():
            self._future.set_result(end)


_CAS = "CAS"
#: Ballots go to the replicas of a write and need what it needs, also while replicas are filled: any two
#: quorums of one epoch or of two that follow each other then have a voter in common.
COUNTED_AS = {
    Consistency.SERIAL: Consistency.QUORUM,
    Consistency.LOCAL_SERIAL: Consistency.LOCAL_QUORUM,
}


class Patience(msgspec.Struct, frozen=True):
    """How long a request may take in all, and how long it may begin rounds that others may beat."""

    timeout_ms: float
    contention_ms: float


class Rounds:
    """One request that takes ballots. `own`: what it proposed and what may take effect."""

    def __init__(
        self,
        owner: ConditionalsShared,
        counts: ConditionalCounts,
        place: Place,
        serial: Consistency,
        patience: Patience,
    ) -> None:
        self.owner = owner
        self.counts = counts
        self.place = place
        self.serial = serial
        now_s = owner.runtime.clock.monotonic_s()
        self.deadline_s = now_s + patience.timeout_ms / 1000
        self._contention_s = now_s + min(patience.contention_ms, patience.timeout_ms) / 1000
        self.own: Proposal | None = None
        self.required = 0
        self.phase = Phase.ASKING
        self._notes = REQUEST_TRACE.get()
        self.contentions = 0
        self._floor_us = 0
        table = owner.plans.cluster.table(place.table_id)
        self._table_epoch = table.epoch if table is not None else 0

    def goes(self, happened: Happened) -> None:
        self.phase = STEPS[self.phase][happened]

    def did(self, activity: str, nodes: Collection[NodeId] = ()) -> None:
        """For a trace, if there is one."""
        if self._notes is not None:
            self._notes.did(activity, nodes)

    def contention_left_s(self) -> float:
        return max(0.0, self._contention_s - self.owner.runtime.clock.monotonic_s())

    def plan(self) -> Plan:
        """Who votes now. InvalidRequest when the table is gone, ColumnsGone when it changed and nothing was
        proposed: whoever decided what to write has to do so again."""
        plans, place = self.owner.plans, self.place
        plan = plans.ballot_plan(place.table_id, place.token, COUNTED_AS[self.serial])
        table = plans.cluster.table(place.table_id)
        if table is not None and table.epoch != self._table_epoch and self.own is None:
            raise ColumnsGone(table.name, begun=False)
        self.required = plan.required
        return plan

    def require_voters(self) -> None:
        """Unavailable when too few seem to be alive for anything to be decided."""
        try:
            self.plan().require_alive(self.owner.context.opinions)
        except Unavailable as error:
            raise Unavailable(self.serial, error.required, error.alive) from error

    def voters(self, plan: Plan) -> Sequence[Target]:
        """In the order in which they are asked. LOCAL_SERIAL asks no other data centre."""
        opinions = self.owner.context.opinions
        ordered = self.owner.plans.read_order(plan, opinions.prefers, opinions.alive)
        dcs = {need.dc for need in plan.needs}
        return ordered if "" in dcs else [target for target in ordered if target.dc in dcs]

    # -- rounds -----------------------------------------------------------------------------------

    async def promised(self, plan: Plan, command: ReadCommand) -> tuple[Ballot, Promises, Looked] | None:
        """A quorum's promise with what it read, all that was decided being held by a quorum; None: again."""
        ballot = self.owner.next_ballot(self._floor_us)
        self._floor_us = ballot.time_us
        self.did("Asking for promises and reading existing values")
        request = PrepareRequest(plan.epoch, plan.needs_epoch, self.place, ballot, command)
        paxos_round = self.paxos_round(plan, verbs.CAS_PREPARE, request, promises)
        if not await self.won(plan, paxos_round) or self.changed(plan):
            self.goes(Happened.AGAIN)
            return None
        self.did("Promised a ballot", paxos_round.granted)
        states = {node: reply.state for node, reply in paxos_round.granted.items()}
        found = paxos.judge(states)
        if found.in_progress is not None:
            self.goes(Happened.IN_PROGRESS)
            self.counts.finished += 1
            self.owner.reach("conditional.finishes")
            self.did("Finishing a proposal that another request left in progress")
            left = await self._finished(plan, found.in_progress)
            # The other one's request goes on from here: it learns of its outcome by itself.
            if left is not None and await self.accepted(plan, left.under(ballot)):
                await self.held(plan, left.under(ballot), ())
            self.goes(Happened.AGAIN)
            return None
        looked = looked_of(plan, paxos_round.granted)
        if found.committed is not None and found.lacking:
            self.goes(Happened.LACKING)
            if self._is_past(found.committed):
                self.owner.reach("conditional.past")
                await self.made_good(command, looked)
            elif not await self._brought(plan, found.committed, found.lacking, states):
                self.goes(Happened.AGAIN)
                return None
        if not await self.whole(command, looked):
            self.goes(Happened.AGAIN)
            return None
        self.goes(Happened.KNOWN)
        return ballot, found, looked

    async def whole(self, command: ReadCommand, looked: Looked) -> bool:
        """Whether what was read has all that witnesses hold of it. If not, that is brought to who shows rows,
        and they are to be read again, in the step of another promise."""
        try:
            return await shows_all(self.owner.context, command, looked, self.left_ms())
        except (LockstepError, TimeoutError):
            raise self.late(0) from None

    async def _brought(
        self, plan: Plan, decided: Proposal, lacking_: Sequence[NodeId], voters: Collection[NodeId]
    ) -> bool:
        self.owner.reach("conditional.brings")
        self.did("Bringing replicas the last decision, which they missed")
        return await self.held(plan, decided, [node for node in voters if node not in lacking_])

    async def made_good(self, command: ReadCommand, looked: Looked) -> None:
        """Have what was read held by a quorum."""
        try:
            await self.show(command, looked)
        except (WriteTimeout, WriteFailure):
            raise self.late(0) from None

    async def _finished(self, plan: Plan, left: Proposal) -> Proposal | None:
        """What is to be decided of a proposal that was left in progress: without its effect, when others may
        have forgotten that they decided against it, or a later deletion may be purged; None: begin again."""
        if not left.value:
            return left
        if left.origin.time_us // 1_000_000 < self._now_s() - BALLOTS_KEPT_S + BALLOT_BROUGHT_S:
            self.owner.reach("conditional.voids")
            return left.voided()
        return await ended(self, plan, left, self._now_s()) if self._is_past(left) else left

    def _is_past(self, proposal: Proposal) -> bool:
        """Whether a later deletion of what was proposed may be purged already, or while this goes on: brought
        now, it would return. What is there of it is then made good on a quorum as any rows are."""
        owner, place, now_s = self.owner, self.place, self._now_s()
        table = owner.plans.cluster.table(place.table_id)
        if table is None:
            return False
        purged_s = purge_before_s(owner.plans.cluster, table, Range(place.token - 1, place.token), now_s)
        oldest_s = min(purged_s, now_s - PURGE_AGE_S_MIN) + BALLOT_BROUGHT_S
        return proposal.origin.time_us // 1_000_000 < oldest_s

    def _now_s(self) -> int:
        return self.owner.runtime.clock.wall_us() // 1_000_000

    async def accepted(self, plan: Plan, proposal: Proposal) -> bool:
        """Whether the proposal is decided, as far as this round says."""
        request = ProposeRequest(plan.epoch, plan.needs_epoch, self.place, proposal)
        paxos_round = self.paxos_round(plan, verbs.CAS_PROPOSE, request, lambda reply: bool(reply.accepted))
        self.owner.reach("conditional.proposed")
        won = await self.won(plan, paxos_round)
        if won:
            self.did("Accepted a proposal", paxos_round.granted)
            self.owner.reach("conditional.decided")
        return won and not self.changed(plan)

    async def held(self, plan: Plan, decided: Proposal, holders: Sequence[NodeId]) -> bool:
        """Bring a decided proposal to a quorum; `holders` know it already."""
        given = None if holders else await self.named(plan, decided)
        request = CommitRequest(plan.epoch, plan.needs_epoch, self.place, decided, given)
        targets = [target for target in plan.targets if target.node not in holders]
        round_ = Round(BALLOT, plan, targets, dict.fromkeys(holders, plan.epoch))
        paxos_round = PaxosRound(
            self.owner, round_, verbs.CAS_COMMIT, request, self.deadline_s, lambda reply: True
        )
        return await self.won(plan, paxos_round) and not self.changed(plan)

    async def named(self, plan: Plan, decided: Proposal) -> MutationId | None:
        """The id that one replica of a tracked table gives to what was decided as it stores it, this node if
        it is one. None: the table is not tracked, or none has said so soon: then each gives it one."""
        if plan.shard is None or not decided.value:
            return None
        owner = self.owner
        request = CommitRequest(plan.epoch, plan.needs_epoch, self.place, decided)
        try:
            if plan.local is not None:
                return await owner.ballots.named(request)
            first = owner.plans.read_order(plan, owner.context.opinions.prefers, owner.context.alive)[0]
            reply: CommitReply = await owner.context.internode.request(
                first.address, verbs.CAS_COMMIT, request, self.left_ms() / 4
            )
        except LockstepError:
            owner.reach("conditional.unnamed")
            return None
        return reply.given

    def paxos_round(self, plan: Plan, verb: int, request: Any, agrees: Callable[[Any], bool]) -> PaxosRound:
        alive = self.owner.context.opinions.alive
        suspects = [node for node in plan.by_node if not alive(node)]
        round_ = Round(VOTE, plan, self.voters(plan), suspects=suspects)
        return PaxosRound(self.owner, round_, verb, request, self.deadline_s, agrees)

    async def won(self, plan: Plan, paxos_round: PaxosRound) -> bool:
        """Whether enough agreed; if not, this returns when another round may do better."""
        end = await paxos_round.run()
        if end is not End.ENOUGH:
            await self.came_of(plan, paxos_round, end)
        return end is End.ENOUGH

    async def came_of(self, plan: Plan, paxos_round: PaxosRound, end: End) -> None:
        """Too few agreed: raises, or returns when another round may do better."""
        if end is End.STALE:
            await self.learn(paxos_round)
        elif end is End.REFUSED:
            for reply in paxos_round.refused.values():
                floor = reply.state.floor if isinstance(reply, PrepareReply) else reply.floor
                self._floor_us = max(self._floor_us, floor.time_us)
            await self.step_back(paxos_round.granted)
        elif end is End.FAILED:
            raise too_many_failed(plan, paxos_round, self.serial, _CAS)
        else:
            raise late(self.late(plan.counted(paxos_round.granted)), plan.targets, paxos_round.round.failures)

    async def step_back(self, granted: Collection[NodeId]) -> None:
        """Others were first: let them end, for longer each time."""
        self.contentions += 1
        self.owner.reach("conditional.beaten")
        self.did("Others were promised a later ballot: waiting to ask again")
        runtime = self.owner.runtime
        most_ms = min(BALLOT_PAUSE_MS_MAX, BALLOT_PAUSE_MS_MIN << min(self.contentions - 1, 16))
        pause_s = runtime.random.real() * most_ms / 1000
        if runtime.clock.monotonic_s() + pause_s >= self._contention_s:
            raise self.late(len(granted))
        await asyncio.sleep(pause_s)

    async def learn(self, paxos_round: PaxosRound) -> None:
        """Catch up with a replica that is ahead; a source that does not deliver costs a pause."""
        assert paxos_round.round.source is not None, "a stale answer has a source"
        epoch, source = paxos_round.round.source
        self.owner.reach("conditional.behind")
        self.owner.replans += 1
        try:
            async with asyncio.timeout(self.left_ms() / 1000):
                await self.owner.context.catch_up(epoch, source.address)
        except TimeoutError:
            raise self.late(0) from None
        except RequestError:
            raise
        except LockstepError:
            self.owner.reach("conditional.catch_up_failed")
            await asyncio.sleep(REPLICA_RETRY_MS / 1000)

    def changed(self, plan: Plan) -> bool:
        """Whether what the answers say about a quorum no longer holds."""
        place = self.place
        tokens = Range(place.token - 1, place.token)
        if not self.owner.plans.changed_since(place.table_id, tokens, plan.epoch):
            return False
        self.owner.replans += 1
        self.owner.reach("conditional.plan_changed")
        return True

    async def show(self, command: ReadCommand, looked: Looked) -> None:
        """What is told to a client is held by a quorum: plain writes may have reached a few replicas only.
        Of a tracked table they are brought whole."""
        results = looked.results
        if looked.plan.reads_ids:
            try:
                await made_even(self.owner.context, looked.plan, command, looked.known, self.left_ms())
            except (LockstepError, TimeoutError):
                raise self.late(0) from None
            return
        if all(result == results[0] for result in results[1:]):
            return
        owner = self.owner
        partitions, _ = merge_answers(results, command.reverse)
        for part, _ in lacking(partitions, results):
            owner.reach("conditional.repaired")
            mutation = repair_mutation(self.place.table_id, part, owner.context.new_mutation_id())
            level = COUNTED_AS[self.serial]
            await owner.writes.begin(mutation, level, self.left_ms(), terms=SHOWN)

    def leave_hints(self, plan: Plan, decided: Proposal, paxos_round: PaxosRound) -> None:
        """Now or once they are known to miss it; of a tracked table replicas get it by its id."""
        owner, hints = self.owner, self.owner.writes.hints
        if plan.shard is not None or hints is None:
            return
        own, alive = owner.context.own_id(), owner.context.alive
        lacking = [t for t in plan.targets if t.node != own and t.node not in paxos_round.granted]
        awaited = {t.node for t in lacking if t.node in paxos_round.round.outstanding and alive(t.node)}

        def leave(targets: Sequence[Target]) -> None:
            hints.leave(MUTATION.decode(decided.value), plan.epoch, targets, made_us=decided.origin.time_us)

        def missed(target: Target) -> None:
            if target.node in awaited:
                owner.reach("conditional.missed_late")
                leave((target,))

        paxos_round.missed = missed
        if at_once := [target for target in lacking if target.node not in awaited]:
            leave(at_once)

    def late(self, received: int) -> RequestError:
        """The error of a request whose time is over."""
        if self.own is not None:
            self.owner.reach("conditional.unknown")
            return ConditionalUnknown(self.serial, received, self.required)
        return WriteTimeout(self.serial, received, self.required, _CAS, self.contentions)

    def left_ms(self) -> float:
        return max(1.0, (self.deadline_s - self.owner.runtime.clock.monotonic_s()) * 1000)


def too_many_failed(plan: Plan, paxos_round: PaxosRound, level: Consistency, write_type: str) -> WriteFailure:
    counted, failed = plan.counted(paxos_round.granted), paxos_round.round.failures
    reasons, causes = reasons_of(plan.targets, failed), causes_of(plan.targets, failed)
    return WriteFailure(level, counted, plan.required, len(failed), write_type, reasons, causes)
