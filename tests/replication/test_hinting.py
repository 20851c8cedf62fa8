"""What becomes of a write for replicas that did not acknowledge it when its end was told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.coordination import hinting
from lockstep.coordination.context import CLIENT, OWED, REPAIR, Terms
from lockstep.coordination.hinting import HintingWrite, Left
from lockstep.internode.waiters import Deadlines
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.round import WRITE, Round, Target
from lockstep.values.errors import DiskRefused, LockstepError, WriteTimeout
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.rows import Mutation

from .clusters import TABLE_ID, upsert, whole_ring
from .support import real_runtime, run

LATE = WriteTimeout(Consistency.ANY, 0, 1, "SIMPLE")


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Keeper:
    """Keeps hints; for nodes in `refuses` it has neither a hint nor a mark."""

    def __init__(self) -> None:
        self.left: list[tuple[list[int], int, bool, int]] = []
        self.refuses: set[int] = set()
        self.error: LockstepError | None = None
        self.awaited: list[int] = []
        self.store = self
        self.policy = SimpleNamespace(enabled=True)

    def leave(
        self,
        mutation: Mutation,
        epoch: int,
        targets: Sequence[Target],
        *,
        forced: bool = False,
        made_us: int = 0,
    ) -> Left:
        nodes = [target.node for target in targets]
        self.left.append((nodes, epoch, forced, made_us))
        refused = tuple(node for node in nodes if node in self.refuses)
        kept = len(nodes) - len(refused)
        return Left(10 * len(self.left) if kept else 0, kept, not refused, refused)

    async def synced(self, sequence: int) -> None:
        self.awaited.append(sequence)
        if self.error is not None:
            raise self.error


class Writing:
    """A write to nodes 1, 2 and 3 of which 1 has accepted, and what it was told."""

    def __init__(self, terms: Terms = CLIENT, keeper: Keeper | None = None, dead: Sequence[int] = ()) -> None:
        cluster = whole_ring(5, [1, 2, 3])
        plan = PlanBook(lambda: cluster, lambda: 1).write_plan(TABLE_ID, 1, Consistency.ONE)
        runtime = real_runtime()
        self.keeper = keeper
        self.owner: Any = SimpleNamespace(
            runtime=runtime,
            hints=keeper,
            lingering=Deadlines(runtime.clock),
            context=SimpleNamespace(alive=lambda node: node not in dead),
        )
        self.round = Round(WRITE, plan)
        self.round.begin()
        self.round.answered(NodeId(1), 5)
        self.mutation = upsert(1, b"a", b"x")
        self.terms = terms
        self.deadline_s = runtime.clock.monotonic_s() + 60
        self.settled: Any = None
        self.gone: list[tuple[bool, int]] = []
        self.ends: list[LockstepError | None] = []
        self.hinting = HintingWrite(self)

    def end(self, error: LockstepError | None) -> None:
        self.ends.append(error)

    def let_go(self, whole: bool = True, sequence: int = 0) -> None:
        self.gone.append((whole, sequence))

    def fails(self, node: int) -> None:
        self.round.outstanding.pop(NodeId(node))

    def target(self, node: int) -> Target:
        return self.round.plan.by_node[NodeId(node)]


def test_replicas_that_may_still_answer_are_waited_for_and_others_get_a_hint_at_once() -> None:
    async def test() -> None:
        keeper = Keeper()
        write = Writing(keeper=keeper)
        write.fails(2)
        write.hinting.linger()
        assert keeper.left == [([2], 5, False, 0)] and write.gone == []
        assert len(write.owner.lingering) == 1
        write.hinting.linger()
        assert len(write.owner.lingering) == len(keeper.left) == 1, "at most one hint each"
        write.round.answered(NodeId(3), 5)
        write.hinting.heard_late()
        assert write.gone == [(True, 10)] and len(write.owner.lingering) == 0
        write.hinting.heard_late()
        assert write.gone == [(True, 10)], "told once"
        assert write.hinting.reached(write.target(2)) and not write.hinting.reached(write.target(3))

    run(test)


def test_at_the_deadline_nobody_is_waited_for() -> None:
    async def test() -> None:
        keeper = Keeper()
        write = Writing(OWED, keeper)
        write.hinting.linger()
        assert keeper.left == [] and write.hinting.deadline_s == write.deadline_s
        write.owner.lingering.stop()
        assert keeper.left == [([2, 3], 5, True, 0)] and write.gone == [(True, 10)]

    run(test)


def test_no_more_writes_than_the_bound_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(hinting, "WRITES_LINGERING_MAX", 1)
        keeper = Keeper()
        first, second = Writing(keeper=keeper), Writing(keeper=keeper)
        second.owner = first.owner
        first.hinting.linger()
        second.hinting.linger()
        assert keeper.left == [([2, 3], 5, False, 0)] and second.gone == [(True, 10)] and first.gone == []

    run(test)


def test_where_the_store_takes_nothing_the_write_has_not_reached_its_replica() -> None:
    async def test() -> None:
        keeper = Keeper()
        keeper.refuses = {3}
        write = Writing(keeper=keeper)
        write.round.outstanding.clear()
        write.hinting.linger()
        assert write.gone == [(False, 10)]
        assert write.hinting.reached(write.target(2)) and not write.hinting.reached(write.target(3))

    run(test)


@pytest.mark.parametrize(("terms", "keeper"), [(REPAIR, Keeper()), (CLIENT, None)])
def test_who_leaves_no_hints_waits_only_where_somebody_is_to_hear_of_it(
    terms: Terms, keeper: Keeper | None
) -> None:
    async def test() -> None:
        write = Writing(terms, keeper)
        write.hinting.linger()
        assert write.gone == [(True, 0)]
        heard = Writing(terms, keeper)
        heard.settled = lambda whole, sequence: None
        heard.hinting.linger()
        assert heard.gone == []
        heard.hinting.expired()
        assert heard.gone == [(False, 0)]
        assert keeper is None or keeper.left == []

    run(test)


def test_a_write_at_any_ends_with_its_first_durable_hint() -> None:
    async def test() -> None:
        keeper = Keeper()
        write = Writing(keeper=keeper, dead=(1, 3))
        write.hinting.hint_dead()
        await turns()
        assert keeper.left == [([3], 5, False, 0)], "who accepted needs none"
        assert keeper.awaited == [10] and write.ends == [None]
        assert write.hinting.hint([write.target(3)], LATE)
        assert len(keeper.left) == 1
        nobody = Writing(keeper=Keeper())
        nobody.hinting.hint_dead()
        assert nobody.keeper is not None and nobody.keeper.left == []

    run(test)


def test_a_hint_that_does_not_become_durable_ends_nothing_well() -> None:
    async def test() -> None:
        keeper = Keeper()
        keeper.error = DiskRefused("full")
        write = Writing(keeper=keeper, dead=(3,))
        write.hinting.hint_dead()
        await turns()
        assert write.ends == [], "it goes on"
        assert write.hinting.hint([write.target(2)], LATE)
        await turns()
        assert write.ends == [LATE]
        keeper.refuses = {2}
        refused = Writing(keeper=keeper)
        assert not refused.hinting.hint([refused.target(2)], LATE)
        assert not Writing().hinting.hint([write.target(2)], LATE)

    run(test)
