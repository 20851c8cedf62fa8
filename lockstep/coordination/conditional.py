"""The coordinator of conditional writes and serial reads: rounds of ballots until a request is decided, one
request of a partition at a time, as far as one coordinator can see to it.

Invariant: What decides a request was read by a quorum of acceptors in the step of their promise, so it is
what was decided before the ballot and nothing later. What was decided last is held by a quorum before
anything is decided behind it. Once a proposal was sent, its request ends as applied, or as unknown, or goes
on until it is known that the proposal never takes effect; it is never answered as not applied before. A round
counts only when nothing that matters has changed since it was planned. Requests pass in the order they came;
what nobody waits for is forgotten. Passing is a courtesy that saves ballots: safety never depends on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, Ballot, Fate, Happened, Phase, Proposal
from lockstep.coordination.ballot_counts import ABANDONED, DONE, NOT_MET, ConditionalCounts, outcome_of
from lockstep.coordination.ballot_rounds import (
    ConditionalsShared,
    Patience,
    PaxosRound,
    Rounds,
    too_many_failed,
)
from lockstep.coordination.deciding import Reached, decide_at_once
from lockstep.coordination.looked import Looked, looked_of, promises
from lockstep.coordination.page import Page
from lockstep.internode import verbs
from lockstep.quorum.failure_codes import late
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import BALLOT, End, Round
from lockstep.replica.merging import merge_answers
from lockstep.replica.messages import CommitRequest, Place, PrepareRequest
from lockstep.storage.rows.fragments import require_fitting
from lockstep.tracking.held import MutationId
from lockstep.values.codec import encode
from lockstep.values.errors import (
    ConditionalUnknown,
    InvalidRequest,
    LockstepError,
    Overloaded,
    ReadFailure,
    ReadTimeout,
    RequestError,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import (
    BALLOT_LOOKS_MAX,
    BALLOT_ROUNDS_MAX,
    CONDITIONAL_IN_FLIGHT_MAX,
    MUTATION_BYTES_MAX,
    SHORT_READ_ROUNDS_MAX,
)
from lockstep.values.rows import Mutation, Partition, Position, ReadCommand, ReadResult, has_large_row

GatePlace = tuple[int, bytes]


class Gates:
    def __init__(self) -> None:
        #: Who waits for each place that someone is in.
        self._waiting: dict[GatePlace, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def passing(self, place: GatePlace, timeout_s: float) -> AsyncIterator[None]:
        """TimeoutError when the turn does not come."""
        queue = self._waiting.get(place)
        if queue is None:
            self._waiting[place] = deque()
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(turn)
            try:
                async with asyncio.timeout(timeout_s):
                    await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._leave(place)
                elif turn in queue:
                    queue.remove(turn)
                raise
        try:
            yield
        finally:
            self._leave(place)

    def _leave(self, place: GatePlace) -> None:
        queue = self._waiting[place]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[place]


class Decision(msgspec.Struct, frozen=True):
    """What a request makes of what it read: what to write, or None, and what its client is told."""

    mutation: Mutation | None
    answer: Any


#: Told the rows that are there and the timestamp that what it writes has to have.
Decide = Callable[[ReadResult, int], Decision]


class Conditionals:
    def __init__(self, shared: ConditionalsShared) -> None:
        self.shared = shared
        self._gates = Gates()
        self._requests = 0
        self.writes_ended = ConditionalCounts()
        self.reads_ended = ConditionalCounts()

    def stop(self) -> None:
        self.shared.in_flight.stop()
        self.shared.slow.stop()

    async def write(
        self,
        place: Place,
        command: ReadCommand,
        decide: Decide,
        serial: Consistency,
        consistency: Consistency,
        patience: Patience,
        *,
        is_long: bool = False,
    ) -> Any:
        """The answer of the decision that took effect, or that wrote nothing. `is_long`: to decide takes
        longer than the loop may.

        Unavailable, Overloaded, InvalidRequest, ColumnsGone: nothing was proposed. WriteTimeout of type CAS:
        as far as this node knows, nothing was decided. ConditionalUnknown. WriteTimeout or WriteFailure of
        type SIMPLE: it was decided, and too few replicas have applied it yet.
        """
        plan = self.shared.plans.write_plan(place.table_id, place.token, consistency)
        plan.require_alive(self.shared.context.opinions)
        request = _Write(self.shared, self.writes_ended, place, serial, patience)

        async def run() -> Any:
            decision = await self._passing(
                request, lambda: request.decided(command, decide, consistency, is_long=is_long)
            )
            if request.own is not None and request.phase is not Phase.ENDED:
                await request.apply(request.own, consistency)
            if decision.mutation is not None and decision.mutation.captured is not None:
                await self._log_beside(request, decision.mutation, consistency)
            return decision.answer

        return await self._counted(request, run)

    async def _log_beside(self, request: _Write, mutation: Mutation, consistency: Consistency) -> None:
        """Bring what was decided to the replicas of the log that are none of the table, where there are any:
        those of both have applied both."""
        captured, shared = mutation.captured, self.shared
        assert captured is not None, "the change is captured"
        try:
            plan = shared.plans.plan_of(mutation, consistency)
            if plan.also is not None:
                shared.reach("conditional.log_beside")
                await shared.writes.begin(captured, consistency, request.left_ms())
        except InvalidRequest:
            return  # The table or its log was dropped meanwhile.
        except RequestError as error:
            if error.outcome_known:
                # It was decided, and the table has it.
                raise WriteTimeout(consistency, 0, plan.required, "SIMPLE") from error
            raise

    async def read(self, command: ReadCommand, serial: Consistency, patience: Patience) -> ReadResult:
        """Live content of one partition that reflects all that was decided before. ReadTimeout and the other
        errors of reads."""
        assert command.key is not None, "ballots are of one partition"
        place = Place(command.table_id, command.right, command.key)
        request = _Read(self.shared, self.reads_ended, place, serial, patience)
        try:
            found: ReadResult = await self._counted(
                request, lambda: self._passing(request, lambda: request.page(command))
            )
        except (WriteTimeout, WriteFailure) as error:
            raise ReadTimeout(serial, error.received, error.required, False) from error
        return found

    async def _counted(self, request: Rounds, run: Callable[[], Awaitable[Any]]) -> Any:
        clock, outcome = self.shared.runtime.clock, ABANDONED
        began_s = clock.monotonic_s()
        try:
            answer = await run()
            is_met = request.own is not None or isinstance(request, _Read)
            outcome = DONE if is_met else NOT_MET
            return answer
        except LockstepError as error:
            outcome = outcome_of(error)
            raise
        finally:
            request.counts.note(outcome, clock.monotonic_s() - began_s, request.contentions)

    async def _passing(self, request: Rounds, run: Callable[[], Awaitable[Any]]) -> Any:
        if self._requests >= CONDITIONAL_IN_FLIGHT_MAX:
            raise Overloaded("too many conditional requests in flight on this node")
        request.require_voters()
        self._requests += 1
        place = request.place
        try:
            async with self._gates.passing((place.table_id, place.key), request.contention_left_s()):
                return await run()
        except TimeoutError:
            raise request.late(0) from None
        except RequestError as error:
            if request.own is not None and error.outcome_known:
                raise ConditionalUnknown(request.serial, 0, request.required) from error
            raise
        finally:
            self._requests -= 1


class _Write(Rounds):
    """A conditional write."""

    async def decided(
        self, command: ReadCommand, decide: Decide, consistency: Consistency, *, is_long: bool
    ) -> Decision:
        """Returns once the decision has its outcome; `own` is then what was decided, or None. Where nothing
        was decided, or it was applied too, the request has ended."""
        decision: Decision | None = None
        for _ in range(BALLOT_ROUNDS_MAX):
            plan = self.plan()
            round_ = await self.promised(plan, command)
            if round_ is None:
                continue
            ballot, found, looked = round_
            results = looked.results
            fate = Fate.LOST if self.own is None else paxos.fate(self.own, found.committed)
            if fate is Fate.UNKNOWN:
                raise ConditionalUnknown(self.serial, 0, plan.required)
            if fate is Fate.LOST:
                self.own, work = None, partial(self._decision, command, results, decide, ballot)
                beside = is_long or has_large_row(results)
                decision = await self.owner.runtime.tasks.run_blocking(work) if beside else work()
                if decision.mutation is None:
                    self.goes(Happened.ANSWERED)
                    self.did("The condition does not match existing values")
                    await self.show(command, looked)
                    return decision
                self.did("The condition is met: proposing what is to be written")
                self.own = paxos.propose(ballot, _encoded(decision.mutation), found.committed)
            assert decision is not None and self.own is not None, "what is proposed was decided"
            if fate is Fate.DECIDED:
                self.goes(Happened.DECIDED)
                return decision
            self.own = self.own.under(ballot)
            self.goes(Happened.PROPOSES)
            reached = await decide_at_once(self, plan, self.own, consistency)
            if reached is None:
                reached = Reached.DECIDED if await self.accepted(plan, self.own) else Reached.AGAIN
            if reached is Reached.AGAIN:
                self.goes(Happened.AGAIN)
                continue
            self.goes(Happened.DECIDED)
            if reached is Reached.HELD:
                self.goes(Happened.HELD)
            return decision
        raise self.late(0)

    def _decision(
        self, command: ReadCommand, results: Sequence[ReadResult], decide: Decide, ballot: Ballot
    ) -> Decision:
        """Pure, but for what `decide` looks at: it may be worked out beside the loop."""
        partitions, end = merge_answers(results, command.reverse)
        page = Page(command)
        page.add(partitions, None)
        if end is not None and not command.row_limit:
            raise ReadFailure(self.serial, len(results), self.required, 0, True)
        return decide(page.result(None), ballot.time_us)

    async def apply(self, decided: Proposal, consistency: Consistency) -> None:
        """Have what was decided applied at the level of the write."""
        owner, place = self.owner, self.place
        given: MutationId | None = None
        while True:
            try:
                plan = owner.plans.write_plan(place.table_id, place.token, consistency)
            except InvalidRequest:
                return  # The table was dropped meanwhile, and everything in it.
            given = given or await self.named(plan, decided)
            request = CommitRequest(plan.epoch, plan.needs_epoch, place, decided, given)
            round_ = Round(BALLOT, plan)
            paxos_round = PaxosRound(
                owner, round_, verbs.CAS_COMMIT, request, self.deadline_s, lambda reply: True
            )
            end = await paxos_round.run()
            if end is End.ENOUGH and not self.changed(plan):
                self.goes(Happened.HELD)
                self.did("Applied what was decided", paxos_round.granted)
                self.leave_hints(plan, decided, paxos_round)
                return
            self.goes(Happened.AGAIN)
            if end is End.STALE:
                await self.learn(paxos_round)
            elif end is not End.ENOUGH:
                self.leave_hints(plan, decided, paxos_round)
                if end is End.FAILED:
                    raise too_many_failed(plan, paxos_round, consistency, "SIMPLE")
                counted = plan.counted(paxos_round.granted)
                timeout = WriteTimeout(consistency, counted, plan.required, "SIMPLE")
                raise late(timeout, plan.targets, paxos_round.round.failures)


class _Read(Rounds):
    """A serial read."""

    async def page(self, command: ReadCommand) -> ReadResult:
        """The page of a serial read; each piece of it is a round of its own."""
        page, after = Page(command), command.after
        for short in range(SHORT_READ_ROUNDS_MAX):
            limit = page.room() << min(short, 16)
            piece = msgspec.structs.replace(command, after=after, row_limit=limit, partition_row_limit=0)
            partitions, end = await self._piece(piece)
            page.add(partitions, end)
            if end is None:
                return page.result(None)
            after = page.skip_full(end)
            if page.full():
                return page.result(after)
        raise ReadFailure(self.serial, 0, self.required, 0, True)

    async def _piece(self, piece: ReadCommand) -> tuple[tuple[Partition, ...], Position | None]:
        self.phase = Phase.ASKING
        for attempt in range(BALLOT_ROUNDS_MAX):
            looked = await self._looked(self.plan(), piece) if attempt < BALLOT_LOOKS_MAX else None
            if looked is not None:
                await self.show(piece, looked)
                return merge_answers(looked.results, piece.reverse)
            if attempt + 1 < BALLOT_LOOKS_MAX:
                await self.step_back(())
                continue
            round_ = await self.promised(self.plan(), piece)
            if round_ is not None:
                self.goes(Happened.ANSWERED)
                await self.show(piece, round_[2])
                return merge_answers(round_[2].results, piece.reverse)
        raise self.late(0)

    async def _looked(self, plan: Plan, command: ReadCommand) -> Looked | None:
        """What a quorum holds, if nothing is in progress there and all of it knows what was decided last:
        nothing was decided before that it does not hold then, and no promise is needed."""
        request = PrepareRequest(plan.epoch, plan.needs_epoch, self.place, NO_BALLOT, command)
        paxos_round = self.paxos_round(plan, verbs.CAS_PREPARE, request, promises)
        if not await self.won(plan, paxos_round) or self.changed(plan):
            return None
        found = paxos.judge({node: reply.state for node, reply in paxos_round.granted.items()})
        if found.in_progress is not None:
            self.owner.reach("conditional.look_in_progress")
            return None
        if found.lacking:
            self.owner.reach("conditional.look_lacks")
            return None
        looked = looked_of(plan, paxos_round.granted)
        return looked if await self.whole(command, looked) else None


def _encoded(mutation: Mutation) -> bytes:
    value = encode(mutation)
    # It is stored twice: as what was accepted, and in the table.
    if len(value) > MUTATION_BYTES_MAX // 2:
        raise InvalidRequest(f"a conditional write of {len(value)} bytes is above {MUTATION_BYTES_MAX // 2}")
    # Once proposed it would be brought for ever, and no replica could apply it.
    require_fitting(mutation, len(value))
    return value
