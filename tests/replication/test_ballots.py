"""A replica's side of ballots, asked without a network: what is promised, accepted, kept and refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.consensus.paxos import NO_BALLOT, Acceptor, Ballot, Proposal
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.quorum.failure_codes import (
    CATCH_UP_FAILED,
    NOT_REPLICA,
    STALE_AFTERWARDS,
    STALE_DROPPED,
    STALE_PLACEMENT,
    STALE_TABLE,
    UNKNOWN_TABLE,
    Refusals,
)
from lockstep.replica.ballot_states import command_for, mutation_between, state_in
from lockstep.replica.ballots import BallotService
from lockstep.replica.messages import (
    CommitReply,
    CommitRequest,
    Place,
    PrepareReply,
    PrepareRequest,
    ProposeReply,
    ProposeRequest,
)
from lockstep.storage.rows.keys import ballots_of
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.values.codec import encode
from lockstep.values.errors import NotReplica, PeerUnreachable, RangeLacking, StaleEpoch
from lockstep.values.limits import BALLOTS_KEPT_S
from lockstep.values.rows import Mutation, Partition, ReadCommand, ReadResult

from .clusters import TABLE_ID, ScriptedInternode, Wire, key_of, read_one, upsert, whole_ring
from .support import RecordingProbes, real_runtime, run

PLACE = Place(TABLE_ID, 1, key_of(1))
NOW_US = 5_000_000


def ballot(at: int, draw: int = 1) -> Ballot:
    return Ballot(at, draw)


def proposal(at: int, value: bytes = b"") -> Proposal:
    return Proposal(ballot(at), ballot(at), value, () if value else (ballot(at),))


class Engine:
    """Tables of one partition each. What is applied is durable once `synced` was awaited."""

    def __init__(self) -> None:
        self.tables: dict[int, list[Partition]] = {}
        self.applied: list[Mutation] = []
        self.durable: list[int] = []
        self.on_sync: Callable[[], None] = lambda: None
        #: Of rows, in turns of their own; `reads_now`: whether they are read in the step that asks, too.
        self.reads = 0
        self.reads_now = True
        self.on_read: Callable[[], None] = lambda: None
        self.rewrites = 0
        self.facts: dict[bytes, bytes] = {}

    def apply(self, mutation: Mutation) -> int:
        self.applied.append(mutation)
        one = Partition(mutation.token, mutation.key, rows=mutation.rows)
        self.tables.setdefault(mutation.table_id, []).append(one)
        return len(self.applied)

    async def synced(self, sequence: int) -> None:
        self.durable.append(sequence)
        self.on_sync()

    async def read(self, command: ReadCommand) -> ReadResult:
        self.reads += 1
        self.on_read()
        return self.peek(command)

    def read_now(self, command: ReadCommand) -> ReadResult | None:
        return self.peek(command) if self.reads_now else None

    def unsynced(self, command: ReadCommand) -> int:
        last = len(self.applied)
        return 0 if last in (0, *self.durable) else last

    def local_fact(self, name: bytes) -> bytes | None:
        return self.facts.get(name)

    def keep_local_fact(self, name: bytes, value: bytes) -> int:
        self.facts[name] = value
        return len(self.applied)

    def peek(self, command: ReadCommand, *, asks: bool = True) -> ReadResult:
        parts = self.tables.get(command.table_id, [])
        return ReadResult((merge_partitions(parts),) if parts else ())


class Voter:
    """Node `own`, which knows a cluster whose newest epoch is 5."""

    def __init__(self, own: int = 1, cluster: ClusterMetadata | None = None) -> None:
        self.cluster = cluster or whole_ring(5, [1, 2, 3])
        self.engine = Engine()
        self.probes = RecordingProbes()
        self.lacks = False
        self.delivers = True
        runtime = msgspec.structs.replace(
            real_runtime(),
            probes=self.probes,
            clock=SimpleNamespace(wall_us=lambda: NOW_US),  # type: ignore[arg-type]
        )
        self.refusals = Refusals(RecordingProbes())
        replica: Any = SimpleNamespace(
            require_whole=lambda *_: None,
            require_held=self._require_held,
            refusals=self.refusals,
            known=lambda _command, _tracking: None,
        )
        self.internode = ScriptedInternode(Wire(), 1, lambda: 5)
        self.ids = 0
        self.service = BallotService(
            runtime,
            self.internode,  # type: ignore[arg-type]
            self.engine,
            lambda: self.cluster,
            self._catch_up,
            lambda: own,
            self._id,
            replica,
        )

    def _id(self) -> bytes:
        self.ids += 1
        return b"id%014d" % self.ids

    def _require_held(self, table_id: int, tokens: Any) -> None:
        assert (table_id, tokens.left, tokens.right) == (PLACE.table_id, PLACE.token - 1, PLACE.token)
        if self.lacks:
            raise RangeLacking("lacking")

    async def _catch_up(self, epoch: int, source: Any) -> None:
        if not self.delivers:
            raise PeerUnreachable("away")
        self.cluster = msgspec.structs.replace(self.cluster, epoch=epoch)

    @property
    def state(self) -> Acceptor:
        return state_in(self.engine.peek(command_for(PLACE.table_id, PLACE.token, PLACE.key)))

    async def prepare(self, one: Ballot, epoch: int = 5) -> PrepareReply:
        reply: PrepareReply = await self.service.answer(PrepareRequest(epoch, 1, PLACE, one, read_one(1)))
        return reply

    async def propose(self, one: Proposal, epoch: int = 5) -> ProposeReply:
        reply: ProposeReply = await self.service.answer(ProposeRequest(epoch, 1, PLACE, one))
        return reply

    async def commit(self, one: Proposal, epoch: int = 5) -> CommitReply:
        reply: CommitReply = await self.service.answer(CommitRequest(epoch, 1, PLACE, one))
        return reply

    def refused(self) -> dict[str, int]:
        return {reason: count for reason, count in self.refusals.counts.items() if count}


def test_what_is_kept_is_what_changed_and_is_read_as_it_was() -> None:
    def kept(before: Acceptor, after: Acceptor) -> Mutation:
        return mutation_between(before, after, Place(TABLE_ID, 1, b"k"), mutation_id=b"id", now_s=100)

    whole = Acceptor(ballot(30), proposal(20, b"v"), proposal(10))
    mutation = kept(Acceptor(), whole)
    assert (mutation.table_id, mutation.timestamp_us) == (ballots_of(TABLE_ID), 30)
    assert (mutation.token, mutation.key, mutation.mutation_id) == (1, b"k", b"id")
    [row] = mutation.rows
    assert [(cell.column, cell.timestamp_us) for cell in row.cells] == [(1, 30), (2, 20), (3, 10)]
    assert {(cell.ttl_s, cell.expires_at_s) for cell in row.cells} == {(BALLOTS_KEPT_S, 100 + BALLOTS_KEPT_S)}
    assert state_in(ReadResult((Partition(1, b"k", rows=mutation.rows),))) == whole
    assert state_in(ReadResult(())) == Acceptor()
    command = command_for(TABLE_ID, 1, b"k")
    assert (command.table_id, command.left, command.right, command.key) == (ballots_of(TABLE_ID), 0, 1, b"k")
    assert not command.row_limit and not command.partition_row_limit and not command.now_s
    promised = kept(whole, msgspec.structs.replace(whole, promised=ballot(40)))
    assert [cell.column for cell in promised.rows[0].cells] == [1]
    [gone] = kept(whole, msgspec.structs.replace(whole, accepted=proposal(50, b"w"))).rows
    assert [cell.column for cell in gone.cells] == [2]


def test_of_cells_that_ended_nothing_is_known_and_the_others_stay() -> None:
    kept = Acceptor(ballot(30), proposal(20, b"v"), proposal(10))
    mutation = mutation_between(Acceptor(), kept, PLACE, mutation_id=b"id", now_s=100)
    [row] = mutation.rows
    for gone in range(3):
        cells = tuple(
            msgspec.structs.replace(cell, value=None) if at == gone else cell
            for at, cell in enumerate(row.cells)
        )
        ended = msgspec.structs.replace(row, cells=cells)
        left = state_in(ReadResult((Partition(PLACE.token, PLACE.key, rows=(ended,)),)))
        assert left == Acceptor(
            NO_BALLOT if gone == 0 else kept.promised,
            None if gone == 1 else kept.accepted,
            None if gone == 2 else kept.committed,
        )


def test_a_promise_is_durable_reads_and_binds() -> None:
    async def test() -> None:
        voter = Voter()
        voter.engine.apply(upsert(1, b"a", b"x"))
        reply = await voter.prepare(ballot(10))
        assert reply.accepted_epoch == 5 and reply.state.promised == ballot(10)
        assert reply.result is not None and reply.result.partitions[0].rows[0].clustering == b"a"
        assert voter.engine.durable == [2] and voter.state.promised == ballot(10)
        assert "ballots.promised" in voter.probes.reached
        late = await voter.prepare(ballot(9))
        assert late.result is None and late.state.promised == ballot(10) and len(voter.engine.applied) == 2
        assert "ballots.of_one_time" not in voter.probes.reached
        await voter.prepare(ballot(10, 0))
        assert "ballots.of_one_time" in voter.probes.reached

    run(test)


def test_a_look_promises_and_keeps_nothing() -> None:
    async def test() -> None:
        voter = Voter()
        reply = await voter.prepare(NO_BALLOT)
        assert reply.result == ReadResult(()) and reply.state == Acceptor()
        assert not voter.engine.applied and not voter.engine.durable

    run(test)


def test_a_look_is_not_answered_when_the_group_changed_while_it_read() -> None:
    async def test() -> None:
        voter = Voter()

        def changes() -> None:
            voter.cluster = whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6)

        voter.engine.on_read = changes
        with pytest.raises(StaleEpoch):
            await voter.prepare(NO_BALLOT)
        assert voter.refused() == {STALE_AFTERWARDS: 1}

    run(test)


@pytest.mark.parametrize("reads_now", [True, False])
def test_rows_are_read_once_with_a_promise(reads_now: bool) -> None:
    async def test() -> None:
        voter = Voter()
        voter.engine.apply(upsert(1, b"a", b"x"))
        voter.engine.reads_now = reads_now
        reply = await voter.prepare(ballot(10))
        assert reply.result is not None and reply.result.partitions[0].rows[0].clustering == b"a"
        assert voter.engine.reads == (0 if reads_now else 1)

    run(test)


@pytest.mark.parametrize("decides", [True, False])
def test_a_vote_that_decides_applies_what_is_voted_for_and_says_so(decides: bool) -> None:
    async def test() -> None:
        voter = Voter()
        change = upsert(1, b"a", b"x")
        own = proposal(10, encode(change))
        reply = await voter.service.answer(ProposeRequest(5, 1, PLACE, own, decides))
        assert reply == ProposeReply(5, True, ballot(10), decides)
        assert (change in voter.engine.applied) is decides
        assert (voter.state.committed == own) is decides
        late = await voter.service.answer(ProposeRequest(5, 1, PLACE, proposal(9, encode(change)), decides))
        assert late == ProposeReply(5, False, ballot(10))

    run(test)


def test_a_proposal_under_the_promise_is_accepted_durably_and_an_older_one_is_not() -> None:
    async def test() -> None:
        voter = Voter()
        await voter.prepare(ballot(10))
        refused = await voter.propose(proposal(9, b"v"))
        assert (refused.accepted, refused.floor) == (False, ballot(10)) and voter.state.accepted is None
        taken = await voter.propose(proposal(10, b"v"))
        assert (taken.accepted_epoch, taken.accepted, taken.floor) == (5, True, ballot(10))
        assert voter.state.accepted == proposal(10, b"v") and voter.engine.durable[-1] == 2
        assert voter.probes.reached[-1] == "ballots.accepted"

    run(test)


def test_what_was_decided_is_applied_before_it_is_kept_and_again_when_it_comes_again() -> None:
    async def test() -> None:
        voter = Voter()
        change = upsert(1, b"a", b"x")
        decided = proposal(10, encode(change))
        assert await voter.commit(decided) == CommitReply(5)
        assert voter.engine.applied[0] == change and voter.engine.durable == [2]
        assert voter.state.committed == decided
        await voter.commit(decided)
        assert voter.engine.applied[2:] == [change] and voter.engine.durable[-1] == 3
        await voter.commit(proposal(20))
        await voter.commit(proposal(20))
        assert len(voter.engine.applied) == 5, "nothing to apply, so its own record tells that it is durable"
        assert voter.engine.durable[-1] == 5 and voter.state.committed == proposal(20)

    run(test)


@pytest.mark.parametrize(
    ("cluster", "epoch", "own", "error", "reason"),
    [
        (whole_ring(5, [1, 2, 3], group_epoch=4), 3, 1, StaleEpoch, STALE_PLACEMENT),
        (whole_ring(5, [1, 2, 3], table_epoch=4), 3, 1, StaleEpoch, STALE_TABLE),
        (whole_ring(5, [1, 2, 3], group_epoch=4, table_epoch=4), 3, 1, StaleEpoch, STALE_TABLE),
        (whole_ring(5, [1, 2, 3], tables=False), 4, 1, StaleEpoch, STALE_DROPPED),
        (whole_ring(5, [1, 2, 3], tables=False), 5, 1, NotReplica, UNKNOWN_TABLE),
        (whole_ring(5, [1, 2, 3]), 5, 4, NotReplica, NOT_REPLICA),
    ],
)
def test_every_step_is_refused_with_its_reason(
    cluster: ClusterMetadata, epoch: int, own: int, error: type[Exception], reason: str
) -> None:
    async def test() -> None:
        voter = Voter(own, cluster)
        for step in (
            voter.prepare(ballot(10), epoch),
            voter.propose(proposal(10, b"v"), epoch),
            voter.commit(proposal(10), epoch),
        ):
            with pytest.raises(error):
                await step
        assert voter.refused() == {reason: 3} and not voter.engine.applied

    run(test)


def test_a_plan_of_the_epoch_of_the_change_is_taken_also_by_a_replica_that_is_filled() -> None:
    async def test() -> None:
        voter = Voter(4, whole_ring(5, [1, 2, 3], [1, 2, 3, 4], group_epoch=4, table_epoch=4))
        assert (await voter.prepare(ballot(10), 4)).accepted_epoch == 5

    run(test)


def test_nothing_is_answered_when_the_group_changed_meanwhile_though_it_is_stored() -> None:
    async def test() -> None:
        voter = Voter()

        def changes() -> None:
            voter.cluster = whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6)

        voter.engine.on_sync = changes
        for step, before in (
            (voter.prepare(ballot(10)), 0),
            (voter.propose(proposal(10, b"v")), 1),
            (voter.commit(proposal(10)), 2),
        ):
            voter.cluster = whole_ring(5, [1, 2, 3])
            with pytest.raises(StaleEpoch):
                await step
            assert len(voter.engine.applied) == before + 1
        assert voter.refused() == {STALE_AFTERWARDS: 3}

    run(test)


def test_who_lacks_what_it_stored_neither_promises_nor_accepts_but_takes_what_was_decided() -> None:
    async def test() -> None:
        voter = Voter()
        voter.lacks = True
        for step in (voter.prepare(ballot(10)), voter.propose(proposal(10, b"v"))):
            with pytest.raises(RangeLacking):
                await step
        assert await voter.commit(proposal(10)) == CommitReply(5)

    run(test)


def test_who_is_behind_learns_first_or_says_why_it_does_not_answer() -> None:
    async def test() -> None:
        voter = Voter()
        _, handler = voter.internode.slow[verbs.CAS_COMMIT]
        ahead = CommitRequest(7, 7, PLACE, proposal(10))
        voter.delivers = False
        with pytest.raises(PeerUnreachable):
            await handler(voter.internode.peer, ahead)
        assert voter.refused() == {CATCH_UP_FAILED: 1} and voter.refusals.waits == 1
        voter.delivers = True
        assert await handler(voter.internode.peer, ahead) == CommitReply(7)
        await handler(voter.internode.peer, ahead)
        assert voter.refusals.waits == 2, "it knows that epoch now"

    run(test)
