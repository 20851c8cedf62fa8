"""Changes of counters at their coordinator: who is asked to count, and what becomes of refusals."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.coordination import counters
from lockstep.coordination.counters import CounterReply, CounterRequest, Counters
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.quorum.plans import PlanBook
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    Overloaded,
    PeerTimeout,
    PeerUnreachable,
    ServerFault,
    StaleEpoch,
    Unavailable,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId

from .clusters import upsert, whole_ring
from .support import RecordingProbes, run

ONE, QUORUM = Consistency.ONE, Consistency.QUORUM
CHANGE = upsert(1, b"a", b"x")
Answer = CounterReply | LockstepError


class Town:
    """Node `own` among others, which answer as they are told; the clock goes on by `step_s` at each look."""

    def __init__(
        self,
        cluster: ClusterMetadata | None = None,
        *,
        own: int = 9,
        dead: Sequence[int] = (),
        step_s: float = 0.001,
    ) -> None:
        self.cluster = cluster or whole_ring(5, [1, 2, 3], dcs={9: "dc1"})
        self.own, self.dead, self.step_s, self.now_s = own, dead, step_s, 0.0
        self.answers: dict[int, list[Answer]] = {}
        self.asked: list[tuple[int, int]] = []
        self.learned: list[tuple[int, Any]] = []
        self.error: LockstepError | None = None
        self.probes = RecordingProbes()
        opinions = SimpleNamespace(
            alive=self._alive, prefers=self._alive, alive_until_s=lambda node: float("-inf")
        )
        context: Any = SimpleNamespace(
            runtime=SimpleNamespace(clock=self, probes=self.probes),
            plans=PlanBook(lambda: self.cluster, lambda: own),
            own_id=lambda: own,
            opinions=opinions,
            alive=self._alive,
            internode=SimpleNamespace(request=self._request),
            catch_up=self._catch_up,
        )
        leader: Any = SimpleNamespace(count=self._count)
        self.counters = Counters(context, leader)

    def monotonic_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def _alive(self, node: int) -> bool:
        return node not in self.dead

    def _answer(self, node: int, request: CounterRequest) -> CounterReply:
        self.asked.append((node, request.incarnation))
        assert request.mutation == CHANGE and 0 < request.timeout_ms <= 1000
        known = self.answers.get(node)
        answer = known.pop(0) if known else CounterReply(True, 1)
        if isinstance(answer, LockstepError):
            raise answer
        return answer

    async def _request(
        self, address: tuple[str, int], verb: int, request: CounterRequest, timeout_ms: float
    ) -> CounterReply:
        assert verb == verbs.COUNTER and timeout_ms == request.timeout_ms
        return self._answer(int(address[0][1:]), request)

    async def _count(self, request: CounterRequest) -> CounterReply:
        return self._answer(self.own, request)

    async def _catch_up(self, epoch: int, source: Any) -> None:
        self.learned.append((epoch, source))
        if self.error is not None:
            raise self.error
        self.cluster = whole_ring(epoch, [3, 2, 1], dcs={9: "dc1"}, group_epoch=epoch)

    async def change(self, consistency: Consistency = QUORUM, timeout_ms: float = 1000.0) -> list[int]:
        """Which nodes were asked, in order."""
        self.asked.clear()
        await self.counters.change(CHANGE, consistency, timeout_ms)
        return [node for node, _ in self.asked]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "REPLICA_RETRY_MS", 0)


def test_this_node_counts_if_it_may_and_else_a_near_one_that_seems_alive() -> None:
    async def test() -> None:
        assert await Town(own=2).change() == [2]
        assert await Town().change() == [1]
        assert await Town(dead=(1,)).change() == [2]
        far = {1: "dc1", 2: "dc2", 3: "dc2", 9: "dc2"}
        cluster = whole_ring(5, [1, 2, 3], dcs=far)
        assert await Town(cluster).change() == [2], "of its own data centre"
        filled = whole_ring(5, [1, 2, 3], [1, 2, 3, 4], group_epoch=5)
        assert await Town(filled, own=4).change() == [1], "who is being filled counts nothing"

    run(test)


def test_a_level_of_one_data_centre_is_counted_there() -> None:
    async def test() -> None:
        dcs = {1: "dc1", 2: "dc2", 3: "dc2", 9: "dc2"}
        cluster = whole_ring(5, [1, 2, 3], dcs=dcs, factors={"dc1": 1, "dc2": 2})
        town = Town(cluster)
        town.answers = {2: [Overloaded("no")], 3: [Overloaded("no")]}
        assert await town.change(Consistency.LOCAL_ONE) == [2, 3, 2], "not in the other one"

    run(test)


def test_a_process_is_told_by_which_of_its_starts_it_is_known() -> None:
    async def test() -> None:
        town = Town()
        town.answers = {1: [CounterReply(False, 77)]}
        await town.change()
        assert town.asked == [(1, 0), (1, 77)]
        await town.change()
        assert town.asked == [(1, 77)], "it is remembered"
        town.answers = {1: [CounterReply(False, 78), CounterReply(False, 79)]}
        await town.change()
        assert town.asked == [(1, 77), (1, 78), (2, 0)], "another one, when it starts again and again"

    run(test)


def test_nobody_is_asked_once_the_time_is_over() -> None:
    async def test() -> None:
        town = Town(step_s=2.0)
        with pytest.raises(Unavailable):
            await town.change()
        assert town.asked == []

    run(test)


def test_a_definite_refusal_goes_to_the_next_one_and_an_open_end_to_nobody() -> None:
    async def test() -> None:
        town = Town()
        town.answers = {1: [PeerUnreachable("away")], 2: [Overloaded("full")]}
        assert await town.change() == [1, 2, 3]
        assert town.probes.reached == ["counter.next_leader"] * 2
        town.answers = {1: [PeerTimeout("silent")]}
        with pytest.raises(WriteTimeout) as late:
            await town.change()
        assert (late.value.received, late.value.required, late.value.write_type) == (0, 2, "COUNTER")
        assert len(town.asked) == 1
        town.answers = {1: [ServerFault("a defect")]}
        with pytest.raises(ServerFault):
            await town.change()
        assert len(town.asked) == 1

    run(test)


def test_who_is_ahead_is_learned_from_and_the_change_is_planned_anew() -> None:
    async def test() -> None:
        town = Town()
        town.answers = {1: [StaleEpoch(8)]}
        assert await town.change() == [1, 3]
        assert town.learned == [(8, ("n1", 1))] and town.probes.reached == ["counter.behind"]
        town = Town()
        town.error = PeerUnreachable("away")
        town.answers = {1: [StaleEpoch(8)]}
        assert await town.change() == [1, 1]
        assert town.probes.reached[-1] == "counter.catch_up_failed"

    run(test)


def test_where_all_refuse_until_the_time_is_over_nothing_was_counted() -> None:
    async def test() -> None:
        town = Town(step_s=0.3)
        town.answers = {node: [Overloaded("full")] * 9 for node in (1, 2, 3)}
        with pytest.raises(Unavailable) as refused:
            await town.change()
        assert (refused.value.required, refused.value.alive) == (2, 0)
        assert 1 <= len(town.asked) <= 4
        hopeless = Town(dead=(1, 2))
        with pytest.raises(Unavailable):
            await hopeless.change()
        assert not hopeless.asked

    run(test)


def test_any_is_no_level_for_counters() -> None:
    async def test() -> None:
        with pytest.raises(InvalidRequest, match="ANY"):
            await Town().change(Consistency.ANY)

    run(test)


def test_the_order_of_leaders_is_of_the_nodes_of_the_plan() -> None:
    town = Town(dead=(2,))
    plan = PlanBook(lambda: town.cluster, lambda: 3).write_plan(CHANGE.table_id, CHANGE.token, ONE)
    assert [target.node for target in town.counters._leaders(plan)] == [NodeId(3), NodeId(1)]
