"""Turns that requests seldom take: each method alone, with stand-ins for what it asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.consensus.paxos import Ballot, Happened, Proposal
from lockstep.coordination import ballot_rounds as rounds_module
from lockstep.coordination import conditional as conditional_module
from lockstep.coordination import counters, reads
from lockstep.coordination.ballot_rounds import Rounds
from lockstep.coordination.conditional import Gates, _Read, _Write
from lockstep.coordination.counters import CounterLeader, CounterRequest
from lockstep.coordination.driving import again_after
from lockstep.coordination.forwarding import ForwardAnswer, Forwarding, _Passing
from lockstep.coordination.hinting import HintingWrite, Left
from lockstep.coordination.read_round import ReadRound
from lockstep.coordination.reads import Reads
from lockstep.handoff import batch_store
from lockstep.handoff.batch_store import BatchStore, KeepBatch
from lockstep.handoff.batches import Batches
from lockstep.handoff.hint_delivery import HandedOver, HintDelivery, Taken
from lockstep.handoff.hints import FULL, FULL_FOR_NODE, OUTLIVED, HintPolicy, Hints
from lockstep.handoff.view_log import ViewLog
from lockstep.internode.own_side import LinkFaults
from lockstep.internode.peer import Peer
from lockstep.internode.repeated_log import RepeatedLog
from lockstep.internode.verbs import decode_error, encode_error
from lockstep.quorum.round import Ask, End, Target, Why
from lockstep.replica.messages import ReadReply, StreamFile, StreamPart, Tracking, WriteReply
from lockstep.streaming.stream_building import HelpedStretch, LoopStretch
from lockstep.streaming.stream_source import StreamService
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    NotReplica,
    Overloaded,
    PeerUnreachable,
    Unavailable,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import BALLOTS_KEPT_S
from lockstep.values.rows import Liveness, Mutation, Partition, Position, ReadCommand, ReadResult, Row
from lockstep.values.tokens import Range

from .support import run

NEAR, FAR = (Target(NodeId(number), (f"n{number}", 1), f"dc{number}") for number in (1, 2))
WRITTEN = Mutation(7, 3, b"k", b"%016d" % 1, 5)


def stand_in(**named: Any) -> Any:
    return SimpleNamespace(**named)


async def untracked(*_: Any) -> None:
    """The id of what was decided, of a table that is not tracked."""


class Heard:
    """What a write heard of its replicas."""

    def __init__(self) -> None:
        self.replies: list[tuple[Target, WriteReply]] = []
        self.failures: list[tuple[Target, LockstepError]] = []

    def replied(self, context: Target, reply: WriteReply, _epoch: int) -> None:
        self.replies.append((context, reply))

    def failed(self, context: Target, error: LockstepError) -> None:
        self.failures.append((context, error))


# -- other data centres


def test_targets_of_this_data_centre_are_asked_directly() -> None:
    forwarding = stand_in(_own_dc=lambda: "dc1")
    targets = [NEAR, NEAR]
    assert Forwarding.send(forwarding, Heard(), targets, stand_in(), 5.0) is targets


def test_the_refusal_of_a_replica_that_was_passed_a_write_is_its_own() -> None:
    heard, forgotten = Heard(), list[int]()
    one = stand_in(write=heard, target=FAR, mutation_id=b"m")
    forwarding = stand_in(_open={4: one}, _forget=forgotten.append)
    answer = ForwardAnswer(4, b"m", 0, encode_error(Overloaded("too much")))
    Forwarding._answered(forwarding, stand_in(), answer, stand_in())
    ((target, error),) = heard.failures
    assert (target, type(error), forgotten) == (FAR, type(decode_error(answer.error)), [4])


@pytest.mark.parametrize(("error", "others"), [(Overloaded("x"), 0), (PeerUnreachable("x"), 1)])
def test_only_who_cannot_be_reached_passes_nothing_on(error: LockstepError, others: int) -> None:
    heard, failed = Heard(), list[LockstepError]()
    _Passing(heard, [stand_in(fail=failed.append)]).failed(FAR, error)
    assert heard.failures == [(FAR, error)] and len(failed) == others


# -- rounds and hints


def test_a_round_that_asks_again_anyway_gets_no_second_timer() -> None:
    request = stand_in(round=stand_in(waits=lambda: False), retry=None)
    again_after(request, 5.0, lambda: None)
    assert request.retry is None


def hinting(kept: int, spawned: list[Any]) -> HintingWrite:
    hints = stand_in(leave=lambda *_, **__: Left(3, kept, bool(kept)), store=stand_in(synced=None))
    runtime = stand_in(tasks=stand_in(spawn=lambda work, _name: (work.close(), spawned.append(work))))
    return HintingWrite(
        stand_in(
            owner=stand_in(hints=hints, runtime=runtime),
            round=stand_in(accepted={}, plan=stand_in(epoch=5)),
            mutation=WRITTEN,
            terms=stand_in(leaves_hints=True, is_owed=False, made_us=0),
            deadline_s=1.0,
        )
    )


@pytest.mark.parametrize("kept", [0, 1])
def test_a_write_ends_with_a_hint_only_where_one_is_kept(kept: int) -> None:
    spawned: list[Any] = []
    write = hinting(kept, spawned)
    assert write.hint([FAR], None) is bool(kept)
    assert write.hint([FAR], None) is bool(kept), "nobody gets a second one"
    assert len(spawned) == 2 * kept


def digest_round(*digests: bool) -> tuple[Any, list[Any]]:
    """A read that has these answers, and what of them it withdrew."""
    withdrawn: list[Any] = []
    answers = {
        NodeId(at): (Target(NodeId(at), (f"n{at}", 1), ""), stand_in(digest=b"d" if one else b""))
        for at, one in enumerate(digests, start=1)
    }
    round_ = stand_in(withdrawn=lambda targets: (withdrawn.extend(targets), ())[1], end=None)
    read = stand_in(_answers=answers, round=round_, _owner=stand_in(counters=Counted(), reach=lambda _: None))
    read._request = stand_in(tracking=Tracking.NONE)
    read._has_data = lambda: ReadRound._has_data(read)
    return read, withdrawn


class Counted:
    digest_mismatches = 0


@pytest.mark.parametrize(("digests", "asked"), [((True, True), 1), ((True, True, False), 2)])
def test_without_an_answer_one_of_the_digests_is_asked_for_its_content(
    digests: tuple[bool, ...], asked: int
) -> None:
    read, withdrawn = digest_round(*digests)
    targets = [target for target, reply in read._answers.values() if reply.digest]
    ReadRound._ask_for_content(read, targets)
    assert withdrawn == targets[:asked] and read._owner.counters.digest_mismatches == asked - 1


def test_what_an_answer_asks_for_is_carried_out() -> None:
    """An answer of before the change that matters has its replica asked again."""
    asked: list[Any] = []
    round_ = stand_in(
        plan=stand_in(epoch=5),
        end=None,
        answered=lambda _node, _epoch: (Ask((NEAR,), Why.ANSWERED_BEFORE),),
    )
    read = stand_in(
        future=stand_in(done=lambda: False), _answers={}, _digests=False, round=round_, ask=asked.append
    )
    ReadRound.replied(read, NEAR, ReadReply(5, ReadResult(())), 5)
    assert [one.targets for one in asked] == [(NEAR,)]


def test_an_index_that_names_no_place_any_more_needs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    command, end = stand_in(), Position(3, b"k")
    monkeypatch.setattr(reads, "agreed", lambda _results: None)
    monkeypatch.setattr(reads, "places_named", lambda _command, _results: (stand_in(places=()), end))
    found = asyncio.run(
        Reads._confirmed(stand_in(reach=lambda _: None), command, [], Consistency.QUORUM, 5.0)
    )
    assert found == (command, ((), end))


# -- conditional requests


def test_a_turn_that_is_cancelled_as_it_comes_is_given_on() -> None:
    async def test() -> None:
        gates, order = Gates(), list[str]()
        held = asyncio.Event()

        async def pass_(name: str) -> None:
            async with gates.passing((7, b"k"), 5.0):
                order.append(name)
                if name == "first":
                    await held.wait()

        first = asyncio.create_task(pass_("first"))
        await asyncio.sleep(0)
        second, third = (asyncio.create_task(pass_(name)) for name in ("second", "third"))
        await asyncio.sleep(0)
        second.cancel()
        gates._leave((7, b"k"))  # The first has left in this very turn; it is not asked again.
        await asyncio.gather(second, return_exceptions=True)
        await third
        assert order == ["first", "third"] and second.cancelled()
        first.cancel()

    run(test)


def proposal(at_s: int, value: bytes) -> Proposal:
    ballot = Ballot(at_s * 1_000_000, 1)
    return Proposal(ballot, ballot, value)


def test_what_is_left_in_progress_is_finished_as_it_is_unless_it_is_old() -> None:
    reached: list[str] = []
    rounds = stand_in(
        owner=stand_in(reach=reached.append), _now_s=lambda: 2 * BALLOTS_KEPT_S, _is_past=lambda _: False
    )

    def finished(left: Proposal) -> Proposal | None:
        return asyncio.run(Rounds._finished(rounds, stand_in(), left))

    ended, new = proposal(5, b""), proposal(2 * BALLOTS_KEPT_S, b"v")
    assert finished(ended) is ended, "it was ended without effect before"
    assert finished(new) is new and not reached
    old = proposal(5, b"v")
    assert finished(old) == old.voided() and reached == ["conditional.voids"]


def test_a_serial_page_ends_where_it_is_full() -> None:
    command = ReadCommand(7, 2, 3, b"k", (), (), False, False, 1, 0, 0)
    partition = Partition(3, b"k", rows=(Row(b"a", liveness=Liveness(1)),))

    async def piece(_command: ReadCommand) -> Any:
        return (partition,), Position(3, b"k", b"a")

    page = asyncio.run(_Read.page(stand_in(_piece=piece), command))
    assert page.more and page.end == Position(3, b"k", b"a") and len(page.partitions) == 1


def test_what_was_applied_under_a_plan_that_changed_is_applied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [stand_in(epoch=epoch, needs_epoch=epoch, targets=()) for epoch in (5, 6)]
    made, hinted, went = iter(plans), list[Any](), list[Any]()

    class Applied:
        granted: dict[NodeId, Any] = {}

        def __init__(self, *_: Any) -> None:
            pass

        async def run(self) -> End:
            return End.ENOUGH

    monkeypatch.setattr(conditional_module, "PaxosRound", Applied)
    monkeypatch.setattr(conditional_module, "Round", lambda *_: stand_in())
    write = stand_in(
        owner=stand_in(plans=stand_in(write_plan=lambda *_: next(made))),
        place=stand_in(table_id=7, token=3),
        deadline_s=5.0,
        changed=lambda plan: plan is plans[0],
        goes=went.append,
        did=lambda *_: None,
        leave_hints=lambda plan, *_: hinted.append(plan),
        named=untracked,
    )
    asyncio.run(_Write.apply(write, proposal(5, b"v"), Consistency.QUORUM))
    assert hinted == [plans[1]] and len(went) == 2


# -- counters


def leader(**named: Any) -> Any:
    """A counter's leader of generation 1 whose replica answers what `answer` is."""
    given: dict[str, Any] = {"answer": WriteReply(5), "generations": [1, 1], **named}
    generations = iter(given["generations"])
    reached: list[str] = []

    async def read(_command: Any) -> ReadResult:
        return ReadResult(())

    async def linger(label: str) -> None:
        reached.append(label)

    return stand_in(
        reached=reached,
        generation=lambda: next(generations),
        _runtime=stand_in(
            clock=stand_in(monotonic_s=lambda: 0.0, wall_us=lambda: 0),
            probes=stand_in(linger=linger, reach=reached.append),
        ),
        _check=lambda _request: None,
        _engine=stand_in(read=read),
        _context=stand_in(
            own_id=lambda: 1,
            replica=stand_in(write=lambda _request, answered: answered(given["answer"])),
            plans=stand_in(write_plan=lambda *_: stand_in(shard=None)),
        ),
    )


def added(of: Any, monkeypatch: pytest.MonkeyPatch) -> Mutation:
    monkeypatch.setattr(counters, "generation_of", lambda _engine: of.generation())
    monkeypatch.setattr(counters, "asks", lambda *_: stand_in())
    monkeypatch.setattr(counters, "counted", lambda *_: WRITTEN)
    request = CounterRequest(5, 5, WRITTEN, Consistency.QUORUM, 1000.0, 1)
    return asyncio.run(CounterLeader._add(of, request, 1.0))[0]


def test_a_counter_whose_store_was_given_up_while_it_was_read_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert added(leader(), monkeypatch) is WRITTEN
    wiped = leader(generations=[1, 2])
    with pytest.raises(NotReplica, match="given up counters"):
        added(wiped, monkeypatch)
    assert wiped.reached[-1] == "counter.given_up_meanwhile"


def test_a_change_whose_turn_comes_too_late_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    late = leader()
    late._runtime.clock.monotonic_s = lambda: 1.0
    with pytest.raises(Overloaded, match="too many changes of one counter"):
        added(late, monkeypatch)
    assert late.reached == []


def test_a_counter_that_its_own_store_refuses_may_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WriteTimeout):
        added(leader(answer=Overloaded("too much")), monkeypatch)


def test_a_counter_that_is_added_and_refused_by_others_is_not_told_as_undone() -> None:
    summed = stand_in()

    async def add(*_: Any) -> Any:
        return summed, stand_in()

    def begin(*_: Any) -> Any:
        raise Unavailable(Consistency.QUORUM, 2, 1)

    of = stand_in(
        _runtime=stand_in(clock=stand_in(monotonic_s=lambda: 0.0)),
        _context=stand_in(
            opinions=None, plans=stand_in(write_plan=lambda *_: stand_in(require_alive=lambda _: None))
        ),
        _enter=lambda _place: asyncio.Lock(),
        _leave=lambda _place: None,
        _add=add,
        _writes=stand_in(begin=begin),
    )
    request = CounterRequest(5, 5, WRITTEN, Consistency.QUORUM, 1000.0, 1)
    with pytest.raises(WriteTimeout) as caught:
        asyncio.run(CounterLeader._count(of, request))
    assert "the change is counted, but: " in caught.value.message


def test_who_counts_learns_first_what_the_request_needs() -> None:
    learned: list[int] = []

    async def catch_up(epoch: int, _source: Any) -> None:
        learned.append(epoch)

    async def count(_request: Any) -> str:
        return "counted"

    of = stand_in(incarnation=1, _context=stand_in(plans=stand_in(epoch=5), catch_up=catch_up), count=count)
    for needs in (5, 6):
        request = CounterRequest(needs, needs, WRITTEN, Consistency.QUORUM, 1000.0, 1)
        assert asyncio.run(CounterLeader._receive(of, stand_in(endpoint=("n2", 1)), request)) == "counted"
    assert learned == [6]


# -- what is owed


def owing(ends: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch, forgets: bool = False) -> Any:
    """A store of batches that keeps one, whose writes end so; `forgets`: their coordinator says meanwhile
    that it is done."""
    batch = KeepBatch(bytes(16), 5, tuple(WRITTEN for _ in ends))
    key, synced = b"key", list[int]()
    told = iter(ends)

    def begin(*_: Any, **__: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result(next(told))
        return future

    async def sync(sequence: int) -> None:
        synced.append(sequence)

    monkeypatch.setattr(batch_store, "begin_guaranteed", begin)
    monkeypatch.setattr(batch_store, "decode_batch", lambda *_: batch)
    of = stand_in(
        key=key,
        synced=synced,
        deleted=[],
        replayed=0,
        replay_failures=0,
        _kept={key: (0.0, 1), b"other": (0.0, 1)},
        _store=stand_in(records=lambda *_: [(key, b"")]),
        _runtime=stand_in(probes=stand_in(reach=lambda _: of._kept.pop(key) if forgets else None)),
        _hints=stand_in(store=stand_in(synced=sync)),
        _writes=stand_in(admit=lambda: None),
        _replay_after_ms=10,
        _owed=lambda batch: list(batch.mutations),
    )
    of._write = lambda mutations, made_us: BatchStore._write(of, mutations, made_us)
    of._delete = lambda key: (of.deleted.append(key), of._kept.pop(key))
    return of


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_batch_that_was_not_written_whole_goes_behind_the_others(
    whole: bool, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = owing([(True, 3), (whole, 4)], monkeypatch, forgets)
    asyncio.run(BatchStore._replay(of, of.key))
    assert of.synced == ([3, 4] if whole else [3]) and of.replay_failures == (not whole)
    assert of.deleted == ([of.key] if whole and not forgets else []), "what is done is forgotten once"
    assert list(of._kept) == ([b"other"] if whole or forgets else [b"other", of.key])


def test_a_batch_that_is_too_old_is_marked_instead_of_written() -> None:
    marked: list[Any] = []
    hints = stand_in(
        dropped=Counter[str](),
        gc_grace_s=lambda _table: 100,
        outlived=lambda mutation, _us: mutation.token == 1,
        is_late=lambda _grace, _us: False,
        plans=stand_in(plan_of=lambda *_: stand_in(targets=(NEAR, FAR))),
        marks_of=lambda reason, node, *_: [(reason, int(node))],
        store=stand_in(mark=marked.extend),
    )
    old, young = (Mutation(7, token, b"k", b"%016d" % token, 5) for token in (1, 2))
    found = BatchStore._owed(stand_in(_hints=hints), KeepBatch(bytes(16), 5, (old, young)))
    assert found == [young] and marked == [(OUTLIVED, 1), (OUTLIVED, 2)]
    assert hints.dropped == {OUTLIVED: 1}


def test_a_batch_whose_columns_went_under_way_may_have_begun() -> None:
    async def test() -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(ColumnsGone("t", begun=False))
        batches: Any = stand_in(_writes=stand_in(begin=lambda *_: future))
        with pytest.raises(ColumnsGone) as caught:
            await Batches._write_all(batches, [WRITTEN], Consistency.QUORUM, 1000)
        assert caught.value.begun, "other parts may be there"

    run(test)


def test_what_a_view_is_owed_stays_with_the_batch_log_when_it_is_not_whole() -> None:
    async def done(_ends: Any) -> bool:
        return False

    log = stand_in(done=done, left_to_replay=0, in_flight=1)
    asyncio.run(ViewLog._finish(log, stand_in(), stand_in(), [], waits=False))
    assert (log.left_to_replay, log.in_flight) == (1, 0)


def test_a_hint_that_was_accepted_before_a_change_that_matters_is_not_delivered() -> None:
    def needing(epoch: int) -> Any:
        return stand_in(_plans=stand_in(plan_of=lambda *_: stand_in(needs_epoch=epoch)))

    plan, hint = stand_in(epoch=6, needs_epoch=6), stand_in(mutation=WRITTEN)
    assert not HintDelivery._holds(needing(6), plan, hint, WriteReply(5))
    assert HintDelivery._holds(needing(6), plan, hint, WriteReply(6))
    assert not HintDelivery._holds(needing(7), plan, hint, WriteReply(6)), "it changed once more"

    def gone(*_: Any) -> Any:
        raise InvalidRequest("the table is gone")

    assert HintDelivery._holds(stand_in(_plans=stand_in(plan_of=gone)), plan, hint, WriteReply(6))


def test_a_leaver_without_hints_has_nothing_synced() -> None:
    woken: list[str] = []
    store = stand_in(put=len)
    of = stand_in(
        _store=store,
        _wake=stand_in(set=lambda: woken.append("wake")),
        _runtime=stand_in(probes=stand_in(reach=woken.append)),
    )
    assert asyncio.run(HintDelivery._take_over(of, stand_in(), HandedOver(()))) == Taken(0)
    assert woken == ["wake", "hints.taken_over"]


@pytest.mark.parametrize(("size", "why"), [(5, None), (6, FULL_FOR_NODE), (11, FULL)])
def test_hints_have_bounds_for_each_node_and_for_all(size: int, why: str | None) -> None:
    store = stand_in(bytes=90, pending={NodeId(2): stand_in(bytes=35, since_us=0)})
    of = stand_in(
        policy=HintPolicy(bytes_max=100, bytes_per_node_max=40), store=store, _silent_s=lambda _node: None
    )
    assert Hints._refusal(of, NodeId(2), 0, size, forced=False) == why


def test_what_came_once_is_told_once() -> None:
    said: list[int] = []

    async def test() -> None:
        log = RepeatedLog(lambda _event, at, **_: said.append(at))
        for at in (1, 2):
            log.note("login", facts=lambda at=at: {"at": at})
            log._tell(("login",))
            assert not log._kinds, "the next one is told at once"

    run(test)
    assert said == [1, 2]


# -- rounds that are begun anew


def promising(monkeypatch: pytest.MonkeyPatch, brought: bool) -> tuple[Any, list[Any]]:
    """Rounds whose promises say that a replica lacks what was decided last."""
    went: list[Any] = []
    found = stand_in(in_progress=None, committed=proposal(5, b"v"), lacking=(NodeId(2),))
    monkeypatch.setattr(rounds_module.paxos, "judge", lambda _states: found)
    reply = stand_in(state=stand_in(), result=ReadResult(()), known=None)

    async def true(*_: Any) -> bool:
        return True

    async def bring(*_: Any) -> bool:
        return brought

    rounds = stand_in(
        owner=stand_in(next_ballot=lambda _floor: Ballot(9, 1)),
        place=stand_in(),
        _floor_us=0,
        did=lambda *_: None,
        goes=went.append,
        paxos_round=lambda *_: stand_in(granted={NodeId(1): reply}),
        won=true,
        changed=lambda _plan: False,
        _is_past=lambda _proposal: False,
        _brought=bring,
        whole=true,
    )
    return rounds, went


@pytest.mark.parametrize("brought", [False, True])
def test_who_cannot_bring_the_last_decision_begins_anew(
    brought: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, went = promising(monkeypatch, brought)
    found = asyncio.run(Rounds.promised(rounds, stand_in(epoch=5, needs_epoch=5), stand_in()))
    assert (found is not None) is brought
    assert went == [Happened.LACKING, Happened.KNOWN if brought else Happened.AGAIN]


def test_an_old_proposal_of_which_not_all_replicas_tell_is_looked_at_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(*_: Any) -> bool:
        return False

    monkeypatch.setattr(rounds_module, "PaxosRound", lambda *_: stand_in())
    monkeypatch.setattr(rounds_module, "_rows_of", lambda *_: stand_in())
    rounds = stand_in(
        owner=stand_in(context=stand_in(alive=lambda _node: True)),
        place=stand_in(),
        deadline_s=5.0,
        did=lambda *_: None,
        won=lost,
    )
    plan = stand_in(targets=(NEAR, FAR), epoch=5, needs_epoch=5)
    assert asyncio.run(rounds_module.ended(rounds, plan, proposal(5, b"v"), 9)) is None


# -- streams


def test_the_raw_bytes_of_a_node_that_is_cut_off_are_nobodys() -> None:
    faults = LinkFaults()
    faults.cut_off([NEAR.address])
    peer = stand_in(address=NEAR.address, _node=stand_in(faults=faults))
    assert Peer.raw_follows(peer, stand_in(), stand_in(), b"") is None


def stream_source(**stream: Any) -> Any:
    return stand_in(_stream=lambda *_: stand_in(**stream), _release=lambda *_: None)


def test_a_file_that_is_not_built_yet_is_asked_for_again() -> None:
    async def wait(_number: int) -> None:
        return None

    build = stand_in(files={}, error=None, go_on=lambda: None, wait=wait, comes=lambda _number: True)
    request = stand_in(stream_id=1, session_id="s", done=0, number=3)
    found = asyncio.run(StreamService._file(stream_source(build=build), stand_in(), request))
    assert found == StreamFile(False)


def test_a_part_for_which_there_is_no_rate_now_is_asked_for_again() -> None:
    async def take(*_: Any) -> bool:
        return False

    source = stream_source(build=stand_in(files={3: stand_in()}), turns=None)
    source.throttle = stand_in(take=take)
    request = stand_in(stream_id=1, session_id="s", number=3, size=10, offset=0)
    assert asyncio.run(StreamService._part(source, stand_in(), request)) == StreamPart(0)


def test_what_a_backup_gives_is_made_into_files_here_and_not_by_helpers() -> None:
    async def fragments(*_: Any) -> Any:
        return stand_in(close=lambda: None, take=None)

    source = stand_in(fragments=fragments, estimated_bytes=lambda *_: (10, 1))
    service = stand_in(
        _require_session=lambda _: None, _engine=stand_in(), _runtime=stand_in(), _file_bytes=9
    )
    view = stand_in(table_id=7, range=Range(0, 9), total_bytes=0)
    request = stand_in(from_key=b"", session_id="s")
    found = asyncio.run(StreamService._stretches(service, source, request, view))
    assert isinstance(found, LoopStretch) and view.total_bytes == 10


@pytest.mark.parametrize(("entries", "ended"), [(0, True), (3, False), (3, True)])
def test_a_stretch_that_helpers_build_tells_its_size_once_it_has_ended(entries: int, ended: bool) -> None:
    built: list[tuple[int, int]] = []

    async def build(_lower: bytes, _upper: bytes, _path: str) -> Any:
        return stand_in(entries=entries, last_key=b"z"), ended

    work: Any = stand_in(table_id=7, from_key=b"", filling={}, build=build)
    runtime: Any = stand_in(disk=stand_in(size=lambda _path: 50), probes=stand_in(reach=lambda _label: None))
    stretch = HelpedStretch(runtime, work, Range(0, 9), lambda *one: built.append(one))
    lower = stretch._lower

    async def fill() -> None:
        await stretch.fill("file")

    asyncio.run(fill())
    assert built == ([(9, 50 if entries else 0)] if ended else [])
    assert stretch._lower == (b"z\x00" if entries else lower) and stretch.ended is ended
