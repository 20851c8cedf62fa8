"""Rounds in which replicas of tracked tables tell each other what they hold: who asks, and who gets what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from lockstep.node.work.reconciling import Reconciler, Told
from lockstep.server.admin import reconcile
from lockstep.storage.shard_logs import Shard
from lockstep.values.node_limits import RECONCILE_MUTUAL_EVERY
from tests.node.test_tracked import (
    away,
    back,
    cut,
    held,
    lone_write,
    own_id,
    paused,
    rows_of,
    settled,
    tracked,
    unreconciled,
    write,
)

#: Rounds that are looked at.
ROUNDS = 4 * RECONCILE_MUTUAL_EVERY


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """(who asks, who is asked) of each question from now on."""
    found: Counter[tuple[int, int]] = Counter()
    compare = Reconciler._compare

    async def counts(
        self: Reconciler, node: int, told: Sequence[Told], answered: dict[Shard, set[int]]
    ) -> None:
        found[self._context.own_id(), node] += 1
        await compare(self, node, told, answered)

    monkeypatch.setattr(Reconciler, "_compare", counts)
    return found


def test_of_two_replicas_one_asks_while_something_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked(41) as town:
        assert write(town, 1).error is None
        settled(town)
        found = counted(monkeypatch)
        for number in range(2 * ROUNDS):
            assert write(town, 1 + number % 3).error is None
            town.wait(0.5)
        for one, other in ((1, 2), (2, 3), (3, 1)):
            assert found[one, other] >= ROUNDS - 2
            assert ROUNDS // RECONCILE_MUTUAL_EVERY - 1 <= found[other, one] <= ROUNDS // 2
        settled(town)
        assert held(town, 1) == held(town, 2) == held(town, 3)


def test_who_is_asked_gets_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 is to ask node 2, which has no rounds of its own."""
    of_a_round = Reconciler.round

    async def of_others(self: Reconciler) -> None:
        if self._context.own_id() != 2:
            await of_a_round(self)

    monkeypatch.setattr(Reconciler, "round", of_others)
    with tracked(42) as town:
        lone_write(town)
        paused(town, 1, 2, is_paused=False)
        town.until(lambda: town.node(2).data.reconciler.pulled == 1)
        assert [rows_of(town, number) for number in (2, 3)] == [10, 0]


def test_who_is_paused_gets_nothing_though_it_is_asked() -> None:
    with tracked(43) as town:
        lone_write(town)
        paused(town, 1, is_paused=False)
        town.wait(5.0)
        assert [rows_of(town, number) for number in (2, 3)] == [0, 0]
        assert town.node(2).data.reconciler.journal.told, "it was asked"


def test_who_is_to_ask_and_does_not_is_asked() -> None:
    with tracked(44) as town:
        assert write(town, 1).error is None
        settled(town)
        # Node 1 is to ask node 2, node 2 node 3, and node 3 node 1.
        paused(town, 1, 2)
        assert write(town, 1).error is None
        town.until(lambda: not unreconciled(town, 3))


def test_who_is_back_is_asked_though_it_asks() -> None:
    with tracked(45) as town:
        away(town, 1, (2, 3))
        assert write(town, 2).error is None
        back(town, 1)
        settled(town)
        asked = {node for number in (1, 2, 3) for node in town.node(number).data.reconciler._asked}
        assert asked == {own_id(town, number) for number in (1, 2, 3)}
        cut(town, 1, 2)
        assert write(town, 3).error is None
        cut(town, 1, 2, heal=True)
        settled(town)
        assert held(town, 1) == held(town, 2) == held(town, 3)


def test_who_starts_again_while_another_is_away_does_not_say_that_it_lacks_what_all_hold() -> None:
    with tracked(46) as town:
        for number in range(20):
            assert write(town, 1 + number % 3).error is None
        settled(town)
        away(town, 1, (2, 3))
        assert write(town, 2).error is None
        town.process(3).crash()
        town.start(3)
        town.wait(5.0)
        for number in (2, 3):
            lags = list(town.node(number).data.reconciler.lags())
            assert sum(lag.lacks for lag in lags if lag.node == own_id(town, 1)) == 1


def test_what_another_one_heard_of_a_replica_that_is_cut_off_here_is_not_lacking() -> None:
    with tracked(47) as town:
        assert write(town, 1).error is None
        settled(town)
        cut(town, 1, 2)
        for _ in range(20):
            assert write(town, 3).error is None
        town.wait(10.0)
        for number, other in ((1, 2), (2, 1)):
            reconciler = town.node(number).data.reconciler
            lags = list(reconciler.lags())
            assert sum(lag.lacks for lag in lags if lag.node == own_id(town, other)) == unreconciled(
                town, number
            )


def test_nobody_says_when_a_dead_replica_will_have_everything() -> None:
    """It lacked more before it died: that was load, of which it got the most."""
    with tracked(48) as town:
        node = town.node(1)
        settled(town)
        away(town, 3)
        assert write(town, 1).error is None
        town.wait(2.0)
        node.data.reconciler._lagging._lacked[3].appendleft((0.0, 40))
        (lag,) = (lag for lag in reconcile._document(node)["lags"] if lag["lacks"])
        assert (lag["node"], lag["alive"], lag["left_s"]) == (3, False, None)
