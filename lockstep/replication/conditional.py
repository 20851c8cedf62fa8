"""The coordinator of conditional writes and serial reads: rounds of ballots until a request has its outcome.

Invariants. What decides a request was read by a quorum of acceptors in the step of their promise, so it is
what was decided before the ballot and nothing later. What was decided last is held by a quorum before
anything is decided behind it. Once a proposal was sent, its request ends as applied, or as unknown, or goes
on until it is known that the proposal never takes effect; it is never answered as not applied before. A round
counts only when nothing that matters has changed since it was planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, Ballot, Fate, Promises, Proposal
from lockstep.replication import verbs
from lockstep.replication.ballot_messages import (
    CommitRequest,
    Place,
    PrepareReply,
    PrepareRequest,
    ProposeRequest,
)
from lockstep.replication.ballots import BallotService
from lockstep.replication.canvass import Canvass, End
from lockstep.replication.deadlines import Deadlines
from lockstep.replication.gates import Gates
from lockstep.replication.handshake import Address
from lockstep.replication.internode import Internode
from lockstep.replication.merging import lacking, merge_answers
from lockstep.replication.page import Page
from lockstep.replication.plans import Plan, PlanBook, Target
from lockstep.replication.writes import Writes, require_alive
from lockstep.runtime.ports import Runtime
from lockstep.storage.difference import repair_mutation
from lockstep.values.codec import encode
from lockstep.values.errors import (
    ColumnsGone,
    ConditionalUnknown,
    InvalidRequest,
    LockstepError,
    Overloaded,
    ReadFailure,
    ReadTimeout,
    RequestError,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import (
    BALLOT_LOOKS_MAX,
    BALLOT_PAUSE_MS_MAX,
    BALLOT_PAUSE_MS_MIN,
    BALLOT_ROUNDS_MAX,
    CONDITIONAL_IN_FLIGHT_MAX,
    MUTATION_BYTES_MAX,
    REPLICA_RETRY_MS,
    SHORT_READ_ROUNDS_MAX,
)
from lockstep.values.rows import Mutation, Partition, Position, ReadCommand, ReadResult
from lockstep.values.tokens import Range

_CAS = "CAS"
#: Ballots go to the replicas of a write and need what it needs, also while replicas are filled: any two
#: quorums of one epoch or of two that follow each other then have a voter in common.
_COUNTED_AS = {
    Consistency.SERIAL: Consistency.QUORUM,
    Consistency.LOCAL_SERIAL: Consistency.LOCAL_QUORUM,
}


class Decision(msgspec.Struct, frozen=True):
    """What a request makes of what it read: what to write, or None, and what its client is told."""

    mutation: Mutation | None
    answer: Any


#: Told the rows that are there and the timestamp that what it writes has to have.
Decide = Callable[[ReadResult, int], Decision]


class Patience(msgspec.Struct, frozen=True):
    """How long a request may take in all, and how long it may begin rounds that others may beat."""

    timeout_ms: float
    contention_ms: float


class Conditionals:
    """What all conditional requests of one node share."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        plans: PlanBook,
        ballots: BallotService,
        writes: Writes,
        catch_up: Callable[[int, Address], Awaitable[None]],
        alive: Callable[[int], bool],
        own_id: Callable[[], int],
        new_mutation_id: Callable[[], bytes],
    ) -> None:
        self.runtime = runtime
        self.internode = internode
        self.plans = plans
        self.ballots = ballots
        self.writes = writes
        self.catch_up = catch_up
        self.alive = alive
        self.own_id = own_id
        self.new_mutation_id = new_mutation_id
        self.reach = runtime.probes.reach
        self.in_flight = Deadlines(runtime.clock)
        self._gates = Gates()
        self._requests = 0
        self._last_us = 0
        #: Rounds that others beat, proposals of others that were finished, and rounds planned anew.
        self.contentions = 0
        self.finished = 0
        self.replans = 0

    def stop(self) -> None:
        self.in_flight.stop()

    def next_ballot(self, floor_us: int) -> Ballot:
        """Later than all that this node gave, and than `floor_us`; by the clock, if that is."""
        self._last_us = max(self.runtime.clock.wall_us(), self._last_us + 1, floor_us + 1)
        return Ballot(self._last_us, self.runtime.random.below(1 << 62))

    async def write(
        self,
        place: Place,
        command: ReadCommand,
        decide: Decide,
        serial: Consistency,
        consistency: Consistency,
        patience: Patience,
    ) -> Any:
        """The answer of the decision that took effect, or that wrote nothing.

        Unavailable, Overloaded, InvalidRequest, ColumnsGone: nothing was proposed. WriteTimeout of type CAS:
        as far as this node knows, nothing was decided. ConditionalUnknown. WriteTimeout or WriteFailure of
        type SIMPLE: it was decided, and too few replicas have applied it yet.
        """
        require_alive(self.plans.write_plan(place.table_id, place.token, consistency), self.alive)
        request = _Request(self, place, serial, patience)
        decision = await self._passing(request, lambda: request.decided(command, decide))
        if request.own is not None:
            await request.apply(request.own, consistency)
        return decision.answer

    async def read(self, command: ReadCommand, serial: Consistency, patience: Patience) -> ReadResult:
        """Live content of one partition that reflects all that was decided before. ReadTimeout and the other
        errors of reads."""
        assert command.key is not None, "ballots are of one partition"
        place = Place(command.table_id, command.right, command.key)
        request = _Request(self, place, serial, patience)
        try:
            found: ReadResult = await self._passing(request, lambda: request.page(command))
        except (WriteTimeout, WriteFailure) as error:
            raise ReadTimeout(serial, error.received, error.required, False) from error
        return found

    async def _passing(self, request: _Request, run: Callable[[], Awaitable[Any]]) -> Any:
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


class _Request:
    """One conditional request. `own`: what it proposed and what may take effect."""

    def __init__(self, owner: Conditionals, place: Place, serial: Consistency, patience: Patience) -> None:
        self._owner = owner
        self.place = place
        self.serial = serial
        now_s = owner.runtime.clock.monotonic_s()
        self._deadline_s = now_s + patience.timeout_ms / 1000
        self._contention_s = now_s + min(patience.contention_ms, patience.timeout_ms) / 1000
        self.own: Proposal | None = None
        self.required = 0
        self._contentions = 0
        self._floor_us = 0
        table = owner.plans.cluster.table(place.table_id)
        self._table_epoch = table.epoch if table is not None else 0

    def contention_left_s(self) -> float:
        return max(0.0, self._contention_s - self._owner.runtime.clock.monotonic_s())

    def plan(self) -> Plan:
        """Who votes now. InvalidRequest when the table is gone, ColumnsGone when it changed and nothing was
        proposed: whoever decided what to write has to do so again."""
        plans, place = self._owner.plans, self.place
        plan = plans.write_plan(place.table_id, place.token, _COUNTED_AS[self.serial])
        table = plans.cluster.table(place.table_id)
        if table is not None and table.epoch != self._table_epoch and self.own is None:
            raise ColumnsGone(table.name, begun=False)
        self.required = plan.required
        return plan

    def require_voters(self) -> None:
        """Unavailable when too few seem to be alive for anything to be decided."""
        try:
            require_alive(self.plan(), self._owner.alive)
        except Unavailable as error:
            raise Unavailable(self.serial, error.required, error.alive) from error

    def _voters(self, plan: Plan) -> Sequence[Target]:
        """LOCAL_SERIAL asks no other data centre."""
        dcs = {need.dc for need in plan.needs}
        return plan.targets if "" in dcs else [target for target in plan.targets if target.dc in dcs]

    # -- outcomes ---------------------------------------------------------------------------------

    async def decided(self, command: ReadCommand, decide: Decide) -> Decision:
        """Returns once the decision has its outcome; `own` is then what was decided, or None."""
        decision: Decision | None = None
        for _ in range(BALLOT_ROUNDS_MAX):
            plan = self.plan()
            round_ = await self._promised(plan, command)
            if round_ is None:
                continue
            ballot, found, results = round_
            fate = Fate.LOST if self.own is None else paxos.fate(self.own, found.committed)
            if fate is Fate.UNKNOWN:
                raise ConditionalUnknown(self.serial, 0, plan.required)
            if fate is Fate.LOST:
                self.own, decision = None, self._decision(command, results, decide, ballot)
                if decision.mutation is None:
                    await self._show(command, results)
                    return decision
                self.own = paxos.propose(ballot, _encoded(decision.mutation), found.committed)
            assert decision is not None and self.own is not None, "what is proposed was decided"
            if fate is Fate.DECIDED:
                return decision
            self.own = self.own.under(ballot)
            if await self._accepted(plan, self.own):
                return decision
        raise self.late(0)

    def _decision(
        self, command: ReadCommand, results: Sequence[ReadResult], decide: Decide, ballot: Ballot
    ) -> Decision:
        partitions, end = merge_answers(results, command.reverse)
        page = Page(command)
        page.add(partitions, None)
        if end is not None and not command.row_limit:
            raise ReadFailure(self.serial, len(results), self.required, 0, True)
        return decide(page.result(None), ballot.time_us)

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
        for attempt in range(BALLOT_ROUNDS_MAX):
            results = await self._looked(self.plan(), piece) if attempt < BALLOT_LOOKS_MAX else None
            if results is not None:
                await self._show(piece, results)
                return merge_answers(results, piece.reverse)
            if attempt + 1 < BALLOT_LOOKS_MAX:
                await self._step_back(())
                continue
            round_ = await self._promised(self.plan(), piece)
            if round_ is not None:
                await self._show(piece, round_[2])
                return merge_answers(round_[2], piece.reverse)
        raise self.late(0)

    async def _show(self, command: ReadCommand, results: Sequence[ReadResult]) -> None:
        """What is told to a client is held by a quorum: plain writes may have reached a few replicas only."""
        if all(result == results[0] for result in results[1:]):
            return
        owner = self._owner
        partitions, _ = merge_answers(results, command.reverse)
        for part, _ in lacking(partitions, results):
            owner.reach("conditional.repaired")
            mutation = repair_mutation(self.place.table_id, part, owner.new_mutation_id())
            await owner.writes.begin(mutation, _COUNTED_AS[self.serial], self._left_ms())

    # -- rounds -----------------------------------------------------------------------------------

    async def _promised(
        self, plan: Plan, command: ReadCommand
    ) -> tuple[Ballot, Promises, list[ReadResult]] | None:
        """A quorum's promise with what it read, all that was decided being held by a quorum; None: again."""
        ballot = self._owner.next_ballot(self._floor_us)
        request = PrepareRequest(plan.epoch, plan.needs_epoch, self.place, ballot, command)
        canvass = self._canvass(plan, verbs.CAS_PREPARE, request, _promises)
        if not await self._won(plan, canvass) or self._changed(plan):
            return None
        states = {node: reply.state for node, reply in canvass.granted.items()}
        found = paxos.judge(states)
        if found.in_progress is not None:
            self._owner.finished += 1
            self._owner.reach("conditional.finishes")
            # The other one's request goes on from here: it learns of its outcome by itself.
            if await self._accepted(plan, found.in_progress.under(ballot)):
                await self._held(plan, found.in_progress.under(ballot), ())
            return None
        if found.committed is not None and found.lacking:
            self._owner.reach("conditional.brings")
            holders = [node for node in states if node not in found.lacking]
            if not await self._held(plan, found.committed, holders):
                return None
        return ballot, found, [reply.result for reply in canvass.granted.values()]

    async def _looked(self, plan: Plan, command: ReadCommand) -> list[ReadResult] | None:
        """What a quorum holds, if nothing is in progress there and all of it knows what was decided last:
        nothing was decided before that it does not hold then, and no promise is needed."""
        request = PrepareRequest(plan.epoch, plan.needs_epoch, self.place, NO_BALLOT, command)
        canvass = self._canvass(plan, verbs.CAS_PREPARE, request, _promises)
        if not await self._won(plan, canvass) or self._changed(plan):
            return None
        found = paxos.judge({node: reply.state for node, reply in canvass.granted.items()})
        if found.in_progress is not None or found.lacking:
            self._owner.reach("conditional.looked_in_vain")
            return None
        return [reply.result for reply in canvass.granted.values()]

    async def _accepted(self, plan: Plan, proposal: Proposal) -> bool:
        """Whether the proposal is decided, as far as this round says."""
        request = ProposeRequest(plan.epoch, plan.needs_epoch, self.place, proposal)
        canvass = self._canvass(plan, verbs.CAS_PROPOSE, request, lambda reply: bool(reply.accepted))
        self._owner.reach("conditional.proposed")
        return await self._won(plan, canvass) and not self._changed(plan)

    async def _held(self, plan: Plan, decided: Proposal, holders: Sequence[NodeId]) -> bool:
        """Bring a decided proposal to a quorum; `holders` know it already."""
        request = CommitRequest(plan.epoch, plan.needs_epoch, self.place, decided)
        targets = [target for target in plan.targets if target.node not in holders]
        canvass = Canvass(
            self._owner,
            targets,
            verbs.CAS_COMMIT,
            request,
            self._deadline_s,
            lambda reply: True,
            lambda nodes: plan.satisfied_by((*holders, *nodes)),
        )
        return await self._won(plan, canvass) and not self._changed(plan)

    def _canvass(self, plan: Plan, verb: int, request: Any, agrees: Callable[[Any], bool]) -> Canvass:
        return Canvass(
            self._owner, self._voters(plan), verb, request, self._deadline_s, agrees, plan.satisfied_by
        )

    async def _won(self, plan: Plan, canvass: Canvass) -> bool:
        """Whether enough agreed; if not, this returns when another round may do better."""
        end = await canvass.run()
        if end is End.ENOUGH:
            return True
        if end is End.STALE:
            await self._learn(canvass)
        elif end is End.BEATEN:
            for reply in canvass.refused.values():
                floor = reply.state.floor if isinstance(reply, PrepareReply) else reply.floor
                self._floor_us = max(self._floor_us, floor.time_us)
            await self._step_back(canvass.granted)
        elif end is End.FAILED:
            raise WriteFailure(
                self.serial, plan.counted(canvass.granted), plan.required, len(canvass.failures), _CAS
            )
        else:
            raise self.late(plan.counted(canvass.granted))
        return False

    async def _step_back(self, granted: Collection[NodeId]) -> None:
        """Others were first: let them end, for longer each time."""
        self._contentions += 1
        self._owner.contentions += 1
        self._owner.reach("conditional.beaten")
        runtime = self._owner.runtime
        most_ms = min(BALLOT_PAUSE_MS_MAX, BALLOT_PAUSE_MS_MIN << min(self._contentions - 1, 16))
        pause_s = runtime.random.real() * most_ms / 1000
        if runtime.clock.monotonic_s() + pause_s >= self._contention_s:
            raise self.late(len(granted))
        await asyncio.sleep(pause_s)

    async def _learn(self, canvass: Canvass) -> None:
        """Catch up with a replica that is ahead; a source that does not deliver costs a pause."""
        assert canvass.stale is not None, "a stale answer has a source"
        self._owner.reach("conditional.behind")
        self._owner.replans += 1
        try:
            async with asyncio.timeout(self._left_ms() / 1000):
                await self._owner.catch_up(*canvass.stale)
        except TimeoutError:
            raise self.late(0) from None
        except RequestError:
            raise
        except LockstepError:
            self._owner.reach("conditional.catch_up_failed")
            await asyncio.sleep(REPLICA_RETRY_MS / 1000)

    def _changed(self, plan: Plan) -> bool:
        """Whether what the answers say about a quorum no longer holds."""
        place = self.place
        tokens = Range(place.token - 1, place.token)
        if not self._owner.plans.changed_since(place.table_id, tokens, plan.epoch):
            return False
        self._owner.replans += 1
        self._owner.reach("conditional.plan_changed")
        return True

    # -- endings ----------------------------------------------------------------------------------

    async def apply(self, decided: Proposal, consistency: Consistency) -> None:
        """Have what was decided applied at the level of the write."""
        owner, place = self._owner, self.place
        while True:
            try:
                plan = owner.plans.write_plan(place.table_id, place.token, consistency)
            except InvalidRequest:
                return  # The table was dropped meanwhile, and everything in it.
            request = CommitRequest(plan.epoch, plan.needs_epoch, place, decided)
            canvass = Canvass(
                owner,
                plan.targets,
                verbs.CAS_COMMIT,
                request,
                self._deadline_s,
                lambda reply: True,
                plan.satisfied_by,
            )
            end = await canvass.run()
            counted = plan.counted(canvass.granted)
            if end is End.ENOUGH and not self._changed(plan):
                return
            if end is End.STALE:
                await self._learn(canvass)
            elif end is End.FAILED:
                failures = len(canvass.failures)
                raise WriteFailure(consistency, counted, plan.required, failures, "SIMPLE")
            elif end is not End.ENOUGH:
                raise WriteTimeout(consistency, counted, plan.required, "SIMPLE")

    def late(self, received: int) -> RequestError:
        """The error of a request whose time is over."""
        if self.own is not None:
            self._owner.reach("conditional.unknown")
            return ConditionalUnknown(self.serial, received, self.required)
        return WriteTimeout(self.serial, received, self.required, _CAS, self._contentions)

    def _left_ms(self) -> float:
        return max(1.0, (self._deadline_s - self._owner.runtime.clock.monotonic_s()) * 1000)


def _promises(reply: PrepareReply) -> bool:
    return reply.result is not None


def _encoded(mutation: Mutation) -> bytes:
    value = encode(mutation)
    # It is stored twice: as what was accepted, and in the table.
    if len(value) > MUTATION_BYTES_MAX // 2:
        raise InvalidRequest(f"a conditional write of {len(value)} bytes is above {MUTATION_BYTES_MAX // 2}")
    return value
