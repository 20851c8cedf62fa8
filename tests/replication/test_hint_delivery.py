"""Hints on their way: what is sent, left anew, given up, forgotten and handed over, without a network."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.handoff.hint_delivery import Fate, HandedOver, HintDelivery, Taken
from lockstep.handoff.hint_store import Hint, HintStore, Stored
from lockstep.handoff.hints import EXPIRED, INVALID, HintPolicy, Hints
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import DIRECTORY, Directory, NodeState
from lockstep.quorum.plans import PlanBook
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.values.errors import InvalidRequest, LockstepError, Overloaded, PeerUnreachable, StaleEpoch
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import HINTS_AT_ONCE_MAX

from .clusters import TABLE_ID, upsert, whole_ring
from .support import RecordingProbes, run
from .test_owed_records import Records

NOW_US = 1_000_000_000_000
TWO, THREE = NodeId(2), NodeId(3)
Answer = WriteReply | LockstepError


class Office:
    """Node 1, which keeps hints for others; they answer as `answers` says by node, else they accept."""

    def __init__(self, cluster: ClusterMetadata | None = None) -> None:
        self.cluster = cluster or whole_ring(5, [1, 2, 3])
        self.records = Records()
        self.now_us = NOW_US
        self.probes = RecordingProbes()
        self.dead: set[int] = set()
        self.answers: dict[int, list[Answer]] = {}
        self.sent: list[tuple[int, WriteRequest]] = []
        self.given: list[tuple[Any, HandedOver]] = []
        self.refuses: dict[Any, LockstepError] = {}
        self.learned: list[tuple[int, Any]] = []
        self.error: LockstepError | None = None
        self.handlers: dict[int, Any] = {}
        runtime: Any = SimpleNamespace(
            clock=SimpleNamespace(wall_us=lambda: self.now_us, monotonic_s=lambda: 0.0),
            probes=self.probes,
            tasks=SimpleNamespace(spawn=lambda work, name: work.close()),
        )
        plans = PlanBook(lambda: self.cluster, lambda: 1)
        self.hints = Hints(
            runtime, HintStore(self.records), plans, lambda node: 0.0, HintPolicy(throttle_bytes_s=0)
        )
        internode = SimpleNamespace(
            register=lambda verb, asked, reply, handler: self.handlers.update({verb: handler}),
            begin=self._begin,
            request=self._request,
        )
        context: Any = SimpleNamespace(
            runtime=runtime,
            internode=internode,
            own_id=lambda: 1,
            alive=lambda node: node not in self.dead,
            replica=SimpleNamespace(write=self._write_here),
            catch_up=self._catch_up,
        )
        self.delivery = HintDelivery(context, self.hints)

    def _answer(self, node: int, request: WriteRequest) -> Answer:
        self.sent.append((node, request))
        known = self.answers.get(node)
        return known.pop(0) if known else WriteReply(self.cluster.epoch)

    def _begin(self, address: Any, verb: int, request: WriteRequest, timeout_ms: float) -> Any:
        assert verb == verbs.HINT and timeout_ms > 0
        future: asyncio.Future[WriteReply] = asyncio.get_running_loop().create_future()
        answer = self._answer(int(address[0][1:]), request)
        if isinstance(answer, LockstepError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def _write_here(self, request: WriteRequest, answered: Any) -> None:
        answer = self._answer(1, request)
        if isinstance(answer, Overloaded):
            raise answer
        answered(answer)
        answered(PeerUnreachable("told twice"))

    async def _request(self, address: Any, verb: int, body: HandedOver, timeout_ms: float) -> Taken:
        assert verb == verbs.HINTS_HANDOVER
        if address[0] in self.refuses:
            raise self.refuses[address[0]]
        self.given.append((address[0], body))
        return Taken(len(body.hints))

    async def _catch_up(self, epoch: int, source: Any) -> None:
        self.learned.append((epoch, source))
        if self.error is not None:
            raise self.error

    @property
    def store(self) -> HintStore:
        return self.hints.store

    def keep(
        self, node: NodeId, number: int, *, epoch: int = 5, age_us: int = 0, grace_s: int = 864_000
    ) -> Hint:
        hint = Hint(self.now_us - age_us, epoch, grace_s, upsert(1, b"a", b"x", 1, number))
        self.store.put([(node, hint)])
        return hint

    async def deliver(self, node: NodeId) -> None:
        self.delivery._busy[node] = None
        await self.delivery._deliver(node)
        assert node not in self.delivery._busy
        self.store.validate()

    def kept(self) -> dict[int, int]:
        return {node: pending.count for node, pending in self.store.pending.items()}


def with_states(cluster: ClusterMetadata, **states: NodeState) -> ClusterMetadata:
    nodes = tuple(
        msgspec.structs.replace(node, state=states.get(f"n{node.id}", node.state))
        for node in cluster.directory.nodes
    )
    return cluster.changed(DIRECTORY.set(Directory(nodes, len(nodes) + 1)))


def test_what_is_accepted_is_forgotten_in_the_order_in_which_it_was_left() -> None:
    async def test() -> None:
        office = Office()
        hints = [office.keep(THREE, number, age_us=90 - number) for number in range(HINTS_AT_ONCE_MAX + 2)]
        office.keep(TWO, 1)
        await office.deliver(THREE)
        assert [request.mutation for _, request in office.sent] == [hint.mutation for hint in hints]
        assert {(node, request.epoch) for node, request in office.sent} == {(3, 5)}
        assert office.kept() == {TWO: 1} and office.delivery.delivered == len(hints)
        assert office.probes.reached == ["hints.delivered"] * 2

    run(test)


def test_a_node_that_does_not_take_one_is_left_alone_for_a_while() -> None:
    async def test() -> None:
        office = Office()
        for number in range(HINTS_AT_ONCE_MAX + 1):
            office.keep(THREE, number, age_us=90 - number)
        office.answers[3] = [PeerUnreachable("away")]
        await office.deliver(THREE)
        assert len(office.sent) == HINTS_AT_ONCE_MAX and office.kept() == {THREE: 2}
        assert (office.delivery.failed, office.delivery.delivered) == (1, HINTS_AT_ONCE_MAX - 1)

    run(test)


def test_what_a_node_never_takes_is_given_up_with_a_mark_and_others_go_on() -> None:
    async def test() -> None:
        office = Office()
        for number in range(2):
            office.keep(THREE, number, age_us=9 - number)
        office.answers[3] = [InvalidRequest("no such column")]
        await office.deliver(THREE)
        assert office.kept() == {} and office.delivery.delivered == 1 and office.delivery.failed == 0
        assert [(mark.node, mark.reason) for mark in office.store.marks()] == [(3, INVALID)]

    run(test)


def test_an_acceptance_under_a_plan_that_holds_no_more_counts_for_nothing() -> None:
    async def test() -> None:
        for accepted, newest, kept in ((3, 5, True), (4, 5, False), (5, 6, True)):
            office = Office(whole_ring(5, [1, 2, 3], group_epoch=4))
            hint = office.keep(THREE, 1)
            plan = office.hints.plans.write_plan(TABLE_ID, 1, Consistency.ONE)
            office.cluster = whole_ring(newest, [1, 2, 3], group_epoch=4 if newest == 5 else 6)
            assert office.delivery._holds(plan, hint, WriteReply(accepted)) is not kept
        office.cluster = whole_ring(6, [1, 2, 3], tables=False)
        assert office.delivery._holds(plan, hint, WriteReply(5)), "the table is gone"

    run(test)


def test_who_is_ahead_is_learned_from_and_then_it_goes_on() -> None:
    async def test() -> None:
        office = Office()
        office.keep(THREE, 1)
        office.answers[3] = [StaleEpoch(7)]
        await office.deliver(THREE)
        assert office.learned == [(7, ("n3", 1))] and office.kept() == {THREE: 1}
        office.answers[3] = [StaleEpoch(8)]
        office.error = PeerUnreachable("away")
        await office.deliver(THREE)
        assert office.learned[-1] == (8, ("n3", 1)) and office.kept() == {THREE: 1}

    run(test)


def test_a_hint_whose_group_changed_is_left_anew_for_its_replicas_of_now() -> None:
    async def test() -> None:
        office = Office(whole_ring(7, [1, 2], [1, 2], group_epoch=7, dcs={3: "dc1"}))
        office.keep(THREE, 1, epoch=5)
        await office.deliver(THREE)
        assert not office.sent and office.kept() == {1: 1, TWO: 1}, "and no more for who owns nothing"
        assert {one.hint.epoch for node in (1, 2) for one in office.store.page(node)} == {7}
        assert office.probes.reached == ["hints.left_again"]

    run(test)


def test_what_is_judged_by_the_metadata_of_now() -> None:
    office = Office(whole_ring(5, [1, 2, 3], group_epoch=4))
    hint = Hint(NOW_US, 4, 864_000, upsert(1, b"a", b"x"))
    fate, plan = office.delivery.judge(THREE, hint)
    assert fate is Fate.SEND and plan is not None
    assert office.delivery.judge(THREE, msgspec.structs.replace(hint, epoch=3))[0] is Fate.AGAIN
    assert office.delivery.judge(NodeId(4), hint)[0] is Fate.AGAIN
    old = msgspec.structs.replace(hint, created_us=NOW_US - 864_000 * 1_000_000)
    assert office.delivery.judge(THREE, old) == (Fate.EXPIRED, None)
    short = msgspec.structs.replace(old, created_us=NOW_US - 100_000 * 1_000_000, gc_grace_s=1000)
    assert office.delivery.judge(THREE, short) == (Fate.EXPIRED, None), "by the shorter grace time"
    office.cluster = whole_ring(6, [1, 2, 3], tables=False)
    assert office.delivery.judge(THREE, hint) == (Fate.GONE, None)


def test_what_a_node_that_is_away_will_never_get_is_forgotten_from_the_oldest_on() -> None:
    async def test() -> None:
        office = Office()
        for number in range(3):
            office.keep(THREE, number, age_us=1_000_000_000_000 - 10_000_000 - number)
        office.keep(THREE, 9)
        office.delivery._busy[THREE] = None
        await office.delivery._give_up(THREE)
        assert office.kept() == {THREE: 1} and THREE not in office.delivery._busy
        assert [(mark.node, mark.reason, mark.count) for mark in office.store.marks()] == [(3, EXPIRED, 3)]
        assert not office.sent

    run(test)


def test_hints_for_this_node_are_written_here() -> None:
    async def test() -> None:
        office = Office()
        own = NodeId(1)
        office.keep(own, 1)
        await office.deliver(own)
        assert [node for node, _ in office.sent] == [1] and office.kept() == {}
        for answer in (Overloaded("full"), PeerUnreachable("an answer that is an error")):
            office.keep(own, 2)
            office.answers[1] = [answer]
            await office.deliver(own)
            assert office.kept() == {own: 1}

    run(test)


def test_a_node_that_leaves_gives_its_hints_to_a_near_one_that_takes_them() -> None:
    async def test() -> None:
        dcs = {1: "dc1", 2: "dc2", 3: "dc1", 4: "dc1", 5: "dc1"}
        ring = whole_ring(5, [1, 2, 3], dcs=dcs)
        cluster = with_states(ring, n1=NodeState.DECOMMISSIONING, n5=NodeState.BOOTSTRAPPING)
        office = Office(cluster)
        assert office.delivery.is_leaving
        office.dead = {4}
        hints = [office.keep(TWO, number, age_us=9 - number) for number in range(2)]
        office.refuses["n3"] = PeerUnreachable("away")
        assert await office.delivery.hand_over()
        assert office.given == [("n2", HandedOver(tuple((TWO, hint) for hint in hints)))]
        assert office.kept() == {} and office.probes.reached == ["hints.handed_over"]
        assert [heir.node for heir in office.delivery._heirs()] == [3, 2], "its own data centre first"
        office.refuses["n2"] = PeerUnreachable("away")
        office.keep(TWO, 3)
        assert not await office.delivery.hand_over() and office.kept() == {TWO: 1}
        assert TWO not in office.delivery._busy

    run(test)


def test_hints_that_are_handed_over_are_durable_before_that_is_said() -> None:
    async def test() -> None:
        office = Office()
        hints = [Hint(NOW_US, 5, 10, upsert(1, b"a", b"x", 1, number)) for number in range(2)]
        given = HandedOver(tuple((THREE, hint) for hint in hints))
        assert await office.handlers[verbs.HINTS_HANDOVER](None, given) == Taken(2)
        assert office.kept() == {THREE: 2} and office.records.durable == office.records.sequence == 1
        assert await office.handlers[verbs.HINTS_HANDOVER](None, HandedOver(())) == Taken(0)
        assert not Office().delivery.is_leaving

    run(test)


@pytest.mark.parametrize("at", [0, 1])
def test_a_store_that_is_busy_costs_one_attempt(at: int) -> None:
    async def test() -> None:
        office = Office()
        office.keep(THREE, 1, age_us=1_000_000_000_000 - 1)

        def busy(*_: Any, **__: Any) -> list[Stored]:
            raise Overloaded("busy")

        office.store.page = busy  # type: ignore[method-assign, assignment]
        office.delivery._busy[THREE] = None
        await (office.delivery._deliver, office.delivery._give_up)[at](THREE)
        assert office.delivery.failed == 1 and THREE not in office.delivery._busy

    run(test)
