"""The replica's side of conditional writes: promises, accepts and commits, judged and kept as one row of the
table's companion, a cell for each part.

Invariant: The check of the epoch, the step of the acceptor, what it writes, and what a promise reads are one
synchronous step. Nothing is answered before it is durable, but for promises of times that are reserved
(`ballot_states`), and nothing when the replica group changed since the request was planned. What is known
here as decided was applied before that is stored; nothing is applied that is older than what a repair lets
this node purge and its sender does not know of. A cell's timestamp is its ballot's time, so that states of
several replicas or fragments merge to the latest of each part, as cells do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, Acceptor
from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.purging import purge_before_s
from lockstep.quorum.failure_codes import (
    CATCH_UP_FAILED,
    NOT_REPLICA,
    STALE_AFTERWARDS,
    STALE_DROPPED,
    STALE_PLACEMENT,
    STALE_TABLE,
    UNKNOWN_TABLE,
    WRITE,
)
from lockstep.quorum.plans import PlanBook
from lockstep.replica import ballot_states
from lockstep.replica.ballot_states import BallotStates, ReservedTimes
from lockstep.replica.messages import (
    CommitReply,
    CommitRequest,
    Known,
    Place,
    PrepareReply,
    PrepareRequest,
    ProposeReply,
    ProposeRequest,
    Tracking,
)
from lockstep.replica.replica import CatchUp, ReplicaService
from lockstep.runtime.ports import Runtime
from lockstep.topology.roles import readers
from lockstep.tracking.held import MutationId
from lockstep.values.codec import decoder
from lockstep.values.errors import LockstepError, NotReplica, StaleEpoch
from lockstep.values.limits import PURGE_AGE_S_MIN
from lockstep.values.node_limits import MERGED_BYTES_INLINE
from lockstep.values.rows import Mutation, ReadCommand, ReadResult, without_log
from lockstep.values.tokens import Range

MUTATION = decoder(Mutation)

_NOTHING: Final = ReadResult(())

Request = PrepareRequest | ProposeRequest | CommitRequest


class Engine(ballot_states.Engine, Protocol):
    """What acceptors need of one node's storage."""

    async def synced(self, sequence: int) -> None: ...

    async def read(self, command: ReadCommand) -> ReadResult: ...

    def read_now(self, command: ReadCommand) -> ReadResult | None: ...


class BallotService:
    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: Engine,
        metadata: Callable[[], ClusterMetadata],
        catch_up: CatchUp,
        own_id: Callable[[], int],
        new_mutation_id: Callable[[], bytes],
        replica: ReplicaService,
    ) -> None:
        self._runtime = runtime
        #: Raises RangeLacking when this node may lack what it stored of a table's range.
        self.require_held = replica.require_held
        self._engine = engine
        self._metadata = metadata
        self._catch_up = catch_up
        self._own_id = own_id
        self._states = BallotStates(engine, runtime.clock, new_mutation_id)
        self._times = ReservedTimes(engine, runtime.clock)
        self._plans = PlanBook(metadata, own_id)
        self._replica = replica
        self._refusals = replica.refusals
        self._steps: dict[type[Any], Callable[[Any], Any]] = {
            PrepareRequest: self._prepare,
            ProposeRequest: self._propose,
            CommitRequest: self._commit,
        }
        internode.register(verbs.CAS_PREPARE, PrepareRequest, PrepareReply, self._receive)
        internode.register(verbs.CAS_PROPOSE, ProposeRequest, ProposeReply, self._receive)
        internode.register(verbs.CAS_COMMIT, CommitRequest, CommitReply, self._receive)

    async def _receive(self, peer: PeerInfo, request: Request) -> Any:
        if request.needs_epoch > self._metadata().epoch:
            self._refusals.waiting(WRITE)
            try:
                await self._catch_up(request.needs_epoch, peer.endpoint)
            except LockstepError:
                self._refusals.refused(WRITE, CATCH_UP_FAILED)
                raise
        return await self.answer(request)

    async def answer(self, request: Request) -> Any:
        """The reply to a request whose `needs_epoch` this node has applied. StaleEpoch, NotReplica or the
        engine's error; after the former something may have been stored."""
        return await self._steps[type(request)](request)

    # -- the three steps --------------------------------------------------------------------------

    async def _prepare(self, request: PrepareRequest) -> PrepareReply:
        if request.ballot != NO_BALLOT and (wait_s := self._times.wait_s()):
            self._runtime.probes.reach("ballots.waits_for_lost")
            await asyncio.sleep(wait_s)
        epoch = self._judge(request)
        self._require_held(request.place)
        before = self._state(request.place)
        if request.ballot == NO_BALLOT:
            known, found = self._looked(request.command)
            result = await self._engine.read(request.command) if found is None else found
            self._fence(request)
            return PrepareReply(epoch, before, result, known)
        after, promised = paxos.prepare(before, request.ballot)
        if not promised:
            if request.ballot.time_us == after.floor.time_us:
                self._runtime.probes.reach("ballots.of_one_time")
            return PrepareReply(epoch, after, None)
        # What the state has beside the promise is told, so it has to be durable.
        sequence = self._states.unsynced(request.place)
        # First, for a look at the store has all of it written that was staged before.
        found = self._engine.read_now(request.command)
        reserving, until_us = self._times.reserve()
        promise = self._keep(request.place, before, after)
        if reserving or not self._times.covers(request.ballot):
            sequence = promise
        self._runtime.probes.reach("ballots.promised")
        known, nothing = self._looked(request.command)
        found = found if nothing is None else nothing
        # Awaited here, it takes its snapshot in this very step.
        result = await self._engine.read(request.command) if found is None else found
        if sequence:
            await self._engine.synced(sequence)
        if reserving:
            self._times.reserved(until_us)
        self._fence(request)
        return PrepareReply(epoch, after, result, known)

    def _looked(self, command: ReadCommand) -> tuple[Known | None, ReadResult | None]:
        """What this node holds in this very step, and what it shows of it where that is nothing. Where there
        are witnesses, who shows rows tells all that it holds, to be compared with what others have here."""
        placement = self._plans.placement(command.table_id)
        if placement is None or not placement.ring.replication.has_witnesses:
            return self._replica.known(command, Tracking.SUMMARY), None
        shown = readers(self._metadata(), placement.ring, placement.ring.range_at(command.right))
        if self._own_id() in shown:
            return self._replica.known(command, Tracking.DATA), None
        self._runtime.probes.reach("ballots.witnessed")
        return self._replica.known(command, Tracking.SUMMARY), _NOTHING

    async def _propose(self, request: ProposeRequest) -> ProposeReply:
        value = request.proposal.value
        mutation = await self._decoded(value) if request.decides and value else None
        epoch = self._judge(request)
        self._require_held(request.place)
        before = self._state(request.place)
        step = paxos.decide if request.decides else paxos.accept
        after, accepted = step(before, request.proposal)
        if not accepted:
            return ProposeReply(epoch, False, after.floor)
        if mutation is not None:
            self._require_unpurged(request)
            # Before the ballots, as in `_commit`.
            self._apply(mutation, None)
        sequence = self._keep(request.place, before, after)
        self._runtime.probes.reach("ballots.accepted")
        await self._engine.synced(sequence)
        self._fence(request)
        return ProposeReply(epoch, True, after.floor, request.decides)

    async def _commit(self, request: CommitRequest) -> CommitReply:
        value = request.proposal.value
        mutation = await self._decoded(value) if value else None
        epoch, given, sequence = self._committed(request, mutation)
        await self._engine.synced(sequence)
        self._fence(request)
        return CommitReply(epoch, given)

    def _committed(
        self, request: CommitRequest, mutation: Mutation | None
    ) -> tuple[int, MutationId | None, int]:
        """The epoch at which it is taken, its id if its table is tracked, and the sequence to await."""
        epoch, sequence, given = self._judge(request), 0, request.tracking
        before = self._state(request.place)
        after = paxos.commit(before, request.proposal)
        if mutation is not None:
            self._require_unpurged(request)
            given, sequence = self._apply(mutation, given)
        if after is not before or not request.proposal.value:
            # Later in the store's log: a crash never leaves this without what it speaks of.
            sequence = self._keep(request.place, before, after)
        else:
            sequence = max(sequence, self._states.unsynced(request.place))
        self._runtime.probes.reach("ballots.committed")
        return epoch, given, sequence

    async def named(self, request: CommitRequest) -> MutationId | None:
        """The id under which this node holds from now on what was decided, of a tracked table; a commit with
        it is answered once it is durable. As `answer`."""
        mutation = await self._decoded(request.proposal.value) if request.proposal.value else None
        return self._committed(request, mutation)[1]

    def _apply(self, mutation: Mutation, given: MutationId | None) -> tuple[MutationId | None, int]:
        """Its id if its table is tracked, and the sequence to await."""
        placement = self._plans.placement(mutation.table_id)
        if placement is None or not placement.is_tracked:
            return None, self._engine.apply(self._own_part(mutation))
        right = placement.ring.range_at(mutation.token).range.right
        return self._replica.keeping.keep(placement, right, mutation, given)

    async def _decoded(self, value: bytes) -> Mutation:
        if len(value) <= MERGED_BYTES_INLINE:
            return MUTATION.decode(value)
        return await self._runtime.tasks.run_blocking(partial(MUTATION.decode, value))

    def _own_part(self, mutation: Mutation) -> Mutation:
        """Without what the change adds to a log of which this node is no replica: who decided writes that."""
        captured = mutation.captured
        if captured is None:
            return mutation
        placement = self._plans.placement(captured.table_id)
        if placement is not None and self._own_id() in placement.ring.group_for(captured.token).writes:
            return mutation
        return without_log(mutation)

    def _require_unpurged(self, request: CommitRequest | ProposeRequest) -> None:
        """StaleEpoch when a later deletion may be gone here by a change that the sender may not know."""
        cluster, place = self._metadata(), request.place
        table = cluster.table(place.table_id)
        if table is None or request.epoch >= cluster.epoch:
            return
        now_s = self._runtime.clock.wall_us() // 1_000_000
        purged_s = purge_before_s(cluster, table, Range(place.token - 1, place.token), now_s)
        if request.proposal.origin.time_us // 1_000_000 < min(purged_s, now_s - PURGE_AGE_S_MIN):
            self._refusals.refused(WRITE, STALE_TABLE)
            raise StaleEpoch(cluster.epoch, STALE_TABLE)

    # -- what is stored ---------------------------------------------------------------------------

    def _state(self, place: Place) -> Acceptor:
        return self._times.above(self._states.of(place))

    def _keep(self, place: Place, before: Acceptor, after: Acceptor) -> int:
        """The sequence to await."""
        return self._states.keep(place, before, after)

    def _require_held(self, place: Place) -> None:
        self.require_held(place.table_id, Range(place.token - 1, place.token))
        self._replica.require_whole(place.table_id, place.token)

    # -- judging ----------------------------------------------------------------------------------

    def _judge(self, request: Request) -> int:
        """The epoch at which the request is taken. StaleEpoch or NotReplica when it is not."""
        table_id, token = request.place.table_id, request.place.token
        placement = self._plans.placement(table_id)
        if placement is None:
            newest = self._metadata().epoch
            if newest > request.epoch:
                self._refusals.refused(WRITE, STALE_DROPPED)
                raise StaleEpoch(newest, STALE_DROPPED)
            self._refusals.refused(WRITE, UNKNOWN_TABLE)
            raise NotReplica(f"table id {table_id} is not known at epoch {newest}")
        group = placement.ring.group_for(token)
        if group.epoch > request.epoch or placement.changed_epoch > request.epoch:
            reason = STALE_PLACEMENT if placement.changed_epoch <= request.epoch else STALE_TABLE
            self._refusals.refused(WRITE, reason)
            raise StaleEpoch(placement.epoch, reason)
        if self._own_id() not in group.writes:
            self._refusals.refused(WRITE, NOT_REPLICA)
            raise NotReplica(f"node {self._own_id()} receives no writes for token {token}")
        return placement.epoch

    def _fence(self, request: Request) -> None:
        """StaleEpoch when the group changed while the request was executed; what was stored stays."""
        placement = self._plans.placement(request.place.table_id)
        if placement is not None and placement.ring.group_for(request.place.token).epoch > request.epoch:
            self._refusals.refused(WRITE, STALE_AFTERWARDS)
            raise StaleEpoch(placement.epoch, STALE_AFTERWARDS)
